//! Environment variables of `run` and `new`: `-e`, and files as Podman's `--env-file` reads them.

use std::{ffi::OsString, fs::File, io::Read, path::Path};

use super::args::WorkloadOptions;
use crate::{errors::CliError, output::plain};
use kat_bundle::{MAX_FILE, check_variable};

/// The variables of the shell that runs katcall.
pub(super) type ShellVariables<'shell> = &'shell dyn Fn(&str) -> Option<OsString>;

/// All variables in the order in which they are first named. Files come before `-e`, and a later
/// value replaces an earlier one.
pub(super) fn variables(
    options: &WorkloadOptions,
    shell: ShellVariables<'_>,
) -> Result<Vec<(String, String)>, CliError> {
    let mut found = Variables::default();
    for path in &options.env_files {
        let place = plain(&path.display().to_string());
        for (line, name, value) in parse(&place, &read(path, &place)?)? {
            let value = match value {
                Some(value) => value,
                None => of_shell(&name, shell)
                    .map_err(|error| CliError::failed(format!("{place}:{line}: {error}")))?,
            };
            found.set(name, value);
        }
    }
    for option in &options.env {
        let value = match &option.value {
            Some(value) => value.clone(),
            None => of_shell(&option.name, shell)
                .map_err(|error| CliError::usage(format!("`-e {}`: {error}", option.name)))?,
        };
        found.set(option.name.clone(), value);
    }
    Ok(found.pairs)
}

#[derive(Default)]
struct Variables {
    pairs: Vec<(String, String)>,
}

impl Variables {
    fn set(&mut self, name: String, value: String) {
        match self.pairs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.pairs.push((name, value)),
        }
    }
}

fn of_shell(name: &str, shell: ShellVariables<'_>) -> Result<String, String> {
    let value = shell(name).ok_or_else(|| {
        format!("the variable {name} is not set in this shell; `{name}=VALUE` gives it one")
    })?;
    value
        .into_string()
        .map_err(|_| format!("the value of {name} in this shell is not UTF-8"))
}

/// The text of a file or a pipe.
fn read(path: &Path, place: &str) -> Result<String, CliError> {
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most.saturating_add(1)).read_to_end(&mut bytes))
        .map_err(|error| CliError::failed(format!("`{place}` cannot be read: {error}")))?;
    if bytes.len() > MAX_FILE {
        return Err(CliError::failed(format!(
            "`{place}` has more than {MAX_FILE} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = before.split(|byte| *byte == b'\n').count();
        CliError::failed(format!(
            "{place}:{line}: found bytes that are not UTF-8 text"
        ))
    })
}

/// The number of a line, the name of its variable, and the value if it is written.
type EnvFileLine = (usize, String, Option<String>);

/// The lines of a file: `NAME=VALUE`, `NAME` with the value of the shell, or a comment. Values are
/// taken as they are, with quotes and spaces.
fn parse(place: &str, text: &str) -> Result<Vec<EnvFileLine>, CliError> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = match line.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (line, None),
        };
        let number = index + 1;
        let refuse = |message: String| CliError::failed(format!("{place}:{number}: {message}"));
        if value.is_none() && name.ends_with('*') {
            return Err(refuse(
                "a pattern of names is not taken; write the name of each variable".to_owned(),
            ));
        }
        check_variable(name).map_err(|message| match name.strip_prefix("export ") {
            Some(_) => refuse("leave `export` out: the file is not run by a shell".to_owned()),
            // Without `=` the line may be the rest of a value.
            None if value.is_none() => refuse("found neither NAME=VALUE nor NAME".to_owned()),
            None => refuse(message),
        })?;
        found.push((number, name.to_owned(), value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn options(arguments: &[&str]) -> WorkloadOptions {
        let command = WorkloadOptions::augment_args(Command::new("run").no_binary_name(true));
        let matches = command.get_matches_from(arguments);
        WorkloadOptions::from_arg_matches(&matches).unwrap()
    }

    fn shell(name: &str) -> Option<OsString> {
        (name == "SET").then(|| "of the shell".into())
    }

    #[test]
    fn files_come_first_and_a_later_value_replaces_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("env");
        let text = "# comment\n\n  A=1 # no comment\r\nB=\"quoted\"\nSET\nEMPTY=\n";
        std::fs::write(&path, text).unwrap();
        let file = path.to_str().unwrap();
        let options = options(&["-e", "C=3", "-e", "B=2", "--env-file", file, "-e", "C=4"]);
        let found = variables(&options, &shell).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("A", "1 # no comment"),
                ("B", "2"),
                ("SET", "of the shell"),
                ("EMPTY", ""),
                ("C", "4")
            ]
        );
    }

    #[test]
    fn mistakes_have_their_place_and_never_a_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("env");
        let file = path.to_str().unwrap();
        for (text, place, words) in [
            ("A=1\n1B=hidden\n", 2, "`1B` is not the name"),
            ("export A=hidden\n", 1, "leave `export` out"),
            ("A=1\n\nUNSET\n", 3, "UNSET is not set in this shell"),
            ("KAT*\n", 1, "pattern"),
            ("=hidden\n", 1, "is not the name"),
            (
                "KEY=-----BEGIN\nhidden hidden\n",
                2,
                "neither NAME=VALUE nor NAME",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = variables(&options(&["--env-file", file]), &shell).unwrap_err();
            let shown = error.to_string();
            assert!(shown.starts_with(&format!("{file}:{place}: ")), "{shown}");
            assert!(shown.contains(words), "{shown}");
            assert!(!shown.contains("hidden"), "{shown}");
        }
        std::fs::write(&path, b"A=1\nB=\xff\n").unwrap();
        let error = variables(&options(&["--env-file", file]), &shell).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{file}:2: ")));
        std::fs::write(&path, "A".repeat(MAX_FILE + 1)).unwrap();
        assert!(variables(&options(&["--env-file", file]), &shell).is_err());
        let error = variables(&options(&["-e", "UNSET"]), &shell).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }
}
