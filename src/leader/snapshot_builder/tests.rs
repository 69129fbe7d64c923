//! What a snapshot says of the keys, also after changes.

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
        .map(|(key, value)| self::stored(key, value))
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

fn stored(key: String, value: &str) -> (Arc<str>, Arc<KeyValue>) {
    let entry = KeyValue {
        key: key.clone(),
        value: value.as_bytes().to_vec(),
        mod_revision: 3,
        create_revision: 3,
    };
    (Arc::from(key), Arc::new(entry))
}

#[test]
fn what_machines_see_is_counted_anew_after_each_change() {
    let list = |node: &str, value| stored(keys::desired_instance(node, "web-aaaaa"), value);
    let states = [
        vec![list("n1", "short"), stored(keys::MEMBERS.to_owned(), "{}")],
        vec![list("n1", "much longer"), list("n2", "short")],
        vec![stored(keys::MEMBERS.to_owned(), "{ }")],
        vec![],
    ];
    let mut builder = SnapshotBuilder::default();
    for state in states {
        let entries = MirrorEntries::from_iter(state);
        let continued = builder.build(&entries, 3);
        let anew = SnapshotBuilder::default().build(&entries, 3);
        for node in ["n1", "n2", "n3"] {
            assert_eq!(continued.visible.of(node), anew.visible.of(node), "{node}");
        }
    }
}

/// More keys than a node of the map has, changed here and there.
#[test]
fn what_machines_see_stays_right_over_many_changes_of_many_keys() {
    let entry = |number: usize, size: usize| {
        let node = format!("n{}", number % 7);
        let key = keys::desired_instance(&node, &format!("web-{number:05}"));
        stored(key, &"x".repeat(size))
    };
    let mut entries = MirrorEntries::from_iter((0..2000).map(|number| entry(number, 10)));
    let mut builder = SnapshotBuilder::default();
    for round in 0..60 {
        for step in 0..=round % 5 {
            let number = (round * 617 + step * 331) % 2100;
            let (key, value) = entry(number, round + step);
            match (round + step) % 3 {
                0 => drop(entries.remove(&key)),
                _ => drop(entries.insert(key, value)),
            }
        }
        let continued = builder.build(&entries, 3);
        let anew = SnapshotBuilder::default().build(&entries, 3);
        for node in (0..7).map(|number| format!("n{number}")) {
            let (seen, expected) = (continued.visible.of(&node), anew.visible.of(&node));
            assert_eq!(seen, expected, "{node} in round {round}");
        }
    }
}

#[test]
fn an_object_is_parsed_again_when_another_store_has_it_at_the_same_revision() {
    let event = |message: &str| {
        let event = Event {
            message: message.to_owned(),
            ..Event::default()
        };
        let value = serde_json::to_string(&event).unwrap();
        MirrorEntries::from_iter([stored(keys::event("0001"), &value)])
    };
    let mut builder = SnapshotBuilder::default();
    for message in ["before", "after", "after"] {
        let snapshot = builder.build(&event(message), 3);
        let messages = snapshot.events.values().map(|event| &event.value.message);
        assert_eq!(messages.collect::<Vec<_>>(), [message]);
    }
}
