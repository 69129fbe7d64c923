//! Reads the token of `kat-agent join` from sources that other users of the machine can't see.

use std::{
    io::{self, BufRead, IsTerminal},
    path::Path,
};

use anyhow::bail;

use kat_host::files;

/// Longest token, in bytes.
const LIMIT: u64 = 4 << 10;

/// Reads the token from the file; without a file, or for `-`, from the standard input, with a
/// prompt on a terminal.
pub(crate) fn read(file: Option<&Path>) -> anyhow::Result<String> {
    if let Some(path) = file.filter(|path| path.as_os_str() != "-") {
        return token_of(&files::read_text(path, LIMIT)?);
    }
    let input = io::stdin();
    if input.is_terminal() {
        anstream::eprint!("token, as `katcall token create --join` printed it: ");
    }
    token_of(&first_line(input.lock())?)
}

fn first_line(input: impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    input.take(LIMIT).read_line(&mut line)?;
    Ok(line)
}

fn token_of(text: &str) -> anyhow::Result<String> {
    let token = text.trim();
    if token.is_empty() {
        bail!(
            "no token was given; `katcall token create --join` on a machine of the cluster prints the whole command"
        );
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_first_line_of_the_input_and_bounded() {
        let read = |input: &str| token_of(&first_line(input.as_bytes()).unwrap()).ok();
        assert_eq!(read("kat1.a.b.c\nmore\n").as_deref(), Some("kat1.a.b.c"));
        assert_eq!(read("  kat1.a.b.c").as_deref(), Some("kat1.a.b.c"));
        assert_eq!(read(""), None);
        assert_eq!(
            read(&"x".repeat(10_000)).map(|token| token.len()),
            Some(4096)
        );
    }

    #[test]
    fn a_token_is_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "kat1.a.b.c\n").unwrap();
        assert_eq!(super::read(Some(&path)).unwrap(), "kat1.a.b.c");
        assert!(super::read(Some(&folder.path().join("none"))).is_err());
    }
}
