//! Name constraints over a path, with the rules of Go (`constraints.go`, Go 1.26).
//!
//! Unlike RFC 5280, Go applies them to the names of all certificates below, including those of CAs. If there is any
//! constraint, Go refuses names that it cannot compare.
//!
//! Go ignores directory names, or refuses them in a critical extension. OpenSSL compares them with the subjects, as RFC 5280
//! requires, and so does nodepki: what either of the two refuses is refused.

use std::net::IpAddr;

use super::certificate::Certificate;
use super::strict::{
    AlternativeNames, CanonicalName, NameConstraints, Subtrees, canonical_name, is_domain, mailbox,
};

/// Largest number of comparisons for one certificate and the constraints of one CA. OpenSSL: `NAME_CHECK_MAX`.
const MAX_COMPARISONS: usize = 1 << 20;

/// Returns true if a certificate of `chain`, leaf first, has a name that a certificate above it forbids, or more names than
/// can be compared. Go: `checkChainConstraints`.
pub(super) fn violates_constraints(chain: &[&Certificate]) -> bool {
    chain.iter().enumerate().any(|(at, certificate)| {
        let above = chain.get(at + 1..).unwrap_or_default();
        // OpenSSL: `check_name_constraints`, which ignores the subjects of self-issued CAs.
        let has_subject = at == 0 || certificate.subject() != certificate.issuer();
        above
            .iter()
            .filter_map(|authority| authority.extensions().name_constraints.as_ref())
            .any(|constraints| {
                let names = certificate.names();
                is_excessive(constraints, certificate)
                    || names.is_some_and(|names| !allows(constraints, names))
                    || (has_subject && !allows_subject(constraints, certificate))
            })
    })
}

/// Returns true if a CA of `chain` constrains directory names, which webpki does not support: it refuses every subject. No
/// certificate of the chain has a name of another kind that only webpki examines.
pub(super) fn constrains_only_subjects(chain: &[&Certificate]) -> bool {
    let constrains = |certificate: &&Certificate| {
        let constraints = certificate.extensions().name_constraints.as_ref();
        constraints.is_some_and(|found| {
            !found.permitted.directories.is_empty() || !found.excluded.directories.is_empty()
        })
    };
    let has_others = |certificate: &&Certificate| {
        let names = certificate.names();
        names.is_some_and(|names| !names.others.is_empty())
    };
    chain.iter().any(constrains) && !chain.iter().any(has_others)
}

fn is_excessive(constraints: &NameConstraints, certificate: &Certificate) -> bool {
    let names = certificate.names().map_or(0, |names| {
        names.dns.len() + names.ips.len() + names.emails.len() + names.uris.len()
    });
    let names = names + certificate.subject().name_attributes().len();
    let trees = |side: &Subtrees| {
        side.dns.len()
            + side.ips.len()
            + side.emails.len()
            + side.uris.len()
            + side.directories.len()
    };
    let trees = trees(&constraints.permitted) + trees(&constraints.excluded);
    names.saturating_mul(trees) > MAX_COMPARISONS
}

/// Compares the subject with the directory names. A subtree contains the names that begin with it. OpenSSL: `nc_dn`.
fn allows_subject(constraints: &NameConstraints, certificate: &Certificate) -> bool {
    let (permitted, excluded) = (
        &constraints.permitted.directories,
        &constraints.excluded.directories,
    );
    if permitted.is_empty() && excluded.is_empty() {
        return true;
    }
    let Ok(subject) = canonical_name(certificate.subject().der()) else {
        return false;
    };
    let is_comparable = permitted.iter().chain(excluded).all(Option::is_some);
    let contains =
        |tree: &Option<CanonicalName>| tree.as_ref().is_some_and(|tree| subject.starts_with(tree));
    subject.is_empty()
        || (is_comparable
            && (permitted.is_empty() || permitted.iter().any(contains))
            && !excluded.iter().any(contains))
}

