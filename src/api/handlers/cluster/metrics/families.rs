//! The metrics of the cluster, as the leader knows it. Label values are names and words that KAT has
//! checked; of what machines report only known words are taken, so that the number of series is that
//! of the objects.

use std::{collections::BTreeSet, time::Duration};

use super::MeasuredObjects;
use crate::{context::Api, metrics::MetricFamily};
use kat_leader::PlanningCounts;
use kat_plan::Snapshot;
use kat_types::{
    api::{Health, InstanceItem, Metrics, NodeItem, NodePhase, WorkloadPhase},
    reason::Reason,
    services::BackendState,
    store::{jobs::RunPhase, snapshot::WorkloadEntry},
};

/// What can be wrong with the store.
const STORE_REASONS: [Reason; 3] = [
    Reason::StoreFull,
    Reason::StoreNearlyFull,
    Reason::StoreCorrupt,
];

/// All families of `/metrics`. `metrics` is their part that the JSON has too, and is made of the same
/// objects.
pub(super) fn of_cluster(
    api: &Api,
    metrics: &Metrics,
    objects: Option<&MeasuredObjects>,
) -> Vec<MetricFamily> {
    let mut families = of_server(api, metrics);
    if let Some(objects) = objects {
        families.extend(of_workloads(&objects.snapshot));
        families.extend(of_jobs(&objects.snapshot));
        families.extend(of_instances(&objects.instances));
        families.extend(of_nodes(&objects.nodes));
        families.extend(of_store(api, &objects.snapshot));
    }
    if api.leads() {
        let planning = &api.config.handle.planning;
        families.extend(of_plans(&planning.counts(), planning.since_last_plan()));
    }
    families
}

fn by_phase<'a>(
    mut family: MetricFamily,
    counts: impl IntoIterator<Item = (&'a String, &'a u64)>,
) -> MetricFamily {
    for (phase, count) in counts {
        family.add([("phase", phase)], *count);
    }
    family
}

fn of_server(api: &Api, metrics: &Metrics) -> Vec<MetricFamily> {
    let mut build = MetricFamily::gauge("kat_build_info", "Version of KAT.");
    build.add([("version", &metrics.version)], 1_u64);
    let mut ages = MetricFamily::gauge(
        "kat_heartbeat_age_seconds",
        "Seconds since a machine's last report.",
    );
    for (node, age) in &metrics.heartbeat_age_seconds {
        ages.add([("node", node)], *age);
    }
    let mut calls = MetricFamily::histogram(
        "kat_api_request_duration_seconds",
        "Seconds to the head of an answer.",
    );
    for ((method, route, status), counts) in api.counters.all() {
        let status = status.to_string();
        let labels = [("method", method), ("route", route), ("status", &status)];
        calls.add(labels, counts);
    }
    vec![
        build,
        MetricFamily::gauge("kat_leader", "1 while this machine leads.").only(metrics.leader),
        MetricFamily::gauge("kat_store_revision", "Revision of the store that is shown.")
            .only(u64::try_from(metrics.revision).unwrap_or(0)),
        by_phase(
            MetricFamily::gauge("kat_workloads", "Workloads by phase."),
            &metrics.workloads,
        ),
        by_phase(
            MetricFamily::gauge("kat_instances", "Instances by phase."),
            &metrics.instances,
        ),
        by_phase(
            MetricFamily::gauge("kat_nodes", "Machines by phase."),
            &metrics.nodes,
        ),
        ages,
        MetricFamily::gauge("kat_events", "Events kept.").only(metrics.events),
        MetricFamily::gauge("kat_api_streams", "Open watches and log streams.")
            .only(metrics.streams),
        calls,
    ]
}

fn of_workloads(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let mut phases = MetricFamily::gauge(
        "kat_workload_phase",
        "1 for the present phase of a workload.",
    );
    let mut wanted = MetricFamily::gauge("kat_workload_replicas", "Desired number of instances.");
    let mut ready = MetricFamily::gauge(
        "kat_workload_replicas_ready",
        "Number of healthy instances.",
    );
    let mut updated = MetricFamily::gauge(
        "kat_workload_replicas_updated",
        "Number of instances of the present generation.",
    );
    let mut serving = MetricFamily::gauge(
        "kat_workload_replicas_serving",
        "Number of instances that receive new traffic at the workload's service address.",
    );
    for (key, entry) in &snapshot.workloads {
        let own = || {
            [
                ("namespace", key.namespace.as_str()),
                ("workload", key.name.as_str()),
            ]
        };
        let [namespace, workload] = own();
        let status = entry.status.as_ref().map(|stored| &stored.value.status);
        let phase = match entry.meta.value.deleting {
            true => WorkloadPhase::Deleting,
            false => status.map(|status| status.phase).unwrap_or_default(),
        };
        let phase = format!("{phase:?}");
        phases.add([namespace, workload, ("phase", &phase)], 1_u64);
        wanted.add(
            own(),
            status.map_or_else(|| replicas(entry), |status| status.replicas),
        );
        ready.add(own(), status.map_or(0, |status| status.ready));
        updated.add(own(), status.map_or(0, |status| status.updated));
        let service = snapshot.services.get(key);
        if let Some(balance) = service.and_then(|service| service.balance.as_ref()) {
            let backends = balance.value.ports.iter().flat_map(|port| &port.instances);
            let backends = backends.filter(|(_, state)| **state == BackendState::Serving);
            let addresses: BTreeSet<_> = backends.map(|(address, _)| address).collect();
            serving.add(own(), addresses.len());
        }
    }
    vec![phases, wanted, ready, updated, serving]
}

