use std::sync::Arc;

use super::*;
use kat_types::{
    api::{ETCD_CONDITION, InstancePhase, NodePhase, NodeReport, NodeRole, OverlayPeer},
    assignment::{Assignment, WorkloadUser},
    resource::{EnvVar, Workload},
    store::{
        members::{ClusterMembers, MemberRecord},
        records::{InstanceRecord, WorkloadMeta},
        revisions::Stored,
        snapshot::{InstanceEntry, NodeEntry, ParsedWorkload, ReportedNode},
    },
};

fn workload(variables: &[(&str, &str)]) -> Workload {
    let env: Vec<_> = variables
        .iter()
        .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
        .collect();
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web"},
        "spec": {
            "type": "Service",
            "source": {"image": "registry.example/web:1"},
            "replicas": 2,
            "restartPolicy": {"condition": "Always"},
            "container": {"env": env, "quadlet": {"Environment": "A=s3cret"}},
            "sidecars": [{"env": env}],
            "initContainers": [{"env": env}]
        }
    }))
    .unwrap()
}

fn entry(parsed: Result<Workload, String>) -> WorkloadEntry {
    WorkloadEntry {
        meta: Stored {
            revision: 7,
            value: WorkloadMeta {
                schema: 1,
                uid: "u".to_owned(),
                generation: 3,
                spec_hash: String::new(),
                template_hash: String::new(),
                index: 0,
                created: Timestamp::UNIX_EPOCH,
                updated: Timestamp::UNIX_EPOCH,
                deleting: false,
                deletes_volumes: false,
                paused: false,
                restarted: None,
                stopped: None,
                image: Default::default(),
            },
        },
        parsed: parsed.map(|workload| Arc::new(ParsedWorkload::new(workload, None, None))),
        files: BTreeMap::from([(
            "workload.kat".to_owned(),
            Stored {
                revision: 9,
                value: "".into(),
            },
        )]),
        status: None,
        archive: BTreeMap::new(),
        earlier: None,
    }
}

fn snapshot(entry: WorkloadEntry) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let key = WorkloadKey::new("default", "web");
    snapshot.workloads.insert(key, Arc::new(entry));
    snapshot
}

fn seen<T>(snapshot: &Snapshot, look: impl Fn(&ApiView<'_>) -> T) -> T {
    let observed = ObservedReports::default();
    look(&ApiView {
        snapshot,
        observed: &observed,
        leader: None,
        store: None,
        now: Timestamp::UNIX_EPOCH,
    })
}

#[test]
fn no_value_of_a_variable_is_shown_anywhere() {
    let snapshot = snapshot(entry(Ok(workload(&[("A", "s3cret"), ("B", "s3cret")]))));
    let items = seen(&snapshot, |view| view.workloads(None));
    let text = serde_json::to_string(&items).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    let container = &items[0].spec.workload.container;
    let names: Vec<_> = container
        .env
        .iter()
        .map(|variable| variable.name.as_str())
        .collect();
    assert_eq!(names, ["A", "B"]);
    let masked = |variable: &EnvVar| variable.value.as_deref() == Some(MASK);
    assert!(container.env.iter().all(masked));
}

#[test]
fn the_newest_part_gives_the_version() {
    let snapshot = snapshot(entry(Ok(workload(&[]))));
    let item = &seen(&snapshot, |view| view.workloads(Some("default")))[0];
    assert_eq!(item.metadata.resource_version, "9");
    assert_eq!(item.metadata.generation, 3);
    assert_eq!(item.status.replicas, 2);
    assert!(seen(&snapshot, |view| view.workloads(Some("other"))).is_empty());
}

#[test]
fn an_unreadable_workload_is_shown_with_its_reason() {
    let snapshot = snapshot(entry(Err("line 3 is odd".to_owned())));
    let item = &seen(&snapshot, |view| view.workloads(None))[0];
    let condition = &item.status.conditions[0];
    assert_eq!(
        (condition.kind.as_str(), condition.status),
        ("Readable", false)
    );
    assert!(condition.message.contains("line 3 is odd"));
}

fn with_instance(record: Option<InstanceRecord>, node_phase: NodePhase) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let user = WorkloadUser::from_index(4, "default", "web").unwrap();
    let assignment: Assignment = serde_json::from_value(serde_json::json!({
        "schema": 1, "instance": "web-abcde", "namespace": "default", "workload": "web",
        "workloadUid": "u", "workloadType": "Service", "slot": 1, "generation": 3,
        "templateHash": "h", "user": user, "address": "10.100.0.5", "image": "web:1",
        "container": {}, "restartPolicy": {"condition": "Always"}
    }))
    .unwrap();
    snapshot.instances.insert(
        "web-abcde".to_owned(),
        InstanceEntry {
            node: "n1".to_owned(),
            created_revision: 5,
            assignment: Stored {
                revision: 5,
                value: Arc::new(assignment),
            },
        },
    );
    let registration = serde_json::json!({
        "schema": 1, "uid": "n", "identityKey": "", "architecture": "amd64", "etcd": true,
        "created": "2026-01-01T00:00:00Z"
    });
    let status = kat_types::store::records::NodeStatusRecord {
        phase: node_phase,
        addresses: vec!["192.0.2.7".to_owned()],
        instances: record
            .into_iter()
            .map(|record| ("web-abcde".to_owned(), record))
            .collect(),
        ..Default::default()
    };
    snapshot.leader_endpoint = Some("192.0.2.7:9115".to_owned());
    snapshot.nodes.insert(
        "n1".to_owned(),
        NodeEntry {
            registration: Stored {
                revision: 2,
                value: serde_json::from_value(registration).unwrap(),
            },
            status: Some(Stored {
                revision: 8,
                value: status,
            }),
            subnet: Some("10.100.2.0/23".parse().unwrap()),
            public_key: None,
            endpoints: Vec::new(),
            reach: Default::default(),
            desired: Stored {
                revision: 0,
                value: Default::default(),
            },
        },
    );
    snapshot
}

