//! The store itself: which machines hold etcd, and its upkeep.

pub(crate) mod members;
pub(crate) mod upkeep;
