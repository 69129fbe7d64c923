//! The data path of `kat-net`: WireGuard, links, the container hook, firewall and DNS.
//!
//! `kat-net` runs from the files of [`kat_types::machine::network`] alone (ARCHITECTURE.md, invariant 5). [`hook`] is the
//! program that the container runtime calls. It connects to the socket of
//! [`containers::hook_server`], which verifies the caller ([`containers::verify`]) and attaches the
//! container to the overlay ([`containers::attach`]). [`service`] runs all parts.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod containers;
pub mod dns;
pub mod hook;
pub mod host_sockets;
pub mod links;
pub mod nftables;
pub mod overlay;
mod reconcile;
mod run_file;
pub mod service;
pub mod silent_peers;
pub mod state_files;
mod sysctl;
mod teardown;

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
