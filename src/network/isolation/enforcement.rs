//! Keeps isolation in force: the table first, then the connections that it would not let begin.

use std::{collections::BTreeSet, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::policy::{IsolationPolicy, IsolationVerdict};
use crate::{
    nftables::{
        conntrack::{self, Flow},
        firewall::FirewallError,
        isolation::IsolationTable,
        netfilter::NetfilterError,
        table::TableChange,
    },
    state_files::StateFilesSnapshot,
};
use kat_types::machine::{
    isolation::{IsolationMode, IsolationRules},
    network::{InstanceNetwork, Instances, NodeNetwork, Transport},
};

/// Interval of the checks of the table, and of the looks at open connections.
const INTERVAL: Duration = Duration::from_secs(25);
/// Longest time that names wait for the table.
const NAMES_WAIT: Duration = Duration::from_secs(2);
/// Most open connections that one look in [`IsolationMode::Audit`] lists.
const AUDITED: usize = 1024;

/// Why isolation could not be put in force.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    #[error("isolation of namespaces: {0}")]
    Rules(#[from] FirewallError),
    #[error("isolation of namespaces: {0}")]
    Conntrack(#[from] NetfilterError),
}

/// What is in force.
#[derive(Debug, Clone, Default)]
pub struct EnforcedIsolation {
    /// `None` until a file was applied.
    pub mode: Option<IsolationMode>,
    /// The file that the table follows.
    pub(crate) rules: Option<Arc<IsolationRules>>,
    /// Revision of the file whose rules are in force for open connections too.
    pub revision: i64,
    /// What is in the table, maybe of a later file; also where the mode needs no table.
    pub(crate) policy: Arc<IsolationPolicy>,
    /// Why the present file is not in force.
    pub problem: Option<String>,
    /// Since when no file could be put in force.
    pub(crate) failing_since: Option<Instant>,
    /// Open connections that [`IsolationMode::Audit`] lets pass, by the last look.
    pub(crate) audited: Arc<BTreeSet<OpenConnection>>,
}

/// An open connection between two containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpenConnection {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    pub transport: Option<Transport>,
    pub port: u16,
}

impl EnforcedIsolation {
    /// Whether the table follows this file.
    fn follows(&self, rules: &Arc<IsolationRules>) -> bool {
        let applied = self.rules.as_ref();
        applied.is_some_and(|applied| Arc::ptr_eq(applied, rules))
    }

    /// Whether a container may answer others: nothing is isolated, or the table has its link and its
    /// address, in its namespace.
    pub(crate) fn covers(
        &self,
        wanted: Option<&IsolationRules>,
        id: &str,
        instance: &InstanceNetwork,
    ) -> bool {
        let isolates = wanted.is_some_and(|rules| rules.mode == IsolationMode::Namespaces);
        if !isolates {
            return true;
        }
        let owner = self.policy.owners().get(&instance.address);
        self.mode == Some(IsolationMode::Namespaces)
            && self.policy.own.get(id) == Some(&instance.address)
            && owner
                .is_some_and(|owner| owner.instance == id && owner.namespace == instance.namespace)
    }
}

/// Passes snapshots on from `snapshots` to `shown` when the table follows their rules, so that a name
/// shows an instance only when its callers are judged by its namespace; until cancelled. With a
/// problem they are passed on after [`NAMES_WAIT`].
pub(crate) async fn pass_on_known(
    mut snapshots: watch::Receiver<Arc<StateFilesSnapshot>>,
    mut enforced: watch::Receiver<EnforcedIsolation>,
    shown: watch::Sender<Arc<StateFilesSnapshot>>,
    cancel: CancellationToken,
) {
    let mut due = None;
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let rules = snapshot.isolation.as_ref();
        let is_known = rules.is_none_or(|rules| enforced.borrow_and_update().follows(rules));
        let until = *due.get_or_insert_with(|| Instant::now() + NAMES_WAIT);
        let waits = !is_known && Instant::now() < until;
        if !waits {
            due = None;
            shown.send_replace(snapshot);
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = snapshots.changed() => if changed.is_err() { return },
            Ok(()) = enforced.changed(), if waits => {}
            () = tokio::time::sleep_until(until), if waits => {}
        }
    }
}

