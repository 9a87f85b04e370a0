//! Compares the lifetime of a new certificate with the requested one.
//!
//! Some signers grant less than requested, others a fixed lifetime. A certificate that is valid for too long cannot be taken
//! back, and one that expires before it can be renewed causes an outage.

use std::time::Duration;

use time::OffsetDateTime;

use super::certificate::Certificate;
use super::verify::CertDifference;

/// A certificate whose lifetime exceeds the requested one by this factor is refused. A factor of five is accepted: Puppet's
/// server grants five years by default and ignores the request.
pub const LIFETIME_FACTOR: u32 = 6;

/// Time by which a lifetime may always exceed the requested one, since signers backdate, round up and have a minimum.
const LIFETIME_SLACK: Duration = Duration::from_secs(24 * 60 * 60);

/// A certificate with less time left cannot be renewed in time, unless a shorter lifetime was requested.
const MIN_LIFETIME: Duration = Duration::from_secs(2 * 60);

/// The judgement of a new certificate's lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It is that of the request, within the usual deviation of signers.
    Fits,
    /// It is considerably longer or shorter.
    Differs {
        /// The lifetime.
        lives: String,
        /// The requested one.
        asked: String,
    },
    /// The certificate must not be installed.
    Refused(CertDifference),
}

/// Compares the remaining lifetime of a certificate that was just issued with the `requested` one. `limit` replaces the
/// default upper bound.
pub fn judge_lifetime(
    leaf: &Certificate,
    requested: Duration,
    limit: Option<Duration>,
    now: OffsetDateTime,
) -> Lifetime {
    // An expired certificate, or one that is not valid yet, is refused elsewhere.
    let Ok(left) = Duration::try_from(leaf.not_after() - now) else {
        return Lifetime::Fits;
    };
    let lives = || length(left);
    let longest = limit.unwrap_or_else(|| requested.saturating_mul(LIFETIME_FACTOR));
    let longest = longest.max(longest.min(requested).saturating_add(LIFETIME_SLACK));
    if left > longest {
        return Lifetime::Refused(CertDifference::LivesTooLong {
            lives: lives(),
            asked: length(requested),
            longest: length(longest),
        });
    }
    if left < MIN_LIFETIME.min(requested / 4) {
        return Lifetime::Refused(CertDifference::LivesTooShort {
            lives: lives(),
            asked: length(requested),
        });
    }
    let is_longer = left
        > requested
            .saturating_add(requested / 10)
            .saturating_add(LIFETIME_SLACK);
    if is_longer || left < requested / 2 {
        Lifetime::Differs {
            lives: lives(),
            asked: length(requested),
        }
    } else {
        Lifetime::Fits
    }
}

/// Formats a duration in the largest unit of which it has at least two, rounded down: `365d`, `30h`, `90m`, `40s`.
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
    use crate::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey, Profile, Subject};

    const NOW: OffsetDateTime = time::macros::datetime!(2026-11-20 09:57:29 UTC);
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const YEAR: u64 = 365 * DAY;

    #[test]
    fn compares_lifetime_with_request() {
        let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let century = Duration::from_secs(100 * YEAR);
        let authority =
            CertificateAuthority::self_signed("kubernetes", key(), NOW, century).unwrap();
        let leaf = key();
        let judge = |lives: u64, asked: u64, limit: Option<u64>| {
            let profile =
                Profile::of_tests(Subject::new("leaf", &[]), &[], Duration::from_secs(lives));
            let leaf = authority.issue(leaf.public_key(), &profile, NOW).unwrap();
            let asked = Duration::from_secs(asked);
            let limit = limit.map(Duration::from_secs);
            match judge_lifetime(&leaf, asked, limit, NOW) {
                Lifetime::Fits => "fits".to_owned(),
                Lifetime::Differs { lives, asked } => {
                    format!("its lifetime is {lives} instead of the requested {asked}")
                }
                Lifetime::Refused(difference) => format!("refused: {difference}"),
            }
        };
        for (lives, asked, limit, expected) in [
            (YEAR, YEAR, None, "fits"),
            (YEAR + 12 * HOUR, YEAR, None, "fits"),
            (300 * DAY, YEAR, None, "fits"),
            (
                2 * YEAR,
                YEAR,
                None,
                "its lifetime is 730d instead of the requested 365d",
            ),
            (
                5 * YEAR,
                YEAR,
                None,
                "its lifetime is 1825d instead of the requested 365d",
            ),
            (
                10 * YEAR,
                YEAR,
                None,
                "refused: its lifetime is 3650d instead of the requested 365d",
            ),
            (
                10 * YEAR,
                YEAR,
                Some(10 * YEAR),
                "its lifetime is 3650d instead of the requested 365d",
            ),
            (
                2 * YEAR,
                YEAR,
                Some(YEAR),
                "refused: its lifetime is 730d instead of the requested 365d",
            ),
            (YEAR + HOUR, YEAR, Some(YEAR), "fits"),
            (
                YEAR,
                DAY,
                None,
                "refused: its lifetime is 365d instead of the requested 24h",
            ),
            (
                100 * DAY,
                YEAR,
                None,
                "its lifetime is 100d instead of the requested 365d",
            ),
            (
                24 * HOUR,
                YEAR,
                None,
                "its lifetime is 24h instead of the requested 365d",
            ),
            (
                5 * MINUTE,
                YEAR,
                None,
                "its lifetime is 5m instead of the requested 365d",
            ),
            (
                30,
                YEAR,
                None,
                "refused: its lifetime is 30s instead of the requested 365d",
            ),
            (
                1,
                HOUR,
                None,
                "refused: its lifetime is 1s instead of the requested 60m",
            ),
            // A short lifetime may be requested, and a signer's minimum is not a fault.
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
