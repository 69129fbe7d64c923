//! Election, the loop that feeds `plan/` and commits what it returns, and what the API needs of both.

mod handle;
mod run;
mod state;

pub use handle::*;
pub use run::{LeaderConfig, Planner, start, start_with};
pub use state::*;
