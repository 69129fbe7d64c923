//! Update strategies: surges by number and by percentage, updates with `maxSurge: 0`,
//! `Simultaneous`, pauses, and changes of the number of replicas during an update.

use super::*;

pub(crate) fn web(
    version: u32,
    replicas: u32,
    strategy: serde_json::Value,
) -> impl FnOnce(&mut serde_json::Value) {
    move |file| {
        file["spec"]["replicas"] = json!(replicas);
        file["spec"]["source"]["image"] = json!(format!("registry.example/web:{version}"));
        file["spec"]["updateStrategy"] = strategy;
    }
}

fn surge(value: serde_json::Value) -> serde_json::Value {
    json!({"rolling": {"maxSurge": value}})
}

impl World {
    /// The fewest serving and the most wanted instances until the end of a rollout.
    fn watched(&mut self) -> (usize, usize) {
        let (mut least, mut most) = (usize::MAX, 0);
        for _ in 0..300 {
            let before = self.revision;
            for _ in 0..2 {
                self.plan_out();
                least = least.min(self.running("web"));
                most = most.max(self.wanted("web").len());
                self.agents();
                least = least.min(self.running("web"));
            }
            self.pass(Duration::from_secs(1));
            if self.revision == before && self.status("web").phase == WorkloadPhase::Running {
                return (least, most);
            }
        }
        panic!("it does not end: {:?}", self.status("web"));
    }

    pub(crate) fn versions(&mut self) -> BTreeMap<String, usize> {
        let mut versions = BTreeMap::new();
        for (.., one) in self.wanted("web") {
            let version = one.image.rsplit(':').next().unwrap().to_owned();
            *versions.entry(version).or_default() += 1;
        }
        versions
    }
}

#[test]
fn the_surge_is_a_number_or_a_percentage_rounded_up() {
    let table = [
        (4, json!(1), (4, 5)),
        (4, json!(3), (4, 7)),
        (4, json!(100), (4, 8)),
        (4, json!("25%"), (4, 5)),
        (5, json!("25%"), (5, 7)),
        (4, json!("1%"), (4, 5)),
        (3, json!("100%"), (3, 6)),
        (4, json!(0), (3, 4)),
        (4, json!("0%"), (3, 4)),
    ];
    for (replicas, value, expected) in table {
        let mut world = World::with_machines(2);
        world.apply_workload("web", web(1, replicas, json!({})));
        world.roll_out();
        world.apply_workload("web", web(2, replicas, surge(value.clone())));
        assert_eq!(world.watched(), expected, "{replicas} with {value}");
        let count = usize::try_from(replicas).unwrap();
        assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), count)]));
    }
}

#[test]
fn in_place_the_old_one_has_ended_before_the_new_one_begins() {
    let mut world = World::with_machines(1);
    // Two replicas fill the machine.
    let full = |version: u32| {
        move |file: &mut serde_json::Value| {
            web(version, 2, surge(json!(0)))(file);
            file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "2"}});
        }
    };
    world.apply_workload("web", full(1));
    world.roll_out();
    world.apply_workload("web", full(2));
    // The machine is full, so a plan with both versions on it would fail the world's check.
    assert_eq!(world.watched(), (1, 2));
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 2)]));
}

#[test]
fn in_place_a_version_that_fails_takes_one_slot() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", web(1, 3, surge(json!(0))));
    world.roll_out();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", web(2, 3, surge(json!(0))));
    for _ in 0..10 {
        world.settle();
        world.pass(Duration::from_secs(301));
        assert_eq!(world.running("web"), 2);
    }
    world.settle();
    assert_eq!(world.status("web").phase, WorkloadPhase::Stalled);
    world.apply_workload("web", web(3, 3, surge(json!(0))));
    world.pass(Duration::from_secs(301));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("3".to_owned(), 3)]));
}

