//! Credentials for registries: list, write, delete. No response contains a password.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;

use crate::{
    access::{
        authentication::Caller,
        authorization::{CallScope, RouteAccess, check},
    },
    apply::{
        image_pins::{lookup_error, registry_permit},
        put,
    },
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JSON, NoQuery, PathParameters, WriteRequest, parse_json},
    handlers::workloads::workload_objects::check_namespace_exists,
    server::limits::{check_content_type, read_body},
};
use kat_bundle as bundle;
use kat_pki::delivery::SealingError;
use kat_plan::{EventLog, Snapshot, recovery_key_unchanged};
use kat_registry::{LoginAnswer, RegistryError};
use kat_types::{
    api::{
        EventKind, List, ListMetadata, LoginCheck, ObjectKind, ObjectReference,
        RegistryLoginRequest, RegistryLoginResult, RegistryLoginView, WriteOutcome,
    },
    reason::EventReason,
    registry::{Credentials, LoginPlace, LoginRecord},
    store::{
        keys,
        revisions::Stored,
        transaction::{Compare, WriteOperation},
    },
};

/// Maximum number of registries of one namespace.
const NAMESPACE_LIMIT: usize = 100;
/// Maximum bytes of a name, and of a password: tokens of clouds have some thousands.
const USERNAME_LIMIT: usize = 512;
const PASSWORD_LIMIT: usize = 16 << 10;
/// Maximum bytes of a request's body.
const MAX_BODY: usize = 64 << 10;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(namespace): PathParameters<String>,
) -> Result<Response, ApiError> {
    check_namespace_exists(&api, &namespace)?;
    let snapshot = api.snapshot()?;
    let target = CallScope {
        namespace: Some(&namespace),
        node: None,
    };
    let shows = check(RouteAccess::ReadFiles, &caller, target).is_ok();
    let logins = snapshot.logins.get(&namespace).into_iter().flatten();
    let items = logins.map(|(place, stored)| RegistryLoginView {
        username: shows.then(|| stored.value.username.clone()),
        ..view(&namespace, place, stored)
    });
    let list = List {
        items: items.collect(),
        metadata: ListMetadata {
            resource_version: snapshot.revision.to_string(),
        },
    };
    Ok(Json(list).into_response())
}

/// The view of a login, without its user name.
fn view(namespace: &str, place: &LoginPlace, stored: &Stored<LoginRecord>) -> RegistryLoginView {
    RegistryLoginView {
        registry: place.to_string(),
        namespace: namespace.to_owned(),
        username: None,
        version: stored.value.version,
        updated: stored.value.updated.into(),
        resource_version: stored.revision.to_string(),
    }
}

