use std::time::Duration;

use time::macros::datetime;

use super::*;
use crate::agent::{RowAction, RowReason};

const START: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn agenda() -> Agenda {
    Agenda::new("cp1", None, START, Duration::ZERO)
}

/// Returns the next action `after` the start, with a correct clock.
fn next_at(agenda: &mut Agenda, after: Duration) -> NextAction {
    agenda.next(START + after, after)
}

fn settled(next: Option<OffsetDateTime>) -> StepResult {
    StepResult {
        next,
        ends: Some(START + 30 * DAY),
        open: None,
    }
}

fn trouble(next: Option<OffsetDateTime>, ends: Option<OffsetDateTime>, person: bool) -> StepResult {
    let what = "apiserver failed: the signer is away".to_owned();
    StepResult {
        next,
        ends,
        open: Some(OpenIssue::Trouble { what, person }),
    }
}

fn refresh(exist: bool, changed: bool) -> ListRefresh {
    ListRefresh { exist, changed }
}

/// Returns the time after the start until which the agenda sleeps.
fn planned(agenda: &mut Agenda, now: Duration) -> Duration {
    match next_at(agenda, now) {
        NextAction::Sleep(Some(until)) => (until - START).unsigned_abs(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn takes_first_step_immediately_and_next_when_due() {
    let mut agenda = agenda();
    assert_eq!(
        next_at(&mut agenda, Duration::ZERO),
        NextAction::Step(StepReason::Start)
    );
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(
        agenda.status(),
        "everything is in place; next at 2027-01-02T00:00:00Z"
    );
    assert_eq!(
        next_at(&mut agenda, HOUR),
        NextAction::Sleep(Some(START + DAY))
    );
    assert_eq!(next_at(&mut agenda, DAY), NextAction::Step(StepReason::Due));
    agenda.stepped(settled(None), START + DAY);
    assert_eq!(
        next_at(&mut agenda, DAY),
        NextAction::Sleep(None),
        "no renewal is planned, so that the process is not woken"
    );
}

#[test]
fn waits_minimum_interval_between_steps() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START - DAY)), START);
    assert_eq!(planned(&mut agenda, Duration::ZERO), MIN_STEP_INTERVAL);
}

#[test]
fn retries_by_remaining_lifetime_of_valid_certificates() {
    // The time that a step returns counts. Without one, the retry comes within 37.5 % of the remaining lifetime, at most
    // three hours.
    for (left, most) in [
        (60, 24),
        (600, 225),
        (10 * 3600, 10_800),
        (300 * 86_400, 10_800),
    ] {
        for failures in [1, 2, 9] {
            let mut agenda = agenda();
            let ends = Some(START + Duration::from_secs(left));
            for _ in 0..failures {
                agenda.stepped(trouble(Some(START + HOUR), ends, false), START);
                assert_eq!(planned(&mut agenda, Duration::ZERO), HOUR);
                let nothing = Failure::new(ExitCode::Unreachable, "no way");
                agenda.stepped(StepResult::failed(&nothing), START);
            }
            let wait = planned(&mut agenda, Duration::ZERO).as_secs();
            assert!((2..=most).contains(&wait), "{left} s left: {wait} s");
        }
    }
}

