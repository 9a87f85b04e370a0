//! What this process has verified, so it is not verified again.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// Number of results after which the memory is cleared.
const CAPACITY: usize = 4096;

/// Digests of the inputs of successful verifications of one kind.
pub(super) struct Memory(LazyLock<Mutex<HashSet<[u8; 32]>>>);

impl Memory {
    pub(super) const fn new() -> Memory {
        Memory(LazyLock::new(Mutex::default))
    }

    /// Verifies, unless that has succeeded before for the same parts. The result must depend on nothing else.
    pub(super) fn verify_once<E>(
        &self,
        parts: &[&[u8]],
        verify: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let digest = digest(parts);
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(&digest) {
            return Ok(());
        }
        verify()?;
        let mut known = known();
        if known.len() >= CAPACITY {
            known.clear();
        }
        known.insert(digest);
        Ok(())
    }
}

/// Returns a digest of the parts, each with its length.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}
