//! Administrators' settings of machines: drain, labels and taints (RFC001-KAT 4.1.4, 8.2).
//!
//! Each is a PUT of the complete value, so that repeating a request changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{extract::State, response::Response};
use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    access::authentication::Caller,
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, Precondition, WriteRequest},
    handlers::workloads::workload_objects::WriteResult,
    view::node_metadata,
};
use kat_bundle::{check_label_key, check_label_value};
use kat_plan::{EventLog, Snapshot};
use kat_types::{
    api::{EventKind, NodeLabels, NodeTaints, ObjectKind, ObjectReference, Taint, WriteOutcome},
    machine::node_labels::{ETCD_LABEL, NEVER, OWN_LABELS},
    reason::EventReason,
    store::{keys, records::NodeRegistration, transaction::Compare},
};

/// Maximum number of labels, and of taints, of a machine.
const MAX_ENTRIES: usize = 64;

/// Query parameters of a drain.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct DrainQuery {
    /// Return what would happen, and write nothing.
    dry_run: bool,
    /// Also stop instances that no other machine can take.
    force: bool,
}

pub(crate) async fn drain(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: WriteRequest<DrainQuery>,
) -> Result<Response, ApiError> {
    let DrainQuery { dry_run, force } = request.query;
    let change = match &request.caller {
        // A person alone decides that what cannot move is stopped.
        Caller::Node(_) if force => {
            return Err(ApiError::Forbidden {
                message: "a machine's certificate cannot drain by force".to_owned(),
                hint: None,
            });
        }
        Caller::Node(_) => NodeSettingChange::DrainItself,
        _ => NodeSettingChange::Drain { force },
    };
    set(&api, &name, (&request, dry_run), change).await
}

pub(crate) async fn uncordon(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    let dry_run = request.query.dry_run;
    set(
        &api,
        &name,
        (&request, dry_run),
        NodeSettingChange::Uncordon,
    )
    .await
}

pub(crate) async fn labels(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: WriteRequest,
    JsonBody(NodeLabels { labels }): JsonBody<NodeLabels>,
) -> Result<Response, ApiError> {
    check_count("labels", labels.len())?;
    for (key, value) in &labels {
        check_label_key(key).map_err(|error| ApiError::invalid(format!("labels: {error}")))?;
        check_label_value(value).map_err(|error| ApiError::invalid(format!("labels: {error}")))?;
    }
    let change = NodeSettingChange::Labels(labels);
    set(&api, &name, (&request, request.query.dry_run), change).await
}

pub(crate) async fn taints(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: WriteRequest,
    JsonBody(NodeTaints { taints }): JsonBody<NodeTaints>,
) -> Result<Response, ApiError> {
    check_count("taints", taints.len())?;
    let mut seen = BTreeSet::new();
    for Taint { key, value, effect } in &taints {
        check_label_key(key).map_err(|error| ApiError::invalid(format!("taints: {error}")))?;
        check_label_value(value).map_err(|error| ApiError::invalid(format!("taints: {error}")))?;
        if !seen.insert((key, effect)) {
            return Err(ApiError::invalid(format!(
                "taints: `{key}` has the effect {effect:?} twice"
            )));
        }
    }
    let change = NodeSettingChange::Taints(taints);
    set(&api, &name, (&request, request.query.dry_run), change).await
}

fn check_count(what: &str, count: usize) -> Result<(), ApiError> {
    if count <= MAX_ENTRIES {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "{what} has {count} entries, at most {MAX_ENTRIES} are allowed"
    )))
}

/// The desired setting.
enum NodeSettingChange {
    Drain {
        force: bool,
    },
    /// The machine leaves. A drain that was asked for before stays as it is.
    DrainItself,
    Uncordon,
    Labels(BTreeMap<String, String>),
    Taints(Vec<Taint>),
}

async fn set<Q>(
    api: &Api,
    name: &str,
    (request, dry_run): (&WriteRequest<Q>, bool),
    change: NodeSettingChange,
) -> Result<Response, ApiError> {
    let setting = NodeSettingRequest {
        caller: &request.caller,
        name,
        precondition: request.precondition,
        change,
        now: api.now(),
        dry_run,
    };
    let (written, revision) = api.write(|snapshot| setting.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

struct NodeSettingRequest<'a> {
    caller: &'a Caller,
    name: &'a str,
    precondition: Precondition,
    change: NodeSettingChange,
    now: Timestamp,
    dry_run: bool,
}

impl NodeSettingRequest<'_> {
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let name = self.name;
        let node = snapshot.nodes.get(name);
        let before = &node
            .ok_or_else(|| ApiError::not_found("node", name))?
            .registration;
        self.precondition.check(Some(before.revision))?;
        if before.value.deleting {
            return Err(ApiError::conflict(
                format!("machine `{name}` is on its way out of the cluster"),
                "wait until it is gone",
            ));
        }
        let mut registration = before.value.clone();
        let (reason, what) = self.change(&mut registration)?;
        let changed = registration != before.value;
        let outcome = WriteResult::of(
            "Node",
            WriteOutcome::of_change(changed),
            node_metadata(name, &registration, before.revision),
        );
        if !changed || self.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let key = keys::registration(name);
        let mut operations = vec![put(key.clone(), &registration)?];
        let object = ObjectReference {
            kind: ObjectKind::Node,
            name: name.to_owned(),
            namespace: String::new(),
            uid: registration.uid,
        };
        let message = format!("{what} by {}", self.caller);
        let mut log = EventLog::new(&snapshot.events, self.now);
        operations.extend(log.record(EventKind::Normal, reason, object, message));
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(key, before.revision)],
            operations,
            outcome,
        })
    }

    /// Changes the registration. Returns the event's reason and message.
    fn change(
        &self,
        registration: &mut NodeRegistration,
    ) -> Result<(EventReason, &'static str), ApiError> {
        match &self.change {
            NodeSettingChange::Drain { force } => {
                (registration.draining, registration.drain_forced) = (true, *force);
                Ok(match force {
                    true => (EventReason::DrainAsked, "draining by force was asked for"),
                    false => (EventReason::DrainAsked, "draining was asked for"),
                })
            }
            NodeSettingChange::DrainItself => {
                registration.draining = true;
                Ok((EventReason::DrainAsked, "draining was asked for"))
            }
            NodeSettingChange::Uncordon => {
                (registration.draining, registration.drain_forced) = (false, false);
                Ok((EventReason::Uncordoned, "opened to new work"))
            }
            NodeSettingChange::Labels(labels) => {
                let own = OWN_LABELS.iter();
                let mut own = own.filter(|key| labels.get(**key) != registration.labels.get(**key));
                if let Some(key) = own.next() {
                    return Err(ApiError::invalid(format!(
                        "labels: `{key}` says what the machine is, and stays as it is"
                    )));
                }
                if labels.get(ETCD_LABEL).is_some_and(|value| value != NEVER) {
                    return Err(ApiError::invalid(format!(
                        "labels: the only value of `{ETCD_LABEL}` is `{NEVER}`: the machine never becomes one that holds the cluster's store"
                    )));
                }
                registration.labels.clone_from(labels);
                Ok((EventReason::LabelsChanged, "labels were changed"))
            }
            NodeSettingChange::Taints(taints) => {
                registration.taints.clone_from(taints);
                Ok((EventReason::TaintsChanged, "taints were changed"))
            }
        }
    }
}
