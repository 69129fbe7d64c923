//! systemd and logind over D-Bus, the journal by `journalctl`, and KAT's own objects on the system
//! bus (`rip.dws.kat1`).
//!
//! Where to begin:
//! - `units.rs`: [`UnitManager`], the functions of a manager that KAT uses, and [`SystemdError`].
//! - `managers.rs`: [`ManagerSource`], the system's manager and those of workload users.
//! - `manager.rs`: [`BusManager`], the trait over D-Bus.
//! - `login.rs`: [`UserSessions`], which lets users linger.
//! - `journal/mod.rs`: [`LogSource`], the lines of units.
//!
//! Modules:
//! - `units`, `unit_states`, `status`, `transient`: units, their words, properties, and commands.
//! - `manager`, `managers`, `link`, `listeners`, `connect`: connections, jobs and signals.
//! - `proxies`, `path`, `error`: D-Bus as systemd speaks it.
//! - `publish`: the objects of `rip.dws.kat1`, which are read-only.
//!
//! Rules:
//! - Every call and every job has a time limit (invariant 8).
//! - A word of a newer systemd is kept as it is, not an error.
//! - The uid of the process never changes: `connect.rs` changes that of one thread.
//! - The XML in `dbus` has the members of systemd's and logind's interfaces that `proxies.rs` uses,
//!   and all of `rip.dws.kat1`.
//! - The crate decides nothing about instances, writes no unit file, and uses `kat-types` alone.
//!
//! Tests: `src/systemd/tests` on private buses and against the XML. `tests/systemd_real.rs` runs
//! the suite `kat_testing::systemd::conformance` on a running systemd; the fake passes the same
//! suite.

mod connect;
pub mod error;
pub mod journal;
mod link;
pub mod listeners;
mod login;
mod manager;
mod managers;
pub mod path;
pub mod proxies;
pub mod publish;
mod status;
mod transient;
mod unit_states;
mod units;

pub use connect::{CALL_LIMIT, CONNECT_LIMIT, Connector, SocketIdentity, SystemBus, UserBus};
pub use journal::{
    Journal, JournalQuery, LogEntries, LogEntry, LogError, LogSource, ProgramStream,
};
pub use login::{Logind, UserSessions};
pub use manager::BusManager;
pub use managers::{ManagerSource, Managers};
pub use status::{SERVICE_PROPERTIES, UNIT_PROPERTIES, USAGE_PROPERTIES};
pub use unit_states::*;
pub use units::*;

#[cfg(test)]
mod tests;
