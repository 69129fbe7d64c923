//! Names and service addresses, and who serves behind them.

pub(crate) mod dns;
pub(crate) mod service_addresses;
pub(crate) mod serving;
