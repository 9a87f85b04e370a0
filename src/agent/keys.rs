//! Key generation on plain threads, as many as there are cores, so that the edge never waits for a prime.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::store::Slot;
use crate::x509::{KeyAlgorithm, KeyError, PrivateKey};

/// A key that a thread has finished.
pub(super) struct Made {
    pub(super) slot: Slot,
    pub(super) algorithm: KeyAlgorithm,
    pub(super) took: Duration,
    pub(super) key: Result<PrivateKey, KeyError>,
}

/// Starts making one key for each job; they arrive as they are finished, and the channel ends with the last.
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
        // Not one thread to be had: this one does the work.
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
