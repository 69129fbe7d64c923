//! Images of the workloads on this machine: pulled, kept, removed.

pub(crate) mod collector;
pub(crate) mod logins;
pub(crate) mod pull;
pub(crate) mod registries;
pub(crate) mod unused;
