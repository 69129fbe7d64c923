//! Upkeep of etcd: takes the steps that [`kat_plan::next_upkeep`] decides, one in each round.
//!
//! The steps are no keys of the store, so no transaction can fence them; each is safe to do twice,
//! and on two machines. A full store takes no lease either, so that nobody can be elected: if
//! nobody leads, the machine whose own etcd leads raft makes room.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    LeaderHandle,
    members::{MembersConfig, object, say_once, still_leads},
};
use crate::etcd_status::EtcdObservation;
use kat_plan::{
    EventLog, SeenStore, Snapshot, StoreWeight, UpkeepDone, UpkeepStep, is_under_pressure,
    next_upkeep, store_reason, store_trouble,
};
use kat_store::{Leadership, StoreError, etcd_maintenance::EtcdAlarm};
use kat_types::{
    api::EventKind,
    backoff::Backoff,
    reason::{EventReason, Reason},
    resource::Bytes,
};

/// What etcd's superuser can do with etcd's data. URLs are those of one member's client port.
#[async_trait]
pub trait EtcdUpkeep: Send + Sync {
    /// The raised alarms.
    async fn alarms(&self) -> Result<Vec<EtcdAlarm>, StoreError>;
    /// Disarms a member's alarm NOSPACE.
    async fn disarm(&self, member: u64) -> Result<(), StoreError>;
    /// Compacts the history before a revision.
    async fn compact(&self, url: &str, revision: i64) -> Result<(), StoreError>;
    /// Defragments a member's file.
    async fn defragment(&self, url: &str) -> Result<(), StoreError>;
}

/// State of the store's upkeep on the machine that does it. In memory only: a full store can't be
/// written to.
#[derive(Clone, Default)]
pub struct StoreHealth {
    inner: Arc<Mutex<Option<StoreReport>>>,
}

/// The content of [`StoreHealth`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreReport {
    /// Size of the store.
    pub weight: StoreWeight,
    /// The members' files, by machine.
    pub files: BTreeMap<String, SeenStore>,
    /// Version of etcd that each member reports, by machine.
    pub versions: BTreeMap<String, String>,
    /// What is wrong, as text for users.
    pub trouble: Option<String>,
    /// What is wrong, as a word.
    pub reason: Option<Reason>,
}

impl StoreHealth {
    /// The last state; `None` on a machine that does not look after the store.
    pub fn report(&self) -> Option<StoreReport> {
        self.inner.lock().clone()
    }

    /// Replaces the state.
    pub fn show(&self, report: Option<StoreReport>) {
        *self.inner.lock() = report;
    }
}

/// Longest pause before a failed defragmentation is retried.
const LONGEST_HOLD: Duration = Duration::from_secs(3600);

/// State of the upkeep between rounds.
#[derive(Default)]
pub(super) struct Upkeep {
    done: UpkeepDone,
    /// Members whose defragmentation failed: how often, and until when it is not retried. During
    /// each attempt the member does not answer for some seconds.
    failed: BTreeMap<u64, (u32, Instant)>,
    /// When the last step in `done` ended. Not the first: if steps took long, the remaining ones
    /// would be forgotten before their turn comes, and the alarm would stay.
    since: Option<Instant>,
    waits: String,
    /// The alarm was disarmed and has been raised again since.
    stuck: bool,
    warned: bool,
    /// Events that are not written yet: the step itself may have kept the store from taking them.
    untold: Vec<MachineEvent>,
}

/// Maximum number of events that wait to be written: the steps of five members.
const MOST_UNTOLD: usize = 8;

/// An event about a machine.
struct MachineEvent {
    kind: EventKind,
    reason: EventReason,
    node: String,
    message: String,
}

