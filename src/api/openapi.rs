//! The OpenAPI document that the API serves. A test (`tests/schemas/openapi.rs`) generates it from
//! the routes and the types.

/// The stored document.
pub const TEXT: &str = include_str!("../../contrib/schema/openapi.json");
