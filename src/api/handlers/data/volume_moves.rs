//! Requests and cancellations of volume moves. The leader carries them out in
//! `plan/volumes/moves.rs`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use jiff::Timestamp;

use super::volumes::{in_turn, key, missing};
use crate::{
    apply::{put, record},
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, WriteRequest},
    handlers::workloads::workload_objects::WriteResult,
    view::volume_metadata,
};
use kat_plan::{
    Snapshot, is_used_meanwhile, lacks_secret, moves_together, receiver_phase, stopped_move,
    users_of, why_it_does_not_fit, without_move,
};
use kat_types::{
    api::{NodePhase, VolumeMovePhase as Phase, VolumeMoveRequest, WriteOutcome},
    assignment::is_machine_slot,
    reason::EventReason,
    store::{
        keys,
        records::{NodeStatusRecord, VolumeRecord},
        revisions::Stored,
        transaction::{Compare, WriteOperation},
    },
    volumes::{VolumeKey, VolumeMove},
};

/// Maximum number of volumes that move together: they change in one transaction.
const MOST: usize = 24;
/// Lowest assignment schema of agents that can move volumes.
const SCHEMA: u32 = 5;

pub(crate) async fn start(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, workload, volume)): PathParameters<(String, String, String)>,
    request: WriteRequest,
    JsonBody(VolumeMoveRequest { to }): JsonBody<VolumeMoveRequest>,
) -> Result<Response, ApiError> {
    let moving = VolumeMoveWrite {
        key: key(&namespace, &workload, volume),
        request,
        now: api.now(),
        id: (api.config.new_uid)(),
    };
    let (written, revision) = api.write(|snapshot| moving.start(snapshot, &to)).await?;
    Ok(written.answer(revision))
}

pub(crate) async fn cancel(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, workload, volume)): PathParameters<(String, String, String)>,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    let moving = VolumeMoveWrite {
        key: key(&namespace, &workload, volume),
        request,
        now: api.now(),
        id: String::new(),
    };
    let (written, revision) = api.write(|snapshot| moving.cancel(snapshot)).await?;
    Ok(written.answer(revision))
}

/// A request to move a volume or to cancel its move.
struct VolumeMoveWrite {
    key: VolumeKey,
    request: WriteRequest,
    now: Timestamp,
    /// Id for a new move.
    id: String,
}

impl VolumeMoveWrite {
    fn start(&self, snapshot: &Snapshot, to: &str) -> Result<WriteDecision<WriteResult>, ApiError> {
        let key = &self.key;
        let stored = self.stored(snapshot)?;
        let outcome = |word| WriteResult::of("Volume", word, volume_metadata(key, stored));
        if let Some(moving) = &stored.value.moving {
            if moving.to == to {
                return Ok(WriteDecision::Done(outcome(WriteOutcome::Unchanged)));
            }
            return Err(ApiError::conflict(
                format!("volume `{key}` is on its way to {}", moving.to),
                &format!("`katcall volume move {key} --cancel` ends that"),
            ));
        }
        let from = movable(snapshot, key, &stored.value, to)?;
        if from == to {
            return Ok(WriteDecision::Done(outcome(WriteOutcome::Unchanged)));
        }
        let together = moves_together(snapshot, key);
        if together.len() > MOST {
            return Err(refuse(format!(
                "{} volumes have to be where `{key}` is, and at most {MOST} can move together",
                together.len()
            )));
        }
        for other in &together {
            if let Some(stored) = snapshot.volumes.get(other) {
                movable(snapshot, other, &stored.value, to)?;
            }
        }
        check_version(snapshot, key, &together)?;
        check_target(snapshot, key, to, self.now)?;
        if self.request.query.dry_run {
            return Ok(WriteDecision::Done(outcome(WriteOutcome::Moving)));
        }
        let moving = VolumeMove {
            id: self.id.clone(),
            from: from.to_owned(),
            to: to.to_owned(),
            asked: self.now,
            placing: false,
            replaced: None,
        };
        let change = |_: &VolumeKey, record: &VolumeRecord| VolumeRecord {
            moving: Some(moving.clone()),
            made: true,
            ..record.clone()
        };
        let message = format!(
            "{} asked for the data of {} to move from {from} to {to}",
            self.request.caller,
            named(&together)
        );
        let all = together.iter();
        let written = self.written(
            snapshot,
            all,
            change,
            (EventReason::VolumeMoveStarted, message),
        )?;
        Ok(written.with(outcome(WriteOutcome::Moving)))
    }

