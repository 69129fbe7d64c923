//! Classification of etcd's errors.

use std::{error::Error as _, io};

use etcd_client::{Error as ClientError, ResponseHeader};

use crate::StoreError;

/// How a call may proceed after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryVerdict {
    /// Users or roles changed during the call, and etcd refused it.
    AuthChanged,
    /// The connection was never made, or the member refused the call for lack of a raft leader:
    /// nothing was proposed.
    NeverSent,
    /// etcd could not serve the call, and its outcome is unknown.
    Unavailable,
    /// A retry will have the same result.
    Final,
}

/// The gRPC status codes that are distinguished here.
mod code {
    pub(super) const INVALID_ARGUMENT: i32 = 3;
    pub(super) const NOT_FOUND: i32 = 5;
    pub(super) const ALREADY_EXISTS: i32 = 6;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const FAILED_PRECONDITION: i32 = 9;
    pub(super) const OUT_OF_RANGE: i32 = 11;
    pub(super) const UNIMPLEMENTED: i32 = 12;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// Classifies an error.
pub(super) fn verdict(failure: &ClientError) -> RetryVerdict {
    match failure {
        ClientError::GRpcStatus(status) => {
            // The roles may have changed since the call's user was looked up. etcd refuses the call
            // before it does anything, so it may be retried, also if it writes (etcd's
            // ErrAuthOldRevision).
            if status.message().contains("revision of auth store is old") {
                return RetryVerdict::AuthChanged;
            }
            if is_full(status.message()) {
                return RetryVerdict::Final;
            }
            if never_connected(status.source()) || status.message() == "etcdserver: no leader" {
                return RetryVerdict::NeverSent;
            }
            match status.code() as i32 {
                code::INVALID_ARGUMENT
                | code::NOT_FOUND
                | code::ALREADY_EXISTS
                | code::PERMISSION_DENIED
                | code::FAILED_PRECONDITION
                | code::OUT_OF_RANGE
                | code::UNIMPLEMENTED
                | code::UNAUTHENTICATED => RetryVerdict::Final,
                _ => RetryVerdict::Unavailable,
            }
        }
        ClientError::TransportError(transport) => {
            if never_connected(transport.source()) {
                RetryVerdict::NeverSent
            } else {
                RetryVerdict::Unavailable
            }
        }
        ClientError::InvalidArgs(_)
        | ClientError::InvalidUri(_)
        | ClientError::Utf8Error(_)
        | ClientError::InvalidMetadataValue(_)
        | ClientError::EndpointsNotManaged => RetryVerdict::Final,
        _ => RetryVerdict::Unavailable,
    }
}

/// Whether the cause is a connection that could not be made. A refused connection has its own kind;
/// one that timed out is only known by the connector's message, because a lost connection has the
/// same kind.
fn never_connected(mut cause: Option<&(dyn std::error::Error + 'static)>) -> bool {
    while let Some(error) = cause {
        if error.to_string().starts_with("tcp connect error") {
            return true;
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
            );
        }
        cause = error.source();
    }
    false
}

/// The error for callers; `revision` is the requested one, for [`StoreError::Compacted`].
pub(super) fn store_error(failure: &ClientError, revision: i64) -> StoreError {
    let ClientError::GRpcStatus(status) = failure else {
        return match verdict(failure) {
            RetryVerdict::Final => StoreError::Invalid(failure.to_string()),
            _ => StoreError::Unavailable(failure.to_string()),
        };
    };
    let message = with_causes(status.message(), status.source());
    if is_full(&message) {
        return StoreError::Full(message);
    }
    if message.contains("has been compacted") {
        return StoreError::Compacted(revision);
    }
    // Without a specific code, a certificate without a usable common name is refused with the first
    // two messages, and a user without the right to snapshots with the last.
    let refusals = [
        "user name is empty",
        "user name not found",
        "permission denied",
    ];
    if refusals.iter().any(|refusal| message.contains(refusal)) {
        return StoreError::Denied(message);
    }
    match verdict(failure) {
        RetryVerdict::Final => match status.code() as i32 {
            code::PERMISSION_DENIED | code::UNAUTHENTICATED => StoreError::Denied(message),
            _ => StoreError::Invalid(message),
        },
        _ => StoreError::Unavailable(message),
    }
}

/// Whether etcd's file has reached its quota: the alarm NOSPACE is raised, and nothing was written.
fn is_full(message: &str) -> bool {
    message.contains("database space exceeded")
}

/// A message with its causes, since "transport error" alone does not say what happened.
fn with_causes(message: &str, mut cause: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut text = message.to_owned();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

/// Whether the lease does not exist.
pub(super) fn is_lease_gone(failure: &ClientError) -> bool {
    message(failure).contains("requested lease not found")
}

/// Whether the answer was larger than this client accepts.
pub(super) fn is_too_large(failure: &ClientError) -> bool {
    message(failure).contains("message length too large")
}

/// The message of a status; empty for other errors.
pub(super) fn message(failure: &ClientError) -> &str {
    match failure {
        ClientError::GRpcStatus(status) => status.message(),
        _ => "",
    }
}

/// The revision of an answer.
pub(super) fn revision(header: Option<&ResponseHeader>) -> Result<i64, StoreError> {
    header
        .map(ResponseHeader::revision)
        .ok_or_else(|| StoreError::Unavailable("an answer of etcd has no header".into()))
}
