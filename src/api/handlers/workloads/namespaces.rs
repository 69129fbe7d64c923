//! Namespaces: list, read, create, delete.

use std::sync::Arc;

use axum::{Extension, extract::State, http::StatusCode, response::Response};
use jiff::Timestamp;
use serde::Deserialize;

use crate::{
    access::{authentication::Caller, authorization::CORE_NAMESPACE},
    apply::{
        missing_namespaces, put, readers,
        removal::{is_to_mark, mark_deleting},
        route_claims,
    },
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, QueryParameters, WriteRequest},
    handlers::{
        data::volumes,
        workloads::workload_objects::{WriteResult, item},
    },
    view::namespace_metadata,
    watch::{ListQuery, answer},
};
use kat_bundle as bundle;
use kat_plan::{EventLog, Snapshot};
use kat_types::{
    api::{
        EventKind, NamespaceAccessRequest, NamespaceRequest, ObjectKind, ObjectReference,
        WriteOutcome,
    },
    reason::EventReason,
    resource::{
        API_VERSION, Amounts, MOST_ALLOWED_NAMESPACES, NamespaceAccess, NamespaceDefaults,
        NamespaceIsolation, NamespaceMetadata, QuotaResource, default_namespace,
        name::{check_namespace, check_new_namespace},
    },
    store::{
        ingress::NAMESPACE_HOSTS,
        keys,
        records::NamespaceRecord,
        revisions::Stored,
        transaction::{Compare, WriteOperation},
    },
};

