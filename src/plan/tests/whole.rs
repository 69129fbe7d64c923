//! What holds for all of it: random runs, and objects that cannot be written.

mod frozen;
mod properties;

use super::*;
