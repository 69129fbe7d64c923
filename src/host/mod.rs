//! The machine: its users, files, facts and clock.

pub mod check;
pub mod clock;
pub mod commands;
pub mod copy;
pub mod facts;
pub mod files;
pub mod users;
pub mod volumes;
