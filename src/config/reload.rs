//! The `reload` block: its values, how it is read, shown and described.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::kube::components::{Change, Component};
use crate::yaml::schema::{absolute, choice, duration, required, section};
use crate::yaml::{self, Field, Map, format_duration};

/// Above the two minutes that a kubelet may wait for the volumes of a pod before it ends the pod's containers.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
const DEFAULT_HOOK_TIMEOUT: Duration = Duration::from_secs(30);
const LEAST_TIMEOUT: Duration = Duration::from_secs(1);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
const LEAST_LEASE: Duration = Duration::from_secs(5);

/// How what is new takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reload {
    /// Restart static pods by an annotation in their manifests.
    pub static_pods: bool,
    /// Let one control-plane node at a time restart something.
    pub coordinate: bool,
    /// How long a component may take until it serves again, and how long a run waits for other nodes.
    pub timeout: Duration,
    /// How nodes take turns.
    pub lease: LeaseSettings,
    /// Programs to run.
    pub hooks: Vec<Hook>,
    /// systemd units to restart or reload.
    pub units: Vec<Unit>,
}

/// How nodes take turns: the Lease `kube-system/nodepki-reload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// May read, create and update that Lease.
    pub kubeconfig: PathBuf,
    /// How long a node that vanishes keeps the others waiting.
    pub duration: Duration,
}

/// What sets something off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The restart of a component: it is done this way.
    Restart(Component),
    /// A file or pair that was replaced.
    Change(Change),
}

impl On {
    /// As written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            On::Restart(component) => component.as_str(),
            On::Change(change) => change.as_str(),
        }
    }

    fn all() -> impl Iterator<Item = On> {
        let components = Component::ALL.into_iter().map(On::Restart);
        components.chain(Change::all().map(On::Change))
    }
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// What sets it off.
    pub on: Vec<On>,
    /// Absolute path, and arguments.
    pub command: Vec<String>,
    /// For one run.
    pub timeout: Duration,
}

/// A systemd unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// What sets it off.
    pub on: Vec<On>,
    /// With its suffix.
    pub unit: String,
    /// What is done to it.
    pub action: UnitAction,
}

/// What is done to a unit, as a verb of systemctl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnitAction {
    /// `restart`.
    #[default]
    Restart,
    /// `reload`.
    Reload,
    /// `reload-or-restart`.
    ReloadOrRestart,
}

impl UnitAction {
    const ALL: [UnitAction; 3] = [
        UnitAction::Restart,
        UnitAction::Reload,
        UnitAction::ReloadOrRestart,
    ];

    /// As written in the configuration and on systemctl's command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            UnitAction::Restart => "restart",
            UnitAction::Reload => "reload",
            UnitAction::ReloadOrRestart => "reload-or-restart",
        }
    }
}

impl Default for Reload {
    fn default() -> Self {
        Reload {
            static_pods: true,
            coordinate: true,
            timeout: DEFAULT_TIMEOUT,
            lease: LeaseSettings {
                kubeconfig: "/etc/kubernetes/admin.conf".into(),
                duration: DEFAULT_LEASE,
            },
            hooks: Vec::new(),
            units: Vec::new(),
        }
    }
}

/// Reads what is there over what `reload` has.
pub(super) fn read(map: &Map<'_>, reload: &mut Reload) {
    if let Some(flag) = map.get("staticPods").and_then(|field| field.boolean()) {
        reload.static_pods = flag;
    }
    if let Some(flag) = map
        .get("coordinateWithLease")
        .and_then(|field| field.boolean())
    {
        reload.coordinate = flag;
    }
    if let Some(timeout) = within(map.get("timeout"), LEAST_TIMEOUT, LONGEST_TIMEOUT) {
        reload.timeout = timeout;
    }
    if let Some(lease) = section(map, "lease") {
        if let Some(path) = lease.get("kubeconfig").as_ref().and_then(absolute) {
            reload.lease.kubeconfig = path;
        }
        if let Some(duration) = within(lease.get("duration"), LEAST_LEASE, LONGEST_TIMEOUT) {
            reload.lease.duration = duration;
        }
        lease.finish();
    }
    if let Some(items) = map.get("hooks").and_then(|field| field.list()) {
        reload.hooks = items.iter().filter_map(hook).collect();
    }
    if let Some(items) = map.get("units").and_then(|field| field.list()) {
        reload.units = items.iter().filter_map(unit).collect();
    }
}

