//! Moments that nobody chose.

use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bench::Bench;

/// xorshift64. What a moment meets depends on the machine too, so that no seed would bring it back.
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

    /// Lets up to so much time go by.
    pub(crate) fn wait(&mut self, within: Duration) {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let share = (self.state >> 40) as f64 / (1_u64 << 24) as f64;
        let wait = within.mul_f64(share);
        self.bench
            .say(&format!("power cut {} ms on", wait.as_millis()));
        sleep(wait);
    }
}
