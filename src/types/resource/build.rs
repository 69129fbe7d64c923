//! `build.kat` (RFC001-KAT 3.5).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Definition of a build from a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildDefinition {
    /// Specification of the build.
    pub spec: BuildSpec,
}

/// How an image is built from a git repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildSpec {
    /// Build context: a folder relative to the repository's root.
    #[serde(default = "dot")]
    pub build_context: String,
    /// Path of the Dockerfile, relative to `buildContext`.
    #[serde(default = "dockerfile")]
    pub dockerfile_path: String,
    /// Build arguments, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub build_args: BTreeMap<String, String>,
    /// Target stage of a multi-stage build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_stage: Option<String>,
    /// Platform of the image, such as `linux/arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Registry that caches built images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<BuildCache>,
}

fn dot() -> String {
    ".".to_owned()
}

fn dockerfile() -> String {
    "./Dockerfile".to_owned()
}

/// Registry that caches built images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildCache {
    /// Repository in the registry, without a tag.
    pub registry_path: String,
}
