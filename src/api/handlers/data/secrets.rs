//! Secrets: list, read, write, delete, and rotation of the data key. No response contains a value.

mod rotation;

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;

use crate::{
    access::authentication::Caller,
    apply::{exceeded, put, quota_defaults, route_claims},
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JSON, PathParameters, QueryParameters, WriteRequest, parse_json},
    handlers::workloads::workload_objects::{WriteResult, check_namespace_exists, item},
    server::limits::{check_content_type, read_body},
    view::{ApiView, secret_metadata, stored_secret_metadata},
    watch::{ListQuery, answer},
};
use kat_pki::delivery::SealingError;
use kat_plan::{EventLog, Snapshot, check_growth, recovery_key_unchanged, users_of_secret};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference, SecretRequest, WriteOutcome},
    reason::EventReason,
    resource::{
        Amounts, Bytes,
        secret::{NAMESPACE_LIMIT, SECRET_LIMIT, SecretValues, check_key, check_name},
    },
    secrets::{SecretKey, SecretRecord, secrets_of},
    store::{
        keys,
        revisions::{Stored, WorkloadKey},
        transaction::{Compare, WriteOperation},
    },
};

pub(crate) use self::rotation::rotate;

/// Maximum bytes of a request's body: all values in base64, with keys and JSON around them.
const MAX_BODY: usize = 2 * SECRET_LIMIT;

pub(crate) async fn list_all(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.secrets(None))).await
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let select = Arc::new(move |view: &ApiView<'_>| view.secrets(Some(&namespace)));
    answer(&api, &caller, &query, select).await
}

pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let key = SecretKey::new(&namespace, &name);
    match api.view(&snapshot, &observed).secret(&key) {
        Some(found) => Ok(item(&found, &found.metadata.resource_version)),
        None => Err(missing(&snapshot, &key)),
    }
}

fn missing(snapshot: &Snapshot, key: &SecretKey) -> ApiError {
    match snapshot.namespaces.contains_key(&key.namespace) {
        true => ApiError::not_found("secret", &key.to_string()),
        false => ApiError::not_found("namespace", &key.namespace),
    }
}

pub(crate) async fn write(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
    request: WriteRequest,
    body: Request,
) -> Result<Response, ApiError> {
    check_name(&name).map_err(|error| ApiError::invalid(error.to_string()))?;
    let asked = read_request(&api, body).await?;
    let change = SecretWrite {
        key: SecretKey::new(&namespace, &name),
        values: decoded(&asked)?,
        merge: asked.merge,
        remove: asked.remove,
        request,
        now: api.now(),
        uid: (api.config.new_uid)(),
    };
    let _turn = api.growth.take(&namespace).await;
    let (written, revision) = api.write(|snapshot| change.decide(snapshot)).await?;
    Ok(written.answer(revision))
}

/// An error in a body only names its position: the parser's message would quote the body.
async fn read_request(api: &Api, request: Request) -> Result<SecretRequest, ApiError> {
    let (parts, body) = request.into_parts();
    check_content_type(&parts.headers, JSON)?;
    let timeout = api.config.limits.body_timeout;
    let body = read_body(&parts.headers, body, MAX_BODY, timeout).await?;
    parse_json(&body).map_err(|error| {
        let (line, column) = (error.inner().line(), error.inner().column());
        ApiError::invalid(format!(
            "the body is no content of a secret at line {line} column {column}; expected {{\"values\": {{KEY: BASE64}}}}"
        ))
    })
}

fn decoded(request: &SecretRequest) -> Result<SecretValues, ApiError> {
    let invalid = |message: String| Err(ApiError::invalid(message));
    let mut values = SecretValues::default();
    for (key, text) in &request.values {
        check_key(key).map_err(|error| ApiError::invalid(error.to_string()))?;
        let Ok(value) = BASE64_STANDARD.decode(text) else {
            return invalid(format!("values.{key}: the value is not base64"));
        };
        values.0.insert(key.clone(), value);
    }
    if !request.merge && !request.remove.is_empty() {
        return invalid("`remove` is used only with `merge`".to_owned());
    }
    let both = request
        .remove
        .iter()
        .find(|key| values.0.contains_key(*key));
    if let Some(key) = both {
        let quoted: String = key.chars().take(60).collect();
        return invalid(format!("the key `{quoted}` is in `values` and in `remove`"));
    }
    Ok(values)
}

