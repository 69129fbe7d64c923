//! Arguments of the commands for rollouts.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{
    args::{DocumentFormat, NamespaceOption},
    time,
};

/// Which workload: `workload NAME`, `workload NAMESPACE/NAME`, or without the word.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkloadNameArgs {
    /// Workload; the word `workload` may be left out
    #[arg(required = true, num_args = 1..=2, value_name = "workload [NAMESPACE/]NAME")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

/// Whether to wait for what was asked for.
#[derive(Debug, Clone, Args)]
pub(crate) struct RolloutWaitArgs {
    /// Wait until the workload runs as written
    #[arg(long)]
    pub(crate) wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    #[command(flatten)]
    pub(crate) which: WorkloadNameArgs,
    /// Generation from `katcall history` [default: the last healthy one]
    #[arg(long, value_name = "GENERATION")]
    pub(crate) to: Option<u64>,
    #[command(flatten)]
    pub(crate) waiting: RolloutWaitArgs,
}

impl RollbackArgs {
    pub(crate) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) which: WorkloadNameArgs,
    /// Output format: the whole response
    #[arg(short, long)]
    pub(crate) output: Option<DocumentFormat>,
}

#[derive(Debug, Args)]
pub(crate) struct RestartArgs {
    #[command(flatten)]
    pub(crate) which: WorkloadNameArgs,
    #[command(flatten)]
    pub(crate) waiting: RolloutWaitArgs,
}

impl RestartArgs {
    pub(crate) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    pub(crate) which: WorkloadNameArgs,
    /// Number of instances
    #[arg(long, value_name = "N")]
    pub(crate) replicas: u32,
    #[command(flatten)]
    pub(crate) waiting: RolloutWaitArgs,
}

impl ScaleArgs {
    pub(crate) fn waits(&self) -> bool {
        self.waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(subcommand)]
    pub(crate) command: SetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SetCommand {
    /// Change the image, as a new generation
    Image {
        /// Workload and its image; the word `workload` may be left out
        #[arg(required = true, num_args = 1..=2, value_name = "workload [NAMESPACE/]NAME=IMAGE")]
        words: Vec<String>,
        #[command(flatten)]
        namespace: NamespaceOption,
        #[command(flatten)]
        waiting: RolloutWaitArgs,
    },
}

impl SetArgs {
    pub(crate) fn waits(&self) -> bool {
        let SetCommand::Image { waiting, .. } = &self.command;
        waiting.wait
    }
}

#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    #[command(subcommand)]
    pub(crate) command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Show the progress of a rollout (exits with 1 if it has stalled)
    Status {
        #[command(flatten)]
        which: WorkloadNameArgs,
        #[command(flatten)]
        waiting: RolloutWaitArgs,
    },
    /// Pause a rollout: no new instance replaces another one
    Pause {
        #[command(flatten)]
        which: WorkloadNameArgs,
    },
    /// Resume a rollout
    Resume {
        #[command(flatten)]
        which: WorkloadNameArgs,
        #[command(flatten)]
        waiting: RolloutWaitArgs,
    },
}

impl RolloutArgs {
    pub(crate) fn waits(&self) -> bool {
        match &self.command {
            RolloutCommand::Status { waiting, .. } | RolloutCommand::Resume { waiting, .. } => {
                waiting.wait
            }
            RolloutCommand::Pause { .. } => false,
        }
    }
}
