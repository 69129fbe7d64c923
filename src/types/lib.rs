//! Types of users' files, of stored objects, and of the API. Data only.
//!
//! Every other crate may use this crate, which uses none of them: no input or output, no clock, no
//! decisions. Readers ignore fields that they do not know (ARCHITECTURE.md, invariant 10).
//!
//! - [`resource`]: the kinds of `*.kat` files and `agent.yaml`.
//! - [`api`]: objects of the API, and reports of agents.
//! - [`assignment`]: one instance's complete desired state; [`volumes`], [`secrets`],
//!   [`store::records`]:
//!   other objects that the leader stores; [`store::keys`]: their keys in the store;
//!   [`store::transaction`]:
//!   writes to the store.
//! - [`reason`]: reasons of conditions, statuses and events.
//! - [`registry`]: settings of registries, credentials, and names of images.

#![warn(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod api;
pub mod assignment;
pub mod backoff;
pub mod encoding;
pub mod images;
pub mod machine;
pub mod reason;
pub mod registry;
pub mod resource;
pub mod secrets;
pub mod services;
pub mod store;
pub mod top_level_domains;
pub mod volumes;

/// The version of the program, as `katcall version` and the node's status print it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
