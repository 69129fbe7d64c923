//! The machine's identity and keys, and its connections to the other machines.

pub(crate) mod abilities;
pub(crate) mod cluster_cache;
pub(crate) mod identity;
pub(crate) mod keys;
pub(crate) mod machine;
pub(crate) mod overview;
pub(crate) mod peer_agents;
pub(crate) mod reach;
pub(crate) mod renewal;
pub(crate) mod state_stream;
pub(crate) mod succession;