#[test]
fn simultaneous_stops_all_before_any_begins() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", web(1, 3, json!({})));
    world.roll_out();
    world.apply_workload("web", web(2, 3, json!({"type": "Simultaneous"})));
    world.plan_out();
    // The old ones run on until the new ones are prepared.
    assert_eq!(world.running("web"), 3);
    for _ in 0..20 {
        world.agents();
        world.plan_out();
        let snapshot = world.snapshot();
        let assigned = snapshot.instances.values().map(|one| &one.assignment.value);
        let may_run = assigned.filter(|one| one.wanted != DesiredRun::Prepared);
        let hashes: BTreeSet<_> = may_run.map(|one| one.template_hash.clone()).collect();
        assert!(hashes.len() <= 1, "both versions are there");
    }
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 3)]));
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_program_that_ends_at_once_takes_over_from_nothing() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", web(1, 2, json!({})));
    world.roll_out();
    world.apply_workload("web", web(2, 2, json!({})));
    for _ in 0..30 {
        world.plan_out();
        world.agents();
        world.agents();
        world.plan_out();
        // The new instance has run for less than three seconds when it restarts.
        world.pass(Duration::from_secs(2));
        let new: Vec<String> = world
            .wanted("web")
            .into_iter()
            .filter(|(.., one)| one.image.ends_with(":2"))
            .map(|one| one.0)
            .collect();
        assert_eq!(new.len(), 1);
        assert_eq!(world.versions()["1"], 2, "the old ones stay");
        let report = world.at("n1").instances.get_mut(&new[0]).unwrap();
        report.phase = InstancePhase::Restarting;
        world.plan_out();
    }
    assert_eq!(world.status("web").last_good_generation, Some(1));
}

/// Of the version that worked, only its archived files are left.
#[test]
fn a_paused_workload_begins_again_with_the_version_that_worked() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", web(1, 2, json!({})));
    world.roll_out();
    world.apply_workload("web", web(1, 0, json!({})));
    world.roll_out();
    assert!(world.wanted("web").is_empty());
    world.pause("web", true);
    world.apply_workload("web", web(2, 3, json!({})));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 3)]));
    assert_eq!(world.status("web").phase, WorkloadPhase::Paused);
    world.pause("web", false);
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 3)]));
    // The second version has worked, so a paused workload starts with it.
    world.apply_workload("web", web(2, 0, json!({})));
    world.roll_out();
    world.pause("web", true);
    world.apply_workload("web", web(2, 1, json!({})));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 1)]));
    // A workload that never ran has no earlier version.
    world.apply_workload("new", web(1, 1, json!({})));
    world.pause("new", true);
    world.roll_out();
    assert_eq!(world.wanted("new").len(), 1);
}

#[test]
fn a_paused_rollout_moves_nothing_new_and_goes_on_later() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 4, json!({})));
    world.roll_out();
    world.pause("web", true);
    world.apply_workload("web", web(2, 4, json!({})));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 4)]));
    let status = world.status("web");
    assert_eq!((status.phase, status.paused), (WorkloadPhase::Paused, true));
    world.pass(Duration::from_secs(3600));
    world.roll_out();
    assert_eq!(
        world.status("web").phase,
        WorkloadPhase::Paused,
        "it does not stall"
    );

    // A failed instance is replaced by its own version.
    let (ill, node, _) = world.wanted("web").remove(0);
    world.at(&node).instances.get_mut(&ill).unwrap().phase = InstancePhase::Failed;
    world.at(&node).obeys = false;
    world.plan_out();
    world.pass(Duration::from_secs(10));
    world.plan_out();
    assert!(world.wanted("web").iter().all(|one| one.0 != ill));
    world.at(&node).obeys = true;
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 4)]));

    // Instances that leave a machine, and additional replicas, have that version too.
    world.drain("n2", true);
    world.roll_out();
    assert!(world.wanted("web").iter().all(|one| one.1 != "n2"));
    world.apply_workload("web", web(2, 6, json!({})));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 6)]));
    world.apply_workload("web", web(2, 2, json!({})));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("1".to_owned(), 2)]));

    world.pause("web", false);
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 2)]));
    assert_eq!(world.status("web").phase, WorkloadPhase::Running);
}

