//! Bad input in named classes. Each input gives a clear error at the right position.
//!
//! Errors in the text of files are in `files`, those in archives in `archives`. `over_api` also
//! sends each input to the API, which reports the same error and stores nothing.

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