/// Workloads that are marked in one transaction of a cascade.
const CASCADE_PIECE: usize = 50;
/// Maximum number of labels of a namespace, and of characters of each.
const MAX_LABELS: usize = 64;
const MAX_LABEL: usize = 256;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.namespaces())).await
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let found = api.view(&snapshot, &observed).namespace(&name);
    let found = found.ok_or_else(|| ApiError::not_found("namespace", &name))?;
    Ok(item(&found, &found.metadata.resource_version))
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    request: WriteRequest,
    JsonBody(asked): JsonBody<NamespaceRequest>,
) -> Result<Response, ApiError> {
    check(&asked)?;
    let create = NamespaceCreation {
        metadata: asked.metadata,
        settings: asked.spec,
        request,
        uid: (api.config.new_uid)(),
        now: api.now(),
    };
    let (written, revision) = api.write(|snapshot| create.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

pub(crate) async fn set_quota(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: WriteRequest,
    JsonBody(body): JsonBody<serde_json::Map<String, serde_json::Value>>,
) -> Result<Response, ApiError> {
    if let Some(unknown) = body
        .keys()
        .find(|word| QuotaResource::of_word(word).is_none())
    {
        let unknown: String = unknown.chars().take(60).collect();
        return Err(ApiError::invalid(format!("`{unknown}` is no quota")));
    }
    let quota: Amounts = serde_json::from_value(body.into())
        .map_err(|error| ApiError::invalid(format!("the body: {error}")))?;
    let write = QuotaWrite {
        name,
        quota,
        request,
        now: api.now(),
    };
    let (written, revision) = api.write(|snapshot| write.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

struct QuotaWrite {
    name: String,
    quota: Amounts,
    request: WriteRequest,
    now: Timestamp,
}

impl QuotaWrite {
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let name = &self.name;
        let stored = snapshot.namespaces.get(name);
        let stored = stored.ok_or_else(|| ApiError::not_found("namespace", name))?;
        self.request.precondition.check(Some(stored.revision))?;
        let before = &stored.value.quota;
        // What is stored already is no reason to refuse another change.
        let needs_reader = self.quota.needs_quota_reader() && !before.needs_quota_reader();
        if needs_reader {
            readers::check_namespace_quotas(snapshot)?;
        }
        let record = NamespaceRecord {
            quota: self.quota,
            ..stored.value.clone()
        };
        let changed = record != stored.value;
        let outcome = WriteOutcome::of_change(changed);
        let metadata = namespace_metadata(name, &record, stored.revision);
        let result = WriteResult::of("Namespace", outcome, metadata);
        if !changed || self.request.query.dry_run {
            return Ok(WriteDecision::Done(result));
        }
        let key = keys::namespace(name);
        let mut operations = vec![put(key.clone(), &record)?];
        let message = format!("its quotas were set by {}", self.request.caller.in_words());
        let (reason, uid) = (EventReason::QuotaSet, &record.uid);
        operations.extend(event(snapshot, self.now, reason, name, uid, message));
        let mut conditions = vec![Compare::ModRevision(key, stored.revision)];
        if let Some(members) = snapshot.members.as_ref().filter(|_| needs_reader) {
            // A machine with an older reader may become a member at this moment.
            let key = keys::MEMBERS.to_owned();
            conditions.push(Compare::ModRevision(key, members.revision));
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome: result,
        })
    }
}

fn check(request: &NamespaceRequest) -> Result<(), ApiError> {
    if let Some(found) = request
        .api_version
        .as_ref()
        .filter(|found| *found != API_VERSION)
    {
        return Err(ApiError::invalid(format!(
            "apiVersion is `{found}`, expected `{API_VERSION}`"
        )));
    }
    if let Some(found) = request.kind.as_ref().filter(|found| *found != "Namespace") {
        return Err(ApiError::invalid(format!(
            "kind is `{found}`, expected `Namespace`"
        )));
    }
    check_namespace(&request.metadata.name)
        .map_err(|error| ApiError::invalid(format!("metadata.name: {error}")))?;
    let allowed = request.spec.iter().flat_map(|spec| &spec.allow_namespaces);
    if allowed.clone().count() > MOST_ALLOWED_NAMESPACES {
        return Err(ApiError::invalid(format!(
            "spec.allowNamespaces: at most {MOST_ALLOWED_NAMESPACES} namespaces are allowed; `*` stands for all"
        )));
    }
    for name in allowed.filter(|name| *name != "*") {
        check_namespace(name)
            .map_err(|error| ApiError::invalid(format!("spec.allowNamespaces: {error}")))?;
    }
    let hosts = request.spec.iter().flat_map(|spec| &spec.ingress_hosts);
    for list in hosts {
        if list.len() > NAMESPACE_HOSTS {
            return Err(ApiError::invalid(format!(
                "spec.ingressHosts: at most {NAMESPACE_HOSTS} hosts are allowed"
            )));
        }
        for host in list {
            bundle::check_route_host(host)
                .map_err(|error| ApiError::invalid(format!("spec.ingressHosts: {error}")))?;
        }
    }
    let labels = &request.metadata.labels;
    let long = |text: &String| text.chars().count() > MAX_LABEL;
    if labels.len() > MAX_LABELS
        || labels
            .iter()
            .any(|(key, value)| key.is_empty() || long(key) || long(value))
    {
        return Err(ApiError::invalid(format!(
            "metadata.labels: at most {MAX_LABELS} labels with keys and values of at most {MAX_LABEL} characters are allowed"
        )));
    }
    Ok(())
}

/// What `spec` of `namespace.kat` sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamespaceSettings {
    /// Who may reach its workloads.
    access: NamespaceAccess,
    /// Hosts that its routes may have; all if absent.
    ingress_hosts: Option<Vec<String>>,
    quota: Amounts,
    /// Values for workloads that do not have them.
    defaults: NamespaceDefaults,
}

impl NamespaceSettings {
    fn of(record: &NamespaceRecord) -> Self {
        Self {
            access: record.access.clone(),
            ingress_hosts: record.ingress_hosts.clone(),
            quota: record.quota,
            defaults: record.defaults,
        }
    }

    /// The settings after a request. Quotas and defaults that it does not have stay.
    fn after(&self, request: &NamespaceAccessRequest) -> Self {
        Self {
            access: NamespaceAccess {
                isolation: request.isolation,
                allow_namespaces: request.allow_namespaces.clone(),
            },
            ingress_hosts: request.ingress_hosts.clone(),
            quota: request.quota.unwrap_or(self.quota),
            defaults: request.defaults.map_or(self.defaults, Into::into),
        }
    }

    /// Refuses settings that a machine which may lead would drop, and returns whether that depends on
    /// which machines these are. What is stored already is no reason to refuse another change.
    fn check_readers(&self, before: &Self, snapshot: &Snapshot) -> Result<bool, ApiError> {
        let changes_access =
            self.access != before.access || self.ingress_hosts != before.ingress_hosts;
        if changes_access {
            readers::check_namespace_access(snapshot)?;
        }
        let needs_quotas = self.quota.needs_quota_reader() && !before.quota.needs_quota_reader();
        if needs_quotas {
            readers::check_namespace_quotas(snapshot)?;
        }
        let needs_defaults = !self.defaults.is_empty() && before.defaults.is_empty();
        if needs_defaults {
            readers::check_namespace_defaults(snapshot)?;
        }
        Ok(changes_access || needs_quotas || needs_defaults)
    }
}

struct NamespaceCreation {
    metadata: NamespaceMetadata,
    /// Its settings; `None` leaves them as they are.
    settings: Option<NamespaceAccessRequest>,
    request: WriteRequest,
    uid: String,
    now: Timestamp,
}

impl NamespaceCreation {
    /// Creates the namespace or changes it; the same labels and access change nothing.
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let name = &self.metadata.name;
        let stored = snapshot.namespaces.get(name);
        self.request
            .precondition
            .check(stored.map(|stored| stored.revision))?;
        if stored.is_none() {
            check_new_namespace(name)
                .map_err(|error| ApiError::invalid(format!("metadata.name: {error}")))?;
        }
        let before = stored.map(|stored| NamespaceSettings::of(&stored.value));
        let before = before.unwrap_or_default();
        let asked = self.settings.as_ref().map(|asked| before.after(asked));
        let settings = asked.as_ref().unwrap_or(&before);
        let needs_readers = settings.check_readers(&before, snapshot)?;
        let changes_access = settings.access != before.access;
        let changes_hosts = settings.ingress_hosts != before.ingress_hosts;
        if let Some(hosts) = settings.ingress_hosts.as_ref().filter(|_| changes_hosts) {
            route_claims::check_ingress_hosts(snapshot, name, hosts)?;
        }
        let (record, outcome) = self.record(stored, settings)?;
        let events = self.events_in_words(outcome, &before, settings);
        let before = stored.map_or(0, |stored| stored.revision);
        let metadata = namespace_metadata(name, &record, before);
        let mut result = WriteResult::of("Namespace", outcome, metadata);
        if outcome == WriteOutcome::Unchanged {
            return Ok(WriteDecision::Done(result));
        }
        if changes_access {
            let names = record.access.allow_namespaces.iter();
            let names: Vec<_> = names.filter(|name| *name != "*").cloned().collect();
            result.warnings = missing_namespaces(snapshot, &names);
        }
        if self.request.query.dry_run {
            return Ok(WriteDecision::Done(result));
        }
        if stored.is_none() {
            result.status = StatusCode::CREATED;
        }
        let key = keys::namespace(name);
        let mut operations = vec![put(key.clone(), &record)?];
        let mut log = EventLog::new(&snapshot.events, self.now);
        for (reason, message) in events {
            let object = reference(name, &record.uid);
            operations.extend(log.record(EventKind::Normal, reason, object, message));
        }
        let mut conditions = vec![Compare::ModRevision(key, before)];
        if let Some(members) = snapshot.members.as_ref().filter(|_| needs_readers) {
            // A machine with an older reader may become a member at this moment.
            let key = keys::MEMBERS.to_owned();
            conditions.push(Compare::ModRevision(key, members.revision));
        }
        if changes_hosts {
            // A workload may get one of the hosts at this moment.
            let key = keys::INGRESS_CLAIMS.to_owned();
            conditions.push(Compare::ModRevision(key.clone(), snapshot.claims_revision));
            operations.push(WriteOperation::Put(key, Vec::new()));
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome: result,
        })
    }

    /// The namespace as it is to be stored.
    fn record(
        &self,
        stored: Option<&Stored<NamespaceRecord>>,
        settings: &NamespaceSettings,
    ) -> Result<(NamespaceRecord, WriteOutcome), ApiError> {
        let name = &self.metadata.name;
        let NamespaceSettings {
            access,
            ingress_hosts,
            quota,
            defaults,
        } = settings.clone();
        match stored {
            None => {
                let record = NamespaceRecord {
                    schema: 1,
                    uid: self.uid.clone(),
                    labels: self.metadata.labels.clone(),
                    created: self.now,
                    deleting: false,
                    quota,
                    access,
                    ingress_hosts,
                    defaults,
                };
                Ok((record, WriteOutcome::Created))
            }
            Some(stored) if stored.value.deleting => Err(ApiError::conflict(
                format!("the namespace `{name}` is being deleted"),
                "wait until it is gone",
            )),
            Some(stored) => {
                let record = NamespaceRecord {
                    labels: self.metadata.labels.clone(),
                    quota,
                    access,
                    ingress_hosts,
                    defaults,
                    ..stored.value.clone()
                };
                let outcome = WriteOutcome::of_change(record != stored.value);
                Ok((record, outcome))
            }
        }
    }

    /// Reasons and messages of the events of its write.
    fn events_in_words(
        &self,
        outcome: WriteOutcome,
        before: &NamespaceSettings,
        after: &NamespaceSettings,
    ) -> Vec<(EventReason, String)> {
        let caller = self.request.caller.in_words();
        if outcome == WriteOutcome::Created {
            return vec![(EventReason::Created, format!("{outcome} by {caller}"))];
        }
        let mut events = Vec::new();
        if after.access != before.access {
            let access = access_text(&after.access);
            events.push((
                EventReason::NamespaceAccessSet,
                format!("{access} by {caller}"),
            ));
        }
        if after.quota != before.quota {
            let message = format!("its quotas were set by {caller}");
            events.push((EventReason::QuotaSet, message));
        }
        if after.defaults != before.defaults {
            let message = format!("its default requests were set by {caller}");
            events.push((EventReason::Updated, message));
        }
        if events.is_empty() {
            events.push((EventReason::Updated, format!("{outcome} by {caller}")));
        }
        events
    }
}

