//! Arguments of the commands that explain and that wait.

use std::time::Duration;

use clap::Args;

use super::{super::time, DocumentFormat, NamespaceOption, OutputOption, OutputParser};
use crate::commands::changing::wait_for;

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Workloads, instances or machines, as NAME, KIND/NAME or KIND/NAMESPACE/NAME, or a kind and
    /// names; NAME is enough where only one kind has an object with that name. The word isolation shows
    /// what isolation of namespaces refused, or would refuse
    #[arg(value_name = "[KIND/]NAME")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Output format for programs
    #[arg(short, long)]
    pub(crate) output: Option<DocumentFormat>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only events of this object: a name, or a kind and a name
    #[arg(value_name = "[KIND/]NAME")]
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

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A field such as workload.spec.restartPolicy, or a reason such as CrashLoop or
    /// reason/CrashLoop [default: list the kinds of files]
    #[arg(value_name = "KIND.FIELD|REASON")]
    pub(crate) path: Option<String>,
    /// List all fields below, one in a line
    #[arg(short, long, conflicts_with = "search")]
    pub(crate) recursive: bool,
    /// List the fields and reasons that have this word in their name or description; below a kind or
    /// field only its fields
    #[arg(short, long, value_name = "WORD")]
    pub(crate) search: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Objects, as KIND/NAME or KIND/NAMESPACE/NAME, or a kind and names
    #[arg(value_name = "KIND/NAME")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// condition=TYPE, condition=TYPE=false, phase=PHASE, or delete
    #[arg(long = "for", value_name = "WHAT", value_parser = wait_for::parse)]
    pub(crate) what: wait_for::WaitCondition,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
}
