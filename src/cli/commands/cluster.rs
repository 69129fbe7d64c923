//! Commands for machines, certificate authorities, tokens and connections.

pub(crate) mod authorities;
pub(crate) mod config;
pub(crate) mod drain;
pub(crate) mod generate;
pub(crate) mod node;
pub(crate) mod token;
