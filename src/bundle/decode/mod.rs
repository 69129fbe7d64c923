//! Decodes a YAML tree into the types of `resource`, field by field, and collects every mistake.
//!
//! A function that decodes a value returns `None` only after it has recorded why. [`DecodeMode::Stored`]
//! ignores unknown fields, and every rule that a value breaks while it can still be decoded: a
//! newer leader never refuses what an older one stored.

mod balancer;
mod cluster;
mod compose_forms;
mod container;
mod ingress;
pub(crate) mod job_build_namespace;
mod scalars;
mod words;
mod workload;

use super::{
    check::CheckComplaint,
    diagnostic::{Class, Diagnostic, Span, quote},
    fields::{self, Field},
    kind::DocumentKind,
    suggest::nearest,
    yaml::{MappingEntry, YamlNode, YamlValue, item_path, key_path},
};

pub(super) use crate::decode::job_build_namespace::{build, job, namespace};
pub(super) use balancer::load_balancer;
pub(super) use cluster::{agent_config, cluster};
pub(super) use ingress::route;
pub(super) use words::EnumWord;
pub(super) use workload::workload;

/// Words of other programs' files, in small letters, and the fields that mean the same.
const FOREIGN_FIELDS: [(&str, &str); 5] = [
    ("cmd", "command"),
    ("environment", "env"),
    ("environments", "env"),
    ("mounts", "volumeMounts"),
    ("restart", "restartPolicy"),
];

/// How strictly a text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeMode {
    /// For users' files: everything is checked.
    Strict,
    /// For stored files: unknown fields are ignored, and values are not checked again.
    Stored,
}

/// A value at its path.
#[derive(Debug, Clone)]
pub(super) struct PathValue<'n> {
    /// The value.
    pub(super) node: &'n YamlNode,
    /// Its path; empty for a document.
    pub(super) path: String,
    /// Position of its key, for values of mappings.
    pub(super) key: Option<Span>,
}

impl<'n> PathValue<'n> {
    /// A whole document.
    pub(super) fn root(node: &'n YamlNode) -> Self {
        Self {
            node,
            path: String::new(),
            key: None,
        }
    }

    /// Position for a mistake about something missing below the value.
    fn head(&self) -> Span {
        self.key.unwrap_or(Span::point(self.node.span.start))
    }
}

/// Decodes one document and collects its mistakes.
pub(super) struct Decoder<'a> {
    /// Name of the file.
    pub(super) file: &'a str,
    /// The kind of the document, which decides about its fields.
    pub(super) kind: DocumentKind,
    pub(super) mode: DecodeMode,
    /// The mistakes so far.
    pub(super) diagnostics: &'a mut Vec<Diagnostic>,
}