    fn cancel(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let key = &self.key;
        let stored = self.stored(snapshot)?;
        let outcome = |word| WriteResult::of("Volume", word, volume_metadata(key, stored));
        let Some(moving) = &stored.value.moving else {
            return Ok(WriteDecision::Done(outcome(WriteOutcome::Unchanged)));
        };
        if self.request.query.dry_run {
            return Ok(WriteDecision::Done(outcome(WriteOutcome::Cancelled)));
        }
        let is_of = |record: &VolumeRecord| {
            let other = record.moving.as_ref();
            other.is_some_and(|other| other.id == moving.id)
        };
        let all: Vec<&VolumeKey> = snapshot
            .volumes
            .iter()
            .filter(|(other, stored)| other.workload == key.workload && is_of(&stored.value))
            .map(|(other, _)| other)
            .collect();
        let names: Vec<VolumeKey> = all.iter().map(|key| (*key).clone()).collect();
        let stays = stays_there(snapshot, key, moving, &names)?;
        let node = match stays {
            true => &moving.to,
            false => &moving.from,
        };
        let taker = status(snapshot, &moving.to);
        let message = format!(
            "{} asked for the data of {} to stay on {}",
            self.request.caller,
            named(&names),
            node
        );
        let change = |key: &VolumeKey, record: &VolumeRecord| match stays {
            true => without_move(record),
            false => stopped_move(key, record, taker, self.now),
        };
        let all = all.into_iter();
        let written = self.written(
            snapshot,
            all,
            change,
            (EventReason::VolumeMoveCancelled, message),
        )?;
        Ok(written.with(outcome(WriteOutcome::Cancelled)))
    }

    fn stored<'s>(&self, snapshot: &'s Snapshot) -> Result<&'s Stored<VolumeRecord>, ApiError> {
        let stored = snapshot.volumes.get(&self.key);
        let stored = stored.ok_or_else(|| missing(snapshot, &self.key))?;
        self.request.precondition.check(Some(stored.revision))?;
        Ok(stored)
    }

    /// Writes all volumes in one transaction, which excludes concurrent plans.
    fn written<'k>(
        &self,
        snapshot: &Snapshot,
        volumes: impl Iterator<Item = &'k VolumeKey>,
        change: impl Fn(&VolumeKey, &VolumeRecord) -> VolumeRecord,
        (reason, message): (EventReason, String),
    ) -> Result<MoveTransaction, ApiError> {
        let workload = &self.key.workload;
        let entry = snapshot.workloads.get(workload);
        let uid = entry.map_or("", |entry| entry.meta.value.uid.as_str());
        let mut operations = record(snapshot, self.now, reason, workload, uid, message);
        let (turn, takes_turn) = in_turn(snapshot);
        let mut conditions = vec![turn];
        operations.push(takes_turn);
        for key in volumes {
            let Some(stored) = snapshot.volumes.get(key) else {
                continue;
            };
            let name = keys::volume(&key.to_string());
            conditions.push(Compare::ModRevision(name.clone(), stored.revision));
            operations.push(put(name, &change(key, &stored.value))?);
        }
        Ok(MoveTransaction {
            conditions,
            operations,
        })
    }
}

struct MoveTransaction {
    conditions: Vec<Compare>,
    operations: Vec<WriteOperation>,
}

impl MoveTransaction {
    fn with(self, outcome: WriteResult) -> WriteDecision<WriteResult> {
        WriteDecision::Write {
            conditions: self.conditions,
            operations: self.operations,
            outcome,
        }
    }
}

fn refuse(message: String) -> ApiError {
    ApiError::Conflict {
        message,
        hint: None,
    }
}

/// `volumes a, b`.
fn named(volumes: &[VolumeKey]) -> String {
    let names: Vec<&str> = volumes.iter().map(|key| key.volume.as_str()).collect();
    match names.as_slice() {
        [only] => format!("volume {only}"),
        several => format!("volumes {}", several.join(", ")),
    }
}

fn status<'s>(snapshot: &'s Snapshot, node: &str) -> Option<&'s NodeStatusRecord> {
    let entry = snapshot.nodes.get(node)?;
    entry.status.as_ref().map(|stored| &stored.value)
}

/// The machine that has the data; an error if it can't be sent from there.
fn movable<'s>(
    snapshot: &Snapshot,
    key: &VolumeKey,
    record: &'s VolumeRecord,
    to: &str,
) -> Result<&'s str, ApiError> {
    let node = record.node.as_deref();
    if let Some(path) = &record.host_path {
        let node = node.unwrap_or("its machine");
        return Err(ApiError::conflict(
            format!("volume `{key}` is the path {path} of {node}, which KAT does not move"),
            &format!(
                "copy what is there yourself, and `katcall delete volume {key}` has its place forgotten"
            ),
        ));
    }
    if record.deleting {
        return Err(refuse(format!(
            "the data of volume `{key}` is being removed"
        )));
    }
    if key.slot().is_some_and(is_machine_slot) {
        return Err(refuse(format!(
            "volume `{key}` belongs to the instance of a DaemonService on its machine, which runs nowhere else"
        )));
    }
    let shares = |node: &str| status(snapshot, node).is_some_and(|status| status.volume_shared);
    let Some(node) = node.filter(|node| !shares(node)) else {
        return Err(refuse(format!(
            "the data of volume `{key}` lies on storage that machines share: there is nothing to move"
        )));
    };
    if node == to {
        return Ok(node);
    }
    if !record.made {
        return Err(ApiError::conflict(
            format!("nothing has run with volume `{key}` yet: there is no data to move"),
            "wait until its workload runs",
        ));
    }
    let ready = status(snapshot, node);
    let Some(ready) = ready.filter(|status| status.phase != NodePhase::NotReady) else {
        return Err(ApiError::conflict(
            format!("the data of volume `{key}` lies on {node}, which does not answer"),
            &format!("bring {node} back first; its data is there and nowhere else"),
        ));
    };
    if ready.assignment_schema < SCHEMA {
        return Err(too_old(node));
    }
    let goes = |node: &str| {
        snapshot
            .removals
            .get(node)
            .is_some_and(|all| all.contains_key(key))
    };
    if goes(to) {
        return Err(ApiError::conflict(
            format!("an old copy of volume `{key}` is being removed from {to}"),
            "try again when that is done",
        ));
    }
    Ok(node)
}

