//! A systemd that exists in memory or on a folder, and what a manager of units must do to count as one.

pub mod conformance;
pub mod fake;
pub mod introspection;

#[cfg(test)]
mod tests;
