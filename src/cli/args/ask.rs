//! Arguments of the commands that explain and that wait.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{
    super::time, DescribedKind, DocumentFormat, GetArgs, ListedKind, NamespaceOption, OutputOption,
    OutputParser,
};
use crate::commands::changing::wait_for;

/// What can be asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhyKind {
    #[value(alias = "workloads", alias = "wl")]
    Workload,
    #[value(alias = "instances", alias = "inst")]
    Instance,
    #[value(alias = "nodes")]
    Node,
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Kind of the object
    pub(crate) kind: WhyKind,
    /// Name of the object
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Output format for programs
    #[arg(short, long)]
    pub(crate) output: Option<DocumentFormat>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only events of the workload, instance or machine with this name
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(crate) all_namespaces: bool,
    /// Follow new events
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Output format; jsonpath={.items[*].message} prints parts of the JSON
    #[arg(short, long, default_value = "table", value_parser = OutputParser)]
    pub(crate) output: OutputOption,
}

impl From<EventsArgs> for GetArgs {
    fn from(events: EventsArgs) -> Self {
        Self {
            kind: ListedKind::Events,
            name: events.name,
            namespace: events.namespace,
            all_namespaces: events.all_namespaces,
            output: events.output,
            watch: events.follow,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A field such as workload.spec.restartPolicy, or a reason such as CrashLoop or
    /// reason/CrashLoop [default: list the kinds of files]
    #[arg(value_name = "KIND.FIELD|REASON")]
    pub(crate) path: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Kind of the object
    pub(crate) kind: DescribedKind,
    /// Name of the object
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// condition=TYPE, condition=TYPE=false, phase=PHASE, or delete
    #[arg(long = "for", value_name = "WHAT", value_parser = wait_for::parse)]
    pub(crate) what: wait_for::WaitCondition,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}
