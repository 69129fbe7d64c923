//! Runs of Jobs as users see them.

use super::ApiView;
use kat_types::{
    api::{Item, Metadata, RunItem, RunStatus, RunView},
    store::{jobs::JobRunRecord, revisions::WorkloadKey},
};

impl ApiView<'_> {
    /// Runs of one namespace, or of all, by workload and number.
    pub(crate) fn runs(&self, namespace: Option<&str>) -> Vec<RunItem> {
        let jobs = self.snapshot.jobs.iter();
        let own =
            jobs.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == namespace));
        own.flat_map(|(key, _)| self.runs_of(key)).collect()
    }

    /// Runs of one workload, by number.
    pub(crate) fn runs_of(&self, key: &WorkloadKey) -> Vec<RunItem> {
        let Some(meta) = self.snapshot.workloads.get(key).map(|entry| &entry.meta) else {
            return Vec::new();
        };
        let entry = self.snapshot.jobs.get(key);
        let runs = entry.into_iter().flat_map(|entry| entry.runs.values());
        // What is left of an earlier workload of this name is not shown.
        let own = runs.filter(|run| run.value.workload_uid == meta.value.uid);
        let mut items: Vec<RunItem> = own
            .map(|run| run_item(key, &run.value, run.revision))
            .collect();
        items.sort_by_key(|item| item.spec.number);
        items
    }
}

/// A run; its name is `WORKLOAD-NUMBER`.
pub(crate) fn run_item(key: &WorkloadKey, run: &JobRunRecord, revision: i64) -> RunItem {
    let ends = run.attempts.iter().rev();
    let mut codes = ends.filter_map(|attempt| attempt.end.as_ref()?.exit_code);
    Item {
        kind: "Run".to_owned(),
        metadata: Metadata {
            name: format!("{}-{}", key.name, run.number),
            namespace: Some(key.namespace.clone()),
            uid: run.workload_uid.clone(),
            labels: Default::default(),
            generation: run.generation,
            resource_version: revision.to_string(),
            creation_timestamp: run.created.into(),
        },
        spec: RunView {
            workload: key.name.clone(),
            number: run.number,
            cause: run.cause,
            scheduled: run.scheduled.into(),
            by: run.by.clone(),
            completions: run.completions,
            parallelism: run.parallelism,
            backoff_limit: run.backoff_limit,
            active_deadline_seconds: run.deadline_seconds,
        },
        status: RunStatus {
            phase: run.phase,
            reason: run.reason.clone(),
            message: run.message.clone(),
            started: run.started.into(),
            finished: run.finished.into(),
            succeeded: u32::try_from(run.succeeded.len()).unwrap_or(u32::MAX),
            failed: run.failures,
            exit_code: codes.next(),
            attempts: run.attempts.clone(),
            machines: run.machines.clone().unwrap_or_default(),
        },
    }
}
