//! Use of a namespace's quotas, and whether a change may increase it.

use std::collections::BTreeSet;

use super::{
    Snapshot, WorkloadClaims,
    ingress::{acme::counted_orders, hosts::hosts_of_namespace},
    rollout::{
        replicas,
        slots::{beside_matching, machines_of_daemon},
    },
};
use kat_types::{
    resource::{
        Amounts, Bytes, Completions, ConcurrencyPolicy, Container, JobSpec, MilliCpu,
        QuotaResource, ResourceList, WorkloadSpec, WorkloadType,
    },
    store::{jobs::MOST_OVERLAPPING_RUNS, revisions::WorkloadKey, snapshot::WorkloadEntry},
};

/// Quotas for writes with a deploy token, where the namespace has no quota of that kind.
pub const OF_DEPLOY_TOKENS: Amounts = Amounts {
    workloads: Some(100),
    instances: Some(200),
    cpu: Some(MilliCpu(64_000)),
    memory: Some(Bytes(128 << 30)),
    volumes: Some(100),
    secrets: Some(100),
    secret_bytes: Some(Bytes(4 << 20)),
    file_bytes: Some(Bytes(16 << 20)),
    events: None,
    hosts: Some(100),
    certificate_orders: None,
};

/// A quota that a change would exceed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the quota `{word}` of namespace `{namespace}` is {quota}: {used} used now, and {asked} with this", word = counted.word())]
pub struct QuotaExceeded {
    /// The namespace with the quota.
    pub namespace: String,
    pub counted: QuotaResource,
    quota: String,
    used: String,
    asked: String,
}

/// The requests of containers without their own in a namespace.
pub fn default_requests(snapshot: &Snapshot, namespace: &str) -> ResourceList {
    let stored = snapshot.namespaces.get(namespace);
    stored.map_or_else(ResourceList::default, |stored| {
        stored.value.defaults.requests
    })
}

/// The amounts of its namespace's quotas that one workload uses. Of a DaemonService, those of one
/// instance: [`on_each_machine`] multiplies them. Of a Job with one instance on each machine, the
/// volumes of one machine: [`volumes_on_each_machine`] multiplies them.
pub fn amounts_of_workload(
    spec: &WorkloadSpec,
    job: Option<&JobSpec>,
    file_bytes: usize,
) -> Amounts {
    let of_run = match spec.kind {
        WorkloadType::DaemonService => 1,
        WorkloadType::Service | WorkloadType::Job => {
            job.map_or_else(|| replicas(spec), most_at_once)
        }
    };
    let of_run = u64::from(of_run);
    let instances = of_run.saturating_mul(job.map_or(1, most_runs));
    let whole = Container::together(&spec.container, &spec.init_containers, &spec.sidecars);
    let requests = whole.resources.effective_requests();
    let volumes = spec.volumes.iter().filter(|volume| volume.keeps_data());
    // The runs of a Job use the same volumes.
    let is_per_node = job.is_some_and(has_each_machine);
    let volumes = volumes.map(|volume| match volume.per_replica && !is_per_node {
        true => of_run,
        false => 1,
    });
    let all = |of_one: u64| of_one.saturating_mul(instances);
    Amounts {
        workloads: Some(1),
        instances: Some(instances),
        cpu: requests.cpu.map(|cpu| MilliCpu(all(cpu.0))),
        memory: requests.memory.map(|memory| Bytes(all(memory.0))),
        volumes: Some(volumes.fold(0, u64::saturating_add)),
        file_bytes: Some(Bytes(number(file_bytes))),
        ..Amounts::default()
    }
}

/// The amounts of a workload with the requests that its containers get from their namespace.
#[must_use]
pub fn add_default_requests(
    amounts: Amounts,
    spec: &WorkloadSpec,
    defaults: ResourceList,
) -> Amounts {
    let filled = spec.with_default_requests(defaults);
    let requests = filled.together().resources.effective_requests();
    let instances = amounts.instances.unwrap_or(0);
    let all = |of_one: u64| of_one.saturating_mul(instances);
    Amounts {
        cpu: requests.cpu.map(|cpu| MilliCpu(all(cpu.0))),
        memory: requests.memory.map(|memory| Bytes(all(memory.0))),
        ..amounts
    }
}

