//! Numbers that depend on the seed and a label only, so no order of events changes them.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A sequence of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Chance(seed)
    }

    /// Returns the sequence of a label.
    pub(crate) fn of(&self, label: impl Hash) -> Chance {
        // Without random keys, unlike a `RandomState`.
        let mut hasher = DefaultHasher::new();
        (self.0, label).hash(&mut hasher);
        Chance(hasher.finish())
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number uniform in [0, 1).
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns one of the values.
    pub(crate) fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
