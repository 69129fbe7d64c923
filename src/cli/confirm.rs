//! Confirmation prompts.

use std::io::{self, IsTerminal, Write};

use super::errors::CliError;

/// Asks whether the listed items may be deleted. Without a terminal `--yes` is required.
pub(super) fn ask(question: &str) -> Result<(), CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::usage(
            "deleting these needs a confirmation, and there is no terminal to ask on",
        )
        .hinted("`--yes` says that they may"));
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| CliError::failed(format!("the answer can't be read: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CliError::failed("nothing was done")),
    }
}
