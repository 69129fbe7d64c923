//! etcd: which machines hold a member, and the store's upkeep.

pub(crate) mod members;
pub(crate) mod readers;
pub(crate) mod rotation;
pub(crate) mod store_epoch;
pub(crate) mod upkeep;
