//! Arguments of the commands that read and stream what an instance's own machine has.

use clap::{Args, ValueEnum};

use super::{
    super::{cp, port_forward, time},
    Namespace,
};

#[derive(Debug, Args)]
pub(in crate::cli) struct Logs {
    /// A workload, or one of its instances
    #[arg(value_name = "WORKLOAD|INSTANCE")]
    pub(in crate::cli) name: String,
    #[command(flatten)]
    pub(in crate::cli) namespace: Namespace,
    /// Go on with what is printed from now on
    #[arg(short, long)]
    pub(in crate::cli) follow: bool,
    /// Nothing older: 5m, 2h, or a time such as 2026-11-20T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(in crate::cli) since: Option<time::Since>,
    /// At most so many of the last lines of each instance
    #[arg(long, value_name = "N")]
    pub(in crate::cli) tail: Option<u64>,
    /// Begin each line with its time
    #[arg(long)]
    pub(in crate::cli) timestamps: bool,
    /// All instances of the workload, on all machines, each line with its instance
    #[arg(long)]
    pub(in crate::cli) all: bool,
    /// What the run before the last one printed, of a program that was started again
    #[arg(long, conflicts_with = "follow")]
    pub(in crate::cli) previous: bool,
    /// An init container or sidecar instead of the main container
    #[arg(short, long, value_name = "NAME")]
    pub(in crate::cli) container: Option<String>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Exec {
    /// An instance, or a workload: then the one that has run for longest
    #[arg(value_name = "INSTANCE|WORKLOAD")]
    pub(in crate::cli) name: String,
    #[command(flatten)]
    pub(in crate::cli) namespace: Namespace,
    /// The command reads what katcall reads
    #[arg(short, long)]
    pub(in crate::cli) interactive: bool,
    /// The command runs on a terminal
    #[arg(short, long)]
    pub(in crate::cli) tty: bool,
    /// A sidecar instead of the main container
    #[arg(short, long, value_name = "NAME")]
    pub(in crate::cli) container: Option<String>,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(in crate::cli) command: Vec<String>,
}

/// What `top` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum TopKind {
    #[value(alias = "node")]
    Nodes,
    #[value(alias = "instance", alias = "inst")]
    Instances,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Top {
    /// Each machine with all its instances, or each instance
    pub(in crate::cli) kind: TopKind,
    #[command(flatten)]
    pub(in crate::cli) namespace: Namespace,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub(in crate::cli) all_namespaces: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct Cp {
    /// What is copied: a path here, or one in a container
    #[arg(value_name = "PATH|INSTANCE:/PATH", value_parser = cp::parse_place)]
    pub(in crate::cli) source: cp::Place,
    /// Where to: its own name there, or a folder with / at its end
    #[arg(value_name = "INSTANCE:/PATH|PATH", value_parser = cp::parse_place)]
    pub(in crate::cli) target: cp::Place,
    #[command(flatten)]
    pub(in crate::cli) namespace: Namespace,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct PortForward {
    /// An instance, or a workload: then the one that has run for longest
    #[arg(value_name = "INSTANCE|WORKLOAD")]
    pub(in crate::cli) name: String,
    /// A port of this machine and one of the instance, or one for both; 0 takes any that is free here
    #[arg(value_name = "LOCAL:PORT", value_parser = port_forward::parse_ports)]
    pub(in crate::cli) ports: port_forward::Ports,
    #[command(flatten)]
    pub(in crate::cli) namespace: Namespace,
}
