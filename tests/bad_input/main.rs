//! Bad input, in named classes: each gives a clear mistake at the right place.
//!
//! What is wrong in the text of files (`files`) and in archives (`archives`). Each is also sent to the
//! API (`over_api`), which says the same and stores nothing.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod archives;
mod files;
mod over_api;
#[path = "../support/api.rs"]
mod support;
