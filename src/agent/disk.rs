//! Disk space: the condition `DiskPressure`, eviction, and the reserve for etcd.

pub(crate) mod ballast;
pub(crate) mod eviction;
pub(crate) mod pressure;
