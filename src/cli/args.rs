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
const GOES_ON: &str = "the cluster continues without katcall: `katcall rollout status` and `katcall get workloads` show the progress";
/// Hint when a wait for a move is interrupted.
const MOVES_ON: &str = "the move continues without katcall: `katcall get volumes` shows the progress, and `katcall volume move WORKLOAD/VOLUME --cancel` cancels it";
/// Hint when a wait for the replacement of an authority is interrupted.
const ROTATES_ON: &str =
    "the replacement continues without katcall: `katcall ca list` shows the progress";

/// The whole command line, for completions and man pages.
pub fn command() -> clap::Command {
    KatcallArgs::command()
}

/// Manages the workloads and machines of a KAT cluster.
///
/// The connection to the cluster is the first of these: --connection; --context; the variables
/// KAT_SERVER, KAT_TOKEN and KAT_CA; the variable KAT_CONNECTION; the current context of `katcall
/// context`; /etc/kat/admin.conf; /run/kat/api.sock. If no server of /etc/kat/admin.conf answers,
/// katcall uses the socket.
///
/// Environment variables: KAT_SERVER is one address of the API, or several separated by commas
/// (`HOST`, `HOST:PORT`, `[IPV6]:PORT` or `https://HOST:PORT`; the default port is 9115).
/// KAT_TOKEN is the token. KAT_CA is the cluster's certificate authority: a certificate as PEM, a
/// file with one, or `sha256:` and the hash of the certificate. KAT_CONNECTION is the path of a
/// connection file. KAT_NAMESPACE is the namespace of commands without --namespace.
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
    /// Name of a cluster from `katcall context list`
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
    /// Show what an apply would change, and change nothing (exits with 10 if there are changes)
    Plan(PlanArgs),
    /// List objects, or show one
    Get(GetArgs),
    /// Show one object with its conditions and events
    Describe(DescribeArgs),
    /// Explain the state of a workload, an instance or a machine, and what to try next
    Why(WhyArgs),
    /// List events, the oldest first, or follow new events
    Events(EventsArgs),
    /// Show the logs of a workload or an instance
    Logs(LogsArgs),
    /// Run a command in an instance's container
    Exec(ExecArgs),
    /// Show the use of processor and memory; on a terminal until it is interrupted
    Top(TopArgs),
    /// Copy a file or folder to or from a container
    Cp(CpArgs),
    /// Forward a local port to an instance
    PortForward(PortForwardArgs),
    /// Delete workloads, namespaces, secrets, the data of volumes, or machines
    Delete(DeleteArgs),
    /// Wait until an object has a condition or a phase, or is deleted
    Wait(WaitArgs),
    /// Return a workload to an earlier generation
    Rollback(rollout::RollbackArgs),
    /// List the stored generations of a workload
    History(rollout::HistoryArgs),
    /// Show, pause or resume a rollout
    Rollout(rollout::RolloutArgs),
    /// Replace the instances of a workload with new ones from the same files
    Restart(rollout::RestartArgs),
    /// Set the number of instances of a workload
    Scale(rollout::ScaleArgs),
    /// Change the image of a workload
    Set(rollout::SetArgs),
    /// Show whether the cluster is well, and its problems (exits with 1 if it is not well)
    Status,
    /// Create a namespace
    Create(CreateArgs),
    /// Set the quotas of a namespace
    Namespace(quota::NamespaceArgs),
    /// Move all instances off a machine, place no new ones there, and wait until it is empty
    Drain(DrainArgs),
    /// Move the data of a volume to another machine, or give up data whose disk is missing
    Volume(volume_move::VolumeArgs),
    /// End the drain of a machine
    Uncordon(UncordonArgs),
    /// Set and remove labels of a machine
    Label(LabelArgs),
    /// Set and remove taints of a machine
    Taint(TaintArgs),
    /// Create, list and revoke tokens
    Token(TokenArgs),
    /// List and replace the cluster's certificate authorities and its recovery key
    Ca(CaArgs),
    /// Set how image registries are reached, and log in to them
    Registry(RegistryArgs),
    /// Set and remove keys of secrets (see also `get`, `describe` and `delete`)
    Secret(secret::SecretArgs),
    /// Explain a field of the *.kat files, or a reason
    Explain(ExplainArgs),
    /// Show the cluster's configuration
    Config(ConfigArgs),
    /// Select the cluster that katcall uses
    Context(ContextArgs),
    /// Print a completion script for a shell
    Completion(CompletionArgs),
    /// Print possible next words, for completion scripts
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
    /// Wait until the workloads run as written
    #[arg(long)]
    pub(super) wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
    /// Change nothing: `server` shows what would change, as `katcall plan` does; `client` only checks
    /// the files
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

