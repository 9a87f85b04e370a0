//! Decisions of the protocol, case by case. `tests/model` verifies that they fit together.

use std::collections::BTreeSet;

use time::macros::datetime;

use super::*;
use crate::kube::names::Authority;

const OLD: &str = "0d7c1a5e9b3f2c48aa01";
const NEW: &str = "f29e04b7c6d1835abb02";
const OTHER: &str = "77aa88bb99cc00ddee03";
const NOW: OffsetDateTime = datetime!(2026-11-24 12:00 UTC);

fn ca(sha256: &str) -> RotatedCa {
    RotatedCa {
        sha256: sha256.to_owned(),
        certificate: format!("{sha256} in PEM\n"),
    }
}

fn rotation(phase: RotationPhase) -> AuthorityRotation {
    AuthorityRotation::new("7", Authority::Ca, [OLD, NEW].map(ca)).in_phase(phase)
}

fn set(members: &[&str]) -> BTreeSet<String> {
    members.iter().map(|one| (*one).to_owned()).collect()
}

fn begun(rotation: &str, phase: RotationPhase) -> Option<BegunPhase> {
    Some(BegunPhase {
        rotation: rotation.to_owned(),
        phase,
    })
}

/// Returns the proof of a node that has begun a phase of rotation 7.
fn proof(phase: RotationPhase, trusted: &[&str], under: &[&str]) -> NodeProof {
    NodeProof {
        begun: begun("7", phase),
        trusted_by_all: set(trusted),
        trusted_by_any: set(trusted),
        certificates_under: set(under),
        ..NodeProof::default()
    }
}

/// Returns the proof of a node that has completed the step of a phase.
fn proven(phase: RotationPhase) -> NodeProof {
    use RotationPhase as P;
    match phase {
        P::Trust | P::Revert => proof(phase, &[OLD, NEW], &[OLD]),
        P::Activate => proof(phase, &[OLD, NEW], &[NEW]),
        P::Retire | P::Done => proof(phase, &[NEW], &[NEW]),
        P::Withdraw | P::Undone => proof(phase, &[OLD], &[OLD]),
    }
}

/// Returns the proof of a node before its first rotation.
fn untouched() -> NodeProof {
    NodeProof {
        begun: None,
        ..proof(RotationPhase::Trust, &[OLD], &[OLD])
    }
}

fn proofs(nodes: &[(&str, Option<NodeProof>)]) -> NodeProofs {
    let nodes = nodes.iter().cloned();
    nodes
        .map(|(name, proof)| (name.to_owned(), proof))
        .collect()
}

/// Returns why the leader holds on the proof of one node.
fn held(phase: RotationPhase, proof: Option<NodeProof>) -> String {
    match decide_phase(&rotation(phase), &proofs(&[("cp-1", proof)]), NOW) {
        LeaderDecision::Hold(hold) => hold.to_string(),
        LeaderDecision::Advance(next) => format!("advances to {next}"),
        LeaderDecision::Wait(wait) => format!("waits until {}", wait.until),
    }
}

fn serving(rotation: &AuthorityRotation, own: &NodeProof) -> NodeAction {
    let situation = NodeSituation {
        own,
        published: Some(own),
        is_serving: true,
    };
    decide_node(Some(rotation), situation).action
}

fn starting(
    rotation: &AuthorityRotation,
    own: &NodeProof,
    published: Option<&NodeProof>,
) -> NodeAction {
    let situation = NodeSituation {
        own,
        published,
        is_serving: false,
    };
    decide_node(Some(rotation), situation).action
}

/// Returns what a command changes.
fn changed_by(
    command: &RotationCommand,
    present: Option<&AuthorityRotation>,
    proofs: &NodeProofs,
) -> Result<Option<AuthorityRotation>, RefusedCommand> {
    apply_command(command, present, proofs).map(CommandEffect::changed)
}

