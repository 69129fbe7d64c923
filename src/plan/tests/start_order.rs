//! `startAfter`: what holds a first start back, what lets it through, and what it never touches.

use proptest::prelude::*;

use super::*;
use kat_types::store::jobs::{JobRunRecord, JobStateRecord, RunCause, RunPhase};

const MIGRATE: &str = "registry.example/migrate:1";

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// `startAfter` of one workload.
fn after(workload: &str, condition: &str) -> serde_json::Value {
    json!([{"workload": workload, "condition": condition}])
}

impl World {
    /// Applies a Service of this version that starts after others.
    fn service(&mut self, name: &str, version: u32, start_after: serde_json::Value) {
        self.apply_workload(name, |file| {
            file["spec"]["source"]["image"] = json!(format!("registry.example/{name}:{version}"));
            file["spec"]["startAfter"] = start_after;
        });
    }

    /// Applies the Job `migrate` of this version.
    fn migrate(&mut self, version: u32, start_after: serde_json::Value) {
        let definition = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "JobDefinition",
            "spec": {"backoffLimit": 0},
        });
        self.write(keys::manifest(NAMESPACE, "migrate", "job.kat"), &definition);
        self.apply_workload("migrate", |file| {
            file["spec"]["type"] = json!("Job");
            file["spec"]["restartPolicy"] = json!({"condition": "Never"});
            file["spec"]["source"]["image"] = json!(format!("registry.example/migrate:{version}"));
            file["spec"]["startAfter"] = start_after;
            file["spec"].as_object_mut().unwrap().remove("replicas");
        });
    }

    /// Reason and message of the condition Available.
    fn available(&mut self, name: &str) -> (String, String) {
        let status = self.status(name);
        let condition = &status.conditions[0];
        (condition.reason.clone(), condition.message.clone())
    }

    fn ids(&mut self, name: &str) -> BTreeSet<String> {
        let wanted = self.wanted(name).into_iter();
        wanted.map(|(id, ..)| id).collect()
    }

    /// Lets time pass in steps, as a leader that wakes up does.
    fn go_on(&mut self, time: u64, step: u64) {
        for _ in 0..time / step {
            self.pass(seconds(step));
            self.plan_out();
            self.agents();
            self.plan_out();
        }
    }

    /// A run by hand of `migrate`, as the API makes it.
    fn run_by_hand(&mut self) {
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(NAMESPACE, "migrate");
        let meta = &snapshot.workloads[&key].meta.value;
        let state = snapshot.jobs[&key].state.as_ref().unwrap();
        let state = JobStateRecord {
            last_number: state.value.last_number + 1,
            ..state.value.clone()
        };
        let run = JobRunRecord {
            schema: 1,
            number: state.last_number,
            workload_uid: meta.uid.clone(),
            generation: meta.generation,
            cause: RunCause::Manual,
            created: self.now,
            completions: 1,
            parallelism: 1,
            phase: RunPhase::Active,
            ..JobRunRecord::default()
        };
        let name = format!("manual-{}", run.number);
        self.write(keys::job_state(NAMESPACE, "migrate"), &state);
        self.write(keys::job_run(NAMESPACE, "migrate", &name), &run);
    }
}

#[test]
fn a_service_starts_when_the_other_one_is_healthy_and_says_what_it_waits_for() {
    let mut world = World::with_machines(2);
    world.service("app", 1, after("db", "Healthy"));
    world.settle();
    assert_eq!(world.wanted("app").len(), 0);
    let (reason, message) = world.available("app");
    assert_eq!(reason, "WaitsForDependency");
    assert_eq!(
        message,
        "it starts when `db` is healthy: the namespace `default` has no such workload"
    );
    assert_eq!(world.status("app").phase, WorkloadPhase::Pending);
    world.service("db", 1, json!([]));
    world.settle();
    // Its program runs for a moment, and may still end.
    assert_eq!((world.running("db"), world.wanted("app").len()), (1, 0));
    assert_eq!(
        world.available("app").1,
        "it starts when `db` is healthy: no instance of it is healthy yet"
    );
    world.pass(seconds(3));
    world.settle();
    assert_eq!(world.running("app"), 1);
    world.roll_out();
    assert_eq!(world.status("app").phase, WorkloadPhase::Running);
}