/// Who may reach the workloads of a namespace, in words.
fn access_text(access: &NamespaceAccess) -> String {
    let names = &access.allow_namespaces;
    match access.isolation {
        NamespaceIsolation::Shared => "it was opened to all namespaces".to_owned(),
        NamespaceIsolation::Private if names.iter().any(|name| name == "*") => {
            "it was opened to all namespaces".to_owned()
        }
        NamespaceIsolation::Private if names.is_empty() => {
            "it was closed to other namespaces".to_owned()
        }
        NamespaceIsolation::Private => format!("it was opened to {} alone", names.join(", ")),
    }
}

fn event(
    snapshot: &Snapshot,
    now: Timestamp,
    reason: EventReason,
    name: &str,
    uid: &str,
    message: String,
) -> Vec<WriteOperation> {
    let object = reference(name, uid);
    EventLog::new(&snapshot.events, now).record(EventKind::Normal, reason, object, message)
}

fn reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        kind: ObjectKind::Namespace,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.to_owned(),
    }
}

/// Query parameters of a namespace's deletion.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct DeleteQuery {
    /// Return what would happen, and write nothing.
    dry_run: bool,
    /// Delete its workloads too.
    cascade: bool,
    /// Delete the data of its volumes too, including volumes kept from deleted workloads.
    volumes: bool,
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: WriteRequest<DeleteQuery>,
) -> Result<Response, ApiError> {
    if name == CORE_NAMESPACE || name == default_namespace() {
        return Err(ApiError::Forbidden {
            message: format!("the namespace `{name}` can't be deleted"),
            hint: None,
        });
    }
    let removal = NamespaceRemoval {
        name: &name,
        request,
        now: api.now(),
    };
    let query = removal.request.query;
    let (outcome, revision) = api.write(|snapshot| removal.decide(snapshot)).await?;
    // From here on nothing new can be created in the namespace, so the loop ends.
    let mut newest = revision;
    let mut more = (query.cascade || query.volumes) && !query.dry_run;
    while more {
        let (left, revision) = api.write(|snapshot| removal.cascade(snapshot)).await?;
        newest = revision.or(newest);
        more = left;
    }
    Ok(outcome.answer(newest))
}

