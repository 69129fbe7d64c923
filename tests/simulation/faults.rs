//! Faults: cut networks, broken streams, forged reports, objects that cannot be written, and safeguards switched off.

pub(crate) mod disabled_safeguards;
pub(crate) mod forged_reports;
pub(crate) mod machine_faults;
pub(crate) mod network_faults;
pub(crate) mod returning_clusters;
pub(crate) mod stream_faults;
pub(crate) mod unwritable_workload;
