//! Go's textual durations (`8760h0m0s`, `1.5h`), as written by Kubernetes and kubeadm.

use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Reads the format of Go's `time.ParseDuration`.
///
/// # Errors
/// The fault of the text: no unit, an unknown unit, a negative value, or more than Go can represent.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" || text == "+0" || text == "-0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative"));
    }
    let invalid = || format!("{text:?} is not a duration");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let scale: u128 = match unit {
            "ns" => 1,
            // Both the micro sign and the Greek letter are in use.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => NANOS_PER_SECOND,
            "m" => 60 * NANOS_PER_SECOND,
            "h" => 3600 * NANOS_PER_SECOND,
            "" => return Err(format!("{text:?} has a number without a unit")),
            other => return Err(format!("{text:?} has the unknown unit {other:?}")),
        };
        let too_long = || format!("{text:?} is longer than Go can hold (about 292 years)");
        let whole: u128 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| too_long())?
        };
        let mut nanos = whole.checked_mul(scale).ok_or_else(too_long)?;
        // Digits beyond a nanosecond of the largest unit have no effect.
        let mut part = scale;
        for digit in fraction.chars().take(20).filter_map(|c| c.to_digit(10)) {
            nanos += u128::from(digit) * part / 10;
            part /= 10;
        }
        total = total.checked_add(nanos).ok_or_else(too_long)?;
        if total > i64::MAX as u128 {
            return Err(too_long());
        }
        rest = next;
    }
    let seconds = u64::try_from(total / NANOS_PER_SECOND).unwrap_or(u64::MAX);
    let nanos = u32::try_from(total % NANOS_PER_SECOND).unwrap_or(0);
    Ok(Duration::new(seconds, nanos))
}

/// Returns what a text most likely means that [`parse_duration`] refuses: `30`, `30sec`, `30d`, `1 year`.
pub fn suggest_duration(text: &str) -> Option<String> {
    let (number, unit) = digits(text.trim());
    let number: u64 = number.parse().ok()?;
    let hours = |hours: u64| number.checked_mul(hours).map(|hours| format!("{hours}h"));
    match unit.trim().to_lowercase().as_str() {
        "" | "sec" | "secs" | "second" | "seconds" => Some(format!("{number}s")),
        "min" | "mins" | "minute" | "minutes" => Some(format!("{number}m")),
        "hr" | "hrs" | "hour" | "hours" => Some(format!("{number}h")),
        "d" | "day" | "days" => hours(24),
        "w" | "week" | "weeks" => hours(7 * 24),
        "y" | "year" | "years" => hours(365 * 24),
        _ => None,
    }
}

/// Returns the shortest text that [`parse_duration`] reads back, to the millisecond: `8760h`, `1m30s`, `250ms`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let mut text = String::new();
    for (amount, unit) in [
        (u128::from(seconds / 3600), "h"),
        (u128::from(seconds / 60 % 60), "m"),
        (u128::from(seconds % 60), "s"),
        (u128::from(duration.subsec_millis()), "ms"),
    ] {
        if amount > 0 {
            text.push_str(&format!("{amount}{unit}"));
        }
    }
    if text.is_empty() {
        "0s".to_owned()
    } else {
        text
    }
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_units_of_go() {
        for (text, suggested) in [
            ("30", Some("30s")),
            ("30sec", Some("30s")),
            ("5 min", Some("5m")),
            ("7 Hours", Some("7h")),
            ("30d", Some("720h")),
            ("2 weeks", Some("336h")),
            ("1year", Some("8760h")),
            ("x", None),
            ("1fortnight", None),
            ("99999999999999999999d", None),
        ] {
            assert_eq!(suggest_duration(text).as_deref(), suggested, "{text}");
        }
    }

    #[test]
    fn parses_same_durations_as_go() {
        let cases = [
            ("8760h0m0s", 8760 * 3600 * 1000),
            ("1h15m30.918s", 4_530_918),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("5.s", 5_000),
            ("+5s", 5_000),
            ("0", 0),
            ("1s500ms", 1_500),
            ("3000000us", 3_000),
            ("52763797000ns", 52_763),
            ("0.3333333333333333333h", 1_199_999),
        ];
        for (text, millis) in cases {
            let read = parse_duration(text).unwrap();
            assert_eq!(read.as_millis(), millis, "{text}");
        }
    }

    #[test]
    fn refuses_same_durations_as_go() {
        let cases = [
            ("", "\"\" is not a duration"),
            ("3", "\"3\" has a number without a unit"),
            ("-1h", "\"-1h\" is negative"),
            ("s", "\"s\" is not a duration"),
            (".", "\".\" is not a duration"),
            ("1d", "\"1d\" has the unknown unit \"d\""),
            ("1h 5m", "\"1h 5m\" has the unknown unit \"h \""),
            (
                "3000000h",
                "\"3000000h\" is longer than Go can hold (about 292 years)",
            ),
            (
                "99999999999999999999999999999999999999999h",
                "\"99999999999999999999999999999999999999999h\" is longer than Go can hold (about 292 years)",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse_duration(text).unwrap_err(), message);
        }
    }

    #[test]
    fn formats_what_it_reads() {
        for text in ["8760h", "1m30s", "250ms", "0s"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
    }
}
