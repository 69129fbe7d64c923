//! Store, leader and agent in one process: from a key that the API writes to a running unit.

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::desired_state::desired;
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{LeaderConfig, LeaderHandle, start};
use kat_store::{StateStore, fenced, mirror::MirrorEntries};
use kat_systemd::UnitManager;
use kat_testing::MemoryStore;
use kat_types::{
    api::{NodeReport, NodeResources, WorkloadPhase},
    assignment::DesiredMeta,
    resource::{Bytes, MilliCpu, ResourceList},
    store::{
        keys,
        records::{
            IndexRecord, NamespaceRecord, NodeRegistration, WorkloadMeta, WorkloadStatusRecord,
        },
        transaction::WriteOperation,
    },
};

fn put<T: serde::Serialize>(key: String, value: &T) -> WriteOperation {
    WriteOperation::Put(key, serde_json::to_vec(value).unwrap())
}

fn seed(store: &MemoryStore) {
    let created = Timestamp::UNIX_EPOCH;
    store.write_now(&[
        put(
            keys::namespace("default"),
            &NamespaceRecord {
                schema: 1,
                uid: "ns".to_owned(),
                labels: BTreeMap::new(),
                created,
                deleting: false,
                quota: Default::default(),
                access: Default::default(),
                ingress_hosts: None,
                defaults: Default::default(),
            },
        ),
        put(
            keys::registration("n1"),
            &NodeRegistration {
                architecture: "amd64".to_owned(),
                etcd: true,
                ..NodeRegistration::new("n1-uid", created)
            },
        ),
        put(
            keys::desired_meta("n1"),
            &DesiredMeta {
                schema: 1,
                revision: 1,
                count: 0,
                changed: None,
            },
        ),
        WriteOperation::Put(
            keys::network_node("n1", "subnet"),
            b"10.100.0.0/23".to_vec(),
        ),
    ]);
}

fn meta(generation: u64, deleting: bool) -> WorkloadMeta {
    WorkloadMeta {
        schema: 1,
        uid: "web-uid".to_owned(),
        generation,
        spec_hash: format!("s{generation}"),
        template_hash: format!("t{generation}"),
        index: 0,
        created: Timestamp::UNIX_EPOCH,
        updated: Timestamp::UNIX_EPOCH,
        deleting,
        deletes_volumes: false,
        paused: false,
        restarted: None,
        stopped: None,
        image: Default::default(),
    }
}

fn apply(store: &MemoryStore, generation: u64, replicas: u32) {
    let file = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "type": "Service",
            "source": {"image": format!("registry.lab:5000/web:{generation}")},
            "replicas": replicas,
            "restartPolicy": {"condition": "Always"},
            "container": {"drainSeconds": 0},
        },
    });
    let owner = IndexRecord {
        schema: 1,
        namespace: "default".to_owned(),
        workload: "web".to_owned(),
        workload_uid: "web-uid".to_owned(),
    };
    store.write_now(&[
        put(keys::index(0), &owner),
        put(keys::manifest("default", "web", "workload.kat"), &file),
        put(
            keys::workload_meta("default", "web"),
            &meta(generation, false),
        ),
    ]);
}

fn endpoint(name: &str) -> Arc<dyn Fn() -> String + Send + Sync> {
    let endpoint = format!("{name}:9115");
    Arc::new(move || endpoint.clone())
}

fn candidate(store: &MemoryStore, name: &str, cancel: &CancellationToken) -> LeaderHandle {
    let started = Instant::now();
    let config = LeaderConfig {
        candidate: name.to_owned(),
        lease: Duration::from_secs(5),
        endpoint: endpoint(name),
        clock: Arc::new(move || {
            Timestamp::UNIX_EPOCH
                .checked_add(started.elapsed())
                .unwrap_or(Timestamp::UNIX_EPOCH)
        }),
        pulses: LoopPulses::default(),
        sealing: watch::Sender::new(kat_plan::SnapshotSealing::None).subscribe(),
    };
    start(Arc::new(store.client()), config, cancel.clone())
}

impl Bench {
    /// Exchanges lists and reports between agent and leader, without a network.
    fn exchange(&self, store: &MemoryStore, leaders: &[&LeaderHandle]) {
        let entries: MirrorEntries = store
            .peek(keys::ROOT)
            .items
            .into_iter()
            .map(|item| (Arc::from(item.key.as_str()), Arc::new(item)))
            .collect();
        let list = Arc::new(desired::read(&entries, "n1").unwrap());
        self.lists.send_if_modified(|present| {
            let differs = !present.known || present.desired != list;
            *present = DesiredList {
                known: true,
                confirmed: true,
                current: true,
                desired: Arc::clone(&list),
                ..DesiredList::default()
            };
            differs
        });
        let (workload_instances, user_indexes) = self.statuses.all();
        let resources = ResourceList {
            cpu: Some(MilliCpu(4000)),
            memory: Some(Bytes(8 << 30)),
            storage: None,
        };
        let report = NodeReport {
            node_name: "n1".to_owned(),
            node_uid: "n1-uid".to_owned(),
            resources: NodeResources {
                capacity: resources,
                allocatable: resources,
            },
            workload_instances,
            desired_revision: self.statuses.acted(),
            user_indexes,
            ..NodeReport::default()
        };
        for leader in leaders {
            leader
                .reports
                .accept("n1", report.clone(), Duration::from_secs(15));
        }
    }

