//! Power cuts at each flush of a bootstrap and a renewal, with half of the uncovered writes. The next run succeeds, and all
//! pairs match. A certificate that existed before is the old one or the new one, never a third, and so is its key.

use std::collections::BTreeSet;

use crate::bench::Bench;
use crate::writes::Recording;

pub(crate) fn run(bench: &Bench) {
    let recording = Recording::make(&bench.system().installed("usr/bin/nodepki"));
    // Both states are complete: otherwise the next run would fail.
    let (old, new) = (recording.sums(1), recording.sums(2));
    let mut during = [0; 3];
    let mut mixed = BTreeSet::new();
    recording.cut_everywhere(20, |cut| {
        bench.tally().count_cut();
        during[cut.steps] += 1;
        if cut.steps == 0 {
            return;
        }
        let is_of = |generation: &BTreeSet<String>, name: &str| {
            let end = format!("  ./{name}");
            let line = cut.sums.iter().find(|line| line.ends_with(&end));
            generation.contains(line.unwrap_or_else(|| panic!("{name} is missing")))
        };
        for line in &cut.sums {
            let (_, name) = line.split_once("  ./").unwrap();
            let (was, is) = (is_of(&old, name), is_of(&new, name));
            assert!(was || is, "{name} is neither the old one nor the new one");
            if let Some(key) = name.strip_suffix(".crt").map(|base| format!("{base}.key"))
                && cut
                    .sums
                    .iter()
                    .any(|line| line.ends_with(&format!("  ./{key}")))
            {
                assert!(
                    was && is_of(&old, &key) || is && is_of(&new, &key),
                    "{name} and its key are of different generations"
                );
            }
        }
        mixed.insert(cut.sums.intersection(&new).count());
    });
    bench.say(&format!(
        "{} cuts during the bootstrap, {} during the renewal, which left it at {} points",
        during[0],
        during[1],
        mixed.len()
    ));
    assert!(
        during[0] >= 10 && during[1] >= 50 && mixed.len() >= 10,
        "{during:?} {}",
        mixed.len()
    );
}
