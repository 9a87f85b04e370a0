//! The block `reload`.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::kube::components::{Component, ReplacedFile};
use crate::kube::paths::ADMIN_CONF;
use crate::yaml::schema::{ValueForm, required};
use crate::yaml::settings::{Setting, choice_setting, settings, unless_empty};
use crate::yaml::{self, Field, Map, format_duration};

/// Longer than the two minutes that a kubelet may wait for the volumes of a pod before it ends its containers.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(30);
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
const MIN_LEASE: Duration = Duration::from_secs(5);

settings! {
    /// How new certificates take effect.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Reload: Default {
        /// Restart static pods that do not detect new files, by an annotation in their manifests.
        "staticPods" => pub static_pods: bool = true;
        /// Static pods restart on one control-plane node at a time.
        "coordinateWithLease" => pub coordinate: bool = true;
        /// How long components may take until they serve replaced certificates, and a restarted one until it serves
        /// again; and how long a run waits for other nodes, or
        /// for the answer of a busy API server or etcd, from 1s to 10m.
        "timeout" => pub timeout: Duration = DEFAULT_TIMEOUT, read timeout;
        /// Settings of the Lease.
        "lease" => pub lease: LeaseSettings;
        /// Programs to run after a certificate was replaced, or to restart a component.
        "hooks" => pub hooks: Vec<Hook>, form ValueForm::Defined("hooks", "list of hooks"), show unless_empty::<Hook>;
        /// systemd units to restart or reload after a certificate was replaced, or to restart a component.
        "units" => pub units: Vec<Unit>, form ValueForm::Defined("units", "list of units"), show unless_empty::<Unit>;
    }
}

settings! {
    /// The Lease `kube-system/nodepki-reload`, by which the nodes take turns.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LeaseSettings: Default {
        /// Kubeconfig that may read, create and update the Lease kube-system/nodepki-reload.
        "kubeconfig" => pub kubeconfig: PathBuf = ADMIN_CONF.into();
        /// How long the other nodes wait for a node that stopped responding, from 5s to 10m.
        "duration" => pub duration: Duration = DEFAULT_LEASE, read lease_duration;
    }
}

/// Trigger of a hook or unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The restart of a component, which the hook or unit performs.
    Restart(Component),
    /// Replacement of a file or pair.
    Change(ReplacedFile),
}

impl On {
    /// Returns the name as written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            On::Restart(component) => component.as_str(),
            On::Change(change) => change.as_str(),
        }
    }

    /// Returns whether it is the trigger of a change. `sa` is also that of `sa.pub` alone.
    pub fn concerns(self, change: ReplacedFile) -> bool {
        self == On::Change(change)
            || self == On::Change(ReplacedFile::ServiceAccount) && change.is_service_account()
    }

    fn all() -> impl Iterator<Item = On> {
        let components = Component::ALL.into_iter().map(On::Restart);
        components.chain(ReplacedFile::all().map(On::Change))
    }
}

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Triggers.
    pub on: Vec<On>,
    /// Absolute path and arguments.
    pub command: Vec<String>,
    /// Timeout of one run.
    pub timeout: Duration,
}

/// A systemd unit to restart or reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Triggers.
    pub on: Vec<On>,
    /// Name with suffix.
    pub unit: String,
    /// Operation.
    pub action: UnitAction,
}

words! {
    /// Operation on a unit, as a verb of systemctl.
    #[derive(Default)]
    pub enum UnitAction {
        /// `restart`.
        #[default]
        Restart = "restart",
        /// `reload`.
        Reload = "reload",
        /// `reload-or-restart`.
        ReloadOrRestart = "reload-or-restart",
    }
}

fn timeout(field: &Field<'_>) -> Option<Duration> {
    within(field, MIN_TIMEOUT, MAX_TIMEOUT)
}

fn lease_duration(field: &Field<'_>) -> Option<Duration> {
    within(field, MIN_LEASE, MAX_TIMEOUT)
}

/// Reads a duration between these bounds.
pub(super) fn within(field: &Field<'_>, least: Duration, most: Duration) -> Option<Duration> {
    let duration = Duration::read(field)?;
    if (least..=most).contains(&duration) {
        return Some(duration);
    }
    field.error(
        format!("{} is out of bounds", format_duration(duration)),
        format!(
            "write one from {} to {}",
            format_duration(least),
            format_duration(most)
        ),
    );
    None
}

impl Setting for Hook {
    const FORM: ValueForm = ValueForm::Defined("hooks", "list of hooks");

