//! Volumes on storage that machines share.

use super::*;

/// Machines that share the base path of volumes, and a database that a cut stops, or not.
fn sharing(stops: bool) -> (World, String, String) {
    let mut world = machines(3);
    for machine in world.machines.values_mut() {
        machine.shared = true;
    }
    database(&mut world, "db", |file| {
        if stops {
            file["spec"]["onPartition"] = json!("stop");
        }
    });
    world.roll_out();
    assert_eq!(record(&mut world, "default/db/data").unwrap().node, None);
    let (id, node, _) = world.wanted("db").remove(0);
    (world, id, node)
}

#[test]
fn shared_data_moves_from_a_lost_machine_that_has_stopped_its_writer() {
    let (mut world, lost, node) = sharing(true);
    lose(&mut world, &node);
    let (id, other, assignment) = world.wanted("db").remove(0);
    assert!(id != lost && other != node && assignment.volumes[0].made);
    assert_eq!(world.running("db"), 1);
    find(&mut world, &node);
    assert_eq!(world.wanted("db")[0].0, id);
    assert_eq!(
        world.snapshot().instances.len(),
        1,
        "what was there has ended"
    );
}

#[test]
fn shared_data_is_waited_for_where_its_writer_may_still_run() {
    let (mut world, lost, node) = sharing(false);
    lose(&mut world, &node);
    let wanted = world.wanted("db");
    assert_eq!((wanted.len(), &wanted[0].0), (1, &lost));
    find(&mut world, &node);
    assert_eq!(world.wanted("db")[0].0, lost);
}

#[test]
fn shared_data_moves_with_a_drain_and_the_old_one_ends_first() {
    let (mut world, _, node) = sharing(false);
    world.drain(&node, true);
    world.roll_out();
    let places = places(&mut world, "db");
    assert!(places.len() == 1 && places[0] != node, "{places:?}");
    assert_eq!(world.running("db"), 1);
}

#[test]
fn shared_data_is_removed_by_one_of_those_that_share_it() {
    let (mut world, ..) = sharing(false);
    world.delete_workload("db");
    let key = keys::workload_meta(NAMESPACE, "db");
    world.change(&key, |meta| meta["deletesVolumes"] = json!(true));
    world.roll_out();
    assert_eq!(record(&mut world, "default/db/data"), None);
    assert!(world.snapshot().removals.is_empty());
    assert!(world.snapshot().indexes.is_empty());
}
