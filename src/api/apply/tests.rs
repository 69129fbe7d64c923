use std::{collections::BTreeSet, sync::Arc};

use super::*;
use crate::apply::removal::WorkloadRemoval;
use kat_types::{
    api::Scope,
    store::{
        members::{ClusterMembers, MemberRecord},
        records::{NamespaceRecord, NodeRegistration, NodeStatusRecord},
        snapshot::{ArchivedGeneration, NodeEntry, ParsedWorkload, StoredState},
    },
};

fn submission(replicas: &str) -> Submission {
    Submission {
        daemon: None,
        per_node: None,
        amounts: Default::default(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        labels: BTreeMap::new(),
        replicas: replicas.parse().ok(),
        files: BTreeMap::from([("workload.kat".to_owned(), format!("replicas: {replicas}"))]),
        spec_hash: replicas.to_owned(),
        template_hash: "t".to_owned(),
        pulled_images: Vec::new(),
        has_own_images: false,
        fenced_grace: None,
        ports_file: "VirtualLoadBalancer.kat",
        needed_readers: Vec::new(),
        host_ports: Vec::new(),
        has_allowed_sources: false,
        aliases: Vec::new(),
        allow_namespaces: Vec::new(),
        start_after: Vec::new(),
        claims: Default::default(),
        routes: Vec::new(),
        makes_namespace: false,
        namespace_settings: None,
        lacks_requests: None,
        assignment_bytes: 1000,
    }
}

fn caller() -> Caller {
    Caller::Token {
        id: "abc".to_owned(),
        name: String::new(),
        scope: Scope::Admin,
    }
}

fn apply<'a>(caller: &'a Caller, replicas: &str) -> WorkloadWrite<'a> {
    WorkloadWrite {
        submission: submission(replicas),
        only_create: false,
        precondition: Precondition::Nothing,
        caller,
        uid: "new-uid".to_owned(),
        now: Timestamp::UNIX_EPOCH,
        cause: ApplyCause::Applied,
        looked: None,
    }
}

fn empty() -> Snapshot {
    let mut snapshot = Snapshot::from(StoredState {
        revision: 10,
        ..StoredState::default()
    });
    let record = NamespaceRecord {
        schema: 1,
        uid: "ns".to_owned(),
        labels: BTreeMap::new(),
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        quota: Default::default(),
        access: Default::default(),
        ingress_hosts: None,
        defaults: Default::default(),
    };
    let stored = Stored {
        revision: 3,
        value: record,
    };
    snapshot.namespaces.insert("default".to_owned(), stored);
    snapshot
}

fn with_workload(generation: u64, replicas: &str, deleting: bool) -> Snapshot {
    let mut snapshot = empty();
    let text = |text: &str| Stored {
        revision: 8,
        value: Arc::from(text),
    };
    let entry = WorkloadEntry {
        meta: Stored {
            revision: 8,
            value: WorkloadMeta {
                schema: 1,
                uid: "old-uid".to_owned(),
                generation,
                spec_hash: replicas.to_owned(),
                template_hash: "t".to_owned(),
                index: 5,
                created: Timestamp::UNIX_EPOCH,
                updated: Timestamp::UNIX_EPOCH,
                deleting,
                deletes_volumes: false,
                paused: false,
                restarted: None,
                stopped: None,
                image: Default::default(),
            },
        },
        parsed: Err("not needed".to_owned()),
        files: BTreeMap::from([
            (
                "workload.kat".to_owned(),
                text(&format!("replicas: {replicas}")),
            ),
            ("job.kat".to_owned(), text("old")),
        ]),
        status: None,
        archive: (generation.saturating_sub(9)..=generation)
            .map(|kept| (kept, ArchivedGeneration::default()))
            .collect(),
        earlier: None,
    };
    snapshot
        .workloads
        .insert(WorkloadKey::new("default", "web"), Arc::new(entry));
    snapshot
}

fn written(
    decision: WriteDecision<WriteResult>,
) -> (Vec<Compare>, Vec<WriteOperation>, WriteResult) {
    match decision {
        WriteDecision::Write {
            conditions,
            operations,
            outcome,
        } => (conditions, operations, outcome),
        WriteDecision::Done(outcome) => panic!("nothing is written: {}", outcome.outcome),
    }
}

