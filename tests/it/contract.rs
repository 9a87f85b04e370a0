//! The contract of a signer, as one test for each kind and clause: `contract::vault::issues_requested_certificate`.
//!
//! A test makes the rig of its kind and of no other, so a change to one signer needs only that signer's server:
//! `cargo test --test it -- contract::vault`. A clause is a function that takes a [`Rig`](crate::rig::Rig); the files
//! below `contract/` hold the clauses by what they exercise. A new kind gets a line in [`contract`], a new clause a line
//! in [`clauses`].

mod node;
mod recordings;
mod server;
mod signer;

pub(crate) use recordings::Recording;

use std::fs;
use std::path::Path;

use nodepki::kube::names::Authority;
use nodepki::signer::{Carry, RequestLookup, SignerKind};

use crate::signing::parsed;

/// Makes a module with the clauses of its groups for each kind.
macro_rules! contract {
    ($($module:ident: $kind:ident [$($group:ident)*])+) => {
        $(mod $module {
            $(clauses! { $group $kind })*
        })+

        /// Every kind with the groups of clauses that it is tested by.
        const KINDS: &[(SignerKind, &[&str])] = &[$((SignerKind::$kind, &[$(stringify!($group)),*])),+];
    };
}

/// The clauses of a group.
macro_rules! clauses {
    (every $kind:ident) => {
        clauses! { $kind signer:
            issues_requested_certificate
            never_returns_certificate_of_another_key
            recovers_without_creating_anything
            offers_trust_of_the_authority_or_none
            labels_itself_by_kind
        }
    };
    // Kinds that find a request by something other than sending it again.
    (lookup $kind:ident) => {
        clauses! { $kind signer: reports_unknown_ticket_as_gone }
    };
    // Kinds that keep a queue of named requests.
    (queue $kind:ident) => {
        clauses! { $kind signer: adopts_queued_request }
        clauses! { $kind node: sends_requests_once_while_waiting_for_approval }
    };
    // Kinds with a person or a policy that refuses requests.
    (denial $kind:ident) => {
        clauses! { $kind signer: reports_denial_with_reason_each_time }
    };
    // Kinds whose authorities outlive a process.
    (lasting $kind:ident) => {
        clauses! { $kind node:
            bootstraps_control_plane_once
            passes_preflight_without_request_or_change
            refuses_each_secret_that_other_users_can_read
            keeps_secrets_out_of_verbose_output
            #[cfg(feature = "failpoints")]
            continues_with_same_keys_after_kill
            replaces_everything_for_another_key_algorithm
        }
    };
    // Kinds with a server.
    (server $kind:ident) => {
        clauses! { $kind server:
            reports_unreachable_and_untrusted_server
            reports_bad_responses_from_the_start
            reports_bad_responses_in_preflight
            reports_bad_responses_to_submit
            recovers_after_lost_response
            reports_lost_response_as_ambiguous
            refuses_certificate_of_another_key
            waits_as_long_as_busy_server_says
        }
    };
    // Kinds with recorded responses below tests/golden/signers.
    (recorded $kind:ident) => {
        clauses! { $kind recordings: classifies_recorded_responses }
    };
    ($kind:ident $file:ident: $($(#[$attribute:meta])* $clause:ident)+) => {$(
        $(#[$attribute])*
        #[test]
        fn $clause() {
            crate::contract::$file::$clause(&*crate::rig::rig(nodepki::signer::SignerKind::$kind));
        }
    )+};
}

contract! {
    embedded: Embedded [every lookup]
    local: Local [every lookup lasting]
    exec: Exec [every lookup lasting denial]
    directory: Directory [every lookup lasting denial queue]
    est: Est [every lasting denial server recorded]
    kubernetes: Kubernetes [every lookup lasting denial queue server recorded]
    cert_manager: CertManager [every lookup lasting denial queue server]
    vault: Vault [every lookup lasting server recorded]
    puppet: Puppet [every lookup lasting denial queue server recorded]
    step_ca: StepCa [every lookup lasting denial server recorded]
    cfssl: Cfssl [every lookup lasting denial server recorded]
}

#[test]
fn covers_every_kind() {
    for kind in SignerKind::ALL {
        let groups = KINDS.iter().filter(|(listed, _)| *listed == kind);
        let [(_, groups)] = groups.collect::<Vec<_>>()[..] else {
            panic!("{kind} has no module, or several")
        };
        let caps = &kind.about().caps;
        for (group, applies) in [
            ("every", true),
            ("lookup", caps.lookup != RequestLookup::ByResubmit),
            ("queue", caps.lookup == RequestLookup::ByName),
            ("recorded", !Recording::all(kind).is_empty()),
        ] {
            assert_eq!(groups.contains(&group), applies, "{kind}: {group}");
        }
    }
}

#[test]
fn loads_example_of_every_kind() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/examples/signers");
    for kind in SignerKind::ALL {
        let text = fs::read_to_string(dir.join(format!("{kind}.yaml")))
            .unwrap_or_else(|_| panic!("{kind} has no example"));
        let settings = parsed(&text);
        for authority in Authority::ALL {
            let (_, signer) = settings.signer_of(authority).unwrap();
            // Authority ca signs kubeconfigs, whose common names contain colons.
            let serves =
                authority != Authority::Ca || kind.about().caps.colon_common_name != Carry::No;
            assert_eq!(signer.kind() == kind, serves, "{kind} {authority}");
        }
    }
}
