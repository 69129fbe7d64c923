//! The service `kat-agent` itself: its loops and their supervisor, its paths, and its line in `systemctl status`.

pub(crate) mod blocking;
pub(crate) mod bus;
pub(crate) mod loops;
mod manual;
pub(crate) mod paths;
pub mod program;
pub(crate) mod reload;
pub(crate) mod replaced;
pub(crate) mod run;
pub(crate) mod status_line;
pub(crate) mod supervisor;
