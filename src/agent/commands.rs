//! The commands of `kat-agent` for administrators: init, join, check, backup, recover, restore,
//! trust, reset.

pub(crate) mod bootstrap;
pub(crate) mod check;
pub(crate) mod forwarding;
pub(crate) mod host_files;
pub(crate) mod init;
pub(crate) mod join;
pub(crate) mod join_token;
pub(crate) mod recovery;
pub(crate) mod reset;
pub(crate) mod setup;
pub(crate) mod trust;
