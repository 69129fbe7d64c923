//! The two output streams: data to stdout, everything else to stderr.

use std::{
    cell::RefCell,
    io::{self, IsTerminal, Write},
};

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::ProgressBar;

use super::{errors::CliError, output::wrapped, terminal};

/// The meaning of a word, for its colour; the word has the same meaning without colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TextTone {
    #[default]
    Plain,
    Good,
    Busy,
    Bad,
}

impl TextTone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Busy => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
        }
    }
}

/// Text in a style if `colour` is set.
pub(super) fn paint(text: &str, style: Style, colour: bool) -> String {
    if colour && style != Style::new() {
        format!("{style}{text}{style:#}")
    } else {
        text.to_owned()
    }
}

pub(super) fn tint(text: &str, tone: TextTone, colour: bool) -> String {
    paint(text, tone.style(), colour)
}

pub(super) struct Console {
    pub(super) colour: bool,
    pub(super) error_colour: bool,
    /// stderr is a terminal.
    pub(super) interactive: bool,
    /// Columns of the terminal that stdout is, or that `COLUMNS` asks for; `None` in a pipe, where a
    /// program reads whole texts.
    pub(super) width: Option<usize>,
    /// Columns of the terminal that stderr is; `None` in a pipe.
    error_width: Option<usize>,
    /// The progress bar on the screen.
    progress: RefCell<Option<ProgressBar>>,
}

impl Console {
    /// Detects colours and terminals from the streams and `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE`
    /// and `TERM`.
    pub(super) fn detect() -> Self {
        let colour = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
        let error_colour = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        Self {
            colour,
            error_colour,
            interactive: io::stderr().is_terminal(),
            width: terminal::output_width(),
            error_width: terminal::error_width(),
            progress: RefCell::new(None),
        }
    }

    /// Prints data unchanged.
    pub(super) fn print(&self, text: &str) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()?;
        Ok(())
    }

    /// Prints a line of data.
    pub(super) fn line(&self, text: &str) -> Result<(), CliError> {
        let suspended = self.progress.borrow().clone();
        match suspended {
            Some(bar) => bar.suspend(|| self.print(&format!("{text}\n"))),
            None => self.print(&format!("{text}\n")),
        }
    }

    /// Prints a sentence as data, on a terminal broken between words.
    pub(super) fn sentence(&self, text: &str) -> Result<(), CliError> {
        self.line(&wrapped(text, self.width))
    }

    /// Prints sentences to stderr, on a terminal broken between words.
    pub(super) fn note(&self, text: &str) {
        self.excerpt(&wrapped(text, self.error_width));
    }

    /// Prints lines to stderr as they are, such as those of files and of commands to be copied.
    /// Errors of stderr are ignored.
    pub(super) fn excerpt(&self, text: &str) {
        let write = || {
            let _ = writeln!(io::stderr(), "{text}");
        };
        let suspended = self.progress.borrow().clone();
        match suspended {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    pub(super) fn warning(&self, text: &str) {
        let word = paint(
            "warning",
            AnsiColor::Yellow.on_default().bold(),
            self.error_colour,
        );
        self.note(&format!("{word}: {text}"));
    }

    /// Prints the server's warnings.
    pub(super) fn warnings(&self, texts: &[String]) {
        for text in texts {
            self.warning(&super::output::plain(text));
        }
    }

    pub(super) fn hint(&self, text: &str) {
        let word = paint(
            "hint",
            AnsiColor::Cyan.on_default().bold(),
            self.error_colour,
        );
        self.note(&format!("\n{word}: {text}"));
    }

    /// Prints the error of a command.
    pub(super) fn error(&self, error: &CliError) {
        self.clear_progress();
        if matches!(error, CliError::BrokenPipe) {
            return;
        }
        if let CliError::Diagnostics { text, .. } = error {
            self.excerpt(text);
        }
        self.failure(&error.to_string(), error.hint().as_deref());
    }

    /// Prints the error for one of several objects; the hint follows its message without an empty line.
    pub(super) fn error_of(&self, name: &str, error: &CliError) {
        self.clear_progress();
        let hint = error.hint();
        let hint = hint.map_or_else(String::new, |hint| format!("\n  {hint}"));
        self.failure(&format!("{name}: {error}{hint}"), None);
    }

    pub(super) fn failure(&self, message: &str, hint: Option<&str>) {
        let word = paint(
            "error",
            AnsiColor::Red.on_default().bold(),
            self.error_colour,
        );
        self.note(&format!("{word}: {message}"));
        if let Some(hint) = hint {
            self.hint(hint);
        }
    }

    pub(super) fn show_progress(&self, bar: ProgressBar) {
        *self.progress.borrow_mut() = Some(bar);
    }

    /// Removes the progress bar from the screen.
    pub(super) fn clear_progress(&self) {
        if let Some(bar) = self.progress.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }
}
