use time::macros::datetime;

use super::*;
use crate::spec::assess::tests::words;
use crate::spec::schedule::{Percent, RenewAt, Window};
use crate::x509::{
    CertDifference, CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject,
};

const ISSUED: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86400);

fn age(length: time::Duration) -> Age {
    Age {
        life: CertLife {
            issued_at: ISSUED,
            not_after: ISSUED + length,
        },
        recorded: true,
    }
}

fn rotation(windows: Vec<Window>) -> Rotation {
    Rotation {
        renew_at: RenewAt::Share(Percent::new(66).unwrap()),
        jitter: Percent::new(0).unwrap(),
        windows,
        ..Rotation::default()
    }
}

fn rules(rotation: &Rotation, demand: RenewalCause) -> RenewalRules<'_> {
    RenewalRules {
        rotation,
        node: "cp-1",
        demand,
        authority_ends: None,
    }
}

fn keep() -> Action {
    Action::Keep {
        notes: Vec::new(),
        at_renewal: Vec::new(),
    }
}

fn drift() -> Action {
    Action::Issue {
        reasons: vec![CertReason::Differs(CertDifference::DnsMissing(
            "b".to_owned(),
        ))],
    }
}

fn rewrite() -> Action {
    Action::Rewrite {
        reasons: vec![CertReason::KeyForm],
    }
}

fn kept(note: &str) -> String {
    format!("keep: {note}")
}

fn issue(reasons: &[&str]) -> String {
    format!("issue: {}", reasons.join("; "))
}

#[test]
fn decides_by_action_age_and_demand() {
    let year = age(time::Duration::days(365));
    let days = |days| ISSUED + time::Duration::days(days);
    let always = rotation(Vec::new());
    let saturday = rotation(vec![Window::weekly("Sat 02:00-03:00").unwrap()]);
    let due = "due since 2026-08-29T21:36:00Z: 66 % of its life of 8760h is over";
    let opens = datetime!(2026-09-05 02:00 UTC);
    let Wait::Until { turn, .. } = schedule::in_window(&year.life, &saturday, "cp-1", days(241))
    else {
        panic!()
    };
    for (what, action, rotation, demand, now, wanted, next) in [
        (
            "young",
            keep(),
            &always,
            RenewalCause::Due,
            days(100),
            words(&keep()),
            Some(datetime!(2026-08-29 21:36 UTC)),
        ),
        (
            "due",
            keep(),
            &always,
            RenewalCause::Due,
            days(241),
            issue(&[due]),
            None,
        ),
        (
            "due, and of the wrong form",
            rewrite(),
            &always,
            RenewalCause::Due,
            days(241),
            issue(&[due]),
            None,
        ),
        (
            "young and drifted",
            drift(),
            &always,
            RenewalCause::Due,
            days(100),
            issue(&["SAN DNS:b is missing"]),
            None,
        ),
        (
            "due and drifted",
            drift(),
            &always,
            RenewalCause::Due,
            days(241),
            issue(&["SAN DNS:b is missing", due]),
            None,
        ),
        (
            "just renewed",
            drift(),
            &always,
            RenewalCause::Due,
            ISSUED + time::Duration::minutes(12),
            kept(
                "SAN DNS:b is missing; renewed 12m ago, not renewed again before 2026-01-01T01:00:00Z",
            ),
            Some(datetime!(2026-01-01 01:00 UTC)),
        ),
        (
            "just renewed and asked for",
            keep(),
            &always,
            RenewalCause::Requested,
            ISSUED + time::Duration::minutes(12),
            kept(
                "requested; renewed 12m ago, not renewed again before 2026-01-01T01:00:00Z (--force renews it now)",
            ),
            Some(datetime!(2026-01-01 01:00 UTC)),
        ),
        (
            "just renewed and forced",
            keep(),
            &always,
            RenewalCause::Forced,
            ISSUED + time::Duration::minutes(12),
            issue(&["requested with --force"]),
            None,
        ),
        (
            "asked for",
            keep(),
            &always,
            RenewalCause::Requested,
            days(1),
            issue(&["requested"]),
            None,
        ),
        (
            "outside of the window",
            keep(),
            &saturday,
            RenewalCause::Due,
            days(241),
            kept(&format!(
                "{due}; waits for the window that opens at 2026-09-05T02:00:00Z"
            )),
            Some(turn),
        ),
        (
            "a form is corrected outside of the window too",
            rewrite(),
            &saturday,
            RenewalCause::Due,
            days(241),
            format!(
                "{}; {due}; waits for the window that opens at 2026-09-05T02:00:00Z",
                words(&rewrite())
            ),
            Some(turn),
        ),
        (
            "in the window",
            keep(),
            &saturday,
            RenewalCause::Due,
            opens,
            issue(&[due]),
            None,
        ),
        (
            "asked for outside of the window",
            drift(),
            &saturday,
            RenewalCause::Requested,
            days(241),
            issue(&["SAN DNS:b is missing", due]),
            None,
        ),
        (
            "about to expire",
            keep(),
            &saturday,
            RenewalCause::Due,
            days(364),
            issue(&[
                due,
                "the next window opens at 2027-01-02T02:00:00Z, too late for a certificate that expires at 2027-01-01T00:00:00Z: it is renewed outside of the windows",
            ]),
            None,
        ),
    ] {
        let rotated = schedule_action(action, Some(&year), rules(rotation, demand), now);
        assert_eq!(
            (words(&rotated.action), rotated.next),
            (wanted, next),
            "{what}"
        );
    }
}

