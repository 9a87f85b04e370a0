//! Randomness that spreads the requests of many nodes.

/// Returns a number that is uniform in [0, 1).
pub(crate) fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0),
        Err(_) => 1.0,
    }
}