pub(crate) async fn write(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, registry)): PathParameters<(String, String)>,
    request: WriteRequest<NoQuery>,
    body: Request,
) -> Result<Response, ApiError> {
    let place = parse_login_place(&registry)?;
    let asked = read_request(&api, body).await?;
    let credentials = checked(&asked)?;
    let caller = &request.caller;
    // No registry is queried for a namespace that does not exist.
    check_namespace_exists(&api, &namespace)?;
    let check = match asked.no_check {
        true => LoginCheck::NotChecked,
        false => ask(&api, &place, &credentials, &namespace, caller).await?,
    };
    let change = LoginWrite {
        namespace: &namespace,
        place: &place,
        credentials,
        request: &request,
        now: api.now(),
        uid: (api.config.new_uid)(),
    };
    let ((outcome, mut login), revision) = api.write(|snapshot| change.decide(snapshot)).await?;
    if let Some(revision) = revision {
        login.resource_version = revision.to_string();
        tracing::info!(%place, namespace, %caller, "credentials for a registry were written");
    }
    let status = match outcome {
        WriteOutcome::Created => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    let result = RegistryLoginResult {
        outcome,
        check,
        login,
    };
    Ok((status, Json(result)).into_response())
}

/// Parses the registry in the path.
fn parse_login_place(registry: &str) -> Result<LoginPlace, ApiError> {
    match bundle::check_registry(registry) {
        Ok(()) => Ok(LoginPlace::parse(registry)),
        Err(_) => Err(ApiError::invalid(format!(
            "found the registry `{}`, expected a host such as `registry.example`, `registry.lab:5000` or `docker.io`, or a path of one such as `ghcr.io/organisation`, without `https://`",
            registry.escape_debug()
        ))),
    }
}

/// An error in a body only names its position: the parser's message would quote the body.
async fn read_request(api: &Api, request: Request) -> Result<RegistryLoginRequest, ApiError> {
    let (parts, body) = request.into_parts();
    check_content_type(&parts.headers, JSON)?;
    let timeout = api.config.limits.body_timeout;
    let body = read_body(&parts.headers, body, MAX_BODY, timeout).await?;
    parse_json(&body).map_err(|error| {
        let (line, column) = (error.inner().line(), error.inner().column());
        ApiError::invalid(format!(
            "the body is no name and password at line {line} column {column}; expected {{\"username\": NAME, \"password\": PASSWORD}}"
        ))
    })
}

fn checked(request: &RegistryLoginRequest) -> Result<Credentials, ApiError> {
    let RegistryLoginRequest {
        username, password, ..
    } = request;
    let both = [
        ("username", username, USERNAME_LIMIT),
        ("password", password, PASSWORD_LIMIT),
    ];
    for (field, text, most) in both {
        let wrong = match text {
            text if text.is_empty() => "it is empty".to_owned(),
            text if text.len() > most => format!("it has more than {most} bytes"),
            text if text.chars().any(char::is_control) => "it has a control character".to_owned(),
            text if field == "username" && text.contains(':') => "it has a `:`".to_owned(),
            _ => continue,
        };
        return Err(ApiError::invalid(format!("{field}: {wrong}")));
    }
    Ok(Credentials {
        username: username.clone(),
        password: password.clone(),
    })
}

/// Checks the credentials with the registry before anything is stored.
async fn ask(
    api: &Api,
    place: &LoginPlace,
    credentials: &Credentials,
    namespace: &str,
    caller: &Caller,
) -> Result<LoginCheck, ApiError> {
    const UNCHECKED: &str = "`--no-check` keeps them without asking; `katcall registry set` says how a registry is reached";
    let Some(source) = api.config.images.as_ref() else {
        return Ok(LoginCheck::NotChecked);
    };
    let _turn = registry_permit(namespace).await;
    let snapshot = api.snapshot()?;
    let settings = snapshot.registries.as_ref();
    let settings = settings.map_or_else(Default::default, |stored| stored.value.clone());
    // A registry on the leader's loopback address is queried only if an administrator has
    // configured it.
    if place.is_local() && !settings.registries.contains_key(place.host()) {
        return Err(ApiError::conflict(
            format!("{} is the machine itself, and is not asked", place.host()),
            UNCHECKED,
        ));
    }
    match source.check_login(place, &settings, credentials).await {
        Ok(LoginAnswer::Accepted) => Ok(LoginCheck::Accepted),
        Ok(LoginAnswer::NotAsked) => Ok(LoginCheck::NotAsked),
        Err(RegistryError::Unauthorized(host)) => Err(ApiError::conflict(
            format!(
                "{host} does not take this name and password; nothing was changed for namespace {namespace}"
            ),
            "some registries want a token of their own in the place of the account's password",
        )),
        Err(error) => Err(ApiError::conflict(
            format!(
                "the leader could not ask the registry, and nothing was changed: {}",
                lookup_error(&error, caller)
            ),
            UNCHECKED,
        )),
    }
}

/// A request to write credentials.
struct LoginWrite<'a> {
    namespace: &'a str,
    place: &'a LoginPlace,
    credentials: Credentials,
    request: &'a WriteRequest<NoQuery>,
    now: Timestamp,
    /// uid of the record, if it is new.
    uid: String,
}

type LoginWriteResult = (WriteOutcome, RegistryLoginView);

