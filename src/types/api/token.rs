//! Tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ApiTime;

/// What a caller may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Scope {
    /// Everything.
    Admin,
    /// Everything of workloads in one namespace.
    Deploy {
        /// The namespace.
        namespace: String,
    },
    /// Reads.
    Read,
    /// Lets machines join, and nothing else.
    Join,
}

/// Asks for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRequest {
    /// What it may do.
    pub scope: Scope,
    /// A name for people.
    #[serde(default)]
    pub name: String,
    /// Seconds that it lives. Without it a token `read` or `deploy` lives 90 days, another one for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// How many machines may join with it, if it is for joining; any number without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Whoever reaches the API may join with it, without its secret (RFC001-KAT 4.1.2): only for
    /// joining, and for a day at most.
    #[serde(default, skip_serializing_if = "is_false")]
    pub insecure_trust_network: bool,
}

/// What a machine sends for a token that joins while the network is trusted.
pub const TRUSTING: &str = "insecure-trust-network";

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// A token as it is listed; the secret is shown once, when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// Its id, which is no secret.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
    /// RFC 3339, UTC.
    pub created: ApiTime,
    /// RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<ApiTime>,
    /// How many more machines may join with it; any number without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// Whoever reaches the API may join with it, without its secret.
    #[serde(default, skip_serializing_if = "is_false")]
    pub insecure_trust_network: bool,
    /// The whole token, only in the answer to its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// `host:port` of an API that a machine which joins reaches, only in the answer to its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_api: Option<String>,
}
