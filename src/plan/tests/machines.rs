//! Machines that join, are drained, are lost, fill their disks or send forged reports, and the
//! users on them.

mod away;
mod disk;
mod drain;
mod forged;
mod indexes;
mod joining;
mod loss;
mod nodes;
mod users;

use super::*;
