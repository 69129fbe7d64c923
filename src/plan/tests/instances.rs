//! Instances of one workload: containers, health, restarts, deletion, and their status for users.

mod containers;
mod deletion;
mod failing;
mod health;
mod options;
mod restarts;
mod status;

use super::*;
