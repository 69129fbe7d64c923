//! Prompts on the terminal.

use std::{
    io::{self, IsTerminal, Read},
    os::fd::AsFd,
    path::Path,
};

use anyhow::{Context, bail};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex as Key, Termios, tcgetattr, tcsetattr,
};

use kat_host::files;
use kat_pki::recovery_key::RecoveryKey;

/// Largest file of a recovery key in bytes.
const LIMIT: u64 = 4 << 10;
/// Longest line that a terminal returns at once (termios(3)).
const LINE: usize = 4096;

/// Reads the recovery key from a file, or from the terminal without echo.
pub(super) fn recovery_key(file: Option<&Path>) -> anyhow::Result<RecoveryKey> {
    if let Some(path) = file {
        let text = files::read_text(path, LIMIT)?;
        return RecoveryKey::parse(&text).with_context(|| path.display().to_string());
    }
    let input = io::stdin();
    if !input.is_terminal() {
        bail!("without a terminal the recovery key needs --recovery-key-file FILE");
    }
    let line = ask(&input, "recovery key (it is not shown): ", EchoMode::Hidden)?;
    if line.trim().is_empty() {
        bail!("no recovery key was given; nothing was changed");
    }
    Ok(RecoveryKey::parse(&line)?)
}

/// Fails without a terminal: then `--yes` is required.
pub(super) fn need_terminal(what: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("{what}; without a terminal it needs --yes");
    }
    Ok(())
}

/// Asks for confirmation.
pub(super) fn go_on(what: &str) -> anyhow::Result<bool> {
    let answer = ask(
        &io::stdin(),
        &format!("{what}; continue? [y/N] "),
        EchoMode::Shown,
    )?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Whether the terminal echoes the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EchoMode {
    Shown,
    Hidden,
}

/// Asks, and reads one line; an empty one at the end of the input. Input from before the question
/// is discarded.
fn ask<T>(terminal: &T, question: &str, typing: EchoMode) -> anyhow::Result<String>
where
    T: AsFd,
    for<'a> &'a T: Read,
{
    // Echo is turned off before the question shows, so that a fast answer is hidden, too.
    let asking = PromptTerminal::begin(terminal, typing).context("the terminal can't be set")?;
    anstream::eprint!("{question}");
    let mut line = [0; LINE];
    let mut keys = terminal;
    // In canonical mode a terminal returns one line at a time.
    let read = loop {
        match keys.read(&mut line) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    let line = match &read {
        Ok(length) => line.get(..*length).unwrap_or_default(),
        Err(_) => &[],
    };
    let stop = line.last();
    let interrupted = stop.is_some_and(|last| asking.stops.contains(last));
    drop(asking);
    if typing == EchoMode::Hidden || interrupted || line.is_empty() {
        anstream::eprintln!();
    }
    read?;
    if interrupted {
        bail!("interrupted; nothing was changed");
    }
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// Settings of the terminal during a question; dropping this restores the earlier ones.
/// Interrupting keys end the line instead of the program, so that the settings are always restored.
struct PromptTerminal<'a, T: AsFd> {
    terminal: &'a T,
    before: Termios,
    stops: Vec<u8>,
}

impl<'a, T: AsFd> PromptTerminal<'a, T> {
    fn begin(terminal: &'a T, typing: EchoMode) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut asking = before.clone();
        asking.local_modes.remove(LocalModes::ISIG);
        asking
            .local_modes
            .insert(LocalModes::ICANON | LocalModes::IEXTEN);
        asking
            .local_modes
            .set(LocalModes::ECHO, typing == EchoMode::Shown);
        asking.input_modes.insert(InputModes::ICRNL);
        let mut stops = Vec::new();
        for (stop, end_of_line) in [(Key::VINTR, Key::VEOL), (Key::VQUIT, Key::VEOL2)] {
            let key = before.special_codes[stop];
            // 0 means that no key is set.
            if key != 0 {
                asking.special_codes[end_of_line] = key;
                stops.push(key);
            }
        }
        tcsetattr(terminal, OptionalActions::Flush, &asking)?;
        Ok(Self {
            terminal,
            before,
            stops,
        })
    }
}

impl<T: AsFd> Drop for PromptTerminal<'_, T> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests;
