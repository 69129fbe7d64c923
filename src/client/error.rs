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
                404 => 3,
                429 | 502 | 503 | 504 => 4,
                _ => 1,
            },
            Self::Answer { .. } => 1,
        }
    }

    /// The server's hint, or a general one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Refused(refusal) => refusal.body.hint.clone().or_else(|| {
                (refusal.status == 401)
                    .then(|| "the token is not known here; see `katcall context list`".to_owned())
            }),
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
            _ => None,
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

    /// Whether the item does not exist.
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
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
    fn a_refusal_without_words_names_its_status() {
        assert_eq!(refused(418, "").to_string(), "refused with HTTP status 418");
        assert_eq!(refused(409, "it is full").to_string(), "it is full");
    }
}
