use time::macros::datetime;

use super::*;

fn rotation() -> Rotation {
    Rotation {
        jitter: Percent(0),
        ..Rotation::default()
    }
}

fn weekly(text: &str) -> Window {
    Window::weekly(text).unwrap()
}

fn cron(text: &str, hours: u64) -> Window {
    Window::cron(text, Duration::from_secs(hours * 3600)).unwrap()
}

const ISSUED: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);

fn life(length: Span) -> CertLife {
    CertLife {
        issued_at: ISSUED,
        not_after: ISSUED + length,
    }
}

#[test]
fn reports_renew_at_before_half_of_lifetime() {
    let year = Duration::from_secs(8760 * 3600);
    let at = |renew_at| Rotation {
        renew_at,
        ..rotation()
    };
    let before = |hours: u64| RenewAt::Before(Duration::from_secs(hours * 3600));
    for (renew_at, has_effect) in [
        (RenewAt::Share(Percent(50)), true),
        (RenewAt::Share(Percent(49)), false),
        (before(4380), true),
        (before(4381), false),
    ] {
        assert_eq!(
            at(renew_at).without_effect(year).is_none(),
            has_effect,
            "{renew_at}"
        );
    }
}

#[test]
fn computes_due_time_by_each_rule() {
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let before = |hours_before| Rotation {
        renew_at: RenewAt::Before(hours(hours_before)),
        ..rotation()
    };
    for (what, length, rotation, wanted, reason) in [
        (
            "a share",
            Span::hours(8760),
            rotation(),
            datetime!(2026-08-29 21:36 UTC),
            "66 % of its life of 8760h is over",
        ),
        (
            "a time before the end",
            Span::hours(8760),
            before(720),
            datetime!(2026-12-02 00:00 UTC),
            "it ends within 720h",
        ),
        (
            "a time before the end that is longer than the life",
            Span::hours(24),
            before(720),
            datetime!(2026-01-01 12:00 UTC),
            "half of its life of 24h is over, the earliest possible time",
        ),
        (
            "the floor comes first",
            Span::hours(10),
            Rotation {
                min_remaining: hours(4),
                ..rotation()
            },
            datetime!(2026-01-01 06:00 UTC),
            "no more than 4h of its life of 10h is left",
        ),
        (
            "three minutes",
            Span::minutes(3),
            rotation(),
            datetime!(2026-01-01 00:01:30 UTC),
            "half of its life of 3m is over, the earliest possible time",
        ),
        (
            "everything at once",
            Span::hours(100),
            Rotation {
                renew_at: RenewAt::Share(Percent(0)),
                ..rotation()
            },
            datetime!(2026-01-03 02:00 UTC),
            "half of its life of 100h is over, the earliest possible time",
        ),
        (
            "at its very end",
            Span::hours(100),
            Rotation {
                renew_at: RenewAt::Share(Percent(100)),
                min_remaining: Duration::ZERO,
                ..rotation()
            },
            datetime!(2026-01-05 04:00 UTC),
            "100 % of its life of 100h is over",
        ),
        (
            "no life at all",
            Span::hours(-1),
            rotation(),
            ISSUED,
            "half of its life of 0s is over, the earliest possible time",
        ),
    ] {
        let (at, why) = due_at(&life(length), &rotation, "cp-1");
        // A negative lifetime ends before it begins.
        let at = at.max(ISSUED);
        assert_eq!((at, why.as_str()), (wanted, reason), "{what}");
    }
}

#[test]
fn compares_due_time_with_now() {
    let (life, rotation) = (life(Span::hours(8760)), rotation());
    let (at, _) = due_at(&life, &rotation, "cp-1");
    let second = Span::SECOND;
    assert_eq!(
        due(&life, &rotation, "cp-1", at - second),
        DueState::Later { at }
    );
    let reason = "due since 2026-08-29T21:36:00Z: 66 % of its life of 8760h is over".to_owned();
    let now = |urgent| DueState::Now {
        reason: reason.clone(),
        urgent,
        no_window: None,
    };
    assert_eq!(due(&life, &rotation, "cp-1", at), now(false));
    let margin = datetime!(2026-11-25 12:00 UTC);
    assert_eq!(due(&life, &rotation, "cp-1", margin - second), now(false));
    assert_eq!(due(&life, &rotation, "cp-1", margin), now(true));
    assert_eq!(
        due(&life, &rotation, "cp-1", life.not_after + second),
        now(true)
    );
    // Issued in the future: the clock is behind, or the issue time is a guess.
    assert_eq!(
        due(&life, &rotation, "cp-1", ISSUED - Span::HOUR),
        DueState::Later { at }
    );
}

