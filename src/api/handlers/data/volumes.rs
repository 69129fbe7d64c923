//! Volumes: list, read, delete. Volumes outlive their workload and its namespace.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use jiff::Timestamp;

use crate::{
    access::authentication::Caller,
    apply::{put, record},
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{PathParameters, QueryParameters, WriteRequest},
    handlers::workloads::workload_objects::{WriteResult, item},
    view::{ApiView, volume_metadata},
    watch::{ListQuery, answer},
};
use kat_plan::{Snapshot, users_of};
use kat_types::{
    api::WriteOutcome,
    reason::EventReason,
    store::{
        keys,
        records::VolumeRecord,
        revisions::{Stored, WorkloadKey},
        transaction::{Compare, WriteOperation},
    },
    volumes::VolumeKey,
};

/// Maximum number of instances that an error names.
const NAMED_USERS: usize = 5;

pub(crate) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.volumes(None))).await
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_known(&*api.snapshot()?, &namespace)?;
    let select = Arc::new(move |view: &ApiView<'_>| view.volumes(Some(&namespace)));
    answer(&api, &caller, &query, select).await
}

/// Refuses an unknown namespace. A deleted namespace is known while a volume of it is kept.
fn check_known(snapshot: &Snapshot, namespace: &str) -> Result<(), ApiError> {
    let mut kept = snapshot.volumes.keys();
    let known = snapshot.namespaces.contains_key(namespace)
        || kept.any(|key| key.workload.namespace == namespace);
    match known {
        true => Ok(()),
        false => Err(ApiError::not_found("namespace", namespace)),
    }
}

pub(crate) fn missing(snapshot: &Snapshot, key: &VolumeKey) -> ApiError {
    match check_known(snapshot, &key.workload.namespace) {
        Ok(()) => ApiError::not_found("volume", &key.to_string()),
        Err(error) => error,
    }
}

pub(crate) fn key(namespace: &str, workload: &str, volume: String) -> VolumeKey {
    VolumeKey {
        workload: WorkloadKey::new(namespace, workload),
        volume,
    }
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, workload, volume)): PathParameters<(String, String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let key = key(&namespace, &workload, volume);
    match api.view(&snapshot, &observed).volume(&key) {
        Some(found) => Ok(item(&found, &found.metadata.resource_version)),
        None => Err(missing(&snapshot, &key)),
    }
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, workload, volume)): PathParameters<(String, String, String)>,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    let removal = VolumeRemoval {
        key: key(&namespace, &workload, volume),
        request,
        now: api.now(),
    };
    let (written, revision) = api.write(|snapshot| removal.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

/// A request to remove a volume's data.
struct VolumeRemoval {
    key: VolumeKey,
    request: WriteRequest,
    now: Timestamp,
}

impl VolumeRemoval {
    /// Marks the volume as being deleted. The leader has its machine remove the data, and then
    /// deletes the record.
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let key = &self.key;
        let stored = snapshot.volumes.get(key);
        let stored = stored.ok_or_else(|| missing(snapshot, key))?;
        self.request.precondition.check(Some(stored.revision))?;
        let fate = DeletionEffect::of(snapshot, &stored.value);
        let outcome = WriteResult::of("Volume", fate.outcome(), volume_metadata(key, stored));
        if stored.value.deleting {
            return Ok(WriteDecision::Done(outcome));
        }
        if let Some(moving) = &stored.value.moving {
            return Err(ApiError::conflict(
                format!(
                    "volume `{key}` is on its way from {} to {}",
                    moving.from, moving.to
                ),
                &format!("`katcall volume move {key} --cancel` ends that"),
            ));
        }
        let users: Vec<&str> = users_of(snapshot, key).collect();
        if !users.is_empty() {
            let workload = &key.workload;
            return Err(ApiError::conflict(
                format!("volume `{key}` is in use by {}", in_words(&users)),
                &format!(
                    "`katcall scale {workload} --replicas 0` or `katcall delete workload` of it, and wait until they have ended"
                ),
            ));
        }
        if self.request.query.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let (condition, operation) = mark_deleting(key, stored)?;
        let entry = snapshot.workloads.get(&key.workload);
        let uid = entry.map_or("", |entry| entry.meta.value.uid.as_str());
        let message = fate.message(key, &stored.value, &self.request.caller);
        let mut operations = record(
            snapshot,
            self.now,
            EventReason::VolumeDeleting,
            &key.workload,
            uid,
            message,
        );
        let (turn, takes_turn) = in_turn(snapshot);
        operations.extend([operation, takes_turn]);
        Ok(WriteDecision::Write {
            conditions: vec![condition, turn],
            operations,
            outcome,
        })
    }
}

/// Marks the data of one volume for removal.
pub(crate) fn mark_deleting(
    key: &VolumeKey,
    stored: &Stored<VolumeRecord>,
) -> Result<(Compare, WriteOperation), ApiError> {
    let name = keys::volume(&key.to_string());
    let record = VolumeRecord {
        deleting: true,
        ..stored.value.clone()
    };
    let condition = Compare::ModRevision(name.clone(), stored.revision);
    Ok((condition, put(name, &record)?))
}

/// A condition and an operation that make a write exclude concurrent plans. A plan that gives an
/// instance a volume, without knowing that the volume is being deleted, is refused, and so is a
/// write that does not know of such a plan.
pub(crate) fn in_turn(snapshot: &Snapshot) -> (Compare, WriteOperation) {
    let turn = Compare::ModRevision(keys::PLANNED.to_owned(), snapshot.planned);
    let takes_turn = WriteOperation::Put(keys::PLANNED.to_owned(), Vec::new());
    (turn, takes_turn)
}

