//! The requests that are not finished, and when each is processed next. Decides without I/O; the time is an argument.
//!
//! An entry contains no content of the object, which is read again before it is judged: memory depends on the number of
//! unfinished requests only, whatever their size is.
//!
//! Users take turns, so thousands of requests of one node do not delay those of the others.
//!
//! A request whose object is deleted or decided by another user is processed once more: what the signer and this node keep
//! about it must be removed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::agent::request::next::Attempts;
use crate::kube::csr_object::{CsrObject, KubeletCertificate};
use crate::kube::kubeadm::Host;
use crate::kube::names::NODE_USER_PREFIX;
use crate::kube::pod_request::PodRequest;
use crate::kubelets::RequestedIdentity;

/// How long a finished request is remembered: an event about its former state may still arrive.
const FINISHED_MEMORY: Duration = Duration::from_secs(60);
/// Number of topics that are remembered while requests are processed. A Node may report other addresses all the time.
const MAX_RECENT_TOPICS: usize = 10_000;

/// The unfinished requests, by UID: an object may be replaced by another one of its name.
#[derive(Default)]
pub(super) struct RequestQueue {
    entries: BTreeMap<String, Entry>,
    /// UIDs to be processed. An entry may have left the state `Ready` meanwhile.
    ready: ReadyQueue,
    /// The waiting entries by what ends their wait, oldest first.
    topics: BTreeMap<WakeTopic, BTreeMap<u64, String>>,
    /// The waiting entries by the time that ends their wait.
    due: BTreeSet<(Instant, String)>,
    /// Number of entries for each certificate.
    unfinished: BTreeMap<KubeletCertificate, usize>,
    /// Number of entries so far.
    arrivals: u64,
    /// Number of wakes so far, and the last one of each topic that was woken while requests were processed: a decision may be
    /// older.
    wakes: u64,
    recent: BTreeMap<WakeTopic, u64>,
    /// Number of the last wake whose topic is not remembered.
    forgotten: u64,
    /// The requests that are being processed, with the number of wakes at the start.
    running: HashMap<String, u64>,
    finished: VecDeque<(Instant, String)>,
    finished_uids: HashSet<String>,
}

/// UIDs by the user that sent the request: each user's oldest first, one of each user in turn.
#[derive(Default)]
struct ReadyQueue {
    by_user: BTreeMap<String, VecDeque<String>>,
    /// The users with a UID, in the order of their turns.
    turns: VecDeque<String>,
}

impl ReadyQueue {
    fn push(&mut self, user: &str, uid: &str) {
        if let Some(uids) = self.by_user.get_mut(user) {
            uids.push_back(uid.to_owned());
            return;
        }
        let uids = VecDeque::from([uid.to_owned()]);
        self.by_user.insert(user.to_owned(), uids);
        self.turns.push_back(user.to_owned());
    }

    fn pop(&mut self) -> Option<String> {
        let user = self.turns.pop_front()?;
        let uids = self.by_user.get_mut(&user)?;
        let uid = uids.pop_front();
        if uids.is_empty() {
            drop(self.by_user.remove(&user))
        } else {
            self.turns.push_back(user)
        }
        uid
    }
}

/// The present state of a request.
pub(super) struct ObservedRequest<'a> {
    pub(super) uid: &'a str,
    /// With the namespace, if the object has one: `NAMESPACE/NAME`.
    pub(super) name: Cow<'a, str>,
    /// The user that takes turns with others: the requester, or for a pod the node that the request names.
    pub(super) user: Cow<'a, str>,
    version: &'a str,
    pub(super) certificate: KubeletCertificate,
    /// Issued, denied or failed.
    is_final: bool,
}

impl<'a> From<&'a CsrObject> for ObservedRequest<'a> {
    fn from(request: &'a CsrObject) -> Self {
        ObservedRequest {
            uid: &request.uid,
            name: Cow::Borrowed(&request.name),
            user: Cow::Borrowed(&request.requester.username),
            version: &request.resource_version,
            certificate: request.certificate,
            is_final: request.is_issued
                || request.condition("Denied").is_some()
                || request.condition("Failed").is_some(),
        }
    }
}

