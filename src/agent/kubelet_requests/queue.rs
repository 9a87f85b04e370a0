//! The requests that are not finished, and when each is processed next. Decides without I/O; the time is an argument.
//!
//! An entry contains no content of the object, which is read again before it is judged: memory depends on the number of
//! unfinished requests only, whatever their size is.
//!
//! Users take turns, so that thousands of requests of one node do not delay those of the others.
//!
//! A request whose object is deleted or decided by another user is processed once more: what the signer and this node keep
//! about it must be removed.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::agent::request::next::Attempts;
use crate::kube::csr_object::{CsrObject, KubeletCertificate};

/// How long a finished request is remembered: an event about its former state may still arrive.
const FINISHED_MEMORY: Duration = Duration::from_secs(60);

/// The unfinished requests, by UID: an object may be replaced by another one of its name.
#[derive(Default)]
pub(super) struct RequestQueue {
    entries: BTreeMap<String, Entry>,
    /// UIDs to be processed. An entry may have left the state `Ready` meanwhile.
    ready: ReadyQueue,
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
        match uids.is_empty() {
            true => drop(self.by_user.remove(&user)),
            false => self.turns.push_back(user),
        }
        uid
    }
}

struct Entry {
    name: String,
    /// The user that sent the request; empty if only a record exists.
    user: String,
    version: String,
    certificate: KubeletCertificate,
    attempts: Attempts,
    state: QueueState,
    /// The last reason for a wait that was reported.
    reported: Option<&'static str>,
    /// Whether the list under way contains it.
    is_listed: bool,
}

impl Entry {
    fn new(name: &str, certificate: KubeletCertificate) -> Entry {
        Entry {
            name: name.to_owned(),
            user: String::new(),
            version: String::new(),
            certificate,
            attempts: Attempts::default(),
            state: QueueState::Ready,
            reported: None,
            is_listed: true,
        }
    }

