//! Names and ids of users that are derived from indexes.

use super::*;

#[test]
fn names_never_clash() {
    let names = ["a", "b", "a-b", "b-a", "web", "i5", "web-i5", "a-i5"];
    let mut seen = BTreeMap::new();
    let mut index = 0;
    for namespace in names {
        for workload in names {
            // Any index may occur with any namespace and workload.
            for index_of_pair in [5, index] {
                let user = WorkloadUser::from_index(index_of_pair, namespace, workload).unwrap();
                assert!(user.name.len() <= 31, "{}", user.name);
                let owner = (namespace, workload);
                let before = seen.insert(user.name.clone(), owner);
                let same_index_or_pair =
                    before.is_none_or(|before| before == owner || user.name.contains('_'));
                assert!(
                    same_index_or_pair,
                    "{} for {before:?} and {owner:?}",
                    user.name
                );
            }
            index += 1;
        }
    }
}

#[test]
fn a_long_name_is_cut_and_ids_keep_within_their_range() {
    let last = WorkloadUser::from_index(INDEX_LIMIT - 1, &"n".repeat(40), &"w".repeat(40)).unwrap();
    assert!(last.name.len() <= 31);
    assert!(last.uid < 60_001);
    assert!(last.subordinate_start + last.subordinate_count <= 2_147_352_576);
    assert_eq!(WorkloadUser::from_index(INDEX_LIMIT, "a", "b"), None);
}