/// A request to write a secret.
struct SecretWrite {
    key: SecretKey,
    values: SecretValues,
    merge: bool,
    remove: Vec<String>,
    request: WriteRequest,
    now: Timestamp,
    /// uid of the secret, if it is new.
    uid: String,
}

impl SecretWrite {
    /// The same content writes nothing. The leader's plan decides from the stored secret which
    /// workloads start a rollout.
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<WriteResult>, ApiError> {
        let key = &self.key;
        let namespace = snapshot.namespaces.get(&key.namespace);
        let namespace = namespace.ok_or_else(|| missing(snapshot, key))?;
        if namespace.value.deleting {
            return Err(ApiError::conflict(
                format!("the namespace `{}` is being deleted", key.namespace),
                "wait until it is gone and create it again",
            ));
        }
        let stored = snapshot.secrets.get(key);
        self.request
            .precondition
            .check(stored.map(|stored| stored.revision))?;
        let before = match stored {
            Some(stored) => snapshot
                .sealing
                .open(snapshot, key, &stored.value)
                .map_err(sealing)?,
            None => SecretValues::default(),
        };
        let values = self.applied_to(&before);
        values
            .check()
            .map_err(|error| ApiError::invalid(error.to_string()))?;
        if values.0.is_empty() {
            return Err(ApiError::conflict(
                format!("the secret `{key}` would have no key"),
                "`katcall delete secret` deletes it",
            ));
        }
        self.check_used(snapshot, &before, &values)?;
        if let Some(stored) = stored
            && before == values
        {
            let metadata = stored_secret_metadata(key, stored);
            return Ok(WriteDecision::Done(WriteResult::of(
                "Secret",
                WriteOutcome::Unchanged,
                metadata,
            )));
        }
        route_claims::check_values(snapshot, key, &values)?;
        let others = snapshot.secrets.keys();
        let others = others.filter(|other| other.namespace == key.namespace);
        if stored.is_none() && others.count() >= NAMESPACE_LIMIT {
            return Err(ApiError::conflict(
                format!(
                    "the namespace `{}` has {NAMESPACE_LIMIT} secrets, which is as many as there can be",
                    key.namespace
                ),
                "delete those that are not needed",
            ));
        }
        let amounts = |count: u64, values: &SecretValues| {
            let bytes = values.0.values().map(Vec::len).sum::<usize>();
            Amounts {
                secrets: Some(count),
                secret_bytes: Some(Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))),
                ..Amounts::default()
            }
        };
        let present = u64::from(stored.is_some());
        check_growth(
            snapshot,
            &key.namespace,
            &quota_defaults(&self.request.caller),
            &amounts(present, &before),
            &amounts(1, &values),
        )
        .map_err(exceeded)?;
        self.write(snapshot, namespace.revision, stored, &values)
    }

    fn applied_to(&self, before: &SecretValues) -> SecretValues {
        let mut values = match self.merge {
            true => before.clone(),
            false => SecretValues::default(),
        };
        for key in &self.remove {
            values.0.remove(key);
        }
        let named = self.values.0.iter();
        values
            .0
            .extend(named.map(|(key, value)| (key.clone(), value.clone())));
        values
    }

    /// Refuses to remove a key that a workload names: its next instance could not start.
    fn check_used(
        &self,
        snapshot: &Snapshot,
        before: &SecretValues,
        after: &SecretValues,
    ) -> Result<(), ApiError> {
        let SecretKey { namespace, name } = &self.key;
        let gone = before.0.keys().filter(|key| !after.0.contains_key(*key));
        for gone in gone {
            let user = users_of_secret(snapshot, &self.key)
                .into_iter()
                .find(|user| {
                    let entry = snapshot.workloads.get(&WorkloadKey::new(namespace, user));
                    let spec = entry.and_then(|entry| entry.parsed.as_ref().ok());
                    let uses = spec.map(|parsed| secrets_of(&parsed.workload.spec));
                    let used = uses.as_ref().and_then(|uses| uses.get(name));
                    used.is_some_and(|used| used.keys.contains_key(gone))
                });
            if let Some(user) = user {
                return Err(ApiError::conflict(
                    format!(
                        "the key `{gone}` of secret `{}` is used by {user}",
                        self.key
                    ),
                    "apply that workload without it first",
                ));
            }
        }
        Ok(())
    }

    fn write(
        &self,
        snapshot: &Snapshot,
        namespace: i64,
        stored: Option<&Stored<Arc<SecretRecord>>>,
        values: &SecretValues,
    ) -> Result<WriteDecision<WriteResult>, ApiError> {
        let key = &self.key;
        let last = snapshot.sealing_keys.last_key_value();
        let mut operations = Vec::new();
        let (number, sealing_key, revision) = match last {
            Some((number, stored)) => (*number, stored.value.clone(), stored.revision),
            None => {
                let first = snapshot.sealing.new_key(1, self.now).map_err(sealing)?;
                operations.push(put(keys::sealing_key(1), &first)?);
                (1, first, 0)
            }
        };
        let present = stored.map(|stored| stored.value.as_ref());
        let record = SecretRecord {
            schema: 1,
            uid: present.map_or_else(|| self.uid.clone(), |present| present.uid.clone()),
            version: present.map_or(1, |present| present.version.saturating_add(1)),
            created: present.map_or(self.now, |present| present.created),
            updated: self.now,
            keys: Default::default(),
            key_id: number,
            sealed: String::new(),
        };
        let record = snapshot
            .sealing
            .seal((number, &sealing_key), key, values, record)
            .map_err(self::sealing)?;
        let before = stored.map_or(0, |stored| stored.revision);
        let (status, outcome) = match stored {
            None => (StatusCode::CREATED, WriteOutcome::Created),
            Some(_) => (StatusCode::OK, WriteOutcome::Updated),
        };
        let metadata = secret_metadata(key, &record, before);
        let mut written = WriteResult::of("Secret", outcome, metadata);
        if self.request.query.dry_run {
            return Ok(WriteDecision::Done(written));
        }
        written.status = status;
        let message = format!(
            "version {} was written by {}",
            record.version, self.request.caller
        );
        let reason = EventReason::SecretWritten;
        operations.extend(event(snapshot, self.now, reason, key, &record.uid, message));
        operations.push(put(keys::secret(&key.to_string()), &record)?);
        Ok(WriteDecision::Write {
            conditions: vec![
                Compare::ModRevision(keys::namespace(&key.namespace), namespace),
                Compare::ModRevision(keys::secret(&key.to_string()), before),
                // Nothing is sealed any more with a data key that has a successor.
                Compare::ModRevision(keys::sealing_key(number), revision),
                Compare::ModRevision(keys::sealing_key(number.saturating_add(1)), 0),
                recovery_key_unchanged(snapshot),
            ],
            operations,
            outcome: written,
        })
    }
}

