//! Tables: no borders, upper-case headers, three spaces between columns, the same text in a pipe.

use comfy_table::{
    Cell as DrawnCell, Color, ColumnConstraint, Table as Drawn, Width, presets::NOTHING,
};

use super::or_dash;
use crate::console::TextTone;

/// One field of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    tone: TextTone,
}

impl Cell {
    /// A cell; control characters are replaced, and an empty text becomes `-`.
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self::toned(text, TextTone::Plain)
    }

    pub(crate) fn toned(text: impl AsRef<str>, tone: TextTone) -> Self {
        Self {
            text: or_dash(text.as_ref()),
            tone,
        }
    }

    /// A phase or type, coloured by its meaning.
    pub(crate) fn phase(word: &str) -> Self {
        Self::toned(word, tone_of(word))
    }
}

/// The meaning of phases.
pub(crate) fn tone_of(word: &str) -> TextTone {
    match word {
        "Running" | "Ready" | "Active" | "Succeeded" | "Bound" | "Settled" | "healthy" => {
            TextTone::Good
        }
        "Failed" | "Stalled" | "NotReady" | "Degraded" | "Unknown" | "unhealthy" | "Warning" => {
            TextTone::Bad
        }
        "Pending" | "Scheduled" | "Pulling" | "Building" | "Prepared" | "Starting"
        | "Restarting" | "Stopping" | "Progressing" | "Deleting" | "Removing" | "Moving"
        | "Draining" | "Joining" | "Migration" | "Due" | "Trust" | "Issue" | "Retire"
        | "pending_check" => TextTone::Busy,
        _ => TextTone::Plain,
    }
}

/// Spaces between two columns.
const PADDING: u16 = 3;
/// Least width of a column that is shortened: less would tell nothing.
const LEAST: usize = 12;
/// The same, where columns stand closer together and are still too wide.
const LEAST_NARROW: usize = 10;
/// Columns that are never shortened, since their words are used in other commands.
const WHOLE: [&str; 10] = [
    "NAME",
    "NAMESPACE",
    "NODE",
    "WORKLOAD",
    "VOLUME",
    "ID",
    "CONTEXT",
    "PEER",
    "KEY",
    "HOST",
];

/// Rows under headers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Minimum widths of the columns.
    widths: Vec<u16>,
    bare: bool,
    /// Columns stand two instead of three blanks apart.
    narrow: bool,
    /// Columns that are shortened although their header is that of names.
    texts: Vec<&'static str>,
}

impl Table {
    pub(crate) fn new(headers: Vec<&'static str>) -> Self {
        Self {
            headers,
            ..Self::default()
        }
    }

    /// Sets the minimum width of the first column.
    pub(crate) fn with_first(mut self, width: u16) -> Self {
        self.widths = vec![width];
        self
    }

