//! Errors of calls, and the exit code of each (docs/internals/api.md).

use std::time::Duration;

use kat_types::api::{ErrorBody, MACHINE_AWAY};

/// An error response of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRefusal {
    /// The HTTP status.
    pub status: u16,
    /// The response's body.
    pub body: ErrorBody,
}

impl ApiRefusal {
    /// Whether the server has no such route, or the route no such method or parameter: it is of an
    /// earlier version. Every version says so in these words.
    pub fn is_unknown_request(&self) -> bool {
        let message = self.body.message.as_str();
        match self.status {
            404 => message.starts_with("there is no route `"),
            405 => self.body.error == "MethodNotAllowed",
            400 => ["the body: ", "the query: "].iter().any(|part| {
                let rest = message.strip_prefix(part);
                rest.is_some_and(|rest| rest.contains("unknown field `"))
            }),
            _ => false,
        }
    }

    /// The last line of a stream that the server ended early.
    pub fn of_stream(body: ErrorBody) -> Self {
        let status = match body.error.as_str() {
            "Gone" => 410,
            "Unauthorized" => 401,
            MACHINE_AWAY => 502,
            _ => 503,
        };
        Self { status, body }
    }
}

/// What helps where the caller's token or certificate is not accepted.
const NO_TOKEN: &str = "an administrator makes another token with `katcall token create`; `katcall context list` shows which connection is used";

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection itself can't be used; `reason` says what is wrong.
    #[error("the connection cannot be used: {reason}")]
    Configuration {
        /// What is wrong with it.
        reason: String,
    },
    /// A name can't be part of a route.
    #[error("`{name}` cannot be the name of {what}")]
    Name {
        /// The kind of name, such as `a workload`.
        what: &'static str,
        /// The given name.
        name: String,
    },
    /// No endpoint could be reached.
    #[error("the cluster cannot be reached: {}", attempts_text(.attempts))]
    Unreachable {
        /// Endpoint and reason.
        attempts: Vec<(String, String)>,
    },
    /// The connection broke, and it is not known whether the call was carried out.
    #[error("the connection to {endpoint} broke off: {reason}")]
    Interrupted {
        /// The endpoint.
        endpoint: String,
        /// The error of the connection.
        reason: String,
    },
    /// No response in time.
    #[error("{endpoint} gave no answer within {} s", .after.as_secs())]
    NoAnswer {
        /// The endpoint.
        endpoint: String,
        /// Time limit that has passed.
        after: Duration,
    },
    /// The server refused the call.
    #[error("{}", refusal_text(.0))]
    Refused(Box<ApiRefusal>),
    /// This version can't parse the response.
    #[error("{endpoint} answered what this version does not understand: {reason}")]
    Answer {
        /// The endpoint.
        endpoint: String,
        /// What is wrong with the response.
        reason: String,
    },
}

impl ClientError {
    /// The exit code of a program that ends with this error: 1 refused or failed, 2 wrong usage,
    /// 3 not found, 4 not reachable.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Name { .. } => 2,
            Self::Unreachable { .. }
            | Self::Interrupted { .. }
            | Self::NoAnswer { .. }
            | Self::Configuration { .. } => 4,
            Self::Refused(refusal) => match refusal.status {
                404 if !refusal.is_unknown_request() => 3,
                429 | 502 | 503 | 504 => 4,
                _ => 1,
            },
            Self::Answer { .. } => 1,
        }
    }

    /// The server's hint, or a general one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) if refusal.is_unknown_request() => Some(
                "upgrade kat on the machines that hold the store, or use the katcall of their version; `katcall version` shows both".to_owned(),
            ),
            // The server's hint is about headers, which katcall writes itself.
            Self::Refused(refusal) if refusal.status == 401 => Some(NO_TOKEN.to_owned()),
            Self::Refused(refusal) => refusal.body.hint.clone(),
            Self::Unreachable { attempts } => {
                if attempts.iter().any(|(_, reason)| reason == PERMISSION) {
                    return Some(
                        "members of the group `kat` may use the socket; try `sudo katcall ...`"
                            .to_owned(),
                    );
                }
                if self.is_foreign() {
                    return Some(
                        "if the cluster was made anew, take its /etc/kat/admin.conf again"
                            .to_owned(),
                    );
                }
                Some("on the machine, `systemctl status kat-agent` says whether it runs".to_owned())
            }
            Self::Interrupted { .. } => Some(
                "it is not known whether the call was carried out; look before you repeat it"
                    .to_owned(),
            ),
            Self::Answer { .. } => Some(
                "`katcall version` shows whether the cluster runs another version of KAT".to_owned(),
            ),
            Self::Configuration { .. } | Self::Name { .. } | Self::NoAnswer { .. } => None,
        }
    }

    /// Whether every endpoint answered with a certificate that is not accepted.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Unreachable { attempts } if attempts
            .iter()
            .all(|(_, reason)| reason.contains("certificate")))
    }

    /// The server's word for the error, such as `NotFound` or `Gone`; empty without a response.
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(refusal) => &refusal.body.error,
            _ => "",
        }
    }

    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.status),
            _ => None,
        }
    }

    /// Whether the item does not exist, or an earlier version does not know the route.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the server does not know the request at all, as one of an earlier version.
    pub fn is_unknown_request(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.is_unknown_request())
    }

    /// Whether the machine that the call concerns can't be reached, while the cluster answers.
    pub fn is_machine_away(&self) -> bool {
        self.code() == MACHINE_AWAY
    }

    /// Whether a later retry may help, since the call itself is not the reason.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Interrupted { .. }
            | Self::NoAnswer { .. }
            | Self::Answer { .. } => true,
            Self::Refused(refusal) => {
                refusal.status == 410 || refusal.status == 429 || refusal.status >= 500
            }
            Self::Configuration { .. } | Self::Name { .. } => false,
        }
    }
}

