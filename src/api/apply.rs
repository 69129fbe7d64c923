//! Decides what an apply or a delete of a workload writes. Pure: a snapshot in, operations out.

mod aliases;
mod host_port_sources;
pub(crate) mod image_pins;
pub(crate) mod preview;
pub(crate) mod readers;
pub(crate) mod removal;
pub(crate) mod route_claims;
mod start_order;
pub(crate) mod submission;

use std::{collections::BTreeMap, time::Duration};

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::{
    context::WriteDecision, errors::ApiError, extract::Precondition, view::workload_metadata,
};
use crate::{
    access::authentication::Caller,
    apply::submission::{Submission, refusal},
    handlers::cluster::configuration::refuse_unread_configuration,
    handlers::workloads::workload_objects::WriteResult,
};
use kat_bundle::{SourceFile, host_port_places};
use kat_plan::{
    EventLog, MAX_ASSIGNMENT, OF_DEPLOY_TOKENS, QuotaExceeded, Snapshot, add_default_requests,
    check_workload, default_requests, next_index, on_each_machine, reserved_ports,
    volumes_on_each_machine,
};
use kat_types::{
    api::{EventKind, Metadata, ObjectKind, ObjectReference, Scope, WriteOutcome},
    assignment::INDEX_LIMIT,
    encoding::json,
    machine::fence::fence_after,
    reason::EventReason,
    resource::{Amounts, Protocol},
    store::{
        keys,
        records::{
            GenerationRecord, ImageRecord, IndexRecord, LastIndex, Origin, StopRecord,
            WorkloadMeta, with_restart,
        },
        revisions::{Stored, WorkloadKey},
        snapshot::WorkloadEntry,
        transaction::{Compare, MAX_OPERATIONS, WriteOperation},
    },
};

/// Maximum bytes of all files of a workload: they are stored twice in one transaction, which etcd
/// takes up to 1.5 MiB. Files for its volumes count as they are stored, packed and as text.
const MAX_FILES: usize = 700 * 1024;

/// A request to create or change a workload.
pub(super) struct WorkloadWrite<'a> {
    pub(super) submission: Submission,
    /// POST: a workload that exists with other content is a conflict.
    pub(super) only_create: bool,
    pub(super) precondition: Precondition,
    pub(super) caller: &'a Caller,
    /// Identity of the workload if it is new.
    pub(super) uid: String,
    pub(super) now: Timestamp,
    pub(super) cause: ApplyCause,
    /// What the registry answered about its image, if it was queried.
    pub(super) looked: Option<ImageRecord>,
}

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ApplyCause {
    /// An apply of these files.
    Applied,
    /// A rollback to the files of generation `of`, with its restart.
    RolledBack {
        of: u64,
        restarted: Option<Timestamp>,
    },
    /// The same files with another number of replicas.
    Scaled { to: u32 },
    /// The same files with another image.
    ImageSet,
    /// The same files, with new instances.
    Restarted { at: Timestamp },
    /// The same files without replicas, of which there were `before`.
    Stopped { before: u32 },
    /// The same files with the replicas of before the stop.
    Started { replicas: u32 },
}

impl ApplyCause {
    fn origin(self) -> Origin {
        match self {
            Self::Applied => Origin::Applied,
            Self::RolledBack { .. } => Origin::RolledBack,
            Self::Scaled { .. } => Origin::Scaled,
            Self::Restarted { .. } => Origin::Restarted,
            Self::ImageSet => Origin::ImageSet,
            Self::Stopped { .. } => Origin::Stopped,
            Self::Started { .. } => Origin::Started,
        }
    }

    /// Reason and message of the request's event.
    fn event(self, new: bool, generation: u64, caller: &Caller) -> (EventReason, String) {
        let caller = caller.in_words();
        match self {
            Self::Applied if new => (
                EventReason::Created,
                format!("generation {generation} was applied by {caller}"),
            ),
            Self::Applied => (
                EventReason::Updated,
                format!("generation {generation} was applied by {caller}"),
            ),
            Self::RolledBack { of, .. } => (
                EventReason::RolledBack,
                format!("generation {generation} is generation {of} again, as {caller} asked"),
            ),
            Self::Scaled { to } => (
                EventReason::Scaled,
                format!("generation {generation} has {to} replicas, as {caller} asked"),
            ),
            Self::ImageSet => (
                EventReason::ImageSet,
                format!("generation {generation} has another image, as {caller} asked"),
            ),
            Self::Restarted { .. } => (
                EventReason::Restarted,
                format!("generation {generation} begins its instances anew, as {caller} asked"),
            ),
            Self::Stopped { before } => (
                EventReason::WorkloadStopped,
                format!("{caller} stopped it; `katcall start` gives it {before} replicas again"),
            ),
            Self::Started { replicas } => (
                EventReason::WorkloadStarted,
                format!("{caller} started it again, with {replicas} replicas"),
            ),
        }
    }
}

