//! Parses YAML into a small tree in which every key and value has its position.
//!
//! Supports only what the `*.kat` files need: plain mappings, lists and scalars. Anchors, aliases,
//! merge keys and tags are refused at their first occurrence, so nothing is ever expanded. A
//! repeated key is a mistake at its second occurrence. Scalars keep their text as written: the
//! field that reads a scalar decides its meaning.

mod builder;
#[cfg(test)]
mod tests;

use super::diagnostic::{Class, Diagnostic, Position, Span, quote};
use builder::Builder;

/// A value and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct YamlNode {
    pub(crate) span: Span,
    pub(crate) value: YamlValue,
}

/// The kinds of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum YamlValue {
    /// Text, and whether it was written without quotes and not as a block.
    Scalar {
        /// The text, escapes resolved.
        text: String,
        /// Neither quoted nor a block.
        plain: bool,
    },
    /// A list.
    Sequence(Vec<YamlNode>),
    /// Keys and values in the order written.
    Mapping(Vec<MappingEntry>),
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MappingEntry {
    /// The key's text.
    pub(crate) key: String,
    /// Where the key stands.
    pub(crate) key_span: Span,
    /// The value.
    pub(crate) node: YamlNode,
}

impl YamlNode {
    /// Nothing, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            YamlValue::Scalar { text, plain } => {
                *plain && matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }
}

/// The documents of one file.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    /// The root of each document; empty if the text could not be read to its end.
    pub(crate) roots: Vec<YamlNode>,
    /// The text could not be read to its end.
    pub(crate) broken: bool,
}

/// Reads the text of one file; mistakes go to `diagnostics`.
///
/// After a mistake of syntax the rest of the file is not read.
pub(crate) fn read(file: &str, text: &str, diagnostics: &mut Vec<Diagnostic>) -> Documents {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(found) = forbidden_character(file, text) {
        diagnostics.push(found);
        return Documents {
            roots: Vec::new(),
            broken: true,
        };
    }
    let mut builder = Builder::new(file, diagnostics);
    match builder.run(text) {
        Ok(()) => Documents {
            roots: builder.roots,
            broken: false,
        },
        Err(fatal) => {
            diagnostics.push(*fatal);
            Documents {
                roots: Vec::new(),
                broken: true,
            }
        }
    }
}

/// The first control character that no text file has.
fn forbidden_character(file: &str, text: &str) -> Option<Diagnostic> {
    let mut place = Position { line: 1, column: 1 };
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        // A carriage return alone ends a line too (YAML 1.2, 5.4).
        let ends_line =
            character == '\n' || (character == '\r' && characters.peek() != Some(&'\n'));
        match character {
            _ if ends_line => {
                place.line += 1;
                place.column = 0;
            }
            '\t' | '\r' => {}
            other if other.is_control() => {
                let message = format!(
                    "found the control character {}, expected text",
                    other.escape_unicode()
                );
                return Some(Diagnostic::at(
                    Class::Encoding,
                    file,
                    Span::point(place),
                    message,
                ));
            }
            _ => {}
        }
        place.column += 1;
    }
    None
}

/// The JSON form of a value: plain `true`, `false`, `null` and whole numbers are not texts.
pub(crate) fn to_json(node: &YamlNode) -> serde_json::Value {
    use serde_json::Value as Json;
    match &node.value {
        _ if node.is_null() => Json::Null,
        YamlValue::Scalar { text, plain: true } => match text.as_str() {
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            number => number
                .parse::<u64>()
                .map_or_else(|_| Json::String(number.to_owned()), Json::from),
        },
        YamlValue::Scalar { text, .. } => Json::String(text.clone()),
        YamlValue::Sequence(items) => Json::Array(items.iter().map(to_json).collect()),
        YamlValue::Mapping(entries) => Json::Object(
            entries
                .iter()
                .map(|entry| (entry.key.clone(), to_json(&entry.node)))
                .collect(),
        ),
    }
}

/// The JSON form of a text of the field table (a default or an example).
pub fn json_of(text: &str) -> serde_json::Value {
    let documents = read("", text, &mut Vec::new());
    documents
        .roots
        .first()
        .map_or(serde_json::Value::Null, to_json)
}

/// The JSON form of the one document of a YAML file that is none of KAT's own, such as a CDI spec.
///
/// # Errors
/// The first mistake, with its line, or that there is not exactly one document.
pub fn foreign_document(text: &str) -> Result<serde_json::Value, String> {
    let mut mistakes = Vec::new();
    let documents = read("", text, &mut mistakes);
    if let Some(mistake) = mistakes.first() {
        return Err(format!("line {}: {}", mistake.line, mistake.message));
    }
    match documents.roots.as_slice() {
        [only] => Ok(to_json(only)),
        roots => Err(format!("found {} documents, expected one", roots.len())),
    }
}

/// The value at a path such as `spec.ports[0].name`, and the position of its key if it has one.
///
/// Supports only paths of plain keys.
pub(crate) fn locate<'n>(root: &'n YamlNode, path: &str) -> Option<(&'n YamlNode, Option<Span>)> {
    let mut found = (root, None);
    let parts = path
        .split(['.', '['])
        .map(|part| part.strip_suffix(']').unwrap_or(part));
    for part in parts.filter(|part| !part.is_empty()) {
        found = match &found.0.value {
            YamlValue::Mapping(entries) => {
                let entry = entries.iter().find(|entry| entry.key == part)?;
                (&entry.node, Some(entry.key_span))
            }
            YamlValue::Sequence(items) => (items.get(part.parse::<usize>().ok()?)?, None),
            YamlValue::Scalar { .. } => return None,
        };
    }
    Some(found)
}

/// `parent.key`; keys with dots and the like in quotes.
pub fn key_path(parent: &str, key: &str) -> String {
    let simple = !key.is_empty()
        && key
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || matches!(character, '-' | '_'));
    match (simple, parent.is_empty()) {
        (true, true) => key.to_owned(),
        (true, false) => format!("{parent}.{key}"),
        (false, _) => format!("{parent}[\"{}\"]", quote(key)),
    }
}

/// `parent[index]`.
pub(crate) fn item_path(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}