#[test]
fn orders_phases_of_one_rotation() {
    use RotationPhase::{Activate, Done, Retire, Revert, Trust, Undone, Withdraw};
    for (earlier, later, expected) in [
        (Trust, Activate, true),
        (Trust, Done, true),
        (Trust, Undone, true),
        (Activate, Withdraw, true),
        (Activate, Trust, false),
        (Retire, Revert, false),
        (Revert, Done, false),
        (Done, Undone, false),
        (Retire, Retire, false),
    ] {
        assert_eq!(
            earlier.precedes(later),
            expected,
            "{earlier} before {later}"
        );
    }
    for phase in RotationPhase::ALL {
        assert!(!phase.precedes(phase), "{phase} occurs twice");
    }
}

#[test]
fn advances_once_every_counted_node_has_proven_the_phase() {
    for phase in RotationPhase::ALL {
        let mut nodes = proofs(&[("cp-1", Some(proven(phase))), ("cp-2", Some(proven(phase)))]);
        let expected = match phase.successor() {
            Some(next) => LeaderDecision::Advance(next),
            None => LeaderDecision::Hold(LeaderHold::Ended),
        };
        assert_eq!(decide_phase(&rotation(phase), &nodes, NOW), expected);
        if phase.is_end() {
            continue;
        }
        nodes.insert("cp-3".to_owned(), None);
        assert!(matches!(
            decide_phase(&rotation(phase), &nodes, NOW),
            LeaderDecision::Hold(LeaderHold::Unproven(held)) if held.0.len() == 1
        ));
        let without = AuthorityRotation {
            excluded: set(&["cp-3"]),
            ..rotation(phase)
        };
        assert_eq!(
            decide_phase(&without, &nodes, NOW),
            expected,
            "cp-3 is excluded"
        );
        let paused = AuthorityRotation {
            paused: true,
            ..without
        };
        let decision = decide_phase(&paused, &nodes, NOW);
        assert_eq!(decision, LeaderDecision::Hold(LeaderHold::Paused));
        let held = AuthorityRotation {
            hold_before: phase.successor().into_iter().collect(),
            paused: false,
            ..paused
        };
        let decision = decide_phase(&held, &nodes, NOW);
        let next = phase.successor().unwrap();
        assert_eq!(decision, LeaderDecision::Hold(LeaderHold::Requested(next)));
        let resumed = changed_by(&RotationCommand::Resume, Some(&held), &nodes);
        assert_eq!(
            decide_phase(&resumed.unwrap().unwrap(), &nodes, NOW),
            expected
        );
    }
}

#[test]
fn holds_with_a_reason_for_each_node() {
    use RotationPhase::{Activate, Retire, Trust};
    let restart = "kube-apiserver has not read the new CA certificates".to_owned();
    for (phase, proof, expected) in [
        (
            Trust,
            None,
            "cp-1: no readable report on its Node (verify that nodepki.service runs there, in the same release)",
        ),
        (
            Trust,
            Some(untouched()),
            "cp-1: has not begun this rotation",
        ),
        (
            Trust,
            Some(NodeProof {
                begun: begun("6", Trust),
                ..proven(Trust)
            }),
            "cp-1: reports phase trust of rotation 6, not of 7",
        ),
        (
            Activate,
            Some(proven(Trust)),
            "cp-1: reports phase trust and has not begun the present one",
        ),
        (
            Trust,
            Some(proof(Trust, &[OLD], &[OLD])),
            "cp-1: not everything there trusts sha256:f29e04b7c6d1835a…",
        ),
        (
            Trust,
            Some(NodeProof {
                restarts: vec![restart],
                ..proven(Trust)
            }),
            "cp-1: a restart is due: kube-apiserver has not read the new CA certificates",
        ),
        (
            Activate,
            Some(NodeProof {
                failure: Some("signer vault: connection refused".to_owned()),
                ..proof(Activate, &[OLD, NEW], &[])
            }),
            "cp-1: not everything there is signed under sha256:f29e04b7c6d1835a… (last failure: signer vault: connection refused)",
        ),
        (
            Retire,
            Some(NodeProof {
                trusted_by_any: set(&[OLD, NEW]),
                ..proven(Retire)
            }),
            "cp-1: sha256:0d7c1a5e9b3f2c48… is still trusted there",
        ),
    ] {
        assert_eq!(held(phase, proof), expected);
    }
    let ended = LeaderHold::Ended.to_string();
    assert_eq!(ended, "the rotation has ended");
    assert_eq!(LeaderHold::Paused.to_string(), "the rotation is paused");
    assert_eq!(
        decide_phase(&rotation(Trust), &NodeProofs::new(), NOW),
        LeaderDecision::Hold(LeaderHold::NoNodes)
    );
}