fn keys_of(operations: &[WriteOperation]) -> Vec<String> {
    let keys = operations.iter().map(|operation| match operation {
        WriteOperation::Put(key, _) => format!("+{key}"),
        WriteOperation::Delete(key) => format!("-{key}"),
        WriteOperation::DeletePrefix(key) => format!("-{key}*"),
    });
    keys.filter(|key| !key.contains("/events/")).collect()
}

/// A snapshot with these indexes taken, of which `last` was assigned last.
fn with_indexes(taken: impl IntoIterator<Item = u32>, last: Option<u32>) -> Snapshot {
    let mut snapshot = empty();
    for index in taken {
        let record = IndexRecord {
            schema: 1,
            namespace: "default".to_owned(),
            workload: "other".to_owned(),
            workload_uid: "u".to_owned(),
        };
        let stored = Stored {
            revision: 4,
            value: record,
        };
        snapshot.indexes.insert(index, stored);
    }
    snapshot.last_index = last.map(|index| Stored {
        revision: 4,
        value: LastIndex { schema: 1, index },
    });
    snapshot
}

#[test]
fn a_new_workload_takes_the_next_index_going_round() {
    let caller = caller();
    let snapshot = with_indexes([0, 1, 3, 5], Some(3));
    let (conditions, operations, outcome) = written(apply(&caller, "2").decide(&snapshot).unwrap());
    assert_eq!(
        conditions,
        [
            Compare::ModRevision("/kat/namespaces/default".to_owned(), 3),
            Compare::ModRevision("/kat/indexes/4".to_owned(), 0),
            Compare::ModRevision("/kat/workloads/desired/default/web/meta".to_owned(), 0),
        ]
    );
    assert_eq!(
        keys_of(&operations),
        [
            "+/kat/indexes/4",
            "+/kat/indexes/last",
            "+/kat/workloads/desired/default/web/manifest/workload.kat",
            "+/kat/workloads/archive/default/web/1/workload.kat",
            "+/kat/workloads/desired/default/web/meta",
            "+/kat/workloads/archive/default/web/1/meta",
        ]
    );
    let last = operations.iter().find_map(|operation| match operation {
        WriteOperation::Put(key, value) if key == keys::LAST_INDEX => Some(value),
        _ => None,
    });
    let last: LastIndex = serde_json::from_slice(last.unwrap()).unwrap();
    assert_eq!(last.index, 4);
    assert_eq!(
        (outcome.outcome, outcome.status),
        (WriteOutcome::Created, StatusCode::CREATED)
    );
    assert_eq!(outcome.metadata.uid, "new-uid");
}

#[test]
fn the_round_of_indexes_ends_and_begins_again() {
    let caller = caller();
    let chosen = |snapshot: &Snapshot| {
        let (_, operations, _) = written(apply(&caller, "2").decide(snapshot).unwrap());
        keys_of(&operations)[0].clone()
    };
    assert_eq!(chosen(&with_indexes([], None)), "+/kat/indexes/0");
    assert_eq!(chosen(&with_indexes([], Some(0))), "+/kat/indexes/1");
    assert_eq!(
        chosen(&with_indexes([0], Some(INDEX_LIMIT - 1))),
        "+/kat/indexes/1"
    );
    let full = with_indexes(0..INDEX_LIMIT, Some(9));
    assert_eq!(refused(&apply(&caller, "2"), &full), "Conflict");
}

#[test]
fn a_change_raises_the_generation_and_drops_what_is_no_longer_there() {
    let caller = caller();
    let snapshot = with_workload(12, "1", false);
    let (conditions, operations, outcome) = written(apply(&caller, "2").decide(&snapshot).unwrap());
    assert!(conditions.contains(&Compare::ModRevision(
        "/kat/workloads/desired/default/web/meta".to_owned(),
        8
    )));
    assert_eq!(
        keys_of(&operations),
        [
            "-/kat/workloads/archive/default/web/3/*",
            "+/kat/workloads/desired/default/web/manifest/workload.kat",
            "+/kat/workloads/archive/default/web/13/workload.kat",
            "-/kat/workloads/desired/default/web/manifest/job.kat",
            "+/kat/workloads/desired/default/web/meta",
            "+/kat/workloads/archive/default/web/13/meta",
        ]
    );
    assert_eq!(
        (outcome.outcome, outcome.metadata.generation),
        (WriteOutcome::Updated, 13)
    );
    assert_eq!(outcome.metadata.uid, "old-uid");
    let keys: BTreeSet<_> = keys_of(&operations).into_iter().collect();
    assert_eq!(keys.len(), 6, "no key is written twice");
}

