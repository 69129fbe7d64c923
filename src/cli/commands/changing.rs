//! Commands that change workloads and their objects.

pub(crate) mod apply;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod diff;
pub(crate) mod edit;
pub(crate) mod export;
pub(crate) mod job;
mod output_folder;
pub(crate) mod plan;
pub(crate) mod quota;
pub(crate) mod rollout;
pub(crate) mod run;
pub(crate) mod select;
mod stored_files;
pub(crate) mod wait_for;
