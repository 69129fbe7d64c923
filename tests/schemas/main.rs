//! Documents for clients of the API, generated from the routes and the types. They are stored in
//! `contrib/schema` and `contrib/proto`; `UPDATE_SCHEMA=1` rewrites them.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

mod openapi;
mod proto;
