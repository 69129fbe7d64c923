//! Machines that join, are drained, are lost, fill their disks or send forged reports, and the
//! users on them.

mod cluster_authority;
mod disk;
mod drain;
mod forged_reports;
mod joining;
mod long_power_loss;
mod node_loss;
mod nodes;
mod recovery_key;
mod rotation;
mod user_indexes;
mod users;

use super::*;
