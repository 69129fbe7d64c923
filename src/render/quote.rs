//! The quoting of systemd's unit files and of Podman's quadlets, as filters of the templates.
//!
//! A value passes up to three readers: the quadlet generator (podman-systemd.unit(5)), which
//! takes some keys as they stand and splits others into words; systemd, which expands `%` in all
//! and `$` in command lines (systemd.service(5), "Command lines"); and the program itself. Each
//! filter makes one value that comes out of all of its readers as it went in, or refuses it.

/// Why a value can't be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuoteError {
    /// There is nothing to write.
    #[error("the value is empty")]
    Empty,
    /// No unit file can hold it.
    #[error("the value has a NUL character")]
    Nul,
    /// This key is not unescaped by its reader.
    #[error("the value {0:?} has a control character, which this key can't hold")]
    Control(String),
    /// The reader would cut these off.
    #[error(
        "the value {0:?} begins or ends with a space, a quote or a backslash, which this key loses"
    )]
    Edge(String),
    /// More than the one plain word that this key takes.
    #[error("the value {0:?} is not one plain word")]
    NotAToken(String),
    /// The generator and systemd write and read this character differently.
    #[error("the value {0:?} has the character U+0080, which does not survive Podman's generator")]
    Padding(String),
}

/// A key of systemd's own that takes its value as it stands (`Description=`): `%` is doubled.
pub fn plain(text: &str) -> Result<String, QuoteError> {
    check_raw(text)?;
    Ok(text.replace('%', "%%"))
}

/// A key of a quadlet that is taken as it stands and put on podman's command line
/// (`Image=`, `HostName=`, `Tmpfs=`): `%` and `$` are doubled.
pub fn value(text: &str) -> Result<String, QuoteError> {
    check_raw(text)?;
    Ok(text.replace('%', "%%").replace('$', "$$"))
}

/// One word of a command line, or of a quadlet's key that becomes a part of one (`Exec=`,
/// `Label=`, `ExecStart=`): quoted where needed, `%` and `$` doubled.
pub fn word(text: &str) -> Result<String, QuoteError> {
    if text.contains('\u{80}') {
        return Err(QuoteError::Padding(text.to_owned()));
    }
    quoted(text, true)
}

/// One word of a key of systemd's own that expands no variables (`Environment=`,
/// `ReadWritePaths=`): quoted where needed, `%` doubled.
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

/// Whether an argument does not survive as a word: the generator ends the list at an empty word
/// and writes none, systemd takes a lone `;` as the end of a command, and U+0080 is escaped as a
/// character by the one and read as a byte by the other.
pub fn needs_variable(text: &str) -> bool {
    text.is_empty() || text == ";" || text.contains('\u{80}')
}

/// Name of the variable that stands for the argument at `place`.
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
