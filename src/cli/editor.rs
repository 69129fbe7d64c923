//! Texts that a user changes in an editor.

use std::{
    env,
    ffi::OsString,
    io::{IsTerminal, Write},
    process::Command,
};

use crate::errors::CliError;

/// The editor where no variable names one.
const DEFAULT: &str = "vi";
/// Start of the lines that [`with_remarks`] adds, which are taken out again.
const REMARK: &str = "#! ";

/// The text as the user leaves it.
///
/// # Errors
/// There is no terminal, or the editor fails.
pub(super) fn edit(name: &str, text: &str) -> Result<String, CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage("there is no terminal for an editor")
            .hinted("`katcall config set` changes settings in scripts"));
    }
    let failed =
        |error: std::io::Error| CliError::failed(format!("`{name}` can't be edited: {error}"));
    // Only the user can read the folder, and the file keeps its name, by which editors know its kind.
    let folder = tempfile::tempdir().map_err(failed)?;
    let path = folder.path().join(name);
    let mut file = std::fs::File::create_new(&path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    drop(file);
    let editor = editor();
    // The variable may hold arguments too.
    let status = Command::new("/bin/sh")
        .arg("-c")
        .arg("exec $KAT_EDITOR \"$1\"")
        .arg("sh")
        .arg(&path)
        .env("KAT_EDITOR", &editor)
        .status()
        .map_err(failed)?;
    if !status.success() {
        return Err(CliError::failed(format!(
            "the editor `{}` failed ({status}); nothing was changed",
            editor.display()
        )));
    }
    std::fs::read_to_string(&path).map_err(failed)
}

fn editor() -> OsString {
    let named = ["VISUAL", "EDITOR"].into_iter().filter_map(env::var_os);
    let mut named = named.filter(|editor| !editor.is_empty());
    named.next().unwrap_or_else(|| DEFAULT.into())
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
    fn remarks_are_above_the_text_and_taken_out_again() {
        let text = "a: 1\n# own comment\n";
        let marked = with_remarks("wrong\nvery", text);
        assert_eq!(marked, "#! wrong\n#! very\na: 1\n# own comment\n");
        assert_eq!(with_remarks("again", &marked), format!("#! again\n{text}"));
        assert_eq!(without_remarks(&marked), text);
    }
}
