//! DNS records and service addresses, the instances that serve behind them, and who may reach them.

pub(crate) mod aliases;
pub(crate) mod dns;
pub(crate) mod isolation;
pub(crate) mod service_addresses;
pub(crate) mod serving;
pub(crate) mod virtual_addresses;