/// The amounts of a workload with the instances that a DaemonService has on the machines of the
/// cluster; those of any other workload stay.
#[must_use]
pub fn on_each_machine(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    spec: &WorkloadSpec,
    amounts: Amounts,
) -> Amounts {
    if spec.kind != WorkloadType::DaemonService {
        return amounts;
    }
    // Those that stay in spite of a taint count as well: files without a toleration end nothing.
    let stay = beside_matching(snapshot, key, spec);
    let machines = number(
        machines_of_daemon(snapshot, spec)
            .len()
            .saturating_add(stay),
    );
    let all = |of_one: u64| of_one.saturating_mul(machines);
    Amounts {
        instances: amounts.instances.map(all),
        cpu: amounts.cpu.map(|cpu| MilliCpu(all(cpu.0))),
        memory: amounts.memory.map(|memory| Bytes(all(memory.0))),
        volumes: amounts.volumes.map(all),
        ..amounts
    }
}

/// The amounts of a Job with one instance on each machine, with its volumes on the machines that its
/// runs have.
#[must_use]
pub fn volumes_on_each_machine(
    snapshot: &Snapshot,
    spec: &WorkloadSpec,
    amounts: Amounts,
) -> Amounts {
    let machines = number(machines_of_daemon(snapshot, spec).len());
    let all = |of_one: u64| of_one.saturating_mul(machines);
    Amounts {
        volumes: amounts.volumes.map(all),
        ..amounts
    }
}

/// Whether runs of the Job have one instance on each machine.
pub fn has_each_machine(job: &JobSpec) -> bool {
    matches!(job.completions, Completions::PerNode(_))
}

/// Runs of a Job that may be active at once.
fn most_runs(job: &JobSpec) -> u64 {
    match job.concurrency_policy {
        ConcurrencyPolicy::Allow => number(MOST_OVERLAPPING_RUNS),
        ConcurrencyPolicy::Forbid | ConcurrencyPolicy::Replace => 1,
    }
}

