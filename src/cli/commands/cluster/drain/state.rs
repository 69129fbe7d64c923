//! Derives the progress of a drain from the followed lists. No input or output.

use std::collections::{BTreeMap, BTreeSet};

use crate::output::{one_line, word};
use kat_client::ListChange;
use kat_types::{
    api::{
        Condition, DRAIN_BLOCKED, InstanceItem, InstancePhase, NodeItem, NodePhase, WorkloadItem,
    },
    reason::Reason,
    resource::WorkloadType,
};

/// Namespace and name.
type InstanceKey = (String, String);

/// Why an instance of a workload can't leave its machine.
#[derive(Debug)]
struct DrainObstacle {
    message: String,
    /// It ends without a person, so that waiting is of use.
    passes: bool,
}

/// The present state of the lists.
#[derive(Debug)]
pub(crate) struct DrainWait {
    name: String,
    node: Option<NodeItem>,
    /// Whether the lists of machines, instances and workloads have arrived.
    known: [bool; 3],
    /// Instances on the machine.
    instances: BTreeMap<InstanceKey, InstanceItem>,
    /// Why an instance of a workload can't leave its machine.
    blocked: BTreeMap<InstanceKey, DrainObstacle>,
    /// Workloads that cannot be written: none of their instances moves until they are changed or
    /// deleted.
    not_writable: BTreeSet<InstanceKey>,
    /// DaemonServices, whose instances leave when no other one is left.
    daemons: BTreeSet<InstanceKey>,
    /// Workloads that had instances on the machine.
    were_here: BTreeSet<InstanceKey>,
    /// Workloads with an instance that no machine can take, with the reason.
    placeless: BTreeMap<InstanceKey, String>,
    /// Lines that were printed already.
    told: BTreeSet<String>,
}

impl DrainWait {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            node: None,
            known: [false; 3],
            instances: BTreeMap::new(),
            blocked: BTreeMap::new(),
            not_writable: BTreeSet::new(),
            daemons: BTreeSet::new(),
            were_here: BTreeSet::new(),
            placeless: BTreeMap::new(),
            told: BTreeSet::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn nodes(&mut self, change: ListChange<NodeItem>) {
        let named = |item: &NodeItem| item.metadata.name == self.name;
        match change {
            ListChange::Listed(items) => {
                self.node = items.into_iter().find(named);
                let [nodes, ..] = &mut self.known;
                *nodes = true;
            }
            ListChange::Changed(item) if named(&item) => self.node = Some(item),
            ListChange::Deleted(item) if named(&item) => self.node = None,
            _ => {}
        }
    }

    pub(crate) fn instances(&mut self, change: ListChange<InstanceItem>) {
        match change {
            ListChange::Listed(items) => {
                self.instances.clear();
                for item in items {
                    self.instance(item);
                }
                let [_, instances, _] = &mut self.known;
                *instances = true;
            }
            ListChange::Changed(item) => self.instance(item),
            ListChange::Deleted(item) => {
                self.instances.remove(&key(&item.metadata));
            }
            ListChange::Interrupted(_) => {}
        }
    }

    fn instance(&mut self, item: InstanceItem) {
        if item.status.node.as_deref() == Some(&self.name) {
            self.were_here.insert(workload_of(&item));
            self.instances.insert(key(&item.metadata), item);
        }
    }

    pub(crate) fn workloads(&mut self, change: ListChange<WorkloadItem>) {
        match change {
            ListChange::Listed(items) => {
                self.blocked.clear();
                self.not_writable.clear();
                self.daemons.clear();
                self.placeless.clear();
                for item in items {
                    self.workload(&item);
                }
                let [.., workloads] = &mut self.known;
                *workloads = true;
            }
            ListChange::Changed(item) => self.workload(&item),
            ListChange::Deleted(item) => {
                self.blocked.remove(&key(&item.metadata));
                self.not_writable.remove(&key(&item.metadata));
                self.placeless.remove(&key(&item.metadata));
            }
            ListChange::Interrupted(_) => {}
        }
    }