#[test]
fn backs_off_exponentially_without_valid_certificate() {
    for failures in 1..=12 {
        let waits = (0..400).map(|node| {
            let mut agenda = Agenda::new(&format!("cp{node}"), None, START, Duration::ZERO);
            for _ in 0..failures {
                agenda.stepped(trouble(Some(START), None, false), START);
            }
            planned(&mut agenda, Duration::ZERO).as_secs_f64()
        });
        let mut waits: Vec<f64> = waits.collect();
        waits.sort_by(f64::total_cmp);
        // Full jitter: evenly distributed from zero to the bound.
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
fn retries_rarely_and_reports_faults_that_need_manual_action() {
    let mut agenda = agenda();
    agenda.stepped(trouble(None, None, true), START);
    let wait = planned(&mut agenda, Duration::ZERO).as_secs();
    assert!((300..=600).contains(&wait), "{wait}");
    let status = agenda.status();
    assert!(
        status.starts_with(
            "apiserver failed: the signer is away; this needs manual action, next at 2027-"
        ),
        "{status}"
    );
    assert!(
        status.ends_with("; not every certificate is valid"),
        "{status}"
    );
    agenda.stepped(trouble(Some(START + HOUR), Some(START + DAY), true), START);
    assert!(
        agenda
            .status()
            .ends_with("; the present certificates are valid until 2027-01-02T00:00:00Z"),
        "{}",
        agenda.status()
    );
}

#[test]
fn resets_backoff_after_success() {
    let mut agenda = agenda();
    for _ in 0..20 {
        agenda.stepped(trouble(None, None, false), START);
    }
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.stepped(trouble(Some(START), None, false), START);
    assert!(planned(&mut agenda, Duration::ZERO) <= Duration::from_secs(5));
}

#[test]
fn counts_held_lock_as_no_failure() {
    let mut agenda = agenda();
    for _ in 0..50 {
        agenda.stepped(StepResult::busy("pid 7: nodepki renew".to_owned()), START);
        assert!(agenda.waits_for_lock());
        assert_eq!(planned(&mut agenda, Duration::ZERO), LOCK_RETRY_INTERVAL);
    }
    assert_eq!(
        agenda.status(),
        "another run holds the lock: pid 7: nodepki renew; waiting until it ends"
    );
    assert_eq!(agenda.failures, 0);
    agenda.stepped(settled(Some(START + DAY)), START);
    assert!(!agenda.waits_for_lock());
}

#[test]
fn reacts_to_external_edit_immediately_and_backs_off_on_repetition() {
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
    assert_eq!(waits[11], EXTERNAL_EDIT_WINDOW);
    agenda.files_changed(START + 2 * HOUR, 2 * HOUR);
    assert_eq!(
        next_at(&mut agenda, 2 * HOUR),
        NextAction::Step(StepReason::Files),
        "the window has passed"
    );
}

#[test]
fn keeps_earlier_step_after_external_edit() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + Duration::from_secs(1))), START);
    agenda.files_changed(START, Duration::ZERO);
    agenda.files_changed(START, Duration::ZERO);
    assert_eq!(
        next_at(&mut agenda, Duration::from_secs(1)),
        NextAction::Step(StepReason::Files)
    );
}

#[test]
fn distrusts_backward_clock_step_for_an_hour() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + 5 * HOUR)), START);
    // The clock is correct for six hours, then is set back by half an hour.
    let uptime = 6 * HOUR;
    let shown = START + uptime - HOUR / 2;
    assert_eq!(
        agenda.next(shown, uptime),
        NextAction::Sleep(Some(shown + HOUR)),
        "although a renewal is due"
    );
    assert!(agenda.distrusts_clock());
    assert!(
        agenda.status().starts_with(
            "the clock was set back by 30m to 2027-01-01T05:30:00Z: renewals are suspended"
        ),
        "{}",
        agenda.status()
    );
    // The step persists, so the new time is trusted.
    assert_eq!(
        agenda.next(shown + HOUR, uptime + HOUR),
        NextAction::Step(StepReason::Clock)
    );
    assert!(!agenda.distrusts_clock());
}

#[test]
fn fetches_lists_once_clock_that_was_set_back_is_trusted() {
    let mut agenda = Agenda::new("cp1", Some(HOUR), START, Duration::ZERO);
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.lists_refreshed(refresh(true, false), START);
    agenda.next(START - DAY, Duration::ZERO);
    assert!(agenda.distrusts_clock());
    let shown = START - DAY + HOUR;
    assert_eq!(
        agenda.next(shown, HOUR),
        NextAction::Step(StepReason::Clock)
    );
    agenda.stepped(settled(Some(START + DAY)), shown);
    assert_eq!(agenda.next(shown, HOUR), NextAction::Lists);
}

#[test]
fn trusts_corrected_clock_immediately() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    let uptime = Duration::from_secs(600);
    assert!(matches!(
        agenda.next(START - HOUR, uptime),
        NextAction::Sleep(Some(_))
    ));
    assert!(agenda.distrusts_clock());
    let uptime = 2 * uptime;
    assert_eq!(
        agenda.next(START + uptime, uptime),
        NextAction::Step(StepReason::Clock)
    );
}

#[test]
fn trusts_clock_after_reload() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.next(START - HOUR, Duration::ZERO);
    assert!(agenda.distrusts_clock());
    agenda.reloaded("cp1", None, START - HOUR, Duration::ZERO);
    assert_eq!(
        agenda.next(START - HOUR, Duration::ZERO),
        NextAction::Step(StepReason::Reload)
    );
}

#[test]
fn accepts_small_backward_and_all_forward_clock_steps() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(
        agenda.next(START + HOUR - Duration::from_secs(299), HOUR),
        NextAction::Sleep(Some(START + DAY))
    );
    assert_eq!(
        agenda.next(START + HOUR, HOUR),
        NextAction::Sleep(Some(START + DAY)),
        "the clock is correct again"
    );
    // After a day of suspend: the time since boot includes it.
    assert_eq!(
        agenda.next(START + DAY + HOUR, DAY + HOUR),
        NextAction::Step(StepReason::Due)
    );
    let mut agenda = self::agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(
        agenda.next(START + 5 * HOUR, HOUR),
        NextAction::Sleep(Some(START + DAY))
    );
    assert_eq!(
        agenda.next(START + DAY, 2 * HOUR),
        NextAction::Step(StepReason::Due)
    );
}

