//! Texts, numbers, words, quantities, and lists and mappings of texts.

use std::{collections::BTreeMap, str::FromStr};

use super::{Decoder, EnumWord, PathValue};
use crate::{
    check::{self, CheckResult},
    diagnostic::{Class, quote},
    fields::FieldType,
    suggest::nearest,
    yaml::{YamlNode, YamlValue, key_path},
};
use kat_types::resource::{Bytes, MOST_ALLOWED_NAMESPACES, MilliCpu};

/// The text of a scalar, and whether it was written without quotes.
fn scalar(node: &YamlNode) -> Option<(&str, bool)> {
    match &node.value {
        YamlValue::Scalar { text, plain } if !node.is_null() => Some((text, *plain)),
        _ => None,
    }
}

/// A scalar in a message.
fn shown(text: &str, plain: bool) -> String {
    match plain {
        true => format!("`{}`", quote(text)),
        false => format!("the text `{}`", quote(text)),
    }
}

impl Decoder<'_> {
    /// Any text, as written: `1.10`, `on` and `yes` stay what they are.
    pub(crate) fn text(&mut self, at: &PathValue<'_>) -> Option<String> {
        match scalar(at.node) {
            Some((text, _)) => Some(text.to_owned()),
            None => {
                let hint = at.node.is_null().then(|| {
                    "leave the field out, or write `\"\"` for empty text and `\"null\"` for the word"
                        .to_owned()
                });
                self.wrong_type(at, "text", hint);
                None
            }
        }
    }

    /// Text that a check accepts.
    pub(crate) fn checked(
        &mut self,
        at: &PathValue<'_>,
        check: impl FnOnce(&str) -> CheckResult,
    ) -> Option<String> {
        let text = self.text(at)?;
        if let Err(complaint) = check(&text) {
            self.complain(at, complaint);
        }
        Some(text)
    }

    /// `true` or `false`, and nothing else that YAML once took for them.
    pub(crate) fn boolean(&mut self, at: &PathValue<'_>) -> Option<bool> {
        let Some((text, plain)) = scalar(at.node) else {
            self.wrong_type(at, "true or false", None);
            return None;
        };
        let meant = match text.to_lowercase().as_str() {
            "true" | "yes" | "on" | "y" | "1" => Some(true),
            "false" | "no" | "off" | "n" | "0" => Some(false),
            _ => None,
        };
        match (text, plain) {
            ("true", true) => return Some(true),
            ("false", true) => return Some(false),
            _ => {}
        }
        let hint = match (plain, meant) {
            (false, Some(meant)) => Some(format!("write `{meant}`, without quotes")),
            (true, Some(meant)) => Some(format!("write `{meant}`")),
            _ => None,
        };
        let message = format!("found {}, expected true or false", shown(text, plain));
        self.hard(Class::Type, at.node.span, &at.path, message, hint);
        None
    }

    /// A whole number in the bounds that the table names.
    pub(crate) fn integer<T: TryFrom<u64>>(&mut self, at: &PathValue<'_>) -> Option<T> {
        let (least, most) = self.bounds(at);
        let expected = format!("a whole number from {least} to {most}");
        let Some((text, plain)) = scalar(at.node) else {
            self.wrong_type(at, &expected, None);
            return None;
        };
        let (negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let leading_zero = digits.len() > 1 && digits.starts_with('0');
        let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !plain || !number || leading_zero {
            let trimmed = digits.trim_start_matches('0');
            let hint = match (plain, number) {
                (false, true) => Some("write it without quotes".to_owned()),
                (true, true) => Some(format!(
                    "write `{}`",
                    if trimmed.is_empty() { "0" } else { trimmed }
                )),
                _ => None,
            };
            let message = format!("found {}, expected {expected}", shown(text, plain));
            self.hard(Class::Type, at.node.span, &at.path, message, hint);
            return None;
        }
        let value = match negative {
            true => None,
            false => digits.parse::<u64>().ok(),
        };
        let message = format!("found {}, expected {expected}", quote(text));
        match value.map(|value| (value, T::try_from(value))) {
            Some((value, Ok(held))) => {
                if !(least..=most).contains(&value) {
                    self.soft(Class::Range, at.node.span, &at.path, message, None);
                }
                Some(held)
            }
            _ => {
                self.hard(Class::Range, at.node.span, &at.path, message, None);
                None
            }
        }
    }

    /// The bounds of a number.
    fn bounds(&self, at: &PathValue<'_>) -> (u64, u64) {
        match self.field(at).map(|field| field.value) {
            Some(FieldType::Integer(least, most) | FieldType::IntegerOr(least, most, _)) => {
                (least, most)
            }
            _ => (0, u64::from(u32::MAX)),
        }
    }

    /// One of the words of a type.
    pub(crate) fn word<T: EnumWord>(&mut self, at: &PathValue<'_>) -> Option<T> {
        let words = T::WORDS.iter().map(|(word, _)| *word);
        let expected = || {
            let words: Vec<_> = words.clone().collect();
            match words.as_slice() {
                [only] => format!("`{only}`"),
                words => format!("one of {}", words.join(", ")),
            }
        };
        let Some((text, _)) = scalar(at.node) else {
            let expected = expected();
            self.wrong_type(at, &expected, None);
            return None;
        };
        if let Some((_, value)) = T::WORDS.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let message = format!("found `{}`, expected {}", quote(text), expected());
        let hint = nearest(text, words).map(|meant| format!("did you mean `{meant}`?"));
        self.hard(Class::Range, at.node.span, &at.path, message, hint);
        None
    }

    /// A processor amount of more than nothing.
    pub(crate) fn processor(&mut self, at: &PathValue<'_>) -> Option<MilliCpu> {
        const MOST: u64 = 1_024_000;
        let amount: MilliCpu = self.quantity(at, "a processor amount such as `100m` or `1.5`")?;
        if amount.0 == 0 || amount.0 > MOST {
            let message = format!(
                "found {amount}, expected an amount from 1m to {}",
                MilliCpu(MOST)
            );
            self.soft(Class::Range, at.node.span, &at.path, message, None);
        }
        Some(amount)
    }

    /// A size of at least so many bytes.
    pub(crate) fn size(&mut self, at: &PathValue<'_>, least: Bytes) -> Option<Bytes> {
        const MOST: Bytes = Bytes(1 << 50);
        let size: Bytes = self.quantity(at, "a size such as `64Mi` or `1Gi`")?;
        if size < least || size > MOST {
            let message = format!("found {size} (bytes), expected a size from {least} to {MOST}");
            let hint = (size < least && size.0 > 0)
                .then(|| format!("did you mean `{}Mi`?", size.0))
                .filter(|_| size.0 < 1 << 20);
            self.soft(Class::Range, at.node.span, &at.path, message, hint);
        }
        Some(size)
    }

    fn quantity<T: FromStr>(&mut self, at: &PathValue<'_>, expected: &str) -> Option<T> {
        let Some((text, _)) = scalar(at.node) else {
            self.wrong_type(at, expected, None);
            return None;
        };
        let Ok(value) = text.parse() else {
            let message = format!("found `{}`, expected {expected}", quote(text));
            self.hard(Class::Type, at.node.span, &at.path, message, None);
            return None;
        };
        Some(value)
    }

    /// A list of texts that a check accepts, in the order written.
    pub(crate) fn texts(
        &mut self,
        at: &PathValue<'_>,
        check: fn(&str) -> CheckResult,
    ) -> Option<Vec<String>> {
        self.list(at, |decoder, at| decoder.checked(at, check))
    }

    /// The same, and none of them twice.
    pub(crate) fn distinct(
        &mut self,
        at: &PathValue<'_>,
        check: fn(&str) -> CheckResult,
    ) -> Option<Vec<String>> {
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        self.list(at, |decoder, at| {
            let text = decoder.checked(at, check)?;
            decoder.once(at, &text, &mut seen);
            Some(text)
        })
    }

    /// Names of namespaces that may reach something; `*` for all. Every machine knows each of them.
    pub(crate) fn namespaces(&mut self, at: &PathValue<'_>) -> Option<Vec<String>> {
        let found = self.distinct(at, check::namespace_or_all)?;
        if found.len() > MOST_ALLOWED_NAMESPACES {
            let message = format!(
                "found {} namespaces, expected at most {MOST_ALLOWED_NAMESPACES}",
                found.len()
            );
            let hint = Some("write \"*\" for all namespaces".to_owned());
            self.soft(Class::Range, at.node.span, &at.path, message, hint);
        }
        Some(found)
    }

    /// Complains about a text that was seen before; the lines of the first ones lie in `seen`.
    pub(crate) fn once(
        &mut self,
        at: &PathValue<'_>,
        text: &str,
        seen: &mut BTreeMap<String, u32>,
    ) {
        if let Some(first) = seen.get(text) {
            let message = format!("`{}` is written twice, first in line {first}", quote(text));
            self.soft(Class::Duplicate, at.node.span, &at.path, message, None);
            return;
        }
        seen.insert(text.to_owned(), at.node.span.start.line);
    }

    /// Texts under free keys.
    pub(crate) fn text_map(
        &mut self,
        at: &PathValue<'_>,
        check_key: fn(&str) -> CheckResult,
        check_value: fn(&str) -> CheckResult,
    ) -> Option<BTreeMap<String, String>> {
        let YamlValue::Mapping(entries) = &at.node.value else {
            let hint = self.example(at);
            self.wrong_type(at, "a mapping of texts", hint);
            return None;
        };
        let mut map = BTreeMap::new();
        let mut complete = true;
        for entry in entries {
            let path = key_path(&at.path, &entry.key);
            if let Err(complaint) = check_key(&entry.key) {
                self.soft(
                    complaint.class,
                    entry.key_span,
                    &path,
                    complaint.message,
                    complaint.hint,
                );
            }
            let value = PathValue {
                node: &entry.node,
                path,
                key: Some(entry.key_span),
            };
            match self.checked(&value, check_value) {
                Some(text) => {
                    map.insert(entry.key.clone(), text);
                }
                None => complete = false,
            }
        }
        complete.then_some(map)
    }
}
