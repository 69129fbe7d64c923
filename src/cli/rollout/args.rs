//! What the commands of rollouts understand.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::{
    args::{DocumentFormat, Namespace},
    time,
};

/// Which workload: `workload NAME`, `workload NAMESPACE/NAME`, or without the word.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct Which {
    /// The workload; the word before it may be left out
    #[arg(required = true, num_args = 1..=2, value_name = "workload [NAMESPACE/]NAME")]
    pub(super) words: Vec<String>,
    #[command(flatten)]
    pub(super) namespace: Namespace,
}

/// Whether to wait for what was asked for.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct Waiting {
    /// Wait until everything runs as written
    #[arg(long)]
    pub(super) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Rollback {
    #[command(flatten)]
    pub(super) which: Which,
    /// The generation, from `katcall history`; the last that was wholly healthy without it
    #[arg(long, value_name = "GENERATION")]
    pub(super) to: Option<u64>,
    #[command(flatten)]
    pub(super) waiting: Waiting,
}

impl Rollback {
    pub(in crate::cli) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct History {
    #[command(flatten)]
    pub(super) which: Which,
    /// Print the whole answer
    #[arg(short, long)]
    pub(super) output: Option<DocumentFormat>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Restart {
    #[command(flatten)]
    pub(super) which: Which,
    #[command(flatten)]
    pub(super) waiting: Waiting,
}

impl Restart {
    pub(in crate::cli) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Scale {
    #[command(flatten)]
    pub(super) which: Which,
    /// How many instances there are to be
    #[arg(long, value_name = "N")]
    pub(super) replicas: u32,
    #[command(flatten)]
    pub(super) waiting: Waiting,
}

impl Scale {
    pub(in crate::cli) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Set {
    #[command(subcommand)]
    pub(super) command: SetCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum SetCommand {
    /// Run another image, as a new version
    Image {
        /// The workload and its image; the word before it may be left out
        #[arg(required = true, num_args = 1..=2, value_name = "workload [NAMESPACE/]NAME=IMAGE")]
        words: Vec<String>,
        #[command(flatten)]
        namespace: Namespace,
        #[command(flatten)]
        waiting: Waiting,
    },
}

impl Set {
    pub(in crate::cli) fn waits(&self) -> bool {
        let SetCommand::Image { waiting, .. } = &self.command;
        waiting.wait
    }
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Rollout {
    #[command(subcommand)]
    pub(super) command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum RolloutCommand {
    /// Say how far it is; exits with 1 where it has stalled
    Status {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Let nothing new take the place of what runs
    Pause {
        #[command(flatten)]
        which: Which,
    },
    /// Go on
    Resume {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        waiting: Waiting,
    },
}

impl Rollout {
    pub(in crate::cli) fn waits(&self) -> bool {
        match &self.command {
            RolloutCommand::Status { waiting, .. } | RolloutCommand::Resume { waiting, .. } => {
                waiting.wait
            }
            RolloutCommand::Pause { .. } => false,
        }
    }
}
