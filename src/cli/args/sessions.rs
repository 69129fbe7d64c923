//! Arguments of the commands that read from or stream with an instance on its machine.

use clap::Args;

use super::{super::time, NamespaceOption};
use crate::{
    commands::sessions::{cp, port_forward},
    references::LabelSelector,
};

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Name of a workload or of an instance
    #[arg(value_name = "[KIND/]NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Follow the log
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only entries that are newer: 5m, 2h, or a time such as 2026-11-20T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time::parse_since)]
    pub(crate) since: Option<time::SinceTime>,
    /// Only the last N lines of each instance
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<u64>,
    /// Print the time of each line
    #[arg(long)]
    pub(crate) timestamps: bool,
    /// Show all instances of the workload, which is the default
    #[arg(long, hide = true)]
    pub(crate) all: bool,
    /// Show also the instances of the workload that are gone, as long as their machines' journals have
    /// their lines: at most the 20 newest ones
    #[arg(long, conflicts_with = "previous")]
    pub(crate) gone: bool,
    /// Show the log of the run before the last restart
    #[arg(long, conflicts_with = "follow")]
    pub(crate) previous: bool,
    /// Name of an init container or sidecar [default: the main container]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Name of an instance, or of a workload, which stands for its longest-running instance
    #[arg(value_name = "[KIND/]NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Pass stdin to the command
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Run the command on a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Name of a sidecar [default: the main container]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) container: Option<String>,
    /// Command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// `nodes`, `instances`, or some machines, instances or workloads [default: instances]
    #[arg(value_name = "KIND|[KIND/]NAME")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) selector: LabelSelector,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub(crate) all_namespaces: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Source: a local path, or a path in a container
    #[arg(value_name = "PATH|NAME:/PATH", value_parser = cp::parse_place)]
    pub(crate) source: cp::CopyEndpoint,
    /// Target: the new path, or a folder if it ends in /
    #[arg(value_name = "NAME:/PATH|PATH", value_parser = cp::parse_place)]
    pub(crate) target: cp::CopyEndpoint,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(crate) struct PortForwardArgs {
    /// Name of an instance, or of a workload, which stands for its longest-running instance
    #[arg(value_name = "[KIND/]NAME")]
    pub(crate) name: String,
    /// Local port and the instance's port, or one number for both; local port 0 takes a free one
    #[arg(value_name = "LOCAL:PORT", value_parser = port_forward::parse_ports)]
    pub(crate) ports: port_forward::Ports,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
}
