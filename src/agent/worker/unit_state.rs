//! Units: their files, links and state, and what each state means for the instance.

pub(crate) mod bound_times;
pub(crate) mod early_units;
pub(crate) mod instance_phase;
pub(crate) mod links;
pub(crate) mod network_holder;
pub(crate) mod sidecars;
pub(crate) mod unit_files;
pub(crate) mod units;