#[test]
fn a_machine_shows_which_of_its_gpus_an_instance_has() {
    let mut snapshot = with_instance(None, NodePhase::Ready);
    let entry = snapshot.instances.get_mut("web-abcde").unwrap();
    let mut assignment = serde_json::to_value(&*entry.assignment.value).unwrap();
    assignment["gpu"] = "amd.com/gpu=1".into();
    entry.assignment.value = Arc::new(serde_json::from_value(assignment).unwrap());
    let node = snapshot.nodes.get_mut("n1").unwrap();
    let gpus = serde_json::json!([{"name": "amd.com/gpu=0"}, {"name": "amd.com/gpu=1"}]);
    node.status.as_mut().unwrap().value.gpus = serde_json::from_value(gpus).unwrap();
    let one = seen(&snapshot, |view| view.node("n1")).unwrap().status;
    let all = seen(&snapshot, |view| view.nodes().pop()).unwrap().status;
    assert_eq!(all.gpus, one.gpus);
    let used = one.gpus.iter().map(|gpu| (gpu.name.as_str(), gpu.used));
    let used: Vec<(&str, bool)> = used.collect();
    assert_eq!(used, [("amd.com/gpu=0", false), ("amd.com/gpu=1", true)]);
}

#[test]
fn a_machine_has_the_sum_of_what_its_instances_request() {
    let mut snapshot = with_instance(None, NodePhase::Ready);
    let requested = |snapshot: &Snapshot| {
        let one = seen(snapshot, |view| view.node("n1")).unwrap().status;
        let all = seen(snapshot, |view| view.nodes().pop()).unwrap().status;
        assert_eq!(all.requested, one.requested);
        let text = serde_json::to_value(one.requested).unwrap();
        (one.instances, text)
    };
    let sum = |cpu: &str, memory: &str| serde_json::json!({"cpu": cpu, "memory": memory});
    assert_eq!(requested(&snapshot), (1, sum("0", "0")));
    let first = snapshot.instances.get("web-abcde").unwrap().clone();
    for (id, wanted, on) in [
        ("web-bbbbb", "Running", "n1"),
        ("web-ccccc", "Stopped", "n1"),
        ("web-ddddd", "Prepared", "n1"),
        ("web-eeeee", "Running", "n2"),
    ] {
        let mut assignment = serde_json::to_value(&*first.assignment.value).unwrap();
        assignment["instance"] = id.into();
        assignment["wanted"] = wanted.into();
        assignment["container"]["resources"] = serde_json::json!({
            "requests": {"cpu": "500m"}, "limits": {"cpu": "2", "memory": "1Gi"}});
        let mut entry = first.clone();
        on.clone_into(&mut entry.node);
        entry.assignment.value = Arc::new(serde_json::from_value(assignment).unwrap());
        snapshot.instances.insert(id.to_owned(), entry);
    }
    // One that is stopped has its share until it has ended, one that is prepared has none yet.
    assert_eq!(requested(&snapshot), (4, sum("1", "2Gi")));
}

