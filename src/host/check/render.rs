//! Renders findings as text.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};

use super::{Finding, Level};

/// One line for each finding, the command that fixes it on the next, and a last line with the
/// counts. Problems stand last, next to the counts, so that no warning hides them. The word at the
/// beginning means the same as the colour; the stream's writer decides whether colour is printed
/// (`anstream`).
pub fn render(findings: &[Finding], colour: bool) -> String {
    let mut text = String::new();
    let mut ordered: Vec<&Finding> = findings.iter().collect();
    ordered.sort_by_key(|finding| finding.level);
    for finding in ordered {
        let (word, style) = match finding.level {
            Level::Ok => ("ok", AnsiColor::Green.on_default()),
            Level::Warning => ("warning", AnsiColor::Yellow.on_default()),
            Level::Problem => ("problem", AnsiColor::Red.on_default().bold()),
        };
        let style = if colour { style } else { Style::new() };
        // Writing to a String can't fail.
        let _ = writeln!(text, "{style}{word:<8}{style:#} {}", finding.what);
        if let Some(mend) = &finding.mend {
            let _ = writeln!(text, "         {mend}");
        }
    }
    let count = |level: Level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let _ = match (count(Level::Problem), count(Level::Warning)) {
        (0, 0) => writeln!(text, "This machine is ready."),
        (0, warnings) => {
            let warnings = counted(warnings, "warning");
            writeln!(text, "This machine is ready, with {warnings}.")
        }
        (problems, 0) => {
            let problems = counted(problems, "problem");
            writeln!(text, "This machine is not ready: {problems}.")
        }
        (problems, warnings) => writeln!(
            text,
            "This machine is not ready: {}, {}.",
            counted(problems, "problem"),
            counted(warnings, "warning")
        ),
    };
    text
}

/// Such as `1 problem` and `2 problems`.
fn counted(count: usize, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    }
}
