//! Arguments of `katcall secret`. Values are parsed by hand: clap's errors would quote them.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{
    args::{NamespaceOption, examples},
    time,
};

#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set keys of a secret; its other keys stay, and workloads that use the secret roll out
    ///
    /// A value in KEY=VALUE stays in the shell's history, and every user of this machine can see it in the list of
    /// processes while katcall runs. --from-file avoids both.
    #[command(after_help = examples::SECRET_SET)]
    Set(SecretSetArgs),
    /// Remove keys of a secret
    Unset(SecretUnsetArgs),
    /// Create a new key that seals secrets, and seal all secrets with it (scope `admin`)
    RotateKey,
}

#[derive(Debug, Args)]
pub(crate) struct SecretNameArgs {
    /// Name of the secret
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(crate) struct SecretWaitArgs {
    /// Wait until the workloads that use the secret run with its new content
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct SecretSetArgs {
    #[command(flatten)]
    pub(crate) which: SecretNameArgs,
    /// Keys and values; KEY=- reads the value from stdin
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) values: Vec<String>,
    /// Unchanged content of a file; the key is the file's name by default, and KEY=- reads stdin. May be repeated
    #[arg(long, value_name = "[KEY=]PATH")]
    pub(crate) from_file: Vec<String>,
    /// Remove all other keys
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) waiting: SecretWaitArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SecretUnsetArgs {
    #[command(flatten)]
    pub(crate) which: SecretNameArgs,
    /// Keys to remove
    #[arg(value_name = "KEY", required = true)]
    pub(crate) keys: Vec<String>,
    #[command(flatten)]
    pub(crate) waiting: SecretWaitArgs,
}

impl SecretArgs {
    /// Whether the command waits for a rollout, which continues without it.
    pub(crate) fn waits(&self) -> bool {
        match &self.command {
            SecretCommand::Set(arguments) => arguments.waiting.wait,
            SecretCommand::Unset(arguments) => arguments.waiting.wait,
            SecretCommand::RotateKey => false,
        }
    }
}
