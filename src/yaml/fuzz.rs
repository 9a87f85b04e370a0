//! Fuzz targets: YAML with positions, and durations.
#![allow(
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use super::{format_duration, parse, parse_duration};

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[("yaml", yaml), ("duration", duration)];

fn yaml(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match parse("fuzz.yaml", text) {
        Ok(documents) => {
            for mut document in documents {
                let again = document.clone();
                document.overlay(again);
            }
        }
        Err(faults) => _ = faults.to_string(),
    }
}

fn duration(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(found) = parse_duration(text)
    {
        // The text has whole milliseconds.
        let again = parse_duration(&format_duration(found)).expect("a duration is read again");
        assert_eq!(again.as_millis(), found.as_millis(), "{text}");
    }
}