fn allows(constraints: &NameConstraints, names: &AlternativeNames) -> bool {
    let (permitted, excluded) = (&constraints.permitted, &constraints.excluded);
    let domain = |domain: &str, permitted: &[String], excluded: &[String]| {
        is_domain(domain, false)
            && (permitted.is_empty() || permitted.iter().any(|tree| is_below(domain, tree)))
            && !excluded
                .iter()
                .any(|tree| is_below(domain, tree) || wildcard_covers(domain, tree))
    };
    let dns = |name: &String| domain(name, &permitted.dns, &excluded.dns);
    let ip = |address: &IpAddr| {
        let bytes = octets(*address);
        // Go looks up permitted networks by their first address and does not reliably find one with host bits.
        let permits = |(base, mask): &(Vec<u8>, Vec<u8>)| {
            is_masked(base, mask) && contains(base, mask, &bytes)
        };
        let excludes = |(base, mask): &(Vec<u8>, Vec<u8>)| contains(base, mask, &bytes);
        (permitted.ips.is_empty() || permitted.ips.iter().any(permits))
            && !excluded.ips.iter().any(excludes)
    };
    // Go cannot compare a URI without a host, or with an address as its host.
    let uri = |(_, host): &(String, Option<String>)| match host {
        Some(host) if host.starts_with('[') || host.parse::<IpAddr>().is_ok() => false,
        Some(host) => domain(host, &permitted.uris, &excluded.uris),
        None => false,
    };
    let email = |text: &String| {
        let Some((local, host)) = mailbox(text) else {
            return false;
        };
        let is = |tree: &String| match mailbox(tree) {
            Some((name, domain)) => name == local && domain.eq_ignore_ascii_case(host),
            None => is_below(host, tree),
        };
        (permitted.emails.is_empty() || permitted.emails.iter().any(is))
            && !excluded.emails.iter().any(is)
    };
    names.dns.iter().all(dns)
        && names.ips.iter().all(ip)
        && names.uris.iter().all(uri)
        && names.emails.iter().all(email)
}

/// Go: `dnsHasSuffix`. A constraint with a leading dot covers only names below the domain; an empty one covers all.
fn is_below(name: &str, constraint: &str) -> bool {
    let (name, tree) = (name.as_bytes(), constraint.as_bytes());
    let Some((before, end)) = name
        .len()
        .checked_sub(tree.len())
        .and_then(|at| name.split_at_checked(at))
    else {
        return false;
    };
    let is_whole = before.is_empty() || tree.is_empty();
    end.eq_ignore_ascii_case(tree) && (is_whole || tree.starts_with(b".") || before.ends_with(b"."))
}