fn phase(snapshot: &Snapshot) -> (InstancePhase, String) {
    let item = seen(snapshot, |view| view.instance("default", "web-abcde")).unwrap();
    (item.status.phase, item.status.reason)
}

#[test]
fn every_phase_has_a_reason_until_it_runs() {
    let running = InstanceRecord {
        phase: InstancePhase::Running,
        ..InstanceRecord::default()
    };
    let failed = InstanceRecord {
        phase: InstancePhase::Failed,
        reason: "CrashLoop".to_owned(),
        ..InstanceRecord::default()
    };
    let waiting = (InstancePhase::Scheduled, "WaitingForAgent".to_owned());
    assert_eq!(phase(&with_instance(None, NodePhase::Ready)), waiting);
    let shown = phase(&with_instance(Some(running.clone()), NodePhase::Ready));
    assert_eq!(shown, (InstancePhase::Running, String::new()));
    let lost = (InstancePhase::Unknown, "NodeNotReady".to_owned());
    assert_eq!(
        phase(&with_instance(Some(running), NodePhase::NotReady)),
        lost
    );
    let over = phase(&with_instance(Some(failed), NodePhase::NotReady));
    assert_eq!(over, (InstancePhase::Failed, "CrashLoop".to_owned()));
}

#[test]
fn a_machine_that_a_new_store_has_not_heard_is_shown_not_ready_and_its_instances_unknown() {
    let running = InstanceRecord {
        phase: InstancePhase::Running,
        ..InstanceRecord::default()
    };
    let mut snapshot = with_instance(Some(running), NodePhase::Ready);
    let shown = |snapshot: &Snapshot| {
        let node = seen(snapshot, |view| view.node("n1")).unwrap().status;
        let overview = seen(snapshot, |view| view.overview(false));
        let listed = (overview.nodes[0].phase, overview.nodes[0].reason.clone());
        assert_eq!(listed, (node.phase, node.reason.clone()));
        (node.phase, node.reason)
    };
    assert_eq!(shown(&snapshot), (NodePhase::Ready, String::new()));
    let status = snapshot.nodes.get_mut("n1").unwrap().status.as_mut();
    assert!(status.unwrap().value.set_unheard("n1"));
    let unheard = (NodePhase::NotReady, "NoHeartbeat".to_owned());
    assert_eq!(shown(&snapshot), unheard);
    let unknown = (InstancePhase::Unknown, "NodeNotReady".to_owned());
    assert_eq!(phase(&snapshot), unknown);
}

#[test]
fn an_instance_is_found_in_its_own_namespace_alone() {
    let snapshot = with_instance(None, NodePhase::Ready);
    assert!(seen(&snapshot, |view| view.instance("other", "web-abcde")).is_none());
    let item = seen(&snapshot, |view| view.instance("default", "web-abcde")).unwrap();
    assert_eq!(item.status.unit, "kat-default-web-abcde.service");
    assert_eq!((item.status.uid, item.status.slot), (20_004, 1));
}

