//! Machines: admission, endpoints, loss, drain, deletion and status.

pub(crate) mod admission;
pub(crate) mod assignment_lag;
pub(crate) mod closed_ingress_ports;
pub(crate) mod drain;
pub(crate) mod endpoints;
pub(crate) mod isolation;
pub(crate) mod leaving;
pub(crate) mod loss_timeout;
pub(crate) mod node_loss;
pub(crate) mod overlay_down;
pub(crate) mod status;
