//! Arguments of the commands for rollouts.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{
    args::{DocumentFormat, Namespace},
    time,
};

/// Which workload: `workload NAME`, `workload NAMESPACE/NAME`, or without the word.
#[derive(Debug, Clone, Args)]
pub(crate) struct Which {
    /// The workload; the word before it may be left out
    #[arg(required = true, num_args = 1..=2, value_name = "workload [NAMESPACE/]NAME")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) namespace: Namespace,
}

/// Whether to wait for what was asked for.
#[derive(Debug, Clone, Args)]
pub(crate) struct Waiting {
    /// Wait until everything runs as written
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    pub(crate) which: Which,
    /// The generation, from `katcall history`; the last that was wholly healthy without it
    #[arg(long, value_name = "GENERATION")]
    pub(crate) to: Option<u64>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

impl Rollback {
    pub(crate) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct History {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print the whole answer
    #[arg(short, long)]
    pub(crate) output: Option<DocumentFormat>,
}

#[derive(Debug, Args)]
pub(crate) struct Restart {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

impl Restart {
    pub(crate) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct Scale {
    #[command(flatten)]
    pub(crate) which: Which,
    /// How many instances there are to be
    #[arg(long, value_name = "N")]
    pub(crate) replicas: u32,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

impl Scale {
    pub(crate) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    #[command(subcommand)]
    pub(crate) command: SetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SetCommand {
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
    pub(crate) fn waits(&self) -> bool {
        let SetCommand::Image { waiting, .. } = &self.command;
        waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct Rollout {
    #[command(subcommand)]
    pub(crate) command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
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
    pub(crate) fn waits(&self) -> bool {
        match &self.command {
            RolloutCommand::Status { waiting, .. } | RolloutCommand::Resume { waiting, .. } => {
                waiting.wait
            }
            RolloutCommand::Pause { .. } => false,
        }
    }
}