#[test]
fn counts_a_ca_renewed_with_the_same_key_as_both() {
    use RotationPhase::{Activate, Retire, Trust};
    for (phase, trusted) in [
        (Trust, [OLD, NEW].as_slice()),
        (Activate, &[OLD, NEW]),
        (Retire, &[NEW]),
    ] {
        let proof = proof(phase, trusted, &[OLD, NEW]);
        let next = phase.successor().unwrap();
        assert_eq!(held(phase, Some(proof)), format!("advances to {next}"));
    }
}

#[test]
fn takes_the_parts_of_a_step_in_their_order() {
    use RotationPhase::{Activate, Retire, Trust, Withdraw};
    let step = |step: NodeStep| NodeAction::Step(step);
    let restart = vec!["kube-apiserver".to_owned()];
    for (phase, own, expected) in [
        (Trust, untouched(), step(NodeStep::Trust(NEW.to_owned()))),
        (
            Trust,
            NodeProof {
                trusted_by_any: set(&[OLD, NEW]),
                restarts: restart.clone(),
                ..proof(Trust, &[OLD], &[OLD])
            },
            step(NodeStep::Restart),
        ),
        (Trust, proven(Trust), NodeAction::Idle),
        (
            Activate,
            proven(Trust),
            step(NodeStep::Reissue(NEW.to_owned())),
        ),
        (
            Retire,
            proven(Activate),
            step(NodeStep::Remove(OLD.to_owned())),
        ),
        // A node that was down during the other phases does not miss one.
        (Retire, untouched(), step(NodeStep::Trust(NEW.to_owned()))),
        (
            Retire,
            proven(Trust),
            step(NodeStep::Reissue(NEW.to_owned())),
        ),
        (
            Withdraw,
            proven(Activate),
            step(NodeStep::Reissue(OLD.to_owned())),
        ),
        (Withdraw, untouched(), NodeAction::Record),
        (Activate, proven(Retire), NodeAction::ReadAgain),
    ] {
        assert_eq!(
            serving(&rotation(phase), &own),
            expected,
            "{phase}: {own:?}"
        );
    }
}

#[test]
fn keeps_a_ca_that_was_changed_after_the_end_of_a_rotation() {
    use RotationPhase::{Done, Undone};
    let changed = proof(Done, &[OTHER], &[OTHER]);
    assert_eq!(serving(&rotation(Done), &changed), NodeAction::Idle);
    let changed = proof(Undone, &[OTHER], &[OTHER]);
    assert_eq!(
        starting(&rotation(Undone), &changed, None),
        NodeAction::Serve
    );
}

#[test]
fn begins_no_step_during_a_pause_and_completes_a_begun_one() {
    use RotationPhase::{Activate, Trust};
    let paused = AuthorityRotation {
        paused: true,
        ..rotation(Activate)
    };
    assert_eq!(serving(&paused, &proven(Trust)), NodeAction::Paused);
    let begun = proof(Activate, &[OLD, NEW], &[]);
    let reissue = NodeStep::Reissue(NEW.to_owned());
    assert_eq!(serving(&paused, &begun), NodeAction::Step(reissue));
}