impl WorkloadWrite<'_> {
    /// Decides what to write. The same content writes nothing and keeps its generation.
    pub(super) fn decide(
        &self,
        snapshot: &Snapshot,
    ) -> Result<WriteDecision<WriteResult>, ApiError> {
        let submission = &self.submission;
        let key = WorkloadKey::new(&submission.namespace, &submission.name);
        let namespace = snapshot
            .namespaces
            .get(&key.namespace)
            .ok_or_else(|| ApiError::not_found("namespace", &key.namespace))?;
        if namespace.value.deleting {
            return Err(ApiError::conflict(
                format!("the namespace `{}` is being deleted", key.namespace),
                "wait until it is gone and create it again",
            ));
        }
        self.check_size(snapshot, &key)?;
        self.check_fence(snapshot)?;
        self.check_host_ports(snapshot)?;
        host_port_sources::check(snapshot, &key, submission)?;
        let entry = snapshot.workloads.get(&key);
        let needed = &submission.needed_readers;
        readers::check(snapshot, needed, entry.map(|entry| &entry.files))?;
        self.precondition
            .check(entry.map(|entry| entry.meta.revision))?;
        let namespace_key = keys::namespace(&key.namespace);
        let mut conditions = vec![Compare::ModRevision(namespace_key, namespace.revision)];
        conditions.extend(self.cluster_unchanged(snapshot));
        let decided = match entry {
            None => self.create(snapshot, &key, &mut conditions)?,
            Some(entry) => match self.update(&key, entry)? {
                Some(meta) => meta,
                None => return Ok(WriteDecision::Done(self.unchanged(&key, entry))),
            },
        };
        let own = match &submission.lacks_requests {
            Some(spec) => {
                let defaults = default_requests(snapshot, &key.namespace);
                add_default_requests(submission.amounts, spec, defaults)
            }
            None => submission.amounts,
        };
        let amounts = match (&submission.daemon, &submission.per_node) {
            (Some(spec), _) => on_each_machine(snapshot, &key, spec, own),
            (None, Some(spec)) => volumes_on_each_machine(snapshot, spec, own),
            (None, None) => own,
        };
        check_workload(snapshot, &key, &quota_defaults(self.caller), &amounts).map_err(exceeded)?;
        let claims = route_claims::check(snapshot, &key, submission, self.caller)?;
        let aliases = aliases::check(snapshot, &key, submission)?;
        conditions.extend(aliases.conditions);
        let order = start_order::check(snapshot, &key, &submission.start_after)?;
        conditions.extend(order.conditions);
        let mut warnings = missing_namespaces(snapshot, &submission.allow_namespaces);
        warnings.extend(order.warnings);
        let outcome = WriteResult {
            warnings,
            ..self.written(&key, entry.is_none(), &decided.meta)
        };
        let generation = decided.meta.generation;
        let same_generation = entry.is_some_and(|entry| entry.meta.value.generation == generation);
        conditions.push(Compare::ModRevision(
            keys::workload_meta(&key.namespace, &key.name),
            entry.map_or(0, |entry| entry.meta.revision),
        ));
        let mut operations = decided.operations;
        if claims.change || aliases.change {
            // Two applies that were decided on the same owners do not both succeed.
            let key = keys::INGRESS_CLAIMS.to_owned();
            conditions.push(Compare::ModRevision(key.clone(), snapshot.claims_revision));
            operations.push(WriteOperation::Put(key, Vec::new()));
        }
        let stored = entry.map(|entry| &entry.files);
        operations.extend(self.files(&key, stored, generation, same_generation));
        let meta_key = keys::workload_meta(&key.namespace, &key.name);
        operations.push(put(meta_key, &decided.meta)?);
        if !same_generation {
            let is_new = entry.is_none();
            operations.extend(self.new_generation(snapshot, &key, &decided.meta, is_new)?);
        }
        if operations.len() > MAX_OPERATIONS {
            return Err(ApiError::invalid(format!(
                "the workload has {} files, which is more than can be stored at once",
                submission.files.len()
            )));
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome,
        })
    }

    /// Refuses files, and instances, that are too large for the store.
    fn check_size(&self, snapshot: &Snapshot, key: &WorkloadKey) -> Result<(), ApiError> {
        let submission = &self.submission;
        let size: usize = submission.files.values().map(String::len).sum();
        if size > MAX_FILES {
            return Err(ApiError::TooLarge {
                what: "the sum of the workload's files",
                limit: MAX_FILES,
            });
        }
        // A specification that is stored already is not refused here: the planner checks its size.
        let is_new = snapshot
            .workloads
            .get(key)
            .is_none_or(|entry| entry.meta.value.spec_hash != submission.spec_hash);
        if is_new && submission.assignment_bytes > MAX_ASSIGNMENT {
            return Err(ApiError::TooLarge {
                what: "what one instance takes in the store, with its files and the largest secrets that it may have,",
                limit: MAX_ASSIGNMENT,
            });
        }
        Ok(())
    }

    /// Refuses an instance that may not have stopped by itself when it is replaced on another machine.
    fn check_fence(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        let Some(grace) = self.submission.fenced_grace else {
            return Ok(());
        };
        // That of the machines, which may be lower than that of leaders.
        refuse_unread_configuration(snapshot)?;
        let timeout = snapshot.wanted_cluster().spec.node_loss_timeout_seconds;
        let seconds = Duration::from_secs(timeout.into());
        if fence_after(seconds, grace).is_none() {
            return Err(ApiError::invalid(format!(
                "workload.kat: spec.onPartition stop: with terminationGraceSeconds {grace} the program may not have ended within nodeLossTimeoutSeconds, which is {timeout}"
            )));
        }
        Ok(())
    }

    /// Refuses ports that each machine needs itself.
    fn check_host_ports(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        let submission = &self.submission;
        let own = reserved_ports(&snapshot.cluster.spec);
        let is_wanted = |port: &u16, protocol: &Protocol| {
            let mut wanted = submission.host_ports.iter();
            wanted.any(|wanted| *wanted == (*port, *protocol))
        };
        let own = own
            .iter()
            .find(|(port, protocol, _)| is_wanted(port, protocol));
        if let Some((port, protocol, purpose)) = own {
            let message = format!(
                "hostPort {port}: each machine needs its port {port}/{} for {purpose}",
                protocol.word()
            );
            let files = submission.files.iter().map(|(name, text)| SourceFile {
                name: name.clone(),
                text: text.clone(),
            });
            let places = host_port_places(
                &files.collect::<Vec<_>>(),
                submission.ports_file,
                (*port, *protocol),
                &message,
                "write another one, or auto",
            );
            return Err(refusal(places));
        }
        Ok(())
    }

    /// The conditions that what the workload needs of the cluster is still as it was checked.
    fn cluster_unchanged(&self, snapshot: &Snapshot) -> Vec<Compare> {
        let mut conditions = Vec::new();
        let needs_reader = !self.submission.needed_readers.is_empty();
        if let Some(members) = snapshot.members.as_ref().filter(|_| needs_reader) {
            // A machine with an older reader may become a member at this moment.
            let key = keys::MEMBERS.to_owned();
            conditions.push(Compare::ModRevision(key, members.revision));
        }
        if self.submission.fenced_grace.is_some() {
            // The timeout that it fits into may be lowered at this moment.
            let key = keys::WANTED_CONFIGURATION.to_owned();
            conditions.push(Compare::ModRevision(key, snapshot.wanted_revision));
        }
        conditions
    }

    fn create(
        &self,
        snapshot: &Snapshot,
        key: &WorkloadKey,
        conditions: &mut Vec<Compare>,
    ) -> Result<WorkloadDecision, ApiError> {
        // Volumes left by an earlier workload of this name belong to that workload's user.
        let kept = snapshot
            .volumes
            .iter()
            .find(|(volume, _)| volume.workload == *key);
        let kept = kept.map(|(_, stored)| stored.value.index);
        let index = kept.or_else(|| next_index(snapshot)).ok_or_else(|| {
            ApiError::conflict(
                format!("all {INDEX_LIMIT} users for workloads are taken"),
                "delete workloads that are not needed, with their kept volumes",
            )
        })?;
        let record = IndexRecord {
            schema: 1,
            namespace: key.namespace.clone(),
            workload: key.name.clone(),
            workload_uid: self.uid.clone(),
        };
        // This condition is enough for the last index too: applies that start from the same one
        // choose the same index, and only one of them succeeds.
        let revision = snapshot
            .indexes
            .get(&index)
            .map_or(0, |stored| stored.revision);
        conditions.push(Compare::ModRevision(keys::index(index), revision));
        let mut operations = vec![put(keys::index(index), &record)?];
        if kept.is_none() {
            let last = LastIndex { schema: 1, index };
            operations.push(put(keys::LAST_INDEX.to_owned(), &last)?);
        }
        Ok(WorkloadDecision {
            operations,
            meta: WorkloadMeta {
                schema: 1,
                uid: self.uid.clone(),
                generation: 1,
                spec_hash: self.submission.spec_hash.clone(),
                template_hash: self.submission.template_hash.clone(),
                index,
                created: self.now,
                updated: self.now,
                deleting: false,
                deletes_volumes: false,
                paused: false,
                restarted: None,
                stopped: None,
                image: image_pins::still_meant(self.looked.as_ref(), &self.submission),
            },
        })
    }

    /// `None` if the content is the same. If only comments or layout differ, the new texts are
    /// stored, and the generation stays.
    fn update(
        &self,
        key: &WorkloadKey,
        entry: &WorkloadEntry,
    ) -> Result<Option<WorkloadDecision>, ApiError> {
        let meta = &entry.meta.value;
        if meta.deleting {
            return Err(ApiError::conflict(
                format!("the workload `{key}` is being deleted"),
                &format!(
                    "`katcall wait workload/{key} --for=delete` waits until it is gone; then apply again"
                ),
            ));
        }
        let restarted = match self.cause {
            ApplyCause::Applied
            | ApplyCause::Scaled { .. }
            | ApplyCause::ImageSet
            | ApplyCause::Stopped { .. }
            | ApplyCause::Started { .. } => meta.restarted,
            ApplyCause::RolledBack { restarted, .. } => restarted,
            ApplyCause::Restarted { at } => Some(at),
        };
        let restarts = matches!(self.cause, ApplyCause::Restarted { .. });
        if restarts && meta.restarted == restarted {
            return Ok(None);
        }
        let template_hash = with_restart(&self.submission.template_hash, restarted);
        let image = match self.cause {
            ApplyCause::RolledBack { of, .. } => {
                let archived = entry.archive.get(&of);
                let record = archived.and_then(|archived| archived.record.as_ref());
                record
                    .map(|record| record.image.clone())
                    .unwrap_or_default()
            }
            _ if meta.template_hash == template_hash => meta.image.clone(),
            _ => image_pins::still_meant(self.looked.as_ref(), &self.submission),
        };
        // The same files may have run another image, if their tag pointed to another one then.
        let returns = matches!(self.cause, ApplyCause::RolledBack { .. })
            && image.pins() != meta.image.pins()
            && template_hash != meta.template_hash;
        if meta.spec_hash == self.submission.spec_hash && !restarts && !returns {
            let stored = entry
                .files
                .iter()
                .map(|(name, stored)| (name.as_str(), &*stored.value));
            let sent = self
                .submission
                .files
                .iter()
                .map(|(name, text)| (name.as_str(), text.as_str()));
            return Ok(
                (!self.only_create && !stored.eq(sent)).then(|| WorkloadDecision {
                    operations: Vec::new(),
                    meta: meta.clone(),
                }),
            );
        }
        if self.only_create {
            return Err(ApiError::conflict(
                format!("the workload `{key}` exists with other content"),
                "`katcall edit` or `katcall apply` with its folder changes it (PUT to its own path)",
            ));
        }
        let generation = meta.generation.saturating_add(1);
        let archive = |generation| keys::archive_generation(&key.namespace, &key.name, generation);
        let outdated = kat_plan::outdated_generations(entry, generation).into_iter();
        let operations = outdated
            .map(|old| WriteOperation::DeletePrefix(archive(old)))
            .collect();
        Ok(Some(WorkloadDecision {
            operations,
            meta: WorkloadMeta {
                generation,
                spec_hash: self.submission.spec_hash.clone(),
                image,
                template_hash,
                restarted,
                updated: self.now,
                stopped: self.stopped(entry),
                ..meta.clone()
            },
        }))
    }

    /// The result where nothing is written.
    fn unchanged(&self, key: &WorkloadKey, entry: &WorkloadEntry) -> WriteResult {
        let metadata = workload_metadata(key, entry);
        WriteResult {
            warnings: self.without_replicas().into_iter().collect(),
            ..WriteResult::of("Workload", WriteOutcome::Unchanged, metadata)
        }
    }

    /// The warning of a start that starts nothing, because a user scaled the workload to 0.
    fn without_replicas(&self) -> Option<String> {
        let starts = matches!(self.cause, ApplyCause::Started { .. });
        let is_empty = starts && self.submission.replicas == Some(0);
        is_empty.then(|| {
            "it was not stopped, and has 0 replicas: `katcall scale NAME --replicas N` starts instances".to_owned()
        })
    }

    /// A stop is recorded, and remembered for as long as the files have no replicas: whatever gives
    /// the workload replicas starts it. A rollback to a stopped generation stops it too.
    fn stopped(&self, entry: &WorkloadEntry) -> Option<StopRecord> {
        let stop = |replicas| StopRecord {
            replicas,
            by: self.caller.to_string(),
            at: self.now,
        };
        if let ApplyCause::Stopped { before } = self.cause {
            return Some(stop(before));
        }
        if self.submission.replicas != Some(0) {
            return None;
        }
        let stopped = entry.meta.value.stopped.clone();
        stopped.or_else(|| match self.cause {
            ApplyCause::RolledBack { of, .. } if was_stopped(entry, of) => {
                let parsed = entry.parsed.as_ref().ok();
                let present = parsed.and_then(|parsed| parsed.workload.spec.replicas);
                Some(stop(present.unwrap_or(0)))
            }
            _ => None,
        })
    }

    /// The writes of the generation's record and of its event.
    fn new_generation(
        &self,
        snapshot: &Snapshot,
        key: &WorkloadKey,
        meta: &WorkloadMeta,
        is_new: bool,
    ) -> Result<Vec<WriteOperation>, ApiError> {
        let generation = meta.generation;
        let archive_meta = keys::archive_meta(&key.namespace, &key.name, generation);
        let (reason, message) = self.cause.event(is_new, generation, self.caller);
        let mut operations = vec![put(archive_meta, &self.record(meta))?];
        let event = record(snapshot, self.now, reason, key, &meta.uid, message);
        operations.extend(event);
        Ok(operations)
    }

    /// The record of how the generation came to be.
    fn record(&self, meta: &WorkloadMeta) -> GenerationRecord {
        GenerationRecord {
            schema: 1,
            applied: self.now,
            by: self.caller.to_string(),
            origin: self.cause.origin(),
            of: match self.cause {
                ApplyCause::RolledBack { of, .. } => Some(of),
                _ => None,
            },
            why: String::new(),
            spec_hash: meta.spec_hash.clone(),
            template_hash: meta.template_hash.clone(),
            restarted: meta.restarted,
            image: meta.image.clone(),
        }
    }

    /// Writes the files that changed, deletes those that no longer exist, and archives all of them. A
    /// generation that stays loses them too: a rollback to it would bring them back.
    fn files(
        &self,
        key: &WorkloadKey,
        stored: Option<&BTreeMap<String, Stored<std::sync::Arc<str>>>>,
        generation: u64,
        generation_stays: bool,
    ) -> Vec<WriteOperation> {
        let (namespace, name) = (&key.namespace, &key.name);
        let mut operations = Vec::new();
        for (file, text) in &self.submission.files {
            let before = stored.and_then(|stored| stored.get(file));
            if before.is_none_or(|before| *before.value != **text) {
                let key = keys::manifest(namespace, name, file);
                operations.push(WriteOperation::Put(key, text.clone().into_bytes()));
            }
            let key = keys::archive_file(namespace, name, generation, file);
            operations.push(WriteOperation::Put(key, text.clone().into_bytes()));
        }
        for file in stored.into_iter().flat_map(BTreeMap::keys) {
            if !self.submission.files.contains_key(file) {
                let stored = keys::manifest(namespace, name, file);
                operations.push(WriteOperation::Delete(stored));
                if generation_stays {
                    let archived = keys::archive_file(namespace, name, generation, file);
                    operations.push(WriteOperation::Delete(archived));
                }
            }
        }
        operations
    }

    fn written(&self, key: &WorkloadKey, new: bool, meta: &WorkloadMeta) -> WriteResult {
        WriteResult {
            status: if new {
                StatusCode::CREATED
            } else {
                StatusCode::OK
            },
            outcome: if new {
                WriteOutcome::Created
            } else {
                WriteOutcome::Updated
            },
            kind: "Workload",
            metadata: Metadata {
                name: key.name.clone(),
                namespace: Some(key.namespace.clone()),
                uid: meta.uid.clone(),
                labels: self.submission.labels.clone(),
                generation: meta.generation,
                resource_version: String::new(),
                creation_timestamp: meta.created.into(),
            },
            preview: None,
            warnings: Vec::new(),
        }
    }
}

