//! The parts that run only on machines that hold etcd.

pub(crate) mod authorities;
pub(crate) mod member;
pub(crate) mod membership;
pub(crate) mod stores;
mod trial;
