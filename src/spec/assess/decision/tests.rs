use std::time::Duration;

use super::*;
use crate::kube::components::Component;
use crate::kube::names::CertName;
use crate::spec::assess::tests::{NOW, authority, issued, spec, words};
use crate::spec::assess::{CertReason, Observed};
use crate::spec::schedule::CertLife;
use crate::x509::CertificateAuthority;

/// One decision: the case, the mode, and what follows.
struct Row<'a> {
    what: &'a str,
    found: ObservedCert,
    mode: DecisionMode<'a>,
    refused: bool,
    held: bool,
    expected: &'a str,
    keeps_key: bool,
}

/// Returns a certificate of 30 days' age.
fn observed(authority: &CertificateAuthority) -> (ObservedCert, Age) {
    let found = issued(authority, &spec().requested.profile);
    let not_after = found.chain.present().unwrap().leaf().not_after();
    let issued_at = NOW - Duration::from_secs(30 * 86400);
    let life = CertLife {
        issued_at,
        not_after,
    };
    let age = Age {
        life,
        recorded: true,
    };
    (found, age)
}

#[test]
fn decides_on_certificate_in_each_mode() {
    let authority = authority();
    let (intact, age) = observed(&authority);
    let absent = || ObservedCert::new(Observed::Absent, Observed::Absent);
    let revoked = || ObservedCert {
        revoked: Some(CertReason::Forced),
        ..intact.clone()
    };
    let exposed = || ObservedCert {
        exposed: Some(0o644),
        ..intact.clone()
    };
    let (same, rekeys) = (
        Rotation {
            rekey: false,
            ..Rotation::default()
        },
        Rotation {
            rekey: true,
            ..Rotation::default()
        },
    );
    let renewal = |rotation, demand, same_key_only| DecisionMode::Renewal {
        rotation,
        node: "cp-1",
        demand,
        same_key_only,
    };
    let due = renewal(&same, RenewalCause::Due, false);
    let requested = renewal(&same, RenewalCause::Requested, false);
    let forced = renewal(&same, RenewalCause::Forced, false);
    let row = |what, found, mode, expected, keeps_key| Row {
        what,
        found,
        mode,
        refused: false,
        held: false,
        expected,
        keeps_key,
    };
    let rows = [
        row(
            "bootstrap keeps it",
            intact.clone(),
            DecisionMode::Bootstrap,
            "keep: ",
            false,
        ),
        row(
            "bootstrap makes it",
            absent(),
            DecisionMode::Bootstrap,
            "issue: absent",
            false,
        ),
        Row {
            refused: true,
            ..row(
                "bootstrap refuses it",
                absent(),
                DecisionMode::Bootstrap,
                "refuse: ",
                false,
            )
        },
        row("renewal keeps it", intact.clone(), due, "keep: ", true),
        row("renewal makes it", absent(), due, "issue: absent", false),
        row(
            "requested",
            intact.clone(),
            requested,
            "issue: requested",
            true,
        ),
        row(
            "forced: the key may be known",
            intact.clone(),
            forced,
            "issue: requested with --force",
            false,
        ),
        row(
            "configured to change keys",
            intact.clone(),
            renewal(&rekeys, RenewalCause::Requested, false),
            "issue: requested",
            false,
        ),
        row(
            "the signer refuses another key",
            intact.clone(),
            renewal(&rekeys, RenewalCause::Requested, true),
            "issue: requested",
            true,
        ),
        row("revoked", revoked(), due, "issue: ", false),
        row("readable by others", exposed(), requested, "issue: ", false),
        Row {
            refused: true,
            ..row(
                "an authority is refused",
                absent(),
                requested,
                "refuse: ",
                false,
            )
        },
        Row {
            held: true,
            ..row(
                "its component was not ready",
                intact.clone(),
                requested,
                "refuse: ",
                true,
            )
        },
        Row {
            held: true,
            ..row(
                "not ready, and nothing is due",
                intact.clone(),
                due,
                "keep: ",
                true,
            )
        },
        Row {
            held: true,
            ..row(
                "not ready, but unusable",
                absent(),
                due,
                "issue: absent",
                false,
            )
        },
    ];
    let spec = spec();
    let reason = CertRefusal::ComponentNotReady {
        component: Component::KubeApiserver,
        why: "no answer".to_owned(),
        name: CertName::Apiserver,
    };
    for row in rows {
        let case = CertCase {
            spec: &spec,
            found: &row.found,
            age: Some(&age),
            trust: Some(authority.bundle()),
            refused: row.refused.then(|| reason.clone()),
            held: Some(&reason).filter(|_| row.held),
        };
        let decision = decide(case, row.mode, NOW);
        let shown = words(&decision.action);
        assert!(shown.starts_with(row.expected), "{}: {shown}", row.what);
        assert_eq!(decision.keep_key, row.keeps_key, "{}", row.what);
    }
}
