//! systemd, logind and the journal, over D-Bus.

pub mod conformance;
mod connect;
mod error;
pub mod fake;
pub mod introspection;
pub mod journal;
mod link;
mod listeners;
mod login;
mod manager;
mod managers;
pub mod path;
pub mod proxies;
pub mod publish;
mod status;
mod transient;
mod units;

pub use connect::{CALL_LIMIT, CONNECT_LIMIT, Connector, SocketIdentity, SystemBus, UserBus};
pub use journal::{Journal, LogEntries, LogEntry, LogError, LogQuery, LogSource, LogStream};
pub use login::{Logind, UserSessions};
pub use manager::BusManager;
pub use managers::{ManagerSource, Managers};
pub use status::{SERVICE_PROPERTIES, UNIT_PROPERTIES};
pub use units::*;

#[cfg(test)]
mod tests;
