use std::time::Duration;

use time::macros::datetime;

use super::*;

const START: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn agenda() -> Agenda {
    Agenda::new("cp1", false, START, Duration::ZERO)
}

/// At `START` and a while, by a clock that nobody sets.
fn at(agenda: &mut Agenda, after: Duration) -> Next {
    agenda.next(START + after, after)
}

fn settled(next: Option<OffsetDateTime>) -> Ended {
    Ended {
        next,
        ends: Some(START + 30 * DAY),
        open: None,
    }
}

fn trouble(next: Option<OffsetDateTime>, ends: Option<OffsetDateTime>, person: bool) -> Ended {
    let what = "apiserver failed: the signer is away".to_owned();
    Ended {
        next,
        ends,
        open: Some(Open::Trouble { what, person }),
    }
}

fn planned(agenda: &mut Agenda, now: Duration) -> Duration {
    match at(agenda, now) {
        Next::Sleep(Some(until)) => (until - START).unsigned_abs(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_step_is_due_at_once_and_the_next_when_something_is() {
    let mut agenda = agenda();
    assert_eq!(at(&mut agenda, Duration::ZERO), Next::Step(Why::Start));
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(
        agenda.status(),
        "everything is in place; next at 2027-01-02T00:00:00Z"
    );
    assert_eq!(at(&mut agenda, HOUR), Next::Sleep(Some(START + DAY)));
    assert_eq!(at(&mut agenda, DAY), Next::Step(Why::Due));
    agenda.stepped(settled(None), START + DAY);
    assert_eq!(
        at(&mut agenda, DAY),
        Next::Sleep(None),
        "nothing will be due: no wake-up at all"
    );
}

#[test]
fn a_step_that_wants_itself_again_at_once_gets_a_breath() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START - DAY)), START);
    assert_eq!(planned(&mut agenda, Duration::ZERO), BREATH);
}

#[test]
fn the_remaining_life_sets_the_pace_of_what_serves() {
    // What a step says goes; what says nothing is tried after a part of what is left, two hours at most.
    for (left, least, most) in [
        (60, 7, 15),
        (600, 75, 150),
        (10 * 3600, 60 * 60, 120 * 60),
        (300 * 86_400, 60 * 60, 120 * 60),
    ] {
        for failures in [1, 2, 9] {
            let mut agenda = agenda();
            let ends = Some(START + Duration::from_secs(left));
            for _ in 0..failures {
                agenda.stepped(trouble(Some(START + HOUR), ends, false), START);
                assert_eq!(planned(&mut agenda, Duration::ZERO), HOUR);
                let nothing = Failure::new(ExitCode::Unreachable, "no way");
                agenda.stepped(Ended::failed(&nothing), START);
            }
            let wait = planned(&mut agenda, Duration::ZERO).as_secs();
            assert!((least..=most).contains(&wait), "{left} s left: {wait} s");
        }
    }
}

#[test]
fn what_does_not_serve_is_asked_for_ever_more_slowly() {
    for failures in 1..=12 {
        let waits = (0..400).map(|node| {
            let mut agenda = Agenda::new(&format!("cp{node}"), false, START, Duration::ZERO);
            for _ in 0..failures {
                agenda.stepped(trouble(Some(START), None, false), START);
            }
            planned(&mut agenda, Duration::ZERO).as_secs_f64()
        });
        let mut waits: Vec<f64> = waits.collect();
        waits.sort_by(f64::total_cmp);
        // Full jitter: from nothing to all of it, evenly.
        let (middle, most) = (waits[200], waits[399]);
        let bound = (5.0 * 2f64.powi(failures - 1)).min(600.0);
        assert!(
            most <= bound.max(1.0) && most > 0.9 * bound,
            "{most} of {bound}"
        );
        assert!(
            (0.3..0.7).contains(&(middle / bound)),
            "{middle} of {bound}"
        );
    }
}

