//! The machine: its users, files and facts.

pub mod bound_paths;
pub mod check;
pub mod commands;
pub mod copy;
pub mod facts;
pub mod files;
mod mount_tree;
pub mod users;
pub mod volumes;