/// Whether a cancelled move leaves the data on the receiving machine, because it can't return. An
/// error if the move can't be cancelled now.
fn stays_there(
    snapshot: &Snapshot,
    key: &VolumeKey,
    moving: &VolumeMove,
    all: &[VolumeKey],
) -> Result<bool, ApiError> {
    let VolumeMove { from, to, .. } = moving;
    let says = |other: &VolumeKey| receiver_phase(status(snapshot, to), other, moving);
    if !moving.placing {
        return Ok(false);
    }
    let used = |other: &VolumeKey| is_used_meanwhile(snapshot, other, moving);
    if all.iter().any(used) {
        return match all.iter().all(|other| says(other) == Some(Phase::Placed)) {
            true => Ok(true),
            false => Err(refuse(format!(
                "an instance was placed on {to} with volume `{key}`, whose data is being put in its place there"
            ))),
        };
    }
    if snapshot.nodes.contains_key(from) {
        return Ok(false);
    }
    let lost = all.iter().any(|other| says(other) == Some(Phase::Lost));
    match lost || !snapshot.nodes.contains_key(to) {
        true => Ok(true),
        false => Err(refuse(format!(
            "the data of volume `{key}` is on {to} now, and {from} is no machine of the cluster any more"
        ))),
    }
}

/// Refuses to move an instance of another version than the present one, which would take its place
/// afterwards.
fn check_version(
    snapshot: &Snapshot,
    key: &VolumeKey,
    together: &[VolumeKey],
) -> Result<(), ApiError> {
    let workload = &key.workload;
    let Some(entry) = snapshot.workloads.get(workload) else {
        return Ok(());
    };
    let meta = &entry.meta.value;
    let users = together.iter().flat_map(|other| users_of(snapshot, other));
    let mut users = users.filter_map(|id| Some((id, snapshot.instances.get(id)?)));
    let Some((first, instance)) = users.next().filter(|_| !meta.deleting) else {
        return Ok(());
    };
    let is_other = |hash: &String| *hash != meta.template_hash;
    let other = std::iter::once((first, instance)).chain(users);
    let mut other = other.filter(|(_, one)| is_other(&one.assignment.value.template_hash));
    if let Some((id, _)) = other.next() {
        return Err(ApiError::conflict(
            format!(
                "{id} is of another version of {workload} than the present one, which would come in its place"
            ),
            "finish the rollout or roll back first",
        ));
    }
    let spec = entry.parsed.as_ref().map(|parsed| &parsed.workload.spec);
    let lacking = spec
        .ok()
        .and_then(|spec| lacks_secret(snapshot, &workload.namespace, spec));
    match lacking {
        None => Ok(()),
        Some(why) => Err(ApiError::conflict(
            format!("{first} would not start again: {why}"),
            "set that secret, or roll back first",
        )),
    }
}

fn too_old(node: &str) -> ApiError {
    ApiError::conflict(
        format!("{node} runs a version of KAT that does not move volumes"),
        &format!("install the newer version of KAT on {node}"),
    )
}

fn check_target(
    snapshot: &Snapshot,
    key: &VolumeKey,
    to: &str,
    now: Timestamp,
) -> Result<(), ApiError> {
    let Some(entry) = snapshot
        .nodes
        .get(to)
        .filter(|one| !one.registration.value.deleting)
    else {
        return Err(ApiError::not_found("node", to));
    };
    let Some(status) = &entry.status else {
        return Err(refuse(format!("{to} has not reported yet")));
    };
    let status = &status.value;
    if entry.registration.value.draining {
        return Err(ApiError::conflict(
            format!("{to} is being drained"),
            &format!("`katcall uncordon {to}` lets it take work again"),
        ));
    }
    if status.phase != NodePhase::Ready {
        return Err(refuse(format!("{to} is not ready: {}", status.message)));
    }
    if status.volume_shared {
        return Err(refuse(format!(
            "the volume base path of {to} is storage that machines share, to which nothing is moved"
        )));
    }
    if status.assignment_schema < SCHEMA {
        return Err(too_old(to));
    }
    match why_it_does_not_fit(snapshot, key, to, now) {
        None => Ok(()),
        Some(why) => Err(ApiError::conflict(
            format!("{} could not run on {to}: {why}", key.workload),
            &format!("change what its files ask of machines, or make room on {to}"),
        )),
    }
}
