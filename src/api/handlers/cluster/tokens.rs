//! Tokens: list, create, delete. The store keeps only a hash; the secret is shown once.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use jiff::{SignedDuration, Timestamp};

use crate::{
    access::authentication::Caller,
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{JsonBody, PathParameters, QueryParameters},
    view::token_view,
    watch::{ListQuery, answer},
};
use kat_pki::token::{Token, TokenError};
use kat_plan::{Snapshot, cluster_endpoints, endpoint_for_joining};
use kat_types::{
    api::{Connection, Scope, TokenRequest},
    resource::name::check_namespace,
    store::{
        keys,
        records::TokenRecord,
        transaction::{Compare, WriteOperation},
    },
};

/// Maximum number of tokens of a cluster.
const MAX_TOKENS: usize = 1000;
/// Maximum characters of a token's name.
const MAX_NAME: usize = 64;
/// Longest time in seconds for which machines may join without a token: a day.
const MAX_TRUST: u64 = 24 * 3600;
/// Default lifetime in seconds of a token for a program: 90 days. Such a token is stored in the
/// settings of some other system, and is forgotten there.
const PROGRAM_TTL: u64 = 90 * 24 * 3600;
/// Longest lifetime in seconds of a token that expires: ten years.
const MAX_TTL: u64 = 10 * 366 * 24 * 3600;

/// A new token with its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    /// Its id, which is not secret.
    pub id: String,
    /// The whole token, see [`Token::reveal`].
    pub token: String,
    /// The stored record, which contains a hash of the secret.
    pub record: TokenRecord,
}

/// Generates a token.
///
/// # Errors
/// [`TokenError::Randomness`].
pub fn new_token(
    scope: Scope,
    name: &str,
    now: Timestamp,
    expires: Option<Timestamp>,
) -> Result<NewToken, TokenError> {
    let token = Token::generate(None)?;
    Ok(record(&token, scope, name, now, expires))
}

fn record(
    token: &Token,
    scope: Scope,
    name: &str,
    now: Timestamp,
    expires: Option<Timestamp>,
) -> NewToken {
    NewToken {
        id: token.id().to_owned(),
        token: token.reveal(),
        record: TokenRecord {
            schema: 1,
            hash: token.hash(),
            scope,
            name: name.to_owned(),
            created: now,
            expires,
            uses: None,
            insecure_trust_network: false,
        },
    }
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<ListQuery>,
) -> Result<Response, ApiError> {
    answer(&api, &caller, &query, Arc::new(|view| view.tokens())).await
}

