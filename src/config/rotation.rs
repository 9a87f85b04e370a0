//! The block `rotation`.

use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use crate::spec::schedule::{OnPolicyChange, Percent, RenewAt, Rotation, Window, WindowError};
use crate::yaml::schema::{DURATION_PATTERN, PERCENT_PATTERN, ValueForm, duration, required};
use crate::yaml::settings::{Setting, choice_setting, settings, unless_empty};
use crate::yaml::{Field, format_duration, parse_duration, suggest_duration};

settings! {
    for Rotation {
        /// When a certificate is due: the elapsed share of its lifetime, or a duration before its end as in 720h; never
        /// before half of its lifetime.
        "renewAt" => renew_at: RenewAt;
        /// A node renews earlier by up to this share of the lifetime, each node by a different amount.
        "jitter" => jitter: Percent;
        /// Remaining lifetime at which a certificate is due at the latest.
        "minRemaining" => min_remaining: Duration;
        /// When renewals may happen, in UTC, as in Sun 02:00-05:00; a certificate that is about to expire does not wait.
        "window" => windows: Vec<Window>, read windows,
            form ValueForm::Defined("window", "window, or list of windows"), show unless_empty::<Window>;
        /// Generate a new key for every renewal.
        "rekey" => rekey: bool;
        /// When a changed key algorithm takes effect: `nextRenewal`, when a certificate is renewed for another reason, or
        /// `now`, at the next run. A changed lifetime always takes effect at the next renewal.
        "onPolicyChange" => on_policy_change: OnPolicyChange;
    }
}

choice_setting!(OnPolicyChange);

/// Returns the correction of a text that is not a time of renewal.
fn intended(text: &str) -> String {
    const FORMS: &str =
        "write 66% for the elapsed share of the lifetime, or 720h for a duration before its end";
    let number = text.trim_end_matches('%').parse::<f64>().ok();
    match (number, suggest_duration(text)) {
        (Some(share), _) if share > 0.0 && share < 1.0 && !text.ends_with('%') => {
            format!("write {:.0}% for this share of the lifetime", share * 100.0)
        }
        (Some(share), _) if (50.0..=100.0).contains(&share) => {
            format!("write {share:.0}% for this share of the lifetime")
        }
        (None, Some(near)) => format!("write {near}; units are h, m and s"),
        _ => FORMS.to_owned(),
    }
}

impl Setting for RenewAt {
    const FORM: ValueForm = ValueForm::Defined("renewAt", "percentage or duration");

    fn read(field: &Field<'_>) -> Option<Self> {
        let text = field.written()?;
        let share = Percent::parse(&text).map(RenewAt::Share);
        let at = share.or_else(|| parse_duration(&text).ok().map(RenewAt::Before));
        if at.is_none() {
            field.error(
                format!("{text:?} is neither a share nor a duration"),
                intended(&text),
            );
        }
        at
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.to_string()))
    }
}

/// The jitter.
impl Setting for Percent {
    const FORM: ValueForm = ValueForm::Percent;

    fn read(field: &Field<'_>) -> Option<Self> {
        let text = field.written()?;
        match Percent::parse(&text) {
            Some(jitter) if Percent::new(50).is_some_and(|half| jitter > half) => {
                field.error(
                    format!("{jitter} is more than half of the lifetime, before which no renewal happens"),
                    "use 50% or less",
                );
                None
            }
            None => {
                field.error(
                    format!("{text:?} is not a share from 0% to 100%"),
                    "write a percentage, as in 10%",
                );
                None
            }
            jitter => jitter,
        }
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.to_string()))
    }
}

/// Reads one window, or a list of windows.
fn windows(field: &Field<'_>) -> Option<Vec<Window>> {
    if field.node().kind_name() != "a list" {
        return Some(Window::read(field).into_iter().collect());
    }
    let windows = <Vec<Window>>::read(field)?;
    if field.list()?.is_empty() {
        field.error("names no window", "list at least one, or remove the key");
    }
    Some(windows)
}

impl Setting for Window {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        let report = |field: &Field<'_>, fault: WindowError| field.error(fault.message, fault.fix);
        if field.node().kind_name() != "a map" {
            let text = field.string()?;
            return Window::weekly(&text)
                .map_err(|fault| report(field, fault))
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
            .map_err(|fault| report(&cron, fault))
            .ok()
    }

    fn shown(&self) -> Option<Value> {
        Some(match self.as_cron() {
            Some((cron, open)) => json!({"cron": cron, "duration": format_duration(open)}),
            None => json!(self.to_string()),
        })
    }
}

/// Returns the `$defs` of the schema for these keys.
pub(super) fn definitions() -> JsonMap<String, Value> {
    let mut window = json!({
        "type": ["string", "object"],
        "additionalProperties": false,
        "required": ["cron", "duration"],
        "properties": {
            "cron": {"type": "string"},
            "duration": {"type": "string", "pattern": DURATION_PATTERN}
        }
    });
    let one = window.clone();
    // A keyword of JSON Schema applies to values of its own type only, so the same schema can allow a list of windows.
    if let Some(window) = window.as_object_mut() {
        window.insert("type".to_owned(), json!(["string", "object", "array"]));
        window.insert("minItems".to_owned(), json!(1));
        window.insert("items".to_owned(), one);
    }
    JsonMap::from_iter([
        (
            "renewAt".to_owned(),
            json!({"anyOf": [
                {"type": "string", "pattern": PERCENT_PATTERN},
                {"type": "string", "pattern": DURATION_PATTERN}
            ]}),
        ),
        ("window".to_owned(), window),
    ])
}
