//! Which generations of a workload are kept.

use kat_types::store::{records::GENERATIONS, snapshot::WorkloadEntry};

/// Kept generations to delete when generation `next` is written: all but the last
/// [`GENERATIONS`], the last one that was wholly healthy, and the last such one with other
/// content or images. So whichever content is written, there is a generation to return to.
pub fn outdated_generations(entry: &WorkloadEntry, next: u64) -> Vec<u64> {
    let good = entry.status.iter().flat_map(|status| &status.value.good);
    let mut good = good.rev().filter_map(|good| {
        let record = entry.archive.get(good)?.record.as_ref();
        Some((
            *good,
            record.map(|record| (&record.spec_hash, record.image.pins())),
        ))
    });
    let last = good.next();
    let other = last
        .as_ref()
        .and_then(|(_, hash)| good.find(|(_, other)| other != hash));
    let is_needed = |generation: &u64| {
        let mut needed = last.iter().chain(&other);
        needed.any(|(good, _)| good == generation)
    };
    let oldest = (next + 1).saturating_sub(GENERATIONS);
    let before = entry
        .archive
        .range(..oldest)
        .map(|(generation, _)| *generation);
    before.filter(|generation| !is_needed(generation)).collect()
}
