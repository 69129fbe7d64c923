//! Instances of one workload: containers, health, restarts, deletion, and their status for users.

mod containers;
mod deletion;
mod failed_programs;
mod health;
mod machine_resources;
mod restarts;
mod status;

use super::*;
