use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::*;
use kat_types::{
    api::{NodeResources, WorkloadPhase},
    resource::{Bytes, MilliCpu, ResourceList},
    store::{
        keys,
        records::{NodeRegistration, WorkloadMeta},
        revisions::WorkloadKey,
        snapshot::ReportedNode,
    },
};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn put<T: Serialize>(key: String, value: &T) -> WriteOperation {
    WriteOperation::Put(key, serde_json::to_vec(value).unwrap())
}

fn machine(number: u8) -> Vec<WriteOperation> {
    let name = format!("n{number}");
    let registration = NodeRegistration::new(&name, now());
    let subnet = format!("10.100.{}.0/24", 2 * number);
    vec![
        put(keys::registration(&name), &registration),
        WriteOperation::Put(keys::network_node(&name, "subnet"), subnet.into()),
        put(
            keys::desired_meta(&name),
            &json!({"schema": 1, "revision": 1, "count": 0}),
        ),
    ]
}

/// Reports of machines with their age in seconds.
fn reports(ages: &[(&str, u64)]) -> ObservedReports {
    let resources = ResourceList {
        cpu: Some(MilliCpu(4000)),
        memory: Some(Bytes(8 << 30)),
        storage: None,
    };
    let report = |name: &str, age| ReportedNode {
        age: Duration::from_secs(age),
        steady: Duration::from_secs(3600),
        report: Arc::new(NodeReport {
            node_name: name.to_owned(),
            node_uid: name.to_owned(),
            resources: NodeResources {
                capacity: resources,
                allocatable: resources,
            },
            desired_revision: 1,
            ..NodeReport::default()
        }),
    };
    ObservedReports {
        leading_for: Duration::from_secs(3600),
        reports: ages
            .iter()
            .map(|(name, age)| ((*name).to_owned(), report(name, *age)))
            .collect(),
    }
}

fn text(image: &str, replicas: u32) -> String {
    format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {{name: web}}\nspec:\n  type: Service\n  source: {{image: 'registry.lab/{image}'}}\n  replicas: {replicas}\n  restartPolicy: {{condition: Always}}\n  container: {{name: app}}\n"
    )
}

fn applied(image: &str, replicas: u32, generation: u64) -> Vec<WriteOperation> {
    let meta = WorkloadMeta {
        schema: 1,
        uid: "uid".to_owned(),
        generation,
        spec_hash: format!("{image}{replicas}"),
        template_hash: image.to_owned(),
        index: 0,
        created: now(),
        updated: now(),
        deleting: false,
        deletes_volumes: false,
        paused: false,
        restarted: None,
        stopped: None,
        image: Default::default(),
    };
    vec![
        WriteOperation::Put(
            keys::manifest("default", "web", "workload.kat"),
            text(image, replicas).into(),
        ),
        put(keys::workload_meta("default", "web"), &meta),
    ]
}

/// Two machines on which `web` runs with this many replicas.
fn settled(replicas: u32) -> (Rehearsal, ObservedReports) {
    let mut rehearsal = Rehearsal::new(Listing {
        items: Vec::new(),
        revision: 1,
    });
    rehearsal.write(&[machine(1), machine(2), applied("web:1", replicas, 1)].concat());
    let mut observed = reports(&[("n1", 1), ("n2", 1)]);
    loop {
        let snapshot = rehearsal.snapshot();
        let planned = plan::plan(&snapshot, &observed, now(), plan::SEED);
        for change in &planned.changes {
            rehearsal.write(&change.operations);
        }
        let snapshot = rehearsal.snapshot();
        if !obey(&snapshot, &mut observed) && planned.changes.is_empty() {
            return (rehearsal, observed);
        }
    }
}

fn phase(snapshot: &Snapshot) -> WorkloadPhase {
    let entry = &snapshot.workloads[&WorkloadKey::new("default", "web")];
    entry.status.as_ref().unwrap().value.status.phase
}

/// The machine of each instance.
fn places(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let instances = snapshot.instances.iter();
    instances
        .map(|(id, entry)| (id.clone(), entry.node.clone()))
        .collect()
}

#[test]
fn a_replacement_is_played_to_its_end() {
    let (mut rehearsal, observed) = settled(3);
    let before = places(&rehearsal.snapshot());
    rehearsal.write(&applied("web:2", 3, 2));
    let end = rehearsal.play(observed, now());
    assert!(end.complete);
    assert_eq!(phase(&end.snapshot), WorkloadPhase::Running);
    let after = places(&end.snapshot);
    assert_eq!((before.len(), after.len()), (3, 3));
    assert!(after.keys().all(|id| !before.contains_key(id)), "{after:?}");
    let images = end.snapshot.instances.values();
    let mut images = images.map(|entry| &entry.assignment.value.image);
    assert!(images.all(|image| image == "registry.lab/web:2"));
}

/// The choice between equal machines does not depend on other writes.
#[test]
fn a_rehearsal_chooses_the_same_machines_as_the_later_plan() {
    let places_after = |writes: usize| {
        let (mut rehearsal, observed) = settled(3);
        for _ in 0..writes {
            rehearsal.write(&applied("web:1", 3, 1));
        }
        rehearsal.write(&applied("web:2", 3, 2));
        places(&rehearsal.play(observed, now()).snapshot)
    };
    let shown = places_after(0);
    assert!((1..12).all(|writes| places_after(writes) == shown));
}

#[test]
fn a_silent_machine_confirms_nothing() {
    let (mut rehearsal, mut observed) = settled(2);
    let before = rehearsal.snapshot();
    assert_eq!(places(&before).values().collect::<BTreeSet<_>>().len(), 2);
    observed.reports.get_mut("n2").unwrap().age = Duration::from_secs(600);
    rehearsal.write(&applied("web:1", 0, 2));
    let end = rehearsal.play(observed, now());
    let left: Vec<String> = places(&end.snapshot).into_values().collect();
    assert_eq!(left, ["n2"], "what is there may still run");
}

#[test]
fn what_has_failed_does_not_become_well_by_waiting() {
    let (mut rehearsal, mut observed) = settled(1);
    for reported in observed.reports.values_mut() {
        let mut report = NodeReport::clone(&reported.report);
        for instance in &mut report.workload_instances {
            instance.phase = InstancePhase::Restarting;
            instance.reason = "CrashLoop".to_owned();
        }
        reported.report = Arc::new(report);
    }
    rehearsal.write(&applied("web:1", 2, 2));
    let end = rehearsal.play(observed, now());
    assert!(end.complete);
    assert_eq!(phase(&end.snapshot), WorkloadPhase::Degraded);
    assert_eq!(places(&end.snapshot).len(), 2);
}

#[test]
fn a_rehearsal_beyond_its_limit_is_marked_incomplete() {
    let (mut rehearsal, observed) = settled(3);
    rehearsal.write(&applied("web:2", 3, 2));
    assert!(!rehearsal.play_within(2, observed, now()).complete);
}