struct NamespaceRemoval<'a> {
    name: &'a str,
    request: WriteRequest<DeleteQuery>,
    now: Timestamp,
}

impl NamespaceRemoval<'_> {
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let stored = snapshot.namespaces.get(self.name);
        let stored = stored.ok_or_else(|| ApiError::not_found("namespace", self.name))?;
        self.request.precondition.check(Some(stored.revision))?;
        let metadata = namespace_metadata(self.name, &stored.value, stored.revision);
        let outcome = WriteResult::of("Namespace", WriteOutcome::Deleting, metadata);
        let count = snapshot
            .workloads
            .keys()
            .filter(|key| key.namespace == self.name)
            .count();
        if count > 0 && !self.request.query.cascade {
            return Err(ApiError::conflict(
                format!("the namespace `{}` still has workloads: {count}", self.name),
                "delete them first, or ask with `cascade=true` (`katcall delete namespace --cascade`)",
            ));
        }
        let secrets = snapshot.secrets.keys();
        let secrets = secrets.filter(|key| key.namespace == self.name).count();
        if secrets > 0 && !self.request.query.cascade {
            return Err(ApiError::conflict(
                format!("the namespace `{}` still has secrets: {secrets}", self.name),
                "delete them first, or ask with `cascade=true` (`katcall delete namespace --cascade`)",
            ));
        }
        let logins = snapshot.logins.get(self.name).map_or(0, |one| one.len());
        if logins > 0 && !self.request.query.cascade {
            return Err(ApiError::conflict(
                format!(
                    "the namespace `{}` still has credentials for registries: {logins}",
                    self.name
                ),
                "take them away first (`katcall registry logout`), or ask with `cascade=true` (`katcall delete namespace --cascade`)",
            ));
        }
        if self.request.query.dry_run || stored.value.deleting {
            return Ok(WriteDecision::Done(outcome));
        }
        let record = NamespaceRecord {
            deleting: true,
            ..stored.value.clone()
        };
        let key = keys::namespace(self.name);
        let mut operations = vec![put(key.clone(), &record)?];
        let message = format!(
            "deletion was asked for by {}",
            self.request.caller.in_words()
        );
        operations.extend(event(
            snapshot,
            self.now,
            EventReason::Deleting,
            self.name,
            &record.uid,
            message,
        ));
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(key, stored.revision)],
            operations,
            outcome,
        })
    }

    /// Marks a batch of the namespace's workloads, and of volumes kept from deleted workloads.
    /// Returns whether there may be more.
    fn cascade(&self, snapshot: &Snapshot) -> Result<WriteDecision<bool>, ApiError> {
        let all = self.request.query.volumes;
        let workloads = snapshot.workloads.iter();
        let workloads =
            workloads.filter(|(key, entry)| key.namespace == self.name && is_to_mark(entry, all));
        let kept = snapshot.volumes.iter().filter(|(key, stored)| {
            let workload = &key.workload;
            workload.namespace == self.name
                && !stored.value.deleting
                && !snapshot.workloads.contains_key(workload)
        });
        let marks = workloads.map(|(key, entry)| mark_deleting(key, entry, all));
        let kept = kept
            .filter(|_| all)
            .map(|(key, stored)| volumes::mark_deleting(key, stored));
        let mut conditions = Vec::new();
        let mut operations = Vec::new();
        for mark in marks.chain(kept).take(CASCADE_PIECE) {
            let (condition, operation) = mark?;
            conditions.push(condition);
            operations.push(operation);
        }
        if operations.is_empty() {
            return Ok(WriteDecision::Done(false));
        }
        if all {
            let (turn, takes_turn) = volumes::in_turn(snapshot);
            conditions.push(turn);
            operations.push(takes_turn);
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome: true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::{Precondition, WriteQuery};
    use kat_types::store::{
        members::{ClusterMembers, MemberRecord},
        snapshot::StoredState,
    };

    fn request() -> WriteRequest {
        WriteRequest {
            caller: Caller::Anonymous,
            precondition: Precondition::Nothing,
            query: WriteQuery::default(),
        }
    }

    /// A namespace without settings.
    fn namespace() -> Stored<NamespaceRecord> {
        let record = NamespaceRecord {
            schema: 1,
            uid: "uid".to_owned(),
            labels: Default::default(),
            created: Timestamp::UNIX_EPOCH,
            deleting: false,
            quota: Default::default(),
            access: Default::default(),
            ingress_hosts: None,
            defaults: Default::default(),
        };
        Stored {
            revision: 3,
            value: record,
        }
    }

    fn conditions(snapshot: &Snapshot, allowed: &[&str]) -> Vec<Compare> {
        let creation = NamespaceCreation {
            metadata: NamespaceMetadata {
                name: "crew".to_owned(),
                labels: Default::default(),
            },
            settings: Some(NamespaceAccessRequest {
                allow_namespaces: allowed.iter().map(|name| (*name).to_owned()).collect(),
                ..NamespaceAccessRequest::default()
            }),
            request: request(),
            uid: "uid".to_owned(),
            now: Timestamp::UNIX_EPOCH,
        };
        match creation.decide(snapshot).unwrap() {
            WriteDecision::Write { conditions, .. } => conditions,
            WriteDecision::Done(_) => panic!("it writes"),
        }
    }

    /// A machine that does not know the settings may become a member at the same moment.
    #[test]
    fn settings_of_a_namespace_are_written_for_the_members_that_were_looked_at_alone() {
        let mut snapshot = Snapshot::from(StoredState::default());
        snapshot.members = Some(Stored {
            revision: 7,
            value: ClusterMembers::default(),
        });
        let members = Compare::ModRevision(keys::MEMBERS.to_owned(), 7);
        assert!(conditions(&snapshot, &["web"]).contains(&members));
        assert!(!conditions(&snapshot, &[]).contains(&members));
    }

    #[test]
    fn each_change_of_a_namespace_has_an_event() {
        let mut snapshot = Snapshot::from(StoredState::default());
        snapshot.namespaces.insert("crew".to_owned(), namespace());
        let events = |labels: &[&str], spec: serde_json::Value| {
            let labels = labels.iter();
            let labels = labels.map(|label| ((*label).to_owned(), String::new()));
            let creation = NamespaceCreation {
                metadata: NamespaceMetadata {
                    name: "crew".to_owned(),
                    labels: labels.collect(),
                },
                settings: Some(serde_json::from_value(spec).unwrap()),
                request: request(),
                uid: String::new(),
                now: Timestamp::UNIX_EPOCH,
            };
            let WriteDecision::Write { operations, .. } = creation.decide(&snapshot).unwrap()
            else {
                panic!("it writes");
            };
            let written = operations.iter().filter_map(|operation| match operation {
                WriteOperation::Put(key, value) if *key != keys::namespace("crew") => {
                    let event: serde_json::Value = serde_json::from_slice(value).unwrap();
                    Some((key.clone(), event["reason"].as_str().unwrap().to_owned()))
                }
                _ => None,
            });
            let written: std::collections::BTreeMap<_, _> = written.collect();
            written.into_values().collect::<Vec<_>>()
        };
        let all = serde_json::json!({
            "allowNamespaces": ["ops"], "quota": {"workloads": 5},
            "defaults": {"requests": {"memory": "64Mi"}},
        });
        assert_eq!(
            events(&[], all),
            ["NamespaceAccessSet", "QuotaSet", "Updated"]
        );
        let quota = serde_json::json!({"quota": {"workloads": 5}});
        assert_eq!(events(&["team"], quota), ["QuotaSet"]);
        assert_eq!(events(&["team"], serde_json::json!({})), ["Updated"]);
    }

    #[test]
    fn quotas_and_defaults_of_a_request_are_set_and_what_it_leaves_out_stays() {
        let before = NamespaceSettings {
            quota: Amounts {
                workloads: Some(3),
                secrets: Some(7),
                ..Amounts::default()
            },
            ..NamespaceSettings::default()
        };
        let asked = |spec: serde_json::Value| {
            let spec: NamespaceAccessRequest = serde_json::from_value(spec).unwrap();
            before.after(&spec)
        };
        let opened = asked(serde_json::json!({"isolation": "Shared"}));
        assert_eq!(opened.quota, before.quota);
        assert_eq!(opened.access.isolation, NamespaceIsolation::Shared);
        let limited = asked(serde_json::json!({"quota": {"workloads": 5}}));
        let five = Amounts {
            workloads: Some(5),
            ..Amounts::default()
        };
        assert_eq!(limited.quota, five, "the quota of secrets is gone");
        let spec = serde_json::json!({"defaults": {"requests": {"memory": "64Mi"}}});
        let filled = asked(spec);
        assert_eq!(filled.quota, before.quota);
        let memory = filled.defaults.requests.memory;
        assert_eq!(memory.map(|memory| memory.0), Some(64 << 20));
        // A machine that may lead and has reported no reader would drop the defaults.
        let mut snapshot = Snapshot::from(StoredState::default());
        assert_eq!(filled.check_readers(&before, &snapshot), Ok(true));
        let mut members = ClusterMembers::default();
        let record = MemberRecord::default();
        members.members.insert("n2".to_owned(), record);
        snapshot.members = Some(Stored {
            revision: 7,
            value: members,
        });
        snapshot.leader_name = Some("n1".to_owned());
        let refused = filled.check_readers(&before, &snapshot).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a machine that may lead does not know `defaults` of a namespace yet: n2"
        );
        assert_eq!(limited.check_readers(&before, &snapshot), Ok(false));
        assert_eq!(before.check_readers(&filled, &snapshot), Ok(false));
    }

    #[test]
    fn a_quota_of_hosts_waits_until_every_machine_that_may_lead_keeps_it() {
        let mut snapshot = Snapshot::from(StoredState::default());
        snapshot.namespaces.insert("shop".to_owned(), namespace());
        // Both machines may lead, and the second one has reported no reader.
        let mut members = ClusterMembers::default();
        for name in ["n1", "n2"] {
            let record = MemberRecord::default();
            members.members.insert(name.to_owned(), record);
        }
        snapshot.members = Some(Stored {
            revision: 7,
            value: members,
        });
        snapshot.leader_name = Some("n1".to_owned());
        let write = |quota: Amounts| QuotaWrite {
            name: "shop".to_owned(),
            quota,
            request: request(),
            now: Timestamp::UNIX_EPOCH,
        };
        let hosts = Amounts {
            hosts: Some(5),
            ..Amounts::default()
        };
        let workloads = Amounts {
            workloads: Some(5),
            ..Amounts::default()
        };
        let refused = write(hosts).decide(&snapshot).map(drop);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "a machine that may lead does not know the quotas `hosts` and `certificateOrders` of a namespace yet: n2"
        );
        assert!(write(workloads).decide(&snapshot).is_ok());
        // A quota that is stored already refuses no other one.
        let shop = snapshot.namespaces.get_mut("shop").unwrap();
        shop.value.quota = hosts;
        let both = Amounts {
            hosts: Some(4),
            ..workloads
        };
        assert!(write(both).decide(&snapshot).is_ok());
        // The second machine is a member no more; the list of members must still be the same.
        let shop = snapshot.namespaces.get_mut("shop").unwrap();
        shop.value.quota = Amounts::default();
        if let Some(stored) = &mut snapshot.members {
            stored.value.members.remove("n2");
        }
        let Ok(WriteDecision::Write { conditions, .. }) = write(hosts).decide(&snapshot) else {
            panic!("it writes");
        };
        let members = Compare::ModRevision(keys::MEMBERS.to_owned(), 7);
        assert!(conditions.contains(&members));
    }
}
