//! Declaration of settings: one row gives key, type, default, reader, redaction, JSON Schema and documentation.
//!
//! `settings!` declares a struct whose fields are settings, `one_of!` an enum of which exactly one key must be set.
//! The doc comment of a field is its documentation. A row has this form, with the optional parts in this order:
//!
//! ```text
//! /// Meaning of the setting, one sentence.
//! "key" => pub field: Type = DEFAULT, required "example", read reader, form FORM, show shown, flat module;
//! ```
//!
//! - Without `=` the default is that of the type. A `required` key has no default; the example is part of the fault.
//! - `read`, `form` and `show` replace what [`Setting`] defines for the type.
//! - `flat` reads further keys of the same map: `module` has `KEYS`, `read(map, field)` and `show(value, key, keys)`.
//! - A dot in the key puts the setting into a map of its own, `"clock.maxWait"`.
//!
//! `struct Name: Default` also implements `Default`. `also { … }` at the end declares fields that are not settings.
//! `settings! { for Type { … } }` does the same for a type that is declared elsewhere and implements `Default`.
//! `required` and `flat` are not available there. Faults are reported to the field's walk, with line and column.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map as JsonMap, Value as Json, json};

use super::schema::{MapKey, SecretFile, ValueForm, absolute, duration, pin};
use super::{Field, Map, format_duration};
use crate::text::hex;

/// A type that the value of a setting may have.
pub trait Setting: Sized {
    /// The form in which the value is written.
    const FORM: ValueForm;

    /// Reads the value. Returns `None` if it is invalid; the fault is then reported.
    fn read(field: &Field<'_>) -> Option<Self>;

    /// Returns the value as written in the configuration, without secrets; `None` if it is not set.
    fn shown(&self) -> Option<Json>;
}

/// A map of settings.
pub trait SettingsBlock: Sized {
    /// Its keys.
    const KEYS: &'static [MapKey];

    /// Reads the keys. Returns `None` if a required key is missing or invalid; the fault is then reported.
    fn read_keys(map: &Map<'_>) -> Option<Self>;

    /// Adds the effective values to `keys`, without secrets.
    fn show_keys(&self, keys: &mut JsonMap<String, Json>);

    /// Returns the effective values, without secrets.
    fn shown_keys(&self) -> Json {
        let mut keys = JsonMap::new();
        self.show_keys(&mut keys);
        Json::Object(keys)
    }
}

/// Reads a block, and reports unknown keys.
pub fn read_block<T: SettingsBlock>(field: &Field<'_>) -> Option<T> {
    let map = field.map()?;
    let block = T::read_keys(&map);
    map.finish();
    block
}

/// Returns the value of a key of a block. A dot in the key names a map within the block's map.
pub fn get<'a>(map: &Map<'a>, key: &str, keys: &[MapKey]) -> Option<Field<'a>> {
    let Some((outer, inner)) = key.split_once('.') else {
        return map.get(key);
    };
    let section = map.get(outer)?.map()?;
    let siblings = keys.iter().filter_map(|key| key.name.split_once('.'));
    for (_, sibling) in siblings.filter(|(section, _)| *section == outer) {
        section.ignore(&[sibling]);
    }
    let field = section.get(inner);
    section.finish();
    field
}

/// Adds a value under its key. A dot in the key names a map within `keys`.
pub fn insert(keys: &mut JsonMap<String, Json>, key: &str, value: Option<Json>) {
    let Some(value) = value else { return };
    match key.split_once('.') {
        None => {
            keys.insert(key.to_owned(), value);
        }
        Some((outer, inner)) => {
            let section = keys.entry(outer).or_insert_with(|| json!({}));
            if let Some(section) = section.as_object_mut() {
                section.insert(inner.to_owned(), value);
            }
        }
    }
}

/// Shows a list unless it is empty.
pub fn unless_empty<T: Setting>(items: &[T]) -> Option<Json> {
    (!items.is_empty()).then(|| items.iter().filter_map(T::shown).collect())
}

/// Shows a flag only if it is set.
pub fn if_set(flag: &bool) -> Option<Json> {
    flag.then_some(json!(true))
}

impl Setting for bool {
    const FORM: ValueForm = ValueForm::Flag;

    fn read(field: &Field<'_>) -> Option<Self> {
        field.boolean()
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(self))
    }
}

impl Setting for String {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        field.string()
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(self))
    }
}