/// The reason in [`ClientError::Unreachable`] for a socket that this user may not open.
pub(super) const PERMISSION: &str = "permission denied";

fn attempts_text(attempts: &[(String, String)]) -> String {
    let texts: Vec<String> = attempts
        .iter()
        .map(|(endpoint, reason)| format!("{endpoint}: {reason}"))
        .collect();
    texts.join("; ")
}

fn refusal_text(refusal: &ApiRefusal) -> String {
    let body = &refusal.body;
    if refusal.is_unknown_request() {
        return format!(
            "the server runs a version of KAT that does not know this request: {}",
            body.message
        );
    }
    match (body.message.is_empty(), body.error.is_empty()) {
        (false, _) => body.message.clone(),
        (true, false) => format!("refused: {}", body.error),
        (true, true) => format!("refused with HTTP status {}", refusal.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, message: &str) -> ClientError {
        ClientError::Refused(Box::new(ApiRefusal {
            status,
            body: ErrorBody {
                message: message.to_owned(),
                ..ErrorBody::default()
            },
        }))
    }

    #[test]
    fn every_status_has_its_exit_code() {
        let table = [
            (400, 1),
            (401, 1),
            (403, 1),
            (404, 3),
            (409, 1),
            (412, 1),
            (413, 1),
            (429, 4),
            (500, 1),
            (503, 4),
        ];
        for (status, code) in table {
            assert_eq!(refused(status, "no").exit_code(), code, "status {status}");
        }
        let unreachable = ClientError::Unreachable { attempts: vec![] };
        assert_eq!(unreachable.exit_code(), 4);
    }

    #[test]
    fn a_request_that_an_earlier_version_does_not_know_is_no_missing_object() {
        let unknown = [
            (
                404,
                "there is no route `/v1alpha1/x`; `/openapi.json` lists them all",
            ),
            (
                400,
                "the body: unknown field `spec`, expected `metadata` at line 1 column 9",
            ),
            (
                400,
                "the query: Failed to deserialize query string: unknown field `volumes`, expected `dryRun`",
            ),
        ];
        for (status, message) in unknown {
            let error = refused(status, message);
            assert!(error.is_unknown_request(), "{message}");
            assert_eq!(error.exit_code(), 1, "{message}");
            let hint = error.hint().unwrap_or_default();
            assert!(hint.contains("katcall version"), "{hint}");
            assert!(error.to_string().ends_with(message), "{error}");
        }
        // A file of a user has its places as details, and names of objects are chosen by users.
        for (status, message) in [
            (404, "workload `there is no route` does not exist"),
            (400, "workload.kat:3:1: unknown field `spec.replica`"),
            (403, "there is no route `/x`"),
        ] {
            assert!(!refused(status, message).is_unknown_request(), "{message}");
        }
    }

    #[test]
    fn a_refused_token_is_answered_with_commands_and_not_with_headers() {
        let with_hint = |status| {
            ClientError::Refused(Box::new(ApiRefusal {
                status,
                body: ErrorBody {
                    hint: Some("send `Authorization: Bearer`".to_owned()),
                    ..ErrorBody::default()
                },
            }))
        };
        let hint = with_hint(401).hint().unwrap_or_default();
        assert!(hint.contains("katcall token create"), "{hint}");
        let other = with_hint(403).hint();
        assert_eq!(other.as_deref(), Some("send `Authorization: Bearer`"));
    }

    #[test]
    fn a_refusal_without_words_names_its_status() {
        assert_eq!(refused(418, "").to_string(), "refused with HTTP status 418");
        assert_eq!(refused(409, "it is full").to_string(), "it is full");
    }
}