    /// Exchanges until `done`, for at most 60 s. Returns how long that took.
    async fn until(
        &self,
        store: &MemoryStore,
        leaders: &[&LeaderHandle],
        done: impl Fn() -> bool,
    ) -> Duration {
        let began = Instant::now();
        while !done() {
            assert!(began.elapsed() < Duration::from_secs(60), "not in time");
            self.exchange(store, leaders);
            self.later(Duration::from_millis(20)).await;
        }
        began.elapsed()
    }
}

fn status(store: &MemoryStore) -> Option<WorkloadStatusRecord> {
    let key = keys::workload_status("default", "web");
    let listing = store.peek(&key);
    serde_json::from_slice(&listing.items.first()?.value).ok()
}

fn runs(store: &MemoryStore, ready: u32, generation: u64) -> bool {
    status(store).is_some_and(|record| {
        record.status.phase == WorkloadPhase::Running
            && record.status.ready == ready
            && record.status.observed_generation == generation
    })
}

fn is_gone(store: &MemoryStore) -> bool {
    store.peek(keys::WORKLOADS).items.is_empty() && store.peek(keys::INDEXES).items.is_empty()
}

#[tokio::test(start_paused = true)]
async fn applied_changed_and_deleted() {
    let bench = Bench::new();
    let (store, cancel) = (MemoryStore::new(), CancellationToken::new());
    seed(&store);
    let leader = candidate(&store, "n1", &cancel);
    let leaders = [&leader];
    apply(&store, 1, 2);
    let named = || store.peek("/kat/dns/default/web/").items.len() == 4;
    let took = bench.until(&store, &leaders, named).await;
    assert!(took < Duration::from_secs(1), "they serve: {took:?}");
    let took = bench.until(&store, &leaders, || runs(&store, 2, 1)).await;
    assert!(took < Duration::from_secs(4), "they are ready: {took:?}");
    let web = assignment(0, "web");
    assert_eq!(bench.calls(&web, "start kat-default-web-"), 2);
    assert_eq!(store.peek("/kat/dns/default/web/").items.len(), 4);
    apply(&store, 2, 2);
    bench.until(&store, &leaders, || runs(&store, 2, 2)).await;
    assert_eq!(bench.calls(&web, "start kat-default-web-"), 4);
    assert_eq!(bench.calls(&web, "stop kat-default-web-"), 2);
    store.write_now(&[put(keys::workload_meta("default", "web"), &meta(2, true))]);
    bench.until(&store, &leaders, || is_gone(&store)).await;
    assert!(bench.accounts.all().is_empty());
    assert_eq!(store.peek(keys::ALLOCATIONS).items.len(), 0);
    assert_eq!(store.peek("/kat/dns/default/").items.len(), 0);
    assert_eq!(bench.statuses.all(), (Vec::new(), Vec::new()));
    cancel.cancel();
}

