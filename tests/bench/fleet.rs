//! A fleet of control-plane nodes in virtual time, driven by the code of a real one: `schedule` and the daemon's agenda.
//!
//! This module contains the fleet, its signer and the counters, and no rule about when a node acts. A request is a run of
//! one node, which requests all its certificates at once. The test `fleet` compares every [`Case`] with its goal, and the
//! benchmark `standing_by` prints them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use nodepki::daemon::wake::{Agenda, NextAction, OpenIssue, StepResult};
use nodepki::spec::schedule::{self, CertLife, DueState, Percent, Rotation, Window};
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

const NODES: u32 = 10_000;
/// All nodes boot within this time, evenly spread.
const BOOT_PERIOD: Duration = Duration::HOUR;
/// A Friday.
const START: OffsetDateTime = datetime!(2027-01-01 00:00 UTC);
const DAY: Duration = Duration::DAY;
const YEAR: Duration = Duration::days(365);

/// Total number of requests, the number in the busiest interval, and the mean per interval.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) requests: usize,
    pub(super) peak: usize,
    pub(super) mean: f64,
}

impl Load {
    pub(super) fn ratio(&self) -> f64 {
        self.peak as f64 / self.mean
    }
}

/// A situation of the fleet and the load that its signer observes.
pub(super) struct Case {
    pub(super) what: &'static str,
    /// Name of the interval.
    pub(super) per: &'static str,
    pub(super) load: Load,
    /// Largest accepted peak, in multiples of the mean.
    pub(super) goal: Option<f64>,
}

/// Simulates all cases.
pub(super) fn cases() -> Vec<Case> {
    let minute = |what, load| Case {
        what,
        per: "minute",
        load,
        goal: Some(1.5),
    };
    let mut cases = Vec::new();

    let daily = Fleet::of(DAY);
    let all = daily.run(10 * DAY);
    // The slowest node's first renewal precedes the fastest node's second.
    let first: Vec<_> = all.iter().copied().filter(|it| it.at < DAY).collect();
    let wave = first[0].at..first[first.len() - 1].at;
    let calm = load(&first, &wave, Duration::MINUTE);
    let mean = calm.mean;
    // The mean if the same requests were evenly spread between two renewals.
    let interval = (wave.start + wave.end) / 2;
    let spread = Load {
        mean: calm.requests as f64 / (interval / Duration::MINUTE),
        ..calm
    };
    cases.push(minute("24 h, first renewals", calm));
    cases.push(Case {
        goal: None,
        ..minute("24 h, first renewals, mean from one to the next", spread)
    });
    cases.push(Case {
        // Eleven requests in a minute on average, so chance decides.
        goal: Some(3.0),
        ..minute(
            "24 h, a week later",
            load(&all, &(7 * DAY..10 * DAY), Duration::MINUTE),
        )
    });

    let first = Fleet::of(YEAR).run(YEAR * 0.7);
    let wave = first[0].at..first[first.len() - 1].at;
    cases.push(Case {
        per: "hour",
        ..minute("1 y, first renewals", load(&first, &wave, Duration::HOUR))
    });

    // An hour without a signer, starting at several times of the wave; the largest load is used.
    let (mut during, mut after) = (Vec::new(), Vec::new());
    for half_hours in 0..6 {
        let begin = daily.first_due() + Duration::minutes(30) * half_hours;
        let outage = begin..begin + Duration::HOUR;
        let fleet = Fleet {
            outage: Some(outage.clone()),
            ..daily.clone()
        };
        let requests = fleet.run(DAY);
        let of = |range: Range<Duration>| Load {
            mean,
            ..load(&requests, &range, Duration::MINUTE)
        };
        during.push(of(outage.clone()));
        after.push(of(outage.end..DAY));
    }
    for (what, loads) in [
        ("24 h, an hour's outage, during it", during),
        ("24 h, an hour's outage, after it", after),
    ] {
        cases.push(Case {
            goal: Some(2.0),
            ..minute(what, worst(loads))
        });
    }

    let window = "Sun 02:00-05:00";
    let fleet = Fleet {
        rotation: Rotation {
            jitter: Percent::ZERO,
            windows: vec![Window::weekly(window).unwrap()],
            ..Rotation::default()
        },
        ..Fleet::of(YEAR)
    };
    let requests = fleet.run(YEAR * 0.7);
    let opened = requests[0].at;
    let half = opened..opened + Duration::minutes(90);
    cases.push(minute(
        "1 y, all due before one window of 3 h, mean of its first half",
        load(&requests, &half, Duration::MINUTE),
    ));
    cases
}