#[test]
fn changes_key_parameters_with_next_renewal() {
    let year = age(time::Duration::days(365));
    let always = rotation(Vec::new());
    let waiting = || Action::Keep {
        notes: Vec::new(),
        at_renewal: vec![CertDifference::IsCa],
    };
    let decide = |demand, days| {
        let now = ISSUED + time::Duration::days(days);
        schedule_action(waiting(), Some(&year), rules(&always, demand), now)
    };
    let young = decide(RenewalCause::Due, 100);
    assert_eq!(young.action, waiting());
    assert_eq!(young.next, Some(datetime!(2026-08-29 21:36 UTC)));
    let due = "due since 2026-08-29T21:36:00Z: 66 % of its life of 8760h is over";
    let change = "it is a CA certificate, but a leaf certificate is required";
    assert_eq!(
        words(&decide(RenewalCause::Due, 241).action),
        issue(&[due, change])
    );
    assert_eq!(
        words(&decide(RenewalCause::Requested, 100).action),
        issue(&["requested", change])
    );
}

#[test]
fn replaces_unusable_certificate_immediately() {
    let never = rotation(vec![Window::weekly("Sat 02:00-03:00").unwrap()]);
    let rotated = schedule_action(drift(), None, rules(&never, RenewalCause::Due), ISSUED);
    assert_eq!(rotated.action, drift());
    assert!(rotated.urgent && !rotated.for_age);
}

#[test]
fn keeps_certificate_that_expires_with_authority() {
    let year = age(time::Duration::days(365));
    let always = rotation(Vec::new());
    let rules = RenewalRules {
        authority_ends: Some(year.life.not_after),
        ..rules(&always, RenewalCause::Due)
    };
    let now = ISSUED + time::Duration::days(300);
    let rotated = schedule_action(keep(), Some(&year), rules, now);
    assert_eq!(
        words(&rotated.action),
        kept(
            "it expires with its authority, at 2027-01-01T00:00:00Z: a new certificate would expire no later; replace the authority"
        )
    );
    // A difference from the spec is repaired nevertheless.
    assert_eq!(
        schedule_action(drift(), Some(&year), rules, now).action,
        drift()
    );
}

#[test]
fn renews_despite_expiry_of_authority_if_requested_or_if_it_helps() {
    let year = age(time::Duration::days(365));
    let always = rotation(Vec::new());
    let now = ISSUED + time::Duration::days(300);
    let end = year.life.not_after;
    for (ends, demand) in [
        (end, RenewalCause::Requested),
        (end + time::Duration::SECOND, RenewalCause::Due),
    ] {
        let rules = RenewalRules {
            authority_ends: Some(ends),
            ..rules(&always, demand)
        };
        let rotated = schedule_action(keep(), Some(&year), rules, now);
        assert!(matches!(rotated.action, Action::Issue { .. }), "{demand:?}");
    }
}