#[test]
fn a_machine_shows_its_place_and_its_roles() {
    let snapshot = with_instance(None, NodePhase::Ready);
    let node = seen(&snapshot, |view| view.node("n1")).unwrap();
    assert_eq!(node.status.overlay_address, "10.100.2.1");
    assert_eq!(
        node.status.roles,
        [NodeRole::Leader, NodeRole::Etcd, NodeRole::Worker]
    );
    assert_eq!(node.status.instances, 1);
    assert_eq!(node.metadata.resource_version, "8");
    assert_eq!(seen(&snapshot, |view| view.nodes()), [node]);
    // Behind NAT, a leader's endpoint is its overlay address.
    let mut hidden = with_instance(None, NodePhase::Ready);
    hidden.leader_endpoint = Some("10.100.2.1:9115".to_owned());
    let node = seen(&hidden, |view| view.node("n1")).unwrap();
    assert!(node.status.roles.contains(&NodeRole::Leader));
    // The leader's name decides, even if another machine reports the same address.
    hidden.leader_name = Some("n2".to_owned());
    let node = seen(&hidden, |view| view.node("n1")).unwrap();
    assert!(!node.status.roles.contains(&NodeRole::Leader));
}

#[test]
fn a_list_of_machines_has_the_peers_that_do_not_answer() {
    let snapshot = with_instance(None, NodePhase::Ready);
    let mut report = NodeReport::default();
    for (name, unanswered_seconds) in [("n2", None), ("n3", Some(45))] {
        report.overlay_network.peers.push(OverlayPeer {
            name: name.to_owned(),
            unanswered_seconds,
            ..OverlayPeer::default()
        });
    }
    let mut observed = ObservedReports::default();
    observed.reports.insert(
        "n1".to_owned(),
        ReportedNode {
            age: std::time::Duration::ZERO,
            steady: std::time::Duration::ZERO,
            report: Arc::new(report),
        },
    );
    let view = ApiView {
        snapshot: &snapshot,
        observed: &observed,
        leader: None,
        store: None,
        now: Timestamp::UNIX_EPOCH,
    };
    let names = |item: &kat_types::api::NodeItem| {
        let peers = item.status.peers.iter();
        peers.map(|peer| peer.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&view.nodes()[0]), ["n3"]);
    assert_eq!(names(&view.node("n1").unwrap()), ["n2", "n3"]);
}

#[test]
fn a_member_of_etcd_without_a_vote_says_since_when_also_while_it_is_added_again() {
    let since = Timestamp::from_second(1_000).unwrap();
    let shown = |member: Option<(bool, bool)>, next: &[&str]| {
        let mut snapshot = with_instance(None, NodePhase::Ready);
        let record = member.map(|(voting, healthy)| MemberRecord {
            id: "a".to_owned(),
            voting,
            healthy,
        });
        let is_voting = member.is_some_and(|(voting, _)| voting);
        let voteless = (!is_voting).then(|| ("n1".to_owned(), since));
        snapshot.members = Some(Stored {
            revision: 12,
            value: ClusterMembers {
                schema: 1,
                members: record
                    .map(|one| ("n1".to_owned(), one))
                    .into_iter()
                    .collect(),
                next: next.iter().map(|name| (*name).to_owned()).collect(),
                voteless_since: voteless.into_iter().collect(),
                ..ClusterMembers::default()
            },
        });
        let node = seen(&snapshot, |view| view.node("n1")).unwrap();
        assert_eq!(node.metadata.resource_version, "12");
        let mut conditions = node.status.conditions.into_iter();
        let found = conditions.find(|one| one.kind == ETCD_CONDITION).unwrap();
        (found.reason, found.message, found.since)
    };
    let is = |reason: Reason, message: &str, since: Option<Timestamp>| {
        (String::from(reason), message.to_owned(), time(since))
    };
    assert_eq!(
        shown(Some((false, false)), &["n2"]),
        is(
            Reason::Starts,
            "its etcd has no vote and does not answer yet",
            Some(since)
        )
    );
    assert_eq!(
        shown(None, &[]),
        is(
            Reason::Starts,
            "its member was removed, and is to be added again",
            Some(since)
        )
    );
    let catches_up = "its etcd answers and has no vote yet";
    assert_eq!(
        shown(Some((false, true)), &[]),
        is(Reason::CatchesUp, catches_up, Some(since))
    );
    // A machine that does not prepare keeps the other one waiting.
    let with = format!("{catches_up}; n2 is to get its vote at the same moment");
    assert_eq!(
        shown(Some((false, true)), &["n2"]),
        is(Reason::CatchesUp, &with, Some(since))
    );
    assert_eq!(
        shown(Some((true, true)), &[]),
        is(Reason::Votes, "its etcd answers and has a vote", None)
    );
}
