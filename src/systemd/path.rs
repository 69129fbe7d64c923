//! Converts names of units to D-Bus object paths and back.
//!
//! systemd writes every byte of a unit's name that is not an ASCII letter or digit as `_` and two
//! lower-case hexadecimal digits (org.freedesktop.systemd1(5), "Manager Object"); this includes a
//! digit in the first place.

use std::fmt::Write as _;

/// Prefix of the object paths of units.
pub const UNIT_PREFIX: &str = "/org/freedesktop/systemd1/unit/";

/// Encodes any text as one element of an object path; `_` stands for the empty text.
pub fn escape(text: &str) -> String {
    if text.is_empty() {
        return "_".to_owned();
    }
    let mut label = String::with_capacity(text.len() + 16);
    for (place, byte) in text.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (place > 0 && byte.is_ascii_digit()) {
            label.push(char::from(byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(label, "_{byte:02x}");
        }
    }
    label
}

/// Decodes an element; `None` if it is malformed.
pub fn unescape(label: &str) -> Option<String> {
    if label == "_" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(label.len());
    let mut rest = label.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'_' => {
                let high = char::from(rest.next()?).to_digit(16)?;
                let low = char::from(rest.next()?).to_digit(16)?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            byte if byte.is_ascii_alphanumeric() => bytes.push(byte),
            _ => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

/// Object path of a unit.
pub fn unit_path(unit: &str) -> String {
    format!("{UNIT_PREFIX}{}", escape(unit))
}

/// Name of the unit at an object path; `None` for other paths.
pub fn unit_of_path(path: &str) -> Option<String> {
    unescape(path.strip_prefix(UNIT_PREFIX)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_units_as_systemd_does() {
        assert_eq!(
            unit_path("kat-default-web-ab12c.service"),
            "/org/freedesktop/systemd1/unit/kat_2ddefault_2dweb_2dab12c_2eservice"
        );
        assert_eq!(escape("9p"), "_39p");
        assert_eq!(escape(""), "_");
        assert_eq!(unescape("_"), Some(String::new()));
    }

    #[test]
    fn refuses_what_is_no_element() {
        for wrong in ["a-b", "_2", "_zz", "a_", "a/b", "_ff"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
        assert_eq!(unit_of_path("/org/freedesktop/systemd1/job/7"), None);
    }

    proptest! {
        #[test]
        fn comes_back_as_it_went(text in ".*") {
            prop_assert_eq!(unescape(&escape(&text)), Some(text));
        }
    }
}
