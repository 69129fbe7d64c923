//! The machine: its users, files, mounts, facts and other programs, and the check of all of that.
//!
//! Where to begin:
//! - `users/mod.rs`: [`users::Users`], which makes and removes workload users.
//! - `files.rs`: atomic writes and bounded reads, used by the agent for its files.
//! - `volumes.rs`: [`volumes::BaseFolder`], folders that containers mount.
//! - `check/mod.rs`: [`check::run`], which `kat-agent check` calls.
//! - `commands.rs`: [`commands::Invocation`], how a program is run.
//!
//! Modules:
//! - `users`, `facts`, `check`: accounts, facts about the machine, and problems for KAT on it.
//! - `files`, `volumes`, `mounts`, `mount_tree`: files and file systems.
//! - `bound_paths`: host paths that are bound for containers, the body of `kat-hostpath@.service`.
//! - `copy`: a volume's content as a stream to another machine.
//! - `commands`: other programs, with time limit and bounded output.
//!
//! Rules:
//! - Content that a workload can write is not trusted. No symbolic link is followed, and each name
//!   is opened relative to its open folder.
//! - An account without the comment `KAT workload N` is never changed or removed (invariant 6).
//! - Making and removing a user can be interrupted anywhere, and is completed by repeating it.
//! - What is decided from facts is pure: `users/decide.rs`, `check/evaluate.rs`.
//! - `mount_tree.rs` has the only `unsafe` of this crate.
//! - The agent decides when something is made or removed. This crate uses no crates of KAT but
//!   `kat-systemd` and `kat-types`.
//!
//! Tests are beside the code; those of `users` need root. `tests/lab` shows users, volumes and host
//! paths on machines.

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