/// The files that were last applied.
#[derive(Debug)]
struct AppliedFiles {
    node: Arc<NodeNetwork>,
    rules: Arc<IsolationRules>,
    instances: Option<Arc<Instances>>,
    when: Instant,
}

/// Keeps the table and the kernel's connection tracking in line with the agent's files.
#[derive(Debug)]
pub struct IsolationKeeper {
    table: IsolationTable,
    seen: Option<AppliedFiles>,
    /// The table is to be looked at whatever the time.
    due: bool,
    /// Connections may exist that began before the rules of now.
    outdated: bool,
    /// The last look at open connections in [`IsolationMode::Audit`].
    audit: Option<Instant>,
    enforced: watch::Sender<EnforcedIsolation>,
}

impl Default for IsolationKeeper {
    /// Uses the compiled-in template.
    fn default() -> Self {
        Self::with(IsolationTable::default(), watch::Sender::default())
    }
}

impl IsolationKeeper {
    fn with(table: IsolationTable, enforced: watch::Sender<EnforcedIsolation>) -> Self {
        Self {
            table,
            seen: None,
            due: false,
            outdated: false,
            audit: None,
            enforced,
        }
    }

    /// Uses the packaged template if it exists, and publishes to `enforced`.
    pub fn installed(enforced: watch::Sender<EnforcedIsolation>) -> Self {
        Self::with(IsolationTable::installed(), enforced)
    }

    /// What is in force.
    pub fn subscribe(&self) -> watch::Receiver<EnforcedIsolation> {
        self.enforced.subscribe()
    }

    /// Makes the next [`ensure`](Self::ensure) look at the table; `changed` says that another program
    /// has changed it.
    pub fn check_again(&mut self, changed: bool) {
        self.due = true;
        if changed {
            self.seen = None;
            self.table.forget();
        }
    }

    /// Applies the agent's files unless they are in force: at once after a change, otherwise
    /// periodically. Without the file of isolation nothing is changed: it was never read.
    ///
    /// # Errors
    /// See [`IsolationError`]; the previous table stays in force then.
    pub async fn ensure(
        &mut self,
        node: &Arc<NodeNetwork>,
        snapshot: &StateFilesSnapshot,
    ) -> Result<(), IsolationError> {
        let Some(rules) = &snapshot.isolation else {
            return Ok(());
        };
        let instances = snapshot.instances.as_ref();
        let is_same = |seen: &AppliedFiles| {
            let same_instances = match (&seen.instances, instances) {
                (Some(seen), Some(instances)) => Arc::ptr_eq(seen, instances),
                (seen, instances) => seen.is_none() && instances.is_none(),
            };
            same_instances && Arc::ptr_eq(&seen.node, node) && Arc::ptr_eq(&seen.rules, rules)
        };
        let same = self.seen.as_ref().filter(|seen| is_same(seen));
        if !self.due && same.is_some_and(|seen| seen.when.elapsed() < INTERVAL) {
            return Ok(());
        }
        let policy = match same {
            Some(_) => Arc::clone(&self.enforced.borrow().policy),
            None => {
                let nobody = Instances::default();
                let instances = instances.map_or(&nobody, Arc::as_ref);
                Arc::new(IsolationPolicy::new(node, instances, rules))
            }
        };
        let check = self.due || same.is_some();
        self.seen = None;
        let outcome = self.apply(node, &policy, rules, check).await;
        if let Err(error) = &outcome {
            self.enforced.send_modify(|enforced| {
                enforced.problem = Some(error.to_string());
                enforced.failing_since.get_or_insert_with(Instant::now);
            });
        }
        outcome?;
        self.due = false;
        self.seen = Some(AppliedFiles {
            node: Arc::clone(node),
            rules: Arc::clone(rules),
            instances: instances.cloned(),
            when: Instant::now(),
        });
        Ok(())
    }