#[test]
fn started_waits_for_a_running_instance_alone() {
    let mut world = World::with_machines(2);
    world.failing.insert("registry.example/db:1".to_owned());
    world.service("db", 1, json!([]));
    world.service("app", 1, after("db", "Started"));
    world.settle();
    assert_eq!(world.wanted("app").len(), 0);
    assert_eq!(
        world.available("app").1,
        "it starts when `db` runs: no instance of it runs yet"
    );
    world.service("db", 2, json!([]));
    world.settle();
    assert_eq!(world.running("app"), 1);
}

#[test]
fn a_version_waits_for_the_jobs_present_generation_while_the_old_one_serves() {
    let mut world = World::with_machines(3);
    world.migrate(1, json!([]));
    world.service("app", 1, after("migrate", "Completed"));
    world.roll_out();
    assert_eq!(world.running("app"), 1);
    // The next version comes with another migration, which takes its time.
    world
        .lasting
        .insert("registry.example/migrate:2".to_owned());
    world.migrate(2, json!([]));
    world.service("app", 2, after("migrate", "Completed"));
    let before = world.ids("app");
    world.go_on(1200, 60);
    assert_eq!(world.ids("app"), before, "the old version serves");
    let (reason, message) = world.available("app");
    assert_eq!(
        message,
        "it starts when `migrate` has completed: its run 2 is active; it has waited for more than 600 s"
    );
    assert_eq!(reason, "DependencyTimedOut");
    assert_eq!(world.events("Stalled"), Vec::<String>::new());
    // A lost machine's instance is replaced by one of the version that served.
    let (_, node, _) = world.wanted("app").remove(0);
    world.at(&node).speaks = false;
    world.go_on(300, 10);
    let images: Vec<String> = world
        .wanted("app")
        .into_iter()
        .filter(|(_, machine, _)| *machine != node)
        .map(|(.., one)| one.image.clone())
        .collect();
    assert_eq!(images, ["registry.example/app:1"]);
    world.at(&node).speaks = true;
    world.lasting.clear();
    world.roll_out();
    let wanted = world.wanted("app");
    assert_eq!(wanted.len(), 1);
    assert_eq!(wanted[0].2.image, "registry.example/app:2");
}

#[test]
fn the_type_of_before_serves_until_the_version_may_start() {
    let mut world = World::with_machines(2);
    world.migrate(1, json!([]));
    world.service("app", 1, after("migrate", "Completed"));
    world.roll_out();
    let before = world.ids("app");
    assert_eq!(before.len(), 1);
    world
        .lasting
        .insert("registry.example/migrate:2".to_owned());
    world.migrate(2, json!([]));
    world.apply_workload("app", |file| {
        let spec = &mut file["spec"];
        spec["type"] = json!("DaemonService");
        spec["source"]["image"] = json!("registry.example/app:2");
        spec["startAfter"] = after("migrate", "Completed");
        spec.as_object_mut().unwrap().remove("replicas");
    });
    world.go_on(120, 60);
    assert_eq!(world.ids("app"), before, "the Service serves");
    let conditions = world.status("app").conditions;
    assert!(
        conditions
            .iter()
            .any(|one| one.reason == "WaitsForDependency"),
        "{conditions:?}"
    );
    world.lasting.clear();
    world.roll_out();
    let wanted = world.wanted("app");
    let on: BTreeSet<&str> = wanted.iter().map(|(_, node, _)| node.as_str()).collect();
    assert_eq!(on, BTreeSet::from(["n1", "n2"]));
    assert!(
        wanted
            .iter()
            .all(|(.., one)| one.image == "registry.example/app:2")
    );
    assert_eq!(world.status("app").phase, WorkloadPhase::Running);
}

