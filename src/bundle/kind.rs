//! The kinds of documents and the usual names of their files.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DocumentKind {
    /// `workload.kat` (RFC001-KAT 3.2).
    Workload,
    /// `VirtualLoadBalancer.kat` (RFC001-KAT 3.3).
    VirtualLoadBalancer,
    /// `job.kat` (RFC001-KAT 3.4).
    JobDefinition,
    /// `build.kat` (RFC001-KAT 3.5).
    BuildDefinition,
    /// `namespace.kat` (RFC001-KAT 3.7).
    Namespace,
    /// `route.kat`: a route to something outside KAT.
    Route,
    /// `cluster.kat` (RFC001-KAT 3.9), only for `kat-agent init`.
    ClusterConfiguration,
    /// `/etc/kat/agent.yaml`, which has neither `apiVersion` nor `kind`.
    AgentConfig,
}

impl DocumentKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Workload,
        Self::VirtualLoadBalancer,
        Self::JobDefinition,
        Self::BuildDefinition,
        Self::Namespace,
        Self::Route,
        Self::ClusterConfiguration,
        Self::AgentConfig,
    ];

    /// The kinds that a bundle may contain.
    pub const IN_BUNDLE: [Self; 6] = [
        Self::Workload,
        Self::VirtualLoadBalancer,
        Self::JobDefinition,
        Self::BuildDefinition,
        Self::Namespace,
        Self::Route,
    ];

    /// The word after `kind:`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workload => "Workload",
            Self::VirtualLoadBalancer => "VirtualLoadBalancer",
            Self::JobDefinition => "JobDefinition",
            Self::BuildDefinition => "BuildDefinition",
            Self::Namespace => "Namespace",
            Self::Route => "Route",
            Self::ClusterConfiguration => "ClusterConfiguration",
            Self::AgentConfig => "AgentConfig",
        }
    }

    /// The usual name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Self::Workload => "workload.kat",
            Self::VirtualLoadBalancer => "VirtualLoadBalancer.kat",
            Self::JobDefinition => "job.kat",
            Self::BuildDefinition => "build.kat",
            Self::Namespace => "namespace.kat",
            Self::Route => "route.kat",
            Self::ClusterConfiguration => "cluster.kat",
            Self::AgentConfig => "agent.yaml",
        }
    }

    /// The kind with this word; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == word && *kind != Self::AgentConfig)
    }
}

impl fmt::Display for DocumentKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
