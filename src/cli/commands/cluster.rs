//! Commands for machines, tokens and connections.

pub(crate) mod config;
pub(crate) mod drain;
pub(crate) mod generate;
pub(crate) mod node;
pub(crate) mod token;