    fn read(field: &Field<'_>) -> Option<Self> {
        let map = field.map()?;
        let on = on(&map);
        let command = required(&map, "command", "[/usr/local/sbin/after-renewal]");
        let command = command.and_then(|field| command_line(&field));
        let timeout = map.get("timeout").and_then(|field| timeout(&field));
        map.finish();
        Some(Hook {
            on: on?,
            command: command?,
            timeout: timeout.unwrap_or(DEFAULT_HOOK_TIMEOUT),
        })
    }

    fn shown(&self) -> Option<Value> {
        Some(json!({
            "on": names(&self.on),
            "command": self.command,
            "timeout": format_duration(self.timeout),
        }))
    }
}

fn command_line(field: &Field<'_>) -> Option<Vec<String>> {
    let words = <Vec<String>>::read(field)?;
    let Some(program) = words.first() else {
        field.error("names no program", "list the program and its arguments");
        return None;
    };
    if words.iter().any(|word| word.contains('\0')) {
        field.error(
            "contains a NUL character, which cannot be passed to a program",
            "remove it",
        );
        return None;
    }
    if !program.starts_with('/') {
        field.error(
            format!("{program:?} is not an absolute path"),
            "name the program by its absolute path; there is no shell",
        );
        return None;
    }
    Some(words)
}

impl Setting for Unit {
    const FORM: ValueForm = ValueForm::Defined("units", "list of units");

    fn read(field: &Field<'_>) -> Option<Self> {
        let map = field.map()?;
        let on = on(&map);
        let unit = required(&map, "unit", "kubelet.service").and_then(|field| unit_name(&field));
        let action = map.get("action").map(|field| UnitAction::read(&field));
        map.finish();
        Some(Unit {
            on: on?,
            unit: unit?,
            action: action.flatten().unwrap_or_default(),
        })
    }

    fn shown(&self) -> Option<Value> {
        Some(json!({"on": names(&self.on), "unit": self.unit, "action": self.action.as_str()}))
    }
}

pub(super) fn unit_name(field: &Field<'_>) -> Option<String> {
    let name = field.string()?;
    let fits = |c: char| c.is_ascii_alphanumeric() || "@:-_.\\".contains(c);
    if name.contains('.') && !name.starts_with(['-', '.']) && name.chars().all(fits) {
        return Some(name);
    }
    field.error(
        format!("{name:?} is not the name of a unit"),
        "write it with its suffix, as in kubelet.service",
    );
    None
}

fn names(on: &[On]) -> Vec<&'static str> {
    on.iter().map(|on| on.as_str()).collect()
}

fn on(map: &Map<'_>) -> Option<Vec<On>> {
    let field = required(map, "on", "[controller-manager.conf]")?;
    let items = field.list()?;
    if items.is_empty() {
        field.error(
            "is empty, so that it would never be triggered",
            "list names of certificates or components",
        );
        return None;
    }
    let known = |item: &Field<'_>| {
        let name = item.string()?;
        let registered = || {
            let name = item.walk().declared(&name)?.parse().ok()?;
            Some(On::Change(ReplacedFile::Certificate(name)))
        };
        let found = On::all().find(|on| on.as_str() == name).or_else(registered);
        if found.is_none() {
            let mut names: Vec<_> = On::all().map(|on| on.as_str().to_owned()).collect();
            names.extend(item.walk().all_declared());
            item.error(
                format!("{name:?} is neither a certificate nor a component"),
                yaml::fix_for(
                    &name,
                    names.iter().map(String::as_str),
                    format!("use one of {}", names.join(", ")),
                ),
            );
        }
        found
    };
    Some(items.iter().filter_map(known).collect())
}

choice_setting!(UnitAction);

/// Returns the `$defs` of the schema for the lists.
pub(super) fn definitions() -> JsonMap<String, Value> {
    let on = json!({
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [
            {"enum": On::all().map(On::as_str).collect::<Vec<_>>()},
            // A registered certificate.
            {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"},
        ]}
    });
    let list = |required: [&str; 2], properties: Value| {
        json!({"type": "array", "items": {
            "type": "object",
            "additionalProperties": false,
            "required": required,
            "properties": properties,
        }})
    };
    let command = json!({"type": "array", "minItems": 1, "items": {"type": "string"}});
    let actions = UnitAction::ALL.map(UnitAction::as_str);
    JsonMap::from_iter([
        (
            "hooks".to_owned(),
            list(
                ["on", "command"],
                json!({"on": on, "command": command, "timeout": {"type": "string"}}),
            ),
        ),
        (
            "units".to_owned(),
            list(
                ["on", "unit"],
                json!({"on": on, "unit": {"type": "string"}, "action": {"enum": actions}}),
            ),
        ),
    ])
}
