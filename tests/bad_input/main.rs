//! Bad input, in named classes: each gives a clear mistake at the right place.
//!
//! What is wrong in the text of files (`files`) and in archives (`archives`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod archives;
mod files;
