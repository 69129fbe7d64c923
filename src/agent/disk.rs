//! Disks: the conditions `DiskPressure` and `DisksAnswer`, eviction, the reserve for etcd, and work on file systems that
//! may hang.

pub(crate) mod ballast;
pub(crate) mod disk_child;
pub(crate) mod eviction;
pub(crate) mod foreign_disks;
pub(crate) mod pressure;
pub(crate) mod silence;