#[test]
fn fetches_lists_at_interval_if_any_exist() {
    let mut agenda = Agenda::new("cp1", Some(5 * MINUTE), START, Duration::ZERO);
    assert_eq!(
        next_at(&mut agenda, Duration::ZERO),
        NextAction::Step(StepReason::Start)
    );
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(next_at(&mut agenda, Duration::ZERO), NextAction::Lists);
    agenda.lists_refreshed(refresh(true, false), START);
    let wait = planned(&mut agenda, Duration::ZERO).as_secs();
    assert!((270..=330).contains(&wait), "{wait}");
    // A reload puts a changed interval in force.
    agenda.reloaded("cp1", Some(HOUR), START, Duration::ZERO);
    agenda.stepped(settled(Some(START + DAY)), START);
    assert_eq!(next_at(&mut agenda, Duration::ZERO), NextAction::Lists);
    agenda.lists_refreshed(refresh(true, false), START);
    let wait = planned(&mut agenda, Duration::ZERO).as_secs();
    assert!((3240..=3960).contains(&wait), "{wait}");
    agenda.lists_refreshed(refresh(true, true), START);
    assert_eq!(
        next_at(&mut agenda, Duration::ZERO),
        NextAction::Step(StepReason::Lists),
        "an installed certificate may be revoked"
    );
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.lists_refreshed(refresh(false, false), START);
    assert_eq!(
        planned(&mut agenda, Duration::ZERO),
        DAY,
        "no signer publishes a list"
    );
}

#[test]
fn reports_faulty_configuration_and_keeps_schedule() {
    let mut agenda = agenda();
    agenda.stepped(settled(Some(START + DAY)), START);
    agenda.kept_configuration("config.yaml:1:1: no");
    assert_eq!(
        agenda.status(),
        "the new configuration is faulty and the previous one stays in force: config.yaml:1:1: no"
    );
    assert_eq!(planned(&mut agenda, HOUR), DAY);
}

#[test]
fn derives_result_from_report_rows() {
    let row = |name: &str, action, code, not_after| ReportRow {
        name: name.to_owned(),
        authority: Some("ca".to_owned()),
        action,
        reasons: vec![RowReason::Restart(format!("because of {name}"))],
        code,
        not_after,
        ..ReportRow::default()
    };
    let report = |rows| RunReport {
        rows,
        ..RunReport::default()
    };
    let (soon, late) = (Some(START + HOUR), Some(START + DAY));
    let ended = StepResult::of(
        &report(vec![
            row("a", RowAction::Kept, None, late),
            row("b", RowAction::Renewed, None, soon),
        ]),
        late,
    );
    assert_eq!((ended.open, ended.ends), (None, soon));
    let ended = StepResult::of(
        &report(vec![
            row("a", RowAction::Failed, None, late),
            row("b", RowAction::Kept, None, soon),
        ]),
        late,
    );
    assert_eq!(ended.ends, late, "of what is open");
    let passing = OpenIssue::Trouble {
        what: "a failed: because of a".to_owned(),
        person: false,
    };
    assert_eq!(ended.open, Some(passing));
    let refused = Some(ExitCode::Refused);
    let ended = StepResult::of(
        &report(vec![
            row("a", RowAction::Denied, refused, late),
            row("b", RowAction::Refused, refused, None),
        ]),
        late,
    );
    assert_eq!(ended.ends, None, "one of them is missing");
    let lasting = OpenIssue::Trouble {
        what: "a, b denied: because of a".to_owned(),
        person: true,
    };
    assert_eq!(ended.open, Some(lasting));
}

#[test]
fn reports_what_waits_although_all_certificates_are_installed() {
    for (row, why, expected) in [
        (
            "kube-scheduler",
            "node cp2 holds the Lease",
            "every certificate is installed, but not in effect: kube-scheduler failed: node cp2 holds the Lease; next at 2027-01-01T00:01:00Z",
        ),
        (
            "rotation of ca, phase activate",
            "the signer signs with the old CA",
            "every certificate is in effect, but a CA change waits: rotation of ca, phase activate failed: the signer signs with the old CA; next at 2027-01-01T00:01:00Z",
        ),
    ] {
        let report = RunReport {
            rows: vec![ReportRow::failed(row, Failure::pending(why))],
            ..RunReport::default()
        };
        let soon = START + HOUR / 60;
        let mut agenda = Agenda::new("cp-1", None, START, Duration::ZERO);
        agenda.stepped(StepResult::of(&report, Some(soon)), START);
        assert_eq!(agenda.status(), expected);
        assert_eq!(
            agenda.next(START, Duration::ZERO),
            NextAction::Sleep(Some(soon))
        );
    }
}