impl Decoder<'_> {
    /// Records a mistake after which the value can't be decoded.
    pub(super) fn hard(
        &mut self,
        class: Class,
        span: Span,
        path: &str,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        let mut found = Diagnostic::at(class, self.file, span, message).path(path);
        found.hint = hint;
        self.diagnostics.push(found);
    }

    /// Records a broken rule; does nothing in [`DecodeMode::Stored`].
    pub(super) fn soft(
        &mut self,
        class: Class,
        span: Span,
        path: &str,
        message: impl Into<String>,
        hint: Option<String>,
    ) {
        if self.mode == DecodeMode::Strict {
            self.hard(class, span, path, message, hint);
        }
    }

    /// Records a complaint about a value; does nothing in [`DecodeMode::Stored`].
    pub(super) fn complain(&mut self, at: &PathValue<'_>, complaint: CheckComplaint) {
        let CheckComplaint {
            class,
            message,
            hint,
        } = complaint;
        self.soft(class, at.node.span, &at.path, message, hint);
    }

    /// The row of the field table for a value.
    fn field(&self, at: &PathValue<'_>) -> Option<&'static Field> {
        fields::lookup(self.kind, &at.path)
    }

    /// Records that the value has another type than expected.
    fn wrong_type(&mut self, at: &PathValue<'_>, expected: &str, hint: Option<String>) {
        let found = describe(at.node);
        let message = format!("found {found}, expected {expected}");
        let span = if at.node.is_null() {
            at.head()
        } else {
            at.node.span
        };
        self.hard(Class::Type, span, &at.path, message, hint);
    }

    /// The fields of a mapping.
    pub(super) fn mapping<'n>(&mut self, at: &PathValue<'n>) -> Option<Fields<'n>> {
        if let YamlValue::Mapping(entries) = &at.node.value {
            return Some(Fields {
                path: at.path.clone(),
                head: at.head(),
                entries,
                asked: Vec::new(),
            });
        }
        let hint = match &at.node.value {
            YamlValue::Sequence(_) => Some("leave the `-` out".to_owned()),
            _ => compose_forms::hint(at).or_else(|| self.example(at)),
        };
        self.wrong_type(at, "a mapping of fields", hint);
        None
    }

    /// The values of a list, each decoded by `item`; `None` if one could not be decoded.
    pub(super) fn list<'n, T>(
        &mut self,
        at: &PathValue<'n>,
        mut item: impl FnMut(&mut Self, &PathValue<'n>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let YamlValue::Sequence(items) = &at.node.value else {
            let hint = match &at.node.value {
                YamlValue::Mapping(_) => {
                    let compose = compose_forms::hint(at);
                    compose.or_else(|| Some("begin each item with `- `".to_owned()))
                }
                _ => self.example(at),
            };
            self.wrong_type(at, "a list", hint);
            return None;
        };
        let mut decoded = Vec::with_capacity(items.len());
        let mut complete = true;
        for (index, node) in items.iter().enumerate() {
            let at = PathValue {
                node,
                path: item_path(&at.path, index),
                key: None,
            };
            match item(self, &at) {
                Some(value) => decoded.push(value),
                None => complete = false,
            }
        }
        complete.then_some(decoded)
    }

    fn example(&self, at: &PathValue<'_>) -> Option<String> {
        self.field(at).map(|field| {
            let last = field.name();
            format!("such as `{last}: {}`", field.example)
        })
    }
}

/// The kind of a value, in words that do not reveal its text.
fn describe(node: &YamlNode) -> &'static str {
    match &node.value {
        _ if node.is_null() => "nothing",
        YamlValue::Scalar { .. } => "a single value",
        YamlValue::Sequence(_) => "a list",
        YamlValue::Mapping(_) => "a mapping",
    }
}

/// The fields of one mapping; remembers which were read, so that the others are unknown.
pub(super) struct Fields<'n> {
    path: String,
    head: Span,
    entries: &'n [MappingEntry],
    asked: Vec<&'static str>,
}

impl<'n> Fields<'n> {
    /// The value of a field, if it is written.
    pub(super) fn get(&mut self, name: &'static str) -> Option<PathValue<'n>> {
        if !self.asked.contains(&name) {
            self.asked.push(name);
        }
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(PathValue {
            node: &entry.node,
            path: key_path(&self.path, name),
            key: Some(entry.key_span),
        })
    }

    /// Whether a field is written.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name)
    }

