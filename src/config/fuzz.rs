//! Fuzz targets: nodepki's settings.
#![allow(
    clippy::panic,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use super::Settings;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[("settings", settings)];

fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Settings::from_fragments(&[("fuzz.yaml", text)]) {
        Ok((settings, warnings)) => {
            // `nodepki config show` prints settings that mean the same.
            let (shown, _) = (settings.redacted(), warnings.to_string());
            let again = Settings::from_fragments(&[("shown.yaml", shown.to_string())]);
            let (again, _) = again.unwrap_or_else(|faults| panic!("{faults}\n{shown}"));
            assert_eq!(again.redacted(), shown);
        }
        Err(faults) => _ = faults.to_string(),
    }
}
