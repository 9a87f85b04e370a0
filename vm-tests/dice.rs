//! Random moments for power cuts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bench::Bench;
use crate::time::let_pass;

/// A xorshift64 generator. The effect of a moment also depends on the machine, so a fixed seed would not repeat it.
pub(crate) struct Dice<'a> {
    bench: &'a Bench,
    state: u64,
}

impl<'a> Dice<'a> {
    pub(crate) fn new(bench: &'a Bench) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let state = u64::from(now.subsec_nanos()) << 32 | 1;
        Dice { bench, state }
    }

    /// Waits for a random time below the limit.
    pub(crate) fn wait(&mut self, within: Duration) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let share = (self.state >> 40) as f64 / (1_u64 << 24) as f64;
        let wait = within.mul_f64(share);
        self.bench
            .say(&format!("power cut after {} ms", wait.as_millis()));
        let_pass(wait);
    }
}
