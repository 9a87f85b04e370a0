//! Durations as kubeadm and kubectl print them.

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Formats a duration as `HumanDuration` of `k8s.io/apimachinery/pkg/util/duration` does, for whole seconds.
pub fn human_duration(seconds: i64) -> String {
    // HumanDuration tolerates a clock difference of one second.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    if seconds < 2 * MINUTE {
        format!("{seconds}s")
    } else if seconds < 10 * MINUTE {
        two(seconds, MINUTE, "m", 1, "s")
    } else if seconds < 3 * HOUR {
        format!("{}m", seconds / MINUTE)
    } else if seconds < 8 * HOUR {
        two(seconds, HOUR, "h", MINUTE, "m")
    } else if seconds < 2 * DAY {
        format!("{}h", seconds / HOUR)
    } else if seconds < 8 * DAY {
        two(seconds, DAY, "d", HOUR, "h")
    } else if seconds < 2 * YEAR {
        format!("{}d", seconds / DAY)
    } else if seconds < 8 * YEAR {
        two(seconds, YEAR, "y", DAY, "d")
    } else {
        format!("{}y", seconds / YEAR)
    }
}

/// Formats two units: `2d3h`, or `2d` if the smaller one is zero.
fn two(seconds: i64, large: i64, large_name: &str, small: i64, small_name: &str) -> String {
    let whole = seconds / large;
    match seconds % large / small {
        0 => format!("{whole}{large_name}"),
        rest => format!("{whole}{large_name}{rest}{small_name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_units_where_apimachinery_does() {
        for (seconds, text) in [
            (i64::MIN, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 59, "3h"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR, "8y"),
            (10 * YEAR - 1, "9y"),
        ] {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