#[test]
fn does_not_make_short_lifetime_urgent_on_first_day() {
    let life = life(Span::minutes(8));
    let at = |minutes| life.is_urgent(&rotation(), ISSUED + Span::minutes(minutes));
    assert_eq!([at(1), at(4), at(6), at(7)], [false, false, true, true]);
}

#[test]
fn waits_for_window_unless_too_late() {
    // Due on Saturday, 29 August, 21:36.
    let year = life(Span::hours(8760));
    let now = datetime!(2026-08-30 00:00 UTC);
    let with = |windows: Vec<Window>| Rotation {
        windows,
        ..rotation()
    };
    let sunday = with(vec![weekly("Sun 02:00-05:00")]);
    let opens = datetime!(2026-08-30 02:00 UTC);
    let DueState::Waits { at, reason } = due(&year, &sunday, "cp-1", now) else {
        panic!()
    };
    assert!((opens..opens + Span::minutes(90)).contains(&at), "{at}");
    assert!(
        reason.starts_with("due since 2026-08-29T21:36:00Z: "),
        "{reason}"
    );
    let inside = due(&year, &sunday, "cp-1", opens + Span::HOUR);
    assert!(
        matches!(
            inside,
            DueState::Now {
                urgent: false,
                no_window: None,
                ..
            }
        ),
        "{inside:?}"
    );
    // The earliest of several windows is used.
    let two = with(vec![weekly("Mon 02:00-05:00"), weekly("Sun 01:00-01:30")]);
    let Wait::Until { opens, turn } = in_window(&year, &two, "cp-1", now) else {
        panic!()
    };
    assert_eq!(opens, datetime!(2026-08-30 01:00 UTC));
    assert!((opens..opens + Span::minutes(15)).contains(&turn), "{turn}");
    // The next window opens in six days, after the certificate expires.
    let days = life(Span::days(5));
    let late = ISSUED + Span::days(4);
    let DueState::Now {
        urgent: false,
        no_window: Some(why),
        ..
    } = due(&days, &with(vec![weekly("Thu 02:00-03:00")]), "cp-1", late)
    else {
        panic!()
    };
    assert_eq!(
        why,
        "the next window opens at 2026-01-08T02:00:00Z, too late for a certificate that expires at 2026-01-06T00:00:00Z: it is renewed outside of the windows"
    );
    // About to expire: windows are ignored, and a failure is reported.
    let end = days.not_after - Span::HOUR;
    let urgent = due(&days, &with(vec![weekly("Tue 23:30-23:45")]), "cp-1", end);
    assert!(
        matches!(
            urgent,
            DueState::Now {
                urgent: true,
                no_window: Some(_),
                ..
            }
        ),
        "{urgent:?}"
    );
}

#[test]
fn spreads_waiting_fleet_over_window() {
    let year = life(Span::hours(8760));
    let rotation = Rotation {
        windows: vec![weekly("Sun 02:00-05:00")],
        ..rotation()
    };
    let now = datetime!(2026-08-29 22:00 UTC);
    let mut nodes_by_minute = std::collections::BTreeMap::new();
    for node in 0..900 {
        let name = format!("cp-{node}");
        let Wait::Until { opens, turn } = in_window(&year, &rotation, &name, now) else {
            panic!()
        };
        assert_eq!(opens, datetime!(2026-08-30 02:00 UTC));
        let minute = (turn - opens).whole_minutes();
        assert!((0..=90).contains(&minute), "{turn}");
        assert!(rotation.windows[0].is_open(turn));
        *nodes_by_minute.entry(minute).or_insert(0) += 1;
    }
    // Ten are expected in each.
    assert!(nodes_by_minute.values().all(|nodes| *nodes < 30));
    // No node waits until the renewal is urgent.
    let short = life(Span::days(10));
    let late = Rotation {
        windows: vec![cron("0 0 9 1 *", 168)],
        ..rotation
    };
    for node in 0..100 {
        let name = format!("cp-{node}");
        let at = ISSUED + Span::days(7);
        let Wait::Until { turn, .. } = in_window(&short, &late, &name, at) else {
            panic!()
        };
        assert!(turn <= ISSUED + Span::days(9), "{turn}");
    }
}