/// Whether the workload was stopped as of a kept generation, which has no replicas.
fn was_stopped(entry: &WorkloadEntry, generation: u64) -> bool {
    let mut next = Some(generation);
    while let Some(generation) = next {
        let archived = entry.archive.get(&generation);
        let Some(record) = archived.and_then(|archived| archived.record.as_ref()) else {
            return false;
        };
        next = match record.origin {
            Origin::Stopped => return true,
            Origin::RolledBack | Origin::RolledBackItself => record.of,
            // These leave the number of replicas as it was.
            Origin::ImageSet | Origin::Restarted | Origin::SecretChanged => {
                generation.checked_sub(1)
            }
            Origin::Applied | Origin::Scaled | Origin::Started => None,
        };
        next = next.filter(|next| *next < generation);
    }
    false
}

struct WorkloadDecision {
    meta: WorkloadMeta,
    operations: Vec<WriteOperation>,
}

pub(super) fn record(
    snapshot: &Snapshot,
    now: Timestamp,
    reason: EventReason,
    key: &WorkloadKey,
    uid: &str,
    message: String,
) -> Vec<WriteOperation> {
    let object = ObjectReference {
        kind: ObjectKind::Workload,
        name: key.name.clone(),
        namespace: key.namespace.clone(),
        uid: uid.to_owned(),
    };
    EventLog::new(&snapshot.events, now).record(EventKind::Normal, reason, object, message)
}

