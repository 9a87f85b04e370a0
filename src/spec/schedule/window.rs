//! Maintenance windows: when they open and for how long, from weekday ranges or from cron's five fields.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use time::{Date, Duration as Span, OffsetDateTime, Time};

use super::span;
use crate::yaml::format_duration;

/// From one 29 February to the next there may be eight years, when a century is between them.
const YEARS_AHEAD: i64 = 8;
const DAY: Duration = Duration::from_secs(24 * 3600);
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const HOW_TO_WRITE: &str =
    "write days and UTC times, as in \"Sun 02:00-05:00\" or \"Mon-Fri 22:00-04:00\"";
const HOW_TO_WRITE_CRON: &str =
    "write minute, hour, day of month, month and day of week in UTC, as in \"0 2 * * 0\"";

/// What is wrong with a text, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub fix: &'static str,
}

fn fault(message: String, fix: &'static str) -> Fault {
    Fault { message, fix }
}

/// Recurring times in which renewals may happen. UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    written: Written,
    opens: Openings,
    length: Span,
}

/// How it stood in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Written {
    Weekly(String),
    Cron { cron: String, duration: Duration },
}

impl Window {
    /// Reads days and times: `Sun 02:00-05:00`, `Mon-Fri 22:00-04:00` (into the next day), `Sat,Sun 00:00-24:00`,
    /// `daily 02:00-04:00`.
    ///
    /// # Errors
    /// What cannot be understood.
    pub fn weekly(text: &str) -> Result<Self, Fault> {
        let bad = |what: String| fault(what, HOW_TO_WRITE);
        let Some((days, times)) = text.trim().split_once(char::is_whitespace) else {
            return Err(bad(format!("{text:?} is not days and times")));
        };
        let weekdays = match days.to_ascii_lowercase().as_str() {
            "daily" => 0b111_1111,
            _ => weekdays(days).ok_or_else(|| bad(format!("{days:?} are no days of the week")))?,
        };
        let (from, to) = times
            .trim()
            .split_once('-')
            .and_then(|(from, to)| Some((minutes(from.trim())?, minutes(to.trim())?)))
            .filter(|(from, _)| *from < 24 * 60)
            .ok_or_else(|| {
                bad(format!(
                    "{:?} is not from one time of day to another",
                    times.trim()
                ))
            })?;
        let length = match to.cmp(&from) {
            std::cmp::Ordering::Equal => {
                return Err(fault(
                    format!("{text:?} closes when it opens"),
                    "write 00:00-24:00 for a whole day",
                ));
            }
            std::cmp::Ordering::Greater => to - from,
            // Into the next day.
            std::cmp::Ordering::Less => 24 * 60 + to - from,
        };
        Ok(Window {
            written: Written::Weekly(text.to_owned()),
            opens: Openings {
                minutes: 1 << (from % 60),
                hours: 1 << (from / 60),
                weekdays,
                ..Openings::EVERY_MINUTE
            },
            length: Span::minutes(length.into()),
        })
    }

    /// Opens by cron's five fields, as Vixie's cron reads them, and stays open for `duration`.
    ///
    /// # Errors
    /// What cannot be understood, and what never opens.
    pub fn cron(cron: &str, duration: Duration) -> Result<Self, Fault> {
        if !(Duration::from_secs(60)..=7 * DAY).contains(&duration) {
            return Err(fault(
                format!(
                    "a window of {} is not between 1m and 168h",
                    format_duration(duration)
                ),
                "say for how long it is open, as in duration: 3h",
            ));
        }
        let opens = Openings::parse(cron)?;
        // Any date will do: the calendar repeats.
        if opens.next(OffsetDateTime::UNIX_EPOCH).is_none() {
            return Err(fault(
                format!("{cron:?} never comes: there is no such date"),
                HOW_TO_WRITE_CRON,
            ));
        }
        Ok(Window {
            written: Written::Cron {
                cron: cron.to_owned(),
                duration,
            },
            opens,
            length: span(duration),
        })
    }

    /// Whether it is open.
    pub fn is_open(&self, now: OffsetDateTime) -> bool {
        let after = now
            .checked_sub(self.length)
            .and_then(|before| before.checked_add(Span::NANOSECOND));
        after
            .and_then(|after| self.opens.next(after))
            .is_some_and(|opened| opened <= now)
    }

    /// When it opens next, from `now` on; `None` for a date that no coming year has.
    pub fn next(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        self.opens.next(now)
    }

    /// For how long it is open.
    pub(super) fn length(&self) -> Span {
        self.length
    }

    /// The cron fields and how long it is open, where it was written so.
    pub fn as_cron(&self) -> Option<(&str, Duration)> {
        match &self.written {
            Written::Weekly(_) => None,
            Written::Cron { cron, duration } => Some((cron, *duration)),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.written {
            Written::Weekly(text) => f.write_str(text),
            Written::Cron { cron, duration } => {
                write!(f, "{cron} for {}", format_duration(*duration))
            }
        }
    }
}

/// The minutes at which something begins, one bit for each value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Openings {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both day fields name days: either will do (crontab(5)).
    either_day: bool,
}

