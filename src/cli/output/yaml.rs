//! YAML output (1.2, but equivalent for 1.1 readers): block style, two spaces of indentation, plain
//! scalars only where no reader could take them for something else.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::json::not_written;
use crate::errors::CliError;
use kat_types::encoding::json;

/// A whole document with a line feed at the end.
pub(crate) fn document<T: Serialize>(value: &T) -> Result<String, CliError> {
    let value = json::tree("the answer", value).map_err(not_written)?;
    let mut text = String::new();
    match &value {
        Value::Object(map) if !map.is_empty() => mapping(&mut text, map, 0),
        Value::Array(items) if !items.is_empty() => sequence(&mut text, items, 0),
        scalar => {
            text.push_str(&inline(scalar));
            text.push('\n');
        }
    }
    Ok(text)
}

/// Entries of a mapping. The first one continues the present line, the others are indented.
fn mapping(text: &mut String, map: &serde_json::Map<String, Value>, indent: usize) {
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 {
            spaces(text, indent);
        }
        text.push_str(&string(key));
        text.push(':');
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                spaces(text, indent + 2);
                mapping(text, inner, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                spaces(text, indent);
                sequence(text, items, indent);
            }
            scalar => {
                text.push(' ');
                text.push_str(&inline(scalar));
                text.push('\n');
            }
        }
    }
}

/// Entries of a sequence. The first one continues the present line.
fn sequence(text: &mut String, items: &[Value], indent: usize) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            spaces(text, indent);
        }
        text.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => mapping(text, map, indent + 2),
            Value::Array(inner) if !inner.is_empty() => sequence(text, inner, indent + 2),
            scalar => {
                text.push_str(&inline(scalar));
                text.push('\n');
            }
        }
    }
}

fn spaces(text: &mut String, count: usize) {
    text.extend(std::iter::repeat_n(' ', count));
}

fn inline(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => string(text),
        Value::Array(_) => "[]".to_owned(),
        Value::Object(_) => "{}".to_owned(),
    }
}

/// A string, plain or in double quotes, always on one line.
pub(crate) fn string(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            other if needs_escape(other) => {
                let code = u32::from(other);
                // Writing to a String cannot fail.
                let _ = match code {
                    0..=0xff => write!(quoted, "\\x{code:02X}"),
                    0x100..=0xffff => write!(quoted, "\\u{code:04X}"),
                    _ => write!(quoted, "\\U{code:08X}"),
                };
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Characters that YAML does not allow unescaped, or takes for line breaks.
fn needs_escape(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
        || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a string can be plain: it begins with a letter, has only harmless characters, and is no
/// reserved word.
fn is_plain(text: &str) -> bool {
    const WORDS: [&str; 11] = [
        "true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan",
    ];
    let harmless = |byte: u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/' | b'@' | b'+')
    };
    let first = text.bytes().next();
    let begins = first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'/');
    // A colon or a space is harmless between two harmless characters.
    let bytes = text.as_bytes();
    let inner = bytes.iter().enumerate().all(|(index, byte)| {
        let next = bytes.get(index + 1).copied();
        match byte {
            b':' | b' ' | b'=' => next.is_some_and(harmless),
            byte => harmless(*byte),
        }
    });
    begins && inner && !WORDS.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use granit_parser::{Event, Parser, ScalarStyle};
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;

    /// Reads the printed subset of YAML with granit-parser: quoted scalars are strings, plain
    /// scalars follow YAML 1.2's core schema.
    fn read(text: &str) -> Value {
        let mut events: Vec<Event<'_>> = Parser::new_from_str(text)
            .map(|event| event.unwrap_or_else(|error| panic!("{error}: {text}")).0)
            .filter(|event| {
                !matches!(
                    event,
                    Event::StreamStart
                        | Event::StreamEnd
                        | Event::DocumentStart(..)
                        | Event::DocumentEnd
                        | Event::Comment(..)
                )
            })
            .collect();
        events.reverse();
        let value = node(&mut events);
        assert!(events.is_empty(), "left over: {events:?}");
        value
    }

    fn node(events: &mut Vec<Event<'_>>) -> Value {
        let event = events.pop().expect("a node");
        if let Some((text, style)) = event.scalar() {
            if style != ScalarStyle::Plain {
                return Value::String(text.to_owned());
            }
            return match text {
                "null" => Value::Null,
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
            };
        }
        match event {
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                while !matches!(events.last(), Some(Event::SequenceEnd)) {
                    items.push(node(events));
                }
                events.pop();
                Value::Array(items)
            }
            Event::MappingStart(..) => {
                let mut map = Map::new();
                while !matches!(events.last(), Some(Event::MappingEnd)) {
                    let key = node(events);
                    map.insert(key.as_str().expect("a string key").to_owned(), node(events));
                }
                events.pop();
                Value::Object(map)
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    #[test]
    fn looks_like_what_people_write() {
        let value = json!({
            "items": [
                {"kind": "Workload", "metadata": {"name": "web", "labels": {}},
                 "spec": {"replicas": 3, "image": "registry.lab:5000/web:1", "args": ["--port", "8080"]}},
                [1, [true, null]],
                [],
            ],
            "message": "two\nlines: \"quoted\"",
        });
        insta::assert_snapshot!(document(&value).unwrap(), @r#"
        items:
        - kind: Workload
          metadata:
            labels: {}
            name: web
          spec:
            args:
            - "--port"
            - "8080"
            image: registry.lab:5000/web:1
            replicas: 3
        - - 1
          - - true
            - null
        - []
        message: "two\nlines: \"quoted\""
        "#);
        assert_eq!(read(&document(&value).unwrap()), value);
    }

    #[test]
    fn what_could_be_something_else_is_quoted() {
        for text in [
            "",
            "true",
            "No",
            "NULL",
            "~",
            "1",
            "1.10",
            "0x1f",
            "1e3",
            "2026-11-20",
            ".inf",
            "-",
            "- a",
            "a: b",
            "a #b",
            "#a",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "%a",
            "@a",
            "`a",
            "a ",
            " a",
            "a:",
            "[a]",
            "{a}",
            "a,b",
            "'a'",
            "y",
            "on",
            "12:30",
            "\u{7f}",
            "\u{85}",
            "\u{2028}x",
            "\u{feff}",
            "ä",
            "a\tb",
            "=",
            "<<",
            "?",
            "? a",
            "---",
            "...",
            "\\",
        ] {
            let value = json!({"key": text, text: ["x", text]});
            let written = document(&value).unwrap();
            assert_eq!(read(&written), value, "{written}");
            let plain = written.contains(&format!("key: {text}\n"));
            assert!(!plain || text.is_empty(), "not quoted: {written}");
        }
        for text in [
            "web",
            "registry.lab:5000/web:1",
            "/var/lib/kat",
            "a b",
            "Not ready yet",
        ] {
            assert_eq!(document(&json!(text)).unwrap(), format!("{text}\n"));
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::String),
            "[ -~\n]{0,12}".prop_map(Value::String),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
                proptest::collection::btree_map("[ -~]{0,8}", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn is_read_back_as_it_was(value in any_value()) {
            let written = document(&value).unwrap();
            prop_assert_eq!(read(&written), value, "{}", written);
        }
    }
}