#[test]
fn serves_where_it_stopped_and_catches_up_after_a_restore() {
    use RotationPhase::{Activate, Revert, Trust};
    let reissue = || NodeAction::CatchUp(NodeStep::Reissue(NEW.to_owned()));
    let paused = AuthorityRotation {
        paused: true,
        ..rotation(Activate)
    };
    let partial = proof(Activate, &[OLD, NEW], &[]);
    for (name, own, published, expected) in [
        (
            "stopped before",
            proven(Trust),
            Some(proven(Trust)),
            NodeAction::Serve,
        ),
        (
            "stopped within",
            partial.clone(),
            Some(proven(Trust)),
            NodeAction::Serve,
        ),
        (
            "stopped after",
            proven(Activate),
            Some(proven(Trust)),
            NodeAction::Serve,
        ),
        (
            "reported within",
            partial.clone(),
            Some(partial.clone()),
            NodeAction::Serve,
        ),
        ("restored", proven(Trust), Some(proven(Activate)), reissue()),
        (
            "restored to the same phase",
            partial.clone(),
            Some(proven(Activate)),
            reissue(),
        ),
        ("joins", proven(Trust), None, reissue()),
        (
            "caught up",
            NodeProof {
                begun: None,
                ..proven(Activate)
            },
            None,
            NodeAction::Record,
        ),
        (
            "restored before its first rotation",
            untouched(),
            Some(proven(Trust)),
            NodeAction::CatchUp(NodeStep::Trust(NEW.to_owned())),
        ),
    ] {
        for rotation in [&rotation(Activate), &paused] {
            assert_eq!(
                starting(rotation, &own, published.as_ref()),
                expected,
                "{name}"
            );
        }
    }
    let unread = starting(&rotation(Activate), &proven(Trust), Some(&proven(Revert)));
    assert_eq!(unread, NodeAction::ReadAgain);
    // Before and between rotations, the files are compared with the proof.
    let other = NodeProof {
        begun: None,
        ..proven(Trust)
    };
    let own = untouched();
    assert_eq!(
        starting(&rotation(Trust), &own, Some(&own)),
        NodeAction::Serve
    );
    assert_ne!(
        starting(&rotation(Trust), &own, Some(&other)),
        NodeAction::Serve
    );
}

#[test]
fn reports_changes_once_it_serves() {
    let own = untouched();
    let reports = |is_serving, published| {
        let situation = NodeSituation {
            own: &own,
            published,
            is_serving,
        };
        let decision = decide_node(None, situation);
        let expected = if is_serving {
            NodeAction::Idle
        } else {
            NodeAction::Serve
        };
        assert_eq!(decision.action, expected);
        decision.reports
    };
    assert!(reports(true, None));
    let (changed, unchanged) = (proven(RotationPhase::Trust), untouched());
    assert!(reports(true, Some(&changed)));
    assert!(!reports(true, Some(&unchanged)));
    assert!(!reports(false, None));
}

fn start_command(old: &str, new: &str, excluded: &[&str]) -> RotationCommand {
    RotationCommand::Start(Box::new(RotationStart {
        id: "7".to_owned(),
        subject: Authority::Ca.into(),
        old: ca(old),
        new: ca(new),
        hold_before: BTreeSet::new(),
        excluded: set(excluded),
        token_lifetime: None,
    }))
}

