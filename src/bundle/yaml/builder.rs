//! Builds trees from the parser's events.

use std::{borrow::Cow, collections::BTreeMap};

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, options};

use super::{
    super::diagnostic::{Class, Diagnostic, Position, Span, quote},
    MappingEntry, YamlNode, YamlValue, item_path, key_path,
};

/// Maximum nesting; the deepest field of the schema is at 9.
const DEEPEST: usize = 32;
/// Maximum number of mappings, lists and scalars of one file.
const MOST_NODES: usize = 20_000;
/// Maximum number of documents of one file.
const MOST_DOCUMENTS: usize = 16;

/// A collection that is not complete yet.
enum OpenCollection {
    Sequence {
        start: Position,
        items: Vec<YamlNode>,
    },
    Mapping {
        start: Position,
        entries: Vec<MappingEntry>,
        key: Option<PendingKey>,
        seen: BTreeMap<String, u32>,
    },
}

/// A key whose value is not read yet.
struct PendingKey {
    text: String,
    span: Span,
    repeated: bool,
}

/// Combines events into trees.
pub(super) struct Builder<'a> {
    file: &'a str,
    diagnostics: &'a mut Vec<Diagnostic>,
    stack: Vec<OpenCollection>,
    current: Option<YamlNode>,
    pub(super) roots: Vec<YamlNode>,
    nodes: usize,
}

pub(super) type YamlResult = Result<(), Box<Diagnostic>>;

impl<'a> Builder<'a> {
    pub(super) fn new(file: &'a str, diagnostics: &'a mut Vec<Diagnostic>) -> Self {
        Self {
            file,
            diagnostics,
            stack: Vec::new(),
            current: None,
            roots: Vec::new(),
            nodes: 0,
        }
    }