/// The effect of a deletion.
enum DeletionEffect {
    /// The volume's machine, or one of those that share it, removes the data.
    Removed,
    /// Data at a path of the machine stays.
    PathForgotten,
    /// The machine has left the cluster, so the data is out of reach.
    MachineGone,
}

impl DeletionEffect {
    fn of(snapshot: &Snapshot, record: &VolumeRecord) -> Self {
        let node = record.node.as_ref();
        if record.host_path.is_some() {
            Self::PathForgotten
        } else if node.is_some_and(|node| !snapshot.nodes.contains_key(node)) {
            Self::MachineGone
        } else {
            Self::Removed
        }
    }

    fn outcome(&self) -> WriteOutcome {
        match self {
            Self::Removed => WriteOutcome::Deleting,
            Self::PathForgotten | Self::MachineGone => WriteOutcome::Forgetting,
        }
    }

    fn message(&self, key: &VolumeKey, record: &VolumeRecord, caller: &Caller) -> String {
        let volume = &key.volume;
        let node = record.node.as_deref();
        match self {
            Self::Removed => {
                let place = node.map_or_else(String::new, |node| format!(" on {node}"));
                format!("removal of the data of volume {volume}{place} was asked for by {caller}")
            }
            Self::PathForgotten => {
                let path = record.host_path.as_deref().unwrap_or_default();
                let node = node.unwrap_or("its machine");
                format!(
                    "{caller} asked to forget the place of volume {volume}; the files at {path} on {node} stay"
                )
            }
            Self::MachineGone => {
                let node = node.unwrap_or("its machine");
                format!(
                    "{caller} gave up the data of volume {volume} on {node}, which is no machine of the cluster"
                )
            }
        }
    }
}

/// Names of instances: `a, b and 3 more`.
fn in_words(users: &[&str]) -> String {
    let shown = users.get(..NAMED_USERS).unwrap_or(users).join(", ");
    match users.len().saturating_sub(NAMED_USERS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::extract::{Precondition, WriteQuery};
    use kat_types::{
        assignment::{Assignment, WorkloadUser},
        resource::ReclaimPolicy,
        store::snapshot::{InstanceEntry, StoredState},
    };

    fn snapshot(users: usize) -> Snapshot {
        let key = key("shop", "web", "data".to_owned());
        let record = VolumeRecord {
            schema: 1,
            index: 0,
            node: Some("n1".to_owned()),
            host_path: None,
            made: true,
            reclaim: ReclaimPolicy::Retain,
            deleting: false,
            created: Timestamp::UNIX_EPOCH,
            moving: None,
            kept: Vec::new(),
            forgotten: BTreeMap::new(),
        };
        let mut snapshot = Snapshot::from(StoredState {
            revision: 10,
            planned: 8,
            ..StoredState::default()
        });
        let stored = Stored {
            revision: 5,
            value: record,
        };
        snapshot.volumes.insert(key, stored);
        for number in 0..users {
            let instance = format!("web-{number}");
            let assignment: Assignment = serde_json::from_value(serde_json::json!({
                "schema": 1, "instance": instance, "namespace": "shop", "workload": "web",
                "workloadUid": "u", "workloadType": "Service", "slot": number, "generation": 1,
                "templateHash": "h", "user": WorkloadUser::from_index(0, "shop", "web").unwrap(),
                "address": "10.100.0.5", "image": "web:1",
                "container": {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
                "volumes": [{"definition": {"name": "data", "simpleClusterStorage": {}}}],
                "restartPolicy": {"condition": "Always"}
            }))
            .unwrap();
            let entry = InstanceEntry {
                node: "n1".to_owned(),
                created_revision: 5,
                assignment: Stored {
                    revision: 5,
                    value: Arc::new(assignment),
                },
            };
            snapshot.instances.insert(instance, entry);
        }
        snapshot
    }

    fn decided(snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let removal = VolumeRemoval {
            key: key("shop", "web", "data".to_owned()),
            request: WriteRequest {
                caller: Caller::Socket {
                    uid: Some(0),
                    access: crate::SocketAccess::Admin,
                },
                precondition: Precondition::Nothing,
                query: WriteQuery::default(),
            },
            now: Timestamp::UNIX_EPOCH,
        };
        removal.decide(snapshot)
    }

    #[test]
    fn a_removal_takes_its_turn_with_the_plans() {
        let Ok(WriteDecision::Write {
            conditions,
            operations,
            ..
        }) = decided(&snapshot(0))
        else {
            panic!("nothing is written");
        };
        assert_eq!(
            conditions,
            [
                Compare::ModRevision("/kat/volumes/shop/web/data".to_owned(), 5),
                Compare::ModRevision(keys::PLANNED.to_owned(), 8),
            ]
        );
        let takes_turn = WriteOperation::Put(keys::PLANNED.to_owned(), Vec::new());
        assert!(operations.contains(&takes_turn), "{operations:?}");
    }

    #[test]
    fn a_refusal_names_some_of_the_users() {
        let Err(ApiError::Conflict { message, .. }) = decided(&snapshot(7)) else {
            panic!("it is not refused");
        };
        assert_eq!(
            message,
            "volume `shop/web/data` is in use by web-0, web-1, web-2, web-3, web-4 and 2 more"
        );
    }
}