#[test]
fn the_same_content_writes_nothing() {
    let caller = caller();
    let mut snapshot = with_workload(4, "2", false);
    let key = WorkloadKey::new("default", "web");
    let entry = Arc::make_mut(snapshot.workloads.get_mut(&key).unwrap());
    entry.files.remove("job.kat");
    for only_create in [true, false] {
        let apply = WorkloadWrite {
            only_create,
            ..apply(&caller, "2")
        };
        match apply.decide(&snapshot).unwrap() {
            WriteDecision::Done(outcome) => {
                assert_eq!(
                    (outcome.outcome, outcome.metadata.generation),
                    (WriteOutcome::Unchanged, 4)
                );
                assert_eq!(outcome.metadata.resource_version, "8");
            }
            WriteDecision::Write { operations, .. } => panic!("{:?}", keys_of(&operations)),
        }
    }
}

#[test]
fn another_comment_keeps_the_generation() {
    let caller = caller();
    let snapshot = with_workload(4, "2", false);
    let (_, operations, outcome) = written(apply(&caller, "2").decide(&snapshot).unwrap());
    assert_eq!(
        (outcome.outcome, outcome.metadata.generation),
        (WriteOutcome::Updated, 4)
    );
    // A rollback to this generation does not bring the file back either.
    let keys = keys_of(&operations);
    for folder in ["desired/default/web/manifest", "archive/default/web/4"] {
        let removed = format!("-/kat/workloads/{folder}/job.kat");
        assert!(keys.contains(&removed), "{removed} is not in {keys:?}");
    }
}

