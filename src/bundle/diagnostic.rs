//! Diagnostics: errors in users' files, with their positions.

use std::fmt;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet, renderer::DecorStyle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What kind of mistake a diagnostic names; stable words for programs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Not YAML, or not the shape of a document: syntax, kind, exactly one of several fields.
    Shape,
    /// A value of another type than expected.
    Type,
    /// A value of the right type that is not allowed.
    Range,
    /// A field that does not exist.
    Unknown,
    /// Something written twice that may be written once.
    Duplicate,
    /// Something required that is not there.
    Missing,
    /// Two fields or files that do not fit together.
    CrossFile,
    /// A name that is not allowed.
    Name,
    /// An archive or folder that is not accepted.
    Archive,
    /// Too large, too many or too deep.
    Oversize,
    /// Not UTF-8 text.
    Encoding,
    /// An anchor, alias or merge key.
    Alias,
    /// A field whose effect is not built yet.
    NotYet,
}

impl Class {
    /// The word that programs and `error[...]` use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shape => "shape",
            Self::Type => "type",
            Self::Range => "range",
            Self::Unknown => "unknown",
            Self::Duplicate => "duplicate",
            Self::Missing => "missing",
            Self::CrossFile => "cross-file",
            Self::Name => "name",
            Self::Archive => "archive",
            Self::Oversize => "oversize",
            Self::Encoding => "encoding",
            Self::Alias => "alias",
            Self::NotYet => "not-yet",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A place in a text. Lines and columns count from 1, columns in characters.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// From one place up to, and without, another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first character.
    pub(crate) start: Position,
    /// The character after the last.
    pub(crate) end: Position,
}

impl Span {
    /// A span of one character's place.
    pub(crate) fn point(start: Position) -> Self {
        Self { start, end: start }
    }
}

/// One mistake: where it is, what was found and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostic {
    /// Kind of mistake.
    pub class: Class,
    /// Name of the file, as the user gave it.
    pub file: String,
    /// Line from 1; 0 when the mistake is not at one place of the file.
    #[serde(default)]
    pub line: u32,
    /// Column in characters from 1; 0 when the mistake is not at one place of the file.
    #[serde(default)]
    pub column: u32,
    /// The place after the last character concerned, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Position>,
    /// Path of the field, such as `spec.container.env[2].name`; empty for the whole file.
    #[serde(default)]
    pub path: String,
    /// What was found and what was expected; lower case, no full stop, no value of a variable.
    pub message: String,
    /// How to mend it, where that can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Diagnostic {
    /// A mistake of a whole file.
    pub fn of_file(class: Class, file: &str, message: impl Into<String>) -> Self {
        Self {
            class,
            file: quote(file),
            line: 0,
            column: 0,
            end: None,
            path: String::new(),
            message: message.into(),
            hint: None,
        }
    }

    /// A mistake at a place of a file.
    pub(crate) fn at(class: Class, file: &str, span: Span, message: impl Into<String>) -> Self {
        Self {
            line: span.start.line,
            column: span.start.column,
            end: (span.end > span.start).then_some(span.end),
            ..Self::of_file(class, file, message)
        }
    }

    /// The same with the path of a field.
    pub(crate) fn path(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }

    /// The same with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// `file:line:column: path: message (hint)`, on one line, for logs.
impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.file)?;
        if self.line > 0 {
            write!(formatter, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(formatter, ": {}", self.path)?;
        }
        write!(formatter, ": {}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(formatter, " ({hint})")?;
        }
        Ok(())
    }
}

/// Maximum number of listed mistakes; hostile text can have many thousands.
const MOST_LISTED: usize = 100;

/// Sorts mistakes by file and position, removes exact repetitions, and cuts lists that are too long
/// to read.
pub(crate) fn sort(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by(|left, right| {
        (&left.file, left.line, left.column, &left.path).cmp(&(
            &right.file,
            right.line,
            right.column,
            &right.path,
        ))
    });
    diagnostics.dedup();
    let more = diagnostics.len().saturating_sub(MOST_LISTED);
    if more > 0 {
        diagnostics.truncate(MOST_LISTED);
        let message = format!("found {more} more mistakes, which are not listed");
        diagnostics.push(Diagnostic::of_file(Class::Oversize, "", message));
    }
}