fn worst(loads: Vec<Load>) -> Load {
    loads
        .into_iter()
        .max_by(|one, other| one.ratio().total_cmp(&other.ratio()))
        .unwrap()
}

fn load(requests: &[Request], range: &Range<Duration>, piece: Duration) -> Load {
    let mut pieces = vec![0; ((range.end - range.start) / piece) as usize + 1];
    for request in requests {
        if range.contains(&request.at) || request.at == range.end {
            pieces[((request.at - range.start) / piece) as usize] += 1;
        }
    }
    let count = pieces.iter().sum::<usize>();
    Load {
        requests: count,
        peak: pieces.into_iter().max().unwrap(),
        mean: count as f64 / ((range.end - range.start) / piece),
    }
}

/// A request as the signer receives it.
#[derive(Clone, Copy)]
struct Request {
    /// Time since the first boot.
    at: Duration,
}

#[derive(Clone)]
struct Fleet {
    lifetime: Duration,
    rotation: Rotation,
    /// Period in which the signer does not answer.
    outage: Option<Range<Duration>>,
}

struct Node {
    name: String,
    life: CertLife,
    agenda: Agenda,
}

impl Fleet {
    fn of(lifetime: Duration) -> Self {
        Fleet {
            lifetime,
            rotation: Rotation::default(),
            outage: None,
        }
    }

    fn boot(&self, number: u32) -> Node {
        let name = format!("cp-{number}.example.com");
        let now = START + BOOT_PERIOD * number / NODES;
        Node {
            life: self.life(now),
            agenda: Agenda::new(&name, None, now, ran(now)),
            name,
        }
    }

    fn life(&self, issued_at: OffsetDateTime) -> CertLife {
        CertLife {
            issued_at,
            not_after: issued_at + self.lifetime,
        }
    }

    fn first_due(&self) -> Duration {
        let nodes = (0..NODES).map(|number| self.boot(number));
        let due = nodes.map(|node| schedule::due_at(&node.life, &self.rotation, &node.name).at);
        due.min().unwrap() - START
    }

    /// All requests in order, up to a time after the first boot.
    fn run(&self, until: Duration) -> Vec<Request> {
        let mut nodes: Vec<Node> = (0..NODES).map(|number| self.boot(number)).collect();
        let mut alarms: BinaryHeap<_> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| Reverse((node.life.issued_at, index)))
            .collect();
        let mut requests = Vec::new();
        while let Some(Reverse((now, index))) = alarms.pop() {
            if now > START + until {
                break;
            }
            let node = &mut nodes[index];
            loop {
                match node.agenda.next(now, ran(now)) {
                    NextAction::Step(_) => {
                        let ended = self.step(node, now, &mut requests);
                        node.agenda.stepped(ended, now);
                    }
                    NextAction::Sleep(alarm) => {
                        alarms.push(Reverse((alarm.unwrap(), index)));
                        break;
                    }
                    NextAction::Lists => panic!("there are none"),
                }
            }
        }
        requests
    }

    fn step(
        &self,
        node: &mut Node,
        now: OffsetDateTime,
        requests: &mut Vec<Request>,
    ) -> StepResult {
        let (mut next, mut open) = (None, None);
        if let DueState::Now { .. } = schedule::due(&node.life, &self.rotation, &node.name, now) {
            assert!(now < node.life.not_after, "{} is late", node.name);
            let at = now - START;
            requests.push(Request { at });
            if self.outage.as_ref().is_some_and(|it| it.contains(&at)) {
                next = Some(schedule::retry_at(Some(&node.life), &node.name, now));
                open = Some(OpenIssue::Trouble {
                    what: "the signer is unreachable".to_owned(),
                    person: false,
                });
            } else {
                node.life = self.life(now);
            }
        }
        let next = next.unwrap_or_else(|| {
            match schedule::due(&node.life, &self.rotation, &node.name, now) {
                DueState::Later { at } | DueState::Waits { at, .. } => at,
                DueState::Now { .. } => panic!("what was just renewed is due"),
            }
        });
        StepResult {
            next: Some(next),
            ends: Some(node.life.not_after),
            open,
        }
    }
}

fn ran(now: OffsetDateTime) -> std::time::Duration {
    (now - START).unsigned_abs()
}
