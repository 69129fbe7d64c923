//! Ids of instances: `<workload>-<5 base32>`, never used again.

use kat_types::encoding::digest::sha256_u32;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Characters after the workload's name, of five bits each.
const CHARACTERS: usize = 5;
const BITS: u32 = 25;
const HALF: u32 = 12;

/// The id of the instance number `count` of a workload.
///
/// The count goes through a permutation of 25 bits that the workload's uid decides, so the ids of
/// one workload look random and none repeats within 33,554,432 instances.
pub fn instance_id(workload: &str, workload_uid: &str, count: u32) -> String {
    let mut value = permute(workload_uid, count % (1 << BITS));
    let mut suffix = [0u8; CHARACTERS];
    for character in suffix.iter_mut().rev() {
        let index = usize::try_from(value % 32).unwrap_or(0);
        *character = ALPHABET.get(index).copied().unwrap_or(b'a');
        value /= 32;
    }
    format!("{workload}-{}", String::from_utf8_lossy(&suffix))
}

/// Whether the id may be one of this workload's.
pub fn is_instance_id_of(workload: &str, id: &str) -> bool {
    let suffix = id
        .strip_prefix(workload)
        .and_then(|rest| rest.strip_prefix('-'));
    suffix.is_some_and(|suffix| {
        suffix.len() == CHARACTERS && suffix.bytes().all(|byte| ALPHABET.contains(&byte))
    })
}

/// A Feistel network over the lower 24 bits, keyed by the uid. The top bit stays, which makes it a
/// permutation of all 25 bits.
fn permute(key: &str, value: u32) -> u32 {
    let mask = (1 << HALF) - 1;
    let top = value >> (2 * HALF);
    let mut left = (value >> HALF) & mask;
    let mut right = value & mask;
    for round in 0u8..4 {
        let hashed = [
            key.as_bytes(),
            &[round],
            &right.to_be_bytes(),
            &top.to_be_bytes(),
        ]
        .concat();
        let mixed = sha256_u32(&hashed) & mask;
        (left, right) = (right, left ^ mixed);
    }
    (top << (2 * HALF)) | (left << HALF) | right
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn never_repeats_within_a_workload() {
        let ids: BTreeSet<_> = (0..100_000)
            .map(|count| instance_id("web", "uid", count))
            .collect();
        assert_eq!(ids.len(), 100_000);
    }

    #[test]
    fn differs_between_workloads_of_the_same_name() {
        assert_ne!(instance_id("web", "one", 0), instance_id("web", "two", 0));
    }

    #[test]
    fn is_told_from_what_is_no_id_of_the_workload() {
        assert!(is_instance_id_of("web", &instance_id("web", "uid", 7)));
        for other in [
            "X",
            "",
            "web",
            "web-",
            "web-abcd",
            "web-abcdef",
            "web-abcdE",
            "web-abc1e",
            "web-ab/de",
            "db-abcde",
            "web-db-abcde",
            "webabcdef",
        ] {
            assert!(!is_instance_id_of("web", other), "{other}");
        }
    }

    #[test]
    fn is_a_label() {
        let id = instance_id("web", "uid", 7);
        assert_eq!(id.len(), "web-".len() + 5);
        assert_eq!(kat_types::resource::name::check_label(&id), Ok(()));
    }
}