fn of_jobs(snapshot: &Snapshot) -> Vec<MetricFamily> {
    let mut failed = MetricFamily::gauge(
        "kat_job_failed",
        "1 if the last run of a Job that is over failed.",
    );
    let mut active = MetricFamily::gauge("kat_job_active", "Runs of a Job that are not over.");
    let mut skipped = MetricFamily::counter(
        "kat_job_skipped",
        "Scheduled times of a Job that had no run.",
    );
    let mut next = MetricFamily::gauge(
        "kat_job_next_timestamp_seconds",
        "The next scheduled time of a Job.",
    );
    for (key, entry) in &snapshot.workloads {
        let status = entry.status.as_ref();
        let Some(job) = status.and_then(|stored| stored.value.status.job.as_ref()) else {
            continue;
        };
        let own = || {
            [
                ("namespace", key.namespace.as_str()),
                ("workload", key.name.as_str()),
            ]
        };
        let stored = snapshot.jobs.get(key);
        let runs = stored.into_iter().flat_map(|stored| stored.runs.values());
        let over = runs.filter(|run| !run.value.is_active());
        let last = over.max_by_key(|run| run.value.number);
        let has_failed = last.is_some_and(|run| run.value.phase == RunPhase::Failed);
        failed.add(own(), u64::from(has_failed));
        active.add(own(), job.active);
        let state = stored.and_then(|stored| stored.state.as_ref());
        skipped.add(own(), state.map_or(0, |state| state.value.skips));
        if let Some(time) = job.next.get() {
            next.add(own(), u64::try_from(time.as_second()).unwrap_or(0));
        }
    }
    vec![failed, active, skipped, next]
}

/// The desired number of a workload that the leader has not seen yet.
fn replicas(entry: &WorkloadEntry) -> u32 {
    let parsed = entry.parsed.as_ref().ok();
    parsed
        .and_then(|parsed| parsed.workload.spec.replicas)
        .unwrap_or(0)
}

fn of_instances(instances: &[InstanceItem]) -> Vec<MetricFamily> {
    let mut restarts = MetricFamily::counter(
        "kat_instance_restarts",
        "Restarts of an instance's program, as its machine last reported them.",
    );
    let mut healthy = MetricFamily::gauge(
        "kat_instance_healthy",
        "1 while the health check of an instance succeeds, 0 while it fails or was not made yet.",
    );
    let mut reasons = MetricFamily::gauge(
        "kat_instance_reason",
        "1 for the reason of an instance that has one.",
    );
    for item in instances {
        let status = &item.status;
        let own = [
            (
                "namespace",
                item.metadata.namespace.as_deref().unwrap_or_default(),
            ),
            ("workload", status.workload.as_str()),
            ("instance_id", item.metadata.name.as_str()),
            ("node", status.node.as_deref().unwrap_or_default()),
        ];
        restarts.add(own, status.restarts);
        if status.health != Health::NotApplicable {
            healthy.add(own, status.health == Health::Healthy);
        }
        if let Some(reason) = Reason::from_word(&status.reason) {
            let [namespace, workload, id, node] = own;
            let labels = [namespace, workload, id, node, ("reason", reason.word())];
            reasons.add(labels, 1_u64);
        }
    }
    vec![restarts, healthy, reasons]
}

fn of_nodes(nodes: &[NodeItem]) -> Vec<MetricFamily> {
    let mut ready = MetricFamily::gauge("kat_node_ready", "1 while a machine is Ready.");
    let mut phases = MetricFamily::gauge(
        "kat_node_phase",
        "1 for the present phase of a machine, with its reason.",
    );
    let mut instances = MetricFamily::gauge("kat_node_instances", "Instances of a machine.");
    for item in nodes {
        let (name, status) = (item.metadata.name.as_str(), &item.status);
        let phase = format!("{:?}", status.phase);
        let reason = Reason::word_or_empty(Reason::from_word(&status.reason));
        ready.add([("node", name)], status.phase == NodePhase::Ready);
        let labels = [("node", name), ("phase", &phase), ("reason", reason)];
        phases.add(labels, 1_u64);
        instances.add([("node", name)], status.instances);
    }
    vec![ready, phases, instances]
}