impl<'a> From<&'a PodRequest> for ObservedRequest<'a> {
    fn from(request: &'a PodRequest) -> Self {
        ObservedRequest {
            uid: &request.uid,
            name: Cow::Owned(format!("{}/{}", request.namespace, request.name)),
            user: Cow::Owned(format!("{NODE_USER_PREFIX}{}", request.node.name)),
            version: &request.resource_version,
            certificate: KubeletCertificate::Pod,
            is_final: request.is_final,
        }
    }
}

struct Entry {
    /// Number of the entry, in the order of arrival.
    arrival: u64,
    name: String,
    /// The user that sent the request; empty if only a record exists.
    user: String,
    version: String,
    certificate: KubeletCertificate,
    attempts: Attempts,
    state: QueueState,
    /// The last reason for a wait that was reported.
    reported: Option<&'static str>,
    /// Number of attempts in a row that the API server refused.
    refusals: u32,
    /// Whether the list under way contains it.
    is_listed: bool,
}

impl Entry {
    fn new(name: &str, certificate: KubeletCertificate) -> Entry {
        Entry {
            arrival: 0,
            name: name.to_owned(),
            user: String::new(),
            version: String::new(),
            certificate,
            attempts: Attempts::default(),
            state: QueueState::Ready,
            reported: None,
            refusals: 0,
            is_listed: true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum QueueState {
    Ready,
    /// Being processed; `again` if it changed meanwhile.
    Running {
        again: bool,
    },
    Waiting(RequestWait),
}

/// What ends a wait; a change of the object always does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestWait {
    /// This time.
    pub(super) until: Option<Instant>,
    /// One of these events.
    pub(super) topics: Vec<WakeTopic>,
}

/// An event that ends waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WakeTopic {
    /// The Node of this name changed, or the Nodes with this address.
    Node(Host),
    /// A request for the same certificate ended.
    Repeated(RequestedIdentity),
    /// This user has room for another node.
    Limit(String),
}

/// A request to be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// With the namespace, if the object has one: `NAMESPACE/NAME`.
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) certificate: KubeletCertificate,
    /// Failed calls and polls so far.
    pub(super) attempts: Attempts,
}

/// The result of processing a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WorkResult {
    /// Nothing remains to be done for this object.
    Finished,
    /// Process it again.
    Wait {
        wait: RequestWait,
        attempts: Attempts,
    },
}

impl RequestQueue {
    /// A list of the requests for this certificate begins.
    pub(super) fn listing(&mut self, certificate: KubeletCertificate) {
        let entries = self.entries.values_mut();
        entries
            .filter(|entry| entry.certificate == certificate)
            .for_each(|entry| entry.is_listed = false);
    }

    /// The list is complete: requests that it did not contain were deleted.
    pub(super) fn listed(&mut self, certificate: KubeletCertificate) {
        let entries = self.entries.iter();
        let missing =
            entries.filter(|(_, entry)| entry.certificate == certificate && !entry.is_listed);
        let missing: Vec<String> = missing.map(|(uid, _)| uid.clone()).collect();
        missing.iter().for_each(|uid| self.wake(uid));
    }

    /// Takes in the present state of a request.
    pub(super) fn observe(&mut self, request: ObservedRequest<'_>, now: Instant) {
        self.forget_finished(now);
        if request.is_final || self.finished_uids.contains(request.uid) {
            self.deleted(request.uid);
            return;
        }
        let Some(entry) = self.entries.get_mut(request.uid) else {
            self.add(
                request.uid.to_owned(),
                Entry {
                    user: request.user.into_owned(),
                    version: request.version.to_owned(),
                    ..Entry::new(&request.name, request.certificate)
                },
            );
            return;
        };
        entry.is_listed = true;
        if entry.version != request.version {
            entry.version.clear();
            entry.version.push_str(request.version);
            self.wake(request.uid);
        }
    }

    /// Adds a request of which only a record exists: its object ended while another node was the leader.
    pub(super) fn insert(&mut self, uid: &str, name: &str, certificate: KubeletCertificate) {
        self.add(uid.to_owned(), Entry::new(name, certificate));
    }

    fn add(&mut self, uid: String, mut entry: Entry) {
        self.arrivals += 1;
        entry.arrival = self.arrivals;
        self.ready.push(&entry.user, &uid);
        *self.unfinished.entry(entry.certificate).or_default() += 1;
        self.entries.insert(uid, entry);
    }

