//! Errors of calls: one enum, one table of statuses, one body (RFC001-KAT 8.1).

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::server::open_streams::StreamLimitReached;
use kat_store::StoreError;
use kat_types::api::{ErrorBody, MACHINE_AWAY};

/// `Retry-After` in seconds for a caller with too many streams.
const STREAM_RETRY: u64 = 5;

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The request is not what the route takes.
    #[error("{message}")]
    Invalid {
        /// What is wrong, and what was expected.
        message: String,
        /// Errors of fields, in the form of `bundle`'s diagnostics.
        details: Vec<serde_json::Value>,
    },
    /// The caller sends no credentials, or wrong ones.
    #[error("{0}")]
    Unauthorized(String),
    /// The caller is known but has no right to do this.
    #[error("{message}")]
    Forbidden {
        /// What is not allowed.
        message: String,
        /// What the caller can try.
        hint: Option<String>,
    },
    /// The object does not exist.
    #[error("{kind} `{name}` does not exist")]
    NotFound {
        /// `namespace`, `workload`, `instance`, `volume`, `node`, `file`, `token` or `authority`.
        kind: &'static str,
        name: String,
    },
    /// The generation is not kept.
    #[error("no generation {generation}: kept are {kept}")]
    NoGeneration {
        generation: u64,
        /// Numbers of the kept generations.
        kept: String,
    },
    /// No route has this path.
    #[error("there is no route `{0}`; `/openapi.json` lists them all")]
    NoRoute(String),
    /// The path has no such method.
    #[error("`{method}` is not possible on `{path}`")]
    MethodNotAllowed {
        /// HTTP method.
        method: String,
        path: String,
    },
    /// The body did not arrive in time, or the answer was not ready in time.
    #[error("the request was not done within {0} s")]
    Timeout(u64),
    /// The request conflicts with the present state.
    #[error("{message}")]
    Conflict {
        /// What it conflicts with.
        message: String,
        /// What the caller can try.
        hint: Option<String>,
    },
    /// A watch can't continue from this resourceVersion.
    #[error("resourceVersion {0} is too old to continue from; list again")]
    Gone(i64),
    /// `If-Match` or `If-None-Match` does not hold.
    #[error("{0}")]
    PreconditionFailed(String),
    /// The body, or its unpacked content, is too large.
    #[error("{what} is larger than {limit} bytes")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Limit in bytes.
        limit: usize,
    },
    /// The unpacked content of the body is too large.
    #[error("{message}")]
    Oversize {
        /// What is too large.
        message: String,
        /// Places, in the form of `bundle`'s diagnostics.
        details: Vec<serde_json::Value>,
    },
    /// The body's content type is wrong.
    #[error("the content type is `{found}`, expected `{expected}`")]
    UnsupportedMediaType {
        found: String,
        expected: &'static str,
    },
    /// The caller exceeds its rate; the value is the time to wait in seconds.
    #[error("too many requests; try again in {0} s")]
    TooManyRequests(u64),
    /// Too many streams are open, of this caller or of all callers.
    #[error("{message}")]
    TooManyStreams {
        /// Whose streams, and how many.
        message: String,
        /// What the caller can try.
        hint: Option<String>,
    },
    /// This machine does not lead.
    #[error("this machine does not lead the cluster")]
    NotLeader {
        /// `host:port` of the leader's API, if it is known.
        leader: Option<String>,
    },
    /// No machine leads, as far as this machine can see, and it holds etcd with others.
    #[error("{}", no_leader(*members))]
    NoLeader {
        /// Number of machines that hold etcd.
        members: usize,
    },
    /// The call can't be answered now.
    #[error("{0}")]
    Unavailable(String),
    /// The store did not report the outcome of a write.
    #[error("it is not known whether the change was stored: {0}")]
    UnknownOutcome(String),
    /// The machine that the call concerns can't be reached now.
    #[error("{0}")]
    MachineAway(String),
    /// A bug of KAT.
    #[error("{0}")]
    Internal(String),
}

fn no_leader(members: usize) -> String {
    let why = match members {
        1 => "its store is on one machine, and etcd does not answer there".to_owned(),
        members => format!(
            "more than half of the {members} machines that hold its store must reach each other"
        ),
    };
    format!(
        "no machine leads the cluster: {why}; until then everything runs on and nothing can be changed"
    )
}

