//! The columns of Jobs and of their runs.

use std::{cmp::Ordering, collections::BTreeMap};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Columns, ListableItem, rows::with_namespace};
use crate::{
    output::{table::Cell, word},
    time,
};
use kat_client::{ClientError, KeyedItem, RequestPath};
use kat_types::{
    api::{ApiTime, RunItem, WorkloadItem},
    resource::Completions,
    store::jobs::RunPhase,
};

/// Most machines that a row names.
const MOST_NAMED: usize = 2;

/// A workload of type Job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct JobItem(WorkloadItem);

impl KeyedItem for JobItem {
    fn key(&self) -> (String, String) {
        self.0.key()
    }
}

impl ListableItem for JobItem {
    const SINGULAR: &'static str = "job";
    const PLURAL: &'static str = "jobs";
    const NAMESPACED: bool = true;
    const OPTIONAL: &'static [&'static str] = &["AGE", "ACTIVE"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::workloads(namespace)
    }

    fn item_route(_: &str, _: &str) -> Option<Result<RequestPath, ClientError>> {
        // A Service of that name is no Job.
        None
    }

    fn is_listed(&self) -> bool {
        self.0.spec.job.is_some()
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.0.metadata.labels
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec![
            "NAME", "SCHEDULE", "PHASE", "ACTIVE", "LAST RUN", "ENDED", "NEXT", "AGE",
        ];
        if columns.wide {
            rest.extend(["TIME ZONE", "COMPLETIONS", "CONCURRENCY", "SKIPPED"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let item = &self.0;
        let status = item.status.job.clone().unwrap_or_default();
        let spec = item.spec.job.as_ref();
        let schedule = spec.and_then(|spec| spec.schedule.clone());
        let last = match (status.last_number, status.last_phase) {
            (0, _) => String::new(),
            (number, phase) => {
                let phase = phase.map_or("", RunPhase::word);
                format!("{}-{number} {phase}", item.metadata.name)
            }
        };
        // A whole time would be cut at 80 columns.
        let at = match columns.wide {
            true => time::to_the_second(status.next),
            false => until_next(columns.now, status.next),
        };
        let kept_on = match &status.machine {
            Some(machine) => Some(machine.clone()),
            None => machines_in_words(&status.machines, columns.wide),
        };
        let next = match (status.suspended, kept_on) {
            (true, _) => "suspended".to_owned(),
            (false, Some(machines)) => format!("{at} on {machines}").trim_start().to_owned(),
            (false, None) => at,
        };
        let mut rest = vec![
            Cell::new(&item.metadata.name),
            Cell::new(schedule.unwrap_or_default()),
            Cell::phase(&word(&item.status.phase)),
            Cell::new(status.active.to_string()),
            Cell::new(last.trim_end()),
            Cell::new(time::age(columns.now, status.last_finished)),
            Cell::new(next),
            Cell::new(time::age(columns.now, item.metadata.creation_timestamp)),
        ];
        if columns.wide {
            let zone = spec.map(|spec| spec.time_zone.clone());
            rest.push(Cell::new(zone.unwrap_or_default()));
            let completions = spec.map(|spec| match spec.completions {
                Completions::Count(count) => count.to_string(),
                Completions::PerNode(_) => "PerNode".to_owned(),
            });
            rest.push(Cell::new(completions.unwrap_or_default()));
            let policy = spec.map(|spec| word(&spec.concurrency_policy));
            rest.push(Cell::new(policy.unwrap_or_default()));
            let skipped = status.skipped.map(|skipped| skipped.scheduled.to_string());
            rest.push(Cell::new(skipped.unwrap_or_default()));
        }
        let namespace = Cell::new(self.key().0);
        with_namespace(columns, namespace, rest)
    }
}

/// Such as `n1, n2 and 3 more`, or all of them where there is room; `None` for none.
fn machines_in_words(machines: &[String], is_wide: bool) -> Option<String> {
    let most = match is_wide {
        true => machines.len(),
        false => MOST_NAMED,
    };
    let named: Vec<&str> = machines.iter().take(most).map(String::as_str).collect();
    let text = named.join(", ");
    match machines.len().saturating_sub(most) {
        _ if machines.is_empty() => None,
        0 => Some(text),
        more => Some(format!("{text} and {more} more")),
    }
}

/// Such as `in 3h`; `due` once the time has come, empty for none.
fn until_next(now: Timestamp, next: ApiTime) -> String {
    match next.get() {
        None => String::new(),
        Some(then) if then <= now => "due".to_owned(),
        Some(_) => time::until(now, next),
    }
}

impl ListableItem for RunItem {
    const SINGULAR: &'static str = "run";
    const PLURAL: &'static str = "runs";
    const NAMESPACED: bool = true;
    const OPTIONAL: &'static [&'static str] = &["CAUSE", "STARTED"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::runs(namespace)
    }

    fn item_route(_: &str, _: &str) -> Option<Result<RequestPath, ClientError>> {
        None
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec![
            "NAME", "CAUSE", "PHASE", "DONE", "FAILED", "EXIT", "REASON", "STARTED", "ENDED",
        ];
        if columns.wide {
            rest.extend(["SCHEDULED", "BY", "INSTANCES"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let (spec, status) = (&self.spec, &self.status);
        let code = status.exit_code.map(|code| code.to_string());
        let mut rest = vec![
            Cell::new(&self.metadata.name),
            Cell::new(word(&spec.cause)),
            Cell::phase(status.phase.word()),
            Cell::new(format!("{}/{}", status.succeeded, spec.completions)),
            Cell::new(status.failed.to_string()),
            Cell::new(code.unwrap_or_default()),
            Cell::new(match status.phase {
                RunPhase::Succeeded => "",
                _ => &status.reason,
            }),
            Cell::new(time::age(columns.now, status.started)),
            Cell::new(time::age(columns.now, status.finished)),
        ];
        if columns.wide {
            rest.push(Cell::new(spec.scheduled.to_string()));
            rest.push(Cell::new(&spec.by));
            let attempts = status.attempts.iter();
            let attempts: Vec<String> = attempts
                .map(|attempt| format!("{}@{}", attempt.instance, attempt.node))
                .collect();
            rest.push(Cell::new(attempts.join(",")));
        }
        let namespace = Cell::new(self.key().0);
        with_namespace(columns, namespace, rest)
    }

    /// By Job and number.
    fn order(left: &Self, right: &Self) -> Ordering {
        let key = |item: &Self| (item.key().0, item.spec.workload.clone(), item.spec.number);
        key(left).cmp(&key(right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_names_two_machines_and_counts_the_others_and_a_wide_one_names_all() {
        let all = ["n1", "n2", "n3", "n4"].map(str::to_owned);
        let words = |count: usize, is_wide| machines_in_words(&all[..count], is_wide);
        assert_eq!(words(0, false), None);
        assert_eq!(words(1, false).as_deref(), Some("n1"));
        assert_eq!(words(2, false).as_deref(), Some("n1, n2"));
        assert_eq!(words(4, false).as_deref(), Some("n1, n2 and 2 more"));
        assert_eq!(words(4, true).as_deref(), Some("n1, n2, n3, n4"));
    }
}
