//! The OpenAPI document that the API serves. `kat-testing` makes it from the routes and the types.

/// The document as it is kept.
pub const TEXT: &str = include_str!("../../contrib/schema/openapi.json");