    /// The names of the fields that are written and were read.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        let read = self.asked.iter().copied();
        read.filter(move |name| self.has(name))
    }

    /// Position of the mapping.
    pub(super) fn head(&self) -> Span {
        self.head
    }

    /// The path of one of the fields.
    pub(super) fn path_of(&self, name: &str) -> String {
        key_path(&self.path, name)
    }

    /// Position of a field's key, or of the mapping if the field is not written.
    pub(super) fn span_of(&self, name: &str) -> Span {
        let entry = self.entries.iter().find(|entry| entry.key == name);
        entry.map_or(self.head, |entry| entry.key_span)
    }

    /// A field that need not be written.
    pub(super) fn optional<'d, T>(
        &mut self,
        decoder: &mut Decoder<'d>,
        name: &'static str,
        decode: impl FnOnce(&mut Decoder<'d>, &PathValue<'n>) -> Option<T>,
    ) -> Option<T> {
        self.get(name).and_then(|at| decode(decoder, &at))
    }

    /// A field that need not be written; without it `place` keeps its default.
    pub(super) fn fill<'d, T>(
        &mut self,
        decoder: &mut Decoder<'d>,
        name: &'static str,
        place: &mut T,
        decode: impl FnOnce(&mut Decoder<'d>, &PathValue<'n>) -> Option<T>,
    ) {
        if let Some(value) = self.optional(decoder, name, decode) {
            *place = value;
        }
    }

    /// A field that has a value even if it is not written; `None` if a written value could not be
    /// decoded.
    pub(super) fn defaulted<'d, T>(
        &mut self,
        decoder: &mut Decoder<'d>,
        name: &'static str,
        default: impl FnOnce() -> T,
        decode: impl FnOnce(&mut Decoder<'d>, &PathValue<'n>) -> Option<T>,
    ) -> Option<T> {
        match self.get(name) {
            Some(at) => decode(decoder, &at),
            None => Some(default()),
        }
    }

    /// A field that must be written.
    pub(super) fn required<'d, T>(
        &mut self,
        decoder: &mut Decoder<'d>,
        name: &'static str,
        decode: impl FnOnce(&mut Decoder<'d>, &PathValue<'n>) -> Option<T>,
    ) -> Option<T> {
        if let Some(at) = self.get(name) {
            return decode(decoder, &at);
        }
        self.missing(decoder, name);
        None
    }

    /// Records that a field is not written.
    pub(super) fn missing(&mut self, decoder: &mut Decoder<'_>, name: &'static str) {
        let path = self.path_of(name);
        let field = fields::lookup(decoder.kind, &path);
        let example = field.map(|field| format!("such as `{name}: {}`", field.example));
        let message = match field {
            Some(field) => format!("`{name}` is missing: {}", field.description),
            None => format!("`{name}` is missing"),
        };
        decoder.hard(Class::Missing, self.head, &path, message, example);
    }

    /// Records every field that was written and not read as unknown.
    pub(super) fn finish(self, decoder: &mut Decoder<'_>) {
        // After this many mistakes the hints cost more than they are worth.
        const MOST: usize = 1000;
        for entry in self.entries {
            if decoder.diagnostics.len() > MOST {
                break;
            }
            if self.asked.iter().any(|name| *name == entry.key) {
                continue;
            }
            let message = format!("unknown field `{}`", quote(&entry.key));
            let hint = self.hint(decoder.kind, &entry.key);
            let path = key_path(&self.path, &entry.key);
            decoder.soft(Class::Unknown, entry.key_span, &path, message, Some(hint));
        }
    }

    /// A hint for an unknown field.
    fn hint(&self, kind: DocumentKind, key: &str) -> String {
        let free = || {
            self.asked
                .iter()
                .copied()
                .filter(|name| !self.has(name))
                .collect::<Vec<_>>()
        };
        let word = key.to_ascii_lowercase();
        let mut foreign = FOREIGN_FIELDS.iter();
        let foreign = foreign.find(|(other, own)| *other == word && free().contains(own));
        if let Some(meant) = foreign
            .map(|(_, own)| *own)
            .or_else(|| nearest(key, free()))
        {
            return format!("did you mean `{meant}`?");
        }
        if let Some(meant) = nearest(key, self.asked.iter().copied()) {
            return format!("did you mean `{meant}`, which is written too?");
        }
        let own = FOREIGN_FIELDS.iter().find(|(other, _)| *other == word);
        let own = own.map_or(key, |(_, own)| *own);
        let elsewhere = fields::all().find(|field| field.kind == kind && field.name() == own);
        if let Some(field) = elsewhere {
            if own != key {
                return format!("did you mean `{}`?", field.path);
            }
            let parent = match field.parent() {
                "" => "the top of the document".to_owned(),
                parent => format!("`{parent}`"),
            };
            return format!("`{key}` belongs to {parent}: check the indentation");
        }
        let other = fields::all().find(|field| field.name() == key);
        if let Some(field) = other {
            return format!("`{}` belongs to {}", field.path, field.kind.file());
        }
        match self.asked.is_empty() {
            true => "it has no fields: write `{}`".to_owned(),
            false => format!("known here: {}", self.asked.join(", ")),
        }
    }
}
