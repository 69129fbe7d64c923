//! Changes of `nodeLossTimeoutSeconds`: a leader's time is never less than that of a machine.

use super::{
    node_loss::{timeout, unplug},
    *,
};
use kat_types::{
    api::FollowedConfiguration, resource::ClusterConfiguration,
    store::configuration::ConfigurationRecord,
};

fn configuration(seconds: u32) -> ClusterConfiguration {
    let mut configuration = ClusterConfiguration::default();
    configuration.spec.node_loss_timeout_seconds = seconds;
    configuration
}

/// A user changes the time, as the API writes it.
fn want(world: &mut World, change: &str, seconds: u32) {
    let of_leaders = world.snapshot().cluster.spec.node_loss_timeout_seconds;
    let wanted = ConfigurationRecord {
        change: change.to_owned(),
        ..ConfigurationRecord::of_init(configuration(seconds))
    };
    world.write(keys::WANTED_CONFIGURATION.to_owned(), &wanted);
    world.write(
        keys::CLUSTER.to_owned(),
        &configuration(seconds.max(of_leaders)),
    );
}

fn follow(world: &mut World, machine: &str, change: &str, seconds: u32) {
    world.at(machine).configuration = Some(FollowedConfiguration {
        change: change.to_owned(),
        node_loss_timeout_seconds: seconds,
    });
}

fn three_machines() -> World {
    let mut world = World::with_machines(3);
    world.write(keys::CLUSTER.to_owned(), &configuration(60));
    for machine in ["n1", "n2", "n3"] {
        follow(&mut world, machine, "", 60);
    }
    world.settle();
    world
}

#[test]
fn a_lower_time_holds_for_leaders_when_every_machine_has_confirmed_it() {
    let mut world = three_machines();
    want(&mut world, "c1", 20);
    for machine in ["n1", "n2"] {
        follow(&mut world, machine, "c1", 20);
    }
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
    let observed = world.observed();
    let awaited = awaited_loss_timeout(&world.snapshot(), &observed).unwrap();
    assert_eq!(
        (awaited.leaders_seconds, awaited.machines),
        (60, vec!["n3".to_owned()])
    );
    follow(&mut world, "n3", "c1", 20);
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(20));
    let observed = world.observed();
    assert_eq!(awaited_loss_timeout(&world.snapshot(), &observed), None);
    let snapshot = world.snapshot();
    let events = snapshot.events.values();
    let told = events.filter(|event| event.value.reason == "ConfigurationFollowed");
    assert_eq!(told.count(), 1);
}

#[test]
fn a_confirmation_of_an_earlier_change_with_the_same_time_does_not_count() {
    let mut world = three_machines();
    // n3 reports the value of before the first change, and may have read 120 meanwhile.
    want(&mut world, "c1", 120);
    want(&mut world, "c2", 60);
    for machine in ["n1", "n2"] {
        follow(&mut world, machine, "c2", 60);
    }
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(120));
    // Its last contact still counts with the longer time.
    follow(&mut world, "n3", "c2", 120);
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(120));
    follow(&mut world, "n3", "c2", 60);
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
}

#[test]
fn a_silent_machine_holds_a_lower_time_back_until_it_reports_or_is_deleted() {
    let mut world = three_machines();
    world.apply_workload("web", |file| file["spec"]["replicas"] = json!(3));
    world.roll_out();
    unplug(&mut world, "n3");
    want(&mut world, "c1", 20);
    for machine in ["n1", "n2"] {
        follow(&mut world, machine, "c1", 20);
    }
    world.pass(Duration::from_secs(59));
    world.settle();
    let on_n3 = |world: &mut World| {
        let wanted = world.wanted("web");
        let ids = wanted.into_iter().filter(|(_, node, _)| node == "n3");
        ids.map(|(id, ..)| id).collect::<Vec<_>>()
    };
    assert_eq!(on_n3(&mut world).len(), 1, "n3 may count with 60 s");
    world.pass(Duration::from_secs(1));
    world.settle_and_run();
    assert_eq!(on_n3(&mut world).len(), 0, "it is replaced after 60 s");
    assert_eq!(world.running("web"), 3);
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
}

