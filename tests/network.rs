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

#[path = "network/namespaced_machine.rs"]
mod namespaced_machine;

#[path = "network/connected_hosts.rs"]
mod connected_hosts;

#[path = "network/hook.rs"]
mod hook;

#[path = "network/firewall.rs"]
mod firewall;

#[path = "network/service_addresses.rs"]
mod service_addresses;

#[path = "network/changed_rules.rs"]
mod changed_rules;

#[path = "network/host_ports.rs"]
mod host_ports;

#[path = "network/kat_net_end_to_end.rs"]
mod kat_net_end_to_end;

#[path = "network/silent_peers.rs"]
mod silent_peers;

#[path = "network/virtual_addresses.rs"]
mod virtual_addresses;

#[path = "network/isolation.rs"]
mod isolation;

#[path = "network/kernel.rs"]
mod kernel;
