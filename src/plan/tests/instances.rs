//! Instances of one workload: addresses, containers, health, restarts, deletion, and their status for users.

mod addresses;
mod containers;
mod deletion;
mod failed_programs;
mod health;
mod machine_resources;
mod restarts;
mod status;

use super::*;
