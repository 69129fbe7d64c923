//! The kinds of `*.kat` files and `agent.yaml`, with their names, quantities and limits.
//!
//! Data and validation only: no input or output, no clock. The types have the same camelCase names
//! as the `*.kat` files (RFC001-KAT 3.2 to 3.9). Unknown fields are ignored here, as stored objects
//! need it; `bundle` reads users' files strictly.

mod agent_config;
mod build;
mod cluster;
mod container;
mod containers;
mod device;
mod ingress;
mod job;
mod load_balancer;
pub mod name;
pub mod named_kind;
mod namespace;
pub mod quantity;
mod quota;
pub mod secret;
pub mod security;
mod volume;
mod workload;

pub use agent_config::*;
pub use build::*;
pub use cluster::*;
pub use container::*;
pub use containers::*;
pub use device::*;
pub use ingress::*;
pub use job::*;
pub use load_balancer::*;
pub use namespace::*;
pub use quantity::{Bytes, MilliCpu, QuantityError};
pub use quota::{Amounts, CERTIFICATE_ORDERS, QuotaResource};
pub use volume::*;
pub use workload::*;

/// The one API version of `*.kat` files and of API paths.
pub const API_VERSION: &str = "kat.dws.rip/v1alpha1";

/// Version of the reader of stored `*.kat` files (`kat_bundle::manifest_reader`) from which on a
/// leader keeps [`NamespaceAccess`] when it changes something else of a namespace, and knows
/// `ingressHosts` and documents of kind Route.
pub const NAMESPACE_ACCESS_READER: u32 = 3;

/// Version of the reader from which on a leader keeps the quotas of
/// [`Amounts::needs_quota_reader`] when it changes something else of a namespace, and counts them.
pub const NAMESPACE_QUOTA_READER: u32 = 6;

/// Version of the reader from which on a leader keeps [`NamespaceDefaults`] when it changes something
/// else of a namespace, and gives them to new instances.
pub const NAMESPACE_DEFAULTS_READER: u32 = 7;

/// Most namespaces in `allowNamespaces`.
pub const MOST_ALLOWED_NAMESPACES: usize = 64;