    pub(super) fn run(&mut self, text: &str) -> YamlResult {
        let options = options! {
            disallow_directives: true,
            emit_unresolved_aliases: true,
            emit_anchor_events: true,
            emit_comments: false,
            flow_nesting_limit: DEEPEST,
            block_nesting_limit: DEEPEST,
        };
        let mut parser = Parser::new_from_str_with_options(text, options);
        let mut unread: Option<Span> = None;
        while let Some(next) = parser.next_event() {
            let (event, place) = next.map_err(|error| Box::new(self.syntax(&error, text)))?;
            let span = Span {
                start: position(&place.start),
                end: position(&place.end),
            };
            if event.tag().is_some() {
                let start = place.tag_start().as_ref().map_or(span.start, position);
                return Err(self.fail(
                    Class::Shape,
                    Span::point(start),
                    "found a tag (`!`), which these files do not have",
                    Some("leave the tag out, or put text that begins with `!` in quotes"),
                ));
            }
            // The event after the anchor's node has the anchor's own position.
            if let Some(node) = unread.take() {
                let anchor = matches!(event, Event::Anchor(..));
                return Err(self.anchor(if anchor { span } else { node }));
            }
            if event.anchor_id().is_some_and(|id| id != 0) {
                unread = Some(span);
                continue;
            }
            self.event(event, span)?;
        }
        match unread {
            Some(node) => Err(self.anchor(node)),
            None => Ok(()),
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> YamlResult {
        match event {
            Event::Scalar(text, style, _, _) => self.scalar(text, style, span),
            Event::SequenceStart(..) => {
                self.open(span)?;
                self.stack.push(OpenCollection::Sequence {
                    start: span.start,
                    items: Vec::new(),
                });
                Ok(())
            }
            Event::MappingStart(..) => {
                self.open(span)?;
                self.stack.push(OpenCollection::Mapping {
                    start: span.start,
                    entries: Vec::new(),
                    key: None,
                    seen: BTreeMap::new(),
                });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span),
            Event::Alias(_) | Event::UnresolvedAlias(_) => Err(self.fail(
                Class::Alias,
                span,
                "found an alias (`*`), which these files do not have",
                Some("write the value out, or put text that begins with `*` in quotes"),
            )),
            Event::Anchor(..) => Err(self.anchor(span)),
            Event::DocumentEnd => {
                if let Some(root) = self.current.take() {
                    if self.roots.len() >= MOST_DOCUMENTS {
                        let message = format!("found more than {MOST_DOCUMENTS} documents");
                        return Err(self.fail(Class::Oversize, root.span, message, None));
                    }
                    self.roots.push(root);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Starts a collection: it can't be a key, and their number is limited.
    fn open(&mut self, span: Span) -> YamlResult {
        self.count(span)?;
        if let Some(OpenCollection::Mapping { key: None, .. }) = self.stack.last() {
            return Err(self.fail(
                Class::Shape,
                Span::point(span.start),
                "found a list or mapping as a key, expected the name of a field",
                None,
            ));
        }
        Ok(())
    }

    fn count(&mut self, span: Span) -> YamlResult {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            let message = format!("found more than {MOST_NODES} values in one file");
            return Err(self.fail(Class::Oversize, Span::point(span.start), message, None));
        }
        Ok(())
    }

    fn scalar(&mut self, text: Cow<'_, str>, style: ScalarStyle, span: Span) -> YamlResult {
        self.count(span)?;
        let plain = style == ScalarStyle::Plain;
        if let Some(OpenCollection::Mapping {
            key: key @ None,
            seen,
            ..
        }) = self.stack.last_mut()
        {
            if plain && text == "<<" {
                return Err(self.fail(
                    Class::Alias,
                    span,
                    "found a merge key (`<<`), which these files do not have",
                    Some("write the fields out"),
                ));
            }
            if plain && (text.is_empty() || text == "~") {
                return Err(self.fail(
                    Class::Shape,
                    span,
                    "found no key before `:`, expected the name of a field",
                    None,
                ));
            }
            let first = seen.get(text.as_ref()).copied();
            *key = Some(PendingKey {
                text: text.clone().into_owned(),
                span,
                repeated: first.is_some(),
            });
            if let Some(first) = first {
                let message = format!("`{}` is written twice, first in line {first}", quote(&text));
                let found = Diagnostic::at(Class::Duplicate, self.file, span, message)
                    .hint("keep one of the two");
                let path = self.path();
                self.diagnostics.push(found.path(path));
            } else {
                seen.insert(text.into_owned(), span.start.line);
            }
            return Ok(());
        }
        let value = YamlValue::Scalar {
            text: text.into_owned(),
            plain,
        };
        self.complete(YamlNode { span, value });
        Ok(())
    }

    fn close(&mut self, span: Span) -> YamlResult {
        let node = match self.stack.pop() {
            Some(OpenCollection::Sequence { start, items }) => YamlNode {
                span: Span {
                    start,
                    end: span.end,
                },
                value: YamlValue::Sequence(items),
            },
            Some(OpenCollection::Mapping { start, entries, .. }) => YamlNode {
                span: Span {
                    start,
                    end: span.end,
                },
                value: YamlValue::Mapping(entries),
            },
            None => return Ok(()),
        };
        self.complete(node);
        Ok(())
    }

    /// Adds a complete value to its collection. The second value of a key is dropped.
    fn complete(&mut self, node: YamlNode) {
        match self.stack.last_mut() {
            Some(OpenCollection::Sequence { items, .. }) => items.push(node),
            Some(OpenCollection::Mapping { entries, key, .. }) => {
                if let Some(key) = key.take()
                    && !key.repeated
                {
                    entries.push(MappingEntry {
                        key: key.text,
                        key_span: key.span,
                        node,
                    });
                }
            }
            None => self.current = Some(node),
        }
    }

    /// The path of the key or item that is being read.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in &self.stack {
            match frame {
                OpenCollection::Sequence { items, .. } => path = item_path(&path, items.len()),
                OpenCollection::Mapping { key, .. } => {
                    if let Some(key) = key {
                        path = key_path(&path, &key.text);
                    }
                }
            }
        }
        path
    }

    fn anchor(&self, span: Span) -> Box<Diagnostic> {
        self.fail(
            Class::Alias,
            span,
            "found an anchor (`&`), which these files do not have",
            Some("leave the anchor out, or put text that begins with `&` in quotes"),
        )
    }

    fn fail(
        &self,
        class: Class,
        span: Span,
        message: impl Into<String>,
        hint: Option<&str>,
    ) -> Box<Diagnostic> {
        let mut found = Diagnostic::at(class, self.file, span, message).path(self.path());
        found.hint = hint.map(str::to_owned);
        Box::new(found)
    }

    fn syntax(&self, error: &ScanError, text: &str) -> Diagnostic {
        let place = position(error.marker());
        let (class, place, message, hint) = match error.kind() {
            ErrorKind::RecursionLimitExceeded => (
                Class::Oversize,
                place,
                format!("the text is nested deeper than {DEEPEST} levels"),
                None,
            ),
            ErrorKind::TabInIndentation
            | ErrorKind::TabInPlainScalar
            | ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation => (
                Class::Shape,
                first_tab(text, place).unwrap_or(place),
                "not YAML: found a tab in the indentation".to_owned(),
                Some("indent with spaces"),
            ),
            kind => (
                Class::Shape,
                place,
                format!("not YAML: {}", error.info()),
                syntax_hint(kind),
            ),
        };
        let mut found =
            Diagnostic::at(class, self.file, Span::point(place), message).path(self.path());
        found.hint = hint.map(str::to_owned);
        found
    }
}

/// The usual remedy for a syntax error.
fn syntax_hint(kind: &ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::MappingValueNotAllowed => {
            Some("check the indentation, and put text that has `: ` in quotes")
        }
        ErrorKind::ExpectedBlockMappingKey | ErrorKind::ExpectedBlockSequenceEntry => {
            Some("check the indentation: fields of one level begin in the same column")
        }
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            Some("close the quote")
        }
        ErrorKind::InvalidColonPlacement | ErrorKind::UnclosedFlowCollection { .. } => {
            Some("close the bracket")
        }
        ErrorKind::UnexpectedCharacter { .. } => Some("put the text in quotes"),
        ErrorKind::UnknownQuotedScalarEscape => {
            Some("write `\\\\` for a backslash, or use single quotes")
        }
        _ => None,
    }
}

/// The first tab that indents a line, starting from a line.
fn first_tab(text: &str, from: Position) -> Option<Position> {
    let start = usize::try_from(from.line.saturating_sub(1)).ok()?;
    text.lines()
        .enumerate()
        .skip(start)
        .find_map(|(index, line)| {
            let blank = line
                .chars()
                .take_while(|letter| matches!(letter, ' ' | '\t'));
            let column = blank.into_iter().position(|letter| letter == '\t')?;
            Some(Position {
                line: u32::try_from(index + 1).ok()?,
                column: u32::try_from(column + 1).ok()?,
            })
        })
}

fn position(marker: &Marker) -> Position {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    Position {
        line: number(marker.line()),
        column: number(marker.col()).saturating_add(1),
    }
}
