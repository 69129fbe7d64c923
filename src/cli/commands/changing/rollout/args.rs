//! Arguments of the commands for rollouts.

use std::time::Duration;

use clap::{Args, Subcommand};

use crate::{
    args::{DocumentFormat, NamespaceOption, examples},
    references::LabelSelector,
    time,
};

/// One workload: a reference, with or without the word `workload` before it.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkloadNameArgs {
    /// Workload, as NAME or NAMESPACE/NAME
    #[arg(value_name = "WORKLOAD")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

/// Some workloads: references, with or without the word `workload` before them.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkloadNamesArgs {
    /// Workloads, as NAME or NAMESPACE/NAME
    #[arg(value_name = "WORKLOAD")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

/// Some workloads, or all with some labels.
#[derive(Debug, Clone, Args)]
pub(crate) struct WorkloadSelectionArgs {
    /// Workloads, as NAME or NAMESPACE/NAME
    #[arg(value_name = "WORKLOAD")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) selector: LabelSelector,
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
    pub(crate) which: WorkloadNamesArgs,
    /// Generation of the only workload, from `katcall history` [default: the last healthy one]
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
    pub(crate) which: WorkloadSelectionArgs,
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
    pub(crate) which: WorkloadSelectionArgs,
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
pub(crate) struct StopArgs {
    #[command(flatten)]
    pub(crate) which: WorkloadSelectionArgs,
    /// Wait until no instance is left
    #[arg(long)]
    wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    timeout: Duration,
}

impl StopArgs {
    pub(crate) fn waits(&self) -> bool {
        self.wait
    }

    pub(crate) fn waiting(&self) -> RolloutWaitArgs {
        RolloutWaitArgs {
            wait: self.wait,
            timeout: self.timeout,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(crate) which: WorkloadSelectionArgs,
    #[command(flatten)]
    pub(crate) waiting: RolloutWaitArgs,
}

impl StartArgs {
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
    /// Change images, each as a new generation
    #[command(after_help = examples::SET_IMAGE)]
    Image {
        /// Workloads and their images, as NAME=IMAGE or NAMESPACE/NAME=IMAGE
        #[arg(required = true, value_name = "WORKLOAD=IMAGE")]
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
        which: WorkloadNamesArgs,
        #[command(flatten)]
        waiting: RolloutWaitArgs,
    },
    /// Replace the instances with new ones, as `katcall restart` does
    Restart(RestartArgs),
    /// Return to an earlier generation, as `katcall rollback` does
    Undo(RollbackArgs),
    /// Pause a rollout: no new instance replaces another one
    Pause {
        #[command(flatten)]
        which: WorkloadNamesArgs,
    },
    /// Resume a rollout
    Resume {
        #[command(flatten)]
        which: WorkloadNamesArgs,
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
            RolloutCommand::Restart(arguments) => arguments.waits(),
            RolloutCommand::Undo(arguments) => arguments.waits(),
            RolloutCommand::Pause { .. } => false,
        }
    }
}