#[test]
fn what_a_person_has_to_mend_is_asked_for_rarely_and_told() {
    let mut agenda = agenda();
    agenda.stepped(trouble(None, None, true), START);
    let wait = planned(&mut agenda, Duration::ZERO).as_secs();
    assert!((300..=600).contains(&wait), "{wait}");
    let status = agenda.status();
    assert!(
        status.starts_with(
            "apiserver failed: the signer is away; somebody has to see to it, next at 2027-"
        ),
        "{status}"
    );
    assert!(status.ends_with("; not everything serves"), "{status}");
    agenda.stepped(trouble(Some(START + HOUR), Some(START + DAY), true), START);
    assert!(
        agenda
            .status()
            .ends_with("; what is in place serves until 2027-01-02T00:00:00Z"),
        "{}",
        agenda.status()
    );
}

#[test]
fn success_forgets_the_failures_before() {
    let mut agenda = agenda();
    for _ in 0..20 {
        agenda.stepped(trouble(None, None, false), START);
    }
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.stepped(trouble(Some(START), None, false), START);
    assert!(planned(&mut agenda, Duration::ZERO) <= Duration::from_secs(5));
}

#[test]
fn another_run_is_no_failure() {
    let mut agenda = agenda();
    for _ in 0..50 {
        agenda.stepped(Ended::busy("pid 7: nodepki renew".to_owned()), START);
        assert!(agenda.waits_for_lock());
        assert_eq!(planned(&mut agenda, Duration::ZERO), TURN);
    }
    assert_eq!(
        agenda.status(),
        "another run holds the lock: pid 7: nodepki renew; waiting for it to end"
    );
    assert_eq!(agenda.failures, 0);
    agenda.stepped(settled(Some(START + DAY)), START);
    assert!(!agenda.waits_for_lock());
}

#[test]
fn files_of_others_are_answered_at_once_and_flapping_ones_ever_more_slowly() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    let mut waits = Vec::new();
    for _ in 0..12 {
        agenda.files_changed(START + HOUR, HOUR);
        waits.push((agenda.step.unwrap().0 - START).unsigned_abs() - HOUR);
        agenda.stepped(settled(Some(START + DAY)), START);
    }
    assert_eq!(
        waits[..4].iter().map(Duration::as_secs).collect::<Vec<_>>(),
        [0, 2, 4, 8]
    );
    assert_eq!(waits[11], QUIET);
    agenda.files_changed(START + 2 * HOUR, 2 * HOUR);
    assert_eq!(
        at(&mut agenda, 2 * HOUR),
        Next::Step(Why::Files),
        "the storm is over"
    );
}

#[test]
fn a_change_of_files_does_not_put_off_what_is_due() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + Duration::from_secs(1))), START);
    agenda.files_changed(START, Duration::ZERO);
    agenda.files_changed(START, Duration::ZERO);
    assert_eq!(
        at(&mut agenda, Duration::from_secs(1)),
        Next::Step(Why::Files)
    );
}

#[test]
fn a_clock_that_goes_back_is_not_believed_for_an_hour() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + 5 * HOUR)), START);
    // It runs for six hours, and then shows half an hour less than it should.
    let ran = 6 * HOUR;
    let shown = START + ran - HOUR / 2;
    assert_eq!(
        agenda.next(shown, ran),
        Next::Sleep(Some(shown + HOUR)),
        "although something is due"
    );
    assert!(agenda.is_held());
    assert!(
        agenda
            .status()
            .starts_with("the clock went back by 30m to 2027-01-01T05:30:00Z: nothing is renewed"),
        "{}",
        agenda.status()
    );
    // It does not catch up, and is believed.
    assert_eq!(
        agenda.next(shown + HOUR, ran + HOUR),
        Next::Step(Why::Clock)
    );
    assert!(!agenda.is_held());
}

#[test]
fn a_clock_that_comes_to_itself_is_believed_at_once() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    let ran = Duration::from_secs(600);
    assert!(matches!(
        agenda.next(START - HOUR, ran),
        Next::Sleep(Some(_))
    ));
    assert!(agenda.is_held());
    let ran = ran + ran;
    assert_eq!(agenda.next(START + ran, ran), Next::Step(Why::Clock));
}

#[test]
fn whoever_reads_the_configuration_again_says_that_the_clock_is_right() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.next(START - HOUR, Duration::ZERO);
    assert!(agenda.is_held());
    agenda.reloaded("cp1", false, START - HOUR, Duration::ZERO);
    assert_eq!(
        agenda.next(START - HOUR, Duration::ZERO),
        Next::Step(Why::Reload)
    );
}