/// The agent is killed at many points of a deletion. Its first report afterwards names no user. The
/// index is freed when the account is gone, not before.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_killed_while_a_workload_goes_frees_no_index_early() {
    let mut halfway = 0;
    for milliseconds in (0..600).step_by(30) {
        let mut bench = Bench::new();
        *bench.accounts.going.lock() = Duration::from_millis(300);
        let (store, cancel) = (MemoryStore::new(), CancellationToken::new());
        seed(&store);
        let leader = candidate(&store, "n1", &cancel);
        let leaders = [&leader];
        apply(&store, 1, 2);
        bench.until(&store, &leaders, || runs(&store, 2, 1)).await;
        store.write_now(&[put(keys::workload_meta("default", "web"), &meta(1, true))]);
        let kill_at = Instant::now() + Duration::from_millis(milliseconds);
        bench
            .until(&store, &leaders, || Instant::now() >= kill_at)
            .await;
        bench.kill().await;
        let stopped = store.peek(keys::ALLOCATIONS).items.is_empty();
        halfway += usize::from(stopped && !bench.accounts.all().is_empty());
        let is_gone = || {
            let free = store.peek(keys::INDEXES).items.is_empty();
            assert!(
                !free || bench.accounts.all().is_empty(),
                "killed after {milliseconds} ms"
            );
            is_gone(&store)
        };
        bench.until(&store, &leaders, is_gone).await;
        cancel.cancel();
    }
    assert!(
        halfway > 0,
        "some were killed between the last unit and the account"
    );
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_sees_the_loops_and_none_that_only_waits_as_hung() {
    let (lists, cancel) = (
        watch::Sender::new(DesiredList::default()),
        CancellationToken::new(),
    );
    let bench = Bench::new();
    let mut supervisor = Supervisor::new(
        Arc::clone(&bench.tools),
        Statuses::default(),
        NetworkFiles::new(bench.root.path().join("net")),
    );
    let pulses = LoopPulses::default();
    supervisor.pulses = pulses.clone();
    let supervising = tokio::spawn(supervisor.run(lists.subscribe(), cancel.clone()));
    let store = MemoryStore::new();
    seed(&store);
    let config = LeaderConfig {
        candidate: "n1".to_owned(),
        lease: Duration::from_secs(5),
        endpoint: endpoint("n1"),
        clock: Arc::new(|| Timestamp::UNIX_EPOCH),
        pulses: pulses.clone(),
        sealing: watch::Sender::new(kat_plan::SnapshotSealing::None).subscribe(),
    };
    let leader = start(Arc::new(store.client()), config, cancel.clone());
    // A candidate that does not lead has no loop to watch.
    let other = candidate(&store, "n2", &cancel);
    let leads = |one: &LeaderHandle| one.leadership.borrow().is_some();
    bench
        .until(&store, &[], || leads(&leader) || leads(&other))
        .await;
    assert!(leads(&leader));
    bench.later(Duration::from_secs(3600)).await;
    let watched = pulses.watched();
    assert_eq!((pulses.stalled(), watched.len()), (None, 2), "{watched:?}");
    cancel.cancel();
    supervising.await.unwrap();
    bench
        .until(&store, &[], || pulses.watched().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn another_leader_goes_on_and_the_deposed_one_writes_nothing() {
    let bench = Bench::new();
    let store = MemoryStore::new();
    let (first_cancel, second_cancel) = (CancellationToken::new(), CancellationToken::new());
    seed(&store);
    let first = candidate(&store, "n1", &first_cancel);
    bench
        .until(&store, &[&first], || first.leadership.borrow().is_some())
        .await;
    let second = candidate(&store, "n2", &second_cancel);
    let leaders = [&first, &second];
    apply(&store, 1, 3);
    bench.until(&store, &leaders, || runs(&store, 3, 1)).await;
    let before = store.peek(keys::NODE_DESIRED).items;
    let deposed = first.leadership.borrow().clone().unwrap();
    first_cancel.cancel();
    bench
        .until(&store, &leaders, || second.leadership.borrow().is_some())
        .await;
    bench.later(Duration::from_secs(1)).await;
    assert_eq!(
        store.peek(keys::NODE_DESIRED).items,
        before,
        "a new leader moves nothing"
    );
    let late = fenced::WriteGroup {
        conditions: Vec::new(),
        operations: vec![WriteOperation::Put("/kat/late".to_owned(), Vec::new())],
    };
    let outcome = fenced::commit(&store, &deposed.fence(), &[late])
        .await
        .unwrap();
    assert!(matches!(
        outcome,
        fenced::CommitOutcome::Refused { written: 0, .. }
    ));
    assert_eq!(store.get("/kat/late").await.unwrap(), None);
    apply(&store, 2, 3);
    bench.until(&store, &leaders, || runs(&store, 3, 2)).await;
    let endpoint = store.get(keys::LEADER_ENDPOINT).await.unwrap().unwrap();
    assert_eq!(endpoint.value, b"n2:9115");
    second_cancel.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_in_the_middle_of_a_change_is_succeeded() {
    let bench = Bench::new();
    let store = MemoryStore::new();
    let cancel = CancellationToken::new();
    seed(&store);
    let cut_off = store.client();
    let first = start(
        Arc::new(cut_off.clone()),
        LeaderConfig {
            candidate: "n1".to_owned(),
            lease: Duration::from_secs(5),
            endpoint: endpoint("n1"),
            clock: Arc::new(|| Timestamp::UNIX_EPOCH),
            pulses: LoopPulses::default(),
            sealing: watch::Sender::new(kat_plan::SnapshotSealing::None).subscribe(),
        },
        cancel.clone(),
    );
    bench
        .until(&store, &[&first], || first.leadership.borrow().is_some())
        .await;
    let second = candidate(&store, "n2", &cancel);
    let leaders = [&first, &second];
    apply(&store, 1, 40);
    // Wait until a part of the change is written.
    bench
        .until(&store, &leaders, || {
            !store.peek(keys::ALLOCATIONS).items.is_empty()
        })
        .await;
    cut_off.set_partitioned(true);
    bench.until(&store, &leaders, || runs(&store, 40, 1)).await;
    assert!(second.leadership.borrow().is_some());
    assert!(first.leadership.borrow().is_none());
    assert_eq!(store.peek(keys::ALLOCATIONS).items.len(), 40);
    let web = assignment(0, "web");
    assert_eq!(
        bench
            .manager(&web)
            .list("kat-default-web-*.service")
            .await
            .unwrap()
            .len(),
        40
    );
    cancel.cancel();
}
