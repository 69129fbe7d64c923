//! Machines that come, are drained, are lost, fill their disks or lie; and the users on them.

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