impl Upkeep {
    /// Takes at most one step. Returns true if there is more to do. Without `leadership` nobody
    /// leads.
    pub(super) async fn round(
        &mut self,
        handle: &LeaderHandle,
        config: &MembersConfig,
        leadership: Option<&Leadership>,
        observation: &EtcdObservation,
    ) -> Result<bool, StoreError> {
        let weight = StoreWeight::of(&observation.seen, &observation.alarms, config.quota);
        let pressing = is_under_pressure(&weight, &observation.alarms);
        self.stuck |= observation.alarms.is_full() && self.done.disarmed;
        if !pressing
            || self
                .since
                .is_some_and(|since| since.elapsed() >= config.retry)
        {
            self.done = UpkeepDone::default();
            self.since = None;
        }
        self.stuck &= observation.alarms.is_full();
        let trouble = store_trouble(&observation.seen, &weight, &observation.alarms, self.stuck);
        self.show(handle, observation, weight, trouble.clone());
        // An event that can't be written now does not block the step.
        if let Err(error) = self.write_waiting_events(handle, config, leadership).await {
            tracing::debug!("an event is not written yet: {error:#}");
        }
        let leads = (config.node.as_str(), observation.raft_leader);
        let done = self.done_or_held(observation);
        let step = next_upkeep(
            &observation.seen,
            &weight,
            &observation.alarms,
            leads,
            &done,
        );
        let message = match &step {
            UpkeepStep::Nothing => {
                self.waits.clear();
                if observation.alarms.is_full() {
                    say_once(&mut self.waits, trouble.unwrap_or_default());
                    return Ok(false);
                }
                self.warn(handle, config, leadership, observation, trouble)
                    .await?;
                return Ok(false);
            }
            UpkeepStep::Wait(reason) => {
                say_once(&mut self.waits, reason.clone());
                return Ok(false);
            }
            UpkeepStep::Compact => "the store's history is cut".to_owned(),
            UpkeepStep::MoveRaft { to } => format!("the member {to:x} is to lead raft"),
            UpkeepStep::Defragment { node, .. } => {
                format!("etcd's file of machine {node} is made smaller")
            }
            UpkeepStep::Disarm => "the store is to take writes again".to_owned(),
        };
        tracing::info!(
            message,
            file = weight.file,
            used = weight.used,
            "the store's upkeep"
        );
        if let Some(leadership) = leadership {
            still_leads(handle, leadership).await?;
        }
        let taken = self.take_step(config, observation, &step).await;
        self.since = Some(Instant::now());
        self.note(config, &step, &taken);
        taken?;
        self.untold.extend(upkeep_event(observation, &step));
        let excess = self.untold.len().saturating_sub(MOST_UNTOLD);
        self.untold.drain(..excess);
        self.write_waiting_events(handle, config, leadership)
            .await?;
        Ok(true)
    }

    /// The steps that were done, and those that are not retried now since they failed. Without the
    /// latter they would wait until the store is not under pressure, which clears `done`.
    fn done_or_held(&mut self, observation: &EtcdObservation) -> UpkeepDone {
        let member = |id: &u64| observation.seen.iter().any(|member| member.id == *id);
        self.failed.retain(|id, _| member(id));
        let held = self.failed.iter();
        let held = held.filter(|(_, (_, until))| *until > Instant::now());
        let mut done = self.done.clone();
        done.defragmented.extend(held.map(|(id, _)| *id));
        done
    }

    /// Remembers a failed defragmentation. Other steps may be repeated at any time, since they harm
    /// nothing.
    fn note(&mut self, config: &MembersConfig, step: &UpkeepStep, taken: &Result<(), StoreError>) {
        let UpkeepStep::Defragment { id, node } = step else {
            return;
        };
        let Err(error) = taken else {
            self.failed.remove(id);
            return;
        };
        let times = self.failed.get(id).map_or(0, |(times, _)| *times);
        let holds = Backoff::new(config.retry, LONGEST_HOLD.max(config.retry));
        let hold = holds.after(times);
        tracing::warn!(
            node,
            ?hold,
            "etcd's file could not be made smaller; it is tried again after that: {error:#}"
        );
        let until = Instant::now() + hold;
        self.failed.insert(*id, (times.saturating_add(1), until));
    }

    fn show(
        &self,
        handle: &LeaderHandle,
        observation: &EtcdObservation,
        weight: StoreWeight,
        trouble: Option<String>,
    ) {
        let files = observation.seen.iter().filter_map(|member| {
            let store = member.store?;
            Some((member.node.clone()?, store))
        });
        handle.store_health.show(Some(StoreReport {
            weight,
            files: files.collect(),
            versions: observation.versions.clone(),
            trouble,
            reason: store_reason(&weight, &observation.alarms),
        }));
    }

