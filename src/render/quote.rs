//! Quoting for systemd's unit files and Podman's quadlets, as filters of the templates.
//!
//! A value is read by up to three programs. The quadlet generator (podman-systemd.unit(5)) takes
//! some keys literally and splits others into words. systemd expands `%` in all keys, and `$` in
//! command lines (systemd.service(5), "Command lines"). The third reader is the program itself.
//! Each filter writes a value so that it comes out of all its readers unchanged, or rejects it.

/// Why a value can't be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuoteError {
    /// The value is empty.
    #[error("the value is empty")]
    Empty,
    /// The value contains a NUL, which no unit file can contain.
    #[error("the value has a NUL character")]
    Nul,
    /// The value has control characters, but the reader does not unescape this key.
    #[error("the value {0:?} has a control character, which this key can't hold")]
    Control(String),
    /// The reader would strip the first or last characters.
    #[error(
        "the value {0:?} begins or ends with a space, a quote or a backslash, which this key loses"
    )]
    Edge(String),
    /// The key takes only one plain word.
    #[error("the value {0:?} is not one plain word")]
    NotAToken(String),
    /// The generator escapes this character differently from systemd.
    #[error("the value {0:?} has the character U+0080, which does not survive Podman's generator")]
    Padding(String),
}

/// A systemd key that is taken literally (`Description=`): `%` is doubled.
pub fn plain(text: &str) -> Result<String, QuoteError> {
    check_raw(text)?;
    Ok(text.replace('%', "%%"))
}

/// A quadlet key that is taken literally and put on podman's command line (`Image=`, `HostName=`,
/// `Tmpfs=`): `%` and `$` are doubled.
pub fn value(text: &str) -> Result<String, QuoteError> {
    check_raw(text)?;
    Ok(text.replace('%', "%%").replace('$', "$$"))
}

/// One word of a command line, or of a quadlet key that becomes part of one (`Exec=`, `Label=`,
/// `ExecStart=`): quoted where needed, `%` and `$` doubled.
pub fn word(text: &str) -> Result<String, QuoteError> {
    if text.contains('\u{80}') {
        return Err(QuoteError::Padding(text.to_owned()));
    }
    quoted(text, true)
}

/// One word of a systemd key that expands no variables (`Environment=`, `ReadWritePaths=`): quoted
/// where needed, `%` doubled.
pub fn setting(text: &str) -> Result<String, QuoteError> {
    quoted(text, false)
}

/// A word that needs no quoting anywhere (`AddCapability=`, columns of tmpfiles.d(5)).
pub fn token(text: &str) -> Result<String, QuoteError> {
    let simple = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.' | '/' | '+' | ':')
    };
    if text.is_empty() {
        return Err(QuoteError::Empty);
    }
    if !text.chars().all(simple) {
        return Err(QuoteError::NotAToken(text.to_owned()));
    }
    Ok(text.to_owned())
}

/// An array of words as JSON, for `Entrypoint=`, which podman reads as JSON.
pub fn json(words: &[String]) -> Result<String, QuoteError> {
    if words.iter().any(|text| text.contains('\0')) {
        return Err(QuoteError::Nul);
    }
    let text = serde_json::Value::from(words).to_string();
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            plain.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            plain.push(character);
        }
    }
    value(&plain)
}

/// The words of `Exec=`. A word that the generator or systemd would lose ([`needs_variable`]) is
/// written as `${KAT_ARGUMENT_n}`; the unit's `Environment=` gives that variable its value.
pub fn arguments(words: &[String]) -> Result<String, QuoteError> {
    let mut line = String::new();
    for (place, text) in words.iter().enumerate() {
        if place > 0 {
            line.push(' ');
        }
        if needs_variable(text) {
            line.push_str(&format!("${{{}}}", argument_variable(place)));
        } else {
            line.push_str(&word(text)?);
        }
    }
    Ok(line)
}

/// Whether an argument can't be written as a word: the generator ends the list at an empty word and
/// writes none, systemd takes a lone `;` as the end of a command, and U+0080 is escaped as a
/// character by the generator but read as a byte by systemd.
pub fn needs_variable(text: &str) -> bool {
    text.is_empty() || text == ";" || text.contains('\u{80}')
}

/// Name of the variable for the argument at `place`.
pub fn argument_variable(place: usize) -> String {
    format!("KAT_ARGUMENT_{place}")
}

fn check_raw(text: &str) -> Result<(), QuoteError> {
    let edge = |character: char| character.is_whitespace() || matches!(character, '"' | '\\');
    if text.is_empty() {
        return Err(QuoteError::Empty);
    }
    if text.chars().any(char::is_control) {
        return Err(QuoteError::Control(text.to_owned()));
    }
    if text.starts_with(edge) || text.ends_with(edge) {
        return Err(QuoteError::Edge(text.to_owned()));
    }
    Ok(())
}

fn quoted(text: &str, command_line: bool) -> Result<String, QuoteError> {
    if text.is_empty() {
        return Err(QuoteError::Empty);
    }
    let simple = |character: char| {
        character.is_ascii_alphanumeric()
            || matches!(
                character,
                '_' | '-' | '.' | '/' | '=' | ':' | ',' | '@' | '+' | '%' | '$'
            )
    };
    let bare = text.chars().all(simple);
    let mut result = String::with_capacity(text.len() + 2);
    if !bare {
        result.push('"');
    }
    for character in text.chars() {
        match character {
            '\0' => return Err(QuoteError::Nul),
            '%' => result.push_str("%%"),
            '$' if command_line => result.push_str("$$"),
            '\\' => result.push_str("\\\\"),
            '"' => result.push_str("\\\""),
            '\n' => result.push_str("\\n"),
            '\r' => result.push_str("\\r"),
            '\t' => result.push_str("\\t"),
            other if other.is_ascii_control() => {
                result.push_str(&format!("\\x{:02x}", u32::from(other)));
            }
            other => result.push(other),
        }
    }
    if !bare {
        result.push('"');
    }
    Ok(result)
}

#[cfg(test)]
mod tests;
