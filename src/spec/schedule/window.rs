//! Maintenance windows: their opening times and length, from weekday ranges or from cron's five fields.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use time::{Date, Duration as Span, OffsetDateTime, Time};

use super::span;
use crate::yaml::format_duration;

/// Longest time between two dates of a window, in years: that between two 29 Februaries on the same day of the week, around
/// a year such as 2100.
const MAX_YEARS_BETWEEN_OPENINGS: i64 = 40;
const DAY: Duration = Duration::from_secs(24 * 3600);
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const WEEKLY_FIX: &str =
    "write days and UTC times, as in \"Sun 02:00-05:00\" or \"Mon-Fri 22:00-04:00\"";
const CRON_FIX: &str =
    "write minute, hour, day of month, month and day of week in UTC, as in \"0 2 * * 0\"";

/// The reason why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowError {
    /// The problem.
    pub message: String,
    /// The correction.
    pub fix: &'static str,
}

fn fault(message: String, fix: &'static str) -> WindowError {
    WindowError { message, fix }
}

/// Recurring periods in which renewals may happen, in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    written: Written,
    opens: Openings,
    length: Span,
}

/// The window as the configuration contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Written {
    Weekly(String),
    Cron { cron: String, duration: Duration },
}

impl Window {
    /// Parses days and times: `Sun 02:00-05:00`, `Mon-Fri 22:00-04:00` (into the next day), `Sat,Sun 00:00-24:00`,
    /// `daily 02:00-04:00`.
    ///
    /// # Errors
    /// Every text of another form, and a window of zero length.
    pub fn weekly(text: &str) -> Result<Self, WindowError> {
        let bad = |what: String| fault(what, WEEKLY_FIX);
        let Some((days, times)) = text.trim().split_once(char::is_whitespace) else {
            return Err(bad(format!("{text:?} does not contain days and times")));
        };
        let weekdays = match days.to_ascii_lowercase().as_str() {
            "daily" => 0b111_1111,
            _ => {
                weekdays(days).ok_or_else(|| bad(format!("{days:?} is not a list of weekdays")))?
            }
        };
        let (from, to) = times
            .trim()
            .split_once('-')
            .and_then(|(from, to)| Some((minutes(from.trim())?, minutes(to.trim())?)))
            .filter(|(from, _)| *from < 24 * 60)
            .ok_or_else(|| bad(format!("{:?} is not a time range", times.trim())))?;
        let length = match to.cmp(&from) {
            std::cmp::Ordering::Equal => {
                return Err(fault(
                    format!("{text:?} has zero length"),
                    "write 00:00-24:00 for a whole day",
                ));
            }
            std::cmp::Ordering::Greater => to - from,
            // The window ends on the next day.
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

    /// Parses the opening times from cron's five fields, like Vixie's cron; each window lasts for `duration`.
    ///
    /// # Errors
    /// Every text of another form, and times that never occur.
    pub fn cron(cron: &str, duration: Duration) -> Result<Self, WindowError> {
        if !(Duration::from_secs(60)..=7 * DAY).contains(&duration) {
            return Err(fault(
                format!(
                    "a window of {} is not between 1m and 168h",
                    format_duration(duration)
                ),
                "set for how long it is open, as in duration: 3h",
            ));
        }
        let opens = Openings::parse(cron)?;
        // The start does not matter, as the calendar repeats.
        if opens.next(OffsetDateTime::UNIX_EPOCH).is_none() {
            return Err(fault(
                format!("{cron:?} never occurs: no such date exists"),
                CRON_FIX,
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

    /// Returns true if the window is open.
    pub(crate) fn is_open(&self, now: OffsetDateTime) -> bool {
        let after = now
            .checked_sub(self.length)
            .and_then(|before| before.checked_add(Span::NANOSECOND));
        after
            .and_then(|after| self.opens.next(after))
            .is_some_and(|opened| opened <= now)
    }

    /// Returns the next opening time, from `now` on; `None` for a date that never occurs.
    pub fn next(&self, now: OffsetDateTime) -> Option<OffsetDateTime> {
        self.opens.next(now)
    }

    /// Returns the time for which it is open.
    pub(super) fn length(&self) -> Span {
        self.length
    }

    /// Returns the cron fields and the duration, if the configuration contains these.
    pub(crate) fn as_cron(&self) -> Option<(&str, Duration)> {
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

/// The minutes at which a window opens, with one bit for each value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Openings {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// True if both day fields are restricted: a day that matches either of them matches (crontab(5)).
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

    fn parse(cron: &str) -> Result<Self, WindowError> {
        let fields: Vec<&str> = cron.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(fault(
                format!("{cron:?} has {} fields, not five", fields.len()),
                CRON_FIX,
            ));
        };
        let read = |what: &str, text: &str, range: RangeInclusive<u8>, names: &[&str]| {
            parse_field(text, range.clone(), names).ok_or_else(|| {
                fault(
                    format!(
                        "{text:?} is not a valid {what} from {} to {}",
                        range.start(),
                        range.end()
                    ),
                    CRON_FIX,
                )
            })
        };
        let weekdays = read("day of the week", weekday, 0..=7, &DAYS)?;
        Ok(Openings {
            minutes: read("minute", minute, 0..=59, &[])?,
            hours: read("hour", hour, 0..=23, &[])?,
            days: read("day of the month", day, 1..=31, &[])?,
            months: read("month", month, 1..=12, &MONTHS)?,
            // 0 and 7 both mean Sunday.
            weekdays: (weekdays | weekdays >> 7) & Openings::EVERY_MINUTE.weekdays,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
        })
    }

    fn next(&self, from: OffsetDateTime) -> Option<OffsetDateTime> {
        let from = from.to_offset(time::UtcOffset::UTC);
        let mut date = from.date();
        let last = date.checked_add(Span::days(MAX_YEARS_BETWEEN_OPENINGS * 366))?;
        while date <= last {
            if self.is_on(date) {
                let today = self.times().map(|time| date.with_time(time).assume_utc());
                if let Some(found) = today.into_iter().find(|opening| *opening >= from) {
                    return Some(found);
                }
            }
            date = date.next_day()?;
        }
        None
    }

    fn is_on(&self, date: Date) -> bool {
        let by_day = has(self.days, date.day());
        let by_weekday = has(self.weekdays, date.weekday().number_days_from_sunday());
        let is_day = if self.either_day {
            by_day || by_weekday
        } else {
            by_day && by_weekday
        };
        is_day && has(self.months, u8::from(date.month()))
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

/// Parses one field of cron into bits: `*`, numbers and names, ranges, steps, and lists of these.
fn parse_field(text: &str, range: RangeInclusive<u8>, names: &[&str]) -> Option<u64> {
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
                // A single value with a step means the range to the highest value.
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

/// Parses `Mon`, `Mon-Fri`, `Sat,Sun` or `Fri-Mon` into bits.
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

/// Parses `HH:MM` up to 24:00 into minutes.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, max: u16| {
        let fits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>()
            .ok()
            .filter(|number| fits && *number <= max)
    };
    let total = number(hours, 24)? * 60 + number(minutes, 59)?;
    (total <= 24 * 60).then_some(total)
}