/// Untrusted text made safe for a terminal: one line, no control characters, at most 60 characters.
pub(crate) fn quote(text: &str) -> String {
    const LONGEST: usize = 60;
    let mut shown: String = text
        .chars()
        .take(LONGEST)
        .flat_map(|character| {
            let harmless = !character.is_control() && !is_invisible(character);
            let escaped = (!harmless).then(|| character.escape_default());
            harmless
                .then_some(character)
                .into_iter()
                .chain(escaped.into_iter().flatten())
        })
        .collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Characters that change the direction of text or are invisible.
fn is_invisible(character: char) -> bool {
    matches!(character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A diagnostic for users, with an excerpt of `source_text`, the text of its file.
///
/// With `color` the result has escape sequences; the text is the same without.
pub fn render(diagnostic: &Diagnostic, source_text: &str, color: bool) -> String {
    // The renderer replaces ASCII control characters by pictures, but not the C1 control characters
    // after them, which terminals obey as well. The dot has the same length in bytes.
    let shown = source_text.replace(|letter| matches!(letter, '\u{80}'..='\u{9f}'), "·");
    let source_text = shown.as_str();
    let renderer = if color {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer.decor_style(DecorStyle::Ascii);
    let mut group = Level::ERROR
        .primary_title(diagnostic.message.as_str())
        .id(diagnostic.class.as_str())
        .elements(None::<annotate_snippets::Message<'_>>);
    if let Some(range) = byte_range(diagnostic, source_text) {
        let mut annotation = AnnotationKind::Primary.span(range);
        if !diagnostic.path.is_empty() {
            annotation = annotation.label(diagnostic.path.as_str());
        }
        group = group.element(
            Snippet::source(source_text)
                .path(diagnostic.file.as_str())
                .annotation(annotation),
        );
    } else {
        group = group.element(annotate_snippets::Origin::path(diagnostic.file.as_str()));
    }
    if let Some(hint) = &diagnostic.hint {
        group = group.element(Level::HELP.message(hint.as_str()));
    }
    renderer.render(&[group])
}

/// The byte range of the position, on its first line only; `None` if the text has no such position.
fn byte_range(diagnostic: &Diagnostic, text: &str) -> Option<std::ops::Range<usize>> {
    let line = usize::try_from(diagnostic.line.checked_sub(1)?).ok()?;
    let mut start = 0;
    let mut found = None;
    for (number, content) in lines(text).enumerate() {
        if number == line {
            // The byte order mark at the start of some files is not counted as a column.
            let mark = content.strip_prefix('\u{feff}').filter(|_| number == 0);
            start += mark.map_or(0, |rest| content.len() - rest.len());
            found = Some(mark.unwrap_or(content).trim_end_matches(['\n', '\r']));
            break;
        }
        start += content.len();
    }
    let content = found.unwrap_or("");
    let offset = |column: u32| {
        let characters = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX);
        content
            .char_indices()
            .nth(characters)
            .map_or(content.len(), |(index, _)| index)
    };
    let from = offset(diagnostic.column);
    let to = match diagnostic.end {
        Some(end) if end.line == diagnostic.line => offset(end.column),
        Some(_) => content.len(),
        None => from,
    };
    let start = start.min(text.len());
    Some(start + from..start + to.max(from))
}

/// The lines of a text with their ends, as YAML counts them: a carriage return alone ends one too.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = match rest.find(['\n', '\r']) {
            Some(end) if rest.get(end..)?.starts_with("\r\n") => end + 2,
            Some(end) => end + 1,
            None => rest.len(),
        };
        let (line, after) = rest.split_at(end);
        rest = after;
        (!line.is_empty()).then_some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_shown() {
        let text = "size: 1\nnum: \u{9b}2J\u{1b}[2J\n";
        let shown = render(&sample(), text, false);
        assert!(shown.contains("num: ·2J␛[2J"), "{shown:?}");
    }

    #[test]
    fn lines_end_as_in_yaml() {
        let found: Vec<_> = lines("one\rtwo\r\n\nfour").collect();
        assert_eq!(found, ["one\r", "two\r\n", "\n", "four"]);
        let text = "größe: 1\rnumöx: abc\rlast: 2";
        let range = byte_range(&sample(), text).unwrap();
        assert_eq!(text.get(range), Some(" ab"));
    }

    fn sample() -> Diagnostic {
        let span = Span {
            start: Position { line: 2, column: 7 },
            end: Position {
                line: 2,
                column: 10,
            },
        };
        Diagnostic::at(
            Class::Type,
            "workload.kat",
            span,
            "found text, expected a number",
        )
        .path("spec.replicas")
        .hint("write it without quotes")
    }

    #[test]
    fn shows_the_line_and_the_place() {
        let text = "größe: 1\nnumöx: abc\nlast: 2\n";
        let shown = render(&sample(), text, false);
        insta::assert_snapshot!(shown, @r"
        error[type]: found text, expected a number
         --> workload.kat:2:7
          |
        2 | numöx: abc
          |       ^^^ spec.replicas
          |
          = help: write it without quotes
        ");
    }

    #[test]
    fn survives_a_text_that_has_no_such_place() {
        for text in ["", "one line", "a\nb", "ä\r\n"] {
            assert!(
                render(&sample(), text, true).contains("expected a number"),
                "{text:?}"
            );
        }
        let mut first = sample();
        first.line = 1;
        first.column = 1;
        first.end = Some(Position { line: 1, column: 2 });
        let range = byte_range(&first, "\u{feff}ab\n").unwrap();
        assert_eq!(range, 3..4);
        let mut far = sample();
        far.end = Some(Position { line: 9, column: 1 });
        assert!(render(&far, "a: 1\nabc: ü\n", false).contains("expected a number"));
    }

    #[test]
    fn is_the_same_json_there_and_back() {
        let json = serde_json::to_string(&sample()).unwrap();
        assert_eq!(
            json,
            r#"{"class":"type","file":"workload.kat","line":2,"column":7,"end":{"line":2,"column":10},"path":"spec.replicas","message":"found text, expected a number","hint":"write it without quotes"}"#
        );
        assert_eq!(serde_json::from_str::<Diagnostic>(&json).unwrap(), sample());
    }

    #[test]
    fn foreign_text_cannot_move_the_cursor() {
        assert_eq!(quote("a\u{1b}[2Jb\u{202e}c"), "a\\u{1b}[2Jb\\u{202e}c");
        assert_eq!(quote(&"x".repeat(61)).chars().count(), 61);
        assert_eq!(
            sample().to_string(),
            "workload.kat:2:7: spec.replicas: found text, expected a number (write it without quotes)"
        );
    }
}
