//! katcall's command line.

mod ask;
mod authorities;
mod namespace;
mod output;
pub(crate) mod sessions;
mod settings;

use std::{path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use super::time;
use crate::commands::{
    changing::{apply::prune, quota, rollout},
    cluster::node,
    data::{registry::RegistryArgs, secret, volume_move},
};

pub(super) use self::{
    ask::{EventsArgs, ExplainArgs, WaitArgs, WhyArgs, WhyKind},
    authorities::{AuthorityRotationArgs, CaArgs, CaCommand},
    namespace::NamespaceOption,
    output::{DocumentFormat, OutputFormat, OutputOption, OutputParser, TokenFormat},
    settings::{ConfigArgs, ConfigCommand, ContextArgs, ContextCommand, TokenArgs, TokenCommand},
};
pub(super) use crate::args::sessions::{
    CpArgs, ExecArgs, LogsArgs, PortForwardArgs, TopArgs, TopKind,
};

/// Hint when a wait for a rollout is interrupted.
const GOES_ON: &str = "what the cluster has taken on goes on without katcall: `katcall rollout status` and `katcall get workloads` show how far it is";
/// Hint when a wait for a move is interrupted.
const MOVES_ON: &str = "the move goes on without katcall: `katcall get volumes` shows how far it is, and `katcall volume move WORKLOAD/VOLUME --cancel` ends it";
/// Hint when a wait for the replacement of an authority is interrupted.
const ROTATES_ON: &str =
    "the replacement goes on without katcall: `katcall ca list` shows how far it is";

/// The whole command line, for completions and man pages.
pub fn command() -> clap::Command {
    KatcallArgs::command()
}

/// Runs workloads on your machines.
///
/// Connects by --connection, --context, the variables KAT_SERVER, KAT_TOKEN and KAT_CA, the
/// variable KAT_CONNECTION, the current context of `katcall context`, /etc/kat/admin.conf, or
/// /run/kat/api.sock, whichever is first; over the socket too where nothing of /etc/kat/admin.conf
/// answers.
///
/// Environment variables: KAT_SERVER is one address of the API or several with commas between them
/// (`HOST`, `HOST:PORT`, `[IPV6]:PORT` or `https://HOST:PORT`; port 9115 if none is given),
/// KAT_TOKEN the token, and KAT_CA the cluster's authority: its certificate as PEM, a file with
/// that, or `sha256:` and the hash of the certificate. KAT_CONNECTION is a connection file,
/// KAT_NAMESPACE the namespace of commands without --namespace.
///
/// Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not found, 4 not reachable, 5 timed
/// out waiting, 10 `plan` found changes, 130 interrupted.
#[derive(Debug, Parser)]
#[command(
    name = "katcall",
    version,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub(super) struct KatcallArgs {
    #[command(flatten)]
    pub(super) global: GlobalArgs,
    #[command(subcommand)]
    pub(super) command: KatcallCommand,
}

#[derive(Debug, Clone, Default, Args)]
pub(super) struct GlobalArgs {
    /// Cluster from `katcall context list`
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        conflicts_with = "connection"
    )]
    pub(super) context: Option<String>,
    /// Connection file, or socket of an agent
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) connection: Option<PathBuf>,
}

