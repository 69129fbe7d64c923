//! The replacement of authorities and of the recovery key: while this machine leads, it takes the steps that `plan` wants.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{LeaderHandle, members::say_once};
use kat_daemon::watchdog::LoopPulses;
use kat_plan::{
    EventLog, ResealingStep, RotationStep, RotationView, Snapshot, epoch_to_publish,
    present_holders, rotation_step, store_epoch,
};
use kat_store::{Leadership, StoreError, TransactionResult};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference},
    encoding::json,
    reason::EventReason,
    store::{
        authorities::{
            AuthorityKind, AuthorityRecord, ClusterAuthority, ReplaceableKey, Rotation,
            RotationPhase, RotationReason,
        },
        keys,
        transaction::{Compare, WriteOperation},
    },
};

/// Time between two rounds while there is something to do.
const BUSY: Duration = Duration::from_secs(1);
/// Time between two rounds otherwise.
const IDLE: Duration = Duration::from_secs(5);
/// A machine that is no member for this long has left.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// A new authority or recovery key, as it is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAuthority {
    /// Its certificate, PEM; empty for the recovery key.
    pub certificate: String,
    /// SHA-256 of the certificate, as 64 hexadecimal digits, or the fingerprint of the recovery key.
    pub hash: String,
}

/// Makes authorities and recovery keys on the leading machine.
#[async_trait]
pub trait AuthorityMaker: Send + Sync {
    /// Makes the authority or key that will replace the present one, and stores it on this machine.
    /// One that was made before is discarded.
    ///
    /// # Errors
    /// It can't be made or stored, in words.
    async fn make_next(&self, kind: ReplaceableKey) -> Result<NewAuthority, String>;
}

/// Settings of the loop on this machine.
#[derive(Clone)]
pub struct RotationConfig {
    /// Name of this machine.
    pub node: String,
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Makes authorities.
    pub maker: Arc<dyn AuthorityMaker>,
    /// Reports the loop to the watchdog.
    pub pulses: LoopPulses,
}

/// Longest time from the making of an authority to a report that knows of it.
const REPORTED_AFTER: Duration = Duration::from_secs(2);

/// What a leader remembers.
#[derive(Default)]
struct RotationMemory {
    left: LeftMembers,
    /// The authorities that this leader made last, and when.
    made: BTreeMap<ReplaceableKey, (String, Instant)>,
}

/// Machines that are members no more, and since when.
#[derive(Default)]
struct LeftMembers(BTreeMap<String, Instant>);

impl LeftMembers {
    /// The machines that have held an authority's key and have left.
    fn note(&mut self, snapshot: &Snapshot) -> BTreeSet<String> {
        let members = snapshot.members.as_ref().map(|stored| &stored.value);
        let records = snapshot.authorities.values();
        let holders: BTreeSet<&String> = records.flat_map(|one| one.value.holders.keys()).collect();
        let is_out = |name: &String| !members.is_some_and(|members| members.holds_store(name));
        self.0
            .retain(|name, _| holders.contains(name) && is_out(name));
        for name in holders.into_iter().filter(|name| is_out(name)) {
            self.0.entry(name.clone()).or_insert_with(Instant::now);
        }
        let long = self
            .0
            .iter()
            .filter(|(_, since)| since.elapsed() >= LEFT_AFTER);
        long.map(|(name, _)| name.clone()).collect()
    }
}

