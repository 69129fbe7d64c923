//! katcall's command line.

mod ask;
mod authorities;
pub(crate) mod examples;
mod namespace;
mod output;
pub(crate) mod sessions;
mod settings;

use std::{path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use super::{references, references::LabelSelector, time};
use crate::commands::{
    changing::{diff, edit, export, job, quota, rollout, run},
    data::{registry::RegistryArgs, secret, volume_move},
};

pub(super) use self::{
    ask::{EventsArgs, ExplainArgs, WaitArgs, WhyArgs},
    authorities::{AuthorityRotationArgs, CaArgs, CaCommand},
    namespace::NamespaceOption,
    output::{DocumentFormat, OutputFormat, OutputOption, OutputParser, TokenFormat},
    settings::{ConfigArgs, ConfigCommand, ContextArgs, ContextCommand, TokenArgs, TokenCommand},
};
pub(super) use crate::args::sessions::{CpArgs, ExecArgs, LogsArgs, PortForwardArgs, TopArgs};

/// Hint when a wait for a rollout is interrupted.
const GOES_ON: &str = "the cluster continues without katcall: `katcall rollout status` and `katcall get workloads` show the progress";
/// Hint when a wait for a move is interrupted.
const MOVES_ON: &str = "the move continues without katcall: `katcall get volumes` shows the progress, and `katcall volume move WORKLOAD/VOLUME --cancel` cancels it";
/// Hint when a wait for a run is interrupted.
const RUNS_ON: &str = "the run continues without katcall: `katcall get runs` shows it, and `katcall job cancel run/NAME-N` ends it";
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
/// out waiting, 10 `plan` or `diff` found changes, 130 interrupted.
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
    /// Create a workload from an image and a few options
    #[command(after_help = examples::RUN)]
    Run(run::RunArgs),
    /// Write the *.kat files of a workload from the options of `run`, without a cluster
    #[command(after_help = examples::NEW)]
    New(run::NewArgs),
    /// Create or update workloads from folders of *.kat files
    #[command(after_help = examples::APPLY)]
    Apply(ApplyArgs),
    /// Show what an apply would change, and change nothing (exits with 10 if there are changes)
    #[command(after_help = examples::PLAN)]
    Plan(PlanArgs),
    /// Show how the files of folders differ from the stored ones (exits with 10 if they differ)
    Diff(diff::DiffArgs),
    /// Print or write the stored *.kat files of a workload
    #[command(after_help = examples::EXPORT)]
    Export(export::ExportArgs),
    /// Change the stored *.kat files of a workload in an editor, and apply them
    Edit(edit::EditArgs),
    /// List objects, or show some
    #[command(after_help = examples::GET)]
    Get(GetArgs),
    /// List instances, as `get instances` does
    Ps(PsArgs),
    /// Show objects with their conditions and events
    Describe(DescribeArgs),
    /// Explain the state of a workload, an instance, a machine or isolation, and what to try next
    #[command(after_help = examples::WHY)]
    Why(WhyArgs),
    /// List events, the oldest first, or follow new events
    Events(EventsArgs),
    /// Show the logs of a workload or an instance
    #[command(after_help = examples::LOGS)]
    Logs(LogsArgs),
    /// Run a command in an instance's container
    #[command(after_help = examples::EXEC)]
    Exec(ExecArgs),
    /// Show the use of processor and memory; on a terminal until it is interrupted
    Top(TopArgs),
    /// Copy a file or folder to or from a container
    #[command(after_help = examples::CP)]
    Cp(CpArgs),
    /// Forward a local port to an instance
    #[command(after_help = examples::PORT_FORWARD)]
    PortForward(PortForwardArgs),
    /// Delete workloads, namespaces, secrets, the data of volumes, or machines
    #[command(visible_alias = "rm", after_help = examples::DELETE)]
    Delete(DeleteArgs),
    /// Wait until an object has a condition or a phase, or is deleted
    #[command(after_help = examples::WAIT)]
    Wait(WaitArgs),
    /// Return a workload to an earlier generation
    #[command(after_help = examples::ROLLBACK)]
    Rollback(rollout::RollbackArgs),
    /// List the stored generations of a workload
    History(rollout::HistoryArgs),
    /// Show, pause or resume a rollout
    Rollout(rollout::RolloutArgs),
    /// Replace the instances of a workload with new ones from the same files
    Restart(rollout::RestartArgs),
    /// Set the number of instances of a workload
    #[command(after_help = examples::SCALE)]
    Scale(rollout::ScaleArgs),
    /// Stop a workload: end its instances, and keep its volumes, addresses and secrets
    Stop(rollout::StopArgs),
    /// Start a stopped workload with as many instances as before
    Start(rollout::StartArgs),
    /// Run a Job now, suspend or resume it, or end its runs
    Job(job::JobArgs),
    /// Change the image of a workload
    Set(rollout::SetArgs),
    /// Show whether the cluster is well, and its problems (exits with 1 if it is not well)
    Status,
    /// Create namespaces
    Create(CreateArgs),
    /// Set the quotas of a namespace, and which others may reach its workloads
    Namespace(quota::NamespaceArgs),
    /// Move all instances off a machine, place no new ones there, and wait until it is empty
    #[command(after_help = examples::DRAIN)]
    Drain(DrainArgs),
    /// Move the data of a volume to another machine, or give up data whose disk is missing
    Volume(volume_move::VolumeArgs),
    /// Place no new instances on a machine, and move none away
    Cordon(CordonArgs),
    /// End the drain or cordon of a machine
    Uncordon(CordonArgs),
    /// Set and remove labels of a machine
    #[command(after_help = examples::LABEL)]
    Label(LabelArgs),
    /// Set and remove taints of a machine
    #[command(after_help = examples::TAINT)]
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
    #[command(after_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Show and change the cluster's configuration
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
            Self::Job(arguments) => arguments.waits().then_some(RUNS_ON),
            Self::Ca(arguments) => arguments.waits().then_some(ROTATES_ON),
            _ => self.waits().then_some(GOES_ON),
        }
    }

    /// Whether the command waits for a rollout.
    fn waits(&self) -> bool {
        match self {
            Self::Apply(arguments) => arguments.wait,
            Self::Run(arguments) => arguments.waits(),
            Self::Rollback(arguments) => arguments.waits(),
            Self::Restart(arguments) => arguments.waits(),
            Self::Scale(arguments) => arguments.waits(),
            Self::Stop(arguments) => arguments.waits(),
            Self::Start(arguments) => arguments.waits(),
            Self::Set(arguments) => arguments.waits(),
            Self::Rollout(arguments) => arguments.waits(),
            Self::Secret(arguments) => arguments.waits(),
            _ => false,
        }
    }
}

