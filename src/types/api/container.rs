//! Init containers and sidecars of an instance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::newer;

/// State of an init container or a sidecar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerState {
    /// The container has not started yet.
    #[default]
    Waiting,
    /// The container starts.
    Starting,
    /// The program runs.
    Running,
    /// The program has ended and is restarted.
    Restarting,
    /// The program of an init container has ended with success.
    Ended,
    /// The program has failed and is not restarted.
    Failed,
}

/// An unknown state has no effect.
impl newer::ExtensibleEnum for ContainerState {
    const NEWER: Self = Self::Waiting;
}

/// Status of an init container or a sidecar. The status of the main container is that of the
/// instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// `init` or `sidecar`.
    pub kind: String,
    /// State of the container. In an object of a newer version, an unknown state is read as
    /// `Waiting`.
    #[serde(deserialize_with = "newer::word")]
    pub state: ContainerState,
    /// Number of restarts.
    pub restarts: u32,
    /// Exit code with which the container last ended; 128 plus the signal's number if a signal
    /// ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The image: by its digest if that is known, otherwise as written in `workload.kat`.
    pub image: String,
    /// Name of the container's service in the systemd manager of the instance's user.
    pub unit: String,
}