/// Instances that a run may have at once.
fn most_at_once(job: &JobSpec) -> u32 {
    match job.completions {
        Completions::Count(count) => job.parallelism.min(count),
        Completions::PerNode(_) => job.parallelism,
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The amounts that a stored workload uses, with the volumes that it has left.
fn of_entry(snapshot: &Snapshot, key: &WorkloadKey, entry: &WorkloadEntry) -> Amounts {
    let file_bytes = entry.files.values().map(|file| file.value.len()).sum();
    let mut amounts = match &entry.parsed {
        Ok(parsed) => {
            let defaults = default_requests(snapshot, &key.namespace);
            let spec = parsed.workload.spec.with_default_requests(defaults);
            let amounts = amounts_of_workload(&spec, parsed.job.as_ref(), file_bytes);
            let amounts = on_each_machine(snapshot, key, &spec, amounts);
            match parsed.job.as_ref().is_some_and(has_each_machine) {
                true => volumes_on_each_machine(snapshot, &spec, amounts),
                false => amounts,
            }
        }
        Err(_) => Amounts {
            workloads: Some(1),
            ..Amounts::default()
        },
    };
    amounts.volumes = amounts.volumes.max(Some(kept_volumes(snapshot, key)));
    amounts
}

/// Number of volumes that were made for this workload and are not removed.
fn kept_volumes(snapshot: &Snapshot, key: &WorkloadKey) -> u64 {
    let volumes = snapshot.volumes.keys();
    number(volumes.filter(|volume| volume.workload == *key).count())
}

/// The amounts that a namespace uses.
pub fn used_by_namespace(snapshot: &Snapshot, namespace: &str) -> Amounts {
    let count = |count: usize| Some(number(count));
    let secrets = || {
        let secrets = snapshot.secrets.iter();
        secrets.filter(|(key, _)| key.namespace == namespace)
    };
    let sizes =
        secrets().flat_map(|(_, stored)| stored.value.keys.values().map(|key| number(key.size)));
    let left = snapshot.volumes.keys().filter(|volume| {
        volume.workload.namespace == namespace && !snapshot.workloads.contains_key(&volume.workload)
    });
    let events = snapshot.events.values();
    let events = events.filter(|event| event.value.involved_object.namespace == namespace);
    let mut used = Amounts {
        workloads: Some(0),
        instances: Some(0),
        cpu: Some(MilliCpu(0)),
        memory: Some(Bytes(0)),
        volumes: count(left.count()),
        secrets: count(secrets().count()),
        secret_bytes: Some(Bytes(sizes.fold(0, u64::saturating_add))),
        file_bytes: Some(Bytes(0)),
        events: count(events.count()),
        hosts: count(hosts_of_namespace(snapshot, namespace, None).len()),
        certificate_orders: Some(counted_orders(snapshot, namespace)),
    };
    let first = WorkloadKey::new(namespace, "");
    let workloads = snapshot.workloads.range(first..);
    for (key, entry) in workloads.take_while(|(key, _)| key.namespace == namespace) {
        used.add(&of_entry(snapshot, key, entry));
    }
    used
}

/// Refuses an apply of a workload that uses `wanted` if that exceeds a quota.
///
/// # Errors
/// As [`check_growth`].
pub fn check_workload(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    defaults: &Amounts,
    wanted: &Amounts,
) -> Result<(), QuotaExceeded> {
    let volumes = Some(kept_volumes(snapshot, key));
    let before = match snapshot.workloads.get(key) {
        Some(entry) => of_entry(snapshot, key, entry),
        None => Amounts {
            volumes,
            ..Amounts::default()
        },
    };
    let after = Amounts {
        volumes: wanted.volumes.max(volumes),
        ..*wanted
    };
    check_growth(snapshot, &key.namespace, defaults, &before, &after)
}

/// Refuses claims of routes if they exceed the quota of hosts. A host that the namespace has already
/// counts once, whichever workload claims it.
///
/// # Errors
/// As [`check_growth`].
pub fn check_hosts(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    defaults: &Amounts,
    claims: &WorkloadClaims,
) -> Result<(), QuotaExceeded> {
    let namespace = &key.namespace;
    let present = hosts_of_namespace(snapshot, namespace, None);
    let mut after = hosts_of_namespace(snapshot, namespace, Some(key));
    let others = after.len();
    after.extend(claims.routes.iter().map(|(host, _)| host.clone()));
    let own = |hosts: &BTreeSet<String>| Amounts {
        hosts: Some(number(hosts.len().saturating_sub(others))),
        ..Amounts::default()
    };
    check_growth(snapshot, namespace, defaults, &own(&present), &own(&after))
}

/// Refuses a change that raises the namespace's use from `before` to `after` if that is more and
/// exceeds a quota. Use that exceeds a quota already may stay.
///
/// # Errors
/// The first quota that would be exceeded.
pub fn check_growth(
    snapshot: &Snapshot,
    namespace: &str,
    defaults: &Amounts,
    before: &Amounts,
    after: &Amounts,
) -> Result<(), QuotaExceeded> {
    let stored = snapshot.namespaces.get(namespace);
    let quotas = stored.map_or_else(Amounts::default, |stored| stored.value.quota);
    let used = used_by_namespace(snapshot, namespace);
    for counted in QuotaResource::ALL {
        let quota = quotas.get(counted).or_else(|| defaults.get(counted));
        let [used, before, after] =
            [&used, before, after].map(|amounts| amounts.get(counted).unwrap_or(0));
        let asked = used.saturating_sub(before).saturating_add(after);
        if let Some(quota) = quota
            && after > before
            && asked > quota
        {
            return Err(QuotaExceeded {
                namespace: namespace.to_owned(),
                counted,
                quota: counted.show(quota),
                used: counted.show(used),
                asked: counted.show(asked),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use kat_types::store::{records::NamespaceRecord, revisions::Stored};

    fn snapshot(quota: Amounts) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let record = NamespaceRecord {
            schema: 1,
            uid: String::new(),
            labels: Default::default(),
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            quota,
            access: Default::default(),
            ingress_hosts: None,
            defaults: Default::default(),
        };
        let stored = Stored {
            revision: 1,
            value: record,
        };
        snapshot.namespaces.insert("shop".to_owned(), stored);
        snapshot
    }

    fn instances(count: u64) -> Amounts {
        Amounts {
            instances: Some(count),
            ..Amounts::default()
        }
    }

    fn grows(snapshot: &Snapshot, defaults: Amounts, from: u64, to: u64) -> Option<String> {
        let checked = check_growth(
            snapshot,
            "shop",
            &defaults,
            &instances(from),
            &instances(to),
        );
        checked.err().map(|error| error.to_string())
    }

    #[test]
    fn growth_beyond_a_quota_is_refused_and_what_exceeds_it_stays() {
        let limited = snapshot(instances(3));
        let none = Amounts::default();
        assert_eq!(grows(&limited, none, 0, 3), None);
        assert_eq!(
            grows(&limited, none, 0, 4).unwrap(),
            "the quota `instances` of namespace `shop` is 3: 0 used now, and 4 with this"
        );
        // The namespace exceeded the quota before the quota was set.
        assert_eq!(grows(&limited, none, 5, 5), None);
        assert_eq!(grows(&limited, none, 5, 4), None);
        assert!(grows(&limited, none, 5, 6).is_some());
    }

    #[test]
    fn a_job_uses_what_its_instances_request_that_run_at_once() {
        let mut spec: WorkloadSpec = serde_json::from_value(serde_json::json!({
            "type": "Job", "source": {"image": "work"}, "container": {},
            "restartPolicy": {"condition": "Never"},
        }))
        .unwrap();
        let job = |parallelism, completions| {
            let spec = serde_json::json!({"parallelism": parallelism, "completions": completions});
            serde_json::from_value::<JobSpec>(spec).unwrap()
        };
        let used = |spec: &WorkloadSpec, job: &JobSpec| {
            let amounts = amounts_of_workload(spec, Some(job), 0);
            let cpu = amounts.cpu.map(|cpu| cpu.0);
            (amounts.instances, cpu)
        };
        assert_eq!(used(&spec, &job(4, 10)), (Some(4), None));
        assert_eq!(used(&spec, &job(4, 3)), (Some(3), None));
        // What the namespace gives to containers without requests counts.
        let defaults = ResourceList {
            cpu: Some(MilliCpu(100)),
            ..ResourceList::default()
        };
        let filled = spec.with_default_requests(defaults);
        assert_eq!(used(&filled, &job(4, 10)), (Some(4), Some(400)));
        let without = amounts_of_workload(&spec, Some(&job(4, 10)), 0);
        let with = amounts_of_workload(&filled, Some(&job(4, 10)), 0);
        assert_eq!(add_default_requests(without, &spec, defaults), with);
        spec.container.resources.requests.cpu = Some(MilliCpu(250));
        let filled = spec.with_default_requests(defaults);
        assert_eq!(used(&filled, &job(2, 10)), (Some(2), Some(500)));
    }

    #[test]
    fn a_job_whose_runs_overlap_uses_what_all_of_them_may_have_at_once() {
        let spec: WorkloadSpec = serde_json::from_value(serde_json::json!({
            "type": "Job", "source": {"image": "work"}, "container": {},
            "restartPolicy": {"condition": "Never"},
            "volumes": [{
                "name": "data", "perReplica": true, "simpleClusterStorage": {},
            }],
        }))
        .unwrap();
        let used = |policy: &str, completions: serde_json::Value| {
            let job = serde_json::json!({
                "parallelism": 2, "completions": completions, "concurrencyPolicy": policy,
            });
            let job: JobSpec = serde_json::from_value(job).unwrap();
            let amounts = amounts_of_workload(&spec, Some(&job), 0);
            (amounts.instances, amounts.volumes)
        };
        assert_eq!(used("Forbid", 5.into()), (Some(2), Some(2)));
        assert_eq!(used("Replace", 5.into()), (Some(2), Some(2)));
        // The runs use the same volumes.
        assert_eq!(used("Allow", 5.into()), (Some(40), Some(2)));
        assert_eq!(used("Allow", 1.into()), (Some(20), Some(1)));
        // The volumes of one machine.
        assert_eq!(used("Forbid", "PerNode".into()), (Some(2), Some(1)));
    }

    #[test]
    fn defaults_hold_where_the_namespace_has_no_quota_of_that_kind() {
        let none = Amounts::default();
        assert_eq!(grows(&snapshot(none), none, 0, 10_000), None);
        assert!(grows(&snapshot(none), OF_DEPLOY_TOKENS, 0, 10_000).is_some());
        let raised = snapshot(instances(20_000));
        assert_eq!(grows(&raised, OF_DEPLOY_TOKENS, 0, 10_000), None);
    }
}
