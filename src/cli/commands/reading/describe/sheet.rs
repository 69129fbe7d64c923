//! A sheet of fields in two columns, and sections with tables.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::Timestamp;

use crate::{
    console::{Console, tint},
    output::{
        or_dash, plain,
        table::{Cell, Table, tone_of},
        wrapped,
    },
    time,
};
use kat_types::api::{ApiTime, Condition};

const WIDTH: usize = 14;
/// Spaces before the lines of a section.
const INDENT: usize = 2;

pub(crate) struct Sheet {
    text: String,
    colour: bool,
    /// Columns of the terminal.
    width: Option<usize>,
    pub(crate) now: Timestamp,
}

impl Sheet {
    pub(crate) fn new(console: &Console) -> Self {
        Self {
            text: String::new(),
            colour: console.colour,
            width: console.width,
            now: Timestamp::now(),
        }
    }

    pub(crate) fn text(self) -> String {
        self.text
    }

    /// Adds a field; an empty one is left out.
    pub(crate) fn field(&mut self, name: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let mut name = name;
        for line in value.trim_end().lines() {
            // Writing to a String cannot fail.
            let line = format!("{name:<WIDTH$}{}", plain(line));
            let _ = writeln!(self.text, "{}", wrapped(&line, self.width));
            name = "";
        }
    }

    /// Adds a word in its colour, with a remark.
    pub(crate) fn phase(&mut self, name: &str, word: &str, remark: &str) {
        let shown = tint(&or_dash(word), tone_of(word), self.colour);
        // A reason that says nothing but the phase is left out.
        let remark = if remark.is_empty() || remark == word {
            String::new()
        } else {
            format!(" ({})", or_dash(remark))
        };
        let line = format!("{name:<WIDTH$}{shown}{remark}");
        let _ = writeln!(self.text, "{}", wrapped(&line, self.width));
    }

    pub(crate) fn labels(&mut self, labels: &BTreeMap<String, String>) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        self.field("labels", &labels.join(" "));
    }

    pub(crate) fn age(&mut self, created: ApiTime) {
        self.field("age", &time::age(self.now, created));
    }

    pub(crate) fn section(&mut self, title: &str) {
        let _ = writeln!(self.text, "\n{title}");
    }

    pub(crate) fn line(&mut self, text: &str) {
        let line = format!("  {}", plain(text));
        let _ = writeln!(self.text, "{}", wrapped(&line, self.width));
    }

    /// Adds a command, which stays on one line to be copied.
    pub(crate) fn command(&mut self, text: &str) {
        let _ = writeln!(self.text, "  {}", plain(text));
    }

    /// Adds a table, whose messages are whole: nothing else shows more of them.
    pub(crate) fn table(&mut self, table: Table) {
        self.text
            .push_str(&table.on_page(self.colour, self.width, INDENT));
    }

    pub(crate) fn conditions(&mut self, conditions: &[Condition]) {
        if conditions.is_empty() {
            return;
        }
        let mut table = Table::new(vec!["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"]);
        for condition in conditions {
            table.row(vec![
                Cell::new(&condition.kind),
                Cell::new(condition.status.to_string()),
                Cell::new(&condition.reason),
                Cell::new(time::age(self.now, condition.since)),
                Cell::new(&condition.message),
            ]);
        }
        self.section("conditions");
        self.table(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_is_the_phase_is_not_shown_again() {
        let shown = |word: &str, reason: &str| {
            let mut sheet = Sheet {
                text: String::new(),
                colour: false,
                width: None,
                now: Timestamp::UNIX_EPOCH,
            };
            sheet.phase("phase", word, reason);
            sheet.text().trim_end().to_owned()
        };
        let same = shown("Progressing", "Progressing");
        assert!(same.ends_with(" Progressing"), "{same}");
        let other = shown("Degraded", "CrashLoop");
        assert!(other.ends_with(" Degraded (CrashLoop)"), "{other}");
    }
}
