//! What KAT's services share: lines for the journal, the check that their loops still run, passed
//! sockets, followed folders, the clock that they read, and counts of durations.
//!
//! `kat-agent`, `kat-net` and `kat-ingress` are separate programs, and all use this crate.
//!
//! Where to begin:
//! - `logging.rs`: [`logging::start`], the first call of a service.
//! - `watchdog.rs`: [`watchdog::LoopPulses`] and [`watchdog::LoopPulse`], one for each essential
//!   loop.
//! - `clock.rs`: [`clock::since_boot`].
//! - `durations.rs`: [`durations::DurationCounts`], for the metrics.
//! - `folder_watch.rs`: [`folder_watch::follow`], for files that are replaced by rename.
//! - `passed_sockets.rs`: [`passed_sockets::take`], the sockets of a `.socket` unit.
//! - `write_timeout.rs`: a stream whose other end must keep reading.
//! - `journal.rs`: how a line and its fields reach the journal.
//!
//! Rules:
//! - An essential loop updates its pulse in each round, and waits with
//!   [`watchdog::LoopPulse::wait`].
//! - Times are those of tokio's clock, so that tests can pause it (invariant 9).
//! - The crate knows neither the store nor the data path and uses no other crate of KAT, so that
//!   `kat-net` and `kat-ingress` stay free of them.
//!
//! Tests are in the files themselves.

pub mod clock;
pub mod durations;
pub mod folder_watch;
mod journal;
pub mod logging;
pub mod passed_sockets;
pub mod watchdog;
pub mod write_timeout;