#[test]
fn opens_and_closes_windows() {
    for (window, open, closed) in [
        (
            weekly("Sun 02:00-05:00"),
            vec![
                datetime!(2026-08-30 02:00 UTC),
                datetime!(2026-08-30 04:59:59 UTC),
            ],
            vec![
                datetime!(2026-08-30 01:59:59 UTC),
                datetime!(2026-08-30 05:00 UTC),
                datetime!(2026-08-31 03:00 UTC),
            ],
        ),
        (
            weekly("Mon-Fri 22:00-04:00"),
            // Until Saturday, but not until Monday.
            vec![
                datetime!(2026-08-28 22:00 UTC),
                datetime!(2026-08-29 03:59 UTC),
            ],
            vec![
                datetime!(2026-08-29 22:00 UTC),
                datetime!(2026-08-31 03:00 UTC),
            ],
        ),
        (
            weekly("Sat,Sun 00:00-24:00"),
            vec![
                datetime!(2026-08-29 00:00 UTC),
                datetime!(2026-08-30 23:59:59 UTC),
            ],
            vec![
                datetime!(2026-08-28 23:59:59 UTC),
                datetime!(2026-08-31 00:00 UTC),
            ],
        ),
        (
            weekly("daily 02:00-04:00"),
            vec![datetime!(2026-08-26 03:00 UTC)],
            vec![datetime!(2026-08-26 04:00 UTC)],
        ),
        (
            weekly("fri-MON 10:00-11:00"),
            vec![
                datetime!(2026-08-28 10:00 UTC),
                datetime!(2026-08-31 10:30 UTC),
            ],
            vec![datetime!(2026-09-01 10:30 UTC)],
        ),
        (
            cron("0 2 * * 0", 3),
            vec![datetime!(2026-08-30 04:00 UTC)],
            vec![datetime!(2026-08-30 05:00 UTC)],
        ),
        (
            // The window is longer than the time between two openings.
            cron("0 */2 * * *", 5),
            vec![datetime!(2026-08-30 01:59 UTC)],
            vec![],
        ),
        (
            // The first of the month and every Monday.
            cron("30 1 1 * mon", 1),
            vec![
                datetime!(2026-09-01 02:00 UTC),
                datetime!(2026-08-31 01:30 UTC),
            ],
            vec![datetime!(2026-09-02 02:00 UTC)],
        ),
        (
            cron("0 2 29 2 *", 1),
            vec![datetime!(2028-02-29 02:30 UTC)],
            vec![datetime!(2027-03-01 02:30 UTC)],
        ),
        (
            cron("0-30/10,45 0 * jan-MAR,12 7", 1),
            vec![
                datetime!(2026-01-04 00:59 UTC),
                datetime!(2026-12-06 01:44 UTC),
            ],
            vec![
                datetime!(2026-04-05 00:30 UTC),
                datetime!(2026-01-04 01:45 UTC),
            ],
        ),
    ] {
        for time in open {
            assert!(window.is_open(time), "{window} at {time}");
        }
        for time in closed {
            assert!(!window.is_open(time), "{window} at {time}");
        }
    }
}

#[test]
fn finds_leap_day_after_eight_years() {
    let window = cron("0 2 29 2 *", 1);
    let next = |from| window.next(from).unwrap();
    assert_eq!(
        next(datetime!(2026-08-30 00:00 UTC)),
        datetime!(2028-02-29 02:00 UTC)
    );
    assert_eq!(
        next(datetime!(2096-03-01 00:00 UTC)),
        datetime!(2104-02-29 02:00 UTC)
    );
}