fn refused(apply: &WorkloadWrite<'_>, snapshot: &Snapshot) -> &'static str {
    match apply.decide(snapshot) {
        Err(error) => error.status().1,
        Ok(_) => panic!("it is accepted"),
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let caller = caller();
    let exists = with_workload(1, "1", false);
    let with = |only_create, precondition| WorkloadWrite {
        only_create,
        precondition,
        ..apply(&caller, "2")
    };
    assert_eq!(
        refused(&apply(&caller, "2"), &Snapshot::default()),
        "NotFound"
    );
    assert_eq!(
        refused(&with(true, Precondition::Nothing), &exists),
        "Conflict"
    );
    assert_eq!(
        refused(&with(false, Precondition::Unchanged(7)), &exists),
        "PreconditionFailed"
    );
    assert_eq!(
        refused(&with(false, Precondition::Absent), &exists),
        "PreconditionFailed"
    );
    assert_eq!(
        refused(&with(false, Precondition::Exists), &empty()),
        "PreconditionFailed"
    );
    assert_eq!(
        refused(&apply(&caller, "2"), &with_workload(1, "1", true)),
        "Conflict"
    );
    let mut deleting = empty();
    deleting
        .namespaces
        .get_mut("default")
        .unwrap()
        .value
        .deleting = true;
    assert_eq!(refused(&apply(&caller, "2"), &deleting), "Conflict");
    let mut large = apply(&caller, "2");
    large
        .submission
        .files
        .insert("x.kat".to_owned(), "x".repeat(MAX_FILES));
    assert_eq!(refused(&large, &empty()), "TooLarge");
    let mut large = apply(&caller, "2");
    large.submission.assignment_bytes = MAX_ASSIGNMENT + 1;
    assert_eq!(refused(&large, &empty()), "TooLarge");
    let mut many = apply(&caller, "2");
    many.submission
        .files
        .extend((0..100).map(|number| (format!("{number}.kat"), String::new())));
    assert_eq!(refused(&many, &empty()), "Invalid");
}

#[test]
fn deleting_a_workload_twice_marks_it_once() {
    let caller = caller();
    let removal = WorkloadRemoval {
        key: WorkloadKey::new("default", "web"),
        precondition: Precondition::Nothing,
        dry_run: false,
        volumes: false,
        caller: &caller,
        now: Timestamp::UNIX_EPOCH,
    };
    let (_, operations, outcome) = written(removal.decide(&with_workload(2, "1", false)).unwrap());
    assert_eq!(
        keys_of(&operations),
        ["+/kat/workloads/desired/default/web/meta"]
    );
    assert_eq!(outcome.outcome, WriteOutcome::Deleting);
    let again = removal.decide(&with_workload(2, "1", true)).unwrap();
    assert!(matches!(again, WriteDecision::Done(_)));
    assert_eq!(
        removal.decide(&empty()).err().map(|error| error.status().1),
        Some("NotFound")
    );
}

#[test]
fn ports_that_kat_needs_are_not_given_away() {
    let caller = caller();
    let decide = |port, protocol| {
        let mut wanted = apply(&caller, "1");
        wanted.submission.host_ports = vec![(port, protocol)];
        wanted.decide(&empty())
    };
    for (port, protocol, purpose) in [
        (9115, Protocol::Tcp, "KAT's API"),
        (9116, Protocol::Tcp, "KAT's agents"),
        (2379, Protocol::Tcp, "etcd's clients"),
        (2380, Protocol::Tcp, "etcd's peers"),
        (51820, Protocol::Udp, "the overlay's WireGuard"),
        (9117, Protocol::Udp, "machines that look for each other"),
    ] {
        let message = decide(port, protocol).err().unwrap().to_string();
        let port = format!("hostPort {port}: each machine needs its port {port}/");
        assert!(
            message.contains(&port) && message.contains(purpose),
            "{message}"
        );
    }
    // These ports are free: the same numbers for the other protocol, the port of DNS, and a port
    // that another program may use.
    for (port, protocol) in [
        (9115, Protocol::Udp),
        (51820, Protocol::Tcp),
        (53, Protocol::Udp),
        (22, Protocol::Tcp),
    ] {
        assert!(decide(port, protocol).is_ok(), "{port}");
    }
}

#[test]
fn an_apply_that_exceeds_a_quota_is_refused_and_names_it() {
    let limited = |workloads| {
        let mut snapshot = with_workload(1, "1", false);
        let namespace = snapshot.namespaces.get_mut("default").unwrap();
        namespace.value.quota.workloads = workloads;
        snapshot
    };
    let deploy = Caller::Token {
        id: "abc".to_owned(),
        name: String::new(),
        scope: Scope::Deploy {
            namespace: "default".to_owned(),
        },
    };
    let admin = caller();
    let second = |caller| {
        let mut apply = apply(caller, "2");
        apply.submission.name = "second".to_owned();
        apply.submission.amounts.workloads = Some(1);
        apply
    };
    for caller in [&deploy, &admin] {
        let refused = second(caller).decide(&limited(Some(1)));
        let Err(ApiError::Conflict { message, hint }) = refused.map(drop) else {
            panic!("{caller} is not refused");
        };
        assert_eq!(
            message,
            "the quota `workloads` of namespace `default` is 1: 1 used now, and 2 with this"
        );
        assert!(hint.is_some_and(|hint| hint.contains("katcall namespace set default workloads=")));
        assert!(second(caller).decide(&limited(Some(2))).is_ok());
        // The existing workload can still be changed.
        let mut update = apply(caller, "2");
        update.submission.amounts.workloads = Some(1);
        assert!(update.decide(&limited(Some(1))).is_ok());
    }
    // Without a namespace quota, the default limits apply to deploy tokens only.
    let huge = |caller| {
        let mut apply = second(caller);
        apply.submission.amounts.instances = Some(1_000_000);
        apply
    };
    assert!(huge(&deploy).decide(&limited(None)).is_err());
    assert!(huge(&admin).decide(&limited(None)).is_ok());
}

/// A cluster that `leader` leads, and where the other machines may lead and report this reader.
fn with_members(leader: &str, others: &[(&str, u32)]) -> Snapshot {
    let mut snapshot = empty();
    let mut members = ClusterMembers::default();
    for (name, reader) in others {
        members
            .members
            .insert((*name).to_owned(), MemberRecord::default());
        let status = NodeStatusRecord {
            manifest_reader: *reader,
            ..NodeStatusRecord::default()
        };
        let registration = NodeRegistration::new(name, Timestamp::UNIX_EPOCH);
        let stored = |value| Stored { revision: 4, value };
        let node = NodeEntry {
            registration: Stored {
                revision: 4,
                value: registration,
            },
            status: Some(stored(status)),
            subnet: None,
            public_key: None,
            endpoints: Vec::new(),
            reach: Default::default(),
            desired: Stored {
                revision: 4,
                value: Default::default(),
            },
        };
        snapshot.nodes.insert((*name).to_owned(), node);
    }
    members
        .members
        .insert(leader.to_owned(), MemberRecord::default());
    snapshot.members = Some(Stored {
        revision: 4,
        value: members,
    });
    snapshot.leader_name = Some(leader.to_owned());
    snapshot
}

#[test]
fn a_file_for_a_newer_reader_waits_until_every_machine_that_may_lead_has_it() {
    const SHORT: &str = "kind: Workload\nspec:\n  ports: [{containerPort: 80}]\n  type: Service\n  replicas: 1\n  restartPolicy: {condition: Always}\n  container: {}\n";
    let caller = caller();
    let short = || {
        let mut apply = apply(&caller, "1");
        apply.submission.files = BTreeMap::from([("workload.kat".to_owned(), SHORT.to_owned())]);
        let file = kat_bundle::SourceFile {
            name: "workload.kat".to_owned(),
            text: SHORT.to_owned(),
        };
        apply.submission.needed_readers = kat_bundle::needed_readers(&[file]);
        apply
    };
    let mixed = with_members("n1", &[("n2", 2), ("n3", 0)]);
    let refused = short().decide(&mixed).err().unwrap();
    let ApiError::Conflict { message, hint } = refused else {
        panic!("{refused}");
    };
    assert_eq!(
        message,
        "workload.kat:3:3: `spec.ports` is written, which a machine that may lead does not read yet: n3"
    );
    assert_eq!(
        hint.as_deref(),
        Some("upgrade kat on n3, or write the ports in VirtualLoadBalancer.kat")
    );
    // A file that every version reads is accepted meanwhile.
    assert!(apply(&caller, "1").decide(&mixed).is_ok());
    assert!(
        short()
            .decide(&with_members("n1", &[("n2", 2), ("n3", 2)]))
            .is_ok()
    );
    // A machine that prepares to hold the store may lead soon.
    let mut joining = with_members("n1", &[("n2", 2)]);
    if let Some(members) = &mut joining.members {
        members.value.next.insert("n4".to_owned());
    }
    let refused = short().decide(&joining).err().unwrap().to_string();
    assert!(refused.contains("n4"), "{refused}");
    // What is stored already is not refused again.
    let mut stored = with_members("n1", &[("n3", 1)]);
    let before = with_workload(1, "2", false);
    stored.workloads = before.workloads.clone();
    for entry in stored.workloads.values_mut() {
        let files = &mut Arc::make_mut(entry).files;
        let text = Stored {
            revision: 4,
            value: SHORT.into(),
        };
        files.insert("workload.kat".to_owned(), text);
    }
    let (conditions, ..) = written(short().decide(&stored).unwrap());
    // No machine gets a vote between this decision and its write.
    let members = Compare::ModRevision(keys::MEMBERS.to_owned(), 4);
    assert!(conditions.contains(&members), "{conditions:?}");
    // Anything else is, although it needs no higher version.
    let shorter = SHORT.replace("  type: Service\n", "");
    let refused = |cause| {
        let mut apply = short();
        let file = kat_bundle::SourceFile {
            name: "workload.kat".to_owned(),
            text: shorter.clone(),
        };
        apply.submission.spec_hash = "another".to_owned();
        apply.submission.needed_readers = kat_bundle::needed_readers(&[file]);
        apply.cause = cause;
        apply.decide(&stored).err().map(|error| error.to_string())
    };
    let rollback = ApplyCause::RolledBack {
        of: 1,
        restarted: None,
    };
    for cause in [ApplyCause::Applied, rollback] {
        let refused = refused(cause).unwrap();
        assert_eq!(
            refused,
            "workload.kat:2:1: `spec.type` is left out, which a machine that may lead does not read yet: n3"
        );
    }
}

#[test]
fn a_stop_is_recorded_and_kept_until_the_files_have_replicas() {
    let caller = caller();
    let decided = |snapshot: &Snapshot, cause, replicas: &str| {
        let mut change = apply(&caller, replicas);
        change.cause = cause;
        let (_, operations, _) = written(change.decide(snapshot).unwrap());
        let meta = keys::workload_meta("default", "web");
        let meta = operations.iter().find_map(|operation| match operation {
            WriteOperation::Put(key, value) if *key == meta => Some(value),
            _ => None,
        });
        serde_json::from_slice::<WorkloadMeta>(meta.unwrap()).unwrap()
    };
    let running = with_workload(1, "3", false);
    let meta = decided(&running, ApplyCause::Stopped { before: 3 }, "0");
    let record = StopRecord {
        replicas: 3,
        by: "token:abc".to_owned(),
        at: Timestamp::UNIX_EPOCH,
    };
    assert_eq!(meta.stopped.as_ref(), Some(&record));
    let mut stopped = with_workload(2, "0", false);
    for entry in stopped.workloads.values_mut() {
        Arc::make_mut(entry).meta.value.stopped = Some(record.clone());
    }
    let image = {
        let mut change = apply(&caller, "0");
        change.cause = ApplyCause::ImageSet;
        change.submission.spec_hash = "another image".to_owned();
        let (_, operations, _) = written(change.decide(&stopped).unwrap());
        operations.iter().any(|operation| match operation {
            WriteOperation::Put(key, value) => {
                *key == keys::workload_meta("default", "web")
                    && String::from_utf8_lossy(value).contains("\"stopped\"")
            }
            _ => false,
        })
    };
    assert!(image, "another image starts nothing");
    for cause in [
        ApplyCause::Applied,
        ApplyCause::Scaled { to: 2 },
        ApplyCause::Started { replicas: 2 },
        ApplyCause::RolledBack {
            of: 1,
            restarted: None,
        },
    ] {
        assert_eq!(decided(&stopped, cause, "2").stopped, None, "{cause:?}");
    }
}

/// Otherwise `start` would say that the workload was not stopped, and start nothing.
#[test]
fn a_rollback_to_a_stopped_generation_stops_the_workload_and_remembers_the_present_number() {
    let caller = caller();
    let file = kat_bundle::SourceFile {
        name: "workload.kat".to_owned(),
        text: "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: web, namespace: default}\n\
               spec: {source: {image: registry.lab/web:1}, replicas: 3}\n"
            .to_owned(),
    };
    let bundle = kat_bundle::parse(&[file], kat_bundle::DecodeMode::Strict).unwrap();
    let parsed = ParsedWorkload::new(bundle.workload.unwrap(), None, None);
    let mut running = with_workload(5, "3", false);
    for entry in running.workloads.values_mut() {
        let entry = Arc::make_mut(entry);
        entry.parsed = Ok(Arc::new(parsed.clone()));
        let origins = [
            (1, Origin::Scaled),
            (2, Origin::Stopped),
            (3, Origin::ImageSet),
            (4, Origin::Started),
        ];
        for (generation, origin) in origins {
            let record = GenerationRecord {
                schema: 1,
                applied: Timestamp::UNIX_EPOCH,
                by: String::new(),
                origin,
                of: None,
                why: String::new(),
                spec_hash: String::new(),
                template_hash: String::new(),
                restarted: None,
                image: Default::default(),
            };
            entry.archive.entry(generation).or_default().record = Some(record);
        }
    }
    let recorded = |of: u64, replicas: &str| {
        let mut change = apply(&caller, replicas);
        change.cause = ApplyCause::RolledBack {
            of,
            restarted: None,
        };
        let (_, operations, _) = written(change.decide(&running).unwrap());
        let key = keys::workload_meta("default", "web");
        let meta = operations.iter().find_map(|operation| match operation {
            WriteOperation::Put(name, value) if *name == key => Some(value),
            _ => None,
        });
        let meta: WorkloadMeta = serde_json::from_slice(meta.unwrap()).unwrap();
        meta.stopped.map(|stopped| stopped.replicas)
    };
    assert_eq!(recorded(2, "0"), Some(3));
    assert_eq!(recorded(3, "0"), Some(3), "another image starts nothing");
    assert_eq!(recorded(1, "0"), None, "it was scaled to 0");
    assert_eq!(recorded(4, "2"), None);
}

/// Stores a workload with this `startAfter`.
fn store_ordered(snapshot: &mut Snapshot, name: &str, after: &str) {
    let text = format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {{name: {name}}}\nspec:\n  \
         source: {{image: registry.example/{name}:1}}\n  startAfter: {after}\n"
    );
    let files = [kat_bundle::SourceFile {
        name: "workload.kat".to_owned(),
        text,
    }];
    let bundle = kat_bundle::parse(&files, kat_bundle::DecodeMode::Strict).unwrap();
    let parsed = ParsedWorkload::new(bundle.workload.unwrap(), None, None);
    let like = with_workload(1, "1", false);
    let like = &like.workloads[&WorkloadKey::new("default", "web")];
    let entry = WorkloadEntry {
        parsed: Ok(Arc::new(parsed)),
        ..WorkloadEntry::clone(like)
    };
    let key = WorkloadKey::new("default", name);
    snapshot.workloads.insert(key, Arc::new(entry));
}

fn start_after(workload: &str) -> Vec<kat_types::resource::StartAfter> {
    vec![kat_types::resource::StartAfter {
        workload: workload.to_owned(),
        condition: Default::default(),
        timeout_seconds: 600,
        on_timeout: Default::default(),
    }]
}

#[test]
fn workloads_that_would_wait_for_each_other_are_refused_with_their_path() {
    let caller = caller();
    let mut snapshot = empty();
    store_ordered(
        &mut snapshot,
        "db",
        "[{workload: proxy, condition: Started}]",
    );
    store_ordered(&mut snapshot, "proxy", "[{workload: web}]");
    let mut write = apply(&caller, "2");
    write.submission.start_after = start_after("db");
    let Err(error) = write.decide(&snapshot) else {
        panic!("a circle is accepted")
    };
    let error = error.to_string();
    assert!(error.contains("web -> db -> proxy -> web"), "{error}");
    // What is stored already is no reason against another change.
    let mut circle = snapshot.clone();
    store_ordered(&mut circle, "web", "[{workload: db}]");
    written(write.decide(&circle).unwrap());
    // Without a circle the apply depends on all that it reaches.
    store_ordered(&mut snapshot, "proxy", "[{workload: cache}]");
    let (conditions, _, outcome) = written(write.decide(&snapshot).unwrap());
    for (name, revision) in [("db", 8), ("proxy", 8), ("cache", 0)] {
        let unchanged = Compare::ModRevision(keys::workload_meta("default", name), revision);
        assert!(conditions.contains(&unchanged), "{name}");
    }
    assert_eq!(outcome.warnings, Vec::<String>::new());
}

#[test]
fn an_order_does_not_become_too_long_from_its_end() {
    let caller = caller();
    let mut snapshot = empty();
    for number in 0..62 {
        let after = format!("[{{workload: w{}}}]", number + 1);
        store_ordered(&mut snapshot, &format!("w{number}"), &after);
    }
    store_ordered(&mut snapshot, "w62", "[{workload: web}]");
    let mut write = apply(&caller, "2");
    write.submission.start_after = start_after("db");
    written(write.decide(&snapshot).unwrap());
    store_ordered(&mut snapshot, "db", "[{workload: cache}]");
    let Err(error) = write.decide(&snapshot) else {
        panic!("the order of w0 is too long")
    };
    let error = error.to_string();
    assert!(
        error.contains("workload `w0` would start after 65 workloads"),
        "{error}"
    );
}

#[test]
fn a_workload_that_waits_for_what_is_missing_is_accepted_with_a_warning() {
    let caller = caller();
    let mut write = apply(&caller, "1");
    write.submission.start_after = start_after("cache");
    let (.., outcome) = written(write.decide(&empty()).unwrap());
    assert_eq!(
        outcome.warnings,
        [
            "startAfter: there is no workload `cache` in namespace `default` yet; the start waits for it"
        ]
    );
}