impl GlobalArgs {
    /// Whether the command line names the connection.
    pub(super) fn names_a_connection(&self) -> bool {
        self.connection.is_some() || self.context.is_some()
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum KatcallCommand {
    /// Create or update workloads from folders of *.kat files
    Apply(ApplyArgs),
    /// Show what an apply would come to, and do nothing (exits with 10 where anything would change)
    Plan(PlanArgs),
    /// List items, or show one
    Get(GetArgs),
    /// Show one item with its conditions and events
    Describe(DescribeArgs),
    /// Say in sentences why something is as it is, and what to try
    Why(WhyArgs),
    /// List what happened, oldest first, or go on with what happens
    Events(EventsArgs),
    /// Show what a workload's programs print
    Logs(LogsArgs),
    /// Run a command in an instance's container
    Exec(ExecArgs),
    /// Show what instances take of processor and memory; goes on with it on a terminal
    Top(TopArgs),
    /// Copy a file or folder into a container or out of it
    Cp(CpArgs),
    /// Lead a port of this machine to a port of an instance
    PortForward(PortForwardArgs),
    /// Delete workloads, namespaces, secrets or the data of volumes, or take machines out of the cluster
    Delete(DeleteArgs),
    /// Wait until an item has a condition or a phase, or is gone
    Wait(WaitArgs),
    /// Go back to an earlier generation of a workload
    Rollback(rollout::RollbackArgs),
    /// List the generations of a workload that are kept
    History(rollout::HistoryArgs),
    /// Say how far a rollout is, pause it, or let it go on
    Rollout(rollout::RolloutArgs),
    /// Replace the instances of a workload by others like them
    Restart(rollout::RestartArgs),
    /// Change how many instances a workload has
    Scale(rollout::ScaleArgs),
    /// Change the image of a workload
    Set(rollout::SetArgs),
    /// Say whether the cluster is well, and if not why (then exits with 1)
    Status,
    /// Create a namespace
    Create(CreateArgs),
    /// Set how much a namespace may have
    Namespace(quota::NamespaceArgs),
    /// Move everything off a machine, place nothing new there, and wait until it is empty
    Drain(DrainArgs),
    /// Move the data of a volume to another machine
    Volume(volume_move::VolumeArgs),
    /// Let a machine that was drained take work again
    Uncordon(UncordonArgs),
    /// Set and remove labels of a machine
    Label(LabelArgs),
    /// Set and remove taints of a machine
    Taint(TaintArgs),
    /// Create, list and revoke tokens
    Token(TokenArgs),
    /// List the cluster's certificate authorities and replace those of etcd
    Ca(CaArgs),
    /// Say how registries of images are reached, and log in to them
    Registry(RegistryArgs),
    /// Set and unset secrets; `get`, `describe` and `delete` know them too
    Secret(secret::SecretArgs),
    /// Say what a field of the *.kat files or a reason means
    Explain(ExplainArgs),
    /// Show the cluster's configuration
    Config(ConfigArgs),
    /// Choose between clusters
    Context(ContextArgs),
    /// Print a completion script for a shell
    Completion(CompletionArgs),
    /// Print live names that may follow, for completion scripts
    #[command(name = "__complete", hide = true)]
    Complete(CompleteArgs),
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man(ManArgs),
    /// Print the versions of katcall and of the cluster
    Version(VersionArgs),
}

impl KatcallCommand {
    /// The hint when the command is interrupted while it waits for an operation that continues
    /// without it.
    pub(super) fn goes_on(&self) -> Option<&'static str> {
        match self {
            Self::Volume(arguments) => arguments.waits().then_some(MOVES_ON),
            Self::Ca(arguments) => arguments.waits().then_some(ROTATES_ON),
            _ => self.waits().then_some(GOES_ON),
        }
    }

    /// Whether the command waits for a rollout.
    fn waits(&self) -> bool {
        match self {
            Self::Apply(arguments) => arguments.wait,
            Self::Rollback(arguments) => arguments.waits(),
            Self::Restart(arguments) => arguments.waits(),
            Self::Scale(arguments) => arguments.waits(),
            Self::Set(arguments) => arguments.waits(),
            Self::Rollout(arguments) => arguments.waits(),
            Self::Secret(arguments) => arguments.waits(),
            _ => false,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    /// Folder of *.kat files, a folder of such folders, or a .tar.gz; may be repeated
    #[arg(short, long = "file", value_name = "DIR|ARCHIVE", required = true)]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) prune: PruneArgs,
    /// Wait until everything runs as written
    #[arg(long)]
    pub(super) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
    /// Do nothing: `server` shows what would change, as `katcall plan` does, `client` only checks
    #[arg(
        long,
        conflicts_with = "wait",
        value_name = "WHERE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "server"
    )]
    pub(super) dry_run: Option<DryRun>,
}

/// What becomes of workloads that no folder has.
#[derive(Debug, Clone, Args)]
pub(super) struct PruneArgs {
    /// Delete workloads with these labels that are in no folder, in the namespaces of the folders
    #[arg(long, requires = "labels")]
    pub(super) prune: bool,
    /// Labels that a workload must have to be pruned
    #[arg(
        short = 'l',
        long = "label",
        value_name = "KEY[=VALUE]",
        value_delimiter = ',',
        requires = "prune",
        value_parser = prune::parse
    )]
    pub(super) labels: Vec<prune::LabelRequirement>,
    /// Do not ask before they are deleted
    #[arg(long, requires = "prune")]
    pub(super) yes: bool,
}

/// Where an apply that does nothing is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// On the cluster
    Server,
    /// Here, without a cluster
    Client,
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// Folder of *.kat files, a folder of such folders, or a .tar.gz; may be repeated, and each is
    /// looked at on its own
    #[arg(short, long = "file", value_name = "DIR|ARCHIVE", required = true)]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) prune: PruneArgs,
    /// Print all that the cluster says
    #[arg(short, long)]
    pub(super) output: Option<DocumentFormat>,
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ListedKind {
    #[value(alias = "workload", alias = "wl")]
    Workloads,
    #[value(alias = "instance", alias = "inst")]
    Instances,
    #[value(alias = "node")]
    Nodes,
    #[value(alias = "namespace", alias = "ns")]
    Namespaces,
    #[value(alias = "volume", alias = "vol")]
    Volumes,
    #[value(alias = "secret")]
    Secrets,
    #[value(alias = "event", alias = "ev")]
    Events,
    #[value(alias = "token")]
    Tokens,
}

