//! Generations of a workload, and requests for rollbacks, scaling and restarts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, newer};

pub use crate::store::records::Origin;

/// A kept generation of a workload, without values of environment variables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GenerationView {
    /// Number of the generation.
    pub generation: u64,
    /// When the generation was written; RFC 3339, UTC; empty if an older version of KAT wrote it.
    pub applied: ApiTime,
    /// The caller who requested the generation; empty for an automatic rollback.
    pub by: String,
    /// The name of that caller's token, where it has one and is there yet; absent otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by_name: String,
    /// Origin of the generation: `Applied`, `RolledBack`, `RolledBackItself` (by `autoRollback`),
    /// `Scaled`, `Restarted`, `ImageSet`, `SecretChanged`, `Stopped` or `Started`; empty if an older
    /// version of KAT wrote it. In an object of a newer version, an unknown origin is read as the empty one.
    #[serde(with = "newer::word_or_empty")]
    #[schemars(with = "String")]
    pub origin: Option<Origin>,
    /// The generation whose content a rollback restored; absent for other origins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// Why `autoRollback` made the generation; absent for other origins.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The image as written in `workload.kat`.
    pub image: String,
    /// Number of replicas.
    pub replicas: u32,
    /// Whether all instances of the generation were healthy at the same time.
    pub good: bool,
    /// Whether the generation is the current one.
    pub current: bool,
}

/// Request to restore an earlier generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RollbackRequest {
    /// Number of the generation. If absent, the newest earlier generation of which all instances
    /// were healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// Request that changes the number of replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScaleRequest {
    /// New number of replicas, 0 to 1000.
    pub replicas: u32,
}

/// Request to replace all instances by new ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestartRequest {
    /// When the restart was requested; RFC 3339. A repeated request with the same time has no
    /// further effect.
    pub restarted_at: ApiTime,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unknown_origin_and_an_unknown_time_are_empty_texts() {
        let unknown = serde_json::to_value(GenerationView::default()).unwrap();
        assert_eq!(unknown["applied"], "");
        assert_eq!(unknown["origin"], "");
        let read = |origin: &str| {
            let view: GenerationView =
                serde_json::from_value(json!({"applied": "", "origin": origin})).unwrap();
            assert_eq!(view.applied, ApiTime::UNKNOWN);
            view.origin
        };
        assert_eq!(read(""), None);
        assert_eq!(read("Renamed"), None);
        assert_eq!(read("RolledBackItself"), Some(Origin::RolledBackItself));
        let scaled = GenerationView {
            applied: ApiTime::parse("2026-11-20T10:00:00Z"),
            origin: Some(Origin::Scaled),
            ..GenerationView::default()
        };
        let scaled = serde_json::to_value(scaled).unwrap();
        assert_eq!(scaled["applied"], "2026-11-20T10:00:00Z");
        assert_eq!(scaled["origin"], "Scaled");
    }
}
