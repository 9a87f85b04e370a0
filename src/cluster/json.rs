//! JSON of API objects, whatever their authors wrote into it.
//!
//! A client that may create an object determines `metadata.managedFields`, whose entries are JSON of any depth; serde_json
//! refuses 128 levels. An object that cannot be read completely is read without them, and without the parts below
//! [`MAX_DEPTH`], so it hides no other object of a list. The API server keeps its own `managedFields` if an update has none
//! (`apimachinery/pkg/util/managedfields/internal/fieldmanager.go`, `decodeLiveOrNew`).

use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::{Map, Value};

/// Number of levels of an object that are read.
const MAX_DEPTH: usize = 100;

/// Reads an object, if necessary without `managedFields`.
pub(super) fn object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(bytes)
        .or_else(|_| serde_json::from_slice(bytes).and_then(TrimmedObject::read))
}

/// An object without `metadata.managedFields`, and with `null` in place of the parts below [`MAX_DEPTH`].
pub(super) struct TrimmedObject(Value);

impl TrimmedObject {
    /// Returns the object as `T`.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, serde_json::Error> {
        serde_json::from_value(self.0)
    }
}

impl<'de> Deserialize<'de> for TrimmedObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let root = TrimmedPart {
            level: 0,
            is_metadata: false,
        };
        root.deserialize(deserializer).map(TrimmedObject)
    }
}

/// The part of an object that is read next.
#[derive(Clone, Copy)]
struct TrimmedPart {
    level: usize,
    is_metadata: bool,
}

impl TrimmedPart {
    fn below(self, is_metadata: bool) -> TrimmedPart {
        TrimmedPart {
            level: self.level + 1,
            is_metadata,
        }
    }
}

impl<'de> DeserializeSeed<'de> for TrimmedPart {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.level < MAX_DEPTH {
            deserializer.deserialize_any(self)
        } else {
            IgnoredAny::deserialize(deserializer).map(|_| Value::Null)
        }
    }
}

impl<'de> Visitor<'de> for TrimmedPart {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        while let Some(item) = items.next_element_seed(self.below(false))? {
            read.push(item);
        }
        Ok(read.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if self.is_metadata && name == "managedFields" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let is_metadata = self.level == 0 && name == "metadata";
            let value = fields.next_value_seed(self.below(is_metadata))?;
            read.insert(name, value);
        }
        Ok(read.into())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a value of this depth.
    pub(in crate::cluster) fn nested(depth: usize) -> String {
        "{\"f:a\":".repeat(depth) + "{}" + &"}".repeat(depth)
    }

    #[test]
    fn reads_object_that_another_client_nested() {
        let deep = nested(1000);
        let written = format!(
            r#"{{"metadata":{{"name":"a","managedFields":[{{"fieldsV1":{deep}}}]}},"spec":{{"a":[1,-1,0.5,true,null,"b"],"managedFields":1,"deep":{deep}}}}}"#
        );
        let mut read: Value = object(written.as_bytes()).unwrap();
        let mut levels = 0;
        let mut part = read["spec"]["deep"].take();
        while let Some(inner) = part.get_mut("f:a") {
            part = inner.take();
            levels += 1;
        }
        assert_eq!((levels, part), (MAX_DEPTH - 2, Value::Null));
        let expected = json!({
            "metadata": {"name": "a"},
            "spec": {"a": [1, -1, 0.5, true, null, "b"], "managedFields": 1, "deep": null},
        });
        assert_eq!(read, expected);
        // Any other one is read completely.
        let usual = json!({"metadata": {"managedFields": [{"manager": "kubelet"}]}});
        let read: Value = object(usual.to_string().as_bytes()).unwrap();
        assert_eq!(read, usual);
        assert!(object::<Value>(b"<html>").is_err() && object::<Value>(b"{} {}").is_err());
    }
}
