//! The links of this machine's containers: made at the hook's request, and maintained by periodic
//! rounds.
//!
//! The hook and the rounds run at the same time, so each instance has a lock, and decisions under
//! the lock use the list of that moment: a round that had to wait must not remove the link of an
//! instance that was attached meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    attach::{self, AttachError, Attachment},
    unit_processes::UnitProcesses,
    verify::{CgroupReader, VerifiedContainer, VerifyError, verify},
};
use crate::{
    containers::journal_budget::LineBudget,
    links::{LinkError, Links, NextHop},
    state_files::StateFiles,
};
use kat_types::{
    backoff::Backoff,
    machine::network::{InstanceNetwork, NodeNetwork, StartGate},
};

/// Longest time to make the links of one container.
const ATTACH_LIMIT: Duration = Duration::from_secs(20);
/// The same limit in a round, which has other work to do: a container may delay it on purpose.
const AGAIN_LIMIT: Duration = Duration::from_secs(2);
/// Time after which a round attaches no further container.
const AGAIN_IN_ROUND: Duration = Duration::from_secs(3);
/// Pauses between two tries with one container.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// Why a container's links were not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachmentError {
    /// The process is not the container that it claims to be, or has ended.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The links could not be made.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The links took too long.
    #[error("the links were not ready within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The processes of the instance's unit can't be listed.
    #[error("the processes of unit {unit} can't be listed: {source}")]
    Processes {
        unit: String,
        source: std::io::Error,
    },
}

/// The result of a round.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AttachmentResult {
    /// Number of listed instances with a link.
    pub attached: usize,
    /// Instances whose containers run without their link, with the error.
    pub without: BTreeMap<String, String>,
}

/// A container that could not be attached in a round.
#[derive(Debug)]
struct FailedAttachment {
    times: u32,
    /// Time of the next try.
    next: Instant,
    why: String,
}

/// The links of this machine's containers.
pub struct Attachments {
    files: Arc<StateFiles>,
    links: Links,
    cgroups: CgroupReader,
    processes: UnitProcesses,
    turns: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    failed: Mutex<BTreeMap<String, FailedAttachment>>,
    lines: LineBudget,
}

impl Attachments {
    /// Uses the list in `files`; `cgroups` and `processes` find the processes of an instance.
    pub fn new(
        files: Arc<StateFiles>,
        links: Links,
        cgroups: CgroupReader,
        processes: UnitProcesses,
    ) -> Arc<Self> {
        Arc::new(Self {
            files,
            links,
            cgroups,
            processes,
            turns: Mutex::default(),
            failed: Mutex::default(),
            lines: LineBudget::default(),
        })
    }

    /// Verifies that `pid` is a container of `instance`.
    pub(crate) fn verify(
        &self,
        pid: i32,
        instance: &InstanceNetwork,
    ) -> Result<VerifiedContainer, VerifyError> {
        verify(pid, instance.uid, &instance.unit, &self.cgroups)
    }

    /// Makes the links of a container, one call at a time for each instance.
    pub(crate) async fn attach(
        &self,
        id: &str,
        node: &NodeNetwork,
        instance: &InstanceNetwork,
        container: &VerifiedContainer,
    ) -> Result<(), AttachmentError> {
        let turn = self.instance_lock(id);
        let _turn = turn.lock().await;
        self.make(id, node, instance, container, ATTACH_LIMIT).await
    }

    async fn make(
        &self,
        id: &str,
        node: &NodeNetwork,
        instance: &InstanceNetwork,
        container: &VerifiedContainer,
        limit: Duration,
    ) -> Result<(), AttachmentError> {
        container.still_alive()?;
        let wanted = Attachment {
            instance: id.to_owned(),
            address: instance.address,
            gateway: node.address,
            mtu: node.mtu,
            has_host_ports: !instance.host_ports.is_empty(),
        };
        let attaching = attach::attach(&self.links, &container.namespace, &wanted);
        if let Ok(attached) = timeout(limit, attaching).await {
            return attached.map_err(AttachmentError::Attach);
        }
        // An incomplete link would be taken for a complete one.
        attach::remove(&self.links, id)
            .await
            .map_err(AttachError::from)?;
        Err(AttachmentError::Timeout(limit))
    }

    /// Removes the links of instances that are not in the list, restores missing routes, and
    /// attaches containers that run without their link. Instances that the hook is working on are
    /// skipped.
    ///
    /// # Errors
    /// The first link or route that the kernel refused.
    pub async fn restore_all(&self) -> Result<AttachmentResult, LinkError> {
        let Some(instances) = self.files.current().instances.clone() else {
            return Ok(AttachmentResult::default());
        };
        let mut kept = AttachmentResult::default();
        let mut seen = BTreeSet::new();
        let routes = self.links.routes().await?;
        for link in self.links.all().await? {
            let Some(id) = attach::instance_of(&link) else {
                continue;
            };
            let Some(known) = instances.instances.get(id) else {
                self.sweep(id).await?;
                continue;
            };
            seen.insert(id.to_owned());
            let net = known.address.into();
            if link.up && !routes.contains(&(net, Some(link.index))) {
                self.put_back_route(id, link.index, known).await?;
            }
        }
        kept.attached = seen.len();
        let lacking = instances.instances.iter();
        let lacking =
            lacking.filter(|(id, known)| !seen.contains(*id) && known.gate == StartGate::Open);
        let began = Instant::now();
        for id in self.due(lacking.map(|(id, _)| id.as_str())) {
            if began.elapsed() >= AGAIN_IN_ROUND {
                break;
            }
            match self.attach_again(&id).await {
                Ok(attached) => {
                    kept.attached += usize::from(attached);
                    self.failed().remove(&id);
                }
                Err(error) => self.put_off(id, error.to_string()),
            }
        }
        let failed = self.failed();
        let told = failed.iter().map(|(id, one)| (id.clone(), one.why.clone()));
        kept.without.extend(told);
        drop(failed);
        Ok(kept)
    }

