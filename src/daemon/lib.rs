//! What KAT's services share: lines for the journal, the check that their loops still run, and the
//! clock that both read.
//!
//! `kat-agent` and `kat-net` are separate programs, and both use this crate.
//!
//! Where to begin:
//! - `logging.rs`: [`logging::start`], the first call of a service.
//! - `watchdog.rs`: [`watchdog::LoopPulses`] and [`watchdog::LoopPulse`], one for each essential
//!   loop.
//! - `clock.rs`: [`clock::since_boot`].
//! - `journal.rs`: how a line and its fields reach the journal.
//!
//! Rules:
//! - An essential loop updates its pulse in each round, and waits with
//!   [`watchdog::LoopPulse::wait`].
//! - Times are those of tokio's clock, so that tests can pause it (invariant 9).
//! - The crate knows neither the store nor the data path and uses no other crate of KAT, so that
//!   `kat-net` stays free of them.
//!
//! Tests are in the files themselves.

pub mod clock;
mod journal;
pub mod logging;
pub mod watchdog;
