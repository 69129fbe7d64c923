//! A fake systemd, and the conformance suite that the fake and a real systemd both pass.

pub mod conformance;
pub mod fake;
pub mod introspection;

#[cfg(test)]
mod tests;
