//! Measures a daemon while nothing is due, the delay of its renewals, and the load that a fleet of daemons puts on a
//! signer.
//!
//!     cargo bench --bench standing_by [-- SECONDS]
//!
//! Prints tables in Markdown; the test `fleet` compares the fleet with its goals. The daemon is the release binary; it is
//! observed for SECONDS (60), and the result is extrapolated.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a benchmark that cannot run stops"
)]

mod daemon;
mod fleet;

use std::path::Path;
use std::time::Duration;

use daemon::Daemon;

/// Number of renewals of all certificates to wait for.
const ROUNDS: usize = 5;
/// Lifetime of a certificate, due after half of it; long compared with the second between two steps.
const SHORT_LIFE: &str = "24s";
/// Watchdog interval with a notification each second, which shows the cost of one; and a usual interval for a unit.
const WATCHDOG: Duration = Duration::from_secs(2);
const USUAL_WATCHDOG: Duration = Duration::from_secs(600);

fn main() {
    let program = Path::new(env!("CARGO_BIN_EXE_nodepki"));
    let seconds = std::env::args().find_map(|argument| argument.parse().ok());
    let seconds = Duration::from_secs(seconds.unwrap_or(60));
    println!("| the daemon while nothing is due | | goal |\n| --- | --- | --- |");
    let idle = Daemon::start(program, "24h", None).seen_for(seconds);
    println!("| resident memory | {:.1} MiB | 15 MiB |", idle.rss);
    let of_files = format!("of which pages of its file {:.1} MiB", idle.rss_of_files);
    println!(
        "| {of_files}, anonymous | {:.1} MiB | |",
        idle.rss - idle.rss_of_files
    );
    println!("| wake-ups an hour | {:.0} | 0 |", idle.wake_ups_an_hour());
    println!("| CPU a day | {:.3} s | |", idle.cpu_a_day());
    let watched =
        Daemon::start(program, "24h", Some(WATCHDOG)).seen_for(seconds.min(WATCHDOG * 10));
    let a_sign = watched.wake_ups_an_hour() / (3600.0 / (WATCHDOG / 2).as_secs_f64());
    println!(
        "| with WatchdogSec=10min, wake-ups an hour | {:.0} | |",
        idle.wake_ups_an_hour() + a_sign * 3600.0 / (USUAL_WATCHDOG / 2).as_secs_f64()
    );

    println!(
        "\n| each certificate, local signer | median | min..max | n |\n| --- | --- | --- | --- |"
    );
    let mut daemon = Daemon::start(program, SHORT_LIFE, None);
    let mut late: Vec<f64> = (0..ROUNDS).flat_map(|_| daemon.renewal()).collect();
    late.sort_by(f64::total_cmp);
    println!(
        "| from due to installed | {:.0} ms | {:.0}..{:.0} ms | {} |",
        late[late.len() / 2],
        late[0],
        late[late.len() - 1],
        late.len()
    );

    println!(
        "\n| 10,000 nodes, booted over one hour | requests | per | mean | peak | peak : mean | goal |\n| --- | --- | --- | --- | --- | --- | --- |"
    );
    for case in fleet::cases() {
        let load = case.load;
        println!(
            "| {} | {} | {} | {:.1} | {} | {:.2} | {} |",
            case.what,
            load.requests,
            case.per,
            load.mean,
            load.peak,
            load.ratio(),
            case.goal.map_or(String::new(), |goal| goal.to_string())
        );
    }
}