    /// What is below these headers are texts of people, which are shortened as others are.
    pub(crate) fn with_texts(mut self, headers: &[&'static str]) -> Self {
        self.texts = headers.to_vec();
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A table for rows that are printed below this one: with the same widths, without headers.
    pub(crate) fn continuation(&self) -> Self {
        let mut widths: Vec<u16> = self.drawn(false).column_max_content_widths();
        for (width, least) in widths.iter_mut().zip(&self.widths) {
            *width = (*width).max(*least);
        }
        Self {
            headers: self.headers.clone(),
            rows: Vec::new(),
            widths,
            bare: true,
            narrow: self.narrow,
            texts: self.texts.clone(),
        }
    }

    /// Shortens texts so that a row fits into this many columns; a terminal would break the lines
    /// inside words. The last column is shortened first, and then the widest one, unless its words
    /// are names. Where that is not enough, columns stand closer together.
    pub(crate) fn within(mut self, width: Option<usize>) -> Self {
        let Some(width) = width else { return self };
        let widths = self.drawn(false).column_max_content_widths();
        let mut widths: Vec<usize> = widths.into_iter().map(usize::from).collect();
        for (wide, least) in widths.iter_mut().zip(&self.widths) {
            *wide = (*wide).max(usize::from(*least));
        }
        for (narrow, least) in [(false, LEAST), (true, LEAST), (true, LEAST_NARROW)] {
            self.narrow = narrow;
            self.shrink(&mut widths, width, least);
            if self.excess(&widths, width) == 0 {
                break;
            }
        }
        self
    }

    /// By how many columns a row of these widths is too wide.
    fn excess(&self, widths: &[usize], width: usize) -> usize {
        let padding = usize::from(self.padding());
        let all: usize = widths.iter().map(|one| one + padding).sum();
        all.saturating_sub(padding).saturating_sub(width)
    }

    /// Shortens columns to no less than `least` and their header.
    fn shrink(&mut self, widths: &mut [usize], width: usize, least: usize) {
        let Some(last) = widths.len().checked_sub(1) else {
            return;
        };
        let mut next = Some(last);
        while let Some(index) = next {
            let too_much = self.excess(widths, width);
            if too_much == 0 {
                break;
            }
            if let Some(wide) = widths.get_mut(index) {
                // The header stays whole.
                let header = self.headers.get(index).map_or(0, |header| header.len());
                let least = least.max(header);
                *wide = wide.saturating_sub(too_much).max(least).min(*wide);
                let wide = *wide;
                self.shorten(index, wide);
            }
            next = self.widest(widths, last, least);
        }
    }

    /// The widest column before the last one that can still be shortened.
    fn widest(&self, widths: &[usize], last: usize, least: usize) -> Option<usize> {
        let columns = self.headers.iter().zip(widths).enumerate().take(last);
        let columns = columns.filter(|(_, (header, wide))| {
            let is_name = WHOLE.contains(*header) && !self.texts.contains(*header);
            !is_name && **wide > least.max(header.len())
        });
        let widest = columns.max_by_key(|(_, (_, wide))| **wide);
        widest.map(|(index, _)| index)
    }

    fn shorten(&mut self, index: usize, width: usize) {
        for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(index)) {
            if cell.text.chars().count() > width {
                let kept: String = cell.text.chars().take(width.saturating_sub(1)).collect();
                cell.text = format!("{}…", kept.trim_end());
            }
        }
    }

    /// The text, with a line feed after each line.
    pub(crate) fn render(&self, colour: bool) -> String {
        let mut text = String::new();
        for line in self.drawn(colour).lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The text with spaces before each line.
    pub(crate) fn indented(&self, colour: bool, spaces: usize) -> String {
        let before = " ".repeat(spaces);
        self.render(colour)
            .lines()
            .map(|line| format!("{before}{line}\n"))
            .collect()
    }

    /// Blanks after a column.
    fn padding(&self) -> u16 {
        PADDING - u16::from(self.narrow)
    }

    fn drawn(&self, colour: bool) -> Drawn {
        let mut drawn = Drawn::new();
        drawn.load_style(NOTHING).force_no_tty();
        if colour {
            drawn.enforce_styling();
        }
        drawn.style_text_only();
        if !self.bare {
            drawn.set_header(self.headers.clone());
        }
        for row in &self.rows {
            let cells: Vec<DrawnCell> = row
                .iter()
                .map(|cell| {
                    let drawn = DrawnCell::new(&cell.text);
                    match cell.tone {
                        TextTone::Plain => drawn,
                        TextTone::Good => drawn.fg(Color::Green),
                        TextTone::Busy => drawn.fg(Color::Yellow),
                        TextTone::Bad => drawn.fg(Color::Red),
                    }
                })
                .collect();
            drawn.add_row(cells);
        }
        for (index, column) in drawn.column_iter_mut().enumerate() {
            column.set_padding((0, self.padding()));
            if let Some(width) = self.widths.get(index) {
                // The column's width includes its padding.
                let width = Width::Fixed(width.saturating_add(self.padding()));
                column.set_constraint(ColumnConstraint::LowerBoundary(width));
            }
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(vec!["NAME", "PHASE", "MESSAGE"]);
        table.row(vec![
            Cell::new("web-abcde"),
            Cell::phase("Running"),
            Cell::new(""),
        ]);
        table.row(vec![
            Cell::new("größe"),
            Cell::phase("Failed"),
            Cell::new("one\ntwo\u{1b}[31m"),
        ]);
        table
    }

    #[test]
    fn columns_line_up_without_borders_or_trailing_spaces() {
        assert_eq!(
            sample().render(false),
            "NAME        PHASE     MESSAGE\n\
             web-abcde   Running   -\n\
             größe       Failed    one | two\\u{1b}[31m\n"
        );
    }

    #[test]
    fn the_last_column_is_shortened_to_the_terminal_and_no_other() {
        let mut table = sample();
        table.row(vec![
            Cell::new("web-bbbbb"),
            Cell::phase("Failed"),
            Cell::new("a message of many words that is longer than a line"),
        ]);
        for (width, message) in [
            (
                None,
                "web-bbbbb   Failed    a message of many words that is longer than a line",
            ),
            (
                Some(200),
                "web-bbbbb   Failed    a message of many words that is longer than a line",
            ),
            (Some(40), "web-bbbbb   Failed    a message of many…"),
            // Too narrow for the first columns: they stay, and stand closer together.
            (Some(5), "web-bbbbb  Failed   a message…"),
        ] {
            let text = table.clone().within(width).render(false);
            let line = text.lines().last().unwrap();
            assert_eq!(line, message, "{width:?}");
            assert!(width != Some(40) || line.chars().count() <= 40, "{line}");
        }
    }

    #[test]
    fn names_of_machines_and_instances_are_never_shortened() {
        let mut table = Table::new(vec!["NAME", "NODE", "REASON", "IMAGE", "AGE"]);
        table.row(vec![
            Cell::new("a-workload-with-a-long-name-abcde"),
            Cell::new("machine-in-the-cellar"),
            Cell::new("WaitingForDataOnAnotherMachine"),
            Cell::new("registry.example/team/project/image:1.2.3"),
            Cell::new("5m"),
        ]);
        let text = table.clone().within(Some(100)).render(false);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        for name in [
            "a-workload-with-a-long-name-abcde ",
            "machine-in-the-cellar ",
            " 5m",
        ] {
            assert!(text.contains(name), "{text}");
        }
        // Where names alone are too wide, they stay as well, and so do headers.
        let text = table.within(Some(40)).render(false);
        assert!(
            text.contains("a-workload-with-a-long-name-abcde "),
            "{text}"
        );
        assert!(text.contains("WaitingFo…"), "{text}");
        assert!(text.contains("REASON") && text.contains("IMAGE"), "{text}");
    }

    #[test]
    fn colour_adds_nothing_but_colour() {
        let coloured = sample().render(true);
        assert!(coloured.contains("\u{1b}["), "{coloured:?}");
        let stripped = anstream::adapter::strip_str(&coloured).to_string();
        let trimmed: String = stripped
            .lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect();
        assert_eq!(trimmed, sample().render(false));
    }

    #[test]
    fn later_rows_stand_below_the_first() {
        let mut below = sample().continuation();
        below.row(vec![Cell::new("db"), Cell::phase("Ready"), Cell::new("x")]);
        assert_eq!(below.render(false), "db          Ready     x\n");
        let mut wider = below.continuation();
        wider.row(vec![Cell::new("db"), Cell::phase("Ready"), Cell::new("x")]);
        assert_eq!(wider.render(false), "db          Ready     x\n");
    }
}
