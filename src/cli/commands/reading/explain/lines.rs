//! Fields with one line each: name, type, default, and the start of the description.

use anstyle::Style;

use super::{ExplainedPlace, first_word, is_structure, place};
use crate::{console::paint, errors::CliError};
use kat_bundle::{
    DocumentKind,
    fields::{self, Field, FieldStatus, FieldType},
};

/// Spaces for each level of a tree.
const INDENT: usize = 2;
/// Longest text of a type in a line: a description says more than a long list of words.
const LONGEST_TYPE: usize = 30;
/// Characters that are left for descriptions where names are long.
const LEAST_DESCRIPTION: usize = 24;

/// Text of one line before it is shortened to the terminal.
pub(super) struct FieldLine {
    pub(super) indent: usize,
    pub(super) name: String,
    /// Type, default, and the description.
    pub(super) rest: String,
}

impl FieldLine {
    pub(super) fn new(indent: usize, name: String, field: &Field) -> Self {
        Self {
            indent,
            name,
            rest: format!("{}: {}", remarks(field), field.description),
        }
    }

    fn width(&self) -> usize {
        self.indent + self.name.chars().count()
    }
}

/// Lines with their texts below each other, none wider than `width`.
pub(super) fn aligned(lines: &[FieldLine], width: Option<usize>, colour: bool) -> String {
    let names = lines.iter().map(FieldLine::width).max().unwrap_or_default();
    // A few long names do not push the descriptions of all fields out of the terminal.
    let column = width.map_or(names, |width| {
        names.min(width.saturating_sub(LEAST_DESCRIPTION))
    });
    let mut text = String::new();
    for line in lines {
        let gap = column.saturating_sub(line.width()) + 2;
        let left = width.map(|width| width.saturating_sub(line.width() + gap));
        let name = match width {
            Some(width) => shortened(&line.name, width.saturating_sub(line.indent)),
            None => line.name.clone(),
        };
        let rest = match left {
            Some(left) => shortened(&line.rest, left),
            None => line.rest.clone(),
        };
        let indent = " ".repeat(line.indent);
        let name = paint(&name, Style::new().bold(), colour);
        let whole = format!("{indent}{name}{}{rest}", " ".repeat(gap));
        text.push_str(whole.trim_end());
        text.push('\n');
    }
    text
}

/// The text, or its start with a mark that it goes on.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    match width {
        0 => String::new(),
        _ => format!("{}…", kept.trim_end()),
    }
}

/// Type, and whether the field must be written or its default.
fn remarks(field: &Field) -> String {
    let kind = match field.value {
        FieldType::ListOf(path) => format!("list like {path}"),
        other => shortened(&other.to_string(), LONGEST_TYPE),
    };
    let default = field.default.filter(|_| !is_structure(field));
    let mut remarks = kind;
    if field.required {
        remarks.push_str(", must be written");
    } else if let Some(default) = default {
        remarks.push_str(&format!(", default {default}"));
    }
    if field.status == FieldStatus::NotYet {
        remarks.push_str(", no effect yet");
    }
    remarks
}

/// All fields below a path, or of all files, each file under its name.
pub(super) fn tree(
    written: Option<&str>,
    width: Option<usize>,
    colour: bool,
) -> Result<String, CliError> {
    let Some(written) = written else {
        let files = DocumentKind::ALL.into_iter().map(|kind| {
            let place = ExplainedPlace { kind, field: None };
            one_tree(first_word(kind), place, width, colour)
        });
        return Ok(files.collect::<Vec<_>>().join("\n"));
    };
    let place = place(written)?;
    if let Some(field) = place.field
        && fields::children(place.kind, field.path).next().is_none()
    {
        return Err(CliError::usage(format!("no fields lie below `{written}`"))
            .hinted(format!("`katcall explain {written}` explains it")));
    }
    Ok(one_tree(written, place, width, colour))
}

fn one_tree(written: &str, place: ExplainedPlace, width: Option<usize>, colour: bool) -> String {
    let mut lines = Vec::new();
    below(&mut lines, place, INDENT, true);
    let title = paint(written, Style::new().bold(), colour);
    format!(
        "{title} ({})\n{}",
        place.kind.file(),
        aligned(&lines, width, colour)
    )
}

/// Adds the fields below a place. Of a list whose items are like another field only the fields of
/// its own are listed, unless it is the place itself: the others stand below that field.
fn below(lines: &mut Vec<FieldLine>, place: ExplainedPlace, indent: usize, is_top: bool) {
    for field in fields::children(place.kind, place.path()) {
        let is_own = field.parent().trim_end_matches("[]") == place.path();
        if !is_own && !is_top {
            continue;
        }
        lines.push(FieldLine::new(indent, field.name().to_owned(), field));
        let inner = ExplainedPlace {
            kind: place.kind,
            field: Some(field),
        };
        below(lines, inner, indent + INDENT, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_file_has_one_line() {
        for kind in DocumentKind::ALL {
            let text = tree(Some(first_word(kind)), None, false).unwrap();
            let count = fields::all().filter(|field| field.kind == kind).count();
            assert_eq!(text.lines().count(), count + 1, "{text}");
        }
        let all = tree(None, None, false).unwrap();
        assert!(all.lines().count() > fields::all().count(), "{all}");
    }

    #[test]
    fn a_line_has_name_type_default_and_description() {
        let text = tree(Some("workload.spec.updateStrategy"), None, false).unwrap();
        let line = text.lines().find(|line| line.contains("autoRollback"));
        assert_eq!(
            line,
            Some(
                "  autoRollback             true | false, default false: roll back to the last good generation when a rollout stalls"
            )
        );
        assert!(text.contains("\n    maxSurge  "), "{text}");
        // A list of containers, asked for itself, has all their fields.
        let sidecars = tree(Some("workload.spec.sidecars"), None, false).unwrap();
        assert!(sidecars.contains("\n    mountPath  "), "{sidecars}");
        let error = tree(Some("workload.spec.replicas"), None, false).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [1, 20, 40, 80, 120] {
            let text = tree(None, Some(width), false).unwrap();
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
        let text = tree(Some("workload"), Some(80), false).unwrap();
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("replicas "));
        assert!(
            line.is_some_and(|line| line.contains("default 1: number of")),
            "{text}"
        );
    }
}
