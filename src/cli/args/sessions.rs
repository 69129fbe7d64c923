//! Arguments of the commands that read from or stream with an instance on its machine.

use clap::{Args, ValueEnum};

use super::{super::time, NamespaceOption};
use crate::commands::sessions::{cp, port_forward};

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// A workload, or one of its instances
    #[arg(value_name = "WORKLOAD|INSTANCE")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Go on with what is printed from now on
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Nothing older: 5m, 2h, or a time such as 2026-11-20T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(crate) since: Option<time::SinceTime>,
    /// At most so many of the last lines of each instance
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u64>,
    /// Begin each line with its time
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// All instances of the workload, on all machines, each line with its instance
    #[arg(long)]
    pub(crate) all: bool,
    /// What the run before the last one printed, of a program that was started again
    #[arg(long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// An init container or sidecar instead of the main container
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// An instance, or a workload: then the one that has run for longest
    #[arg(value_name = "INSTANCE|WORKLOAD")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// The command reads what katcall reads
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// The command runs on a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// A sidecar instead of the main container
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// What `top` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TopKind {
    #[value(alias = "node")]
    Nodes,
    #[value(alias = "instance", alias = "inst")]
    Instances,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Each machine with all its instances, or each instance
    pub(crate) kind: TopKind,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// What is copied: a path here, or one in a container
    #[arg(value_name = "PATH|INSTANCE:/PATH", value_parser = cp::parse_place)]
    pub(crate) source: cp::CopyEndpoint,
    /// Where to: its own name there, or a folder with / at its end
    #[arg(value_name = "INSTANCE:/PATH|PATH", value_parser = cp::parse_place)]
    pub(crate) target: cp::CopyEndpoint,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    /// An instance, or a workload: then the one that has run for longest
    #[arg(value_name = "INSTANCE|WORKLOAD")]
    pub(crate) name: String,
    /// A port of this machine and one of the instance, or one for both; 0 takes any that is free here
    #[arg(value_name = "LOCAL:PORT", value_parser = port_forward::parse_ports)]
    pub(crate) ports: port_forward::Ports,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}