#[test]
fn a_new_leader_waits_for_the_confirmations_too() {
    let mut world = three_machines();
    want(&mut world, "c1", 20);
    for machine in ["n1", "n2", "n3"] {
        follow(&mut world, machine, "c1", 20);
        world.at(machine).speaks = false;
    }
    world.new_leader();
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
    for machine in ["n1", "n2", "n3"] {
        world.at(machine).speaks = true;
    }
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(20));
}

#[test]
fn a_machine_that_counts_with_a_longer_time_than_the_leader_is_lost_after_its_own() {
    let mut world = three_machines();
    // As after a restore from a backup of before a change.
    follow(&mut world, "n3", "lost change", 120);
    world.settle();
    unplug(&mut world, "n3");
    let phase = |world: &mut World| {
        world.snapshot().nodes["n3"]
            .status
            .as_ref()
            .unwrap()
            .value
            .phase
    };
    world.pass(Duration::from_secs(119));
    world.settle();
    assert_eq!(phase(&mut world), NodePhase::Ready);
    world.pass(Duration::from_secs(1));
    world.settle();
    assert_eq!(phase(&mut world), NodePhase::NotReady);
}

#[test]
fn the_next_leader_too_waits_for_a_machine_that_has_reported_a_longer_time() {
    let mut world = three_machines();
    world.apply_workload("web", |file| file["spec"]["replicas"] = json!(3));
    world.roll_out();
    // A restore writes the configuration of the backup as a new change. n3 has not read it yet.
    want(&mut world, "restored", 60);
    for machine in ["n1", "n2"] {
        follow(&mut world, machine, "restored", 60);
    }
    follow(&mut world, "n3", "lost change", 120);
    world.settle();
    // The time of the others stays: one machine delays its own loss alone.
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
    // The next leader never hears of n3.
    unplug(&mut world, "n3");
    world.new_leader();
    let on_n3 = |world: &mut World| {
        let wanted = world.wanted("web");
        wanted.iter().filter(|(_, node, _)| node == "n3").count()
    };
    world.pass(Duration::from_secs(119));
    world.settle();
    assert_eq!(on_n3(&mut world), 1, "n3 may count with 120 s");
    world.pass(Duration::from_secs(1));
    world.settle_and_run();
    assert_eq!(on_n3(&mut world), 0);
}

#[test]
fn a_configuration_of_a_later_version_changes_no_time_and_keeps_its_revision() {
    let mut world = three_machines();
    assert!(!world.snapshot().wanted_is_unread());
    world.write(keys::WANTED_CONFIGURATION.to_owned(), &json!({"schema": 9}));
    world.settle();
    let snapshot = world.snapshot();
    assert!(snapshot.wanted_is_unread() && snapshot.wanted_revision > 0);
    // A machine that joins counts with the time of leaders, which is never the lower one.
    assert_eq!(snapshot.wanted_cluster().spec.node_loss_timeout_seconds, 60);
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
}

#[test]
fn a_lower_time_waits_for_programs_that_take_longer_to_end() {
    let mut world = three_machines();
    world.apply_workload("web", |file| {
        file["spec"]["onPartition"] = json!("stop");
        file["spec"]["container"] = json!({"name": "app", "terminationGraceSeconds": 28});
    });
    world.roll_out();
    want(&mut world, "c1", 20);
    for machine in ["n1", "n2", "n3"] {
        follow(&mut world, machine, "c1", 20);
    }
    world.settle();
    assert_eq!(timeout(&mut world), Duration::from_secs(60));
    let slow = format!("{NAMESPACE}/web");
    let snapshot = world.snapshot();
    assert_eq!(too_slow_for(20, &snapshot), BTreeSet::from([slow]));
    assert_eq!(too_slow_for(60, &snapshot), BTreeSet::new());
    world.apply_workload("web", |file| {
        file["spec"]["onPartition"] = json!("stop");
        file["spec"]["container"] = json!({"name": "app", "terminationGraceSeconds": 5});
    });
    world.roll_out();
    assert_eq!(timeout(&mut world), Duration::from_secs(20));
}
