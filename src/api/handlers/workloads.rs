//! Handlers of workloads, their instances and rollouts.

pub(crate) mod gone_instances;
pub(crate) mod instances;
pub(crate) mod jobs;
pub(crate) mod namespaces;
pub(crate) mod rollouts;
pub(crate) mod sessions;
pub(crate) mod workload_objects;
