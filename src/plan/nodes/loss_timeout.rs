//! A lower `nodeLossTimeoutSeconds`: leaders go by it once every machine does.
//!
//! A machine ends its instances with `onPartition: stop` within the timeout by which its last report
//! counts, and a leader replaces them after its own. So a leader's timeout is never less than that of
//! any machine (invariant 11):
//!
//! - A higher value is written to [`keys::CLUSTER`] by the change itself, together with
//!   [`keys::PLANNED`], so that no plan made with the lower one is written afterwards. Machines see it
//!   only after that.
//! - A lower value is written to [`keys::WANTED_CONFIGURATION`] alone. Machines follow it and report
//!   the change. When all have, this plan writes it to [`keys::CLUSTER`].
//!
//! A machine that is silent holds back the lower value until it reports or is deleted: nobody knows
//! what it counts with.
//!
//! A machine may count with a longer time than the store knows, as after a restore from a backup of
//! before a change. Its status keeps the time that it reported, because the next leader may never hear
//! of that machine. The longer time is that machine's alone: another one may lie.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::node_loss::LastReport;
use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
};
use kat_types::{
    api::{EventKind, NodeReport, ObjectKind, ObjectReference},
    machine::fence::fence_after,
    reason::EventReason,
    resource::{OnPartition, stop_seconds},
    store::{
        configuration::ConfigurationRecord, keys, snapshot::ObservedReports, transaction::Compare,
    },
};

/// A lower timeout that leaders do not go by yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedLossTimeout {
    /// The seconds by which leaders go.
    pub leaders_seconds: u32,
    /// Machines that have not confirmed the lower value, by name.
    pub machines: Vec<String>,
    /// Workloads that [`too_slow_for`] names for it.
    pub workloads: BTreeSet<String>,
}

/// Workloads with `onPartition: stop` whose programs may not have ended within this timeout, as
/// `NAMESPACE/NAME`.
pub fn too_slow_for(timeout_seconds: u32, snapshot: &Snapshot) -> BTreeSet<String> {
    let timeout = Duration::from_secs(timeout_seconds.into());
    let is_too_slow = |grace: u32| fence_after(timeout, grace).is_none();
    let stored = snapshot.workloads.iter().filter(|(_, entry)| {
        entry.parsed.as_ref().is_ok_and(|parsed| {
            let spec = &parsed.workload.spec;
            let grace = stop_seconds(&spec.container, &spec.init_containers, &spec.sidecars);
            spec.on_partition == OnPartition::Stop && is_too_slow(grace)
        })
    });
    let stored = stored.map(|(key, _)| key.to_string());
    // Also of earlier versions that still run.
    let assigned = snapshot
        .instances
        .values()
        .map(|entry| &entry.assignment.value);
    let assigned = assigned
        .filter(|one| one.on_partition == OnPartition::Stop && is_too_slow(one.stop_seconds()));
    let assigned = assigned.map(|one| format!("{}/{}", one.namespace, one.workload));
    stored.chain(assigned).collect()
}

/// The lower timeout that leaders wait for; `None` if they go by the wanted configuration.
pub fn awaited_loss_timeout(
    snapshot: &Snapshot,
    observed: &ObservedReports,
) -> Option<AwaitedLossTimeout> {
    let wanted = lower(snapshot)?;
    let reports = observed.reports.iter();
    let reports = reports.map(|(name, reported)| (name.as_str(), reported.report.as_ref()));
    let reports: BTreeMap<_, _> = reports.collect();
    let missing = snapshot.nodes.iter().filter(|(name, node)| {
        let report = reports.get(name.as_str());
        let report = report.filter(|report| report.node_uid == node.registration.value.uid);
        !report.is_some_and(|report| follows(report, wanted))
    });
    Some(AwaitedLossTimeout {
        leaders_seconds: snapshot.cluster.spec.node_loss_timeout_seconds,
        machines: missing.map(|(name, _)| name.clone()).collect(),
        workloads: too_slow_for(
            wanted.configuration.spec.node_loss_timeout_seconds,
            snapshot,
        ),
    })
}

/// Whether a machine counts with the timeout of this configuration.
fn follows(report: &NodeReport, wanted: &ConfigurationRecord) -> bool {
    let seconds = wanted.configuration.spec.node_loss_timeout_seconds;
    report.configuration.as_ref().is_some_and(|followed| {
        followed.change == wanted.change && followed.node_loss_timeout_seconds <= seconds
    })
}

/// The wanted configuration, if its timeout is lower than that of leaders.
fn lower(snapshot: &Snapshot) -> Option<&ConfigurationRecord> {
    let wanted = &snapshot.wanted.as_ref()?.value;
    let seconds = wanted.configuration.spec.node_loss_timeout_seconds;
    (seconds < snapshot.cluster.spec.node_loss_timeout_seconds).then_some(wanted)
}

/// Takes over a lower timeout that every machine goes by.
pub(crate) fn plan_loss_timeout(draft: &mut Draft<'_>, heard: &BTreeMap<&str, LastReport<'_>>) {
    let snapshot = draft.snapshot;
    let Some(wanted) = lower(snapshot) else {
        return;
    };
    let is_followed = |name: &String| {
        let report = heard.get(name.as_str()).and_then(|heard| heard.report);
        report.is_some_and(|report| follows(report, wanted))
    };
    let seconds = wanted.configuration.spec.node_loss_timeout_seconds;
    // An apply may have come in between the check of the change and the change.
    if !snapshot.nodes.keys().all(is_followed) || !too_slow_for(seconds, snapshot).is_empty() {
        return;
    }
    let mut group = OperationGroup::default();
    group.put(keys::CLUSTER.to_owned(), &wanted.configuration);
    let cluster = ObjectReference {
        kind: ObjectKind::Cluster,
        name: snapshot.cluster.metadata.name.clone(),
        namespace: String::new(),
        uid: snapshot.cluster_uid.clone(),
    };
    draft.event(
        &mut group,
        EventKind::Normal,
        EventReason::ConfigurationFollowed,
        cluster,
        format!("every machine goes by nodeLossTimeoutSeconds {seconds}, and so do leaders now"),
    );
    // The value may be raised at this moment, or a machine join with a higher one.
    let conditions = vec![
        Compare::ModRevision(
            keys::WANTED_CONFIGURATION.to_owned(),
            snapshot.wanted_revision,
        ),
        Compare::ModRevision(keys::CLUSTER.to_owned(), snapshot.cluster_revision),
        Compare::ModRevision(keys::OVERLAY_CIDR.to_owned(), snapshot.overlay_revision),
    ];
    let reason = format!("nodeLossTimeoutSeconds {seconds} holds on every machine");
    draft.commit(group, reason, conditions);
}
