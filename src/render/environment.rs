//! The values of a container's variables, kept out of unit files and command lines.
//!
//! A quadlet's `Environment=` becomes `podman run --env NAME=VALUE`, which every local user can
//! read in `ps`. So the values lie in a file that only root and the workload's own user can read,
//! and podman gets its path (`--env-file`). That file has one `NAME=VALUE` for each line, with no
//! quoting at all, and podman reads at most 64 KiB of a line: a value with a line break, or a
//! longer one, goes through the manager instead. It lies in a second file in the syntax of
//! systemd.exec(5), `EnvironmentFile=`, which puts it into podman's own environment, and the
//! first file has the bare `NAME`, which podman takes over from there.

use crate::resource::EnvVar;

/// Longest line of podman's file, in bytes, with room to spare below Go's limit of 65,536.
const LINE_LIMIT: usize = 65_000;
/// Longest `NAME=VALUE` that the kernel hands to a program, in bytes, its end included.
const KERNEL_LIMIT: usize = 131_072;

/// The two files of one container's variables; empty ones are not needed.
#[derive(Default, PartialEq, Eq)]
pub struct EnvironmentFiles {
    /// For `podman run --env-file`.
    pub podman: String,
    /// For the unit's own `EnvironmentFile=`.
    pub manager: String,
}

/// Why a variable can't be handed to a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The name.
    #[error("`{0}` can't be the name of a variable")]
    Name(String),
    /// The value has a NUL.
    #[error("the value of `{0}` has a NUL character")]
    Nul(String),
    /// The value is too long.
    #[error(
        "the value of `{0}` has {1} bytes; the kernel hands at most {KERNEL_LIMIT} to a program, its name included"
    )]
    TooLong(String, usize),
    /// The value needs the manager's way, and the name would change podman itself.
    #[error(
        "the value of `{0}` has a line break or more than {LINE_LIMIT} bytes, which is not possible under this name"
    )]
    Reserved(String),
    /// The value comes from a secret that was not resolved.
    #[error("the value of `{0}` is not known")]
    NoValue(String),
}

/// Names that podman, the C library or systemd act upon, in podman's own environment.
const RESERVED: [&str; 16] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TERM",
    "IFS",
    "ENV",
    "BASH_ENV",
    "TZ",
    "PODMAN_SYSTEMD_UNIT",
    "REGISTRY_AUTH_FILE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "PWD",
];
const RESERVED_PREFIXES: [&str; 19] = [
    "LD_",
    "XDG_",
    "DBUS_",
    "CONTAINER",
    "STORAGE_",
    "PODMAN_",
    "NOTIFY_",
    "LISTEN_",
    "WATCHDOG_",
    "GO",
    "KAT_",
    "GLIBC_",
    "MALLOC_",
    "LC_",
    "LANG",
    "CREDENTIALS_",
    "INVOCATION_",
    "JOURNAL_",
    "SYSTEMD_",
];

/// Writes the files of a container's variables; of two with one name, the last holds.
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
        if one_line(name, value) {
            files.podman.push_str(&format!("{name}={value}\n"));
        } else if passes_manager(name) {
            files.podman.push_str(&format!("{name}\n"));
            files
                .manager
                .push_str(&format!("{name}=\"{}\"\n", escape(value)));
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

/// Podman's reader keeps everything of a line but a carriage return at its end.
fn one_line(name: &str, value: &str) -> bool {
    !value.contains('\n') && !value.ends_with('\r') && name.len() + value.len() < LINE_LIMIT
}

/// systemd takes such a name, and podman does nothing by it.
fn passes_manager(name: &str) -> bool {
    let portable = name
        .chars()
        .all(|character| character.is_ascii_alphanumeric() || character == '_')
        && !name.starts_with(|character: char| character.is_ascii_digit());
    let upper = name.to_ascii_uppercase();
    portable
        && !RESERVED.contains(&upper.as_str())
        && !RESERVED_PREFIXES
            .iter()
            .any(|prefix| upper.starts_with(prefix))
        && !upper.ends_with("_PROXY")
}

/// Within double quotes of systemd's environment files these lose their meaning by a backslash.
fn escape(value: &str) -> String {
    let mut result = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '"' | '\\' | '`' | '$') {
            result.push('\\');
        }
        result.push(character);
    }
    result
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
        assert_eq!(files.manager, "");
    }

    #[test]
    fn other_values_go_through_the_manager() {
        let files = files("KEY", "-----\n\"$a\" `b` \\\n").unwrap();
        assert_eq!(files.podman, "KEY\n");
        assert_eq!(
            files.manager,
            "KEY=\"-----\n\\\"\\$a\\\" \\`b\\` \\\\\n\"\n"
        );
        assert_eq!(
            super::environment_files(&[variable("K", "a\r")])
                .unwrap()
                .podman,
            "K\n"
        );
        let long = "x".repeat(LINE_LIMIT);
        assert_eq!(
            super::environment_files(&[variable("K", &long)])
                .unwrap()
                .podman,
            "K\n"
        );
    }

    #[test]
    fn podman_itself_is_never_steered() {
        for name in [
            "PATH",
            "LD_PRELOAD",
            "http_proxy",
            "CONTAINERS_CONF",
            "XDG_RUNTIME_DIR",
            "a.b",
            "1a",
        ] {
            assert_eq!(
                files(name, "a\nb").err(),
                Some(EnvironmentError::Reserved(name.to_owned()))
            );
            assert!(files(name, "plain").is_ok(), "{name} in one line");
        }
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
