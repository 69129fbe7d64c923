//! Deletion of workloads: marked here, completed by the leader once the agents confirm that nothing
//! is left.

use jiff::Timestamp;

use crate::{
    access::authentication::Caller,
    apply::{put, record},
    context::WriteDecision,
    errors::ApiError,
    extract::Precondition,
    handlers::workloads::workload_objects::{WriteResult, missing},
    view::workload_metadata,
};
use kat_plan::Snapshot;
use kat_types::{
    api::WriteOutcome,
    reason::EventReason,
    store::{
        keys,
        records::WorkloadMeta,
        revisions::WorkloadKey,
        snapshot::WorkloadEntry,
        transaction::{Compare, WriteOperation},
    },
};

/// A request to delete a workload.
pub(crate) struct WorkloadRemoval<'a> {
    pub(crate) key: WorkloadKey,
    pub(crate) precondition: Precondition,
    pub(crate) dry_run: bool,
    /// Delete the data of its volumes too.
    pub(crate) volumes: bool,
    pub(crate) caller: &'a Caller,
    pub(crate) now: Timestamp,
}

impl WorkloadRemoval<'_> {
    /// Marks the workload; the leader removes it once the agents confirm that nothing is left.
    pub(crate) fn decide(
        &self,
        snapshot: &Snapshot,
    ) -> Result<WriteDecision<WriteResult>, ApiError> {
        let entry = snapshot.workloads.get(&self.key);
        let entry = entry.ok_or_else(|| missing(snapshot, &self.key))?;
        self.precondition.check(Some(entry.meta.revision))?;
        let metadata = workload_metadata(&self.key, entry);
        let outcome = WriteResult::of("Workload", WriteOutcome::Deleting, metadata);
        if self.dry_run || !is_to_mark(entry, self.volumes) {
            return Ok(WriteDecision::Done(outcome));
        }
        let (condition, operation) = mark_deleting(&self.key, entry, self.volumes)?;
        let data = match self.volumes {
            true => ", with the data of its volumes,",
            false => "",
        };
        let message = format!("deletion{data} was asked for by {}", self.caller.in_words());
        let uid = &entry.meta.value.uid;
        let mut operations = record(
            snapshot,
            self.now,
            EventReason::Deleting,
            &self.key,
            uid,
            message,
        );
        operations.push(operation);
        Ok(WriteDecision::Write {
            conditions: vec![condition],
            operations,
            outcome,
        })
    }
}

/// Whether the request changes something: the workload is not being deleted yet, or now the data of
/// its volumes is to be deleted too.
pub(crate) fn is_to_mark(entry: &WorkloadEntry, volumes: bool) -> bool {
    let meta = &entry.meta.value;
    !meta.deleting || (volumes && !meta.deletes_volumes)
}

/// Marks one workload as being deleted; an earlier request to delete its volumes stays.
pub(crate) fn mark_deleting(
    key: &WorkloadKey,
    entry: &WorkloadEntry,
    volumes: bool,
) -> Result<(Compare, WriteOperation), ApiError> {
    let meta_key = keys::workload_meta(&key.namespace, &key.name);
    let meta = &entry.meta.value;
    let meta = WorkloadMeta {
        deleting: true,
        deletes_volumes: volumes || meta.deletes_volumes,
        ..meta.clone()
    };
    let condition = Compare::ModRevision(meta_key.clone(), entry.meta.revision);
    Ok((condition, put(meta_key, &meta)?))
}
