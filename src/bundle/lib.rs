//! A folder, an archive or a list of `*.kat` files -> one validated [`Bundle`], or every mistake.
//!
//! Each mistake names file, line, column, the path of the field, what was found and what was
//! expected (RFC001-KAT 3.2 to 3.9 and 4.2). YAML is read into a tree that knows places (`yaml`), the tree
//! is decoded field by field (`decode`), the files are compared with each other (`cross`). What is
//! valid but has no effect yet is found by [`not_yet`], apart, so that what is stored can always be
//! read.

// Tests make JSON in places; the build without them is what keeps `serde_json::to_vec` and its like away.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod archive;
mod carried;
mod check;
mod cross;
mod decode;
mod diagnostic;
mod edit;
pub mod fields;
mod folder;
mod hash;
mod kind;
mod machine;
mod not_yet;
mod parse;
mod suggest;
mod volumes;
pub mod yaml;

use serde::{Deserialize, Serialize};

pub use archive::{Limits, pack, read_archive, read_archive_within};
pub use carried::{
    CARRIED, CarriedFile, MAX_CARRIED, MAX_CARRIED_FILES, pack_carried, unpack_carried,
};
pub use decode::Mode;
pub use diagnostic::{Class, Diagnostic, Position, render};
pub use edit::{with_image, with_replicas};
pub use folder::read_folder;
pub use hash::{spec_hash, template_hash, without_defaults};
pub use kind::Kind;
pub use not_yet::{not_yet, not_yet_agent_config, not_yet_cluster};
pub use parse::{
    parse, parse_agent_config, parse_agent_config_as, parse_cluster, parse_cluster_as,
};

use kat_types::resource::{
    BuildDefinition, JobDefinition, Namespace, VirtualLoadBalancer, Workload,
};

/// Largest text of one file, in bytes: it is one value in etcd.
pub const MAX_FILE: usize = 256 * 1024;
/// Largest text of all files of a bundle together, in bytes: they fit into one etcd transaction.
pub const MAX_BUNDLE: usize = 1024 * 1024;
/// Most files of a bundle.
pub const MAX_FILES: usize = 256;

/// One file as it was written.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceFile {
    /// Its name, without a folder.
    pub name: String,
    /// Its text.
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

/// What a set of files says. Either there is a workload, or there is only a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bundle {
    /// The workload; none where the files hold only a namespace.
    pub workload: Option<Workload>,
    /// Its ports, health and ingress.
    pub load_balancer: Option<VirtualLoadBalancer>,
    /// How it runs; only with type Job.
    pub job: Option<JobDefinition>,
    /// How its image is built; only with a git source.
    pub build: Option<BuildDefinition>,
    /// The namespace, where the files define it.
    pub namespace: Option<Namespace>,
    /// The files that its volumes mount, in the order of their paths.
    pub carried: Vec<CarriedFile>,
    /// The files as they were written, in the order of their names; carried ones are one, [`CARRIED`].
    pub files: Vec<SourceFile>,
}

/// Whether a text can be the key of a label or a taint; the error is a sentence.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_label_key(text: &str) -> Result<(), String> {
    check::label_key(text).map_err(|complaint| complaint.message)
}

/// The same for the value of a label or a taint.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_label_value(text: &str) -> Result<(), String> {
    check::label_value(text).map_err(|complaint| complaint.message)
}

/// Whether a text can name an image.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_image(text: &str) -> Result<(), String> {
    check::image(text).map_err(|complaint| complaint.message)
}

/// Whether a text can name a registry or a mirror of one: a host, with a port and a path where it has them.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_registry(text: &str) -> Result<(), String> {
    check::registry(text).map_err(|complaint| complaint.message)
}
