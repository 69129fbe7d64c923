//! Shared by KAT's services: logging to the journal, and the watchdog.
//!
//! `kat-agent` and `kat-net` are separate programs that have only this crate and the vocabulary in
//! common, so this crate knows neither the store nor the data path.

pub mod logging;
pub mod watchdog;