    fn workload(&mut self, item: &WorkloadItem) {
        match item.spec.workload.kind == WorkloadType::DaemonService {
            true => self.daemons.insert(key(&item.metadata)),
            false => self.daemons.remove(&key(&item.metadata)),
        };
        let mut conditions = item.status.conditions.iter();
        let stays = |one: &&Condition| {
            (one.kind == DRAIN_BLOCKED && one.status) || one.reason == Reason::NotWritable
        };
        let found = conditions.find(stays);
        match found.is_some_and(|one| one.reason == Reason::NotWritable) {
            true => self.not_writable.insert(key(&item.metadata)),
            false => self.not_writable.remove(&key(&item.metadata)),
        };
        match found {
            Some(condition) => self.blocked.insert(
                key(&item.metadata),
                DrainObstacle {
                    message: condition.message.clone(),
                    passes: condition.reason == Reason::DrainWaits,
                },
            ),
            None => self.blocked.remove(&key(&item.metadata)),
        };
        let mut conditions = item.status.conditions.iter();
        let placeless =
            conditions.find(|one| one.kind != DRAIN_BLOCKED && one.reason == Reason::Unschedulable);
        match placeless {
            Some(condition) => self
                .placeless
                .insert(key(&item.metadata), condition.message.clone()),
            None => self.placeless.remove(&key(&item.metadata)),
        };
    }

    /// Whether all lists have arrived.
    pub(crate) fn is_known(&self) -> bool {
        self.known == [true; 3]
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.node.is_none()
    }

    pub(crate) fn is_taken_back(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.spec.draining)
    }

    pub(crate) fn is_drained(&self) -> bool {
        let phase = self.node.as_ref().map(|node| node.status.phase);
        phase == Some(NodePhase::Drained)
    }

    /// Whether all remaining instances belong to workloads that cannot be written: then waiting is
    /// useless.
    pub(crate) fn is_stuck(&self) -> bool {
        let mut left = self.instances.values();
        !self.instances.is_empty()
            && left.all(|item| self.not_writable.contains(&workload_of(item)))
    }

    /// The remaining instances and their reasons, if none of them can move without a person; it
    /// changes with each instance that goes and with each reason. Those of DaemonServices wait for the
    /// others.
    pub(crate) fn standstill(&self) -> Option<Vec<String>> {
        let others = || self.instances.values().filter(|item| !self.is_daemon(item));
        let stands = match others().next() {
            Some(_) => others().all(|item| self.is_stuck_for_good(item)),
            None => false,
        };
        stands.then(|| self.remaining_instances())
    }

    /// A reason without its beginning, which names the instance and the machine.
    fn without_subject<'w>(&self, id: &str, why: &'w str) -> &'w str {
        let subject = format!("{id} can't leave {}", self.name);
        let rest = why.strip_prefix(&subject).unwrap_or(why);
        let rest = rest.strip_prefix(" yet").unwrap_or(rest);
        rest.strip_prefix(": ").unwrap_or(why)
    }

    /// Such as `2 instances left, 1 can't move`.
    pub(crate) fn counts(&self) -> String {
        let mut text = match self.instances.len() {
            0 => "nothing left to move".to_owned(),
            1 => "1 instance left".to_owned(),
            count => format!("{count} instances left"),
        };
        let stuck = self.instances.values();
        let stuck = stuck.filter(|item| self.is_stuck_for_good(item)).count();
        if stuck > 0 {
            text.push_str(&format!(", {stuck} can't move"));
        }
        text
    }

    /// Such as `n2: 2 instances left`.
    pub(crate) fn summary(&self) -> String {
        format!("{}: {}", self.name, self.counts())
    }

    /// Problems that were not printed yet.
    pub(crate) fn news(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(node) = &self.node
            && node.status.phase == NodePhase::NotReady
        {
            lines.push(format!(
                "{} is NotReady: {}",
                self.name, node.status.message
            ));
        }
        let stuck = self.instances.values();
        lines.extend(stuck.filter_map(|item| self.obstacle_line(item)));
        lines.retain(|line| self.told.insert(line.clone()));
        lines
    }

    /// Why the instance can't move, if it can't.
    fn obstacle_line(&self, item: &InstanceItem) -> Option<String> {
        let DrainObstacle { message, passes } = self.obstacle(item)?;
        let (namespace, id) = key(&item.metadata);
        let why = one_line(self.without_subject(&id, message));
        let yet = if *passes { " yet" } else { "" };
        Some(format!("{namespace}/{id} can't move{yet}: {why}"))
    }

    /// The remaining instances and their reasons.
    fn remaining_instances(&self) -> Vec<String> {
        let left = self.instances.values();
        left.map(|item| self.remaining_instance(item)).collect()
    }

    /// The remaining instances and their reasons, without those whose reason was printed already.
    pub(crate) fn unprinted_instances(&self) -> Vec<String> {
        let left = self.instances.values().filter(|item| {
            let line = self.obstacle_line(item);
            line.is_none_or(|line| !self.told.contains(&line))
        });
        left.map(|item| self.remaining_instance(item)).collect()
    }

    fn remaining_instance(&self, item: &InstanceItem) -> String {
        let (namespace, id) = key(&item.metadata);
        let why = match self.obstacle(item) {
            Some(obstacle) => one_line(self.without_subject(&id, &obstacle.message)),
            None if item.status.phase == InstancePhase::Unknown => {
                "Unknown, until its machine answers".to_owned()
            }
            None if self.is_daemon(item) => word(&item.status.phase),
            None => format!(
                "{}, its successor is not healthy yet",
                word(&item.status.phase)
            ),
        };
        format!("{namespace}/{id}: {why}")
    }

    /// Instances that were stopped without a place elsewhere; only a forced drain does that.
    pub(crate) fn stopped(&self) -> Vec<String> {
        let left = self.placeless.iter();
        let left = left.filter(|(workload, _)| self.were_here.contains(*workload));
        left.map(|((namespace, name), why)| {
            format!("{namespace}/{name} lacks an instance: {}", one_line(why))
        })
        .collect()
    }

    fn obstacle(&self, item: &InstanceItem) -> Option<&DrainObstacle> {
        self.blocked.get(&workload_of(item))
    }

    fn is_daemon(&self, item: &InstanceItem) -> bool {
        self.daemons.contains(&workload_of(item))
    }

    fn is_stuck_for_good(&self, item: &InstanceItem) -> bool {
        self.obstacle(item).is_some_and(|obstacle| !obstacle.passes)
    }
}

