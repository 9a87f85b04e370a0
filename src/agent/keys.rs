//! Generates keys. Those of RSA are generated on one thread per core, so the event loop is never blocked by the search
//! for primes; an elliptic key takes less time than the start of a thread.

use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Failure;
use crate::store::Slot;
use crate::x509::{KeyAlgorithm, KeyError, PrivateKey, self_test};

/// A key that was generated, or the failure to generate it.
pub(super) struct GeneratedKey {
    pub(super) slot: Slot,
    pub(super) algorithm: KeyAlgorithm,
    pub(super) took: Duration,
    pub(super) key: Result<PrivateKey, KeyError>,
}

impl GeneratedKey {
    pub(super) fn require(self) -> Result<PrivateKey, Failure> {
        self.key.map_err(|error| {
            Failure::pending(format!("no key for {}", self.slot))
                .caused_by(error)
                .advise("run again")
        })
    }
}

/// The keys of a run: each slot keeps the key that it has, or gets one new key.
#[derive(Default)]
pub(super) struct RunKeys {
    /// Keys being generated.
    batches: Vec<UnboundedReceiver<GeneratedKey>>,
    /// Slots that have a key, or get one.
    slots: BTreeSet<Slot>,
}

impl RunKeys {
    /// Starts to generate a key for every slot that has none.
    pub(super) fn start(
        &mut self,
        jobs: impl IntoIterator<Item = (Slot, KeyAlgorithm)>,
    ) -> Result<(), Failure> {
        let jobs = jobs.into_iter();
        let jobs: Vec<_> = jobs.filter(|(slot, _)| self.slots.insert(*slot)).collect();
        if !jobs.is_empty() {
            require_self_test()?;
            self.batches.push(start(jobs));
        }
        Ok(())
    }

    /// Records that a slot has a key.
    pub(super) fn keep(&mut self, slot: Slot) {
        self.slots.insert(slot);
    }

    /// Waits for the next generated key; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<GeneratedKey> {
        poll_fn(|context| {
            let mut is_pending = false;
            for batch in &mut self.batches {
                match batch.poll_recv(context) {
                    Poll::Ready(Some(made)) => return Poll::Ready(Some(made)),
                    Poll::Ready(None) => {}
                    Poll::Pending => is_pending = true,
                }
            }
            if is_pending {
                Poll::Pending
            } else {
                Poll::Ready(None)
            }
        })
        .await
    }
}

/// Tests random source, key generation and signatures, once in a process.
pub(crate) fn require_self_test() -> Result<(), Failure> {
    static PASSED: AtomicBool = AtomicBool::new(false);
    if PASSED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let began = Instant::now();
    self_test().map_err(|error| {
        Failure::pending("the cryptographic self-test failed")
            .caused_by(error)
            .advise("keys of this machine cannot be trusted: examine its random source (journalctl -k) and processor")
    })?;
    if !PASSED.swap(true, Ordering::Relaxed) {
        let took = format!("{:.1?}", began.elapsed());
        tracing::info!(
            took,
            "self-test passed: random source, key generation, signature"
        );
    }
    Ok(())
}

/// Starts to generate one key for each job. The keys arrive in order of completion; the channel is closed after the last.
fn start(jobs: Vec<(Slot, KeyAlgorithm)>) -> UnboundedReceiver<GeneratedKey> {
    let (sender, receiver) = unbounded_channel();
    let (slow, quick): (Vec<_>, Vec<_>) = jobs
        .into_iter()
        .partition(|(_, algorithm)| algorithm.is_rsa());
    for (slot, algorithm) in quick {
        // The receiver exists.
        let _ = sender.send(generate(slot, algorithm));
    }
    if slow.is_empty() {
        return receiver;
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(slow.len());
    let queue = Arc::new(Mutex::new(VecDeque::from(slow)));
    let work = move || {
        while let Some((slot, algorithm)) = next(&queue) {
            if sender.send(generate(slot, algorithm)).is_err() {
                return;
            }
        }
    };
    let spawn = |_| {
        thread::Builder::new()
            .name("key".to_owned())
            .spawn(work.clone())
            .ok()
    };
    if (0..threads).filter_map(spawn).count() == 0 {
        // No thread can be started, so this one generates the keys.
        work();
    }
    receiver
}

fn generate(slot: Slot, algorithm: KeyAlgorithm) -> GeneratedKey {
    let began = Instant::now();
    let key = PrivateKey::generate(algorithm);
    GeneratedKey {
        slot,
        algorithm,
        took: began.elapsed(),
        key,
    }
}

fn next(queue: &Mutex<VecDeque<(Slot, KeyAlgorithm)>>) -> Option<(Slot, KeyAlgorithm)> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}
