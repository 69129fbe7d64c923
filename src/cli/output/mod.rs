//! How items are printed.

pub(super) mod json;
pub(super) mod jsonpath;
pub(super) mod table;
pub(super) mod yaml;

use std::io::IsTerminal;

use serde::Serialize;

use super::{args::DocumentFormat, console::Console, errors::CliError};
use jsonpath::Template;

/// One value as a document of its own.
pub(super) fn document<T: Serialize>(
    console: &Console,
    format: DocumentFormat,
    value: &T,
) -> Result<(), CliError> {
    match format {
        DocumentFormat::Json => console.print(&json::pretty(value)?),
        DocumentFormat::Yaml => console.print(&yaml::document(value)?),
    }
}

/// What a template picks out of a value, on a line of its own.
pub(super) fn picked<T: Serialize>(
    console: &Console,
    template: &Template,
    value: &T,
) -> Result<(), CliError> {
    let value = serde_json::to_value(value).map_err(json::not_written)?;
    let text = template.fill(&value);
    if std::io::stdout().is_terminal() {
        // Somebody else's text, which programs want as it is.
        let lines: Vec<String> = text.lines().map(plain).collect();
        return console.line(&lines.join("\n"));
    }
    console.line(&text)
}

/// The word that a plain enum has on the wire, such as `NotReady` or `pending_check`.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "-".to_owned(),
    }
}

/// Somebody else's text on one line, without what could move a terminal's cursor.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for (index, part) in text.trim_end().lines().enumerate() {
        if index > 0 {
            line.push_str(" | ");
        }
        line.push_str(&plain(part));
    }
    line
}

/// One line of somebody else's text with its control characters written out.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if character == '\t' {
            shown.push(' ');
        } else if character.is_control() || turns {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// What is not said is `-`.
pub(super) fn or_dash(text: &str) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        one_line(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(one_line("a\nb\u{1b}[2J\tc\r\n"), "a | b\\u{1b}[2J c");
        assert_eq!(one_line("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(or_dash(""), "-");
    }

    #[test]
    fn enums_have_their_wire_words() {
        assert_eq!(
            word(&crate::api::types::Health::PendingCheck),
            "pending_check"
        );
        assert_eq!(word(&crate::api::types::NodePhase::NotReady), "NotReady");
    }
}