/// The folders that a command reads.
#[derive(Debug, Clone, Args)]
pub(super) struct FolderArgs {
    /// Folders of *.kat files, folders of such folders, or archives (.tar.gz), each on its own; `-`
    /// reads stdin: an archive, or YAML documents as `katcall export` prints them
    #[arg(value_name = "DIR|ARCHIVE", required_unless_present = "files")]
    folders: Vec<PathBuf>,
    /// Folder or archive, as without the option; may be repeated
    #[arg(short, long = "file", value_name = "DIR|ARCHIVE")]
    files: Vec<PathBuf>,
}

impl FolderArgs {
    /// All of them, as written.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.folders.iter().chain(&self.files).cloned().collect()
    }
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    pub(super) folders: FolderArgs,
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
        value_parser = references::label_requirement
    )]
    pub(super) labels: Vec<references::LabelRequirement>,
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
    #[command(flatten)]
    pub(super) folders: FolderArgs,
    #[command(flatten)]
    pub(super) prune: PruneArgs,
    /// Show also the differences of the systemd units
    #[arg(long)]
    pub(super) units: bool,
    /// Print the cluster's whole response
    #[arg(short, long)]
    pub(super) output: Option<DocumentFormat>,
}

/// What can be created by name alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CreatedKind {
    #[value(alias = "ns")]
    Namespace,
}

