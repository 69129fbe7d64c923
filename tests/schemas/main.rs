//! Documents that are made from the routes and the types, for who calls the API. They are kept in `contrib/schema` and
//! `contrib/proto`; `UPDATE_SCHEMA=1` writes them anew.

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
