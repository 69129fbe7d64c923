//! `build.kat` (RFC001-KAT 3.5).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How an image is built from git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildDefinition {
    /// What is wanted.
    pub spec: BuildSpec,
}

/// How an image is built from git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildSpec {
    /// Relative to the repository's root.
    #[serde(default = "dot")]
    pub build_context: String,
    /// Relative to `buildContext`.
    #[serde(default = "dockerfile")]
    pub dockerfile_path: String,
    /// Arguments of the build.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub build_args: BTreeMap<String, String>,
    /// Stage of a build with several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_stage: Option<String>,
    /// Such as `linux/arm64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// A registry that keeps built images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<BuildCache>,
}

fn dot() -> String {
    ".".to_owned()
}

fn dockerfile() -> String {
    "./Dockerfile".to_owned()
}

/// A registry that keeps built images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuildCache {
    /// Repository without a tag.
    pub registry_path: String,
}