#[test]
fn starts_a_rotation_once_every_counted_node_is_ready() {
    let ready = proofs(&[("cp-1", Some(untouched())), ("cp-2", Some(untouched()))]);
    let command = start_command(OLD, NEW, &[]);
    let started = changed_by(&command, None, &ready).unwrap().unwrap();
    assert_eq!(started, rotation(RotationPhase::Trust));
    let repeated = changed_by(&command, Some(&started), &ready);
    assert_eq!(repeated, Ok(None));

    let lacking = proofs(&[("cp-1", Some(untouched())), ("cp-2", None)]);
    let excluding = start_command(OLD, NEW, &["cp-2"]);
    let started = changed_by(&excluding, None, &lacking).unwrap().unwrap();
    assert_eq!(started.excluded, set(&["cp-2"]));

    // After the end of another one, which every node has proven.
    let ended = AuthorityRotation {
        id: "6".to_owned(),
        ..rotation(RotationPhase::Undone)
    };
    let ended_here = NodeProof {
        begun: begun("6", RotationPhase::Undone),
        ..untouched()
    };
    let nodes = proofs(&[("cp-1", Some(ended_here))]);
    assert!(matches!(
        changed_by(&command, Some(&ended), &nodes),
        Ok(Some(_))
    ));
}

#[test]
fn repeated_start_adds_its_options_or_is_refused() {
    use RotationPhase::{Activate, Retire, Trust};
    let nodes = proofs(&[("cp-1", None), ("cp-2", None)]);
    let with = |hold_before: &[RotationPhase], excluded: &[&str], token_lifetime| RotationStart {
        id: "8".to_owned(),
        subject: RotationSubject::ServiceAccount,
        old: ca(OLD),
        new: ca(NEW),
        hold_before: hold_before.iter().copied().collect(),
        excluded: set(excluded),
        token_lifetime,
    };
    let present = AuthorityRotation {
        hold_before: [Activate].into(),
        excluded: set(&["cp-1"]),
        ..rotation_of_key(Trust)
    };
    let begun = AuthorityRotation {
        hold_before: BTreeSet::new(),
        ..present.in_phase(Activate)
    };
    let held = |rotation: &AuthorityRotation, phases: &[RotationPhase]| AuthorityRotation {
        hold_before: phases.iter().copied().collect(),
        ..rotation.clone()
    };
    let only_second = AuthorityRotation {
        excluded: BTreeSet::new(),
        ..present.clone()
    };
    let too_late = "rotation 7 is in phase activate and cannot be held before activate (omit --hold-before activate)";
    let other_lifetime = "the token lifetime of rotation 7 cannot be changed while it is in progress (omit --token-lifetime, or undo the rotation and start another one)";
    let none = "no node counts: every node is excluded, or is not labelled as a control-plane node";
    for (start, present, expected) in [
        (with(&[Activate], &["cp-1"], Some(3600)), &present, Ok(None)),
        (with(&[], &[], None), &present, Ok(None)),
        // The Node of an excluded node may have been deleted.
        (
            with(&[], &["cp-9"], None),
            &AuthorityRotation {
                excluded: set(&["cp-9"]),
                ..present.clone()
            },
            Ok(None),
        ),
        (
            with(&[Retire], &[], None),
            &present,
            Ok(Some(held(&present, &[Activate, Retire]))),
        ),
        (
            with(&[Retire], &[], None),
            &begun,
            Ok(Some(held(&begun, &[Retire]))),
        ),
        (
            with(&[], &["cp-1"], None),
            &only_second,
            Ok(Some(present.clone())),
        ),
        (with(&[Activate], &[], None), &begun, Err(too_late)),
        (with(&[], &[], Some(60)), &present, Err(other_lifetime)),
        (with(&[], &["cp-2"], None), &present, Err(none)),
        (
            with(&[], &["cp-9"], None),
            &present,
            Err("the cluster has no node cp-9 (kubectl get nodes lists the names)"),
        ),
    ] {
        let command = RotationCommand::Start(Box::new(start));
        let changed = changed_by(&command, Some(present), &nodes);
        let changed = changed.map_err(|refused| refused.to_string());
        assert_eq!(changed, expected.map_err(str::to_owned));
    }
    let ready = proofs(&[("cp-1", Some(untouched()))]);
    let command = RotationCommand::Start(Box::new(with(&[], &[], None)));
    let started = changed_by(&command, None, &ready).unwrap().unwrap();
    assert_eq!(started.token_lifetime, Some(365 * 24 * 3600));
}