fn workload_of(item: &InstanceItem) -> InstanceKey {
    let namespace = item.metadata.namespace.clone().unwrap_or_default();
    (namespace, item.status.workload.clone())
}

fn key(metadata: &kat_types::api::Metadata) -> InstanceKey {
    let namespace = metadata.namespace.clone().unwrap_or_default();
    (namespace, metadata.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::{
        InstanceSpec, InstanceStatus, Item, Metadata, WorkloadStatus, WorkloadView,
    };

    fn metadata(name: &str) -> Metadata {
        Metadata {
            name: name.to_owned(),
            namespace: Some("shop".to_owned()),
            ..Metadata::default()
        }
    }

    fn instance(workload: &str, node: &str) -> InstanceItem {
        Item {
            kind: "Instance".to_owned(),
            metadata: metadata(&format!("{workload}-{node}")),
            spec: InstanceSpec::default(),
            status: InstanceStatus {
                workload: workload.to_owned(),
                node: Some(node.to_owned()),
                ..InstanceStatus::default()
            },
        }
    }

    fn workload(name: &str, reason: &str) -> WorkloadItem {
        let spec: WorkloadView = serde_json::from_value(serde_json::json!({
            "type": "Service", "source": {"image": "x"},
            "restartPolicy": {"condition": "Always"}, "container": {},
        }))
        .unwrap();
        let condition = Condition {
            kind: "Ready".to_owned(),
            reason: reason.to_owned(),
            message: format!("it is {reason}"),
            ..Condition::default()
        };
        Item {
            kind: "Workload".to_owned(),
            metadata: metadata(name),
            spec,
            status: WorkloadStatus {
                conditions: vec![condition],
                ..WorkloadStatus::default()
            },
        }
    }

    #[test]
    fn waiting_ends_when_all_that_is_left_cannot_be_written() {
        let mut state = DrainWait::new("n2");
        assert!(!state.is_stuck(), "nothing is known");
        let left = [("big", "n2"), ("web", "n2"), ("other", "n1")];
        let left = left.map(|(workload, node)| instance(workload, node));
        state.instances(ListChange::Listed(left.to_vec()));
        let workloads = [
            ("big", Reason::NotWritable.word()),
            ("web", "Healthy"),
            ("other", "Healthy"),
        ];
        let workloads = workloads.map(|(name, reason)| workload(name, reason));
        state.workloads(ListChange::Listed(workloads.to_vec()));
        assert!(!state.is_stuck(), "web can leave");
        state.instances(ListChange::Deleted(instance("web", "n2")));
        assert!(state.is_stuck(), "what is on n1 does not matter");
        assert_eq!(state.counts(), "1 instance left, 1 can't move");
        assert_eq!(
            state.remaining_instances(),
            ["shop/big-n2: it is NotWritable"]
        );
        // The workload becomes small enough to be written.
        state.workloads(ListChange::Changed(workload("big", "Progressing")));
        assert!(!state.is_stuck());
        state.workloads(ListChange::Changed(workload(
            "big",
            Reason::NotWritable.word(),
        )));
        state.instances(ListChange::Deleted(instance("big", "n2")));
        assert!(!state.is_stuck(), "nothing is left: it is drained");
    }

    fn blocked(name: &str, reason: Reason, message: &str) -> WorkloadItem {
        let mut item = workload(name, "");
        item.status.conditions = vec![Condition {
            kind: DRAIN_BLOCKED.to_owned(),
            status: true,
            reason: reason.into(),
            message: message.to_owned(),
            ..Condition::default()
        }];
        item
    }

    /// Data that is being moved takes longer than a drain without a change is waited for.
    #[test]
    fn an_obstacle_that_ends_by_itself_is_no_standstill() {
        let mut state = DrainWait::new("n2");
        let left = [instance("db", "n2"), instance("web", "n2")];
        state.instances(ListChange::Listed(left.to_vec()));
        let moves = "db-n2 can't leave n2 yet: its data is on its way";
        let fits = "web-n2 can't leave n2: 0 of 2 machines fit";
        state.workloads(ListChange::Listed(vec![
            blocked("db", Reason::DrainWaits, moves),
            blocked("web", Reason::Unschedulable, fits),
        ]));
        assert_eq!(state.standstill(), None, "db leaves when its data has");
        assert_eq!(state.counts(), "2 instances left, 1 can't move");
        let news = [
            "shop/db-n2 can't move yet: its data is on its way",
            "shop/web-n2 can't move: 0 of 2 machines fit",
        ];
        let lines = [
            "shop/db-n2: its data is on its way",
            "shop/web-n2: 0 of 2 machines fit",
        ];
        assert_eq!(state.unprinted_instances(), lines);
        assert_eq!(state.news(), news);
        assert_eq!(state.remaining_instances(), lines);
        assert!(state.unprinted_instances().is_empty(), "each was printed");
        state.instances(ListChange::Deleted(instance("db", "n2")));
        assert_eq!(state.standstill(), Some(vec![lines[1].to_owned()]));
    }

    #[test]
    fn a_daemon_that_leaves_last_keeps_no_drain_waiting_for_what_can_not_leave() {
        let mut state = DrainWait::new("n2");
        let left = [instance("logs", "n2"), instance("web", "n2")];
        state.instances(ListChange::Listed(left.to_vec()));
        let last = "logs-n2 can't leave n2 yet: it leaves last";
        let mut logs = blocked("logs", Reason::DrainWaits, last);
        logs.spec.workload.kind = WorkloadType::DaemonService;
        let fits = "web-n2 can't leave n2: 0 of 2 machines fit";
        let web = blocked("web", Reason::Unschedulable, fits);
        state.workloads(ListChange::Listed(vec![logs, web]));
        let lines = [
            "shop/logs-n2: it leaves last",
            "shop/web-n2: 0 of 2 machines fit",
        ];
        assert_eq!(state.standstill(), Some(lines.map(str::to_owned).to_vec()));
        state.instances(ListChange::Deleted(instance("web", "n2")));
        assert_eq!(state.standstill(), None, "now it leaves");
    }
}