/// What can be described.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DescribedKind {
    #[value(alias = "workloads", alias = "wl")]
    Workload,
    #[value(alias = "instances", alias = "inst")]
    Instance,
    #[value(alias = "nodes")]
    Node,
    #[value(alias = "namespaces", alias = "ns")]
    Namespace,
    #[value(alias = "secrets")]
    Secret,
}

/// What can be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DeletedKind {
    #[value(alias = "workloads", alias = "wl")]
    Workload,
    #[value(alias = "namespaces", alias = "ns")]
    Namespace,
    #[value(alias = "nodes")]
    Node,
    #[value(alias = "volumes", alias = "vol")]
    Volume,
    #[value(alias = "secrets")]
    Secret,
}

/// What can be created by name alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CreatedKind {
    #[value(alias = "ns")]
    Namespace,
}

#[derive(Debug, Clone, Args)]
pub(super) struct GetArgs {
    /// What to list; the singular and wl, inst, ns, vol, ev work too
    pub(super) kind: ListedKind,
    /// Only this one; of a volume WORKLOAD/VOLUME
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(super) all_namespaces: bool,
    /// How to print; jsonpath={.items[*].metadata.name} picks out of the JSON
    #[arg(short, long, default_value = "table", value_parser = OutputParser)]
    pub(super) output: OutputOption,
    /// Go on with every change
    #[arg(short, long)]
    pub(super) watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct DescribeArgs {
    /// What it is
    pub(super) kind: DescribedKind,
    /// Its name
    pub(super) name: String,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    /// What it is
    #[arg(required_unless_present = "files", requires = "name")]
    pub(super) kind: Option<DeletedKind>,
    /// Its name; of a volume WORKLOAD/VOLUME
    pub(super) name: Option<String>,
    /// The workload of this folder or archive; may be repeated
    #[arg(
        short,
        long = "file",
        value_name = "DIR|ARCHIVE",
        conflicts_with = "kind"
    )]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// Of a namespace: also everything in it
    #[arg(long)]
    pub(super) cascade: bool,
    /// Of workloads and namespaces: also the data of their volumes, for good
    #[arg(long)]
    pub(super) volumes: bool,
    /// Do not ask before data is removed
    #[arg(long)]
    pub(super) yes: bool,
    /// What is not there is no error
    #[arg(long)]
    pub(super) ignore_not_found: bool,
    /// Wait until it is gone
    #[arg(long)]
    pub(super) wait: bool,
    /// How long to wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// What it is
    pub(super) kind: CreatedKind,
    /// Its name
    pub(super) name: String,
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// The machine
    #[arg(value_name = "NODE")]
    pub(super) name: String,
    /// Also stop what no other machine takes; it starts again where it can, as a rule here after `katcall uncordon`
    #[arg(long)]
    pub(super) force: bool,
    /// How long to wait; the machine goes on being drained after that
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(super) struct UncordonArgs {
    /// The machine
    #[arg(value_name = "NODE")]
    pub(super) name: String,
}

/// What has labels and taints of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LabelledKind {
    #[value(alias = "nodes")]
    Node,
}

#[derive(Debug, Args)]
pub(super) struct LabelArgs {
    /// What it is
    pub(super) kind: LabelledKind,
    /// Its name
    pub(super) name: String,
    /// A label to set, or one to remove; several are changed together
    #[arg(required = true, value_name = "KEY=VALUE|KEY-", value_parser = node::parse_label)]
    pub(super) changes: Vec<node::LabelChange>,
}

#[derive(Debug, Args)]
pub(super) struct TaintArgs {
    /// What it is
    pub(super) kind: LabelledKind,
    /// Its name
    pub(super) name: String,
    /// A taint to set, or one to remove: NoSchedule keeps work away, PreferNoSchedule where there is
    /// another place
    #[arg(
        required = true,
        value_name = "KEY[=VALUE]:EFFECT|KEY[:EFFECT]-",
        value_parser = node::parse_taint
    )]
    pub(super) changes: Vec<node::TaintChange>,
}

#[derive(Debug, Args)]
pub(super) struct CompletionArgs {
    /// The shell
    pub(super) shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct CompleteArgs {
    /// The words before the one that is being written, without the program's name
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) words: Vec<String>,
}

/// Shells with a completion script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Where to write
    pub(super) folder: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// How to print
    #[arg(short, long)]
    pub(super) output: Option<DocumentFormat>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_holds_together() {
        command().debug_assert();
    }

    #[test]
    fn kinds_have_their_short_and_singular_names() {
        let table = [
            ("wl", ListedKind::Workloads),
            ("workload", ListedKind::Workloads),
            ("inst", ListedKind::Instances),
            ("instance", ListedKind::Instances),
            ("node", ListedKind::Nodes),
            ("ns", ListedKind::Namespaces),
            ("vol", ListedKind::Volumes),
            ("volume", ListedKind::Volumes),
        ];
        for (word, kind) in table {
            assert_eq!(ListedKind::from_str(word, false), Ok(kind), "{word}");
        }
    }
}