#[test]
fn a_failed_job_is_said_and_a_run_by_hand_that_succeeds_lets_the_service_start() {
    let mut world = World::with_machines(2);
    world.failing.insert(MIGRATE.to_owned());
    world.migrate(1, json!([]));
    world.service("app", 1, after("migrate", "Completed"));
    world.settle();
    let (reason, message) = world.available("app");
    assert_eq!(reason, "DependencyFailed");
    assert!(
        message.starts_with(
            "it starts when `migrate` has completed: its run 1 did not succeed: one instance failed"
        ),
        "{message}"
    );
    assert_eq!(world.wanted("app").len(), 0);
    world.failing.clear();
    world.run_by_hand();
    world.settle();
    assert_eq!(world.running("app"), 1);
}

#[test]
fn a_job_waits_before_its_run_begins_and_its_deadline_does_not_run_meanwhile() {
    let mut world = World::with_machines(2);
    world.migrate(1, after("db", "Healthy"));
    world.go_on(300, 60);
    let (reason, message) = world.available("migrate");
    assert_eq!(reason, "WaitsForDependency", "{message}");
    assert_eq!(world.status("migrate").phase, WorkloadPhase::Pending);
    let run = |world: &mut World| {
        let snapshot = world.snapshot();
        let job = &snapshot.jobs[&WorkloadKey::new(NAMESPACE, "migrate")];
        job.runs["generation-1"].value.clone()
    };
    assert_eq!(run(&mut world).started, None);
    world.service("db", 1, json!([]));
    world.roll_out();
    assert_eq!(run(&mut world).phase, RunPhase::Succeeded);
}

#[test]
fn nothing_of_a_started_workload_depends_on_the_other_one() {
    let mut world = World::with_machines(3);
    world.service("db", 1, json!([]));
    world.service("app", 1, after("db", "Healthy"));
    world.roll_out();
    let app = world.ids("app");
    // The other one gets new instances, fails, and goes.
    world.service("db", 2, json!([]));
    world.roll_out();
    assert_eq!(world.ids("app"), app);
    world.failing.insert("registry.example/db:2".to_owned());
    world.go_on(120, 10);
    assert_eq!(world.running("db"), 0);
    assert_eq!(world.ids("app"), app);
    // Its own instance is replaced meanwhile, and more of them are added.
    let (_, node, _) = world.wanted("app").remove(0);
    world.at(&node).speaks = false;
    world.go_on(300, 10);
    world.at(&node).speaks = true;
    world.go_on(60, 10);
    assert_eq!(world.running("app"), 1);
    world.apply_workload("app", |file| {
        file["spec"]["startAfter"] = after("db", "Healthy");
        file["spec"]["replicas"] = json!(3);
    });
    world.delete_workload("db");
    world.roll_out();
    assert_eq!(world.running("app"), 3);
}

#[test]
fn a_workload_that_was_stopped_starts_after_the_other_one_again() {
    let mut world = World::with_machines(2);
    world.service("db", 1, json!([]));
    world.service("app", 1, after("db", "Healthy"));
    world.roll_out();
    let app = |replicas: u32| {
        move |file: &mut serde_json::Value| {
            file["spec"]["startAfter"] = after("db", "Healthy");
            file["spec"]["replicas"] = json!(replicas);
        }
    };
    world.apply_workload("app", app(0));
    world.apply_workload("db", |file| file["spec"]["replicas"] = json!(0));
    world.settle();
    world.apply_workload("app", app(2));
    world.settle();
    assert_eq!(world.wanted("app").len(), 0);
    assert_eq!(
        world.available("app").1,
        "it starts when `db` is healthy: it has 0 replicas"
    );
    world.apply_workload("db", |_| {});
    world.roll_out();
    assert_eq!(world.running("app"), 2);
}

