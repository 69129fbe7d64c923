//! The cluster's configuration, the version, the health, and the API's description.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Extension, Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use jiff::{SignedDuration, Timestamp};

use super::joining::may_look;
use crate::{
    access::{
        authentication::Caller,
        authorization as access,
        authorization::{CallScope, RouteAccess},
    },
    context::Api,
    errors::ApiError,
    openapi,
};
use kat_leader::PlanningReport;
use kat_pki::epoch_proof::sign_server;
use kat_plan::Snapshot;
use kat_types::{
    api::{ApiTime, BackupView, HealthView, ServerVersion, StoreServer, StoreView},
    resource::ClusterConfiguration,
    store::records::BackupRecord,
};

/// Any caller may read this, so it only says that backups fail; the event says why.
fn backup_view(record: Option<&BackupRecord>, interval_minutes: u32, now: Timestamp) -> BackupView {
    let most = SignedDuration::from_mins(i64::from(interval_minutes.max(1)) * LATE_INTERVALS);
    record.map_or_else(BackupView::default, |record| BackupView {
        last: record.last.map(ApiTime::from),
        node: record.node.clone(),
        failing: !record.failure.is_empty(),
        overdue: record
            .last
            .is_some_and(|last| now.duration_since(last) > most),
    })
}

/// A backup that is older than this number of intervals is overdue.
const LATE_INTERVALS: i64 = 3;
/// Maximum number of objects that are named.
const NAMED: usize = 20;

/// Problems of the leader's plans. Callers that may not read the cluster get only the number of
/// objects.
fn planning_troubles(report: Option<PlanningReport>, names: bool) -> Vec<String> {
    let PlanningReport {
        frozen,
        trouble,
        outside,
    } = report.unwrap_or_default();
    if let Some(outside) = outside {
        return vec![outside];
    }
    let mut troubles: Vec<String> = trouble.into_iter().collect();
    if !names {
        if !troubles.is_empty() {
            troubles = vec!["the leader cannot write its decisions".to_owned()];
        }
        if !frozen.is_empty() {
            troubles.push(format!("{} objects cannot be written", frozen.len()));
        }
        return troubles;
    }
    let named = frozen.iter().take(NAMED);
    troubles
        .extend(named.map(|one| format!("NotWritable: {} is left as it is: {one}", one.object)));
    if let more @ 1.. = frozen.len().saturating_sub(NAMED) {
        troubles.push(format!("{more} more objects cannot be written"));
    }
    troubles
}

pub(crate) async fn health(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<HealthView>, ApiError> {
    let names = access::check(RouteAccess::ReadCluster, &caller, CallScope::default()).is_ok();
    let planning = api.planning_report();
    let is_outside = planning
        .as_ref()
        .is_some_and(|report| report.outside.is_some());
    let planning = planning_troubles(planning, names);
    let snapshot = match api.snapshot() {
        // It was taken out of the cluster before this agent's start, and no state comes any more.
        Err(_) if is_outside => return Ok(Json(HealthView::without_state(planning))),
        snapshot => snapshot?,
    };
    let record = snapshot.backup.as_ref().map(|stored| &stored.value);
    let interval = snapshot.cluster.spec.backup_interval_minutes;
    let backup_view = || backup_view(record, interval, Timestamp::now());
    let backup = api.config.joining.is_some().then(backup_view);
    let report = api.store_report();
    let store = report.as_ref().map(|report| StoreView {
        file_bytes: report.weight.file,
        used_bytes: report.weight.used,
        quota_bytes: report.weight.quota,
        versions: if names {
            report.versions.clone()
        } else {
            BTreeMap::new()
        },
    });
    Ok(Json(HealthView {
        status: "ok".to_owned(),
        leader: api.leads(),
        stale: api.is_stale(),
        backup,
        store_epoch: snapshot
            .store_epoch
            .as_ref()
            .map(|stored| stored.value.clone()),
        store_server: store_server(&api, &snapshot),
        trouble: report.and_then(|report| report.trouble),
        planning,
        store,
    }))
}

/// The proof for machines that do not know this machine's key. It counts for a later epoch than a
/// machine has seen, so there is none while the store was never created anew.
fn store_server(api: &Api, snapshot: &Snapshot) -> Option<StoreServer> {
    let epoch = snapshot.store_epoch.as_ref()?.value.epoch;
    let authorities = api.authorities().filter(|_| epoch > 0)?;
    let key = authorities.recovery_keys()?.current();
    let own = &api.config.node_name;
    let hash = &snapshot.nodes.get(own)?.registration.value.member_keys.api;
    if hash.is_empty() {
        return None;
    }
    let signed = sign_server(key, &snapshot.cluster_uid, epoch, (own, hash));
    match signed {
        Ok(server) => Some(server),
        Err(error) => {
            tracing::error!("this machine can't prove that it holds the store: {error}");
            None
        }
    }
}

pub(crate) async fn version() -> Json<ServerVersion> {
    Json(ServerVersion {
        version: kat_types::VERSION.to_owned(),
    })
}

pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::TEXT).into_response()
}

/// The configuration contains no secrets: keys and tokens are stored elsewhere.
pub(crate) async fn cluster(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ClusterConfiguration>, ApiError> {
    let snapshot = api.snapshot()?;
    may_look(&caller, &snapshot)?;
    Ok(Json(snapshot.wanted_cluster().clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_in_no_cluster_says_only_that_and_to_every_caller() {
        let report = PlanningReport {
            trouble: Some("etcd does not answer".to_owned()),
            outside: Some("it was deleted".to_owned()),
            ..PlanningReport::default()
        };
        for names in [true, false] {
            let troubles = planning_troubles(Some(report.clone()), names);
            assert_eq!(troubles, ["it was deleted"]);
        }
    }

    #[test]
    fn a_backup_is_overdue_after_three_intervals() {
        let now: Timestamp = "2026-11-22T04:00:00Z".parse().unwrap();
        let made = |minutes: i64| {
            let record = BackupRecord {
                last: Some(now - SignedDuration::from_mins(minutes)),
                ..BackupRecord::default()
            };
            backup_view(Some(&record), 30, now).overdue
        };
        assert!(!made(90) && made(91) && !made(-60));
        // Where there was none yet, the first one is not late.
        assert!(!backup_view(None, 30, now).overdue);
        assert!(!backup_view(Some(&BackupRecord::default()), 30, now).overdue);
    }
}