/// The deletion of workloads that are in no folder.
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
    /// Delete without asking
    #[arg(long, requires = "prune")]
    pub(super) yes: bool,
}

/// Where an apply that does nothing is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// The cluster checks
    Server,
    /// katcall checks alone, without a cluster
    Client,
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// Folder of *.kat files, a folder of such folders, or a .tar.gz; may be repeated, and each is
    /// planned on its own
    #[arg(short, long = "file", value_name = "DIR|ARCHIVE", required = true)]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) prune: PruneArgs,
    /// Show also the differences of the systemd units
    #[arg(long)]
    pub(super) units: bool,
    /// Print the cluster's whole response
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
    /// Kind of the objects; the singular and wl, inst, ns, vol and ev are accepted
    pub(super) kind: ListedKind,
    /// Name of one object; for a volume, WORKLOAD/VOLUME
    pub(super) name: Option<String>,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "name")]
    pub(super) all_namespaces: bool,
    /// Output format; jsonpath={.items[*].metadata.name} prints parts of the JSON
    #[arg(short, long, default_value = "table", value_parser = OutputParser)]
    pub(super) output: OutputOption,
    /// Watch for changes
    #[arg(short, long)]
    pub(super) watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct DescribeArgs {
    /// Kind of the object
    pub(super) kind: DescribedKind,
    /// Name of the object
    pub(super) name: String,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    /// Kind of the object
    #[arg(required_unless_present = "files", requires = "name")]
    pub(super) kind: Option<DeletedKind>,
    /// Name of the object; for a volume, WORKLOAD/VOLUME
    pub(super) name: Option<String>,
    /// Delete the workload of this folder or archive; may be repeated
    #[arg(
        short,
        long = "file",
        value_name = "DIR|ARCHIVE",
        conflicts_with = "kind"
    )]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// With a namespace: also delete everything in it
    #[arg(long)]
    pub(super) cascade: bool,
    /// With a workload or namespace: also delete the data of its volumes, for good
    #[arg(long)]
    pub(super) volumes: bool,
    /// Remove data without asking
    #[arg(long)]
    pub(super) yes: bool,
    /// Do not fail if the object does not exist
    #[arg(long)]
    pub(super) ignore_not_found: bool,
    /// Wait until the object is deleted
    #[arg(long)]
    pub(super) wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Kind of the object
    pub(super) kind: CreatedKind,
    /// Name of the object
    pub(super) name: String,
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// Name of the machine
    #[arg(value_name = "NODE")]
    pub(super) name: String,
    /// Also stop instances that no other machine can take; they start again where they fit, in most
    /// cases here after `katcall uncordon`
    #[arg(long)]
    pub(super) force: bool,
    /// Time limit of the wait; the drain continues after it
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(super) struct UncordonArgs {
    /// Name of the machine
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
    /// Kind of the object
    pub(super) kind: LabelledKind,
    /// Name of the object
    pub(super) name: String,
    /// Labels to set and to remove; all are changed together
    #[arg(required = true, value_name = "KEY=VALUE|KEY-", value_parser = node::parse_label)]
    pub(super) changes: Vec<node::LabelChange>,
}

#[derive(Debug, Args)]
pub(super) struct TaintArgs {
    /// Kind of the object
    pub(super) kind: LabelledKind,
    /// Name of the object
    pub(super) name: String,
    /// Taints to set and to remove; NoSchedule keeps new instances away, PreferNoSchedule only if
    /// another machine fits
    #[arg(
        required = true,
        value_name = "KEY[=VALUE]:EFFECT|KEY[:EFFECT]-",
        value_parser = node::parse_taint
    )]
    pub(super) changes: Vec<node::TaintChange>,
}

#[derive(Debug, Args)]
pub(super) struct CompletionArgs {
    /// Shell of the script
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
    /// Folder for the pages
    pub(super) folder: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct VersionArgs {
    /// Output format
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