/// A warning for each namespace that may reach the workload and does not exist.
pub(super) fn missing_namespaces(snapshot: &Snapshot, allowed: &[String]) -> Vec<String> {
    let names = allowed.iter();
    let missing = names.filter(|name| !snapshot.namespaces.contains_key(*name));
    missing
        .map(|name| {
            format!("allowNamespaces: there is no namespace `{name}`; it is allowed once it exists")
        })
        .collect()
}

/// The quotas that apply to this caller in a namespace without quotas.
pub(super) fn quota_defaults(caller: &Caller) -> Amounts {
    match caller {
        Caller::Token {
            scope: Scope::Deploy { .. },
            ..
        } => OF_DEPLOY_TOKENS,
        _ => Amounts::default(),
    }
}

/// The error of an exceeded quota.
pub(super) fn exceeded(error: QuotaExceeded) -> ApiError {
    let (namespace, quota) = (&error.namespace, error.counted.word());
    ApiError::conflict(
        error.to_string(),
        &format!(
            "delete what is not needed; an administrator raises the quota with `katcall namespace set {namespace} {quota}=AMOUNT`"
        ),
    )
}

/// [`exceeded`], with the file that has what exceeds the quota.
pub(super) fn exceeded_in(file: &str, error: QuotaExceeded) -> ApiError {
    match exceeded(error) {
        ApiError::Conflict { message, hint } => ApiError::Conflict {
            message: format!("{file}: {message}"),
            hint,
        },
        other => other,
    }
}

/// The write of an object as JSON.
pub(super) fn put<T: Serialize>(key: String, value: &T) -> Result<WriteOperation, ApiError> {
    match json::bytes(&key, value) {
        Ok(text) => Ok(WriteOperation::Put(key, text)),
        Err(error) => Err(ApiError::Internal(error.to_string())),
    }
}

#[cfg(test)]
mod tests;