    /// Publishes the policy when the table has it, so that nobody who starts waits for the looks at
    /// connections, and the revision after these.
    async fn apply(
        &mut self,
        node: &NodeNetwork,
        policy: &Arc<IsolationPolicy>,
        rules: &Arc<IsolationRules>,
        check: bool,
    ) -> Result<(), IsolationError> {
        let change = self.table.set(node, policy, check).await?;
        if change.change != TableChange::None {
            tracing::debug!(
                instances = policy.owners().len(),
                mode = ?policy.mode,
                "put the rules of isolation in place"
            );
        }
        self.enforced.send_if_modified(|enforced| {
            let is_new = !enforced.follows(rules) || !Arc::ptr_eq(&enforced.policy, policy);
            enforced.mode = Some(policy.mode);
            enforced.policy = Arc::clone(policy);
            enforced.rules = Some(Arc::clone(rules));
            is_new
        });
        let mut audited = None;
        match policy.mode {
            IsolationMode::None => self.outdated = false,
            IsolationMode::Audit => {
                self.outdated = false;
                if self.audit.is_none_or(|last| last.elapsed() >= INTERVAL) {
                    audited = Some(open_refused(node, policy).await?);
                    self.audit = Some(Instant::now());
                }
            }
            IsolationMode::Namespaces => {
                if change.tightened || self.outdated {
                    // Another look follows: a packet that passed the previous rules may not have been
                    // tracked yet.
                    self.outdated = true;
                    forget_refused(node, policy).await?;
                    self.outdated = change.tightened;
                }
            }
        }
        if policy.mode != IsolationMode::Audit {
            self.audit = None;
            audited = Some(BTreeSet::new());
        }
        self.enforced.send_modify(|enforced| {
            enforced.revision = rules.revision;
            enforced.problem = None;
            enforced.failing_since = None;
            if let Some(audited) = audited {
                enforced.audited = Arc::new(audited);
            }
        });
        Ok(())
    }
}

/// Some of the open connections that the policy would refuse.
async fn open_refused(
    node: &NodeNetwork,
    policy: &IsolationPolicy,
) -> Result<BTreeSet<OpenConnection>, NetfilterError> {
    let flows = conntrack::all().await?;
    let refused = flows
        .iter()
        .filter(|flow| !flow.ended)
        .filter(|flow| judge(flow, node, policy) == Some(IsolationVerdict::Refused));
    let open = refused.take(AUDITED).map(|flow| OpenConnection {
        from: flow.from,
        to: flow.answers,
        transport: flow.transport,
        port: flow.port,
    });
    Ok(open.collect())
}

/// Makes the kernel forget the connections that may not exist, also those of addresses that are
/// nobody's: another instance may get the address. Those that both ends have closed, too: two ends
/// that agree could go on sending while the kernel remembers them.
async fn forget_refused(
    node: &NodeNetwork,
    policy: &IsolationPolicy,
) -> Result<(), NetfilterError> {
    let mut count = 0;
    for flow in conntrack::all().await? {
        let verdict = judge(&flow, node, policy);
        let stays = matches!(verdict, None | Some(IsolationVerdict::Allowed));
        if !stays {
            conntrack::forget(&flow).await?;
            count += 1;
        }
    }
    if count > 0 {
        tracing::info!(count, "connections end that isolation does not allow");
    }
    Ok(())
}

/// The verdict about a tracked connection; `None` if it is not between two containers, or came by a
/// host port.
fn judge(flow: &Flow, node: &NodeNetwork, policy: &IsolationPolicy) -> Option<IsolationVerdict> {
    let host = u32::from(node.subnet.hostmask());
    let is_container =
        |address: &Ipv4Addr| node.cluster_cidr.contains(address) && u32::from(*address) & host != 1;
    let by_door =
        !node.cluster_cidr.contains(&flow.called) && !node.service_cidr.contains(&flow.called);
    let judged = is_container(&flow.from) && is_container(&flow.answers) && !by_door;
    judged.then(|| policy.judge(flow.from, flow.answers))
}

#[cfg(test)]
mod tests;