#[test]
fn a_number_alone_replaces_nothing() {
    let mut world = World::with_machines(2);
    world.apply_workload("web", web(1, 3, json!({})));
    world.roll_out();
    let before = world.wanted("web");
    world.apply_workload("web", web(1, 5, surge(json!(2))));
    world.roll_out();
    let after = world.wanted("web");
    assert!(before.iter().all(|one| after.contains(one)));
    assert_eq!(world.events("RolloutStarted"), Vec::<String>::new());
    assert_eq!(world.status("web").last_good_generation, Some(2));
}

#[test]
fn fewer_replicas_take_what_does_not_serve_first() {
    let mut world = World::with_machines(1);
    world.apply_workload("web", web(1, 5, json!({})));
    world.roll_out();
    let ill: Vec<String> = world
        .wanted("web")
        .into_iter()
        .filter(|(.., one)| matches!(one.slot, 0 | 4))
        .map(|one| one.0)
        .collect();
    for id in &ill {
        let report = world.at("n1").instances.get_mut(id).unwrap();
        report.phase = InstancePhase::Restarting;
    }
    world.at("n1").obeys = false;
    world.apply_workload("web", web(1, 3, json!({})));
    world.plan_out();
    let slots: BTreeSet<u32> = world.wanted("web").iter().map(|one| one.2.slot).collect();
    assert_eq!(
        slots,
        BTreeSet::from([0, 1, 2, 3]),
        "slot 3 serves in the place of slot 0"
    );
    world.at("n1").obeys = true;
    world.roll_out();
    let slots: BTreeSet<u32> = world.wanted("web").iter().map(|one| one.2.slot).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
}

#[test]
fn a_drain_waits_for_a_place_before_it_stops_what_is_replaced_in_place() {
    let mut world = World::with_machines(2);
    let large = |file: &mut serde_json::Value| {
        web(1, 2, surge(json!(0)))(file);
        file["spec"]["container"]["resources"] = json!({"requests": {"cpu": "3"}});
    };
    world.apply_workload("web", large);
    world.roll_out();
    world.drain("n2", true);
    world.roll_out();
    assert_eq!(world.running("web"), 2, "it serves on");
    assert!(
        world
            .status("web")
            .conditions
            .iter()
            .any(|one| one.kind == "DrainBlocked")
    );
    world.machine("n3", "23", &[]);
    world.roll_out();
    assert!(world.wanted("web").iter().all(|one| one.1 != "n2"));
    assert_eq!(world.running("web"), 2);
}

/// One slot has both versions when the strategy changes, and the new one never runs.
#[test]
fn simultaneous_ends_a_pair_of_before_too() {
    let mut world = World::with_machines(3);
    world.apply_workload("web", web(1, 3, json!({})));
    world.roll_out();
    world.failing.insert("registry.example/web:2".to_owned());
    world.apply_workload("web", web(2, 3, json!({})));
    world.settle();
    assert_eq!(world.versions().get("1"), Some(&3));
    world.apply_workload("web", web(2, 3, json!({"type": "Simultaneous"})));
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 3)]));
}

/// The instance of the first slot left a drained machine, so the remaining ones are beyond the
/// wanted number.
#[test]
fn simultaneous_ends_what_is_beyond_the_number_before_the_new_one_begins() {
    let mut world = World::with_machines(3);
    let how = || json!({"type": "Simultaneous"});
    world.apply_workload("web", web(1, 3, how()));
    world.roll_out();
    let wanted = world.wanted("web");
    let (_, drained, _) = wanted.iter().find(|(.., one)| one.slot == 0).unwrap();
    world.pause("web", true);
    world.apply_workload("web", web(2, 3, how()));
    world.drain(drained, true);
    world.step();
    world.apply_workload("web", web(2, 1, how()));
    world.pause("web", false);
    world.roll_out();
    assert_eq!(world.versions(), BTreeMap::from([("2".to_owned(), 1)]));
}

