//! `katcall explain --search`: fields and reasons that have a word.

use anstyle::Style;

use super::{
    ExplainedPlace, all_reasons, full_path,
    lines::{FieldLine, aligned, shortened},
    place,
};
use crate::{
    console::{Console, paint},
    errors::CliError,
    output::plain,
};
use kat_bundle::fields::{self, Field, FieldType};

/// Prints what has every word of a text, below a path if there is one.
pub(super) fn run(console: &Console, text: &str, below: Option<&str>) -> Result<(), CliError> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    if words.is_empty() {
        return Err(CliError::usage("the word to search for is empty"));
    }
    let below = below.map(place).transpose()?;
    let found = found(&words, below, console.width, console.colour);
    if found.is_empty() {
        let start: String = plain(text).chars().take(60).collect();
        return Err(
            CliError::not_found(format!("no field and no reason has `{start}`"))
                .hinted("`katcall explain --recursive` lists all fields"),
        );
    }
    console.print(&found)
}

/// The lines of what is found; empty if nothing is.
fn found(
    words: &[String],
    below: Option<ExplainedPlace>,
    width: Option<usize>,
    colour: bool,
) -> String {
    let fields = fields::all().filter(|field| below.is_none_or(|place| is_below(field, place)));
    let lines: Vec<FieldLine> = fields
        .filter(|field| has_all(&text_of(field), words))
        .map(|field| FieldLine::new(0, full_path(field), field))
        .collect();
    let mut text = aligned(&lines, width, colour);
    // No reason lies below a field.
    let reasons = match below {
        None => all_reasons(),
        Some(_) => Vec::new(),
    };
    let mut reason_lines = String::new();
    for (word, meanings) in reasons {
        let means: Vec<&str> = meanings.iter().map(|one| one.means.as_str()).collect();
        let means = means.join("; ");
        if !has_all(&format!("{word} {means}").to_lowercase(), words) {
            continue;
        }
        let name = paint(word, Style::new().bold(), colour);
        let left = width.map(|width| width.saturating_sub(word.chars().count() + 4));
        let means = left.map_or_else(|| means.clone(), |left| shortened(&means, left));
        let line = format!("  {name}  {means}");
        reason_lines.push_str(line.trim_end());
        reason_lines.push('\n');
    }
    if !reason_lines.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{gap}reasons\n{reason_lines}"));
    }
    text
}

fn is_below(field: &Field, place: ExplainedPlace) -> bool {
    let top = place.path();
    let rest = field.path.strip_prefix(top);
    field.kind == place.kind
        && (top.is_empty()
            || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '['])))
}

/// What is searched of a field: its path, the words of its values, and its description.
fn text_of(field: &Field) -> String {
    let values = match field.value {
        FieldType::Word(words) => words.join(" "),
        _ => String::new(),
    };
    let path = full_path(field);
    format!("{path} {values} {}", field.description).to_lowercase()
}

fn has_all(text: &str, words: &[String]) -> bool {
    words.iter().all(|word| text.contains(word.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(text: &str, below: Option<&str>) -> String {
        let words: Vec<String> = text.split(' ').map(str::to_lowercase).collect();
        let below = below.map(|path| place(path).unwrap());
        found(&words, below, None, false)
    }

    #[test]
    fn a_word_is_found_in_paths_values_and_descriptions_of_every_file() {
        let text = search("nodeloss", None);
        assert!(text.contains("workload.spec.onNodeLoss  "), "{text}");
        assert!(
            text.contains("cluster.spec.nodeLossTimeoutSeconds  "),
            "{text}"
        );
        // The value `Simultaneous` stands in no path.
        assert!(search("simultaneous", None).contains("workload.spec.updateStrategy.type "));
        assert!(search("hostnetwork", None).contains("agent."));
        assert!(search("sigkill", None).contains("terminationGraceSeconds"));
        assert_eq!(search("nothinghasthis", None), "");
    }

    #[test]
    fn several_words_must_all_be_there() {
        let text = search("seconds sigkill", None);
        assert!(
            text.contains("workload.spec.container.terminationGraceSeconds"),
            "{text}"
        );
        assert!(!text.contains("onNodeLoss"), "{text}");
    }

    #[test]
    fn reasons_stand_below_the_fields_and_not_below_a_path() {
        let text = search("crashloop", None);
        assert!(
            text.starts_with("reasons\n  CrashLoop  its program ends repeatedly"),
            "{text}"
        );
        assert_eq!(search("crashloop", Some("workload")), "");
        let text = search("image", Some("workload.spec.source"));
        assert!(text.contains("workload.spec.source.image"), "{text}");
        assert!(!text.contains("sidecars"), "{text}");
    }

    #[test]
    fn lines_end_at_the_terminals_width() {
        for width in [30, 80, 120] {
            let text = found(&["e".to_owned()], None, Some(width), false);
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }
}
