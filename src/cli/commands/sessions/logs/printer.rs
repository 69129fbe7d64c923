//! Formats log lines: instance, time and text.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io::{self, IsTerminal},
};

use anstyle::{AnsiColor, Style};

use crate::{
    console::{Console, paint},
    errors::CliError,
    output::printed,
};
use kat_types::api::LogLine;

/// Colours of instances, in order of appearance. None of them means good or bad elsewhere.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightBlue,
];

pub(crate) struct LogPrinter<'run> {
    console: &'run Console,
    timestamps: bool,
    names: bool,
    /// Output goes to a terminal, which a program's line must not control. In a pipe lines stay
    /// unchanged.
    terminal: bool,
    styles: RefCell<BTreeMap<String, Style>>,
    /// A line was printed.
    printed: Cell<bool>,
}

impl<'run> LogPrinter<'run> {
    pub(crate) fn new(console: &'run Console, timestamps: bool, names: bool) -> Self {
        Self {
            console,
            timestamps,
            names,
            terminal: io::stdout().is_terminal(),
            styles: RefCell::default(),
            printed: Cell::new(false),
        }
    }

    pub(crate) fn has_printed(&self) -> bool {
        self.printed.get()
    }

    pub(crate) fn print(&self, id: &str, line: &LogLine) -> Result<(), CliError> {
        let mut text = String::with_capacity(line.message.len() + 64);
        if self.names {
            text.push_str(&paint(
                &format!("{id} |"),
                self.style(id),
                self.console.colour,
            ));
            text.push(' ');
        }
        if self.timestamps {
            text.push_str(&line.timestamp.to_string());
            text.push(' ');
        }
        if self.terminal {
            text.push_str(&printed(&line.message, self.console.colour));
        } else {
            text.push_str(&line.message);
        }
        text.push('\n');
        self.printed.set(true);
        self.console.print(&text)
    }

    fn style(&self, id: &str) -> Style {
        let mut styles = self.styles.borrow_mut();
        if let Some(style) = styles.get(id) {
            return *style;
        }
        let colour = COLOURS.get(styles.len() % COLOURS.len());
        let style = colour.map_or_else(Style::new, |colour| colour.on_default());
        styles.insert(id.to_owned(), style);
        style
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_keeps_its_colour_and_its_neighbour_has_another() {
        let console = Console::detect();
        let printer = LogPrinter::new(&console, false, true);
        let first = printer.style("web-aaaaa");
        assert_ne!(printer.style("web-bbbbb"), first);
        assert_eq!(printer.style("web-aaaaa"), first);
        for number in 0..20 {
            printer.style(&format!("web-{number}"));
        }
        assert_eq!(printer.style("web-aaaaa"), first);
    }
}
