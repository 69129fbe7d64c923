//! Parses a folder, an archive or a list of `*.kat` files into one validated [`Bundle`], or reports
//! every mistake with file, line, column and field (RFC001-KAT 3.2 to 3.9 and 4.2).
//!
//! Where to begin:
//! - `parse.rs`: [`parse()`] for the files of a workload or namespace; [`parse_cluster`] and
//!   [`parse_agent_config`] for settings.
//! - `fields/mod.rs`: the one table of fields, with range, default and description.
//! - `decode/mod.rs`: the decoder, and [`DecodeMode`], strict for users' files and lenient for
//!   stored ones.
//! - `diagnostic.rs`: [`Diagnostic`], a mistake with its place.
//!
//! Modules:
//! - `archive`, `folder`, `stream`, `carried`: sources of files, with their limits.
//! - `yaml`: a tree in which every key and value has its position.
//! - `decode`, `check`, `kind`: the tree to the types of `kat_types::resource`, field by field.
//! - `cross_file_rules`, `volumes`, `machine`: rules between fields and between files.
//! - `not_yet`: valid fields without an effect, found apart so that stored files can always be
//!   read.
//! - `needed_reader`: the version of the reader that stored files need.
//! - `settings`: which settings of a running cluster can change, and what a change does.
//! - `hash`: whether something changed. `edit`, `image_places`: changes of a file as written.
//! - `diagnostic`, `suggest`: the texts of mistakes.
//!
//! Rules:
//! - Users' files are read strictly. A stored file that an earlier version accepted is never
//!   refused (invariant 10).
//! - Archives and texts are untrusted, and their size and number are bounded (invariant 8).
//! - A field without an effect is refused at apply by [`not_yet()`], never accepted silently.
//! - Defaults, ranges and descriptions stand in `fields` alone.
//! - A later version has to compute the same hashes of stored files, or it replaces their
//!   instances. So default values are left out of a hash.
//! - The crate knows no store and no API, and prints nothing: [`render()`] returns a mistake's
//!   text.
//!
//! Tests: `src/bundle/tests` (its `field_table` compares table, types and decoder),
//! `tests/bad_input`, and the targets `yaml` and `archive` of `contrib/fuzz`.

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
mod host_port_places;
mod image_places;
mod kind;
mod machine;
mod needed_reader;
mod not_yet;
mod parse;
pub mod settings;
mod stream;
mod suggest;
mod volumes;
pub mod yaml;

use serde::{Deserialize, Serialize};

use kat_types::resource::{
    BuildDefinition, JobDefinition, Namespace, Route, VirtualLoadBalancer, Workload,
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
pub use host_port_places::host_port_places;
pub use image_places::image_places;
pub use kind::DocumentKind;
pub use needed_reader::{NeededReader, manifest_reader, needed_reader, needed_readers};
pub use not_yet::{not_yet, not_yet_agent_config, not_yet_cluster};
pub use parse::{
    parse, parse_agent_config, parse_agent_config_as, parse_cluster, parse_cluster_as,
};
pub use stream::{ShownObject, join_stream, read_piped, shown_object, split_stream};
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
    /// Its ports, health and ingress; the ports may be written in `workload.kat`.
    pub load_balancer: Option<VirtualLoadBalancer>,
    /// The ports are written in `workload.kat`.
    pub ports_in_workload: bool,
    /// The job's settings; only with type Job.
    pub job: Option<JobDefinition>,
    /// How its image is built; only with a git source.
    pub build: Option<BuildDefinition>,
    /// The namespace, where the files define it.
    pub namespace: Option<Namespace>,
    /// Routes to something outside KAT.
    pub routes: Vec<Route>,
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

/// Checks that a text can name an environment variable.
///
/// # Errors
/// What was found, and what was expected; a value after `=` is not shown.
pub fn check_variable(text: &str) -> Result<(), String> {
    check::variable(text).map_err(|complaint| complaint.message)
}

/// Checks an argument of a program; the message does not contain its text.
///
/// # Errors
/// What is wrong with it.
pub fn check_argument(text: &str) -> Result<(), String> {
    check::argument(text).map_err(|complaint| complaint.message)
}

/// Checks that a text can name an image.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_image(text: &str) -> Result<(), String> {
    check::image(text).map_err(|complaint| complaint.message)
}

/// Checks that a text can be the host of a route: a name, or `*.` and a domain.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_route_host(text: &str) -> Result<(), String> {
    check::host(text).map_err(|complaint| complaint.message)
}

/// Checks that a text can name a registry or a mirror of one: a host, optionally with a port and a
/// path.
///
/// # Errors
/// What was found, and what was expected.
pub fn check_registry(text: &str) -> Result<(), String> {
    check::registry(text).map_err(|complaint| complaint.message)
}
