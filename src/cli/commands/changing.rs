//! Commands that change workloads and their objects.

pub(crate) mod apply;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod plan;
pub(crate) mod quota;
pub(crate) mod rollout;
pub(crate) mod select;
pub(crate) mod wait_for;
