//! The terminal that katcall itself runs on.

use std::io;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use kat_types::frames::TerminalSize;

/// Its size now; nothing where stdin is no terminal.
pub(super) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    Some(TerminalSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

/// Every key goes through as it is, until this is dropped.
pub(super) struct Raw {
    before: Termios,
}

impl Raw {
    pub(super) fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

/// What is typed does not show, until this is dropped.
pub(super) struct Hidden {
    _before: Raw,
}

impl Hidden {
    pub(super) fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        hidden.local_modes.insert(LocalModes::ICANON);
        tcsetattr(io::stdin(), OptionalActions::Now, &hidden)?;
        Ok(Self {
            _before: Raw { before },
        })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
