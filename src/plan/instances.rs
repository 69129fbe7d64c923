//! New instances: id, address, user and assignment.

pub(crate) mod address;
pub(crate) mod create;
pub(crate) mod identifier;
pub(crate) mod measure;
pub(crate) mod user_index;
