//! Tables: no borders, upper-case headers, three spaces between columns, the same text in a pipe.

use comfy_table::{
    Cell as DrawnCell, Color, ColumnConstraint, Table as Drawn, Width, presets::NOTHING,
};

use super::{or_dash, wrapped};
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
/// The columns of sentences that pages have whole.
const MESSAGE: &str = "MESSAGE";
const TO_DO: &str = "TO DO";

/// How the words of a column are made shorter. All other columns have names, reasons and numbers,
/// which are used in other commands and stay whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortening {
    /// A sentence loses its end.
    Text,
    /// Of several names with commas between them the last ones are counted.
    List,
    /// An image loses its registry and its digest, and keeps its tag.
    Image,
}

/// Rows under headers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    headers: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Minimum widths of the columns; empty where no rows are printed later.
    widths: Vec<u16>,
    bare: bool,
    /// Columns stand two instead of three blanks apart.
    narrow: bool,
    /// Columns that are shortened although their header is that of names.
    texts: Vec<&'static str>,
    /// Columns that are left out where names need their room, the least useful one first.
    optional: Vec<&'static str>,
    /// Places of the columns that are left out, each among those that were there before.
    left_out: Vec<usize>,
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

    /// These columns are left out where names need their room, the first one first.
    pub(crate) fn with_optional(mut self, headers: &[&'static str]) -> Self {
        self.optional = headers.to_vec();
        self
    }

    /// Adds a row of all columns, also of those that are left out above it.
    pub(crate) fn row(&mut self, mut cells: Vec<Cell>) {
        for index in &self.left_out {
            if *index < cells.len() {
                cells.remove(*index);
            }
        }
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
            optional: self.optional.clone(),
            left_out: self.left_out.clone(),
        }
    }

    /// Shortens texts so that a row fits into this many columns; a terminal would break the lines
    /// inside words. Where that is not enough, columns stand closer together, and then those are
    /// left out that say nothing, and those that say least. Names stay whole: where they alone are
    /// too wide, so is the table.
    pub(crate) fn within(mut self, width: Option<usize>) -> Self {
        let Some(width) = width else { return self };
        let was_narrow = self.narrow;
        loop {
            for (narrow, least) in [(false, LEAST), (true, LEAST), (true, LEAST_NARROW)] {
                // Rows below others have the same blanks between columns.
                if was_narrow && !narrow {
                    continue;
                }
                let mut fitted = self.clone();
                fitted.narrow = narrow;
                if fitted.shrink(width, least) {
                    return fitted;
                }
            }
            if !self.leave_one_out() {
                self.narrow = true;
                self.shrink(width, LEAST_NARROW);
                return self;
            }
        }
    }

    fn column_widths(&self) -> Vec<usize> {
        let widths = self.drawn(false).column_max_content_widths();
        let mut widths: Vec<usize> = widths.into_iter().map(usize::from).collect();
        for (wide, least) in widths.iter_mut().zip(&self.widths) {
            *wide = (*wide).max(usize::from(*least));
        }
        widths
    }

    /// By how many columns a row of these widths is too wide.
    fn excess(&self, widths: &[usize], width: usize) -> usize {
        let padding = usize::from(self.padding());
        let all: usize = widths.iter().map(|one| one + padding).sum();
        all.saturating_sub(padding).saturating_sub(width)
    }

    /// Shortens columns, the last one first, to no less than `least` and their header. Returns
    /// whether a row fits.
    fn shrink(&mut self, width: usize, least: usize) -> bool {
        let headers = self.headers.clone();
        for (index, header) in headers.into_iter().enumerate().rev() {
            let widths = self.column_widths();
            let too_much = self.excess(&widths, width);
            if too_much == 0 {
                return true;
            }
            let how = self.shortening(header);
            if let (Some(how), Some(wide)) = (how, widths.get(index)) {
                // The header stays whole.
                let wanted = wide.saturating_sub(too_much).max(least).max(header.len());
                self.shorten(index, how, wanted);
            }
        }
        self.excess(&self.column_widths(), width) == 0
    }

    fn shortening(&self, header: &str) -> Option<Shortening> {
        if self.texts.contains(&header) {
            return Some(Shortening::Text);
        }
        match header {
            MESSAGE | "CHANGES" => Some(Shortening::Text),
            "ENDPOINTS" | "MIRRORS" | "USED BY" => Some(Shortening::List),
            "IMAGE" => Some(Shortening::Image),
            _ => None,
        }
    }

    fn shorten(&mut self, index: usize, how: Shortening, width: usize) {
        for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(index)) {
            if cell.text.chars().count() > width {
                cell.text = match how {
                    Shortening::Text => shortened_text(&cell.text, width),
                    Shortening::List => shortened_list(&cell.text, width),
                    Shortening::Image => shortened_image(&cell.text, width),
                };
            }
        }
    }

    /// Leaves out a column that says nothing, or else the least useful one. Returns whether there
    /// was one.
    fn leave_one_out(&mut self) -> bool {
        // The headers are printed already.
        if self.bare {
            return false;
        }
        // Rows that are printed later may have something in a column that says nothing yet.
        let is_followed = !self.widths.is_empty();
        let says_nothing =
            (0..self.headers.len()).find(|index| !is_followed && self.says_nothing(*index));
        let least_useful = || {
            let mut optional = self.optional.iter();
            optional.find_map(|one| self.headers.iter().position(|header| header == one))
        };
        let Some(index) = says_nothing.or_else(least_useful) else {
            return false;
        };
        self.headers.remove(index);
        if index < self.widths.len() {
            self.widths.remove(index);
        }
        self.left_out.push(index);
        for row in self.rows.iter_mut().filter(|row| index < row.len()) {
            row.remove(index);
        }
        true
    }

    /// Whether no row has anything in this column; counts of failures are nothing where all are 0.
    fn says_nothing(&self, index: usize) -> bool {
        let is_count = |header: &&str| matches!(*header, "RESTARTS" | "FAILED");
        let is_count = self.headers.get(index).is_some_and(is_count);
        let is_nothing = |cell: &Cell| cell.text == "-" || (is_count && cell.text == "0");
        let mut rows = self.rows.iter();
        !self.rows.is_empty() && rows.all(|row| row.get(index).is_some_and(is_nothing))
    }

    /// The text of a page, with spaces before each line. A page has whole sentences: where the last
    /// column has some that do not fit, each stands below its row, broken between words.
    pub(crate) fn on_page(mut self, colour: bool, width: Option<usize>, spaces: usize) -> String {
        let room = width.map(|width| width.saturating_sub(spaces));
        let is_too_wide = room.is_some_and(|room| self.excess(&self.column_widths(), room) > 0);
        let has_sentences = self
            .headers
            .last()
            .is_some_and(|last| [MESSAGE, TO_DO].contains(last));
        if !is_too_wide || !has_sentences {
            return self.within(room).indented(colour, spaces);
        }
        let last = self.headers.len().saturating_sub(1);
        self.headers.truncate(last);
        let mut messages = vec![None];
        for row in &mut self.rows {
            let message = row.get(last).map(|cell| cell.text.clone());
            messages.push(message.filter(|message| message != "-"));
            row.truncate(last);
        }
        let before = " ".repeat(spaces + 2);
        let mut text = String::new();
        let lines = self.within(room).indented(colour, spaces);
        for (line, message) in lines.lines().zip(messages) {
            text.push_str(line);
            text.push('\n');
            if let Some(message) = message {
                text.push_str(&wrapped(&format!("{before}{message}\n"), width));
            }
        }
        text
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

fn shortened_text(text: &str, width: usize) -> String {
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Such as `a,b and 2 more`, or `4 in all` where not even the first name has room. One name stays
/// whole.
fn shortened_list(text: &str, width: usize) -> String {
    let comma = if text.contains(", ") { ", " } else { "," };
    let names: Vec<&str> = text.split(comma).collect();
    let all = names.len();
    if all < 2 {
        return text.to_owned();
    }
    let shorter = (1..all).rev().map(|kept| {
        let named: Vec<&str> = names.iter().take(kept).copied().collect();
        format!("{} and {} more", named.join(comma), all - kept)
    });
    let mut fitting = shorter.filter(|one| one.chars().count() <= width);
    fitting.next().unwrap_or_else(|| format!("{all} in all"))
}

/// Such as `…/web:2`: without the registry and the first parts of the path, and where that is not
/// enough without the digest of an image that has a tag.
fn shortened_image(image: &str, width: usize) -> String {
    let name = match image.split_once('@') {
        Some((name, _)) if name.rsplit('/').next().is_some_and(|end| end.contains(':')) => name,
        _ => image,
    };
    let mut shortest = image.to_owned();
    for form in [image, name] {
        let mut rest = form;
        shortest = form.to_owned();
        loop {
            if shortest.chars().count() <= width {
                return shortest;
            }
            let Some((_, after)) = rest.split_once('/') else {
                break;
            };
            rest = after;
            shortest = format!("…/{rest}");
        }
    }
    shortest
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
    fn names_and_reasons_are_never_shortened_and_an_image_keeps_its_tag() {
        let mut table = Table::new(vec!["NAME", "NODE", "REASON", "IMAGE", "AGE"]);
        table.row(vec![
            Cell::new("a-workload-with-a-long-name-abcde"),
            Cell::new("machine-in-the-cellar"),
            Cell::new("WaitingForDataOnAnotherMachine"),
            Cell::new("registry.example/team/project/image:1.2.3"),
            Cell::new("5m"),
        ]);
        let text = table.clone().within(Some(120)).render(false);
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
        for width in [120, 40] {
            // Where names alone are too wide, the table is.
            let text = table.clone().within(Some(width)).render(false);
            for name in [
                "a-workload-with-a-long-name-abcde ",
                "machine-in-the-cellar ",
                "WaitingForDataOnAnotherMachine ",
                "/image:1.2.3 ",
                " 5m",
            ] {
                assert!(text.contains(name), "{width}: {text}");
            }
            assert!(text.contains("REASON") && text.contains("IMAGE"), "{text}");
        }
    }

    #[test]
    fn columns_that_say_nothing_are_left_out_first_and_then_the_least_useful_one() {
        let mut table =
            Table::new(vec!["NAME", "HEALTH", "RESTARTS", "REASON", "AGE"]).with_optional(&["AGE"]);
        for (name, reason) in [("web-abcde", "VolumeMissing"), ("db-abcde", "-")] {
            table.row(vec![
                Cell::new(name),
                Cell::new(""),
                Cell::new("0"),
                Cell::new(reason),
                Cell::new("5m"),
            ]);
        }
        let headers = |table: &Table, width: usize| {
            let text = table.clone().within(Some(width)).render(false);
            assert!(text.contains("VolumeMissing"), "{text}");
            let first = text.lines().next().unwrap_or_default();
            first.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(headers(&table, 80), "NAME HEALTH RESTARTS REASON AGE");
        assert_eq!(headers(&table, 44), "NAME RESTARTS REASON AGE");
        assert_eq!(headers(&table, 33), "NAME REASON AGE");
        assert_eq!(headers(&table, 26), "NAME REASON");
        assert_eq!(headers(&table, 5), "NAME REASON");
        // A restart is something.
        let mut restarted = table.clone();
        restarted.row(["cache-abcde", "", "1", "", "1m"].map(Cell::new).into());
        assert_eq!(headers(&restarted, 33), "NAME RESTARTS REASON");
        // Rows that follow may have a reason or a health.
        let followed = Table {
            widths: vec![1],
            ..table
        };
        assert_eq!(headers(&followed, 47), "NAME HEALTH RESTARTS REASON AGE");
        assert_eq!(headers(&followed, 20), "NAME HEALTH RESTARTS REASON");
    }

    #[test]
    fn a_column_that_is_left_out_above_is_left_out_in_later_rows() {
        let headers = vec!["CHANGE", "NAME", "AGE", "HEALTH", "REASON"];
        let row = |change: &str, reason: &str| -> Vec<Cell> {
            [change, "web-abcde", "5m", "healthy", reason]
                .map(Cell::new)
                .into()
        };
        let mut above = Table::new(headers)
            .with_first(7)
            .with_optional(&["AGE", "HEALTH"]);
        above.row(row("-", "VolumeMissing"));
        let above = above.within(Some(33));
        assert_eq!(
            above.render(false),
            "CHANGE   NAME       REASON\n-        web-abcde  VolumeMissing\n"
        );
        let mut below = above.continuation();
        below.row(row("changed", "Evicted"));
        // No column is left out below headers that are printed.
        let below = below.within(Some(10));
        assert_eq!(below.render(false), "changed  web-abcde  Evicted\n");
    }

    #[test]
    fn what_is_to_be_done_stands_below_its_row_where_it_does_not_fit() {
        let mut table = Table::new(vec!["KIND", "NAME", "TO DO"]);
        let what = "change it, then: `katcall secret set db -n shop`";
        table.row(["Secret", "db", what].map(Cell::new).into());
        assert_eq!(
            table.on_page(false, Some(40), 0),
            "KIND     NAME\nSecret   db\n  change it, then:\n    `katcall secret set db -n shop`\n"
        );
    }

    #[test]
    fn a_list_of_names_is_counted_and_none_is_cut() {
        let list = |text: &str, width| shortened_list(text, width);
        assert_eq!(list("web,db,reports,cache", 19), "web,db and 2 more");
        assert_eq!(list("web, db, reports", 12), "3 in all");
        assert_eq!(list("web, db, reports", 15), "web and 2 more");
        assert_eq!(list("a-name-that-is-alone", 10), "a-name-that-is-alone");
    }

    #[test]
    fn an_image_loses_its_registry_then_its_digest_and_never_its_tag() {
        let image = "registry.lab:5000/shop/web:2@sha256:0123456789ab";
        for (width, shown) in [
            (48, image),
            (40, "…/shop/web:2@sha256:0123456789ab"),
            (30, "…/web:2@sha256:0123456789ab"),
            (26, "…/shop/web:2"),
            (10, "…/web:2"),
            (3, "…/web:2"),
        ] {
            assert_eq!(shortened_image(image, width), shown, "{width}");
        }
        // Nothing else tells this one from others.
        let image = "registry.lab:5000/web@sha256:0123456789ab";
        assert_eq!(shortened_image(image, 12), "…/web@sha256:0123456789ab");
        assert_eq!(shortened_image("web:2", 3), "web:2");
    }

    #[test]
    fn a_page_has_whole_messages_below_their_rows_where_they_do_not_fit() {
        let mut table = sample();
        table.row(vec![
            Cell::new("web-bbbbb"),
            Cell::phase("Failed"),
            Cell::new("a message of many words that is longer"),
        ]);
        let page = |width| table.clone().on_page(false, width, 2);
        for width in [None, Some(200)] {
            assert_eq!(page(width), table.indented(false, 2));
        }
        assert_eq!(
            page(Some(40)),
            "  NAME        PHASE\n\
             \x20 web-abcde   Running\n\
             \x20 größe       Failed\n\
             \x20   one | two\\u{1b}[31m\n\
             \x20 web-bbbbb   Failed\n\
             \x20   a message of many words that is\n\
             \x20     longer\n"
        );
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

    #[test]
    fn rows_below_narrow_ones_stand_as_close() {
        let above = sample().with_first(9).within(Some(30));
        assert!(
            above
                .render(false)
                .starts_with("NAME       PHASE    MESSAGE\n")
        );
        let mut below = above.continuation();
        below.row(vec![Cell::new("db"), Cell::phase("Ready"), Cell::new("x")]);
        let below = below.within(Some(200));
        assert_eq!(below.render(false), "db         Ready    x\n");
    }
}
