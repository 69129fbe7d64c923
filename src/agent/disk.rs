//! Room on the disks: pressure, eviction, and what is kept for etcd.

pub(crate) mod ballast;
pub(crate) mod eviction;
pub(crate) mod pressure;
