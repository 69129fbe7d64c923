//! Containers on the overlay: the hook's socket, the verification of its callers, the links, and the
//! fence of instances with `onPartition: stop`.

pub mod attach;
pub mod attachments;
pub mod fence;
pub mod hook_server;
pub(crate) mod journal_budget;
pub mod namespaces;
pub(crate) mod unit_links;
pub mod unit_processes;
pub mod verify;
