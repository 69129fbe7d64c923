//! Runs other programs with a time limit, bounded output, and errors that name the failed command.

use std::{
    ffi::{OsStr, OsString},
    io,
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::timeout,
};

use kat_types::encoding::plain::last_words;

/// Bytes of each output stream that are kept; the rest is read and discarded.
pub const OUTPUT_LIMIT: usize = 1024 * 1024;

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program does not exist.
    #[error("the program {program} is not there")]
    NotFound {
        /// The program's path or name.
        program: String,
    },
    /// The program could not be started or read.
    #[error("{command}: can't be run: {error}")]
    System {
        /// The command line.
        command: String,
        error: io::Error,
    },
    /// The program did not end in time and was killed.
    #[error("{command}: did not end within {} s", limit.as_secs_f32())]
    TimedOut {
        /// The command line.
        command: String,
        /// The time limit.
        limit: Duration,
    },
    /// The program ended with an exit status other than 0.
    #[error("{command}: {status}{}{words}", if words.is_empty() { "" } else { ": " })]
    Failed {
        /// The command line.
        command: String,
        /// Such as `status 1` or `signal 9`.
        status: String,
        /// The end of its standard error.
        words: String,
    },
}

/// A program to run. Errors show its arguments, except for secret ones.
#[derive(Debug, Clone)]
pub struct Invocation {
    program: OsString,
    arguments: Vec<(OsString, bool)>,
    input: Vec<u8>,
    environment: Vec<(OsString, OsString)>,
    limit: Duration,
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit status; `None` when the program was ended by a signal.
    pub code: Option<i32>,
    /// Standard output, at most [`OUTPUT_LIMIT`] bytes.
    pub stdout: Vec<u8>,
    /// Standard error, at most [`OUTPUT_LIMIT`] bytes.
    pub stderr: Vec<u8>,
}

impl CommandOutput {
    /// Standard output as text, without the last line break.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }
}

impl Invocation {
    /// A program by its path, or by its name along PATH; its time limit is 30 seconds.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            input: Vec::new(),
            environment: Vec::new(),
            limit: Duration::from_secs(30),
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push((argument.as_ref().to_owned(), false));
        self
    }

    /// Adds arguments.
    pub fn args<T: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = T>) -> Self {
        arguments.into_iter().fold(self, Self::arg)
    }

    /// Adds an argument that no error shows.
    pub fn secret(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push((argument.as_ref().to_owned(), true));
        self
    }

    /// Sets the program's standard input; by default it is empty.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Sets a variable of the program's environment.
    pub fn environment(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let variable = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.push(variable);
        self
    }

    /// Sets the time limit.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The command line as errors show it.
    pub fn shown(&self) -> String {
        let mut shown = self.program.to_string_lossy().into_owned();
        for (argument, secret) in &self.arguments {
            shown.push(' ');
            if *secret {
                shown.push_str("***");
            } else {
                shown.push_str(&argument.to_string_lossy());
            }
        }
        shown
    }

    /// Runs the program; an exit status other than 0 is an error.
    pub async fn run(self) -> Result<CommandOutput, CommandError> {
        let command = self.shown();
        let output = self.run_any().await?;
        if output.code == Some(0) {
            return Ok(output);
        }
        Err(CommandError::Failed {
            command,
            status: match output.code {
                Some(code) => format!("status {code}"),
                None => "ended by a signal".to_owned(),
            },
            words: last_words(&output.stderr),
        })
    }

    /// Runs the program and returns its result, whatever its exit status. Dropping the future kills
    /// it.
    pub(crate) async fn run_any(self) -> Result<CommandOutput, CommandError> {
        let shown = self.shown();
        let system = |error: io::Error| CommandError::System {
            command: shown.clone(),
            error,
        };
        let mut child = Command::new(&self.program)
            .args(self.arguments.iter().map(|(argument, _)| argument))
            .env("LC_ALL", "C")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => CommandError::NotFound {
                    program: self.program.to_string_lossy().into_owned(),
                },
                _ => system(error),
            })?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program that does not read its input is no error.
                let _ = stdin.write_all(&self.input).await;
            }
        };
        let work = async {
            let ((), stdout, stderr) =
                futures_util::join!(feed, read_some(stdout), read_some(stderr));
            let status = child.wait().await?;
            Ok(CommandOutput {
                code: status.code(),
                stdout: stdout?,
                stderr: stderr?,
            })
        };
        match timeout(self.limit, work).await {
            Ok(result) => result.map_err(system),
            Err(_) => Err(CommandError::TimedOut {
                command: shown.clone(),
                limit: self.limit,
            }),
        }
    }
}

/// Reads to the end and keeps the first [`OUTPUT_LIMIT`] bytes.
async fn read_some(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    if let Some(mut stream) = stream {
        (&mut stream)
            .take(OUTPUT_LIMIT as u64)
            .read_to_end(&mut kept)
            .await?;
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_what_the_program_wrote() {
        let output = Invocation::new("cat").input("text\n").run().await.unwrap();
        assert_eq!(output.text(), "text");
    }

    #[tokio::test]
    async fn failures_say_what_ran_and_what_it_said() {
        let error = Invocation::new("sh")
            .args(["-c", "echo no >&2; exit 3"])
            .secret("hunter2")
            .run()
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "sh -c echo no >&2; exit 3 ***: status 3: no"
        );
        let error = Invocation::new("kat-no-such-program")
            .run()
            .await
            .unwrap_err();
        assert!(matches!(error, CommandError::NotFound { .. }));
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_ended() {
        let begin = std::time::Instant::now();
        let error = Invocation::new("sleep")
            .arg("60")
            .limit(Duration::from_millis(100))
            .run()
            .await
            .unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test]
    async fn output_is_bounded() {
        let output = Invocation::new("head")
            .args(["-c", "3000000", "/dev/zero"])
            .run()
            .await
            .unwrap();
        assert_eq!(output.stdout.len(), OUTPUT_LIMIT);
    }
}
