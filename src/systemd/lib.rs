//! systemd, logind and the journal, over D-Bus.

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
pub use status::{SERVICE_PROPERTIES, UNIT_PROPERTIES};
pub use unit_states::*;
pub use units::*;

#[cfg(test)]
mod tests;
