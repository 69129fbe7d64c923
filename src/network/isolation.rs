//! Isolation of namespaces: which containers reach which.
//!
//! The agent's file says whose each address is and who may reach whom
//! ([`IsolationRules`](kat_types::machine::isolation::IsolationRules)). `policy` makes the decision
//! for two addresses of it, `enforcement` keeps the table `inet kat-isolation` and the kernel's
//! connection tracking in line with it, and `refusals` reads back what was refused.

pub mod enforcement;
pub mod policy;
pub(crate) mod refusals;