#[test]
fn small_steps_and_steps_forward_change_nothing_but_what_is_due() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(
        agenda.next(START + HOUR - Duration::from_secs(299), HOUR),
        Next::Sleep(Some(START + DAY))
    );
    assert_eq!(
        agenda.next(START + HOUR, HOUR),
        Next::Sleep(Some(START + DAY)),
        "right again"
    );
    // Suspended for a day: the counter of running time went on.
    assert_eq!(
        agenda.next(START + DAY + HOUR, DAY + HOUR),
        Next::Step(Why::Due)
    );
    let mut agenda = self::agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(
        agenda.next(START + 5 * HOUR, HOUR),
        Next::Sleep(Some(START + DAY))
    );
    assert_eq!(agenda.next(START + DAY, 2 * HOUR), Next::Step(Why::Due));
}

#[test]
fn lists_are_looked_at_every_five_minutes_where_there_are_any() {
    let mut agenda = Agenda::new("cp1", true, START, Duration::ZERO);
    assert_eq!(at(&mut agenda, Duration::ZERO), Next::Step(Why::Start));
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(at(&mut agenda, Duration::ZERO), Next::Lists);
    agenda.listed(true, false, START);
    let wait = planned(&mut agenda, Duration::ZERO).as_secs();
    assert!((270..=330).contains(&wait), "{wait}");
    agenda.listed(true, true, START);
    assert_eq!(
        at(&mut agenda, Duration::ZERO),
        Next::Step(Why::Lists),
        "something in place may be revoked"
    );
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.listed(false, false, START);
    assert_eq!(
        planned(&mut agenda, Duration::ZERO),
        DAY,
        "nobody publishes any"
    );
}

#[test]
fn a_faulty_configuration_is_told_and_changes_nothing() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.kept_configuration("config.yaml:1:1: no");
    assert_eq!(
        agenda.status(),
        "the new configuration is faulty and the one before stays in force: config.yaml:1:1: no"
    );
    assert_eq!(planned(&mut agenda, HOUR), DAY);
}

#[test]
fn what_is_open_is_read_from_the_rows() {
    let row = |name: &str, action, code, not_after| Row {
        name: name.to_owned(),
        authority: Some("ca".to_owned()),
        action,
        reasons: vec![format!("because of {name}")],
        code,
        not_after,
        ..Row::default()
    };
    let report = |rows| Report {
        rows,
        ..Report::default()
    };
    let (soon, late) = (Some(START + HOUR), Some(START + DAY));
    let ended = Ended::of(
        &report(vec![
            row("a", "kept", None, late),
            row("b", "renewed", None, soon),
        ]),
        late,
    );
    assert_eq!((ended.open, ended.ends), (None, soon));
    let ended = Ended::of(
        &report(vec![
            row("a", "failed", None, late),
            row("b", "kept", None, soon),
        ]),
        late,
    );
    assert_eq!(ended.ends, late, "of what is open");
    let passing = Open::Trouble {
        what: "a failed: because of a".to_owned(),
        person: false,
    };
    assert_eq!(ended.open, Some(passing));
    let refused = Some(ExitCode::Refused);
    let ended = Ended::of(
        &report(vec![
            row("a", "denied", refused, late),
            row("b", "refused", refused, None),
        ]),
        late,
    );
    assert_eq!(ended.ends, None, "one of them does not serve");
    let lasting = Open::Trouble {
        what: "a, b denied: because of a".to_owned(),
        person: true,
    };
    assert_eq!(ended.open, Some(lasting));
}

#[test]
fn what_is_in_place_and_not_in_effect_is_told() {
    let stuck = Row::failed(
        "kube-scheduler",
        Failure::new(ExitCode::Pending, "it is the turn of node cp2"),
    );
    let report = Report {
        rows: vec![stuck],
        ..Report::default()
    };
    let soon = START + HOUR / 60;
    let mut agenda = Agenda::new("cp-1", false, START, Duration::ZERO);
    agenda.stepped(Ended::of(&report, Some(soon)), START);
    assert_eq!(
        agenda.status(),
        "every certificate is in place, but not in effect: kube-scheduler failed: it is the turn of node cp2; next at 2027-01-01T00:01:00Z"
    );
    assert_eq!(agenda.next(START, Duration::ZERO), Next::Sleep(Some(soon)));
}
