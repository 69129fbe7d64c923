//! Indexes of workload users are assigned in a circle, so a freed index is reused last.

use super::*;
use kat_types::store::snapshot::StoredState;

fn index_of(world: &mut World, name: &str) -> u32 {
    let snapshot = world.snapshot();
    let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, name)];
    entry.meta.value.index
}

/// A snapshot with these indexes taken, of which `last` was assigned last.
fn snapshot(taken: impl IntoIterator<Item = u32>, last: Option<u32>) -> Snapshot {
    let record = IndexRecord {
        schema: 1,
        namespace: NAMESPACE.to_owned(),
        workload: "other".to_owned(),
        workload_uid: "other".to_owned(),
    };
    let stored = |index| {
        let value = record.clone();
        (index, Stored { revision: 1, value })
    };
    Snapshot::from(StoredState {
        indexes: taken.into_iter().map(stored).collect(),
        last_index: last.map(|index| Stored {
            revision: 1,
            value: LastIndex { schema: 1, index },
        }),
        ..StoredState::default()
    })
}

#[test]
fn the_next_one_follows_the_last_one_and_wraps() {
    assert_eq!(next_index(&snapshot([], None)), Some(0));
    assert_eq!(next_index(&snapshot([], Some(0))), Some(1));
    assert_eq!(next_index(&snapshot([0, 1, 3], Some(1))), Some(2));
    assert_eq!(next_index(&snapshot([0, 1, 3], Some(2))), Some(4));
    let end = INDEX_LIMIT - 1;
    assert_eq!(next_index(&snapshot([], Some(end - 1))), Some(end));
    assert_eq!(next_index(&snapshot([0, 1], Some(end))), Some(2));
    assert_eq!(next_index(&snapshot([0, 1, end], Some(end - 1))), Some(2));
    assert_eq!(
        next_index(&snapshot(0..INDEX_LIMIT - 1, Some(7))),
        Some(end),
        "the only one that is free"
    );
    assert_eq!(next_index(&snapshot(0..INDEX_LIMIT, Some(7))), None);
    let only_last = (0..INDEX_LIMIT).filter(|index| *index != 7);
    assert_eq!(
        next_index(&snapshot(only_last, Some(7))),
        Some(7),
        "the last one too, where there is no other"
    );
    // No version of KAT writes this value.
    assert_eq!(next_index(&snapshot([], Some(u32::MAX))), Some(0));
}

#[test]
fn one_that_a_machine_still_has_is_skipped() {
    let mut world = World::with_machines(1);
    // The machine has users that belong to no workload, as a machine that returns may have.
    world.at("n1").users.extend([0, 2]);
    world.plan_out();
    for (name, expected) in [("a", 1), ("b", 3)] {
        world.replicas(name, 1);
        assert_eq!(index_of(&mut world, name), expected);
    }
}

#[test]
fn a_freed_one_is_used_last_also_under_another_leader() {
    let mut world = World::with_machines(1);
    for (round, name) in ["web", "web", "db", "web"].into_iter().enumerate() {
        world.replicas(name, 1);
        world.settle();
        assert_eq!(
            index_of(&mut world, name),
            u32::try_from(round).unwrap(),
            "all of the others are free"
        );
        world.delete_workload(name);
        world.settle();
        assert!(world.snapshot().indexes.is_empty());
        world.new_leader();
        world.builder = SnapshotBuilder::default();
    }
}

#[test]
fn a_change_of_a_workload_hands_none_out() {
    let mut world = World::with_machines(1);
    world.replicas("a", 1);
    for replicas in 2..5 {
        world.replicas("a", replicas);
        world.settle();
    }
    world.replicas("b", 1);
    assert_eq!(
        (index_of(&mut world, "a"), index_of(&mut world, "b")),
        (0, 1)
    );
}

#[test]
fn an_index_whose_uid_another_account_has_goes_to_no_new_workload() {
    let mut world = World::with_machines(2);
    world.replicas("a", 1);
    world.settle();
    assert_eq!(index_of(&mut world, "a"), 0);
    // On n2 somebody has run useradd, which takes the uid after the highest.
    world.at("n2").foreign.insert(1);
    world.plan_out();
    world.replicas("b", 1);
    assert_eq!(index_of(&mut world, "b"), 2);

    // A machine that states this of all indexes takes none of them away.
    world.at("n2").foreign.extend(0..INDEX_LIMIT);
    world.plan_out();
    world.replicas("c", 1);
    assert_eq!(index_of(&mut world, "c"), 3);
}

#[test]
fn a_workload_is_not_placed_where_another_account_has_its_uid() {
    let mut world = World::with_machines(2);
    world.replicas("web", 1);
    world.settle();
    let place = |world: &mut World| world.wanted("web").first().map(|one| one.1.clone());
    let first = place(&mut world).unwrap();
    let other = if first == "n1" { "n2" } else { "n1" };
    world.at(other).foreign.insert(0);
    world.drain(&first, true);
    world.settle();
    assert_eq!(
        place(&mut world),
        Some(first.clone()),
        "it has no other place"
    );
    let conditions = world.status("web").conditions;
    let reason = "1 with an account of its own that has the ids of the workload's user";
    assert!(
        conditions.iter().any(|one| one.message.contains(reason)),
        "{conditions:?}"
    );
    world.at(other).foreign.clear();
    world.settle();
    assert_eq!(place(&mut world).as_deref(), Some(other));
}
