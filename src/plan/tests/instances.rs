//! One instance after another: containers, health, restarts, ends, and what users see of them.

mod containers;
mod deletion;
mod failing;
mod health;
mod options;
mod restarts;
mod status;

use super::*;
