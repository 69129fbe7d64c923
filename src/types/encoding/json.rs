//! JSON for the store, for files and for the API.
//!
//! A value that can't be encoded is an error that names it, never an empty value in its place. So
//! only this module calls `serde_json::to_vec` and its like: `clippy.toml` refuses them elsewhere.
//! It can't refuse `serde_json::to_value`, which the macro `json!` and derived schemas call: use
//! [`tree`].

use serde::Serialize;

/// A value that can't be encoded as JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be written as JSON: {reason}")]
pub struct NotEncoded {
    /// The key, path or object whose value it is.
    pub what: String,
    /// The error of serde.
    pub reason: String,
}

impl From<NotEncoded> for std::io::Error {
    fn from(error: NotEncoded) -> Self {
        Self::other(error)
    }
}

fn named(what: &str) -> impl FnOnce(serde_json::Error) -> NotEncoded {
    move |error| NotEncoded {
        what: what.to_owned(),
        reason: error.to_string(),
    }
}

/// The value on one line.
///
/// # Errors
/// [`NotEncoded`], which names `what`.
#[allow(clippy::disallowed_methods)]
pub fn bytes<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<Vec<u8>, NotEncoded> {
    serde_json::to_vec(value).map_err(named(what))
}

/// The value over several lines, for files that people read.
///
/// # Errors
/// [`NotEncoded`], which names `what`.
#[allow(clippy::disallowed_methods)]
pub fn pretty<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<Vec<u8>, NotEncoded> {
    serde_json::to_vec_pretty(value).map_err(named(what))
}

/// The value over several lines, as text.
///
/// # Errors
/// [`NotEncoded`], which names `what`.
#[allow(clippy::disallowed_methods)]
pub fn pretty_text<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<String, NotEncoded> {
    serde_json::to_string_pretty(value).map_err(named(what))
}

/// The value on one line, as text.
///
/// # Errors
/// [`NotEncoded`], which names `what`.
#[allow(clippy::disallowed_methods)]
pub fn text<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<String, NotEncoded> {
    serde_json::to_string(value).map_err(named(what))
}

/// The value as a tree.
///
/// # Errors
/// [`NotEncoded`], which names `what`.
pub fn tree<T: Serialize + ?Sized>(what: &str, value: &T) -> Result<serde_json::Value, NotEncoded> {
    serde_json::to_value(value).map_err(named(what))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_value_without_json_is_an_error_that_names_it() {
        let value = BTreeMap::from([((1, 2), "keys of JSON are text")]);
        let error = bytes("/kat/config/endpoints", &value).expect_err("no JSON");
        assert!(
            error.to_string().contains("/kat/config/endpoints"),
            "{error}"
        );
        assert_eq!(bytes("x", "text").expect("has JSON"), b"\"text\"");
    }
}
