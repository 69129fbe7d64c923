//! The data path in network namespaces made by the tests themselves. Needs root, `ip`, `nft`,
//! `unshare` and `setpriv`; touches nothing of the machine's own network.
//!
//! No machine with systemd is needed: the control group of a process is given by the test.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a test fails by a panic"
)]

#[path = "network/world.rs"]
mod world;

#[path = "network/hosts.rs"]
mod hosts;

#[path = "network/hook.rs"]
mod hook;

#[path = "network/firewall.rs"]
mod firewall;

#[path = "network/balance.rs"]
mod balance;

#[path = "network/host_ports.rs"]
mod host_ports;

#[path = "network/service.rs"]
mod service;

#[path = "network/kernel.rs"]
mod kernel;
