//! Routes from outside on this machine: the files and the units of `kat-ingress`
//! (docs/internals/routes.md).

pub(crate) mod content;
pub(crate) mod dns_hooks;
pub(crate) mod files;
pub(crate) mod follow;
