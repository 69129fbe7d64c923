//! Who calls, what they may call, and the line that is kept of it.

pub(crate) mod audit;
pub mod authentication;
pub mod authorization;
