//! The overlay: `kat0`, its peers, and their endpoints.

pub mod announce;
pub mod kat0;
pub mod local_addresses;
pub(crate) mod peers;
pub(crate) mod state_file;
pub mod wireguard;