    async fn take_step(
        &mut self,
        config: &MembersConfig,
        observation: &EtcdObservation,
        step: &UpkeepStep,
    ) -> Result<(), StoreError> {
        match step {
            UpkeepStep::Nothing | UpkeepStep::Wait(_) => {}
            UpkeepStep::Compact => {
                let url = observation.raft_url()?;
                config.upkeep.compact(url, observation.revision).await?;
                self.done.compacted = true;
            }
            UpkeepStep::MoveRaft { to } => {
                config.etcd.move_raft(observation.raft_url()?, *to).await?
            }
            UpkeepStep::Defragment { id, .. } => {
                config.upkeep.defragment(observation.url(*id)?).await?;
                self.done.defragmented.insert(*id);
            }
            UpkeepStep::Disarm => {
                for member in &observation.alarms.full {
                    config.upkeep.disarm(*member).await?;
                }
                self.done.disarmed = true;
            }
        }
        Ok(())
    }

    /// Writes the waiting events. The first write after the alarm was disarmed shows whether there
    /// is room.
    async fn write_waiting_events(
        &mut self,
        handle: &LeaderHandle,
        config: &MembersConfig,
        leadership: Option<&Leadership>,
    ) -> Result<(), StoreError> {
        while let Some(event) = self.untold.first() {
            write_event(handle, config, leadership, event).await?;
            self.untold.remove(0);
        }
        Ok(())
    }

    /// Writes an event that the store will be full soon, once each time.
    async fn warn(
        &mut self,
        handle: &LeaderHandle,
        config: &MembersConfig,
        leadership: Option<&Leadership>,
        observation: &EtcdObservation,
        trouble: Option<String>,
    ) -> Result<(), StoreError> {
        let Some(trouble) = trouble.filter(|_| observation.alarms.corrupt.is_empty()) else {
            self.warned = false;
            return Ok(());
        };
        if self.warned {
            return Ok(());
        }
        let stores = observation
            .seen
            .iter()
            .filter(|member| member.store.is_some());
        let fullest = stores.max_by_key(|member| member.store.map(|store| store.used));
        let node = fullest.and_then(|member| member.node.as_deref());
        let event = MachineEvent {
            kind: EventKind::Warning,
            reason: EventReason::StoreNearlyFull,
            node: node.unwrap_or_default().to_owned(),
            message: trouble,
        };
        write_event(handle, config, leadership, &event).await?;
        self.warned = true;
        Ok(())
    }
}

/// The event of a step.
fn upkeep_event(observation: &EtcdObservation, step: &UpkeepStep) -> Option<MachineEvent> {
    match step {
        UpkeepStep::Defragment { id, node } if !observation.alarms.is_full() => {
            let store = observation.seen.iter().find(|one| one.id == *id);
            let store = store.and_then(|one| one.store).unwrap_or_default();
            let (file, used) = (Bytes(store.file).rounded(), Bytes(store.used).rounded());
            Some(MachineEvent {
                kind: EventKind::Normal,
                reason: EventReason::StoreDefragmented,
                node: node.clone(),
                message: format!(
                    "etcd's file of machine {node} was made smaller: of {file}, {used} were in use"
                ),
            })
        }
        UpkeepStep::Disarm => {
            let full = observation.alarms.full.first();
            let member = observation.seen.iter().find(|one| Some(&one.id) == full);
            let node = member.and_then(|member| member.node.clone());
            Some(MachineEvent {
                kind: EventKind::Warning,
                reason: EventReason::StoreWasFull,
                node: node.unwrap_or_default(),
                message: "the store was full and took no writes; its history was cut and its files were made smaller".to_owned(),
            })
        }
        _ => None,
    }
}

async fn write_event(
    handle: &LeaderHandle,
    config: &MembersConfig,
    leadership: Option<&Leadership>,
    event: &MachineEvent,
) -> Result<(), StoreError> {
    let snapshot: Option<Arc<Snapshot>> = handle.snapshot.borrow().clone();
    let (Some(leadership), Some(snapshot)) = (leadership, snapshot) else {
        return Ok(());
    };
    let mut log = EventLog::new(&snapshot.events, (config.clock)());
    let object = object(&snapshot, &event.node);
    let operations = log.record(event.kind, event.reason, object, event.message.clone());
    let fence = [leadership.fence()];
    handle.store.transact(&fence, &operations).await.map(drop)
}

#[cfg(test)]
mod tests;
