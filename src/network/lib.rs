//! The data path of `kat-net`: WireGuard, links, the container hook, firewall and DNS.
//!
//! `kat-net` runs from the files of [`state`] alone (ARCHITECTURE.md, invariant 5). The container's
//! side is [`hook`], the socket that it speaks to is [`server`], which checks the caller
//! ([`verify`]) and puts the network in place ([`attach`]). [`service`] joins all parts.

// Tests make JSON in places; the build without them is what keeps `serde_json::to_vec` and its like away.
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
pub mod state;
pub mod state_files;
mod sysctl;
mod teardown;

pub use teardown::{TeardownError, teardown};

/// Name of the overlay's link.
pub const OVERLAY_LINK: &str = "kat0";

/// What `kat-net.service` copies that number to when it starts.
const RUNNING_DATA_PATH: &str = "/run/kat/data-path";

/// The number of `packaging/data-path`: it is raised when `kat-net` does something else to packets.
pub fn data_path() -> u32 {
    let number = include_str!("../../packaging/data-path");
    number.trim().parse().unwrap_or_default()
}

/// The number of the `kat-net` that runs, where it is an earlier one than this program's.
pub fn running_data_path() -> u32 {
    let running = std::fs::read_to_string(RUNNING_DATA_PATH).ok();
    let running = running.and_then(|text| text.trim().parse().ok());
    running.map_or_else(data_path, |running: u32| running.min(data_path()))
}
