//! Asks a person.

use std::{
    io::{self, BufRead, IsTerminal},
    path::Path,
};

use anyhow::{Context, bail};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

use crate::{host::files, pki::seal::RecoveryKey};

/// Largest file of a recovery key.
const LIMIT: u64 = 4 << 10;

/// The recovery key, from a file or from the person at the terminal, unseen.
pub fn recovery_key(file: Option<&Path>) -> anyhow::Result<RecoveryKey> {
    if let Some(path) = file {
        let text = files::read_text(path, LIMIT)?;
        return RecoveryKey::parse(&text).with_context(|| path.display().to_string());
    }
    let input = io::stdin();
    if !input.is_terminal() {
        bail!("say --recovery-key-file FILE where nobody can be asked for the recovery key");
    }
    anstream::eprint!("recovery key (it is not shown): ");
    let mut line = String::new();
    let hidden = Hidden::begin(&input);
    let read = io::Read::take(input.lock(), LIMIT).read_line(&mut line);
    drop(hidden);
    anstream::eprintln!();
    read?;
    Ok(RecoveryKey::parse(&line)?)
}

/// Where nobody can be asked, `--yes` must say it.
pub fn need_terminal(what: &str) -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("{what}; say --yes where nobody can be asked");
    }
    Ok(())
}

/// Asks whether to go on.
pub fn go_on(what: &str) -> anyhow::Result<bool> {
    anstream::eprint!("{what}; go on? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The terminal shows nothing of what is typed, until this is dropped.
struct Hidden<'a> {
    terminal: &'a io::Stdin,
    before: Termios,
}

impl<'a> Hidden<'a> {
    fn begin(terminal: &'a io::Stdin) -> Option<Self> {
        let before = tcgetattr(terminal).ok()?;
        let mut hidden = before.clone();
        hidden.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(terminal, SetArg::TCSAFLUSH, &hidden).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.terminal, SetArg::TCSAFLUSH, &self.before);
    }
}
