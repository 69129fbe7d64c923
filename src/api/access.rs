//! Authentication, authorization, and the audit log of calls.

pub(crate) mod audit;
pub mod authentication;
pub mod authorization;
