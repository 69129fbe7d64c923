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
const PADDING: usize = 3;
/// Least width of a last column that is shortened: less would tell nothing.
const LEAST_LAST: usize = 12;

/// Rows under headers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Minimum widths of the columns.
    widths: Vec<u16>,
    bare: bool,
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
        }
    }

    /// Shortens the texts of the last column, so that a row fits into this many columns; a terminal
    /// would break the lines inside words. Other columns are never shortened.
    pub(crate) fn within(mut self, width: Option<usize>) -> Self {
        let Some(width) = width else { return self };
        let widths = self.drawn(false).column_max_content_widths();
        let Some((last, others)) = widths.split_last() else {
            return self;
        };
        let before: usize = others.iter().map(|one| usize::from(*one) + PADDING).sum();
        let rest = width.saturating_sub(before).max(LEAST_LAST);
        if usize::from(*last) <= rest {
            return self;
        }
        for cell in self.rows.iter_mut().filter_map(|row| row.last_mut()) {
            if cell.text.chars().count() > rest {
                let kept: String = cell.text.chars().take(rest - 1).collect();
                cell.text = format!("{}…", kept.trim_end());
            }
        }
        self
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
            column.set_padding((0, 3));
            if let Some(width) = self.widths.get(index) {
                // The column's width includes its padding.
                let width = Width::Fixed(width.saturating_add(3));
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
            (None, "a message of many words that is longer than a line"),
            (
                Some(200),
                "a message of many words that is longer than a line",
            ),
            (Some(40), "a message of many…"),
            // Too narrow for the first columns: they stay.
            (Some(5), "a message o…"),
        ] {
            let text = table.clone().within(width).render(false);
            let line = text.lines().last().unwrap();
            assert_eq!(
                line,
                format!("web-bbbbb   Failed    {message}"),
                "{width:?}"
            );
            assert!(width != Some(40) || line.chars().count() <= 40, "{line}");
        }
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