#[test]
fn reports_faults_of_windows() {
    for (text, want) in [
        ("", "\"\" does not contain days and times"),
        ("Sun", "\"Sun\" does not contain days and times"),
        ("Sunday 02:00-05:00", "\"Sunday\" is not a list of weekdays"),
        (
            "Sun,,Mon 02:00-05:00",
            "\"Sun,,Mon\" is not a list of weekdays",
        ),
        ("Sun 2:00-5:00", "\"2:00-5:00\" is not a time range"),
        ("Sun 02:00", "\"02:00\" is not a time range"),
        ("Sun 24:00-02:00", "\"24:00-02:00\" is not a time range"),
        ("Sun 02:00-24:01", "\"02:00-24:01\" is not a time range"),
        ("Sun 02:00-02:00", "\"Sun 02:00-02:00\" has zero length"),
    ] {
        assert_eq!(Window::weekly(text).unwrap_err().message, want);
    }
    for (text, want) in [
        ("@daily", "\"@daily\" has 1 fields, not five"),
        ("60 * * * *", "\"60\" is not a valid minute from 0 to 59"),
        ("* 5-2 * * *", "\"5-2\" is not a valid hour from 0 to 23"),
        (
            "* * 0 * *",
            "\"0\" is not a valid day of the month from 1 to 31",
        ),
        ("* * * Foo *", "\"Foo\" is not a valid month from 1 to 12"),
        (
            "* * * * 8",
            "\"8\" is not a valid day of the week from 0 to 7",
        ),
        ("*/0 * * * *", "\"*/0\" is not a valid minute from 0 to 59"),
        (
            "0 2 30 2 *",
            "\"0 2 30 2 *\" never occurs: no such date exists",
        ),
    ] {
        let hour = Duration::from_secs(3600);
        assert_eq!(Window::cron(text, hour).unwrap_err().message, want);
    }
    let short = Window::cron("0 2 * * *", Duration::from_secs(1)).unwrap_err();
    assert_eq!(short.message, "a window of 1s is not between 1m and 168h");
}

#[test]
fn spreads_ten_thousand_nodes_evenly_and_permanently() {
    let rotation = Rotation::default();
    let life = life(Span::hours(8760));
    let mut buckets = [0_u32; 20];
    for node in 0..10_000 {
        let name = format!("cp-{node}.example.com");
        let (at, why) = due_at(&life, &rotation, &name);
        assert_eq!((at, why), due_at(&life, &rotation, &name));
        let share = (at - ISSUED) / life.length();
        assert!((0.56..=0.66).contains(&share), "{share}");
        buckets[(((0.66 - share) / 0.1 * 20.0) as usize).min(19)] += 1;
    }
    // 500 are expected in each; five standard deviations are 109.
    for count in buckets {
        assert!((391..=609).contains(&count), "{buckets:?}");
    }
    // Never below half, however large the jitter.
    let all = Rotation {
        jitter: Percent(100),
        ..rotation
    };
    for node in 0..100 {
        let (at, _) = due_at(&life, &all, &format!("cp-{node}"));
        assert!((at - ISSUED) / life.length() >= 0.5);
    }
}

#[test]
fn shortens_retry_interval_towards_expiry() {
    let year = life(Span::hours(8760));
    let wait = |now| retry_at(Some(&year), "cp-1", now) - now;
    let end = year.not_after;
    for (now, least, most) in [
        (ISSUED, Span::HOUR, Span::hours(2)),
        (end - Span::hours(8), Span::HOUR, Span::hours(2)),
        (end - Span::HOUR, Span::seconds(450), Span::minutes(15)),
        (end - Span::MINUTE, Span::seconds(7), Span::seconds(15)),
        (end + Span::HOUR, Span::seconds(2), Span::seconds(5)),
    ] {
        assert!(
            wait(now) >= least && wait(now) <= most,
            "{now}: {}",
            wait(now)
        );
    }
    assert_eq!(
        retry_at(None, "cp-1", ISSUED),
        retry_at(Some(&year), "cp-1", end) - (end - ISSUED)
    );
}

#[test]
fn delays_renewal_after_renewal() {
    assert_eq!(life(Span::hours(8760)).cools_until(), ISSUED + Span::HOUR);
    assert_eq!(life(Span::minutes(4)).cools_until(), ISSUED + Span::MINUTE);
}

#[test]
fn parses_percents() {
    assert_eq!(Percent::parse("66%"), Percent::new(66));
    assert_eq!(Percent::parse("100 %"), Percent::new(100));
    for text in ["66", "101%", "-1%", "+5%", "6.5%", "%", "66%%"] {
        assert_eq!(Percent::parse(text), None, "{text}");
    }
}