#[test]
fn refuses_to_start_with_the_reason() {
    use RotationPhase::{Activate, Done, Revert, Undone};
    let ready = proofs(&[("cp-1", Some(untouched()))]);
    let ended = AuthorityRotation {
        id: "6".to_owned(),
        ..rotation(Undone)
    };
    let unaware = proofs(&[("cp-1", Some(proven(Activate))), ("cp-2", None)]);
    for (command, present, nodes, expected) in [
        (
            start_command(OLD, OLD, &[]),
            None,
            &ready,
            "the new CA is the CA in place (name the certificate of another one)",
        ),
        (
            start_command(OLD, OTHER, &[]),
            Some(rotation(Activate)),
            &ready,
            "rotation 7 of ca is in phase activate (wait for its end, or undo it before phase retire)",
        ),
        (
            start_command(OLD, NEW, &[]),
            Some(rotation(Revert)),
            &ready,
            "rotation 7 of ca is in phase revert (wait for its end, or undo it before phase retire)",
        ),
        (
            start_command(NEW, OLD, &[]),
            Some(rotation(Done)),
            &ready,
            "an earlier rotation has the id 7 (choose another one)",
        ),
        (
            start_command(OLD, NEW, &["cp-1"]),
            None,
            &ready,
            "no node counts: every node is excluded, or is not labelled as a control-plane node",
        ),
        (
            start_command(OLD, NEW, &["cp-8", "cp-9"]),
            None,
            &ready,
            "the cluster has no node cp-8, cp-9 (kubectl get nodes lists the names)",
        ),
        (
            start_command(OTHER, NEW, &[]),
            None,
            &ready,
            "these nodes are not ready for a rotation: cp-1: not everything there trusts sha256:77aa88bb99cc00dd…, not everything there is signed under sha256:77aa88bb99cc00dd… (correct them, or exclude them from this rotation)",
        ),
        (
            start_command(OLD, NEW, &[]),
            Some(ended),
            &unaware,
            "these nodes are not ready for a rotation: cp-1: reports phase activate of rotation 7, not of 6; cp-2: no readable report on its Node (verify that nodepki.service runs there, in the same release) (correct them, or exclude them from this rotation)",
        ),
    ] {
        let refused = changed_by(&command, present.as_ref(), nodes).unwrap_err();
        assert_eq!(refused.to_string(), expected);
    }
}

#[test]
fn undoes_until_the_old_ca_is_retired() {
    use RotationPhase::{Activate, Done, Retire, Revert, Trust, Undone, Withdraw};
    let retired = "rotation 7 is in phase retire, and nodes may not trust the old one any more (wait for its end, then start another rotation)";
    let ended = "no rotation is in progress (nodepki authority watch shows the last one)";
    for (phase, expected) in [
        (Trust, Ok(Some(Withdraw))),
        (Activate, Ok(Some(Revert))),
        (Revert, Ok(None)),
        (Withdraw, Ok(None)),
        (Undone, Ok(None)),
        (Retire, Err(retired.to_owned())),
        (Done, Err(ended.to_owned())),
    ] {
        let present = AuthorityRotation {
            paused: matches!(phase, Trust | Activate),
            ..rotation(phase)
        };
        let undone = changed_by(&RotationCommand::Undo, Some(&present), &NodeProofs::new());
        let undone = undone.map_err(|refused| refused.to_string());
        if let Ok(Some(undone)) = &undone {
            assert!(!undone.paused, "an undo from {phase} ends the pause");
        }
        assert_eq!(
            undone.map(|undone| undone.map(|it| it.phase)),
            expected,
            "{phase}"
        );
    }
}

