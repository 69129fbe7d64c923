//! The commands, one file or folder for each.

pub(crate) mod changing;
pub(crate) mod cluster;
pub(crate) mod complete;
pub(crate) mod data;
pub(crate) mod reading;
pub(crate) mod sessions;
