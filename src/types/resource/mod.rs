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
pub use quota::{Amounts, QuotaResource};
pub use volume::*;
pub use workload::*;

/// The one API version of `*.kat` files and of API paths.
pub const API_VERSION: &str = "kat.dws.rip/v1alpha1";

/// Version of the reader of stored `*.kat` files. A leader reads the files of every workload, so a
/// file that needs a higher version is stored only when every machine that may lead has it. Which
/// fields need which version is in the table of fields (`kat_bundle::fields`).
///
/// 2: `type`, `replicas`, `restartPolicy` and `container` may be absent, `restartPolicy` may be a
/// word, and `ports` may be in `workload.kat` or absent.
///
/// 3: `ingress`, `allowNamespaces` and `machineAccess` have an effect, and namespaces have settings
/// ([`NAMESPACE_ACCESS_READER`]).
///
/// 4: the type Job has an effect.
///
/// 5: `startAfter` and the type DaemonService have an effect.
pub const MANIFEST_READER: u32 = 5;

/// Version of the reader from which on a leader keeps [`NamespaceAccess`] when it changes something
/// else of a namespace, and knows `ingressHosts` and documents of kind Route.
pub const NAMESPACE_ACCESS_READER: u32 = 3;

/// Most namespaces in `allowNamespaces`.
pub const MOST_ALLOWED_NAMESPACES: usize = 64;
