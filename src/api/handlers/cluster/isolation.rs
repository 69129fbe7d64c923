//! Isolation of namespaces: which machines enforce it, and what it refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{Extension, Json, extract::State};
use serde::Deserialize;

use crate::{
    access::{
        authentication::Caller,
        authorization as access,
        authorization::{CallScope, RouteAccess},
    },
    context::Api,
    errors::ApiError,
    extract::QueryParameters,
};
use kat_plan::Snapshot;
use kat_types::{
    api::{ConnectionEnd, IsolationView, RefusedConnections, RefusedReport, UnisolatedMachine},
    machine::isolation::ENFORCING_DATA_PATH,
    resource::{Isolation, Protocol},
    store::{revisions::WorkloadKey, snapshot::ObservedReports},
};

/// Most entries of an answer.
const MOST_SHOWN: usize = 500;

/// Query parameters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct IsolationQuery {
    /// Only connections from or to this namespace.
    namespace: Option<String>,
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<IsolationQuery>,
) -> Result<Json<IsolationView>, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let reads_machines =
        access::check(RouteAccess::ReadCluster, &caller, CallScope::default()).is_ok();
    let (refused, left_out) = refused(&snapshot, &observed, query.namespace.as_deref());
    Ok(Json(IsolationView {
        mode: snapshot.wanted_cluster().spec.isolation,
        machines: match reads_machines {
            true => unisolated(&snapshot, &observed),
            false => Vec::new(),
        },
        refused,
        left_out,
    }))
}

/// The machines that do not have the cluster's setting in force.
fn unisolated(snapshot: &Snapshot, observed: &ObservedReports) -> Vec<UnisolatedMachine> {
    let wanted = snapshot.wanted_cluster().spec.isolation;
    let machines = snapshot.nodes.keys().filter_map(|name| {
        let reported = observed.reports.get(name);
        let why = match reported {
            // One without a version of the data path that isolates has the setting `None`.
            None if wanted == Isolation::None => None,
            None => Some("it has not reported to this leader".to_owned()),
            Some(reported) => why_unisolated(wanted, &reported.report),
        };
        why.map(|message| UnisolatedMachine {
            name: name.clone(),
            message,
        })
    });
    machines.collect()
}

fn why_unisolated(wanted: Isolation, report: &kat_types::api::NodeReport) -> Option<String> {
    let state = report.isolation.as_ref();
    let mode = state.and_then(|state| state.mode);
    let problem = state.and_then(|state| state.problem.clone());
    if mode == Some(wanted) || (mode.is_none() && wanted == Isolation::None) {
        // It may keep to earlier rules.
        return problem.filter(|_| wanted != Isolation::None);
    }
    if report.data_path < ENFORCING_DATA_PATH {
        let version = &report.version;
        return Some(format!("its kat-net isolates nothing: version {version}"));
    }
    Some(problem.unwrap_or_else(|| "its kat-net has not said that it does".to_owned()))
}

/// What connections have in common that are one entry: who called whom, protocol and port.
type ConnectionKind = (ConnectionEnd, ConnectionEnd, Option<Protocol>, u16);

/// What the machines report as refused, by workload, the newest first, and the number of entries that
/// are left out. With `namespace` only connections from or to it.
///
/// A machine speaks of its own instances: one end of a connection has to be one of them, and the other
/// a workload that exists.
fn refused(
    snapshot: &Snapshot,
    observed: &ObservedReports,
    namespace: Option<&str>,
) -> (Vec<RefusedConnections>, u64) {
    let mut found: BTreeMap<ConnectionKind, RefusedConnections> = BTreeMap::new();
    for (machine, reported) in &observed.reports {
        let state = reported.report.isolation.iter();
        for one in state.flat_map(|state| &state.refused) {
            if !is_credible(snapshot, machine, one) {
                continue;
            }
            let is_wanted = |name: &str| one.from.namespace == *name || one.to.namespace == *name;
            if !namespace.is_none_or(is_wanted) {
                continue;
            }
            let (from, to) = (of_workload(&one.from), of_workload(&one.to));
            let kind = (from.clone(), to.clone(), one.protocol, one.port);
            let entry = found.entry(kind).or_insert_with(|| RefusedConnections {
                from,
                to,
                protocol: one.protocol,
                port: one.port,
                ..RefusedConnections::default()
            });
            entry.packets = entry.packets.max(one.packets);
            if one.last.get() >= entry.last.get() {
                entry.last = one.last;
                entry.passed = one.passed;
            }
            if entry.machines.last() != Some(machine) {
                entry.machines.push(machine.clone());
            }
        }
    }
    let mut found: Vec<_> = found.into_values().collect();
    found.sort_by_key(|one| std::cmp::Reverse(one.last.get()));
    let left_out = found.len().saturating_sub(MOST_SHOWN);
    found.truncate(MOST_SHOWN);
    (found, u64::try_from(left_out).unwrap_or(u64::MAX))
}

fn is_credible(snapshot: &Snapshot, machine: &str, one: &RefusedReport) -> bool {
    let is_own = |end: &ConnectionEnd| {
        let entry = snapshot.instances.get(&end.instance);
        entry.is_some_and(|entry| {
            let assignment = &entry.assignment.value;
            entry.node == machine
                && assignment.namespace == end.namespace
                && assignment.workload == end.workload
        })
    };
    let exists = |end: &ConnectionEnd| {
        let key = WorkloadKey::new(&end.namespace, &end.workload);
        snapshot.workloads.contains_key(&key)
    };
    one.from.namespace != one.to.namespace
        && (is_own(&one.from) || is_own(&one.to))
        && exists(&one.from)
        && exists(&one.to)
}

fn of_workload(end: &ConnectionEnd) -> ConnectionEnd {
    ConnectionEnd {
        instance: String::new(),
        ..end.clone()
    }
}

/// Machines whose `kat-net` does not enforce `Namespaces`: one of an earlier version, and one that this
/// leader knows nothing of.
pub(crate) fn not_enforcing(snapshot: &Snapshot, observed: &ObservedReports) -> BTreeSet<String> {
    let machines = snapshot.nodes.iter().filter(|(name, node)| {
        let reported = observed.reports.get(*name);
        let data_path = match reported {
            Some(reported) => reported.report.data_path,
            None => node
                .status
                .as_ref()
                .map_or(0, |stored| stored.value.data_path),
        };
        data_path < ENFORCING_DATA_PATH
    });
    machines.map(|(name, _)| name.clone()).collect()
}
