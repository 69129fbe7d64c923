//! Output formats of items.

pub(super) mod json;
pub(super) mod jsonpath;
pub(super) mod table;
pub(super) mod wrap;
pub(super) mod yaml;

use std::io::IsTerminal;

use serde::Serialize;

use super::{args::DocumentFormat, console::Console, errors::CliError};
use jsonpath::Template;
use kat_types::encoding::plain::push_plain;

pub(super) use kat_types::encoding::plain::plain;
pub(super) use wrap::wrapped;

/// Prints a value as one document.
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

/// Prints the part of a value that a template selects, on a line of its own.
pub(super) fn picked<T: Serialize>(
    console: &Console,
    template: &Template,
    value: &T,
) -> Result<(), CliError> {
    let value = kat_types::encoding::json::tree("the answer", value).map_err(json::not_written)?;
    let text = template.fill(&value);
    if std::io::stdout().is_terminal() {
        // On a terminal control characters are replaced; in a pipe programs get the text unchanged.
        let lines: Vec<String> = text.lines().map(plain).collect();
        return console.line(&lines.join("\n"));
    }
    console.line(&text)
}

/// The name of an enum's unit variant in JSON, such as `NotReady` or `pending_check`.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match kat_types::encoding::json::tree("a word", value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "-".to_owned(),
    }
}

/// Foreign text on one line, without characters that could move a terminal's cursor.
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

/// A program's output line for a terminal: tabs are kept, and with `colour` also its colours, which
/// are reset at its end. Nothing else in it moves the cursor or affects other lines.
pub(super) fn printed(line: &str, colour: bool) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut coloured = false;
    // Lines that were written for a terminal end with a carriage return.
    let mut rest = line.trim_end_matches('\r');
    loop {
        if let Some((code, after)) = colour_at(rest) {
            if colour {
                shown.push_str(code);
                coloured = true;
            }
            rest = after;
            continue;
        }
        let mut characters = rest.chars();
        match characters.next() {
            Some('\t') => shown.push('\t'),
            Some(other) => push_plain(&mut shown, other),
            None => break,
        }
        rest = characters.as_str();
    }
    if coloured {
        shown.push_str("\u{1b}[0m");
    }
    shown
}

/// A complete "select graphic rendition" sequence (ECMA-48, 8.3.117) at the start of a text, and
/// the rest.
fn colour_at(text: &str) -> Option<(&str, &str)> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.trim_start_matches(|one: char| one.is_ascii_digit() || ";:".contains(one));
    let after = end.strip_prefix('m')?;
    text.split_at_checked(text.len() - after.len())
}

/// Prints lines of foreign text: unchanged in a pipe, and without characters that could move the
/// cursor on a terminal.
pub(super) fn foreign_lines(console: &Console, text: &str) -> Result<(), CliError> {
    if !std::io::stdout().is_terminal() {
        return console.print(text);
    }
    let lines: Vec<String> = text
        .lines()
        .map(|line| printed(line, console.colour) + "\n")
        .collect();
    console.print(&lines.concat())
}

/// An image with the first digits of its digest, which tell it from others.
pub(super) fn short_image(image: &str) -> String {
    const DIGITS: usize = 12;
    match image.split_once("@sha256:") {
        Some((name, digest)) if digest.chars().count() > DIGITS => {
            let head: String = digest.chars().take(DIGITS).collect();
            format!("{name}@sha256:{head}")
        }
        _ => image.to_owned(),
    }
}

/// `-` for an empty text.
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
    fn an_images_digest_is_shortened_and_its_tag_is_not() {
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(
            short_image(&format!("r.example/web:1@sha256:{digest}")),
            "r.example/web:1@sha256:0123456789ab"
        );
        assert_eq!(short_image("r.example/web:1"), "r.example/web:1");
        assert_eq!(
            short_image("r.example/web@sha256:0123"),
            "r.example/web@sha256:0123"
        );
    }

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(one_line("a\nb\u{1b}[2J\tc\r\n"), "a | b\\u{1b}[2J c");
        assert_eq!(one_line("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(or_dash(""), "-");
    }

    #[test]
    fn a_printed_line_has_its_colours_and_nothing_else() {
        for (line, shown) in [
            ("plain\ttext \u{e9}", "plain\ttext \u{e9}"),
            ("for a terminal\r", "for a terminal"),
            (
                "\u{1b}[1;31mred\u{1b}[mx",
                "\u{1b}[1;31mred\u{1b}[mx\u{1b}[0m",
            ),
            ("\u{1b}[38:5:1mx", "\u{1b}[38:5:1mx\u{1b}[0m"),
            ("secret\rweb-bbbbb | mine", "secret\\rweb-bbbbb | mine"),
            (
                "a\u{1b}[2Jb\u{8}\u{9b}2Jc\nd",
                "a\\u{1b}[2Jb\\u{8}\\u{9b}2Jc\\nd",
            ),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            // A sequence that sets a keyboard mode is not a colour.
            ("\u{1b}[>4;1mx", "\\u{1b}[>4;1mx"),
            // A colour sequence may be cut in the middle, and its second half arrive alone.
            ("red\u{1b}[3", "red\\u{1b}[3"),
            ("red\u{1b}", "red\\u{1b}"),
            ("1mx", "1mx"),
            ("\u{1b}[3\u{1b}[4mx", "\\u{1b}[3\u{1b}[4mx\u{1b}[0m"),
        ] {
            assert_eq!(printed(line, true), shown, "{line:?}");
        }
        assert_eq!(printed("\u{1b}[31mred\u{1b}[0m\ra", false), "red\\ra");
    }

    #[test]
    fn enums_have_their_wire_words() {
        assert_eq!(word(&kat_types::api::Health::PendingCheck), "pending_check");
        assert_eq!(word(&kat_types::api::NodePhase::NotReady), "NotReady");
    }
}
