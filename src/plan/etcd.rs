//! etcd: which machines hold a member, and the store's upkeep.

pub(crate) mod members;
pub(crate) mod rotation;
pub(crate) mod upkeep;
