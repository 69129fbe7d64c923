//! Arguments of `katcall secret`. Values are parsed by hand: clap's errors would quote them.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{args::NamespaceOption, time};

#[derive(Debug, Args)]
pub(crate) struct SecretArgs {
    #[command(subcommand)]
    pub(crate) command: SecretCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Set keys of a secret; those that are not named stay, and workloads that use it roll out
    ///
    /// A value in KEY=VALUE stays in the shell's history, and everybody on this machine can see it in the list of
    /// processes while katcall runs. With --from-file it does neither.
    Set(SecretSetArgs),
    /// Take keys out of a secret
    Unset(SecretUnsetArgs),
    /// Have another key made that seals secrets, and seal them all with it; `admin` alone
    RotateKey,
}

#[derive(Debug, Args)]
pub(crate) struct SecretNameArgs {
    /// The secret
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(crate) struct SecretWaitArgs {
    /// Wait until the workloads that use it run with it
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct SecretSetArgs {
    #[command(flatten)]
    pub(crate) which: SecretNameArgs,
    /// A key and its value; KEY=- reads the value from stdin
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) values: Vec<String>,
    /// The content of a file, as it is; its key is the file's name unless one is given, and KEY=- reads stdin. May be
    /// repeated
    #[arg(long, value_name = "[KEY=]PATH")]
    pub(crate) from_file: Vec<String>,
    /// Keep no other keys
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) waiting: SecretWaitArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SecretUnsetArgs {
    #[command(flatten)]
    pub(crate) which: SecretNameArgs,
    /// The keys
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