#[test]
fn pauses_resumes_and_excludes_a_rotation_in_progress() {
    let nodes = proofs(&[("cp-1", None), ("cp-2", None)]);
    let apply = |command: RotationCommand, present: Option<&AuthorityRotation>| {
        changed_by(&command, present, &nodes)
    };
    let present = rotation(RotationPhase::Activate);
    let paused = apply(RotationCommand::Pause, Some(&present))
        .unwrap()
        .unwrap();
    assert!(paused.paused);
    assert_eq!(apply(RotationCommand::Pause, Some(&paused)), Ok(None));
    let resumed = apply(RotationCommand::Resume, Some(&paused));
    assert_eq!(resumed, Ok(Some(present.clone())));
    assert_eq!(apply(RotationCommand::Resume, Some(&present)), Ok(None));

    let exclude = |names: &[&str]| RotationCommand::Exclude(set(names));
    let smaller = apply(exclude(&["cp-2"]), Some(&present)).unwrap().unwrap();
    assert_eq!(smaller.excluded, set(&["cp-2"]));
    assert_eq!(apply(exclude(&["cp-2"]), Some(&smaller)), Ok(None));
    let all = apply(exclude(&["cp-1"]), Some(&smaller));
    assert_eq!(all, Err(RefusedCommand::NoNodes));
    let unknown = apply(exclude(&["cp-3"]), Some(&present));
    assert_eq!(
        unknown,
        Err(RefusedCommand::UnknownNodes(vec!["cp-3".to_owned()]))
    );

    let ended = rotation(RotationPhase::Done);
    for present in [None, Some(&ended)] {
        for command in [
            RotationCommand::Pause,
            RotationCommand::Resume,
            exclude(&["cp-2"]),
        ] {
            assert_eq!(apply(command, present), Err(RefusedCommand::NotInProgress));
        }
    }
}

#[test]
fn writes_documents_in_their_published_form() {
    let present = AuthorityRotation {
        excluded: set(&["cp-3"]),
        ..rotation(RotationPhase::Trust)
    };
    let json = serde_json::json!({
        "version": 1,
        "id": "7",
        "authority": "ca",
        "old": {"sha256": OLD, "certificate": format!("{OLD} in PEM\n")},
        "new": {"sha256": NEW, "certificate": format!("{NEW} in PEM\n")},
        "phase": "trust",
        "paused": false,
        "excluded": ["cp-3"],
    });
    assert_eq!(serde_json::to_value(&present).unwrap(), json);
    assert_eq!(
        serde_json::from_value::<AuthorityRotation>(json).unwrap(),
        present
    );

    let proof = proven(RotationPhase::Activate);
    let json = serde_json::json!({
        "version": 1,
        "begun": {"rotation": "7", "phase": "activate"},
        "trustedByAll": [OLD, NEW],
        "trustedByAny": [OLD, NEW],
        "certificatesUnder": [NEW],
    });
    assert_eq!(serde_json::to_value(&proof).unwrap(), json);
    assert_eq!(serde_json::from_value::<NodeProof>(json).unwrap(), proof);
}

#[test]
fn rejects_documents_of_other_versions() {
    let json = serde_json::json!({
        "version": 2,
        "trustedByAll": [],
        "trustedByAny": [],
        "certificatesUnder": [],
    });
    let rejected = serde_json::from_value::<NodeProof>(json).unwrap_err();
    assert_eq!(
        rejected.to_string(),
        "version 2 of a CA rotation is not supported (this nodepki supports version 1; install the same release on every node)"
    );
}

/// Returns a rotation of the service-account key whose tokens live for an hour.
fn rotation_of_key(phase: RotationPhase) -> AuthorityRotation {
    AuthorityRotation {
        subject: RotationSubject::ServiceAccount,
        token_lifetime: Some(3600),
        ..rotation(phase)
    }
}

fn switched(phase: RotationPhase, name: Option<&str>) -> Option<NodeProof> {
    Some(NodeProof {
        switched: name.map(str::to_owned),
        ..proven(phase)
    })
}

