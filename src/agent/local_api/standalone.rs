//! The API that a machine without etcd serves on its own socket. It reads this machine's list and its
//! last report, so that it answers while the rest of the cluster is unreachable, and the cluster's
//! overview once somebody asked for it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ipnet::Ipv4Net;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{cluster::identity::MachineIdentity, service::supervisor::DesiredList};
use kat_leader::{AgentReports, LeaderHandle, PlanningHealth, StoreHealth};
use kat_plan::Snapshot;
use kat_store::StateStore;
use kat_types::{
    api::{
        ApiTime, ClusterOverview, Condition, NodePhase, NodeReport, NodeRole, OVERVIEW_ONLY,
        OverviewNode, OverviewRelayState, STORE_SILENT,
    },
    machine::node_labels::{INGRESS_LABEL, node_labels},
    reason::Reason,
    store::{
        records::{NodeRegistration, NodeStatusRecord},
        revisions::Stored,
        snapshot::{InstanceEntry, NodeEntry, StoredState},
    },
};

/// The snapshots of this machine alone, and of the overview's other machines.
pub(crate) struct LocalSnapshots {
    identity: Arc<MachineIdentity>,
    lists: watch::Receiver<DesiredList>,
    reports: watch::Receiver<Arc<NodeReport>>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    state: Mutex<LocalState>,
}

struct LocalState {
    revision: i64,
    status: NodeStatusRecord,
    overview: ClusterOverview,
}

pub(crate) fn start(
    store: Arc<dyn StateStore>,
    identity: Arc<MachineIdentity>,
    lists: watch::Receiver<DesiredList>,
    reports: watch::Receiver<Arc<NodeReport>>,
    cancel: CancellationToken,
) -> (LeaderHandle, Arc<LocalSnapshots>) {
    let (shown, snapshot) = LocalSnapshots::new(&identity, lists, reports);
    let (leaderships, leadership) = watch::channel(None);
    let handle = LeaderHandle {
        store,
        snapshot,
        shown: None,
        leadership,
        reports: AgentReports::default(),
        store_health: StoreHealth::default(),
        planning: PlanningHealth::default(),
        feed: None,
    };
    let taken = handle.reports.clone();
    let follow = Arc::clone(&shown);
    tokio::spawn(async move {
        cancel.run_until_cancelled(follow.follow(&taken)).await;
        drop(leaderships);
    });
    (handle, shown)
}

impl LocalSnapshots {
    fn new(
        identity: &Arc<MachineIdentity>,
        lists: watch::Receiver<DesiredList>,
        reports: watch::Receiver<Arc<NodeReport>>,
    ) -> (Arc<Self>, watch::Receiver<Option<Arc<Snapshot>>>) {
        let (snapshots, snapshot) = watch::channel(None);
        let state = LocalState {
            // A higher revision than an earlier process of the agent showed.
            revision: Timestamp::now().as_second(),
            status: NodeStatusRecord::default(),
            overview: ClusterOverview::default(),
        };
        let shown = Self {
            identity: Arc::clone(identity),
            lists,
            reports,
            snapshots,
            state: Mutex::new(state),
        };
        (Arc::new(shown), snapshot)
    }