impl Setting for Duration {
    const FORM: ValueForm = ValueForm::Duration;

    fn read(field: &Field<'_>) -> Option<Self> {
        duration(Some(field.clone())).map(|(_, duration)| duration)
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(format_duration(*self)))
    }
}

impl Setting for PathBuf {
    const FORM: ValueForm = ValueForm::Path;

    fn read(field: &Field<'_>) -> Option<Self> {
        absolute(field)
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(self))
    }
}

impl Setting for SecretFile {
    const FORM: ValueForm = ValueForm::Secret;

    fn read(field: &Field<'_>) -> Option<Self> {
        SecretFile::read(field)
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(self.to_string()))
    }
}

impl Setting for [u8; 32] {
    const FORM: ValueForm = ValueForm::Pin;

    fn read(field: &Field<'_>) -> Option<Self> {
        pin(field)
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(hex(self)))
    }
}

impl<T: Setting> Setting for Option<T> {
    const FORM: ValueForm = T::FORM;

    fn read(field: &Field<'_>) -> Option<Self> {
        T::read(field).map(Some)
    }

    fn shown(&self) -> Option<Json> {
        self.as_ref().and_then(T::shown)
    }
}

/// Invalid items are reported and left out.
impl<T: Setting> Setting for Vec<T> {
    const FORM: ValueForm = ValueForm::List(&T::FORM);

    fn read(field: &Field<'_>) -> Option<Self> {
        Some(field.list()?.iter().filter_map(T::read).collect())
    }

    fn shown(&self) -> Option<Json> {
        Some(self.iter().filter_map(T::shown).collect())
    }
}

/// The values are taken as written: they may be secrets, and no fault may quote them.
impl Setting for BTreeMap<String, String> {
    const FORM: ValueForm = ValueForm::Map(&ValueForm::Text);

    fn read(field: &Field<'_>) -> Option<Self> {
        let entries = field.map()?.named().into_iter();
        Some(
            entries
                .filter_map(|(name, field)| Some((name, field.written()?)))
                .collect(),
        )
    }

    fn shown(&self) -> Option<Json> {
        Some(json!(self))
    }
}

/// Implements [`Setting`] for an enum with `ALL` and `as_str`.
macro_rules! choice_setting {
    ($($name:ty),+ $(,)?) => {
        $(impl $crate::yaml::settings::Setting for $name {
            const FORM: $crate::yaml::schema::ValueForm = $crate::yaml::schema::ValueForm::Choice(|| {
                <$name>::ALL.into_iter().map(<$name>::as_str).collect()
            });

            fn read(field: &$crate::yaml::Field<'_>) -> Option<Self> {
                $crate::yaml::schema::choice(Some(field.clone()), <$name>::ALL, <$name>::as_str)
            }

            fn shown(&self) -> Option<serde_json::Value> {
                Some(serde_json::json!(self.as_str()))
            }
        })+
    };
}

