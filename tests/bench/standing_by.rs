//! What a daemon costs while nothing is due, how long it takes when something is, and what a fleet of them asks of a
//! signer.
//!
//!     cargo bench --bench standing_by [-- SECONDS]
//!
//! Prints tables in Markdown and judges nothing: the test `fleet` holds the fleet against its goals. The daemon is the
//! real binary of the release build; it is watched for so many seconds (60), and what was seen is scaled up.
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

/// Renewals of everything that are waited for.
const ROUNDS: usize = 5;
/// Due after half of it, and long enough for the second between two steps not to matter.
const SHORT_LIFE: &str = "24s";
/// A sign of life each second, to see what one costs; and one that a unit might ask for.
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