    /// Processes a request that was deleted or decided by another user.
    pub(super) fn deleted(&mut self, uid: &str) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.is_listed = true;
            self.wake(uid);
        }
    }

    /// Ends a wait; a request that is being processed is processed again.
    pub(super) fn wake(&mut self, uid: &str) {
        let Some(entry) = self.entries.get_mut(uid) else {
            return;
        };
        match &mut entry.state {
            QueueState::Ready => {}
            QueueState::Running { again } => *again = true,
            QueueState::Waiting(wait) => {
                for topic in &wait.topics {
                    if let Some(waiting) = self.topics.get_mut(topic) {
                        waiting.remove(&entry.arrival);
                        if waiting.is_empty() {
                            self.topics.remove(topic);
                        }
                    }
                }
                if let Some(until) = wait.until {
                    self.due.remove(&(until, uid.to_owned()));
                }
                entry.state = QueueState::Ready;
                self.ready.push(&entry.user, uid);
            }
        }
    }

    /// Processes the requests that wait for this event, at most `limit` of them, the oldest first.
    pub(super) fn wake_waiting(&mut self, topic: WakeTopic, limit: usize) {
        let waiting = self.topics.get(&topic).into_iter().flatten();
        let uids: Vec<String> = waiting.take(limit).map(|(_, uid)| uid.clone()).collect();
        uids.iter().for_each(|uid| self.wake(uid));
        self.wakes += 1;
        if self.running.is_empty() {
            return;
        }
        if self.recent.len() >= MAX_RECENT_TOPICS {
            self.recent.clear();
            self.forgotten = self.wakes - 1;
        }
        self.recent.insert(topic, self.wakes);
    }

    /// Returns true if an event for which the request would wait came while it was processed.
    fn missed(&self, uid: &str, wait: &RequestWait) -> bool {
        let since = self.running.get(uid).copied().unwrap_or(self.wakes);
        let mut topics = wait.topics.iter();
        topics.any(|topic| {
            let last = self.recent.get(topic).copied().unwrap_or_default();
            last.max(self.forgotten) > since
        })
    }

    /// Records that a request is not being processed any more.
    fn stop(&mut self, uid: &str) {
        self.running.remove(uid);
        let first = self.running.values().min().copied();
        let first = first.unwrap_or(self.wakes);
        self.recent.retain(|_, number| *number > first);
    }

    /// Returns the next request to be processed.
    pub(super) fn take(&mut self, now: Instant) -> Option<Work> {
        while let Some((at, uid)) = self.due.first().cloned()
            && at <= now
        {
            self.wake(&uid);
        }
        while let Some(uid) = self.ready.pop() {
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            if entry.state != QueueState::Ready {
                continue;
            }
            entry.state = QueueState::Running { again: false };
            self.running.insert(uid.clone(), self.wakes);
            return Some(Work {
                name: entry.name.clone(),
                uid,
                certificate: entry.certificate,
                attempts: entry.attempts,
            });
        }
        None
    }

    /// Records the result of processing a request.
    pub(super) fn ended(&mut self, work: &Work, result: WorkResult, now: Instant) {
        if result == WorkResult::Finished {
            self.finished.push_back((now, work.uid.clone()));
            self.finished_uids.insert(work.uid.clone());
        }
        // What it waits for may have happened while it was processed.
        if let WorkResult::Wait { wait, .. } = &result
            && self.missed(&work.uid, wait)
        {
            self.wake(&work.uid);
        }
        self.stop(&work.uid);
        let Some(entry) = self.entries.get_mut(&work.uid) else {
            return;
        };
        let is_again = entry.state == QueueState::Running { again: true };
        match result {
            WorkResult::Finished => {
                if let Some(count) = self.unfinished.get_mut(&entry.certificate) {
                    *count = count.saturating_sub(1);
                }
                self.entries.remove(&work.uid);
            }
            WorkResult::Wait { attempts, .. } if is_again => {
                entry.attempts = attempts;
                entry.state = QueueState::Ready;
                self.ready.push(&entry.user, &work.uid);
            }
            WorkResult::Wait { wait, attempts } => {
                for topic in &wait.topics {
                    let waiting = self.topics.entry(topic.clone()).or_default();
                    waiting.insert(entry.arrival, work.uid.clone());
                }
                if let Some(until) = wait.until {
                    self.due.insert((until, work.uid.clone()));
                }
                entry.attempts = attempts;
                entry.state = QueueState::Waiting(wait);
            }
        }
    }

    /// Counts an attempt that the API server refused; returns the number of them in a row.
    pub(super) fn refused(&mut self, work: &Work) -> u32 {
        let Some(entry) = self.entries.get_mut(&work.uid) else {
            return 0;
        };
        entry.refusals = entry.refusals.saturating_add(1);
        entry.refusals
    }

    /// Records an attempt that the API server did not refuse.
    pub(super) fn accepted(&mut self, work: &Work) {
        if let Some(entry) = self.entries.get_mut(&work.uid) {
            entry.refusals = 0;
        }
    }

    /// Returns true if another reason than this was reported last for a request, and remembers this one.
    pub(super) fn is_news(&mut self, work: &Work, reason: &'static str) -> bool {
        match self.entries.get_mut(&work.uid) {
            Some(entry) => entry.reported.replace(reason) != Some(reason),
            None => false,
        }
    }

    /// Forgets the reason that was reported last for a request.
    pub(super) fn forget_report(&mut self, work: &Work) {
        if let Some(entry) = self.entries.get_mut(&work.uid) {
            entry.reported = None;
        }
    }

    /// Returns true for the UID of an unfinished request.
    pub(super) fn contains(&self, uid: &str) -> bool {
        self.entries.contains_key(uid)
    }

    /// Returns the user that sent an unfinished request.
    pub(super) fn user(&self, uid: &str) -> &str {
        self.entries.get(uid).map_or("", |entry| &entry.user)
    }

    /// Returns when the next wait ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the number of unfinished requests for a certificate.
    pub(super) fn unfinished(&self, certificate: KubeletCertificate) -> usize {
        self.unfinished.get(&certificate).copied().unwrap_or(0)
    }

    fn forget_finished(&mut self, now: Instant) {
        while let Some((at, _)) = self.finished.front()
            && now.saturating_duration_since(*at) > FINISHED_MEMORY
            && let Some((_, uid)) = self.finished.pop_front()
        {
            self.finished_uids.remove(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::kube::csr_object::{CsrCondition, CsrRequester};

    const SERVING: KubeletCertificate = KubeletCertificate::Serving;

    fn object(name: &str, version: &str) -> CsrObject {
        CsrObject {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            resource_version: version.to_owned(),
            created: datetime!(2026-06-01 12:00 UTC),
            certificate: SERVING,
            request: Vec::new(),
            usages: Vec::new(),
            expiration: None,
            requester: CsrRequester::default(),
            conditions: Vec::new(),
            is_issued: false,
            excess: None,
        }
    }

    fn node(name: &str) -> WakeTopic {
        WakeTopic::Node(Host::Dns(name.to_owned()))
    }

    fn waits(until: Option<Instant>, topics: &[WakeTopic]) -> WorkResult {
        WorkResult::Wait {
            wait: RequestWait {
                until,
                topics: topics.to_vec(),
            },
            attempts: Attempts {
                failures: 1,
                polls: 0,
            },
        }
    }

    fn names(queue: &mut RequestQueue, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| queue.take(now))
            .map(|work| work.name)
            .collect()
    }

    #[test]
    fn processes_in_order_of_arrival_and_each_once() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        for name in ["b", "a", "b"] {
            queue.observe((&object(name, "1")).into(), now);
        }
        assert_eq!(names(&mut queue, now), ["b", "a"]);
        assert_eq!(queue.unfinished(SERVING), 2);
    }

    #[test]
    fn serves_users_in_turn() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let of = |user: &str, name: &str| {
            let mut object = object(name, "1");
            object.requester.username = user.to_owned();
            object
        };
        for name in ["a1", "a2", "a3", "a4"] {
            queue.observe((&of("a", name)).into(), now);
        }
        assert_eq!(queue.take(now).unwrap().name, "a1");
        for (user, name) in [("b", "b1"), ("c", "c1"), ("b", "b2")] {
            queue.observe((&of(user, name)).into(), now);
        }
        assert_eq!(names(&mut queue, now), ["a2", "b1", "c1", "a3", "b2", "a4"]);
        queue.observe((&of("a", "a5")).into(), now);
        assert_eq!(names(&mut queue, now), ["a5"]);
    }

    #[test]
    fn counts_refusals_in_a_row() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        queue.observe((&object("a", "1")).into(), now);
        let work = queue.take(now).unwrap();
        assert_eq!([queue.refused(&work), queue.refused(&work)], [1, 2]);
        queue.accepted(&work);
        assert_eq!(queue.refused(&work), 1);
        queue.ended(&work, WorkResult::Finished, now);
        assert_eq!(queue.refused(&work), 0);
    }

    #[test]
    fn ignores_late_event_about_finished_request() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        queue.observe((&object("a", "1")).into(), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, WorkResult::Finished, now);
        queue.observe((&object("a", "2")).into(), now);
        assert_eq!(queue.take(now), None);
        // A new object of the same name is another request.
        let mut second = object("a", "3");
        second.uid = "second".to_owned();
        queue.observe((&second).into(), now);
        assert_eq!(queue.take(now).unwrap().uid, "second");
        let later = now + FINISHED_MEMORY * 2;
        queue.observe((&object("b", "4")).into(), later);
        assert!(queue.finished_uids.is_empty());
    }

    #[test]
    fn processes_request_once_more_that_another_user_decided() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        for kind in ["Denied", "Failed", "issued"] {
            let mut done = object(kind, "1");
            queue.observe((&done).into(), now);
            let work = queue.take(now).unwrap();
            queue.ended(&work, waits(None, &[]), now);
            match kind {
                "issued" => done.is_issued = true,
                kind => done.conditions.push(CsrCondition {
                    kind: kind.to_owned(),
                    reason: String::new(),
                    message: String::new(),
                }),
            }
            queue.observe((&done).into(), now);
            let work = queue.take(now).unwrap();
            queue.ended(&work, WorkResult::Finished, now);
            // A list that contains it does not add it.
            queue.observe((&done).into(), now);
        }
        assert_eq!(queue.unfinished(SERVING), 0);
        assert_eq!(queue.take(now), None);
    }

    #[test]
    fn processes_deleted_request_once_more() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let waiting = object("waiting", "1");
        queue.observe((&waiting).into(), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, waits(None, &[]), now);
        queue.deleted(&waiting.uid);
        let work = queue.take(now).unwrap();
        assert_eq!(work.uid, waiting.uid);
        // Deleted while it is processed.
        queue.deleted(&waiting.uid);
        queue.ended(&work, waits(None, &[]), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, WorkResult::Finished, now);
        assert_eq!((queue.take(now), queue.unfinished(SERVING)), (None, 0));
        queue.deleted(&waiting.uid);
        assert_eq!((queue.take(now), queue.unfinished(SERVING)), (None, 0));
    }

    #[test]
    fn processes_replaced_object_and_its_successor() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let first = object("a", "1");
        queue.observe((&first).into(), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, waits(None, &[]), now);
        let mut second = object("a", "2");
        second.uid = "second".to_owned();
        queue.deleted(&first.uid);
        queue.observe((&second).into(), now);
        let uids = std::iter::from_fn(|| queue.take(now)).map(|work| work.uid);
        assert_eq!(uids.collect::<Vec<_>>(), ["uid-a", "second"]);
    }

    #[test]
    fn wait_ends_by_time_node_or_change() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let later = now + Duration::from_secs(5);
        for (name, result) in [
            ("time", waits(Some(later), &[])),
            ("node", waits(None, &[node("w1"), node("w2")])),
            ("change", waits(None, &[])),
            ("other", waits(None, &[node("w3")])),
        ] {
            queue.observe((&object(name, "1")).into(), now);
            let work = queue.take(now).unwrap();
            queue.ended(&work, result, now);
        }
        assert_eq!(names(&mut queue, now), Vec::<String>::new());
        assert_eq!(queue.next_due(), Some(later));
        queue.wake_waiting(node("w2"), usize::MAX);
        assert_eq!(names(&mut queue, now), ["node"]);
        // It does not wait for the other one any more.
        queue.wake_waiting(node("w1"), usize::MAX);
        assert_eq!(names(&mut queue, now), Vec::<String>::new());
        // A list that repeats the same version is not a change.
        queue.observe((&object("change", "1")).into(), now);
        assert_eq!(names(&mut queue, now), Vec::<String>::new());
        queue.observe((&object("change", "2")).into(), now);
        assert_eq!(names(&mut queue, now), ["change"]);
        let work = queue.take(later).unwrap();
        assert_eq!((work.name.as_str(), work.attempts.failures), ("time", 1));
    }

    #[test]
    fn processes_again_what_changed_while_it_was_processed() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        queue.observe((&object("a", "1")).into(), now);
        let work = queue.take(now).unwrap();
        queue.observe((&object("a", "2")).into(), now);
        assert_eq!(queue.take(now), None);
        queue.ended(&work, waits(None, &[]), now);
        assert_eq!(names(&mut queue, now), ["a"]);
    }

    #[test]
    fn list_wakes_what_it_does_not_contain() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let mut client = object("client", "1");
        client.certificate = KubeletCertificate::Client;
        queue.observe((&client).into(), now);
        for name in ["a", "b"] {
            queue.observe((&object(name, "1")).into(), now);
        }
        while let Some(work) = queue.take(now) {
            queue.ended(&work, waits(None, &[]), now);
        }
        queue.listing(SERVING);
        queue.observe((&object("b", "1")).into(), now);
        queue.listed(SERVING);
        assert_eq!(names(&mut queue, now), ["a"]);
        assert_eq!(queue.unfinished(KubeletCertificate::Client), 1);
    }

    #[test]
    fn wakes_oldest_requests_first() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        for name in ["c", "a", "b"] {
            queue.observe((&object(name, "1")).into(), now);
            let work = queue.take(now).unwrap();
            let topics = [WakeTopic::Limit("user".to_owned())];
            queue.ended(&work, waits(None, &topics), now);
        }
        queue.wake_waiting(WakeTopic::Limit("other".to_owned()), 2);
        assert_eq!(names(&mut queue, now), Vec::<String>::new());
        queue.wake_waiting(WakeTopic::Limit("user".to_owned()), 2);
        assert_eq!(names(&mut queue, now), ["c", "a"]);
    }

    #[test]
    fn remembers_limited_number_of_wakes_while_signer_hangs() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        queue.observe((&object("hangs", "1")).into(), now);
        let hanging = queue.take(now).unwrap();
        for _ in 0..2 * MAX_RECENT_TOPICS {
            queue.wake_waiting(node("w2"), usize::MAX);
        }
        assert_eq!(queue.recent.len(), 1);
        queue.observe((&object("a", "1")).into(), now);
        let work = queue.take(now).unwrap();
        for number in 0..2 * MAX_RECENT_TOPICS {
            queue.wake_waiting(node(&format!("w2-{number}")), usize::MAX);
        }
        assert!(queue.recent.len() <= MAX_RECENT_TOPICS);
        // The topic may be one of those that were forgotten.
        queue.ended(&work, waits(None, &[node("w1")]), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, waits(None, &[node("w1")]), now);
        assert_eq!(queue.take(now), None);
        queue.ended(&hanging, WorkResult::Finished, now);
        assert!(queue.recent.is_empty() && queue.running.is_empty());
    }

    #[test]
    fn processes_again_if_awaited_node_changed_meanwhile() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        for (changed, expected) in [("w1", vec!["a"]), ("w2", Vec::new())] {
            queue.observe((&object("a", changed)).into(), now);
            let work = queue.take(now).unwrap();
            queue.wake_waiting(node(changed), usize::MAX);
            queue.ended(&work, waits(None, &[node("w1")]), now);
            assert_eq!(names(&mut queue, now), expected, "{changed}");
            if let Some(entry) = queue.entries.get_mut("uid-a") {
                entry.state = QueueState::Running { again: false };
            }
            queue.ended(&work, WorkResult::Finished, now);
            queue.finished_uids.clear();
        }
        assert!(queue.recent.is_empty() && queue.running.is_empty());
    }
}