fn within(field: Option<Field<'_>>, least: Duration, most: Duration) -> Option<Duration> {
    let (field, duration) = duration(field)?;
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

fn hook(field: &Field<'_>) -> Option<Hook> {
    let map = field.map()?;
    let on = on(&map);
    let command = required(&map, "command", "[/usr/local/sbin/after-renewal]");
    let command = command.and_then(|field| {
        let items = field.list()?;
        let words: Vec<String> = items.iter().filter_map(Field::string).collect();
        match words.first() {
            Some(_) if words.iter().any(|word| word.contains('\0')) => {
                field.error(
                    "holds a NUL character, which no program can be given",
                    "write the words as they are typed",
                );
                None
            }
            Some(program) if program.starts_with('/') => Some(words),
            Some(program) => {
                field.error(
                    format!("{program:?} is not an absolute path"),
                    "name the program by its absolute path; there is no shell",
                );
                None
            }
            None => {
                field.error("names no program", "list the program and its arguments");
                None
            }
        }
    });
    let timeout = within(map.get("timeout"), LEAST_TIMEOUT, LONGEST_TIMEOUT);
    map.finish();
    Some(Hook {
        on: on?,
        command: command?,
        timeout: timeout.unwrap_or(DEFAULT_HOOK_TIMEOUT),
    })
}

fn unit(field: &Field<'_>) -> Option<Unit> {
    let map = field.map()?;
    let on = on(&map);
    let unit = required(&map, "unit", "kubelet.service").and_then(|field| {
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
    });
    let action = choice(map.get("action"), UnitAction::ALL, UnitAction::as_str);
    map.finish();
    Some(Unit {
        on: on?,
        unit: unit?,
        action: action.unwrap_or_default(),
    })
}

fn on(map: &Map<'_>) -> Option<Vec<On>> {
    let field = required(map, "on", "[controller-manager.conf]")?;
    let items = field.list()?;
    if items.is_empty() {
        field.error(
            "is empty, so that nothing would ever set it off",
            "list names of certificates or components",
        );
        return None;
    }
    let known = |item: &Field<'_>| {
        let name = item.string()?;
        let found = On::all().find(|on| on.as_str() == name);
        if found.is_none() {
            let names: Vec<_> = On::all().map(On::as_str).collect();
            item.error(
                format!("{name:?} is neither a certificate nor a component"),
                match yaml::did_you_mean(&name, names.iter().copied()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("use one of {}", names.join(", ")),
                },
            );
        }
        found
    };
    Some(items.iter().filter_map(known).collect())
}

/// The block with its defaults.
pub(super) fn redacted(reload: &Reload) -> Value {
    let names = |on: &[On]| -> Vec<&str> { on.iter().map(|on| on.as_str()).collect() };
    let mut block = json!({
        "staticPods": reload.static_pods,
        "coordinateWithLease": reload.coordinate,
        "timeout": format_duration(reload.timeout),
        "lease": {
            "kubeconfig": reload.lease.kubeconfig,
            "duration": format_duration(reload.lease.duration),
        },
    });
    let hooks = reload.hooks.iter().map(|hook| {
        json!({
            "on": names(&hook.on),
            "command": hook.command,
            "timeout": format_duration(hook.timeout),
        })
    });
    let units = reload.units.iter().map(
        |unit| json!({"on": names(&unit.on), "unit": unit.unit, "action": unit.action.as_str()}),
    );
    let lists: [(&str, Vec<Value>); 2] = [("hooks", hooks.collect()), ("units", units.collect())];
    if let Some(block) = block.as_object_mut() {
        for (key, list) in lists {
            if !list.is_empty() {
                block.insert(key.to_owned(), Value::Array(list));
            }
        }
    }
    block
}

/// The lists in the JSON Schema.
pub(super) fn definitions() -> JsonMap<String, Value> {
    let on = json!({
        "type": "array",
        "minItems": 1,
        "items": {"enum": On::all().map(On::as_str).collect::<Vec<_>>()}
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