#[test]
fn after_the_timeout_it_starts_or_says_that_it_waits_too_long_whoever_leads() {
    let mut world = World::with_machines(2);
    let start = json!([{"workload": "db", "timeoutSeconds": 100, "onTimeout": "start"}]);
    let wait = json!([{"workload": "db", "timeoutSeconds": 100}]);
    world.service("app", 1, start);
    world.service("other", 1, wait);
    world.settle();
    assert_eq!(
        world.available("app").1,
        "it starts when `db` is healthy: the namespace `default` has no such workload; it starts without that after 100 s"
    );
    world.go_on(60, 10);
    world.new_leader();
    world.go_on(30, 10);
    assert_eq!(world.wanted("app").len(), 0);
    world.go_on(20, 10);
    world.settle();
    assert_eq!(world.running("app"), 1);
    assert_eq!(
        world.events("DependencyTimedOut"),
        [
            "it starts after 100 s although `db` is not healthy: the namespace `default` has no such workload"
        ]
    );
    assert_eq!(world.wanted("other").len(), 0);
    assert_eq!(world.available("other").0, "DependencyTimedOut");
    world.service("db", 1, json!([]));
    world.roll_out();
    assert_eq!(world.running("other"), 1);
}

#[test]
fn a_condition_that_the_others_type_never_fulfils_is_for_a_person() {
    let mut world = World::with_machines(2);
    world.migrate(1, json!([]));
    world.service("db", 1, json!([]));
    world.service("app", 1, after("migrate", "Healthy"));
    world.service("web", 1, after("db", "Completed"));
    world.roll_out();
    for (name, part) in [("app", "is a Job"), ("web", "is no Job")] {
        let (reason, message) = world.available(name);
        assert_eq!(reason, "DependencyFailed", "{message}");
        assert!(message.contains(part), "{message}");
    }
}

/// The API refuses circles; an automatic rollback may bring one back.
#[test]
fn workloads_in_a_circle_start() {
    let mut world = World::with_machines(2);
    world.service("a", 1, after("b", "Healthy"));
    world.service("b", 1, after("c", "Started"));
    world.service("c", 1, after("a", "Healthy"));
    world.service("d", 1, after("a", "Healthy"));
    world.roll_out();
    for name in ["a", "b", "c", "d"] {
        assert_eq!(world.running(name), 1, "{name}");
    }
    let snapshot = world.snapshot();
    let key = WorkloadKey::new(NAMESPACE, "a");
    let own = &snapshot.workloads[&key].parsed.as_ref().unwrap().workload;
    let order = StartOrder::of(&snapshot, &key, own.spec.start_after.iter());
    let circle = order.circle.unwrap();
    assert_eq!(circle, ["a", "b", "c", "a"]);
}

#[derive(Debug, Clone)]
enum Act {
    Apply(usize, u32),
    Fail(usize, bool),
    Stop(usize),
    Silence(usize, bool),
    NewLeader,
    Pass(u64),
    Plan,
    Agents,
}

const NAMES: [&str; 4] = ["db", "migrate", "app", "web"];

/// `web` starts after `app`, `app` after `migrate` and `db`, `migrate` after `db`.
fn apply(world: &mut World, which: usize, version: u32) {
    match which {
        0 => world.service("db", version, json!([])),
        1 => world.migrate(version, after("db", "Healthy")),
        2 => {
            let both = json!([
                {"workload": "migrate", "condition": "Completed"},
                {"workload": "db"},
            ]);
            world.service("app", version, both);
        }
        _ => world.service("web", version, after("app", "Started")),
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..NAMES.len(), 1u32..4).prop_map(|(which, version)| Act::Apply(which, version)),
        2 => (0..NAMES.len(), any::<bool>()).prop_map(|(which, on)| Act::Fail(which, on)),
        1 => (0..NAMES.len()).prop_map(Act::Stop),
        1 => (1usize..3, any::<bool>()).prop_map(|(which, on)| Act::Silence(which, on)),
        1 => Just(Act::NewLeader),
        3 => prop_oneof![0u64..10, 0u64..700].prop_map(Act::Pass),
        8 => Just(Act::Plan),
        8 => Just(Act::Agents),
    ]
}

/// Images of `app` that had an instance.
fn versions_of_app(world: &mut World) -> BTreeSet<String> {
    let wanted = world.wanted("app").into_iter();
    wanted.map(|(.., one)| one.image.clone()).collect()
}

fn migrated(world: &mut World) -> bool {
    let snapshot = world.snapshot();
    let key = WorkloadKey::new(NAMESPACE, "migrate");
    let Some(entry) = snapshot.workloads.get(&key) else {
        return false;
    };
    let generation = entry.meta.value.generation;
    let runs = snapshot.jobs.get(&key).into_iter();
    let mut runs = runs.flat_map(|job| job.runs.values());
    runs.any(|run| run.value.generation == generation && run.value.phase == RunPhase::Succeeded)
}

