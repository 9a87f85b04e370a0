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
fn is_about_to_end_within_a_day_or_a_fiftieth_of_the_lifetime() {
    for (length, last_chance) in [
        (Span::days(365), Span::days(1)),
        (Span::days(25), Span::hours(12)),
        (Span::hours(1), Span::seconds(72)),
    ] {
        let life = life(length);
        let from = life.not_after - last_chance;
        assert!(life.is_about_to_end(from), "{length}");
        assert!(!life.is_about_to_end(from - Span::SECOND), "{length}");
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
        let Due { at, rule } = due_at(&life(length), &rotation, "cp-1");
        // A negative lifetime ends before it begins.
        let at = at.max(ISSUED);
        assert_eq!((at, rule.to_string().as_str()), (wanted, reason), "{what}");
    }
}

#[test]
fn compares_due_time_with_now() {
    let (life, rotation) = (life(Span::hours(8760)), rotation());
    let due_rule = due_at(&life, &rotation, "cp-1");
    let at = due_rule.at;
    assert_eq!(
        due_rule.to_string(),
        "due since 2026-08-29T21:36:00Z: 66 % of its life of 8760h is over"
    );
    let second = Span::SECOND;
    assert_eq!(
        due(&life, &rotation, "cp-1", at - second),
        DueState::Later { at }
    );
    let now = |urgent| DueState::Now {
        due: due_rule.clone(),
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
    let DueState::Waits { at, due: since } = due(&year, &sunday, "cp-1", now) else {
        panic!()
    };
    assert!((opens..opens + Span::minutes(90)).contains(&at), "{at}");
    assert_eq!(since.at, datetime!(2026-08-29 21:36 UTC));
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
        why.to_string(),
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
fn finds_date_on_a_weekday_after_decades() {
    // A step restricts the day of the month, and `*` in front of it means that both fields must match.
    let sunday = cron("0 10 */56 3 7", 1);
    assert_eq!(
        sunday.next(datetime!(2026-06-01 12:00 UTC)),
        Some(datetime!(2037-03-01 10:00 UTC))
    );
    let leap_day = cron("0 2 */28 2 1", 1);
    let monday = leap_day.next(datetime!(2072-03-01 00:00 UTC)).unwrap();
    assert_eq!(monday.weekday(), time::Weekday::Monday);
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
        let since = due_at(&life, &rotation, &name);
        assert_eq!(since, due_at(&life, &rotation, &name));
        let at = since.at;
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
        let at = due_at(&life, &all, &format!("cp-{node}")).at;
        assert!((at - ISSUED) / life.length() >= 0.5);
    }
}

#[test]
fn halves_retry_period_towards_expiry() {
    let year = life(Span::hours(8760));
    let end = year.not_after;
    for (from, period) in [
        (ISSUED, Span::hours(3)),
        (end - Span::hours(12), Span::hours(3)),
        (end - Span::hours(6), Span::minutes(90)),
        (end - Span::hours(3), Span::minutes(45)),
        (end - Span::seconds(90), Span::SECOND * 10_800.0 / 512.0),
    ] {
        let first = retry_at(Some(&year), "cp-1", from);
        let second = retry_at(Some(&year), "cp-1", first);
        let (wait, between) = (first - from, second - first);
        assert!(wait <= period + MIN_RETRY_PERIOD && wait >= MIN_RETRY_PERIOD / 2);
        assert!((between - period).abs() < Span::SECOND, "{from}: {between}");
    }
    for life in [None, Some(&year)] {
        let now = end + Span::HOUR;
        let wait = retry_at(life, "cp-1", now) - now;
        assert!(
            wait >= MIN_RETRY_PERIOD / 2 && wait < MIN_RETRY_PERIOD * 2,
            "{wait}"
        );
    }
}

#[test]
fn delays_renewal_after_renewal() {
    assert_eq!(life(Span::hours(8760)).cools_until(), ISSUED + Span::HOUR);
    assert_eq!(life(Span::minutes(4)).cools_until(), ISSUED + Span::MINUTE);
}

#[test]
fn spreads_retries_over_period() {
    let life = life(Span::hours(24));
    let mut tenths = [0; 10];
    for node in 0..1000 {
        let wait = retry_at(Some(&life), &format!("cp-{node}"), ISSUED) - ISSUED;
        tenths[(wait / Span::hours(3) * 10.0) as usize % 10] += 1;
    }
    assert!(
        tenths.iter().all(|count| (95..=105).contains(count)),
        "{tenths:?}"
    );
}

#[test]
fn spreads_consecutive_numbers_more_evenly_than_at_random() {
    for first in [0, 1, 99, 123_456, 4_000_000_000] {
        for suffix in ["", ".example.com", "-eu1x"] {
            let mut tenths = [0; 10];
            for node in first..first + 100_u64 {
                let name = format!("cp-{node}{suffix}");
                tenths[(place_of(&name, Purpose::Due) * 10.0) as usize] += 1;
            }
            let expected = if suffix == "-eu1x" { 1..=25 } else { 8..=12 };
            let is_even = tenths.iter().all(|count| expected.contains(count));
            assert!(is_even, "{first} {suffix}: {tenths:?}");
        }
    }
}

#[test]
fn takes_last_number_of_host_name() {
    for (name, expected) in [
        ("cp-7.zone2.example.com", ("cp-.zone2.example.com", 7)),
        ("rack12-cp007", ("rack12-cp", 7)),
        ("eu1a", ("eua", 1)),
        ("zentrale-ä3ß", ("zentrale-äß", 3)),
        ("cp", ("cp", 0)),
        ("cp.zone2", ("cp.zone2", 0)),
        ("42", ("", 42)),
        ("", ("", 0)),
        ("cp-12345678901", ("cp-12", 345_678_901)),
    ] {
        let (rest, number) = without_last_number(name);
        assert_eq!((rest.as_str(), number), expected, "{name}");
    }
}

#[test]
fn due_reason_is_the_configured_rule_if_both_rules_agree() {
    let life = life(Span::hours(100));
    let floor = Duration::from_secs(10 * 3600);
    for (renew_at, expected) in [
        (RenewAt::Before(floor), "it ends within 10h"),
        (
            RenewAt::Share(Percent(90)),
            "90 % of its life of 100h is over",
        ),
    ] {
        let rotation = Rotation {
            renew_at,
            min_remaining: floor,
            ..rotation()
        };
        let Due { at, rule } = due_at(&life, &rotation, "cp-1");
        assert_eq!(at - ISSUED, Span::hours(90));
        assert_eq!(rule.to_string(), expected);
    }
}

#[test]
fn half_of_life_is_reached_by_the_configured_share() {
    let rotation = Rotation {
        renew_at: RenewAt::Share(Percent(50)),
        ..rotation()
    };
    let Due { at, rule } = due_at(&life(Span::hours(100)), &rotation, "cp-1");
    assert_eq!(at - ISSUED, Span::hours(50));
    assert_eq!(rule.to_string(), "50 % of its life of 100h is over");
}

#[test]
fn does_not_wait_for_window_that_opens_when_renewal_becomes_urgent() {
    let life = life(Span::hours(100));
    let urgent = life.urgent_from(&rotation());
    let window = |at: OffsetDateTime| Rotation {
        windows: vec![cron(
            &format!(
                "{} {} {} {} *",
                at.minute(),
                at.hour(),
                at.day(),
                u8::from(at.month())
            ),
            1,
        )],
        ..rotation()
    };
    let wait = |at| in_window(&life, &window(at), "cp-1", ISSUED);
    assert!(matches!(wait(urgent), Wait::No(Some(_))));
    assert!(matches!(wait(urgent - Span::MINUTE), Wait::Until { .. }));
}

#[test]
fn writes_lengths_below_an_hour_to_the_second() {
    for (seconds, expected) in [
        (-1, "0s"),
        (59, "59s"),
        (3599, "59m59s"),
        (3600, "1h"),
        (3629, "1h"),
        (3630, "1h1m"),
    ] {
        assert_eq!(
            length_in_words(Span::seconds(seconds)),
            expected,
            "{seconds}"
        );
    }
}

#[test]
fn displays_values_as_configured() {
    let two_days = Duration::from_secs(48 * 3600);
    assert_eq!(RenewAt::Share(Percent(66)).to_string(), "66%");
    assert_eq!(RenewAt::Before(two_days).to_string(), "48h");
    assert_eq!(weekly("Sun 02:00-05:00").to_string(), "Sun 02:00-05:00");
    assert_eq!(weekly("Sun 02:00-05:00").as_cron(), None);
    let window = cron("0 2 * * 0", 48);
    assert_eq!(window.to_string(), "0 2 * * 0 for 48h");
    assert_eq!(window.as_cron(), Some(("0 2 * * 0", two_days)));
}

#[test]
fn sunday_is_day_0_and_7() {
    let from = datetime!(2026-08-26 00:00 UTC);
    let sunday = Some(datetime!(2026-08-30 02:00 UTC));
    for days in ["0", "7", "0,7", "sun"] {
        assert_eq!(
            cron(&format!("0 2 * * {days}"), 1).next(from),
            sunday,
            "{days}"
        );
    }
    for days in ["Sun", "Sun,Sun", "Sun,Sun-Sun"] {
        assert_eq!(
            weekly(&format!("{days} 02:00-03:00")).next(from),
            sunday,
            "{days}"
        );
    }
}

#[test]
fn parses_percents() {
    assert_eq!(Percent::parse("66%"), Percent::new(66));
    assert_eq!(Percent::parse("100 %"), Percent::new(100));
    for text in ["66", "101%", "-1%", "+5%", "6.5%", "%", "66%%"] {
        assert_eq!(Percent::parse(text), None, "{text}");
    }
}