    async fn follow(&self, taken: &AgentReports) {
        let (mut lists, mut reports) = (self.lists.clone(), self.reports.clone());
        loop {
            lists.mark_unchanged();
            let report = reports.borrow_and_update().clone();
            let tick = u64::from(self.identity.cluster.spec.agent_tick_seconds);
            let (name, report) = (&self.identity.node, report.as_ref().clone());
            taken.accept(name, report, Duration::from_secs(tick));
            self.publish();
            let changed = tokio::select! {
                changed = lists.changed() => changed,
                changed = reports.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// Shows the machines of this overview besides this one. The snapshot has them when this
    /// returns.
    pub(crate) fn show_overview(&self, overview: &ClusterOverview) {
        self.state.lock().overview = overview.clone();
        self.publish();
    }

    fn publish(&self) {
        // Held until the snapshot is sent, so that snapshots are sent in the order of their
        // revisions.
        let mut state = self.state.lock();
        let listed = self.lists.borrow().clone();
        let report = self.reports.borrow().clone();
        state.revision += 1;
        state.status = shown_status(&state.status, &report, listed.confirmed, Timestamp::now());
        let mut snapshot = snapshot(&self.identity, &listed, &report, &state);
        add_overview(&mut snapshot, &self.identity, &state);
        self.snapshots.send_replace(Some(Arc::new(snapshot)));
    }
}

fn shown_status(
    before: &NodeStatusRecord,
    report: &NodeReport,
    confirmed: bool,
    now: Timestamp,
) -> NodeStatusRecord {
    let (phase, reason, message) = if confirmed {
        (NodePhase::Ready, None, "")
    } else {
        (
            NodePhase::NotReady,
            Some(Reason::Unconfirmed),
            "the cluster's store has not confirmed this machine's list since kat-agent started; what was known is shown",
        )
    };
    NodeStatusRecord {
        phase,
        reason: Reason::word_or_empty(reason).to_owned(),
        message: message.to_owned(),
        since: before.since.filter(|_| before.phase == phase).or(Some(now)),
        ..before.after_report(report, now)
    }
}

fn snapshot(
    identity: &MachineIdentity,
    listed: &DesiredList,
    report: &NodeReport,
    state: &LocalState,
) -> Snapshot {
    let (revision, status) = (state.revision, &state.status);
    let registration = NodeRegistration {
        labels: node_labels(&identity.node, &report.architecture),
        architecture: report.architecture.clone(),
        etcd: identity.etcd,
        advertise: identity.advertise.clone(),
        ..NodeRegistration::new(&identity.node_uid, Timestamp::UNIX_EPOCH)
    };
    let node = NodeEntry {
        registration: stored(revision, registration),
        status: Some(stored(revision, status.clone())),
        subnet: Some(identity.subnet),
        public_key: None,
        endpoints: Vec::new(),
        reach: identity.reached.published_reach(),
        desired: stored(revision, Default::default()),
    };
    let instances = listed.desired.assignments.iter().map(|(id, assignment)| {
        let entry = InstanceEntry {
            node: identity.node.clone(),
            created_revision: revision,
            assignment: stored(revision, Arc::new(assignment.clone())),
        };
        (id.clone(), entry)
    });
    Snapshot::from(StoredState {
        revision,
        cluster_uid: identity.cluster_uid.clone(),
        cluster: identity.cluster.clone(),
        nodes: BTreeMap::from([(identity.node.clone(), node)]),
        instances: instances.collect(),
        ..StoredState::default()
    })
}

fn stored<T>(revision: i64, value: T) -> Stored<T> {
    Stored { revision, value }
}

/// Adds what the overview says of the other machines, and of the leader's view of this one.
fn add_overview(snapshot: &mut Snapshot, identity: &MachineIdentity, state: &LocalState) {
    let Some(relay) = &state.overview.relay else {
        return;
    };
    let silence = relay.silence();
    if silence.is_none() {
        snapshot.leader_name.clone_from(&state.overview.leader);
    }
    for node in &state.overview.nodes {
        if node.name != identity.node {
            let entry = other_machine(identity, node, relay, state.revision);
            snapshot.nodes.insert(node.name.clone(), entry);
        }
    }
    let own = snapshot.nodes.get_mut(&identity.node);
    let Some(status) = own.and_then(|own| own.status.as_mut()) else {
        return;
    };
    let status = &mut status.value;
    if silence.is_some() {
        status.conditions.extend(silent_condition(relay));
        return;
    }
    let mut nodes = state.overview.nodes.iter();
    let led = nodes.find(|node| node.name == identity.node);
    // Only the leader knows whether this machine is being drained, or counts as lost.
    if let Some(node) = led.filter(|_| status.phase == NodePhase::Ready) {
        status.phase = node.phase;
        status.reason.clone_from(&node.reason);
    }
}

/// Says on each machine that nobody who holds the store answers; `None` while somebody does.
fn silent_condition(relay: &OverviewRelayState) -> Option<Condition> {
    let silence = relay.silence()?;
    let known = relay.time().map_or_else(
        || "no other machine is known since kat-agent started".to_owned(),
        |time| format!("other machines are shown {time}"),
    );
    Some(Condition {
        kind: STORE_SILENT.to_owned(),
        status: true,
        reason: Reason::Unconfirmed.into(),
        message: format!("{known}: {silence}"),
        since: relay.silent_since.unwrap_or_default(),
    })
}

/// A machine as the overview shows it. Where nobody answers it is not Ready, whatever it was: what is
/// known is old.
fn other_machine(
    identity: &MachineIdentity,
    node: &OverviewNode,
    relay: &OverviewRelayState,
    revision: i64,
) -> NodeEntry {
    let ingress = node.roles.contains(&NodeRole::Ingress);
    let labels = ingress.then(|| (INGRESS_LABEL.to_owned(), "true".to_owned()));
    let registration = NodeRegistration {
        labels: labels.into_iter().collect(),
        etcd: node.roles.contains(&NodeRole::Etcd),
        ..NodeRegistration::new("", Timestamp::UNIX_EPOCH)
    };
    let (phase, reason, message) = match relay.silence() {
        None => (node.phase, node.reason.clone(), String::new()),
        Some(silence) => {
            let time = relay.time().unwrap_or_default();
            let message = format!("it was {:?} {time}: {silence}", node.phase);
            (NodePhase::NotReady, Reason::Unconfirmed.into(), message)
        }
    };
    let hosts = node.endpoints.iter().map(|endpoint| {
        let host = endpoint.rsplit_once(':').map_or("", |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host.to_owned()
    });
    let only = Condition {
        kind: OVERVIEW_ONLY.to_owned(),
        status: true,
        reason: String::new(),
        message: format!(
            "{} does not hold the cluster's store and knows this machine by the overview: its instances, resources and other conditions are not shown",
            identity.node
        ),
        since: ApiTime::UNKNOWN,
    };
    let status = NodeStatusRecord {
        phase,
        reason,
        message,
        addresses: hosts.collect(),
        version: node.version.clone(),
        conditions: std::iter::once(only)
            .chain(silent_condition(relay))
            .collect(),
        ..NodeStatusRecord::default()
    };
    let prefix = identity.subnet.prefix_len();
    let subnet = node.overlay_address.and_then(|address| {
        let subnet = Ipv4Net::new(address, prefix);
        subnet.ok().map(|subnet| subnet.trunc())
    });
    NodeEntry {
        registration: stored(revision, registration),
        status: Some(stored(revision, status)),
        subnet,
        public_key: None,
        endpoints: Vec::new(),
        reach: Default::default(),
        desired: stored(revision, Default::default()),
    }
}

#[cfg(test)]
impl LocalSnapshots {
    /// A machine with nothing to do.
    pub(crate) fn of(
        identity: &Arc<MachineIdentity>,
    ) -> (Arc<Self>, watch::Receiver<Option<Arc<Snapshot>>>) {
        let list = DesiredList {
            confirmed: true,
            ..DesiredList::default()
        };
        let (_, lists) = watch::channel(list);
        let (_, reports) = watch::channel(Arc::default());
        Self::new(identity, lists, reports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overview() -> ClusterOverview {
        let node = |name: &str, roles: &[NodeRole], number: u8| OverviewNode {
            name: name.to_owned(),
            phase: NodePhase::Ready,
            roles: roles.to_vec(),
            overlay_address: Some([10, 100, 2 * number, 1].into()),
            endpoints: vec![format!("192.0.2.{number}:9115")],
            version: "0.2.0".to_owned(),
            ..OverviewNode::default()
        };
        let mut own = node("n4", &[NodeRole::Worker], 4);
        own.phase = NodePhase::Draining;
        own.reason = Reason::Draining.into();
        ClusterOverview {
            leader: Some("n1".to_owned()),
            nodes: vec![node("n1", &[NodeRole::Etcd, NodeRole::Worker], 1), own],
            relay: Some(OverviewRelayState {
                node: "n4".to_owned(),
                as_of: Some(ApiTime::parse("2026-11-22T03:40:00Z")),
                ..OverviewRelayState::default()
            }),
            ..ClusterOverview::default()
        }
    }

    fn shown(overview: Option<&ClusterOverview>) -> Arc<Snapshot> {
        let identity = Arc::new(MachineIdentity::example("n4"));
        let (local, snapshot) = LocalSnapshots::of(&identity);
        local.publish();
        if let Some(overview) = overview {
            local.show_overview(overview);
        }
        snapshot.borrow().clone().unwrap()
    }

    fn status(snapshot: &Snapshot, name: &str) -> NodeStatusRecord {
        snapshot.nodes[name].status.clone().unwrap().value
    }

    #[test]
    fn a_machine_shows_itself_alone_until_an_overview_was_read() {
        let snapshot = shown(None);
        assert_eq!(snapshot.nodes.len(), 1);
        assert_eq!(status(&snapshot, "n4").phase, NodePhase::Ready);
        assert_eq!(snapshot.leader_name, None);
    }

    #[test]
    fn the_overviews_machines_are_shown_with_what_it_says_and_nothing_else() {
        let snapshot = shown(Some(&overview()));
        assert_eq!(snapshot.leader_name.as_deref(), Some("n1"));
        let n1 = &snapshot.nodes["n1"];
        assert_eq!(n1.subnet, Some("10.100.2.0/23".parse().unwrap()));
        assert!(n1.registration.value.etcd);
        // Such a registration proves nobody.
        assert_eq!(n1.registration.value.identity_key, "");
        let told = status(&snapshot, "n1");
        assert_eq!((told.phase, told.reason.as_str()), (NodePhase::Ready, ""));
        assert_eq!(told.addresses, ["192.0.2.1"]);
        assert_eq!(told.conditions.len(), 1);
        assert_eq!(told.conditions[0].kind, OVERVIEW_ONLY);
        // The leader's decision about this machine.
        let own = status(&snapshot, "n4");
        assert_eq!(own.phase, NodePhase::Draining);
        assert_eq!(own.conditions, []);
    }

    #[test]
    fn old_knowledge_of_another_machine_is_never_shown_as_ready() {
        let mut old = overview();
        let relay = old.relay.as_mut().unwrap();
        relay.silent_since = Some(ApiTime::parse("2026-11-22T03:45:00Z"));
        let snapshot = shown(Some(&old));
        assert_eq!(snapshot.leader_name, None);
        let told = status(&snapshot, "n1");
        assert_eq!(told.phase, NodePhase::NotReady);
        assert_eq!(told.reason, Reason::Unconfirmed.word());
        assert!(
            told.message.starts_with("it was Ready as of 2026-11-22T03:40:00Z: no machine that holds the store answers since 2026-11-22T03:45:00Z"),
            "{}",
            told.message
        );
        // This machine knows itself.
        let own = status(&snapshot, "n4");
        assert_eq!(own.phase, NodePhase::Ready);
        assert_eq!(own.conditions[0].kind, STORE_SILENT);
    }

    #[test]
    fn a_machine_that_never_read_an_overview_says_that_it_knows_no_other() {
        let relay = OverviewRelayState {
            silent_since: Some(ApiTime::parse("2026-11-22T03:45:00Z")),
            ..OverviewRelayState::default()
        };
        let nothing = ClusterOverview {
            relay: Some(relay),
            ..ClusterOverview::default()
        };
        let snapshot = shown(Some(&nothing));
        assert_eq!(snapshot.nodes.len(), 1);
        let own = status(&snapshot, "n4");
        let message = &own.conditions[0].message;
        assert!(
            message.starts_with("no other machine is known since kat-agent started"),
            "{message}"
        );
    }
}
