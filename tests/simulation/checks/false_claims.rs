//! The status never says well of what is not, and no name leads to an instance that does not run:
//! what the store says of machines and instances is so, or is corrected in time.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Duration, Instant};

use crate::{
    checks::invariants::is_replica_name,
    world::{LOST_AFTER, World},
};
use kat_types::{
    api::{InstancePhase, NodePhase},
    store::{keys, records::NodeStatusRecord},
};

/// How long a false claim may stay in addition to the time after which a machine is lost, and to
/// the leader's messages: reports, plans and their commits take time.
const SLACK: Duration = Duration::from_secs(10);
/// Time between two checks, which read every status.
const INTERVAL: Duration = Duration::from_secs(1);
/// Messages between a report and the status in the store, some of them repeated.
const TRIPS: u32 = 4;

/// Claims of the store that are false, and since when they may be corrected.
#[derive(Default)]
pub(crate) struct FalseClaims {
    since: BTreeMap<String, Instant>,
    /// The leadership in which they count: only time in which one leader can write.
    leadership: Option<(String, i64)>,
    checked: Option<Instant>,
}

impl World {
    /// Every false claim is corrected by a leader that can write.
    pub(crate) fn check_claims(&mut self, live: &BTreeMap<String, String>) {
        let checked = self.false_claims.checked.map(|at| at.elapsed());
        if checked.is_some_and(|ago| ago < INTERVAL) {
            return;
        }
        self.false_claims.checked = Some(Instant::now());
        let leadership = self.monitor.leadership();
        let leadership = leadership.filter(|_| self.leader_can_write());
        let same = leadership.is_some() && leadership == self.false_claims.leadership;
        let known = match same {
            true => std::mem::take(&mut self.false_claims.since),
            false => BTreeMap::new(),
        };
        self.false_claims.leadership = leadership;
        if self.false_claims.leadership.is_none() {
            return;
        }
        let limit = Duration::from_secs(LOST_AFTER.into());
        let limit = limit + SLACK + self.leader_latency() * TRIPS;
        let mut since = BTreeMap::new();
        for claim in self.claims(live) {
            let at = known.get(&claim).copied().unwrap_or_else(Instant::now);
            if at.elapsed() > limit {
                let text = format!("{claim}: that has not been so for {:?}", at.elapsed());
                self.monitor.violated(text);
            }
            since.insert(claim, at);
        }
        self.false_claims.since = since;
    }

    /// What the store says and what is not so. What the machine that forges reports says of itself
    /// is not checked.
    fn claims(&self, live: &BTreeMap<String, String>) -> BTreeSet<String> {
        let mut claims = BTreeSet::new();
        let large = self.large.as_ref();
        let frozen = large.filter(|large| large.is_grown(&self.store));
        let is_frozen = |instance: &str| {
            frozen.is_some_and(|large| instance.starts_with(&format!("{}-", large.workload)))
        };
        let runs = |node: &str, instance: &str| {
            let unit = format!("kat-{}-{instance}.service", crate::load::user::NAMESPACE);
            live.get(&unit).is_some_and(|on| on == node)
        };
        let mut on: BTreeMap<String, String> = BTreeMap::new();
        for item in self.store.peek(keys::NODE_DESIRED).items {
            let path = item.key.strip_prefix(keys::NODE_DESIRED);
            let parts = path.and_then(|path| path.split_once("/instances/"));
            if let Some((node, instance)) = parts {
                on.insert(instance.to_owned(), node.to_owned());
            }
        }
        for item in self.store.peek(keys::NODE_STATUS).items {
            let node = item.key.strip_prefix(keys::NODE_STATUS).unwrap();
            let status: NodeStatusRecord = serde_json::from_slice(&item.value).unwrap();
            if status.phase == NodePhase::NotReady {
                continue;
            }
            let silent = self.monitor.silent(node).unwrap_or_default();
            if silent > Duration::from_secs(LOST_AFTER.into()) {
                claims.insert(format!("{node} is said to be well"));
            }
            if self.forges(node) {
                continue;
            }
            for (instance, record) in &status.instances {
                let says = record.phase == InstancePhase::Running;
                if says && !is_frozen(instance) && !runs(node, instance) {
                    claims.insert(format!("{instance} is said to run on {node}"));
                }
            }
        }
        for item in self.store.peek(keys::DNS).items {
            let value = item.key.rsplit('/').next().unwrap_or_default();
            let Some((instance, _)) = value.split_once('=') else {
                continue;
            };
            // The name of a replica answers before its instance serves, and while it restarts.
            if is_replica_name(instance) {
                continue;
            }
            let node = on.get(instance).map_or("", String::as_str);
            if !is_frozen(instance) && !self.forges(node) && !runs(node, instance) {
                claims.insert(format!("callers are sent to {instance}"));
            }
        }
        claims
    }
}
