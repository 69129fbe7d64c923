//! Tokens of the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{ApiTime, Connection};

/// Permissions of a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Scope {
    /// All operations.
    Admin,
    /// All operations on workloads in one namespace.
    Deploy {
        /// The namespace.
        namespace: String,
    },
    /// Read operations.
    Read,
    /// Joins of machines only.
    Join,
}

/// Request for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequest {
    /// Permissions of the token.
    pub scope: Scope,
    /// Description for users.
    #[serde(default)]
    pub name: String,
    /// Lifetime in seconds. If absent, a `read` or `deploy` token expires after 90 days, and an
    /// `admin` or `join` token never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Number of machines that may join with a `join` token; any number if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Any machine that reaches the API may join with this token, without its secret (RFC001-KAT
    /// 4.1.2). Only for `join` tokens, with a lifetime of at most a day.
    #[serde(default, skip_serializing_if = "is_false")]
    pub insecure_trust_network: bool,
}

/// Value that a machine sends instead of a token's secret to join with `insecureTrustNetwork`.
pub const TRUSTING: &str = "insecure-trust-network";

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// A token. The secret is returned only once, when the token is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// Id of the token, which is not secret.
    pub id: String,
    /// Description for users.
    pub name: String,
    /// Permissions of the token.
    pub scope: Scope,
    /// When the token was created; RFC 3339, UTC.
    pub created: ApiTime,
    /// When the token expires; RFC 3339, UTC; absent for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<ApiTime>,
    /// Number of further machines that may join with the token; any number if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Any machine that reaches the API may join with this token, without its secret.
    #[serde(default, skip_serializing_if = "is_false")]
    pub insecure_trust_network: bool,
    /// The whole token; only in the response to its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// `host:port` of an API endpoint that a joining machine can reach; only in the response to the
    /// creation of a `join` token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_api: Option<String>,
    /// A connection file with the token; only in the response to the creation of a token that is
    /// not for joining.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
}