/// Declares a block of settings; see the module.
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $(
                $(#[doc = $meaning:literal])+
                $key:literal => $field_visibility:vis $field:ident : $type:ty
                    $(= $default:expr)?
                    $(, required $example:literal)?
                    $(, read $reader:expr)?
                    $(, form $form:expr)?
                    $(, show $show:expr)?
                    $(, flat $flat:ident)?
                ;
            )+
            $(also {$(
                $(#[$also_attribute:meta])*
                $also_visibility:vis $also:ident : $also_type:ty = $also_default:expr
            ),+ $(,)?})?
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[doc = $meaning])+ $field_visibility $field: $type,)+
            $($($(#[$also_attribute])* $also_visibility $also: $also_type,)+)?
        }

        impl $crate::yaml::settings::SettingsBlock for $name {
            const KEYS: &'static [$crate::yaml::schema::MapKey] = &[$(
                $crate::yaml::schema::MapKey {
                    name: $key,
                    form: $crate::yaml::settings::settings!(@form [$type] [$($form)?] [$($flat)?]),
                    meaning: concat!($($meaning),+),
                    is_required: $crate::yaml::settings::settings!(@required [$($example)?]),
                    default: || $crate::yaml::settings::settings!(
                        @default [$type] [$($default)?] [$($example)?] [$($show)?] [$($flat)?]
                    ),
                    beside: $crate::yaml::settings::settings!(@beside [$($flat)?]),
                }
            ),+];

            fn read_keys(map: &$crate::yaml::Map<'_>) -> Option<Self> {
                $(let $field = $crate::yaml::settings::settings!(
                    @read map $key [$type] [$($default)?] [$($example)?] [$($reader)?] [$($flat)?]
                );)+
                Some($name {
                    $($field: $field?,)+
                    $($($also: $also_default,)+)?
                })
            }

            fn show_keys(&self, keys: &mut serde_json::Map<String, serde_json::Value>) {
                $($crate::yaml::settings::settings!(
                    @show (&self.$field) keys $key [$type] [$($show)?] [$($flat)?]
                );)+
            }
        }

        $crate::yaml::settings::settings!(@setting $name);
    };
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident : Default { $($body:tt)+ }
    ) => {
        $crate::yaml::settings::settings! { $(#[$attribute])* $visibility struct $name { $($body)+ } }
        $crate::yaml::settings::settings! { @defaults $name { $($body)+ } }
    };
    (
        @defaults $name:ident {
            $(
                $(#[$ignored:meta])+
                $key:literal => $field_visibility:vis $field:ident : $type:ty
                    $(= $default:expr)?
                    $(, read $reader:expr)?
                    $(, form $form:expr)?
                    $(, show $show:expr)?
                ;
            )+
            $(also {$(
                $(#[$also_attribute:meta])*
                $also_visibility:vis $also:ident : $also_type:ty = $also_default:expr
            ),+ $(,)?})?
        }
    ) => {
        impl Default for $name {
            fn default() -> Self {
                $name {
                    $($field: $crate::yaml::settings::settings!(@value [$($default)?]),)+
                    $($($also: $also_default,)+)?
                }
            }
        }
    };
    (@value []) => { Default::default() };
    (@value [$default:expr]) => { $default };
    (
        for $name:ty {
            $(
                $(#[doc = $meaning:literal])+
                $key:literal => $field:ident : $type:ty
                    $(, read $reader:expr)?
                    $(, form $form:expr)?
                    $(, show $show:expr)?
                ;
            )+
        }
    ) => {
        impl $crate::yaml::settings::SettingsBlock for $name {
            const KEYS: &'static [$crate::yaml::schema::MapKey] = &[$(
                $crate::yaml::schema::MapKey {
                    name: $key,
                    form: $crate::yaml::settings::settings!(@form [$type] [$($form)?] []),
                    meaning: concat!($($meaning),+),
                    is_required: false,
                    default: || $crate::yaml::settings::settings!(
                        @default [$type] [<$name>::default().$field] [] [$($show)?] []
                    ),
                    beside: &[],
                }
            ),+];

            fn read_keys(map: &$crate::yaml::Map<'_>) -> Option<Self> {
                let mut block = <$name>::default();
                $(if let Some(value) = $crate::yaml::settings::get(map, $key, Self::KEYS).and_then(
                    |field| $crate::yaml::settings::settings!(@reader [$type] [$($reader)?])(&field)
                ) {
                    block.$field = value;
                })+
                Some(block)
            }

            fn show_keys(&self, keys: &mut serde_json::Map<String, serde_json::Value>) {
                $($crate::yaml::settings::settings!(
                    @show (&self.$field) keys $key [$type] [$($show)?] []
                );)+
            }
        }

        $crate::yaml::settings::settings!(@setting $name);
    };
    (@setting $name:ty) => {
        impl $crate::yaml::settings::Setting for $name {
            const FORM: $crate::yaml::schema::ValueForm = $crate::yaml::schema::ValueForm::Block(
                <$name as $crate::yaml::settings::SettingsBlock>::KEYS,
            );

            fn read(field: &$crate::yaml::Field<'_>) -> Option<Self> {
                $crate::yaml::settings::read_block(field)
            }

            fn shown(&self) -> Option<serde_json::Value> {
                Some($crate::yaml::settings::SettingsBlock::shown_keys(self))
            }
        }
    };
    (@form [$type:ty] [] []) => { <$type as $crate::yaml::settings::Setting>::FORM };
    (@form [$type:ty] [$form:expr] []) => { $form };
    (@form [$type:ty] [] [$flat:ident]) => { $crate::yaml::schema::ValueForm::Url };
    (@required []) => { false };
    (@required [$example:literal]) => { true };
    (@beside []) => { &[] };
    (@beside [$flat:ident]) => { $flat::KEYS };
    (@default [$type:ty] [] [] [] []) => {
        <$type as $crate::yaml::settings::Setting>::shown(&<$type as Default>::default())
    };
    (@default [$type:ty] [] [] [$show:expr] []) => { $show(&<$type as Default>::default()) };
    (@default [$type:ty] [$default:expr] [] [] []) => {
        <$type as $crate::yaml::settings::Setting>::shown(&$default)
    };
    (@default [$type:ty] [$default:expr] [] [$show:expr] []) => { $show(&$default) };
    (@default $type:tt [] [$($example:literal)?] $show:tt $flat:tt) => { None };
    (@reader [$type:ty] []) => { <$type as $crate::yaml::settings::Setting>::read };
    (@reader [$type:ty] [$reader:expr]) => { $reader };
    (@read $map:ident $key:literal $type:tt [] [$example:literal] [] [$flat:ident]) => {
        $flat::read($map, $crate::yaml::schema::required($map, $key, $example))
    };
    (@read $map:ident $key:literal $type:tt [] [] [] [$flat:ident]) => {
        $flat::read($map, $map.get($key))
    };
    (@read $map:ident $key:literal $type:tt [] [$example:literal] $reader:tt []) => {
        $crate::yaml::schema::required($map, $key, $example)
            .and_then(|field| $crate::yaml::settings::settings!(@reader $type $reader)(&field))
    };
    (@read $map:ident $key:literal $type:tt [] [] $reader:tt []) => {
        Some(
            $crate::yaml::settings::get($map, $key, Self::KEYS)
                .and_then(|field| $crate::yaml::settings::settings!(@reader $type $reader)(&field))
                .unwrap_or_default(),
        )
    };
    (@read $map:ident $key:literal $type:tt [$default:expr] [] $reader:tt []) => {
        Some(
            $crate::yaml::settings::get($map, $key, Self::KEYS)
                .and_then(|field| $crate::yaml::settings::settings!(@reader $type $reader)(&field))
                .unwrap_or_else(|| $default),
        )
    };
    (@show ($value:expr) $keys:ident $key:literal $type:tt [] [$flat:ident]) => {
        $flat::show($value, $key, $keys)
    };
    (@show ($value:expr) $keys:ident $key:literal [$type:ty] [] []) => {
        $crate::yaml::settings::insert(
            $keys,
            $key,
            <$type as $crate::yaml::settings::Setting>::shown($value),
        )
    };
    (@show ($value:expr) $keys:ident $key:literal $type:tt [$show:expr] []) => {
        $crate::yaml::settings::insert($keys, $key, $show($value))
    };
}

/// Declares an enum of which exactly one key must be set. `what` names the alternatives in the fault.
macro_rules! one_of {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident ($what:literal) {
            $(
                $(#[doc = $meaning:literal])+
                $key:literal => $variant:ident($type:ty),
            )+
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[doc = $meaning])+ $variant($type),)+
        }

        impl $crate::yaml::settings::Setting for $name {
            const FORM: $crate::yaml::schema::ValueForm = $crate::yaml::schema::ValueForm::Block(&[$(
                $crate::yaml::schema::MapKey {
                    name: $key,
                    form: <$type as $crate::yaml::settings::Setting>::FORM,
                    meaning: concat!($($meaning),+),
                    is_required: false,
                    default: || None,
                    beside: &[],
                }
            ),+]);

            fn read(field: &$crate::yaml::Field<'_>) -> Option<Self> {
                let map = field.map()?;
                let mut found = Vec::new();
                $(if let Some(field) = map.get($key) {
                    found.push(<$type as $crate::yaml::settings::Setting>::read(&field).map($name::$variant));
                })+
                map.finish();
                if found.len() != 1 {
                    field.error(
                        format!("has {} {}", found.len(), $what),
                        format!("keep exactly one of {}", [$($key),+].join(", ")),
                    );
                    return None;
                }
                found.pop().flatten()
            }

            fn shown(&self) -> Option<serde_json::Value> {
                let mut keys = serde_json::Map::new();
                match self {
                    $($name::$variant(value) => $crate::yaml::settings::insert(
                        &mut keys,
                        $key,
                        <$type as $crate::yaml::settings::Setting>::shown(value),
                    ),)+
                }
                Some(serde_json::Value::Object(keys))
            }
        }
    };
}

pub(crate) use {choice_setting, one_of, settings};

#[cfg(test)]
mod tests;
