//! Fuzz targets: nodepki's settings.
#![allow(clippy::type_complexity, reason = "a fuzz target ends at a fault")]

use super::Settings;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[("settings", settings)];

fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Settings::from_fragments(&[("fuzz.yaml", text)]) {
        Ok((settings, warnings)) => _ = (settings.redacted().to_string(), warnings.to_string()),
        Err(faults) => _ = faults.to_string(),
    }
}
