//! Objects stored by earlier versions, and those that a later version may store, are read
//! completely (ARCHITECTURE.md, invariant 10). `tests/stored/README.md` describes the origin of the
//! dumps.

use jiff::{Timestamp, ToSpan};
use serde_json::{Map, Value, json};

use super::*;
use kat_plan::plan;
use kat_types::{
    api::NodeReport,
    store::snapshot::{ObservedReports, ReportedNode},
};

const DUMPS: [(&str, &str, &str); 1] = [(
    "1",
    include_str!("../../../tests/stored/1/store.json"),
    include_str!("../../../tests/stored/1/reports.json"),
)];

/// Keys that the first plan creates: a service from a version without service addresses gets one.
/// Besides these keys and the machines' lists of images to keep ([`told_of_images`]), nothing is
/// changed.
const GIVEN: [&str; 2] = [
    "/kat/network/services/default/web/ip",
    "/kat/network/services/default/web/balance",
];

fn entries(dump: &Map<String, Value>) -> MirrorEntries {
    let numbered = (1..).zip(dump);
    let entries = numbered.map(|(revision, (key, value))| {
        let value = value.as_str().unwrap();
        let entry = KeyValue {
            key: key.clone(),
            value: value.as_bytes().to_vec(),
            mod_revision: revision,
            create_revision: revision,
        };
        (Arc::from(key.as_str()), Arc::new(entry))
    });
    entries.collect()
}

fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap()
}

/// Each machine's report, heard now.
fn observed(reports: &Map<String, Value>) -> ObservedReports {
    let reports = reports.iter().map(|(name, report)| {
        let report: NodeReport = serde_json::from_value(report.clone()).unwrap();
        let reported = ReportedNode {
            age: std::time::Duration::from_secs(1),
            steady: std::time::Duration::from_secs(3600),
            report: Arc::new(report),
        };
        (name.clone(), reported)
    });
    ObservedReports {
        leading_for: std::time::Duration::from_secs(3600),
        reports: reports.collect(),
    }
}

/// What a plan does to assignments, addresses, indexes and registrations.
fn touched(snapshot: &Snapshot, observed: &ObservedReports) -> Vec<String> {
    let newest = snapshot
        .events
        .values()
        .map(|event| event.value.timestamp)
        .max();
    let now: Timestamp = newest.unwrap().get().unwrap();
    let planned = plan(snapshot, observed, now + 1.minute(), 7);
    let operations = planned
        .changes
        .into_iter()
        .flat_map(|change| change.operations);
    let keys = operations.map(|operation| operation.key().to_owned());
    let statuses = [
        "/kat/nodes/status/",
        "/kat/workloads/status/",
        "/kat/events/",
        keys::ENDPOINTS,
    ];
    keys.filter(|key| !statuses.iter().any(|prefix| key.starts_with(prefix)))
        .collect()
}

/// Adds an unknown field to every object that is not a map, and replaces words by unknown ones.
/// `within` is the name of the field with this value.
fn newer(value: &mut Value, within: &str) {
    match value {
        Value::Object(fields) => {
            let map = ["labels", "machines", "members", "instances", "nodeSelector"];
            for (name, field) in fields.iter_mut() {
                match name.as_str() {
                    "phase" | "health" | "healthStatus" => *field = json!("Newfangled"),
                    "effect" => *field = json!("Evict"),
                    "type" if within == "conditions" => *field = json!("Mood"),
                    _ => newer(field, name),
                }
            }
            if !map.contains(&within) {
                fields.insert("fromLater".to_owned(), json!({"a": [1, "b"]}));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| newer(item, within)),
        _ => {}
    }
}

#[test]
fn what_an_earlier_version_stored_is_read_and_left_as_it_is() {
    for (version, store, reports) in DUMPS {
        let mut builder = SnapshotBuilder::default();
        let snapshot = builder.build(&entries(&object(store)), 1000);
        assert!(
            builder.reported.is_empty(),
            "{version}: {:?}",
            builder.reported
        );
        assert!(
            snapshot.nodes.len() >= 3 && !snapshot.instances.is_empty(),
            "{version}"
        );
        assert!(
            !snapshot.tokens.is_empty() && !snapshot.allocations.is_empty(),
            "{version}"
        );
        assert!(
            snapshot.members.is_some() && snapshot.endpoints.is_some(),
            "{version}"
        );
        assert!(
            snapshot
                .workloads
                .values()
                .all(|entry| entry.parsed.is_ok()),
            "{version}"
        );
        let whole = snapshot.nodes.values().all(|node| {
            node.status.is_some() && node.subnet.is_some() && node.desired.revision > 0
        });
        assert!(whole, "{version}");
        let touched = touched(&snapshot, &observed(&object(reports)));
        let mut expected: Vec<String> = GIVEN.map(str::to_owned).into();
        expected.extend(told_of_images(&snapshot));
        expected.extend(told_of_namespaces(&snapshot));
        assert_eq!(touched, expected, "{version}");
    }
}

#[test]
fn what_a_later_version_stored_is_read_and_left_as_it_is() {
    for (version, store, reports) in DUMPS {
        let mut dump = object(store);
        let plain = SnapshotBuilder::default().build(&entries(&dump), 1000);
        for (key, text) in &mut dump {
            // Files are the user's words, and taken as they are.
            let Ok(mut value) = serde_json::from_str::<Value>(text.as_str().unwrap()) else {
                continue;
            };
            if value.is_object() && !key.contains("/manifest/") && !key.contains("/archive/") {
                newer(&mut value, "");
                *text = Value::String(value.to_string());
            }
        }
        let mut builder = SnapshotBuilder::default();
        let snapshot = builder.build(&entries(&dump), 1000);
        assert!(
            builder.reported.is_empty(),
            "{version}: {:?}",
            builder.reported
        );
        assert_eq!(snapshot.nodes.len(), plain.nodes.len(), "{version}");
        assert_eq!(snapshot.instances.len(), plain.instances.len(), "{version}");
        let mut said = Value::Object(object(reports));
        for report in said.as_object_mut().unwrap().values_mut() {
            newer(report, "");
        }
        let observed = observed(said.as_object().unwrap());
        let mut expected: Vec<String> = GIVEN.map(str::to_owned).into();
        expected.extend(keys_of_names(&plain));
        expected.extend(told_of_images(&plain));
        expected.extend(told_of_namespaces(&plain));
        assert_eq!(touched(&snapshot, &observed), expected, "{version}");
    }
}

/// No version before wrote these keys.
fn told_of_images(snapshot: &Snapshot) -> Vec<String> {
    let nodes = snapshot.nodes.keys();
    nodes.map(|node| keys::desired_images(node)).collect()
}

/// Earlier versions did not write whose an address is.
fn told_of_namespaces(snapshot: &Snapshot) -> Vec<String> {
    let instances = snapshot.allocations.keys();
    instances.map(|id| keys::allocation(id)).collect()
}

/// The DNS keys except those of machines. An instance with a health state of a newer version does
/// not count as healthy, so it has no name.
fn keys_of_names(snapshot: &Snapshot) -> Vec<String> {
    let of_machines = |key: &&String| !key.starts_with("/kat/dns/node/");
    snapshot.dns.keys().filter(of_machines).cloned().collect()
}
