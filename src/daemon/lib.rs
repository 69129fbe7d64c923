//! Shared by KAT's services: logging to the journal, and the watchdog.
//!
//! `kat-agent` and `kat-net` are separate programs, and both use this crate: it knows neither the
//! store nor the data path.

mod journal;
pub mod logging;
pub mod watchdog;
