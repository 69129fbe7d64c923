//! The vocabulary that all crates share: kinds of users' files, objects of the API and of the
//! store, assignments, keys and reasons. Data only.
//!
//! Where to begin:
//! - `assignment.rs`: [`assignment::Assignment`], all that an agent needs to run an instance.
//! - `resource/workload.rs`: [`resource::Workload`], what a user writes.
//! - `store/keys.rs`: the keys of the store. `store/records.rs`: what is stored below them.
//! - `store/snapshot.rs`: [`store::snapshot::StoredState`], the store as decisions see it.
//! - `reason.rs`: [`reason::Reason`] and [`reason::EventReason`].
//!
//! Modules:
//! - [`resource`]: the kinds of `*.kat` files and `agent.yaml`, with names, quantities and limits.
//! - [`api`]: objects of the API, and reports of agents.
//! - [`assignment`], [`volumes`], [`secrets`], [`services`], [`images`]: objects that the leader
//!   stores.
//! - [`store`]: keys, records, transactions, the snapshot, and which machine sees which key.
//! - [`registry`]: settings of registries, credentials, and names of images.
//! - [`machine`]: what machines have in common, such as files of the data path.
//! - [`ingress`]: files between the agent and the reverse proxy.
//! - [`virtual_addresses`]: an address of the LAN that machines share, in the store and in files.
//! - [`encoding`]: JSON, digests, frames, and foreign text for a terminal.
//! - [`backoff`], [`top_level_domains`]: computations that several crates need.
//!
//! Rules:
//! - No input or output, no clock, no decision about the cluster; no other crate of KAT is used.
//! - Readers of stored and sent objects ignore unknown fields, and take an unknown word for the one
//!   that does the least harm (invariant 10): `api/newer.rs`, `assignment/words.rs`.
//! - A stored object has `schema`. What a released version stored stays readable (`tests/stored`).
//! - Keys are made in `store/keys.rs`. A key that `store/visibility.rs` lacks is hidden from
//!   machines without the store.
//! - What is stored or sent is encoded with [`encoding::json`], and hashed with
//!   [`encoding::digest`], whose results never change.
//! - A report's content is bounded in `api/report/bounds.rs`, field by field (invariant 8).
//!
//! Tests are beside the code. `tests/schemas` compares the API's types with `contrib/schema` and
//! `contrib/proto`; the targets `frames` and `state_frames` of `contrib/fuzz` read frames.

#![warn(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod api;
pub mod assignment;
pub mod backoff;
pub mod encoding;
pub mod images;
pub mod ingress;
pub mod machine;
pub mod reason;
pub mod registry;
pub mod resource;
pub mod secrets;
pub mod services;
pub mod store;
pub mod top_level_domains;
pub mod virtual_addresses;
pub mod volumes;

/// The version of the program, as `katcall version` and the node's status print it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
