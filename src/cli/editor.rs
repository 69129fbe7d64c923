//! Texts that a user changes in an editor.

use std::{
    fs::Permissions,
    io::{self, IsTerminal},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

use tokio::signal::unix::{SignalKind, signal};

use crate::{errors::CliError, output::plain};

/// The editor where no variable names one.
const USUAL_EDITOR: &str = "vi";
/// Start of the lines that [`with_remarks`] adds, which are taken out again.
const REMARK: &str = "#! ";

/// The user's editor.
pub(super) struct Editor {
    /// As the shell runs it: it may have arguments.
    command: String,
}

impl Editor {
    /// `instead` is the hint where there is neither a variable nor a terminal.
    pub(super) fn of_environment(instead: &str) -> Result<Self, CliError> {
        let named = ["VISUAL", "EDITOR"].into_iter().find_map(|name| {
            let value = std::env::var(name).ok()?;
            (!value.trim().is_empty()).then_some(value)
        });
        match named {
            Some(command) => Ok(Self { command }),
            None if io::stdin().is_terminal() => Ok(Self {
                command: USUAL_EDITOR.to_owned(),
            }),
            None => Err(CliError::usage(format!(
                "there is no terminal for `{USUAL_EDITOR}`, and VISUAL and EDITOR are not set"
            ))
            .hinted(instead)),
        }
    }

    /// Opens the files and waits until the editor ends. Ctrl-C is for the editor.
    pub(super) async fn open(
        &self,
        folder: &Path,
        names: &[String],
    ) -> Result<ExitStatus, CliError> {
        let failed = |error: io::Error| {
            CliError::failed(format!(
                "the editor `{}` cannot be started: {error}",
                plain(&self.command)
            ))
        };
        let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{} \"$@\"", self.command))
            .arg(&self.command)
            .args(paths);
        // While this is held, the signal does not end katcall.
        let _ignored = signal(SignalKind::interrupt()).map_err(failed)?;
        let ended = tokio::task::spawn_blocking(move || command.status()).await;
        ended
            .map_err(|error| CliError::failed(format!("the editor: {error}")))?
            .map_err(failed)
    }
}

/// A folder that only its owner can enter, whatever the umask: editors put copies beside a file.
pub(super) fn private_folder() -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("katcall-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
}

/// The text as the user leaves it; `instead` is the hint where nothing can be edited.
///
/// # Errors
/// There is no terminal, or the editor fails.
pub(super) async fn edit(name: &str, text: &str, instead: &str) -> Result<String, CliError> {
    let editor = Editor::of_environment(instead)?;
    let failed = |error: io::Error| CliError::failed(format!("cannot edit `{name}`: {error}"));
    // The file keeps its name, by which editors know its kind.
    let folder = private_folder().map_err(failed)?;
    let path = folder.path().join(name);
    std::fs::write(&path, text).map_err(failed)?;
    let status = editor.open(folder.path(), &[name.to_owned()]).await?;
    if !status.success() {
        return Err(CliError::failed(format!(
            "the editor ended with {status}; nothing was changed"
        )));
    }
    std::fs::read_to_string(&path).map_err(failed)
}

/// The text below what is wrong with it.
pub(super) fn with_remarks(remarks: &str, text: &str) -> String {
    let remarks = remarks.lines().map(|line| format!("{REMARK}{line}\n"));
    remarks.collect::<String>() + &without_remarks(text)
}

/// The text without the lines of [`with_remarks`].
pub(super) fn without_remarks(text: &str) -> String {
    let lines = text.split_inclusive('\n');
    lines.filter(|line| !line.starts_with(REMARK)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_can_enter_the_folder_of_an_editor() {
        let folder = private_folder().unwrap();
        let mode = folder.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }

    #[test]
    fn remarks_are_above_the_text_and_taken_out_again() {
        let text = "a: 1\n# own comment\n";
        let marked = with_remarks("wrong\nvery", text);
        assert_eq!(marked, "#! wrong\n#! very\na: 1\n# own comment\n");
        assert_eq!(with_remarks("again", &marked), format!("#! again\n{text}"));
        assert_eq!(without_remarks(&marked), text);
    }
}
