//! The `rotation` block: how it is read, shown and described.

use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::spec::schedule::{Fault, Percent, RenewAt, Rotation, Window};
use crate::yaml::schema::{duration, required};
use crate::yaml::{Field, Map, format_duration, parse_duration};

/// Reads what is there over what `rotation` has.
pub(super) fn read(map: &Map<'_>, rotation: &mut Rotation) {
    if let Some(field) = map.get("renewAt")
        && let Some(at) = renew_at(&field)
    {
        rotation.renew_at = at;
    }
    if let Some(field) = map.get("jitter")
        && let Some(jitter) = jitter(&field)
    {
        rotation.jitter = jitter;
    }
    if let Some((_, remaining)) = duration(map.get("minRemaining")) {
        rotation.min_remaining = remaining;
    }
    if let Some(field) = map.get("window") {
        rotation.windows = windows(&field);
    }
    if let Some(rekey) = map.get("rekey").and_then(|field| field.boolean()) {
        rotation.rekey = rekey;
    }
}

fn renew_at(field: &Field<'_>) -> Option<RenewAt> {
    let text = field.written()?;
    let share = Percent::parse(&text).map(RenewAt::Share);
    let at = share.or_else(|| parse_duration(&text).ok().map(RenewAt::Before));
    if at.is_none() {
        field.error(
            format!("{text:?} is neither a share nor a duration"),
            "write 66% for the share of its life that is over, or 720h for so long before its end",
        );
    }
    at
}

fn jitter(field: &Field<'_>) -> Option<Percent> {
    let text = field.written()?;
    match Percent::parse(&text) {
        Some(jitter) if Percent::new(50).is_some_and(|half| jitter > half) => {
            field.error(
                format!("{jitter} is more than the half of a life in which renewals happen at all"),
                "use 50% or less",
            );
            None
        }
        None => {
            field.error(
                format!("{text:?} is no share from 0% to 100%"),
                "write a percentage, as in 10%",
            );
            None
        }
        jitter => jitter,
    }
}

/// One window, or a list of them.
fn windows(field: &Field<'_>) -> Vec<Window> {
    if field.node().kind_name() != "a list" {
        return window(field).into_iter().collect();
    }
    let items = field.list().unwrap_or_default();
    if items.is_empty() {
        field.error("names no window", "list at least one, or remove the key");
    }
    items.iter().filter_map(window).collect()
}

fn window(field: &Field<'_>) -> Option<Window> {
    let told = |field: &Field<'_>, fault: Fault| field.error(fault.message, fault.fix);
    if field.node().kind_name() != "a map" {
        let text = field.string()?;
        return Window::weekly(&text)
            .map_err(|fault| told(field, fault))
            .ok();
    }
    let map = field.map()?;
    let cron = required(&map, "cron", "\"0 2 * * 0\"");
    let open = required(&map, "duration", "3h");
    map.finish();
    let cron = cron?;
    let text = cron.string()?;
    let (_, open): (_, Duration) = duration(open)?;
    Window::cron(&text, open)
        .map_err(|fault| told(&cron, fault))
        .ok()
}

/// The block with its defaults.
pub(super) fn redacted(rotation: &Rotation) -> Value {
    let mut block = json!({
        "renewAt": rotation.renew_at.to_string(),
        "jitter": rotation.jitter.to_string(),
        "minRemaining": format_duration(rotation.min_remaining),
        "rekey": rotation.rekey,
    });
    let windows: Vec<Value> = rotation.windows.iter().map(shown).collect();
    if !windows.is_empty()
        && let Some(block) = block.as_object_mut()
    {
        block.insert("window".to_owned(), Value::Array(windows));
    }
    block
}

fn shown(window: &Window) -> Value {
    match window.as_cron() {
        Some((cron, open)) => json!({"cron": cron, "duration": format_duration(open)}),
        None => json!(window.to_string()),
    }
}

/// What `$defs` of the schema needs for these keys.
pub(super) fn definitions() -> JsonMap<String, Value> {
    let duration = "^\\+?(0|([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";
    let mut window = json!({
        "type": ["string", "object"],
        "additionalProperties": false,
        "required": ["cron", "duration"],
        "properties": {
            "cron": {"type": "string"},
            "duration": {"type": "string", "pattern": duration}
        }
    });
    let one = window.clone();
    // Each word of a schema is about values of its own type only, so a list of windows fits in beside one.
    if let Some(window) = window.as_object_mut() {
        window.insert("type".to_owned(), json!(["string", "object", "array"]));
        window.insert("minItems".to_owned(), json!(1));
        window.insert("items".to_owned(), one);
    }
    JsonMap::from_iter([
        (
            "renewAt".to_owned(),
            json!({"anyOf": [
                {"type": "string", "pattern": "^(100|[0-9]?[0-9]) ?%$"},
                {"type": "string", "pattern": duration}
            ]}),
        ),
        ("window".to_owned(), window),
    ])
}
