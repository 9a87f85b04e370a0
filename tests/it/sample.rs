//! Sweeps: one assertion over many cases, such as every failpoint.
//!
//! Each sweep takes its cases from [`sampled`], so `tests/run` can run a part of them. `tests/run unit` runs all
//! of them.

/// Returns the cases that this process runs: all, or with `NODEPKI_TEST_SAMPLE=N` every N-th one.
///
/// Sweeps over the same cases differ in `first`, so together they run most cases in a sample too.
pub(crate) fn sampled<T>(first: usize, cases: impl IntoIterator<Item = T>) -> Vec<T> {
    let step = step();
    let sample: Vec<T> = cases.into_iter().skip(first % step).step_by(step).collect();
    assert!(!sample.is_empty(), "the sample has no case");
    sample
}

/// Returns the distance between two cases of a sample, which is 1 if all cases run.
pub(crate) fn step() -> usize {
    std::env::var("NODEPKI_TEST_SAMPLE").map_or(1, |text| {
        let step = text.parse().ok().filter(|step| *step > 0);
        step.unwrap_or_else(|| panic!("NODEPKI_TEST_SAMPLE={text} is not a positive number"))
    })
}
