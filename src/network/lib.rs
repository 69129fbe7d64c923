//! The data path, and the program `kat-net`: WireGuard, links, the container hook, nftables and
//! DNS.
//!
//! Where to begin:
//! - `service.rs`: [`service::run`], the main loop. `reconcile.rs`: one round of it.
//! - `state_files.rs`: [`state_files::StateFiles`], the agent's files, all that `kat-net` knows of
//!   the cluster.
//! - `hook.rs`, `containers/hook_server.rs`: the two ends of the hook.
//! - `containers/verify.rs`, `containers/attach.rs`: verification of a container, and its link.
//! - `main.rs`: the commands of the program.
//!
//! Modules:
//! - `containers`, `hook`: links of containers, made at the hook's request.
//! - `overlay`: `kat0`, WireGuard in the kernel or in user space, peers and their endpoints.
//! - `nftables`: the rules of containers, service addresses, host ports and isolation; other
//!   firewalls.
//! - `isolation`: which containers reach which, and what was refused.
//! - `dns`: names of the cluster, and forwarding of others.
//! - `silent_peers`: peers that do not answer get no new connections.
//! - `virtual_addresses`: addresses of the LAN that one machine has at a time.
//! - `links`, `sysctl`, `host_sockets`: netlink and files of the kernel.
//! - `state_files`, `run_file`, `teardown`: files in, files out, and removal at `kat-agent reset`.
//!
//! Rules:
//! - `kat-net` needs the files of `kat_types::machine::network` and no other service, and leaves
//!   the network as it is when it ends (invariant 5).
//! - It ends no container but those of `containers/fence.rs`, each by a pidfd.
//! - Links, routes and added addresses have an alias or KAT's protocol number, and only such ones are
//!   removed (invariant 6).
//! - The hook delays every start of a container: it has no async runtime and a deadline.
//! - Input from callers of the hook, containers and other machines is untrusted and bounded
//!   (invariant 8).
//! - A table of nftables changes in one transaction. The `rtnetlink` library is used in `links`
//!   only.
//! - A change of what happens to packets or containers raises the number in `packaging/data-path`.
//! - The crate knows no etcd, no API and no plan. `containers/namespaces.rs` has its only `unsafe`.
//!
//! Tests: unit tests beside the code; `tests/network` in network namespaces, as root; targets of
//! `contrib/fuzz` for DNS, the hook, announcements, WireGuard, ARP and neighbour discovery; `tests/lab`
//! between machines.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod containers;
pub mod dns;
pub mod hook;
pub mod host_sockets;
pub mod isolation;
pub mod links;
pub mod nftables;
pub mod overlay;
mod reconcile;
mod run_file;
pub mod run_gate;
pub mod service;
pub mod silent_peers;
pub mod state_files;
mod sysctl;
mod teardown;
pub mod virtual_addresses;

pub use teardown::{TeardownError, teardown};

/// Name of the overlay's link.
pub const OVERLAY_LINK: &str = "kat0";

/// File to which `kat-net.service` copies the data path number when it starts.
const RUNNING_DATA_PATH: &str = "/run/kat/data-path";

/// The data path number from `packaging/data-path`: it is increased whenever `kat-net` changes what
/// it does to packets.
pub fn data_path() -> u32 {
    let number = include_str!("../../packaging/data-path");
    number.trim().parse().unwrap_or_default()
}

/// The data path number of the running `kat-net`, if it is lower than this program's; otherwise
/// this program's.
pub fn running_data_path() -> u32 {
    let running = std::fs::read_to_string(RUNNING_DATA_PATH).ok();
    let running = running.and_then(|text| text.trim().parse().ok());
    running.map_or_else(data_path, |running: u32| running.min(data_path()))
}