fn of_store(api: &Api, snapshot: &Snapshot) -> Vec<MetricFamily> {
    let mut healthy = MetricFamily::gauge(
        "kat_etcd_member_healthy",
        "1 while the etcd of a machine answers the leader.",
    );
    let mut voting = MetricFamily::gauge(
        "kat_etcd_member_voting",
        "1 while the etcd of a machine has a vote.",
    );
    let members = snapshot.members.iter();
    for (node, member) in members.flat_map(|stored| &stored.value.members) {
        healthy.add([("node", node)], member.healthy);
        voting.add([("node", node)], member.voting);
    }
    let mut file = MetricFamily::gauge(
        "kat_etcd_file_bytes",
        "Size of the file of a machine's etcd.",
    );
    let mut used = MetricFamily::gauge(
        "kat_etcd_file_used_bytes",
        "Bytes in use of the file of a machine's etcd.",
    );
    let mut quota = MetricFamily::gauge(
        "kat_etcd_quota_bytes",
        "Size of the file at which etcd takes no more writes.",
    );
    let mut trouble = MetricFamily::gauge(
        "kat_etcd_trouble",
        "1 for what is wrong with the store, also by etcd's alarms.",
    );
    if let Some(report) = api.store_report() {
        for (node, store) in &report.files {
            file.add([("node", node)], store.file);
            used.add([("node", node)], store.used);
        }
        quota.add_known([], report.weight.quota);
        for reason in STORE_REASONS {
            let labels = [("reason", reason.word())];
            trouble.add(labels, report.reason == Some(reason));
        }
    }
    let backup = snapshot.backup.as_ref().map(|stored| &stored.value);
    let mut last = MetricFamily::gauge(
        "kat_backup_last_success_timestamp_seconds",
        "Time of the last backup, in seconds since 1970.",
    );
    let made = backup.and_then(|backup| backup.last);
    last.add_known([], made.map(|made| made.as_duration().as_secs_f64()));
    let failing = MetricFamily::gauge("kat_backup_failing", "1 while backups fail.")
        .only(backup.is_some_and(|backup| !backup.failure.is_empty()));
    vec![healthy, voting, file, used, quota, trouble, last, failing]
}

fn of_plans(counts: &PlanningCounts, since_last: Option<Duration>) -> Vec<MetricFamily> {
    let mut age = MetricFamily::gauge(
        "kat_plan_age_seconds",
        "Seconds since the leader last wrote a whole plan, or planned that nothing changes.",
    );
    age.add_known([], since_last.map(|age| age.as_secs_f64()));
    let mut commits = MetricFamily::counter(
        "kat_plan_commits",
        "Plans with changes, by how their writes ended.",
    );
    let ended = counts.commits.count;
    let done = ended.saturating_sub(counts.refused.saturating_add(counts.failed));
    for (result, count) in [
        ("written", done),
        ("refused", counts.refused),
        ("failed", counts.failed),
    ] {
        commits.add([("result", result)], count);
    }
    let mut refusals = MetricFamily::counter(
        "kat_scheduler_refusals",
        "Slots of workloads that became impossible to place, by what excluded a machine.",
    );
    for (reason, count) in &counts.refusals {
        refusals.add([("reason", reason)], *count);
    }
    let mut waiting = MetricFamily::gauge(
        "kat_scheduler_waiting",
        "1 for a slot of a workload for which the last plan found no machine, by what excluded one.",
    );
    for place in &counts.waiting {
        let labels = [
            ("namespace", place.workload.namespace.as_str()),
            ("workload", place.workload.name.as_str()),
            ("slot", &place.slot.to_string()),
            ("reason", place.reason),
        ];
        waiting.add(labels, 1_u64);
    }
    vec![
        MetricFamily::histogram(
            "kat_plan_duration_seconds",
            "Seconds that a plan of the leader took, without its writes.",
        )
        .only(counts.plans),
        MetricFamily::histogram(
            "kat_plan_commit_duration_seconds",
            "Seconds that the writes of a plan took.",
        )
        .only(counts.commits),
        MetricFamily::counter(
            "kat_plan_changes",
            "Transactions of plans that were written.",
        )
        .only(counts.changes),
        commits,
        age,
        MetricFamily::counter("kat_scheduler_placements", "Instances placed on a machine.")
            .only(counts.placed),
        refusals,
        waiting,
    ]
}