impl Openings {
    const EVERY_MINUTE: Openings = Openings {
        minutes: (1 << 60) - 1,
        hours: (1 << 24) - 1,
        days: ((1 << 31) - 1) << 1,
        months: ((1 << 12) - 1) << 1,
        weekdays: (1 << 7) - 1,
        either_day: false,
    };

    fn parse(cron: &str) -> Result<Self, Fault> {
        let fields: Vec<&str> = cron.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(fault(
                format!("{cron:?} has {} fields, not five", fields.len()),
                HOW_TO_WRITE_CRON,
            ));
        };
        let read = |what: &str, text: &str, range: RangeInclusive<u8>, names: &[&str]| {
            field(text, range.clone(), names).ok_or_else(|| {
                fault(
                    format!(
                        "{text:?} is no {what}, which is from {} to {}",
                        range.start(),
                        range.end()
                    ),
                    HOW_TO_WRITE_CRON,
                )
            })
        };
        let weekdays = read("day of the week", weekday, 0..=7, &DAYS)?;
        Ok(Openings {
            minutes: read("minute", minute, 0..=59, &[])?,
            hours: read("hour", hour, 0..=23, &[])?,
            days: read("day of the month", day, 1..=31, &[])?,
            months: read("month", month, 1..=12, &MONTHS)?,
            // Sunday is 0 and 7.
            weekdays: (weekdays | weekdays >> 7) & Openings::EVERY_MINUTE.weekdays,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        })
    }

    fn next(&self, from: OffsetDateTime) -> Option<OffsetDateTime> {
        let from = from.to_offset(time::UtcOffset::UTC);
        let mut date = from.date();
        let last = date.checked_add(Span::days(YEARS_AHEAD * 366))?;
        while date <= last {
            if self.on(date) {
                let today = self.times().map(|time| date.with_time(time).assume_utc());
                if let Some(found) = today.into_iter().find(|opening| *opening >= from) {
                    return Some(found);
                }
            }
            date = date.next_day()?;
        }
        None
    }

    fn on(&self, date: Date) -> bool {
        let by_day = has(self.days, date.day());
        let by_weekday = has(self.weekdays, date.weekday().number_days_from_sunday());
        let day = match self.either_day {
            true => by_day || by_weekday,
            false => by_day && by_weekday,
        };
        day && has(self.months, u8::from(date.month()))
    }

    fn times(&self) -> impl Iterator<Item = Time> {
        let (hours, minutes) = (self.hours, self.minutes);
        (0..24)
            .filter(move |hour| has(hours, *hour))
            .flat_map(move |hour| {
                (0..60)
                    .filter(move |minute| has(minutes, *minute))
                    .filter_map(move |minute| Time::from_hms(hour, minute, 0).ok())
            })
    }
}

fn has(bits: u64, value: u8) -> bool {
    bits >> value & 1 == 1
}

/// One field of cron: `*`, numbers and names, ranges, steps, lists of them.
fn field(text: &str, range: RangeInclusive<u8>, names: &[&str]) -> Option<u64> {
    let (low, high) = (*range.start(), *range.end());
    // Names count from the lowest value: Sun is 0, Jan is 1.
    let value = |text: &str| {
        let named = (low..)
            .zip(names)
            .find(|(_, name)| name.eq_ignore_ascii_case(text));
        let number = || {
            text.parse()
                .ok()
                .filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
        };
        named.map(|(value, _)| value).or_else(number)
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (values, step) = match part.split_once('/') {
            Some((values, step)) => (values, Some(step.parse::<u8>().ok()?)),
            None => (part, None),
        };
        let (from, to) = match values.split_once('-') {
            _ if values == "*" => (low, high),
            Some((from, to)) => (value(from)?, value(to)?),
            None => {
                let from = value(values)?;
                // A step from one value on goes to the end.
                (from, if step.is_some() { high } else { from })
            }
        };
        if from > to || !range.contains(&from) || !range.contains(&to) || step == Some(0) {
            return None;
        }
        for value in (from..=to).step_by(step.unwrap_or(1).into()) {
            bits |= 1 << value;
        }
    }
    Some(bits)
}

/// `Mon`, `Mon-Fri`, `Sat,Sun`, `Fri-Mon`.
fn weekdays(text: &str) -> Option<u64> {
    let day = |text: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(text));
    let mut bits = 0;
    for part in text.split(',') {
        let (from, to) = match part.split_once('-') {
            Some((from, to)) => (day(from)?, day(to)?),
            None => (day(part)?, day(part)?),
        };
        let count = (to + 7 - from) % 7;
        bits |= (0..=count).fold(0, |bits, step| bits | 1 << ((from + step) % 7));
    }
    Some(bits)
}

/// `HH:MM` in minutes, to 24:00.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, most: u16| {
        let fits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>()
            .ok()
            .filter(|number| fits && *number <= most)
    };
    let total = number(hours, 24)? * 60 + number(minutes, 59)?;
    (total <= 24 * 60).then_some(total)
}
