//! What `katcall secret` understands. Values are read by hand: an error of clap's would quote them.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::{args::Namespace, time};

#[derive(Debug, Args)]
pub(in crate::cli) struct Secret {
    #[command(subcommand)]
    pub(super) command: SecretCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum SecretCommand {
    /// Set keys of a secret; those that are not named stay, and workloads that use it roll out
    ///
    /// A value in KEY=VALUE stays in the shell's history, and everybody on this machine can see it in the list of
    /// processes while katcall runs. With --from-file it does neither.
    Set(Set),
    /// Take keys out of a secret
    Unset(Unset),
    /// Have another key made that seals secrets, and seal them all with it; `admin` alone
    RotateKey,
}

#[derive(Debug, Args)]
pub(super) struct Which {
    /// The secret
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub(super) name: String,
    #[command(flatten)]
    pub(super) namespace: Namespace,
}

#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Wait until the workloads that use it run with it
    #[arg(long)]
    pub(super) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    pub(super) which: Which,
    /// A key and its value; KEY=- reads the value from stdin
    #[arg(value_name = "KEY=VALUE")]
    pub(super) values: Vec<String>,
    /// The content of a file, as it is; its key is the file's name unless one is given, and KEY=- reads stdin. May be
    /// repeated
    #[arg(long, value_name = "[KEY=]PATH")]
    pub(super) from_file: Vec<String>,
    /// Keep no other keys
    #[arg(long)]
    pub(super) replace: bool,
    #[command(flatten)]
    pub(super) waiting: Waiting,
}

#[derive(Debug, Args)]
pub(super) struct Unset {
    #[command(flatten)]
    pub(super) which: Which,
    /// The keys
    #[arg(value_name = "KEY", required = true)]
    pub(super) keys: Vec<String>,
    #[command(flatten)]
    pub(super) waiting: Waiting,
}

impl Secret {
    /// Whether it waits for a rollout that goes on without it.
    pub(in crate::cli) fn waits(&self) -> bool {
        match &self.command {
            SecretCommand::Set(arguments) => arguments.waiting.wait,
            SecretCommand::Unset(arguments) => arguments.waiting.wait,
            SecretCommand::RotateKey => false,
        }
    }
}
