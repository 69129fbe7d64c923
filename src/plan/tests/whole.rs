//! Tests of the whole planner: random runs, and objects that cannot be written.

mod frozen;
mod properties;

use super::*;
