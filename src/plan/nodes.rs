//! Machines: who joins, who is lost, drained or leaving, and what is said of each.

pub(crate) mod admission;
pub(crate) mod drain;
pub(crate) mod endpoints;
pub(crate) mod leaving;
pub(crate) mod node_loss;
pub(crate) mod status;