/// Replaces authorities that are due until `cancel`, whenever this machine leads.
pub async fn keep_authorities(
    handle: LeaderHandle,
    config: RotationConfig,
    cancel: CancellationToken,
) {
    let pulse = config.pulses.watch("replacement of authorities");
    let mut leadership = handle.leadership.clone();
    let work = async {
        let mut waits = BTreeMap::<ReplaceableKey, String>::new();
        let mut memory = RotationMemory::default();
        let mut unpublished = String::new();
        let mut led: Option<(String, Instant)> = None;
        loop {
            let now = leadership.borrow_and_update().clone();
            let now = now.filter(|now| !now.lost.is_cancelled());
            let mut pause = IDLE;
            if let Some(now) = &now {
                let since = match &led {
                    Some((key, since)) if *key == now.key => *since,
                    _ => Instant::now(),
                };
                led = Some((now.key.clone(), since));
                // Before the steps: the new recovery key is endorsed while the old one is held.
                match publish_epoch(&handle, now).await {
                    Ok(Progress::None) => unpublished.clear(),
                    Ok(Progress::Waits(reason)) => say_once(&mut unpublished, reason),
                    Ok(_) => pause = BUSY,
                    Err(error) => say_once(&mut unpublished, error.to_string()),
                }
                for kind in ReplaceableKey::ALL {
                    let view = (&mut memory, since.elapsed());
                    match step(&handle, &config, now, kind, view).await {
                        Ok(Progress::None) => {
                            waits.remove(&kind);
                        }
                        Ok(Progress::Made) => pause = BUSY,
                        Ok(Progress::Resealed) => pause = Duration::ZERO,
                        Ok(Progress::Waits(reason)) => {
                            let reason = format!("{}: {reason}", kind.name());
                            say_once(waits.entry(kind).or_default(), reason);
                        }
                        Err(error) => {
                            say_once(waits.entry(kind).or_default(), error.to_string());
                        }
                    }
                }
            } else {
                led = None;
                memory = RotationMemory::default();
            }
            let end = std::future::pending();
            if !pulse.next_round(end, leadership.changed(), pause).await {
                return;
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// What a round did for an authority.
enum Progress {
    None,
    Made,
    /// One of many small writes, of which the next follows at once.
    Resealed,
    Waits(String),
}

async fn step(
    handle: &LeaderHandle,
    config: &RotationConfig,
    leadership: &Leadership,
    kind: ReplaceableKey,
    (memory, leading_for): (&mut RotationMemory, Duration),
) -> Result<Progress, StoreError> {
    let Some(snapshot) = handle.snapshot.borrow().clone() else {
        return Ok(Progress::None);
    };
    let left = memory.left.note(&snapshot);
    let observed = handle.reports.observed(leading_for);
    let view = RotationView {
        leader: &config.node,
        observed: &observed,
        left: &left,
        now: (config.clock)(),
    };
    let stored = snapshot.authorities.get(kind.name());
    let record = match rotation_step(kind, &snapshot, view) {
        RotationStep::Nothing => return Ok(Progress::None),
        RotationStep::Wait(reason) => return Ok(Progress::Waits(reason)),
        RotationStep::Write(record) => *record,
        RotationStep::Reseal(step) => return reseal(handle, leadership, *step).await,
        RotationStep::Begin(reason) => {
            let under_way = stored.and_then(|stored| stored.value.rotation.as_ref());
            let own = observed.reports.get(&config.node);
            if let Some((hash, at)) = memory.made.get(&kind)
                && under_way.is_some_and(|rotation| rotation.next == *hash)
                && own.is_none_or(|own| own.age + REPORTED_AFTER >= at.elapsed())
            {
                let reason = "this machine has not reported the new authority yet";
                return Ok(Progress::Waits(reason.to_owned()));
            }
            let record = begin(config, &snapshot, kind, reason).await?;
            if let Some(rotation) = &record.rotation {
                let made = (rotation.next.clone(), Instant::now());
                memory.made.insert(kind, made);
            }
            record
        }
    };
    say_progress(kind, stored.map(|stored| &stored.value), &record);
    let record = AuthorityRecord {
        // A complete replacement is dated here: decisions read no clock.
        since: match record.rotation.is_none() && record.since.is_none() {
            true => Some((config.clock)()),
            false => record.since,
        },
        due_since: match record.due {
            Some(_) => record.due_since.or_else(|| Some((config.clock)())),
            None => None,
        },
        ..record
    };
    let key = keys::authority(kind.name());
    let value =
        json::bytes(&key, &record).map_err(|error| StoreError::Invalid(error.to_string()))?;
    let revision = stored.map_or(0, |stored| stored.revision);
    let conditions = [
        leadership.fence(),
        Compare::ModRevision(key.clone(), revision),
    ];
    let mut operations = vec![WriteOperation::Put(key, value)];
    if let Some((reason, message)) = event_of(kind, stored.map(|stored| &stored.value), &record) {
        let object = ObjectReference {
            kind: ObjectKind::Cluster,
            name: snapshot.cluster.metadata.name.clone(),
            ..ObjectReference::default()
        };
        let mut events = EventLog::new(&snapshot.events, (config.clock)());
        operations.extend(events.record(EventKind::Normal, reason, object, message));
    }
    if kind == AuthorityKind::Cluster.into() {
        let key = keys::CLUSTER_AUTHORITY.to_owned();
        let value = json::bytes(&key, &ClusterAuthority::of(&record));
        let value = value.map_err(|error| StoreError::Invalid(error.to_string()))?;
        operations.push(WriteOperation::Put(key, value));
    }
    let committed = handle.store.transact(&conditions, &operations).await?;
    match committed {
        TransactionResult::Yes(revision) => {
            handle.wait_for_revision(revision, BUSY).await;
            Ok(Progress::Made)
        }
        TransactionResult::No => Ok(Progress::Waits("its record has changed".to_owned())),
    }
}

/// Brings the record of the store's epoch up to date: which verifiers the machines know.
async fn publish_epoch(
    handle: &LeaderHandle,
    leadership: &Leadership,
) -> Result<Progress, StoreError> {
    let Some(snapshot) = handle.snapshot.borrow().clone() else {
        return Ok(Progress::None);
    };
    let invalid = |error: &dyn std::fmt::Display| {
        StoreError::Invalid(format!("the record of the store's epoch: {error}"))
    };
    let Some(record) = epoch_to_publish(&snapshot).map_err(|error| invalid(&error))? else {
        return Ok(Progress::None);
    };
    let stored = snapshot.store_epoch.as_ref();
    // One that this version can't read counts as missing, and is left as it is by this condition.
    let revision = stored.map_or(0, |stored| stored.revision);
    let key = keys::STORE_EPOCH.to_owned();
    let value = json::bytes(&key, &record).map_err(|error| invalid(&error))?;
    let conditions = [
        leadership.fence(),
        Compare::ModRevision(key.clone(), revision),
    ];
    let operations = [WriteOperation::Put(key, value)];
    match handle.store.transact(&conditions, &operations).await? {
        TransactionResult::Yes(revision) => {
            tracing::info!(
                verifiers = record.verifiers.len(),
                "by which keys machines check another epoch of the store is published"
            );
            handle.wait_for_revision(revision, BUSY).await;
            Ok(Progress::Made)
        }
        TransactionResult::No => {
            let reason = "the record of the store's epoch has changed, or can't be read";
            Ok(Progress::Waits(reason.to_owned()))
        }
    }
}

/// Seals more of what is stored with the new recovery key.
async fn reseal(
    handle: &LeaderHandle,
    leadership: &Leadership,
    step: ResealingStep,
) -> Result<Progress, StoreError> {
    let conditions: Vec<_> = [leadership.fence()]
        .into_iter()
        .chain(step.conditions)
        .collect();
    match handle.store.transact(&conditions, &step.operations).await? {
        TransactionResult::Yes(revision) => {
            tracing::info!(
                data_key = step.key,
                left = step.left,
                "secrets are sealed again"
            );
            handle.wait_for_revision(revision, BUSY).await;
            Ok(Progress::Resealed)
        }
        // Somebody wrote one of the secrets meanwhile.
        TransactionResult::No => Ok(Progress::Made),
    }
}

/// What a user is told about this step: the start and the end of a replacement. A leader that takes
/// over and begins it once more is no second start.
fn event_of(
    kind: ReplaceableKey,
    before: Option<&AuthorityRecord>,
    now: &AuthorityRecord,
) -> Option<(EventReason, String)> {
    let before = before.and_then(|before| before.rotation.as_ref());
    let name = kind.name();
    match (before, &now.rotation) {
        (None, Some(rotation)) => {
            let reason = rotation.reason.in_words();
            let message = format!("the replacement of {name} has begun: {reason}");
            Some((EventReason::ReplacementStarted, message))
        }
        (Some(_), None) if kind == ReplaceableKey::Recovery => {
            let message = "the recovery key was replaced: earlier backups open with the earlier \
                           one only";
            Some((EventReason::RecoveryKeyReplaced, message.to_owned()))
        }
        (Some(_), None) => {
            let message =
                format!("{name} was replaced: no certificate of the earlier one is valid");
            Some((EventReason::AuthorityReplaced, message))
        }
        (None, None) | (Some(_), Some(_)) => None,
    }
}

async fn begin(
    config: &RotationConfig,
    snapshot: &Snapshot,
    kind: ReplaceableKey,
    reason: RotationReason,
) -> Result<AuthorityRecord, StoreError> {
    let made = config.maker.make_next(kind).await;
    let made = made.map_err(StoreError::Invalid)?;
    let before = snapshot.authorities.get(kind.name());
    let before = before
        .map(|stored| stored.value.clone())
        .unwrap_or_default();
    Ok(AuthorityRecord {
        schema: 1,
        rotation: Some(Rotation {
            phase: RotationPhase::Trust,
            certificate: made.certificate,
            next: made.hash,
            reason,
            since: (config.clock)(),
            holders: present_holders(snapshot),
            turn: None,
            signatures: BTreeMap::new(),
            grace_seconds: match &before.rotation {
                Some(rotation) => rotation.grace_seconds,
                None => before.grace_seconds,
            },
        }),
        epoch: store_epoch(snapshot),
        due: Some(reason),
        ..before
    })
}

fn say_progress(kind: ReplaceableKey, before: Option<&AuthorityRecord>, now: &AuthorityRecord) {
    let authority = kind.name();
    let rotation = now.rotation.as_ref();
    let before = before.and_then(|before| before.rotation.as_ref());
    match (before, rotation) {
        (_, Some(rotation)) if before.is_none_or(|one| one.next != rotation.next) => {
            let reason = rotation.reason.in_words();
            tracing::info!(authority, reason, "an authority is being replaced");
        }
        (Some(before), Some(rotation)) if before.phase != rotation.phase => {
            tracing::info!(authority, phase = ?rotation.phase, "the replacement continues");
        }
        (Some(_), None) => tracing::info!(authority, "the authority has been replaced"),
        _ => {}
    }
}