    /// Ends a wait; a request that is being processed is processed again.
    fn wake(&mut self, uid: &str, ready: &mut ReadyQueue) {
        match &mut self.state {
            QueueState::Ready => {}
            QueueState::Running { again } => *again = true,
            QueueState::Waiting(_) => {
                self.state = QueueState::Ready;
                ready.push(&self.user, uid);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Ready,
    /// Being processed; `again` if it changed meanwhile.
    Running {
        again: bool,
    },
    Waiting(RequestWait),
}

/// What ends a wait; a change of the object always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestWait {
    /// This time.
    pub(super) until: Option<Instant>,
    /// A change of any Node.
    pub(super) for_nodes: bool,
}

/// A request to be processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) certificate: KubeletCertificate,
    /// Failed calls and polls so far.
    pub(super) attempts: Attempts,
}

/// The result of processing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        for (uid, entry) in &mut self.entries {
            if entry.certificate == certificate && !entry.is_listed {
                entry.wake(uid, &mut self.ready);
            }
        }
    }

    /// Takes in the present state of an object.
    pub(super) fn observe(&mut self, object: &CsrObject, now: Instant) {
        self.forget_finished(now);
        let is_final = object.is_issued
            || object.condition("Denied").is_some()
            || object.condition("Failed").is_some();
        if is_final || self.finished_uids.contains(&object.uid) {
            self.deleted(object);
            return;
        }
        let Some(entry) = self.entries.get_mut(&object.uid) else {
            self.add(
                object.uid.clone(),
                Entry {
                    user: object.requester.username.clone(),
                    version: object.resource_version.clone(),
                    ..Entry::new(&object.name, object.certificate)
                },
            );
            return;
        };
        entry.is_listed = true;
        if entry.version != object.resource_version {
            entry.version.clone_from(&object.resource_version);
            entry.wake(&object.uid, &mut self.ready);
        }
    }

    /// Adds a request of which only a record exists: its object ended while another node was the leader.
    pub(super) fn insert(&mut self, uid: &str, name: &str, certificate: KubeletCertificate) {
        self.add(uid.to_owned(), Entry::new(name, certificate));
    }

    fn add(&mut self, uid: String, entry: Entry) {
        self.ready.push(&entry.user, &uid);
        self.entries.insert(uid, entry);
    }

    /// Processes an object that was deleted or decided by another user.
    pub(super) fn deleted(&mut self, object: &CsrObject) {
        if let Some(entry) = self.entries.get_mut(&object.uid) {
            entry.is_listed = true;
            entry.wake(&object.uid, &mut self.ready);
        }
    }

    /// Processes the requests that wait for a Node.
    pub(super) fn nodes_changed(&mut self) {
        for (uid, entry) in &mut self.entries {
            if let QueueState::Waiting(wait) = entry.state
                && wait.for_nodes
            {
                entry.wake(uid, &mut self.ready);
            }
        }
    }

    /// Returns the next request to be processed.
    pub(super) fn take(&mut self, now: Instant) -> Option<Work> {
        self.wake(now);
        while let Some(uid) = self.ready.pop() {
            let Some(entry) = self.entries.get_mut(&uid) else {
                continue;
            };
            if entry.state != QueueState::Ready {
                continue;
            }
            entry.state = QueueState::Running { again: false };
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
        let Some(entry) = self.entries.get_mut(&work.uid) else {
            return;
        };
        match (result, entry.state) {
            (WorkResult::Finished, _) => {
                self.entries.remove(&work.uid);
            }
            (WorkResult::Wait { attempts, .. }, QueueState::Running { again: true }) => {
                entry.attempts = attempts;
                entry.state = QueueState::Ready;
                self.ready.push(&entry.user, &work.uid);
            }
            (WorkResult::Wait { wait, attempts }, _) => {
                entry.attempts = attempts;
                entry.state = QueueState::Waiting(wait);
            }
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

    /// Returns when the next wait ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = self.entries.values().filter_map(|entry| match entry.state {
            QueueState::Waiting(wait) => wait.until,
            _ => None,
        });
        due.min()
    }

    /// Returns the number of unfinished requests for a certificate.
    pub(super) fn unfinished(&self, certificate: KubeletCertificate) -> usize {
        let entries = self.entries.values();
        entries
            .filter(|entry| entry.certificate == certificate)
            .count()
    }

    fn wake(&mut self, now: Instant) {
        for (uid, entry) in &mut self.entries {
            if let QueueState::Waiting(RequestWait {
                until: Some(until), ..
            }) = entry.state
                && until <= now
            {
                entry.wake(uid, &mut self.ready);
            }
        }
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

    fn waits(until: Option<Instant>, for_nodes: bool) -> WorkResult {
        WorkResult::Wait {
            wait: RequestWait { until, for_nodes },
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
            queue.observe(&object(name, "1"), now);
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
            queue.observe(&of("a", name), now);
        }
        assert_eq!(queue.take(now).unwrap().name, "a1");
        for (user, name) in [("b", "b1"), ("c", "c1"), ("b", "b2")] {
            queue.observe(&of(user, name), now);
        }
        assert_eq!(names(&mut queue, now), ["a2", "b1", "c1", "a3", "b2", "a4"]);
        queue.observe(&of("a", "a5"), now);
        assert_eq!(names(&mut queue, now), ["a5"]);
    }

    #[test]
    fn ignores_late_event_about_finished_request() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        queue.observe(&object("a", "1"), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, WorkResult::Finished, now);
        queue.observe(&object("a", "2"), now);
        assert_eq!(queue.take(now), None);
        // A new object of the same name is another request.
        let mut second = object("a", "3");
        second.uid = "second".to_owned();
        queue.observe(&second, now);
        assert_eq!(queue.take(now).unwrap().uid, "second");
        let later = now + FINISHED_MEMORY * 2;
        queue.observe(&object("b", "4"), later);
        assert!(queue.finished_uids.is_empty());
    }

    #[test]
    fn processes_request_once_more_that_another_user_decided() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        for kind in ["Denied", "Failed", "issued"] {
            let mut done = object(kind, "1");
            queue.observe(&done, now);
            let work = queue.take(now).unwrap();
            queue.ended(&work, waits(None, false), now);
            match kind {
                "issued" => done.is_issued = true,
                kind => done.conditions.push(CsrCondition {
                    kind: kind.to_owned(),
                    reason: String::new(),
                    message: String::new(),
                }),
            }
            queue.observe(&done, now);
            let work = queue.take(now).unwrap();
            queue.ended(&work, WorkResult::Finished, now);
            // A list that contains it does not add it.
            queue.observe(&done, now);
        }
        assert_eq!(queue.unfinished(SERVING), 0);
        assert_eq!(queue.take(now), None);
    }

    #[test]
    fn processes_deleted_request_once_more() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let waiting = object("waiting", "1");
        queue.observe(&waiting, now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, waits(None, false), now);
        queue.deleted(&waiting);
        let work = queue.take(now).unwrap();
        assert_eq!(work.uid, waiting.uid);
        // Deleted while it is processed.
        queue.deleted(&waiting);
        queue.ended(&work, waits(None, false), now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, WorkResult::Finished, now);
        assert_eq!((queue.take(now), queue.unfinished(SERVING)), (None, 0));
        queue.deleted(&waiting);
        assert_eq!((queue.take(now), queue.unfinished(SERVING)), (None, 0));
    }

    #[test]
    fn processes_replaced_object_and_its_successor() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let first = object("a", "1");
        queue.observe(&first, now);
        let work = queue.take(now).unwrap();
        queue.ended(&work, waits(None, false), now);
        let mut second = object("a", "2");
        second.uid = "second".to_owned();
        queue.deleted(&first);
        queue.observe(&second, now);
        let uids = std::iter::from_fn(|| queue.take(now)).map(|work| work.uid);
        assert_eq!(uids.collect::<Vec<_>>(), ["uid-a", "second"]);
    }

    #[test]
    fn wait_ends_by_time_node_or_change() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let later = now + Duration::from_secs(5);
        for (name, result) in [
            ("time", waits(Some(later), false)),
            ("node", waits(None, true)),
            ("change", waits(None, false)),
        ] {
            queue.observe(&object(name, "1"), now);
            let work = queue.take(now).unwrap();
            queue.ended(&work, result, now);
        }
        assert_eq!(names(&mut queue, now), Vec::<String>::new());
        assert_eq!(queue.next_due(), Some(later));
        queue.nodes_changed();
        assert_eq!(names(&mut queue, now), ["node"]);
        // A list that repeats the same version is not a change.
        queue.observe(&object("change", "1"), now);
        assert_eq!(names(&mut queue, now), Vec::<String>::new());
        queue.observe(&object("change", "2"), now);
        assert_eq!(names(&mut queue, now), ["change"]);
        let work = queue.take(later).unwrap();
        assert_eq!((work.name.as_str(), work.attempts.failures), ("time", 1));
    }

    #[test]
    fn processes_again_what_changed_while_it_was_processed() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        queue.observe(&object("a", "1"), now);
        let work = queue.take(now).unwrap();
        queue.observe(&object("a", "2"), now);
        assert_eq!(queue.take(now), None);
        queue.ended(&work, waits(None, false), now);
        assert_eq!(names(&mut queue, now), ["a"]);
    }

    #[test]
    fn list_wakes_what_it_does_not_contain() {
        let (mut queue, now) = (RequestQueue::default(), Instant::now());
        let mut client = object("client", "1");
        client.certificate = KubeletCertificate::Client;
        queue.observe(&client, now);
        for name in ["a", "b"] {
            queue.observe(&object(name, "1"), now);
        }
        while let Some(work) = queue.take(now) {
            queue.ended(&work, waits(None, false), now);
        }
        queue.listing(SERVING);
        queue.observe(&object("b", "1"), now);
        queue.listed(SERVING);
        assert_eq!(names(&mut queue, now), ["a"]);
        assert_eq!(queue.unfinished(KubeletCertificate::Client), 1);
    }
}
