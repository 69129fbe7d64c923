//! The stored index of the last new workload is read apart from the owners of indexes.

use super::*;

#[test]
fn owners_of_indexes_and_the_last_one_lie_side_by_side() {
    let owner = r#"{"schema":1,"namespace":"default","workload":"web","workloadUid":"u"}"#;
    let stored = [
        (keys::index(7), owner),
        (keys::LAST_INDEX.to_owned(), r#"{"schema":1,"index":9}"#),
    ];
    let entries: MirrorEntries = stored
        .into_iter()
        .map(|(key, value)| {
            let entry = KeyValue {
                key: key.clone(),
                value: value.as_bytes().to_vec(),
                mod_revision: 3,
                create_revision: 3,
            };
            (Arc::from(key), Arc::new(entry))
        })
        .collect();
    let mut builder = SnapshotBuilder::default();
    let snapshot = builder.build(&entries, 3);
    let indexes: Vec<u32> = snapshot.state.indexes.into_keys().collect();
    assert_eq!(indexes, [7]);
    assert_eq!(
        snapshot.state.last_index.map(|last| last.value.index),
        Some(9)
    );
    assert!(builder.reported.is_empty(), "all of it can be read");
}