pub(crate) async fn create(
    State(api): State<Arc<Api>>,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<Response, ApiError> {
    check_name(&request.name)?;
    let now = api.now();
    let expires = expiry(&request, now)?;
    check_use(&request)?;
    let joining = request.scope == Scope::Join;
    let authority = joining.then(|| api.joining()).transpose()?;
    let authority = authority.map(|joining| joining.authorities().fingerprint());
    let token = Token::generate(authority.as_deref()).and_then(|token| match &request.scope {
        Scope::Deploy { namespace } => token.for_namespace(namespace),
        Scope::Admin | Scope::Read | Scope::Join => Ok(token),
    });
    let token = token.map_err(|error| ApiError::Internal(error.to_string()))?;
    let mut new = record(&token, request.scope, &request.name, now, expires);
    new.record.uses = request.uses;
    new.record.insecure_trust_network = request.insecure_trust_network;
    api.write(|snapshot| addition(snapshot, &new)).await?;
    let mut view = token_view(&new.id, &new.record);
    if !joining {
        view.connection = connection(&api, &new)?;
    }
    // With `insecure_trust_network` nobody needs the secret.
    view.token = Some(new.token).filter(|_| !request.insecure_trust_network);
    if joining {
        view.leader_api = endpoint_for_joining(&*api.snapshot()?);
    }
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

fn check_name(name: &str) -> Result<(), ApiError> {
    if name.chars().count() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(ApiError::invalid(format!(
            "name: at most {MAX_NAME} characters without control characters are allowed"
        )));
    }
    Ok(())
}

/// When the token expires; `None` for one that does not.
fn expiry(request: &TokenRequest, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    let life = request.ttl_seconds.or(match request.scope {
        Scope::Read | Scope::Deploy { .. } => Some(PROGRAM_TTL),
        Scope::Admin | Scope::Join => None,
    });
    match life {
        None => Ok(None),
        Some(seconds @ 1..=MAX_TTL) => {
            let life = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            let expires = now.checked_add(life);
            expires
                .map(Some)
                .map_err(|error| ApiError::Internal(error.to_string()))
        }
        Some(seconds) => Err(ApiError::invalid(format!(
            "ttlSeconds is {seconds}, expected 1 to {MAX_TTL}, or none"
        ))),
    }
}

/// Checks what the token can be used for, and how often.
fn check_use(request: &TokenRequest) -> Result<(), ApiError> {
    let joining = request.scope == Scope::Join;
    match request.uses {
        Some(_) if !joining => {
            return Err(ApiError::invalid(
                "uses: only a token for joining is used up",
            ));
        }
        Some(0) => return Err(ApiError::invalid("uses is 0, expected at least 1, or none")),
        _ => {}
    }
    if request.insecure_trust_network {
        if !joining {
            return Err(ApiError::invalid(
                "insecureTrustNetwork: only a token for joining can do without its secret",
            ));
        }
        if request
            .ttl_seconds
            .is_none_or(|seconds| seconds > MAX_TRUST)
        {
            return Err(ApiError::invalid(format!(
                "insecureTrustNetwork: ttlSeconds must be given, and be {MAX_TRUST} at most"
            )));
        }
        if request.uses.is_none() {
            return Err(ApiError::invalid(
                "insecureTrustNetwork: uses must be given: how many machines may join",
            ));
        }
    }
    if let Scope::Deploy { namespace } = &request.scope
        && check_namespace(namespace).is_err()
    {
        return Err(ApiError::not_found("namespace", namespace));
    }
    Ok(())
}

/// The write of a new token.
fn addition(snapshot: &Snapshot, new: &NewToken) -> Result<WriteDecision<()>, ApiError> {
    if let Scope::Deploy { namespace } = &new.record.scope
        && !snapshot.namespaces.contains_key(namespace)
    {
        return Err(ApiError::not_found("namespace", namespace));
    }
    if snapshot.tokens.len() >= MAX_TOKENS {
        return Err(ApiError::conflict(
            format!("there are {MAX_TOKENS} tokens already"),
            "delete some that are not needed",
        ));
    }
    let key = keys::token(&new.id);
    Ok(WriteDecision::Write {
        conditions: vec![Compare::ModRevision(key.clone(), 0)],
        operations: vec![put(key, &new.record)?],
        outcome: (),
    })
}

/// How a program that has the token reaches the cluster; `None` without the cluster's certificates.
fn connection(api: &Api, new: &NewToken) -> Result<Option<Connection>, ApiError> {
    let Some(authorities) = api.authorities() else {
        return Ok(None);
    };
    let snapshot = api.snapshot()?;
    let endpoints = cluster_endpoints(&snapshot);
    Ok(Some(Connection {
        cluster: snapshot.cluster.metadata.name.clone(),
        cluster_uid: snapshot.cluster_uid.clone(),
        endpoints: endpoints.api(),
        api_name_required: endpoints.is_api_named(),
        ca: authorities.cluster_certificates(),
        token: new.token.clone(),
        namespace: match &new.record.scope {
            Scope::Deploy { namespace } => Some(namespace.clone()),
            Scope::Admin | Scope::Read | Scope::Join => None,
        },
    }))
}

pub(crate) async fn delete(
    State(api): State<Arc<Api>>,
    PathParameters(id): PathParameters<String>,
) -> Result<StatusCode, ApiError> {
    api.write(|snapshot| {
        let stored = snapshot.tokens.get(&id);
        let stored = stored.ok_or_else(|| ApiError::not_found("token", &id))?;
        let key = keys::token(&id);
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(key.clone(), stored.revision)],
            operations: vec![WriteOperation::Delete(key)],
            outcome: (),
        })
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
