//! Requests to give up data that its machine does not find, because its disk is missing.
//!
//! Only a removal that waits can be given up: the volume was deleted, or a kept copy was kept long
//! enough, and the machine reports that it does not find the data. The leader passes that on in
//! `plan/volumes/removals.rs`, and the machine remembers it (`agent/volumes/forgotten.rs`).

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
use kat_plan::{Snapshot, is_forgotten, is_missing};
use kat_types::{
    api::{NodePhase, VolumeForgetRequest, WriteOutcome},
    reason::EventReason,
    store::{keys, records::VolumeRecord, transaction::Compare},
    volumes::{RemovalRecord, VolumeKey},
};

pub(crate) async fn forget(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, workload, volume)): PathParameters<(String, String, String)>,
    request: WriteRequest,
    JsonBody(VolumeForgetRequest { node }): JsonBody<VolumeForgetRequest>,
) -> Result<Response, ApiError> {
    let forget = VolumeForget {
        key: key(&namespace, &workload, volume),
        node,
        request,
        now: api.now(),
    };
    let (written, revision) = api.write(|snapshot| forget.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

/// A request to give up a volume's data on one machine.
struct VolumeForget {
    key: VolumeKey,
    node: String,
    request: WriteRequest,
    now: Timestamp,
}

impl VolumeForget {
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let Self { key, node, .. } = self;
        let stored = snapshot.volumes.get(key);
        let stored = stored.ok_or_else(|| missing(snapshot, key))?;
        self.request.precondition.check(Some(stored.revision))?;
        let removal = self.missing_data(snapshot, &stored.value)?;
        let outcome = WriteOutcome::Forgetting;
        let outcome = WriteResult::of("Volume", outcome, volume_metadata(key, stored));
        if self.request.query.dry_run || is_forgotten(&stored.value, node, removal) {
            return Ok(WriteDecision::Done(outcome));
        }
        let mut changed = stored.value.clone();
        changed.forgotten.insert(node.clone(), removal.asked);
        let what = match stored.value.deleting {
            true => "the data",
            false => "the old copy",
        };
        let message = format!(
            "{} gave up {what} of volume {} on {node}, whose disk is missing; if it stays missing until {node} hears of that, the volume's files stay on it",
            self.request.caller, key.volume
        );
        let entry = snapshot.workloads.get(&key.workload);
        let uid = entry.map_or("", |entry| entry.meta.value.uid.as_str());
        let mut operations = record(
            snapshot,
            self.now,
            EventReason::VolumeForgotten,
            &key.workload,
            uid,
            message,
        );
        let name = keys::volume(&key.to_string());
        let condition = Compare::ModRevision(name.clone(), stored.revision);
        let (turn, takes_turn) = in_turn(snapshot);
        operations.extend([put(name, &changed)?, takes_turn]);
        Ok(WriteDecision::Write {
            conditions: vec![condition, turn],
            operations,
            outcome,
        })
    }

    /// The removal that waits for missing data.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] with the ordinary way, where the data is not known to be missing.
    fn missing_data<'s>(
        &self,
        snapshot: &'s Snapshot,
        record: &VolumeRecord,
    ) -> Result<&'s RemovalRecord, ApiError> {
        let Self { key, node, .. } = self;
        if let Some(moving) = &record.moving {
            return Err(ApiError::conflict(
                format!(
                    "volume `{key}` is on its way from {} to {}",
                    moving.from, moving.to
                ),
                &format!("`katcall volume move {key} --cancel` ends that"),
            ));
        }
        let Some(entry) = snapshot.nodes.get(node) else {
            return Err(ApiError::conflict(
                format!("{node} is no machine of the cluster"),
                &format!("`katcall delete volume {key}` gives up data on such a machine"),
            ));
        };
        let removal = snapshot.removals.get(node).and_then(|all| all.get(key));
        let Some(removal) = removal else {
            return Err(self.nothing_to_remove(record));
        };
        let status = entry.status.as_ref().map(|stored| &stored.value);
        let Some(status) = status.filter(|status| status.phase != NodePhase::NotReady) else {
            return Err(ApiError::conflict(
                format!("{node} does not answer, so whether its disk is missing is not known"),
                &format!(
                    "bring {node} back; if it is gone for good, `katcall delete node {node}` gives up all data on it"
                ),
            ));
        };
        if status.volume_shared {
            return Err(ApiError::conflict(
                format!("the data of volume `{key}` lies on storage that machines share"),
                &format!("mount it on {node}, which then removes the data"),
            ));
        }
        if !is_missing(status, key, removal) {
            return Err(ApiError::conflict(
                format!("{node} does not report that the data of volume `{key}` is missing"),
                &format!(
                    "{node} removes it as requested; `katcall why node {node}` says what that waits for"
                ),
            ));
        }
        Ok(removal)
    }

    /// The refusal where the machine was not asked to remove anything.
    fn nothing_to_remove(&self, record: &VolumeRecord) -> ApiError {
        let Self { key, node, .. } = self;
        let mut kept = record.kept.iter();
        if let Some(copy) = kept.find(|copy| copy.node == *node) {
            return ApiError::conflict(
                format!(
                    "the old copy of volume `{key}` on {node} is kept until {}",
                    copy.until.strftime("%Y-%m-%dT%H:%M:%SZ")
                ),
                "it is removed after that, and can be given up if its disk is missing then",
            );
        }
        let waits = record.deleting && record.node.as_deref() == Some(node);
        match record.node.as_deref() == Some(node) {
            true if !waits => ApiError::conflict(
                format!("the data of volume `{key}` on {node} is not being removed"),
                &format!("`katcall delete volume {key}` removes it"),
            ),
            true => ApiError::conflict(
                format!("{node} was not yet asked to remove the data of volume `{key}`"),
                "try again in some seconds",
            ),
            false => ApiError::conflict(
                format!("{node} has no data of volume `{key}` to remove"),
                "`katcall get volumes -o wide` shows the machines with its data",
            ),
        }
    }
}
