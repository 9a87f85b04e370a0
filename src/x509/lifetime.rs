//! The life of a new certificate against the one that was asked for.
//!
//! Signers give less than was asked for, and some a fixed life whatever was asked for. A certificate that outlives
//! every other plan for it cannot be taken back, and one that ends before it can be renewed is an outage.

use std::time::Duration;

use time::OffsetDateTime;

use super::certificate::Certificate;
use super::verify::Difference;

/// A certificate that lives this many times as long as was asked for is refused. Five times is taken: Puppet's server
/// gives five years by default, and takes no wish.
pub const LIFETIME_FACTOR: u32 = 6;

/// By how much a life may always exceed the wish. Signers date back, round up, and have a least life.
const SLACK: Duration = Duration::from_secs(24 * 60 * 60);

/// A certificate with less time left cannot be renewed in time, unless it was asked for so.
const SHORTEST: Duration = Duration::from_secs(2 * 60);

/// What is said of a new certificate's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// As asked for, give or take what signers do.
    Fits,
    /// Considerably longer or shorter, in words.
    Differs(String),
    /// It must not be installed.
    Refused(Difference),
}

/// Compares what is left of a certificate that was just issued with the life that was `asked` for. `limit` takes the
/// place of the default bound for longer lives.
pub fn judge_lifetime(
    leaf: &Certificate,
    asked: Duration,
    limit: Option<Duration>,
    now: OffsetDateTime,
) -> Lifetime {
    // One that is over or not yet valid is refused for that.
    let Ok(left) = Duration::try_from(leaf.not_after() - now) else {
        return Lifetime::Fits;
    };
    let lives = || length(left);
    let longest = limit.unwrap_or_else(|| asked.saturating_mul(LIFETIME_FACTOR));
    let longest = longest.max(longest.min(asked).saturating_add(SLACK));
    if left > longest {
        return Lifetime::Refused(Difference::LivesTooLong {
            lives: lives(),
            asked: length(asked),
            longest: length(longest),
        });
    }
    if left < SHORTEST.min(asked / 4) {
        return Lifetime::Refused(Difference::LivesTooShort {
            lives: lives(),
            asked: length(asked),
        });
    }
    let is_longer = left > asked.saturating_add(asked / 10).saturating_add(SLACK);
    match is_longer || left < asked / 2 {
        true => Lifetime::Differs(format!("it lives {}, asked {}", lives(), length(asked))),
        false => Lifetime::Fits,
    }
}

/// In the largest unit of which there are two, rounded down: `365d`, `30h`, `90m`, `40s`.
fn length(duration: Duration) -> String {
    let seconds = duration.as_secs();
    for (unit, name) in [(24 * 60 * 60, 'd'), (60 * 60, 'h'), (60, 'm')] {
        if seconds >= 2 * unit {
            return format!("{}{name}", seconds / unit);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey, Profile, Sans, Subject};

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-20 09:57:29 UTC);
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const YEAR: u64 = 365 * DAY;

    #[test]
    fn compares_life_with_wish() {
        let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let century = Duration::from_secs(100 * YEAR);
        let authority =
            CertificateAuthority::self_signed("kubernetes", key(), NOW, century).unwrap();
        let leaf = key();
        let judge = |lives: u64, asked: u64, limit: Option<u64>| {
            let profile = Profile {
                subject: Subject {
                    common_name: "leaf".to_owned(),
                    organizations: Vec::new(),
                },
                sans: Sans::default(),
                usages: Vec::new(),
                key: KeyAlgorithm::EcdsaP256,
                lifetime: Duration::from_secs(lives),
            };
            let leaf = authority.issue(leaf.public_key(), &profile, NOW).unwrap();
            let asked = Duration::from_secs(asked);
            let limit = limit.map(Duration::from_secs);
            match judge_lifetime(&leaf, asked, limit, NOW) {
                Lifetime::Fits => "fits".to_owned(),
                Lifetime::Differs(note) => note,
                Lifetime::Refused(difference) => format!("refused: {difference}"),
            }
        };
        for (lives, asked, limit, expected) in [
            (YEAR, YEAR, None, "fits"),
            (YEAR + 12 * HOUR, YEAR, None, "fits"),
            (300 * DAY, YEAR, None, "fits"),
            (2 * YEAR, YEAR, None, "it lives 730d, asked 365d"),
            (5 * YEAR, YEAR, None, "it lives 1825d, asked 365d"),
            (10 * YEAR, YEAR, None, "refused: it lives 3650d, asked 365d"),
            (
                10 * YEAR,
                YEAR,
                Some(10 * YEAR),
                "it lives 3650d, asked 365d",
            ),
            (
                2 * YEAR,
                YEAR,
                Some(YEAR),
                "refused: it lives 730d, asked 365d",
            ),
            (YEAR + HOUR, YEAR, Some(YEAR), "fits"),
            (YEAR, DAY, None, "refused: it lives 365d, asked 24h"),
            (100 * DAY, YEAR, None, "it lives 100d, asked 365d"),
            (24 * HOUR, YEAR, None, "it lives 24h, asked 365d"),
            (5 * MINUTE, YEAR, None, "it lives 5m, asked 365d"),
            (30, YEAR, None, "refused: it lives 30s, asked 365d"),
            (1, HOUR, None, "refused: it lives 1s, asked 60m"),
            // What is asked for is given, and a signer's least life is no fault.
            (60, 60, None, "fits"),
            (2, 2, None, "fits"),
            (10 * MINUTE, 60, None, "fits"),
            (HOUR, 60, None, "fits"),
        ] {
            let found = judge(lives, asked, limit);
            assert!(
                found.starts_with(expected),
                "{lives} {asked} {limit:?}: {found}, expected {expected}"
            );
        }
    }
}