#[test]
fn in_place_a_pause_lets_nothing_move_beside_what_does_not_serve() {
    let mut world = World::with_machines(4);
    world.apply_workload("web", web(1, 3, surge(json!(0))));
    world.roll_out();
    let wanted = world.wanted("web");
    let [(ill, there, _), (moves, drained, _), _] = &wanted[..] else {
        panic!("{wanted:?}")
    };
    world.at(there).instances.get_mut(ill).unwrap().phase = InstancePhase::Restarting;
    world.pause("web", true);
    world.drain(drained, true);
    world.plan_out();
    assert!(world.wanted("web").iter().any(|(id, ..)| id == moves));
    // The replica runs again.
    world.roll_out();
    assert!(
        world
            .wanted("web")
            .iter()
            .all(|(_, node, _)| node != drained)
    );
    assert_eq!(world.running("web"), 3);
}

#[test]
fn in_place_what_a_lost_machine_had_is_all_that_is_missing() {
    let mut world = World::with_machines(4);
    world.apply_workload("web", web(1, 3, surge(json!(0))));
    world.roll_out();
    let (_, lost, _) = world.wanted("web").remove(0);
    let machine = world.at(&lost);
    (machine.speaks, machine.obeys) = (false, false);
    world.apply_workload("web", web(2, 3, surge(json!(0))));
    world.pause("web", true);
    world.settle();
    world.pass(Duration::from_secs(61));
    world.pause("web", false);
    let elsewhere = |world: &mut World| {
        let wanted = world.wanted("web").into_iter();
        let there: Vec<_> = wanted.filter(|(_, node, _)| *node != lost).collect();
        world.served(&there)
    };
    for _ in 0..80 {
        world.plan_out();
        let served = elsewhere(&mut world);
        assert!(served >= 2, "{served} serve");
        world.agents();
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(elsewhere(&mut world), 3);
}

#[test]
fn a_version_that_nothing_checks_is_asked_for_nothing_until_it_has_shown_that_it_works() {
    let mut world = World::with_machines(2);
    // If no other instance serves, the first instances serve immediately.
    world.apply_workload("web", web(1, 2, json!({})));
    world.settle();
    let named = |world: &mut World| -> BTreeSet<String> {
        let names = world.keys("/kat/dns/default/web/A/").into_iter();
        let instances = names.filter_map(|name| {
            name.rsplit('/')
                .next()?
                .split_once('=')
                .map(|one| one.0.to_owned())
        });
        instances.collect()
    };
    let new = |world: &mut World| -> BTreeSet<String> {
        let wanted = world.wanted("web").into_iter();
        wanted
            .filter(|(.., one)| one.image.ends_with(":2"))
            .map(|one| one.0)
            .collect()
    };
    let before = named(&mut world);
    assert_eq!(before.len(), 2);
    world.roll_out();
    world.apply_workload("web", web(2, 2, json!({})));
    world.settle();
    assert_eq!((new(&mut world).len(), world.running("web")), (1, 3));
    assert_eq!(named(&mut world), before, "it is on trial");
    world.pass(Duration::from_secs(3));
    world.settle();
    // The next instance of a version that has worked serves immediately.
    assert_eq!(new(&mut world).len(), 2);
    assert!(named(&mut world).is_superset(&new(&mut world)));
    assert_eq!(named(&mut world).len(), 3);
    world.roll_out();
    assert_eq!(named(&mut world), new(&mut world));
    // An instance that ends repeatedly never serves.
    world.apply_workload("web", web(3, 2, json!({})));
    world.settle();
    let (id, node) = {
        let mut wanted = world.wanted("web").into_iter();
        let one = wanted.find(|(.., one)| one.image.ends_with(":3")).unwrap();
        (one.0, one.1)
    };
    world.at(&node).obeys = false;
    for phase in [InstancePhase::Restarting, InstancePhase::Running].repeat(4) {
        world.at(&node).instances.get_mut(&id).unwrap().phase = phase;
        world.settle();
        assert!(!named(&mut world).contains(&id), "{phase:?}");
        assert_eq!(named(&mut world).len(), 2);
        world.pass(Duration::from_secs(2));
    }
}
