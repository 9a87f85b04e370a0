//! Generates keys on one thread per core, so that the event loop is never blocked by the search for primes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::store::Slot;
use crate::x509::{KeyAlgorithm, KeyError, PrivateKey};

/// A generated key.
pub(super) struct Made {
    pub(super) slot: Slot,
    pub(super) algorithm: KeyAlgorithm,
    pub(super) took: Duration,
    pub(super) key: Result<PrivateKey, KeyError>,
}

/// Starts to generate one key for each job. The keys arrive in order of completion; the channel is closed after the last.
pub(super) fn start(jobs: Vec<(Slot, KeyAlgorithm)>) -> UnboundedReceiver<Made> {
    let (sender, receiver) = unbounded_channel();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(jobs.len());
    let queue = Arc::new(Mutex::new(VecDeque::from(jobs)));
    let work = move || {
        while let Some((slot, algorithm)) = next(&queue) {
            let began = Instant::now();
            let key = PrivateKey::generate(algorithm);
            let made = Made {
                slot,
                algorithm,
                took: began.elapsed(),
                key,
            };
            if sender.send(made).is_err() {
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
        // No thread can be started, so that this one generates the keys.
        work();
    }
    receiver
}

fn next(queue: &Mutex<VecDeque<(Slot, KeyAlgorithm)>>) -> Option<(Slot, KeyAlgorithm)> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}
