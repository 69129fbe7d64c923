//! DNS records and service addresses, and the instances that serve behind them.

pub(crate) mod dns;
pub(crate) mod service_addresses;
pub(crate) mod serving;
