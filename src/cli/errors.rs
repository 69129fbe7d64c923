//! Errors and exit codes of commands.

use std::io;

use kat_client::ClientError;

/// Exit codes (docs/internals/api.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CliExitCode {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Unreachable = 4,
    Deadline = 5,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// A failed request.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Another error, as a message.
    #[error("{message}")]
    Said {
        exit: CliExitCode,
        message: String,
        hint: Option<String>,
    },
    /// Mistakes in the user's files, with excerpts.
    #[error("{message}")]
    Diagnostics { text: String, message: String },
    /// Some of several objects failed, as has been printed.
    #[error("{message}")]
    Partly { exit: u8, message: String },
    /// The reader of stdout is gone; that is no failure.
    #[error("nobody reads on")]
    BrokenPipe,
}

impl CliError {
    fn with_exit_code(exit: CliExitCode, message: impl Into<String>) -> Self {
        Self::Said {
            exit,
            message: message.into(),
            hint: None,
        }
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::with_exit_code(CliExitCode::Failed, message)
    }

    pub(super) fn usage(message: impl Into<String>) -> Self {
        Self::with_exit_code(CliExitCode::Usage, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::with_exit_code(CliExitCode::NotFound, message)
    }

    pub(super) fn unreachable(message: impl Into<String>) -> Self {
        Self::with_exit_code(CliExitCode::Unreachable, message)
    }

    pub(super) fn deadline(message: impl Into<String>) -> Self {
        Self::with_exit_code(CliExitCode::Deadline, message)
    }

    /// Adds a hint on what to do.
    pub(super) fn hinted(self, hint: impl Into<String>) -> Self {
        match self {
            Self::Said { exit, message, .. } => Self::Said {
                exit,
                message,
                hint: Some(hint.into()),
            },
            other => other,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Client(error) => error.hint(),
            Self::Said { hint, .. } => hint.clone(),
            Self::Diagnostics { .. } | Self::Partly { .. } | Self::BrokenPipe => None,
        }
    }

    /// Whether the requested object does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        self.exit_code() == CliExitCode::NotFound as u8
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Client(error) => error.exit_code(),
            Self::Said { exit, .. } => *exit as u8,
            Self::Diagnostics { .. } => CliExitCode::Failed as u8,
            Self::Partly { exit, .. } => *exit,
            Self::BrokenPipe => 0,
        }
    }
}

/// Errors of stdout.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::BrokenPipe;
        }
        Self::failed(format!("stdout cannot be written: {error}"))
    }
}