fn play(acts: &[Act]) -> Result<(), TestCaseError> {
    let mut world = World::with_machines(3);
    let mut seen = BTreeSet::new();
    let plan = |world: &mut World, seen: &mut BTreeSet<String>| {
        let is_migrated = migrated(world);
        let before = NAMES.map(|name| world.has_workload(name) && !world.wanted(name).is_empty());
        world.step();
        let versions = match world.has_workload("app") {
            true => versions_of_app(world),
            false => BTreeSet::new(),
        };
        for version in &versions {
            prop_assert!(
                is_migrated || seen.contains(version),
                "{version} started before its migration"
            );
        }
        seen.extend(versions);
        // A plan stops nothing of a workload because of another one.
        for (name, had) in NAMES.into_iter().zip(before) {
            let stops = had && world.wanted(name).is_empty() && name != "migrate";
            let wants = stops && world.status(name).replicas > 0;
            prop_assert!(!wants || !world.served_alone(name), "{name} was stopped");
        }
        Ok(())
    };
    for act in acts {
        match *act {
            Act::Apply(which, version) => apply(&mut world, which, version),
            Act::Fail(which, on) => {
                for version in 1..4 {
                    let image = format!("registry.example/{}:{version}", NAMES[which]);
                    match on {
                        true => world.failing.insert(image),
                        false => world.failing.remove(&image),
                    };
                }
            }
            Act::Stop(which) if which != 1 && world.has_workload(NAMES[which]) => {
                world.apply_workload(NAMES[which], |file| file["spec"]["replicas"] = json!(0));
            }
            Act::Stop(_) => {}
            Act::Silence(which, on) => world.at(&format!("n{which}")).speaks = !on,
            Act::NewLeader => world.new_leader(),
            Act::Pass(time) => world.pass(seconds(time)),
            Act::Plan => plan(&mut world, &mut seen)?,
            Act::Agents => world.agents(),
        }
    }
    // When nothing fails any more, everything starts in its order.
    world.failing.clear();
    for number in 1..=3 {
        world.at(&format!("n{number}")).speaks = true;
    }
    for which in 0..NAMES.len() {
        apply(&mut world, which, 9);
    }
    for _ in 0..20 {
        for _ in 0..6 {
            plan(&mut world, &mut seen)?;
            world.agents();
        }
        world.pass(seconds(60));
    }
    world.roll_out();
    for name in ["db", "app", "web"] {
        prop_assert_eq!(world.running(name), 1, "{}", name);
        prop_assert_eq!(world.status(name).phase, WorkloadPhase::Running, "{}", name);
    }
    prop_assert_eq!(world.status("migrate").phase, WorkloadPhase::Succeeded);
    Ok(())
}

impl World {
    fn has_workload(&mut self, name: &str) -> bool {
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(NAMESPACE, name);
        let entry = snapshot.workloads.get(&key);
        entry.is_some_and(|entry| entry.status.is_some())
    }

    /// An instance of the workload runs that is of its present version and its machine speaks.
    fn served_alone(&mut self, name: &str) -> bool {
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(NAMESPACE, name);
        let template = snapshot.workloads[&key].meta.value.template_hash.clone();
        let ids: Vec<String> = snapshot
            .instances_of(&key)
            .filter(|(_, entry)| entry.assignment.value.template_hash == template)
            .map(|(id, _)| id.clone())
            .collect();
        self.machines.values().any(|machine| {
            let running = |id: &String| {
                let report = machine.instances.get(id);
                report.is_some_and(|report| report.phase == InstancePhase::Running)
            };
            machine.speaks && ids.iter().any(running)
        })
    }
}

proptest! {
    #![proptest_config(random_cases(24))]

    #[test]
    fn first_starts_keep_their_order_and_nothing_waits_for_ever(
        acts in proptest::collection::vec(act(), 0..60)
    ) {
        play(&acts)?;
    }
}
