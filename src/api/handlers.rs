//! Handlers of the routes, one file for each kind of object.

pub(crate) mod cluster;
pub(crate) mod data;
pub mod machines;
pub(crate) mod workloads;