fn sealing(error: SealingError) -> ApiError {
    ApiError::Unavailable(error.to_string())
}

fn event(
    snapshot: &Snapshot,
    now: Timestamp,
    reason: EventReason,
    key: &SecretKey,
    uid: &str,
    message: String,
) -> Vec<WriteOperation> {
    let object = ObjectReference {
        kind: ObjectKind::Secret,
        name: key.name.clone(),
        namespace: key.namespace.clone(),
        uid: uid.to_owned(),
    };
    EventLog::new(&snapshot.events, now).record(EventKind::Normal, reason, object, message)
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
    request: WriteRequest,
) -> Result<Response, ApiError> {
    let WriteRequest {
        caller,
        precondition,
        query,
    } = request;
    let now = api.now();
    let key = SecretKey::new(&namespace, &name);
    let decide = |snapshot: &Snapshot| {
        let stored = snapshot.secrets.get(&key);
        let stored = stored.ok_or_else(|| missing(snapshot, &key))?;
        precondition.check(Some(stored.revision))?;
        let users = users_of_secret(snapshot, &key);
        if !users.is_empty() {
            return Err(ApiError::conflict(
                format!("secret `{key}` is used by {}", users.join(", ")),
                "apply these workloads without it, or delete them, first",
            ));
        }
        let metadata = stored_secret_metadata(&key, stored);
        let outcome = WriteResult::of("Secret", WriteOutcome::Deleted, metadata);
        if query.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let name = keys::secret(&key.to_string());
        let message = format!("deleted by {caller}");
        let uid = &stored.value.uid;
        let mut operations = event(
            snapshot,
            now,
            EventReason::SecretDeleted,
            &key,
            uid,
            message,
        );
        operations.push(WriteOperation::Delete(name.clone()));
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(name, stored.revision)],
            operations,
            outcome,
        })
    };
    let (written, revision) = api.write(decide).await?;
    Ok(written.answer(revision))
}
