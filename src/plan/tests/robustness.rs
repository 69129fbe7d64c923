//! Tests of the whole planner: random runs, and objects that cannot be written.

mod random_events;
mod unwritable_objects;

use super::*;
