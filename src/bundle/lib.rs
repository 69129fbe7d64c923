//! Parses a folder, an archive or a list of `*.kat` files into one validated [`Bundle`], or reports
//! every mistake.
//!
//! Each mistake names file, line, column, the path of the field, what was found and what was
//! expected (RFC001-KAT 3.2 to 3.9 and 4.2). YAML is parsed into a tree with positions (`yaml`),
//! the tree is decoded field by field (`decode`), and the files are compared with each other
//! (`cross`). Fields that are valid but have no effect yet are found separately by [`not_yet`], so
//! that stored files can always be read.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod archive;
mod carried;
mod check;
mod cross_file_rules;
mod decode;
mod diagnostic;
mod edit;
pub mod fields;
mod folder;
mod hash;
mod image_places;
mod kind;
mod machine;
mod not_yet;
mod parse;
mod suggest;
mod volumes;
pub mod yaml;

use serde::{Deserialize, Serialize};

use kat_types::resource::{
    BuildDefinition, JobDefinition, Namespace, VirtualLoadBalancer, Workload,
};

pub use archive::{ArchiveLimits, pack, read_archive, read_archive_within};
pub use carried::{
    CARRIED, CarriedFile, MAX_CARRIED, MAX_CARRIED_FILES, pack_carried, unpack_carried,
};
pub use decode::DecodeMode;
pub use diagnostic::{Class, Diagnostic, Position, render};
pub use edit::{with_image, with_replicas};
pub use folder::read_folder;
pub use hash::{spec_hash, template_hash, without_defaults};
pub use image_places::image_places;
pub use kind::DocumentKind;
pub use not_yet::{not_yet, not_yet_agent_config, not_yet_cluster};
pub use parse::{
    parse, parse_agent_config, parse_agent_config_as, parse_cluster, parse_cluster_as,
};
pub use suggest::nearest_name;

/// Maximum bytes of one file's text: it is one value in etcd.
pub const MAX_FILE: usize = 256 * 1024;
/// Maximum bytes of the texts of all files of a bundle together: they fit into one etcd
/// transaction.
pub const MAX_BUNDLE: usize = 1024 * 1024;
/// Maximum number of files of a bundle.
pub const MAX_FILES: usize = 256;

/// One file with its text as written.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceFile {
    /// Name of the file, without a folder.
    pub name: String,
    pub text: String,
}

/// The text is left out: it may hold values of variables.
impl std::fmt::Debug for SourceFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SourceFile")
            .field("name", &self.name)
            .field("bytes", &self.text.len())
            .finish()
    }
}

/// The content of a set of files: either a workload, or only a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The workload; `None` if the files contain only a namespace.
    pub workload: Option<Workload>,
    /// Its ports, health and ingress.
    pub load_balancer: Option<VirtualLoadBalancer>,
    /// The job's settings; only with type Job.
    pub job: Option<JobDefinition>,
    /// How its image is built; only with a git source.
    pub build: Option<BuildDefinition>,
    /// The namespace, where the files define it.
    pub namespace: Option<Namespace>,
    /// The files that its volumes mount, in the order of their paths.
    pub carried: Vec<CarriedFile>,
    /// The files as written, in the order of their names; carried files are one file, [`CARRIED`].
    pub files: Vec<SourceFile>,
}

/// Checks that a text can be the key of a label or a taint.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_label_key(text: &str) -> Result<(), String> {
    check::label_key(text).map_err(|complaint| complaint.message)
}

/// Checks that a text can be the value of a label or a taint.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_label_value(text: &str) -> Result<(), String> {
    check::label_value(text).map_err(|complaint| complaint.message)
}

/// Checks that a text can name an image.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_image(text: &str) -> Result<(), String> {
    check::image(text).map_err(|complaint| complaint.message)
}

/// Checks that a text can name a registry or a mirror of one: a host, optionally with a port and a
/// path.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_registry(text: &str) -> Result<(), String> {
    check::registry(text).map_err(|complaint| complaint.message)
}