    /// The instances without a link that are due for a try, those with the fewest failures first,
    /// so that a container that delays the work keeps no other waiting.
    fn due<'a>(&self, lacking: impl Iterator<Item = &'a str>) -> Vec<String> {
        let lacking: BTreeSet<&str> = lacking.collect();
        let now = Instant::now();
        let mut failed = self.failed();
        failed.retain(|id, _| lacking.contains(id.as_str()));
        let times = |id: &str| failed.get(id).map_or(0, |one| one.times);
        let waits = |id: &str| failed.get(id).is_some_and(|one| one.next > now);
        let due = lacking.into_iter().filter(|id| !waits(id));
        let mut due: Vec<(u32, String)> = due.map(|id| (times(id), id.to_owned())).collect();
        due.sort();
        due.into_iter().map(|(_, id)| id).collect()
    }

    fn put_off(&self, id: String, why: String) {
        let mut failed = self.failed();
        let times = failed.get(&id).map_or(0, |one| one.times);
        let next = Instant::now() + PAUSES.after(times);
        let times = times.saturating_add(1);
        failed.insert(id, FailedAttachment { times, next, why });
    }

    fn failed(&self) -> parking_lot::MutexGuard<'_, BTreeMap<String, FailedAttachment>> {
        self.failed.lock()
    }

    /// Removes the links of an instance unless the present list has it.
    async fn sweep(&self, id: &str) -> Result<(), LinkError> {
        let turn = self.instance_lock(id);
        let Ok(_turn) = turn.try_lock() else {
            return Ok(());
        };
        self.files.refresh();
        if self.listed(id).is_some() {
            return Ok(());
        }
        if attach::remove(&self.links, id).await? {
            tracing::info!(
                instance = id,
                "removed the link of an instance that is gone"
            );
        }
        Ok(())
    }

    async fn put_back_route(
        &self,
        id: &str,
        index: u32,
        known: &InstanceNetwork,
    ) -> Result<(), LinkError> {
        let turn = self.instance_lock(id);
        let Ok(_turn) = turn.try_lock() else {
            return Ok(());
        };
        // The hook may have replaced the link meanwhile.
        let found = self.links.find(&attach::host_link_name(id)).await?;
        if found.is_none_or(|link| link.index != index) {
            return Ok(());
        }
        tracing::info!(instance = id, "put back the route of an instance");
        let target = NextHop::Link(index);
        self.links.set_route(known.address.into(), target).await
    }

    /// Attaches the running container of an instance without a link. False where no container runs,
    /// or where it has its link by now.
    async fn attach_again(&self, id: &str) -> Result<bool, AttachmentError> {
        let turn = self.instance_lock(id);
        let Ok(_turn) = turn.try_lock() else {
            return Ok(false);
        };
        self.files.refresh();
        let (Some(known), Some(node)) = (self.listed(id), self.files.current().node.clone()) else {
            return Ok(false);
        };
        let found = self.links.find(&attach::host_link_name(id)).await;
        let is_attached = |link: &_| attach::instance_of(link) == Some(id);
        if known.gate != StartGate::Open
            || found
                .map_err(AttachError::from)?
                .as_ref()
                .is_some_and(is_attached)
        {
            return Ok(false);
        }
        let Some(container) = self.container_of(&known).await? else {
            return Ok(false);
        };
        let made = self.make(id, &node, &known, &container, AGAIN_LIMIT).await;
        if let Err(AttachmentError::Verify(VerifyError::Ended(_))) = made {
            return Ok(false);
        }
        if self.lines.take(known.uid).is_some() {
            match &made {
                Ok(()) => tracing::warn!(
                    instance = id,
                    "attached a container again that ran without its link"
                ),
                Err(error) => tracing::warn!(
                    instance = id,
                    "a container runs without its link, and it can't be made again: {error}"
                ),
            }
        }
        made.map(|()| true)
    }

    /// The running container of an instance, verified like one that the hook names.
    async fn container_of(
        &self,
        known: &InstanceNetwork,
    ) -> Result<Option<VerifiedContainer>, AttachmentError> {
        let (processes, uid, unit) = (Arc::clone(&self.processes), known.uid, known.unit.clone());
        let listed = tokio::task::spawn_blocking(move || processes(uid, &unit));
        let listed = listed.await.map_err(std::io::Error::other);
        let pids =
            listed
                .and_then(|listed| listed)
                .map_err(|source| AttachmentError::Processes {
                    unit: known.unit.clone(),
                    source,
                })?;
        let mut refusal = None;
        for pid in pids {
            match self.verify(pid, known) {
                Ok(container) => return Ok(Some(container)),
                // The process ended after it was listed.
                Err(VerifyError::Ended(_) | VerifyError::Process { .. }) => {}
                Err(error) => refusal = Some(error),
            }
        }
        refusal.map_or(Ok(None), |error| Err(error.into()))
    }

    fn listed(&self, id: &str) -> Option<InstanceNetwork> {
        let snapshot = self.files.current();
        snapshot.instances.as_ref()?.instances.get(id).cloned()
    }

    fn instance_lock(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|name, turn| name == id || Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(id.to_owned()).or_default())
    }
}
