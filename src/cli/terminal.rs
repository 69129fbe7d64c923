//! The terminal of katcall itself.

use std::io;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use kat_types::encoding::frames::TerminalSize;

/// The terminal's present size; `None` where stdin is no terminal.
pub(super) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(TerminalSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

/// The variable `COLUMNS`.
fn asked_width() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}

/// Columns of the terminal that stderr is; `None` in a pipe, also where `COLUMNS` is set: scripts look
/// for whole sentences.
pub(super) fn error_width() -> Option<usize> {
    let own = tcgetwinsize(io::stderr()).ok()?;
    let columns = asked_width().unwrap_or(usize::from(own.ws_col));
    (columns > 0).then_some(columns)
}

/// Columns of the terminal that stdout is; those of the variable `COLUMNS` where it is set.
pub(super) fn output_width() -> Option<usize> {
    let asked = asked_width();
    let own = || {
        tcgetwinsize(io::stdout())
            .ok()
            .map(|size| usize::from(size.ws_col))
    };
    asked.or_else(own).filter(|columns| *columns > 0)
}

/// Raw mode: every key is passed through, until this is dropped.
pub(super) struct RawMode {
    before: Termios,
}

impl RawMode {
    pub(super) fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

/// Turns echo off until this is dropped.
pub(super) struct EchoOff {
    _before: RawMode,
}

impl EchoOff {
    pub(super) fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ICANON);
        tcsetattr(io::stdin(), OptionalActions::Now, &hidden)?;
        Ok(Self {
            _before: RawMode { before },
        })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // An error means that the terminal is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
