//! What happens to the fleet: the clusters, and the faults of signers and nodes, all from the seed.
//!
//! Pure. Times are since the start of the simulation. To add an event: a variant of [`NodeEvent`] or [`SignerFault`], its
//! share in the functions below, its effect in `node.rs` or `signer.rs`, and the times during which it excuses an expiry in
//! [`Plan::unavailable`].

use std::ops::Range;
use std::time::Duration;

use nodepki::kube::names::Authority;

use crate::chance::Chance;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);
/// Time that a daemon may need after an obstacle is removed: two intervals between attempts, and a refused one.
const RECOVERY: Duration = Duration::from_secs(2 * 3600);

/// A period of a fault.
pub(crate) type Period = Range<Duration>;

/// Size of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) nodes: usize,
    pub(crate) length: Duration,
}

impl Scale {
    /// Returns the size for a seed: every 100th is a whole fleet, and the others are small parts of one.
    pub(crate) fn of(seed: u64) -> Scale {
        match seed % 100 {
            0 => Scale {
                nodes: 50,
                length: DAY * 3 * 365,
            },
            _ => Scale {
                nodes: 4,
                length: DAY * 2 * 365,
            },
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) length: Duration,
    pub(crate) clusters: Vec<ClusterPlan>,
    pub(crate) nodes: Vec<NodePlan>,
}

#[derive(Clone, Debug)]
pub(crate) struct ClusterPlan {
    pub(crate) name: String,
    pub(crate) nodes: Range<usize>,
    /// Lifetime of the certificates.
    pub(crate) lifetime: Duration,
    /// The signer recognizes a repeated request.
    pub(crate) adopts: bool,
    /// Renewals happen in a weekly window.
    pub(crate) has_window: bool,
    /// Renewals keep the key.
    pub(crate) keeps_keys: bool,
    pub(crate) faults: Vec<(Period, SignerFault, Option<Authority>)>,
    /// The CA that is changed, and when.
    pub(crate) change: Option<(Authority, Duration)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignerFault {
    /// No connection.
    Down,
    /// An answer takes longer than a step waits.
    Slow,
    /// The certificate is issued, and the connection is lost.
    LosesAnswers,
    /// Each request waits this many hours for an approval.
    Queues(u64),
    Denies,
    Lies(Lie),
}

/// A wrong certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    OtherKey,
    OtherAuthority,
    OtherName,
    /// Valid for a twentieth of the requested time, which is accepted: signers may grant less.
    ShortLife,
    /// Expires before it can be renewed.
    MomentaryLife,
    Expired,
    /// A CA certificate.
    CaBit,
    /// The certificate that the signer has issued for this name before.
    Repeated,
    /// Issued by an intermediate that is not sent.
    WithoutIntermediate,
    /// The second half of the file is missing.
    Damaged,
}

#[derive(Clone, Debug)]
pub(crate) struct NodePlan {
    pub(crate) name: String,
    pub(crate) cluster: usize,
    pub(crate) boot: Duration,
    /// In order of time.
    pub(crate) events: Vec<(Duration, NodeEvent)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeEvent {
    /// The node is off for this time.
    Off(Duration),
    /// The process is killed at the await point with this number.
    Kill(u32),
    /// The clock is wrong by these seconds for this time.
    ClockStep(i64, Duration),
    /// The node reaches no signer for this time.
    Partition(Duration),
    /// The state directory cannot be written for this time.
    StoreFault(Duration),
    /// A person damages the files of the certificate with this number.
    Damage(Damage, usize),
    /// A person moves `ca.crt` away, and back after this time.
    CaAbsent(Duration),
    Reconfigure(Reconfiguration),
    /// The settings cannot be read for this time.
    FaultySettings(Duration),
    /// A person renews all certificates, whatever the daemon does.
    ManualRenewal,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    Removed,
    Truncated,
    /// The key of another certificate.
    OtherKey,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reconfiguration {
    /// One more name of the API server.
    Name,
    /// Another algorithm from the next renewal on.
    Algorithm,
    /// Another algorithm at once.
    AlgorithmNow,
}

impl Plan {
    pub(crate) fn of(seed: u64, scale: Scale) -> Plan {
        let chance = Chance::new(seed);
        let mut plan = Plan {
            length: scale.length,
            clusters: Vec::new(),
            nodes: Vec::new(),
        };
        while plan.nodes.len() < scale.nodes {
            let number = plan.clusters.len();
            let mut chance = chance.of(("cluster", number));
            let size = chance.choose(&[1, 3, 3, 5, 7]);
            let first = plan.nodes.len();
            let nodes = first..(first + size).min(scale.nodes);
            let cluster = cluster(number, nodes.clone(), &mut chance, scale.length);
            for index in nodes {
                let mut chance = chance.of(("node", index));
                plan.nodes
                    .push(node(index, number, &cluster, &mut chance, scale.length));
            }
            plan.clusters.push(cluster);
        }
        plan
    }

    /// Returns the periods in which a node cannot be expected to renew a certificate of an authority.
    fn unavailable(&self, node: usize, authority: Authority) -> Vec<Period> {
        let plan = &self.nodes[node];
        let cluster = &self.clusters[plan.cluster];
        let mut periods = vec![Duration::ZERO..plan.boot];
        for (period, fault, only) in &cluster.faults {
            if only.is_none_or(|only| only == authority) {
                let queue = match fault {
                    SignerFault::Queues(hours) => HOUR * *hours as u32,
                    _ => Duration::ZERO,
                };
                periods.push(period.start..period.end + queue);
            }
        }
        for (at, event) in &plan.events {
            let lasts = match event {
                NodeEvent::Off(lasts)
                | NodeEvent::Partition(lasts)
                | NodeEvent::StoreFault(lasts)
                | NodeEvent::CaAbsent(lasts)
                | NodeEvent::FaultySettings(lasts) => *lasts,
                // A certificate that was issued while the clock was ahead is dated in the future, and nothing is renewed
                // until then, or until the certificate is valid for a day. After a backward step the clock is distrusted
                // for an hour.
                NodeEvent::ClockStep(by, lasts) => {
                    *lasts + Duration::from_secs(by.max(&0).unsigned_abs()).min(DAY)
                }
                _ => continue,
            };
            periods.push(*at..*at + lasts);
        }
        periods.sort_by_key(|period| period.start);
        periods
    }

    /// Returns the longest time in a row within `range` in which a node could have renewed a certificate.
    pub(crate) fn longest_chance(
        &self,
        node: usize,
        authority: Authority,
        range: Range<Duration>,
    ) -> Duration {
        let mut longest = Duration::ZERO;
        let mut free_from = range.start;
        for period in self.unavailable(node, authority) {
            longest = longest.max(period.start.min(range.end).saturating_sub(free_from));
            free_from = free_from.max(period.end + RECOVERY);
        }
        longest.max(range.end.saturating_sub(free_from))
    }
}

/// Returns a length between these two, short ones more often.
fn between(chance: &mut Chance, least: Duration, most: Duration) -> Duration {
    let ratio = most.as_secs_f64() / least.as_secs_f64();
    least.mul_f64(ratio.powf(chance.fraction()))
}

fn cluster(
    number: usize,
    nodes: Range<usize>,
    chance: &mut Chance,
    length: Duration,
) -> ClusterPlan {
    let lifetime = DAY * chance.choose(&[365, 365, 365, 180, 90]);
    let mut faults = Vec::new();
    let mut at = DAY * 20;
    while at < length {
        at += between(chance, DAY * 3, DAY * 150);
        let lasts = between(chance, HOUR, DAY * 20);
        let lie = chance.choose(&[
            Lie::OtherKey,
            Lie::OtherAuthority,
            Lie::OtherName,
            Lie::ShortLife,
            Lie::MomentaryLife,
            Lie::Expired,
            Lie::CaBit,
            Lie::Repeated,
            Lie::WithoutIntermediate,
            Lie::Damaged,
        ]);
        // A node polls a queued request every few minutes, which is most of the cost of a seed.
        let hours = between(chance, HOUR, HOUR * 48).as_secs() / 3600;
        let fault = chance.choose(&[
            SignerFault::Down,
            SignerFault::Down,
            SignerFault::Slow,
            SignerFault::LosesAnswers,
            SignerFault::Queues(hours),
            SignerFault::Queues(hours),
            SignerFault::Denies,
            SignerFault::Lies(lie),
            SignerFault::Lies(lie),
        ]);
        let only = chance.choose(&[
            None,
            None,
            Some(Authority::Ca),
            Some(Authority::EtcdCa),
            Some(Authority::FrontProxyCa),
        ]);
        faults.push((at..at + lasts, fault, only));
        at += lasts;
    }
    let authority = chance.choose(&Authority::ALL);
    let change = length.mul_f64(0.2 + 0.5 * chance.fraction());
    ClusterPlan {
        name: format!("cluster{number}"),
        nodes,
        lifetime,
        adopts: chance.below(2) == 0,
        has_window: chance.below(4) == 0,
        keeps_keys: chance.below(5) == 0,
        faults,
        change: (chance.below(2) == 0).then_some((authority, change)),
    }
}

fn node(
    index: usize,
    number: usize,
    cluster: &ClusterPlan,
    chance: &mut Chance,
    length: Duration,
) -> NodePlan {
    let mut events = Vec::new();
    let mut at = DAY * 21;
    loop {
        at += between(chance, HOUR * 12, DAY * 250);
        if at >= length {
            break;
        }
        let event = event(chance);
        events.push((at, event));
        // The next event follows the end of this one.
        at += match event {
            NodeEvent::Off(lasts)
            | NodeEvent::Partition(lasts)
            | NodeEvent::StoreFault(lasts)
            | NodeEvent::CaAbsent(lasts)
            | NodeEvent::FaultySettings(lasts)
            | NodeEvent::ClockStep(_, lasts) => lasts,
            NodeEvent::Damage(..) => HOUR * 4,
            _ => Duration::ZERO,
        };
    }
    NodePlan {
        name: format!("cp{index}.{}", cluster.name),
        cluster: number,
        boot: DAY.mul_f64(20.0 * chance.fraction()),
        events,
    }
}

fn event(chance: &mut Chance) -> NodeEvent {
    let damage = chance.choose(&[Damage::Removed, Damage::Truncated, Damage::OtherKey]);
    let slot = chance.below(12) as usize;
    match chance.below(14) {
        0 => NodeEvent::Off(between(chance, HOUR / 6, DAY * 40)),
        1 => NodeEvent::ClockStep(
            between(chance, HOUR / 60, DAY * 500).as_secs() as i64,
            between(chance, HOUR / 6, DAY * 3),
        ),
        2 => NodeEvent::ClockStep(
            -(between(chance, HOUR / 60, DAY * 300).as_secs() as i64),
            between(chance, HOUR / 6, DAY * 3),
        ),
        3 => NodeEvent::Partition(between(chance, HOUR, DAY * 10)),
        4 => NodeEvent::StoreFault(between(chance, HOUR, DAY * 3)),
        5..=6 => NodeEvent::Damage(damage, slot),
        7 => NodeEvent::CaAbsent(between(chance, HOUR, DAY)),
        8 => NodeEvent::Reconfigure(Reconfiguration::Name),
        9 => NodeEvent::Reconfigure(
            chance.choose(&[Reconfiguration::Algorithm, Reconfiguration::AlgorithmNow]),
        ),
        10 => NodeEvent::FaultySettings(between(chance, HOUR, DAY)),
        11 => NodeEvent::ManualRenewal,
        _ => NodeEvent::Kill(chance.below(12) as u32),
    }
}