#[derive(Debug, Args)]
pub(super) struct GetArgs {
    /// Kinds such as workloads,instances or all; a kind and the names of objects; or KIND/NAME and
    /// KIND/NAMESPACE/NAME
    #[arg(value_name = "KIND|KIND/NAME")]
    pub(super) words: Vec<String>,
    #[command(flatten)]
    pub(super) selector: LabelSelector,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long)]
    pub(super) all_namespaces: bool,
    /// Output format; jsonpath={.items[*].metadata.name} prints parts of the JSON
    #[arg(short, long, default_value = "table", value_parser = OutputParser)]
    pub(super) output: OutputOption,
    /// Watch for changes
    #[arg(short, long)]
    pub(super) watch: bool,
}

#[derive(Debug, Args)]
pub(super) struct PsArgs {
    #[command(flatten)]
    pub(super) selector: LabelSelector,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// All namespaces
    #[arg(short = 'A', long)]
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
    /// Objects, as NAME, KIND/NAME or KIND/NAMESPACE/NAME, or a kind and names; NAME is enough where
    /// only one kind has an object with that name
    #[arg(value_name = "[KIND/]NAME")]
    pub(super) words: Vec<String>,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    /// Objects, as KIND/NAME or KIND/NAMESPACE/NAME, or a kind and names; the name of a volume is
    /// WORKLOAD/VOLUME
    #[arg(value_name = "KIND/NAME")]
    pub(super) words: Vec<String>,
    /// Delete the workload of this folder or archive; may be repeated
    #[arg(
        short,
        long = "file",
        value_name = "DIR|ARCHIVE",
        conflicts_with_all = ["words", "labels"]
    )]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) selector: LabelSelector,
    #[command(flatten)]
    pub(super) namespace: NamespaceOption,
    /// With a namespace: also delete everything in it
    #[arg(long)]
    pub(super) cascade: bool,
    /// With a workload or namespace: also delete the data of its volumes, for good
    #[arg(long)]
    pub(super) volumes: bool,
    /// Remove data, and what a selector selects, without asking
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
    /// Kind of the objects
    pub(super) kind: CreatedKind,
    /// Names of the objects
    #[arg(value_name = "NAME", required = true)]
    pub(super) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct DrainArgs {
    /// Name of the machine
    #[arg(value_name = "NODE")]
    pub(super) words: Vec<String>,
    /// Also stop instances that no other machine can take; they start again where they fit, in most
    /// cases here after `katcall uncordon`
    #[arg(long)]
    pub(super) force: bool,
    /// Time limit of the wait; the drain continues after it
    #[arg(long, default_value = "5m", value_parser = time::parse_duration, value_name = "TIME")]
    pub(super) timeout: Duration,
}

#[derive(Debug, Args)]
pub(super) struct CordonArgs {
    /// Names of machines
    #[arg(value_name = "NODE")]
    pub(super) words: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct LabelArgs {
    /// Machines, and labels to set and to remove; the labels of a machine are changed together
    #[arg(value_name = "NODE|KEY=VALUE|KEY-")]
    pub(super) words: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct TaintArgs {
    /// Machines, and taints to set and to remove; NoSchedule keeps new instances away, PreferNoSchedule only if
    /// another machine fits
    #[arg(value_name = "NODE|KEY[=VALUE]:EFFECT|KEY[:EFFECT]-")]
    pub(super) words: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct CompletionArgs {
    /// Shell of the script
    pub(super) shell: Shell,
}

#[derive(Debug, Args)]
pub(super) struct CompleteArgs {
    /// The word that is being written; scripts of earlier versions do not say it
    #[arg(long)]
    pub(super) current: Option<String>,
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
}
