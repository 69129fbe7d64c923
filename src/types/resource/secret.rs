//! Names, sizes and values of secrets. No error or debug output contains a value.

use std::{collections::BTreeMap, fmt};

/// Maximum bytes of a secret's name.
pub const NAME_LIMIT: usize = 40;
/// Maximum bytes of a key's name.
pub const KEY_LIMIT: usize = 128;
/// Maximum bytes of one value.
pub const VALUE_LIMIT: usize = 64 << 10;
/// Maximum bytes of a secret: all values and the names of their keys.
pub const SECRET_LIMIT: usize = 128 << 10;
/// Maximum number of secrets in a namespace.
pub const NAMESPACE_LIMIT: usize = 256;
/// Maximum bytes of all values that one instance uses, with the names of their keys.
pub const INSTANCE_LIMIT: usize = 256 << 10;

/// Why a secret is refused. No message contains a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The name is invalid.
    #[error(
        "`{0}` can't be the name of a secret: at most {NAME_LIMIT} lower-case letters, digits and `-`, with a letter or digit at both ends"
    )]
    Name(String),
    /// The name of a key is invalid.
    #[error(
        "`{0}` can't be the key of a secret: at most {KEY_LIMIT} letters, digits, `-`, `_` and `.`, with no `.` at its start and no `..`"
    )]
    Key(String),
    /// A value is too long.
    #[error("the value of `{key}` has {size} bytes; at most {VALUE_LIMIT} are allowed")]
    Value {
        /// Key of the value.
        key: String,
        /// Size of the value, bytes.
        size: usize,
    },
    /// The secret as a whole is too long.
    #[error(
        "the secret has {0} bytes, the names of its keys included; at most {SECRET_LIMIT} are allowed"
    )]
    Size(usize),
}

/// The first 60 characters of a text, without control characters.
fn quoted(text: &str) -> String {
    let harmless = text.chars().filter(|character| !character.is_control());
    harmless.take(60).collect()
}

/// Checks the name of a secret.
///
/// # Errors
/// [`SecretError::Name`].
pub fn check_name(name: &str) -> Result<(), SecretError> {
    if name.len() > NAME_LIMIT || super::name::check_label(name).is_err() {
        return Err(SecretError::Name(quoted(name)));
    }
    Ok(())
}

/// Checks the name of a secret's key, which is also the name of a file.
///
/// # Errors
/// [`SecretError::Key`].
pub fn check_key(key: &str) -> Result<(), SecretError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = (1..=KEY_LIMIT).contains(&key.len()) && key.bytes().all(plain);
    if !fits || key.starts_with('.') || key.contains("..") {
        return Err(SecretError::Key(quoted(key)));
    }
    Ok(())
}

/// Values by key. `Debug` shows only the keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValues(pub BTreeMap<String, Vec<u8>>);

impl fmt::Debug for SecretValues {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

impl SecretValues {
    /// Checks the keys and values of one secret.
    ///
    /// # Errors
    /// [`SecretError`], which names the key.
    pub fn check(&self) -> Result<(), SecretError> {
        for (key, value) in &self.0 {
            check_key(key)?;
            if value.len() > VALUE_LIMIT {
                return Err(SecretError::Value {
                    key: key.clone(),
                    size: value.len(),
                });
            }
        }
        match self.size() {
            size if size > SECRET_LIMIT => Err(SecretError::Size(size)),
            _ => Ok(()),
        }
    }

    /// Bytes of all values and the names of their keys.
    pub fn size(&self) -> usize {
        let sizes = self.0.iter().map(|(key, value)| key.len() + value.len());
        sizes.sum()
    }
}

/// Whether an environment variable can have the value: UTF-8 without NUL.
pub fn is_text(value: &[u8]) -> bool {
    !value.contains(&0) && std::str::from_utf8(value).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_are_bounded() {
        assert!(check_name("db").is_ok() && check_name(&"a".repeat(40)).is_ok());
        for name in ["", "-a", "A", "a_b", &"a".repeat(41), "a/b", "a.b"] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for key in ["PASSWORD", "tls.crt", "_x", &"k".repeat(128)] {
            assert!(check_key(key).is_ok(), "{key}");
        }
        for key in [
            "",
            ".",
            "..",
            ".a",
            "a..b",
            "a/b",
            "ä",
            "a b",
            &"k".repeat(129),
        ] {
            assert!(check_key(key).is_err(), "{key}");
        }
    }

    #[test]
    fn sizes_are_bounded_and_nothing_shows_a_value() {
        let of = |sizes: &[usize]| {
            let numbered = sizes.iter().enumerate();
            let values = numbered.map(|(at, size)| (format!("k{at}"), vec![b'v'; *size]));
            SecretValues(values.collect())
        };
        assert_eq!(of(&[VALUE_LIMIT, VALUE_LIMIT - 4]).check(), Ok(()));
        let error = of(&[VALUE_LIMIT + 1]).check().unwrap_err();
        assert!(matches!(error, SecretError::Value { .. }), "{error}");
        let error = of(&[VALUE_LIMIT, VALUE_LIMIT]).check().unwrap_err();
        assert!(matches!(error, SecretError::Size(_)), "{error}");
        let values = SecretValues(BTreeMap::from([("A".to_owned(), b"hunter2".to_vec())]));
        assert_eq!(format!("{values:?}"), "{\"A\"}");
        assert!(is_text(b"a\nb") && !is_text(b"a\0b") && !is_text(&[0xff]));
    }
}