#[test]
fn is_for_age_only_without_another_reason() {
    let year = age(time::Duration::days(365));
    let always = rotation(Vec::new());
    let now = ISSUED + time::Duration::days(300);
    let waiting = Action::Keep {
        notes: Vec::new(),
        at_renewal: vec![CertDifference::IsCa],
    };
    for (action, for_age) in [(keep(), true), (drift(), false), (waiting, false)] {
        let rotated = schedule_action(action, Some(&year), rules(&always, RenewalCause::Due), now);
        assert_eq!(rotated.for_age, for_age, "{:?}", rotated.action);
    }
}

#[test]
fn only_requested_renewal_is_deferred() {
    let year = age(time::Duration::days(365));
    let always = rotation(Vec::new());
    let now = ISSUED + time::Duration::minutes(12);
    for (demand, deferred) in [
        (RenewalCause::Due, false),
        (RenewalCause::Requested, true),
        (RenewalCause::Forced, false),
    ] {
        let rotated = schedule_action(drift(), Some(&year), rules(&always, demand), now);
        assert_eq!(rotated.deferred, deferred, "{demand:?}");
    }
}

#[test]
fn delays_next_renewal_only_after_recorded_one() {
    let concluded = Age {
        recorded: false,
        ..age(time::Duration::days(365))
    };
    let always = rotation(Vec::new());
    let now = ISSUED + time::Duration::minutes(12);
    let rotated = schedule_action(
        drift(),
        Some(&concluded),
        rules(&always, RenewalCause::Due),
        now,
    );
    assert_eq!(rotated.action, drift());
}

#[test]
fn infers_age_without_record() {
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let born = datetime!(2020-01-01 00:00 UTC);
    let authority =
        CertificateAuthority::self_signed("kubernetes", key(), born, 10 * YEAR).unwrap();
    let profile = |lifetime| {
        Profile::of_tests(
            Subject::new("kubernetes-admin", &[]),
            &[ExtendedUsage::ClientAuth],
            lifetime,
        )
    };
    let chain = |now, lifetime| {
        let leaf = authority.issue(key().public_key(), &profile(lifetime), now);
        Chain::from_pem(leaf.unwrap().to_pem().as_bytes()).unwrap()
    };
    let trust = Some(authority.bundle());
    let of = |chain: &Chain, recorded| Age::of(chain, recorded, trust, YEAR, ISSUED).life.issued_at;

    let ordinary = chain(ISSUED, YEAR);
    assert_eq!(of(&ordinary, None), ordinary.leaf().not_before());
    assert_eq!(of(&ordinary, Some(ISSUED)), ISSUED);

    // A record of the future: the clock was ahead then, or is behind now.
    let ahead = Some(ISSUED + time::Duration::days(100));
    let is_recorded = |chain: &Chain, days| {
        let now = ISSUED + time::Duration::days(days);
        Age::of(chain, ahead, trust, YEAR, now).recorded
    };
    assert!(is_recorded(&ordinary, -10));
    assert!(is_recorded(&ordinary, 0));
    assert!(!is_recorded(&ordinary, 2));
    assert!(is_recorded(&ordinary, 101));
    assert!(is_recorded(&chain(born, 10 * YEAR), 2));

    // Like kubeadm's kubeconfigs: valid since the CA certificate is, and for a year after the issue.
    let since_the_authority = chain(born, 6 * YEAR + 20 * Duration::from_secs(86400));
    let leaf = since_the_authority.leaf();
    assert_eq!(leaf.not_before(), authority.bundle().first().not_before());
    let concluded = of(&since_the_authority, None);
    assert_eq!(concluded, leaf.not_after() - YEAR);
    // 66 % of the time since the CA's not_before have elapsed, but not 66 % of its own lifetime.
    let life = CertLife {
        issued_at: concluded,
        not_after: leaf.not_after(),
    };
    let due = schedule::due(&life, &rotation(Vec::new()), "cp-1", concluded + YEAR / 2);
    assert!(matches!(due, DueState::Later { .. }), "{due:?}");
    // A lifetime that is shorter than the configured one is used as it is.
    let short = chain(born, YEAR / 2);
    assert_eq!(of(&short, None), short.leaf().not_before());
}
