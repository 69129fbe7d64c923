//! Containers of an instance beside its main one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How it is with an init container or a sidecar. What is said of an instance itself is its main container's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Its name.
    pub name: String,
    /// `init` or `sidecar`.
    pub kind: String,
    /// `Waiting`, `Starting`, `Running`, `Restarting`, `Ended` or `Failed`.
    pub state: String,
    /// Times that it was started again.
    pub restarts: u32,
    /// Exit code of its last end; 128 and the signal when one killed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The image that it runs, as written or pinned.
    pub image: String,
    /// Its service in the manager of the instance's user.
    pub unit: String,
}