#[test]
fn waits_for_tokens_before_key_is_removed() {
    use RotationPhase::{Activate, Retire, Revert, Trust, Withdraw};
    for (phase, next) in [(Activate, Retire), (Revert, Withdraw)] {
        let signing = rotation_of_key(phase);
        let nodes = proofs(&[
            ("cp-1", switched(phase, Some("a"))),
            ("cp-2", switched(phase, None)),
        ]);
        let wait = TokenWait {
            until: NOW + time::Duration::HOUR,
            switches: [("cp-1".to_owned(), "a".to_owned())].into(),
        };
        let begins = LeaderDecision::Wait(wait.clone());
        assert_eq!(decide_phase(&signing, &nodes, NOW), begins);
        let waiting = signing.waiting(wait.clone());
        let held = LeaderDecision::Hold(LeaderHold::Tokens(wait.until));
        let before = wait.until - time::Duration::SECOND;
        assert_eq!(decide_phase(&waiting, &nodes, before), held);
        let advances = LeaderDecision::Advance(next);
        assert_eq!(decide_phase(&waiting, &nodes, wait.until), advances);
        assert_eq!(waiting.in_phase(next).token_wait, None);

        // A node that has not proven the phase holds it, whatever the time is.
        let unproven = proofs(&[("cp-1", switched(Trust, None))]);
        let decision = decide_phase(&waiting, &unproven, wait.until);
        assert!(matches!(
            decision,
            LeaderDecision::Hold(LeaderHold::Unproven(_))
        ));
    }
    let trusting = rotation_of_key(Trust);
    let nodes = proofs(&[("cp-1", switched(Trust, None))]);
    let advances = LeaderDecision::Advance(Activate);
    assert_eq!(decide_phase(&trusting, &nodes, NOW), advances);
}

#[test]
fn node_that_has_signed_with_former_key_begins_the_wait_again() {
    use RotationPhase::Activate;
    let wait = TokenWait {
        until: NOW,
        switches: [("cp-1".to_owned(), "a".to_owned())].into(),
    };
    let waiting = rotation_of_key(Activate).waiting(wait);
    let decide = |second: Option<NodeProof>, excluded: &[&str]| {
        let nodes = proofs(&[("cp-1", switched(Activate, Some("a"))), ("cp-2", second)]);
        let waiting = AuthorityRotation {
            excluded: set(excluded),
            ..waiting.clone()
        };
        decide_phase(&waiting, &nodes, NOW)
    };
    let begins_again = |decision| matches!(decision, LeaderDecision::Wait(_));
    // One that has joined with the new key.
    assert!(!begins_again(decide(switched(Activate, None), &[])));
    assert!(begins_again(decide(switched(Activate, Some("b")), &[])));
    assert!(!begins_again(decide(
        switched(Activate, Some("b")),
        &["cp-2"]
    )));
    // One that was restored from a backup.
    let restored = proofs(&[("cp-1", switched(Activate, Some("c")))]);
    assert!(begins_again(decide_phase(&waiting, &restored, NOW)));
}

#[test]
fn undo_ends_the_wait_for_tokens() {
    let wait = TokenWait {
        until: NOW,
        switches: Default::default(),
    };
    let waiting = rotation_of_key(RotationPhase::Activate).waiting(wait);
    let undone = changed_by(&RotationCommand::Undo, Some(&waiting), &NodeProofs::new());
    let undone = undone.unwrap().unwrap();
    assert_eq!(undone.phase, RotationPhase::Revert);
    assert_eq!(undone.token_wait, None);
    let json = serde_json::to_value(&waiting).unwrap();
    assert_eq!(json["authority"], "sa");
    assert_eq!(json["tokenWait"]["until"], "2026-11-24T12:00:00Z");
    assert_eq!(
        serde_json::from_value::<AuthorityRotation>(json).unwrap(),
        waiting
    );
    assert_eq!(
        LeaderHold::Tokens(NOW).to_string(),
        "every node signs with the other key, and tokens of the former one may be valid until 2026-11-24T12:00:00Z"
    );
}
