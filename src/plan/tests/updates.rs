//! Updates of a workload: rollouts, their strategies, stalls and rollbacks.

mod prepared;
mod random_rollouts;
mod rollout;
mod scale;
mod stalls;
mod stop;
pub(crate) mod strategies;
mod versions;

use super::*;
