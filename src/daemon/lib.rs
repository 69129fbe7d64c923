//! What KAT's services share: lines for the journal, and the watchdog that systemd keeps on them.
//!
//! `kat-agent` and `kat-net` are programs of their own with nothing in common but this crate and the vocabulary, so it
//! knows neither the store nor the data path.

pub mod logging;
pub mod watchdog;
