//! The election, the mirror and fenced transactions, against the store in memory.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

mod election;
mod fenced_transactions;
mod mirror;
mod state_stream;
