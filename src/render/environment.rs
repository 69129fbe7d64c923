//! The values of a container's variables, kept out of unit files and command lines.
//!
//! A quadlet's `Environment=` becomes `podman run --env NAME=VALUE`, which every local user can
//! read with `ps`. So the values are written to a file that only root and the workload's own user
//! can read, and podman gets its path (`--env-file`). That file has one `NAME=VALUE` per line
//! without any quoting, and podman reads at most 64 KiB of a line: so a value with a line break, or
//! a longer one, has a file of its own. Before each start the unit makes a Podman secret from that
//! file, in the user's own storage, and the container's variable gets its value from the secret
//! (`--secret type=env`). So no value is ever in podman's own environment, under any name.

use kat_types::resource::EnvVar;

/// Longest line of the file for podman in bytes, safely below Go's limit of 65,536.
const LINE_LIMIT: usize = 65_000;
/// Longest `NAME=VALUE` that the kernel passes to a program in bytes, including the terminating
/// NUL.
const KERNEL_LIMIT: usize = 131_072;

/// The files of one container's variables.
#[derive(Default, PartialEq, Eq)]
pub struct EnvironmentFiles {
    /// For `podman run --env-file`; not needed if empty.
    pub podman: String,
    /// Variables whose values each need a file of their own: name and value.
    pub values: Vec<(String, String)>,
}

/// Why a variable can't be passed to a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The name is invalid.
    #[error("`{0}` can't be the name of a variable")]
    Name(String),
    /// The value contains a NUL.
    #[error("the value of `{0}` has a NUL character")]
    Nul(String),
    /// The value is too long.
    #[error(
        "the value of `{0}` has {1} bytes; the kernel hands at most {KERNEL_LIMIT} to a program, its name included"
    )]
    TooLong(String, usize),
    /// The value needs a file of its own, but Podman's option does not accept the name.
    #[error(
        "the value of `{0}` has a line break or more than {LINE_LIMIT} bytes, which is not possible under this name"
    )]
    Reserved(String),
    #[error("the value of `{0}` is not known")]
    NoValue(String),
}

/// The files of a container's variables; of two variables with one name the last one counts.
pub fn environment_files(variables: &[EnvVar]) -> Result<EnvironmentFiles, EnvironmentError> {
    let mut files = EnvironmentFiles::default();
    for variable in variables {
        let EnvVar {
            name,
            value,
            value_from,
        } = variable;
        let (Some(value), None) = (value, value_from) else {
            return Err(EnvironmentError::NoValue(name.clone()));
        };
        check(name, value)?;
        // Podman applies secrets after the file, so an earlier secret of that name must go.
        files.values.retain(|(other, _)| other != name);
        if one_line(name, value) {
            files.podman.push_str(&format!("{name}={value}\n"));
        } else if is_portable(name) {
            files.values.push((name.clone(), value.clone()));
        } else {
            return Err(EnvironmentError::Reserved(name.clone()));
        }
    }
    Ok(files)
}

fn check(name: &str, value: &str) -> Result<(), EnvironmentError> {
    let odd =
        |character: char| character == '=' || character.is_whitespace() || character.is_control();
    if name.is_empty() || name.starts_with('#') || name.contains(odd) {
        return Err(EnvironmentError::Name(name.to_owned()));
    }
    if value.contains('\0') {
        return Err(EnvironmentError::Nul(name.to_owned()));
    }
    if name.len() + value.len() + 2 > KERNEL_LIMIT {
        return Err(EnvironmentError::TooLong(name.to_owned(), value.len()));
    }
    Ok(())
}

/// Podman's reader keeps everything of a line except a carriage return at its end.
fn one_line(name: &str, value: &str) -> bool {
    !value.contains('\n') && !value.ends_with('\r') && name.len() + value.len() < LINE_LIMIT
}

/// Whether Podman's `--secret` accepts the name unquoted.
fn is_portable(name: &str) -> bool {
    name.chars()
        .all(|character| character.is_ascii_alphanumeric() || character == '_')
        && !name.starts_with(|character: char| character.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, value: &str) -> EnvVar {
        EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        }
    }

    fn files(name: &str, value: &str) -> Result<EnvironmentFiles, EnvironmentError> {
        environment_files(&[variable(name, value)])
    }

    #[test]
    fn one_line_values_stand_as_they_are() {
        let files = files("PATH", " a=\"b\" 'c' $d %e \\ # ").unwrap();
        assert_eq!(files.podman, "PATH= a=\"b\" 'c' $d %e \\ # \n");
        assert!(files.values.is_empty());
    }

    #[test]
    fn other_values_have_files_of_their_own_whatever_their_names() {
        let long = "x".repeat(LINE_LIMIT);
        for value in ["-----\n\"$a\" `b` \\\n", "a\r", long.as_str()] {
            for name in ["KEY", "PATH", "LD_PRELOAD", "CONTAINERS_CONF", "http_proxy"] {
                let files = files(name, value).unwrap();
                assert_eq!(files.podman, "", "{name} is not taken from podman's own");
                assert_eq!(files.values, [(name.to_owned(), value.to_owned())]);
            }
        }
        for name in ["a.b", "1a", "a,b"] {
            let reserved = EnvironmentError::Reserved(name.to_owned());
            assert_eq!(files(name, "a\nb").err(), Some(reserved));
            assert!(files(name, "plain").is_ok(), "{name} in one line");
        }
    }

    #[test]
    fn of_two_with_one_name_the_last_holds() {
        let of = |values: [&str; 2]| {
            let variables = values.map(|value| variable("A", value));
            environment_files(&variables).unwrap()
        };
        let last = of(["1", "2\n"]);
        assert_eq!(last.values, [("A".to_owned(), "2\n".to_owned())]);
        let first = of(["1\n", "2"]);
        assert!(first.values.is_empty());
        assert_eq!(first.podman, "A=2\n");
        let both = of(["1\n", "2\n"]);
        assert_eq!(both.values, [("A".to_owned(), "2\n".to_owned())]);
    }

    #[test]
    fn impossible_variables_are_refused() {
        for name in ["", "a=b", "a b", "#a", " a", "a\n"] {
            assert_eq!(
                files(name, "v").err(),
                Some(EnvironmentError::Name(name.to_owned()))
            );
        }
        assert_eq!(
            files("A", "\0").err(),
            Some(EnvironmentError::Nul("A".to_owned()))
        );
        let long = "x".repeat(KERNEL_LIMIT);
        assert_eq!(
            files("A", &long).err(),
            Some(EnvironmentError::TooLong("A".to_owned(), KERNEL_LIMIT))
        );
        let unknown = EnvVar {
            name: "A".to_owned(),
            value: None,
            value_from: None,
        };
        assert_eq!(
            environment_files(&[unknown]).err(),
            Some(EnvironmentError::NoValue("A".to_owned()))
        );
    }
}
