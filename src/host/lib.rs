//! The machine: its users, files, facts and other programs.

pub mod bound_paths;
pub mod check;
pub mod commands;
pub mod copy;
pub mod facts;
pub mod files;
mod mount_tree;
pub mod mounts;
pub mod users;
pub mod volumes;