impl LoginWrite<'_> {
    /// The same credentials again write nothing.
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<LoginWriteResult>, ApiError> {
        let (namespace, place) = (self.namespace, self.place);
        let entry = snapshot.namespaces.get(namespace);
        let entry = entry.ok_or_else(|| ApiError::not_found("namespace", namespace))?;
        if entry.value.deleting {
            return Err(ApiError::conflict(
                format!("the namespace `{namespace}` is being deleted"),
                "wait until it is gone and create it again",
            ));
        }
        let logins = snapshot.logins.get(namespace);
        let stored = logins.and_then(|logins| logins.get(place));
        self.request
            .precondition
            .check(stored.map(|stored| stored.revision))?;
        let login = (namespace, place);
        // A record that can't be opened is replaced.
        let same = stored.is_some_and(|stored| {
            let opened = snapshot.sealing.open_login(snapshot, login, &stored.value);
            opened.is_ok_and(|opened| opened == self.credentials)
        });
        if let Some(stored) = stored.filter(|_| same) {
            return Ok(WriteDecision::Done((
                WriteOutcome::Unchanged,
                self.shown(stored),
            )));
        }
        if stored.is_none() && logins.is_some_and(|logins| logins.len() >= NAMESPACE_LIMIT) {
            return Err(ApiError::conflict(
                format!(
                    "the namespace `{namespace}` has credentials for {NAMESPACE_LIMIT} registries, which is as many as there can be"
                ),
                "`katcall registry logout` takes those away that are not needed",
            ));
        }
        let last = snapshot.sealing_keys.last_key_value();
        let mut operations = Vec::new();
        let (number, key, revision) = match last {
            Some((number, stored)) => (*number, stored.value.clone(), stored.revision),
            None => {
                let first = snapshot.sealing.new_key(1, self.now).map_err(unsealed)?;
                operations.push(put(keys::sealing_key(1), &first)?);
                (1, first, 0)
            }
        };
        let before = stored.map(|stored| &stored.value);
        let record = LoginRecord {
            schema: 1,
            uid: before.map_or_else(|| self.uid.clone(), |before| before.uid.clone()),
            version: before.map_or(1, |before| before.version.saturating_add(1)),
            created: before.map_or(self.now, |before| before.created),
            updated: self.now,
            username: String::new(),
            key_id: number,
            sealed: String::new(),
        };
        let record = snapshot
            .sealing
            .seal_login((number, &key), login, &self.credentials, record)
            .map_err(unsealed)?;
        let caller = &self.request.caller;
        let message = format!("credentials for it were written by {caller}");
        operations.extend(event(
            snapshot,
            self.now,
            EventReason::RegistryLogin,
            login,
            message,
        ));
        let name = keys::login(namespace, &place.to_string());
        operations.push(put(name.clone(), &record)?);
        let value = record;
        let shown = self.shown(&Stored { revision: 0, value });
        let outcome = match stored {
            None => WriteOutcome::Created,
            Some(_) => WriteOutcome::Updated,
        };
        Ok(WriteDecision::Write {
            conditions: vec![
                Compare::ModRevision(keys::namespace(namespace), entry.revision),
                Compare::ModRevision(name, stored.map_or(0, |stored| stored.revision)),
                // Nothing is sealed any more with a key that has a successor.
                Compare::ModRevision(keys::sealing_key(number), revision),
                Compare::ModRevision(keys::sealing_key(number.saturating_add(1)), 0),
                recovery_key_unchanged(snapshot),
            ],
            operations,
            outcome: (outcome, shown),
        })
    }

    fn shown(&self, stored: &Stored<LoginRecord>) -> RegistryLoginView {
        RegistryLoginView {
            username: Some(stored.value.username.clone()),
            ..view(self.namespace, self.place, stored)
        }
    }
}

fn unsealed(error: SealingError) -> ApiError {
    ApiError::Unavailable(error.to_string())
}

fn event(
    snapshot: &Snapshot,
    now: Timestamp,
    reason: EventReason,
    (namespace, place): (&str, &LoginPlace),
    message: String,
) -> Vec<WriteOperation> {
    let object = ObjectReference {
        kind: ObjectKind::Registry,
        name: place.to_string(),
        namespace: namespace.to_owned(),
        ..ObjectReference::default()
    };
    EventLog::new(&snapshot.events, now).record(EventKind::Normal, reason, object, message)
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, registry)): PathParameters<(String, String)>,
    request: WriteRequest<NoQuery>,
) -> Result<Response, ApiError> {
    let WriteRequest {
        caller,
        precondition,
        ..
    } = request;
    let now = api.now();
    let place = parse_login_place(&registry)?;
    check_namespace_exists(&api, &namespace)?;
    let decide = |snapshot: &Snapshot| {
        let logins = snapshot.logins.get(&namespace);
        let stored = logins.and_then(|logins| logins.get(&place));
        let missing = || ApiError::not_found("login", &place.to_string());
        let stored = stored.ok_or_else(missing)?;
        precondition.check(Some(stored.revision))?;
        let name = keys::login(&namespace, &place.to_string());
        let message = format!("credentials for it were taken away by {caller}");
        let login = (namespace.as_str(), &place);
        let mut operations = event(snapshot, now, EventReason::RegistryLogout, login, message);
        operations.push(WriteOperation::Delete(name.clone()));
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(name, stored.revision)],
            operations,
            outcome: (),
        })
    };
    api.write(decide).await?;
    tracing::info!(%place, namespace, %caller, "credentials for a registry were taken away");
    Ok(StatusCode::NO_CONTENT.into_response())
}