impl ApiError {
    /// An [`ApiError::Invalid`] without details.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
            details: Vec::new(),
        }
    }

    /// An [`ApiError::NotFound`].
    pub fn not_found(kind: &'static str, name: &str) -> Self {
        Self::NotFound {
            kind,
            name: name.to_owned(),
        }
    }

    /// An [`ApiError::Conflict`] with a hint.
    pub fn conflict(message: impl Into<String>, hint: &str) -> Self {
        Self::Conflict {
            message: message.into(),
            hint: Some(hint.to_owned()),
        }
    }

    /// HTTP status, and the error's word for programs.
    pub fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Invalid { .. } => (StatusCode::BAD_REQUEST, "Invalid"),
            Self::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::NotFound { .. } | Self::NoGeneration { .. } | Self::NoRoute(_) => {
                (StatusCode::NOT_FOUND, "NotFound")
            }
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
            Self::Timeout(_) => (StatusCode::REQUEST_TIMEOUT, "Timeout"),
            Self::Conflict { .. } => (StatusCode::CONFLICT, "Conflict"),
            Self::Gone(_) => (StatusCode::GONE, "Gone"),
            Self::PreconditionFailed(_) => (StatusCode::PRECONDITION_FAILED, "PreconditionFailed"),
            Self::TooLarge { .. } | Self::Oversize { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "TooLarge")
            }
            Self::UnsupportedMediaType { .. } => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType")
            }
            Self::TooManyRequests(_) | Self::TooManyStreams { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")
            }
            Self::NotLeader { .. } | Self::NoLeader { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "NotLeader")
            }
            Self::Unavailable(_) | Self::UnknownOutcome(_) => {
                (StatusCode::SERVICE_UNAVAILABLE, "Unavailable")
            }
            Self::MachineAway(_) => (StatusCode::BAD_GATEWAY, MACHINE_AWAY),
            Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "Internal"),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Forbidden { hint, .. }
            | Self::Conflict { hint, .. }
            | Self::TooManyStreams { hint, .. } => hint.clone(),
            Self::Unauthorized(_) => Some(
                "send `Authorization: Bearer kat1.<id>.<secret>` or an admin certificate".into(),
            ),
            Self::NotLeader { leader } => leader
                .as_ref()
                .map(|leader| format!("the leader answers on {leader}")),
            Self::NoLeader { .. } => Some(
                "if too many of them are gone for good: `sudo kat-agent recover` on one that is left".into(),
            ),
            Self::UnknownOutcome(_) => Some("the same request can safely be sent again".into()),
            Self::PreconditionFailed(_) => Some("read it again and decide anew".into()),
            _ => None,
        }
    }

    /// The response's body.
    pub fn body(&self) -> ErrorBody {
        ErrorBody {
            error: self.status().1.to_owned(),
            message: self.to_string(),
            hint: self.hint(),
            details: match self {
                Self::Invalid { details, .. } | Self::Oversize { details, .. } => details.clone(),
                _ => Vec::new(),
            },
        }
    }
}

impl From<StreamLimitReached> for ApiError {
    fn from(full: StreamLimitReached) -> Self {
        Self::TooManyStreams {
            message: full.to_string(),
            hint: Some(full.hint().to_owned()),
        }
    }
}

impl From<StoreError> for ApiError {
    /// Converts errors of writes: without an answer the outcome is unknown.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::UnknownOutcome(error.to_string()),
            StoreError::Compacted(_) | StoreError::Denied(_) | StoreError::Full(_) => {
                Self::Unavailable(error.to_string())
            }
            StoreError::Invalid(_) => Self::Internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _) = self.status();
        let mut response = (status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match &self {
            Self::TooManyRequests(seconds) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(*seconds));
            }
            Self::TooManyStreams { .. } => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(STREAM_RETRY));
            }
            Self::NotLeader { .. }
            | Self::NoLeader { .. }
            | Self::Unavailable(_)
            | Self::UnknownOutcome(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(1u64));
            }
            Self::Unauthorized(_) => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