/// Returns true for a wildcard that covers the excluded domain, such as `*.b.c` and `a.b.c`.
fn wildcard_covers(name: &str, excluded: &str) -> bool {
    let (Some((first, parent)), Some((_, excluded))) =
        (name.split_once('.'), excluded.split_once('.'))
    else {
        return false;
    };
    first.starts_with('*') && parent.eq_ignore_ascii_case(excluded)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn is_masked(base: &[u8], mask: &[u8]) -> bool {
    base.iter().zip(mask).all(|(byte, mask)| byte & !mask == 0)
}

fn contains(base: &[u8], mask: &[u8], address: &[u8]) -> bool {
    base.len() == address.len()
        && base
            .iter()
            .zip(mask)
            .zip(address)
            .all(|((base, mask), byte)| base & mask == byte & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_domains_by_label() {
        for (name, constraint) in [
            ("a.example", "example"),
            ("example", "Example"),
            ("a.example", ".example"),
            ("anything", ""),
        ] {
            assert!(is_below(name, constraint), "{name} {constraint}");
        }
        for (name, constraint) in [
            ("example", ".example"),
            ("anexample", "example"),
            ("b", "a.b"),
        ] {
            assert!(!is_below(name, constraint), "{name} {constraint}");
        }
        assert!(wildcard_covers("*.b.c", "a.b.c"));
        assert!(!wildcard_covers("*.b.c", "a.x.c"));
    }

    #[test]
    fn permits_no_address_by_network_with_host_bits() {
        let names = AlternativeNames {
            ips: vec!["10.1.2.3".parse().unwrap()],
            ..AlternativeNames::default()
        };
        let mut constraints = NameConstraints::default();
        constraints.permitted.ips = vec![(vec![10, 200, 0, 0], vec![255, 0, 0, 0])];
        assert!(!allows(&constraints, &names));
        constraints.permitted.ips = vec![(vec![10, 0, 0, 0], vec![255, 0, 0, 0])];
        assert!(allows(&constraints, &names));
        constraints.excluded.ips = vec![(vec![10, 1, 9, 9], vec![255, 255, 0, 0])];
        assert!(!allows(&constraints, &names));
    }

    /// Names of one kind, and the constraints of this kind.
    fn check(
        names: &AlternativeNames,
        permitted: &[&str],
        excluded: &[&str],
        of: fn(&mut Subtrees) -> &mut Vec<String>,
    ) -> bool {
        let mut constraints = NameConstraints::default();
        *of(&mut constraints.permitted) = permitted.iter().map(ToString::to_string).collect();
        *of(&mut constraints.excluded) = excluded.iter().map(ToString::to_string).collect();
        allows(&constraints, names)
    }

    #[test]
    fn applies_permitted_and_excluded_domains_to_each_kind_of_name() {
        let cases: [(&[&str], &[&str], bool); 7] = [
            (&[], &[], true),
            (&["b.example"], &[], true),
            (&["other", "example"], &[], true),
            (&["other"], &[], false),
            (&[], &["example"], false),
            (&["example"], &["b.example"], false),
            (&["example"], &["other"], true),
        ];
        let dns = AlternativeNames {
            dns: vec!["a.b.example".to_owned()],
            ..AlternativeNames::default()
        };
        let uri = AlternativeNames {
            uris: vec![(
                "https://a.b.example/".to_owned(),
                Some("a.b.example".to_owned()),
            )],
            ..AlternativeNames::default()
        };
        let email = AlternativeNames {
            emails: vec!["x@b.example".to_owned()],
            ..AlternativeNames::default()
        };
        for (permitted, excluded, allowed) in cases {
            let what = format!("{permitted:?} {excluded:?}");
            assert_eq!(
                check(&dns, permitted, excluded, |all| &mut all.dns),
                allowed,
                "{what}"
            );
            assert_eq!(
                check(&uri, permitted, excluded, |all| &mut all.uris),
                allowed,
                "{what}"
            );
            assert_eq!(
                check(&email, permitted, excluded, |all| &mut all.emails),
                allowed,
                "{what}"
            );
        }
        assert!(check(&email, &["x@B.example"], &[], |all| &mut all.emails));
        assert!(!check(&email, &["y@b.example"], &[], |all| &mut all.emails));
        assert!(!check(&email, &["x@example"], &[], |all| &mut all.emails));
    }

    #[test]
    fn refuses_names_that_go_cannot_compare() {
        let none = |all: &AlternativeNames| check(all, &[], &[], |all| &mut all.dns);
        for host in [None, Some("[::1]"), Some("192.0.2.1")] {
            let names = AlternativeNames {
                uris: vec![("uri".to_owned(), host.map(str::to_owned))],
                ..AlternativeNames::default()
            };
            assert!(!none(&names), "{host:?}");
        }
        let names = AlternativeNames {
            emails: vec!["no mailbox".to_owned()],
            ..AlternativeNames::default()
        };
        assert!(!none(&names));
        let wildcard = AlternativeNames {
            dns: vec!["*.b.example".to_owned()],
            ..AlternativeNames::default()
        };
        assert!(!check(&wildcard, &[], &["a.b.example"], |all| &mut all.dns));
        assert!(check(&wildcard, &[], &["a.c.example"], |all| &mut all.dns));
        assert!(!wildcard_covers("a.b", "c.b"));
        assert!(!wildcard_covers("*", "a"));
    }

    #[test]
    fn compares_addresses_of_one_family() {
        assert!(contains(&[10, 0, 0, 0], &[255, 0, 0, 0], &[10, 1, 2, 3]));
        assert!(!contains(&[10, 0, 0, 0], &[255, 0, 0, 0], &[11, 1, 2, 3]));
        assert!(!contains(&[0; 4], &[0; 4], &[0; 16]));
        assert_eq!(octets("10.1.2.3".parse().unwrap()), [10, 1, 2, 3]);
        assert_eq!(octets("::1".parse().unwrap()).len(), 16);
    }
}
