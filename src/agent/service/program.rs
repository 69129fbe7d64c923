//! `kat-agent`'s command line.

use std::{os::unix::process::CommandExt, path::PathBuf, process::ExitCode, time::Duration};

use clap::{CommandFactory, Parser, Subcommand};

use super::{manual, run};
use crate::{
    commands::{
        check as look, init, join, join_token, recovery,
        reset::{self, DrainFirst},
        setup, trust,
    },
    disk::disk_child,
};
use kat_daemon::logging;
use kat_host::bound_paths;
use kat_types::{encoding::plain::plain_lines, machine::network::HOOK_PROGRAM};

/// Time that threads of the blocking pool have at the agent's end.
const LAST_THREADS: Duration = Duration::from_secs(1);

/// Runs KAT on one machine.
///
/// kat-agent.service runs `kat-agent run`. The other commands are for administrators: they add this
/// machine to a cluster and take it out, check it, and back up and recover the cluster's store.
/// Commands that change the machine need root. `katcall` manages workloads and the cluster.
///
/// Exit codes: 0 done, 1 failed, or `check` found a problem, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "kat-agent", version, disable_help_subcommand = true)]
pub struct AgentArgs {
    #[command(subcommand)]
    command: AgentCommand,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Makes this machine the first of a new cluster
    Init {
        /// `cluster.kat` with the cluster's settings
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Address, interface or host name at which other machines reach this one; may be repeated, the first is tried first
        #[arg(long, value_name = "ADDRESS|INTERFACE|NAME")]
        advertise_address: Vec<String>,
        /// Name of this machine in the cluster [default: the host's name]
        #[arg(long, value_name = "NAME")]
        node_name: Option<String>,
        #[command(flatten)]
        way: ReachOptions,
    },
    /// Makes this machine part of a cluster; `katcall token create --join` prints the whole command
    Join {
        /// `host:port` of the API of any machine of the cluster
        #[arg(long, value_name = "HOST:PORT")]
        leader_api: String,
        /// Token for joining. Every user of this machine can see arguments: prefer `--token-file`, the
        /// variable, or the standard input
        #[arg(long, env = "KAT_JOIN_TOKEN", hide_env_values = true)]
        token: Option<String>,
        /// File with the token; `-` is the standard input
        #[arg(long, value_name = "FILE", conflicts_with = "token")]
        token_file: Option<PathBuf>,
        /// Join without a token, which the cluster must allow (`katcall token create --join
        /// --insecure-trust-network`); the server is not verified
        #[arg(long, conflicts_with_all = ["token", "token_file"])]
        insecure_trust_network: bool,
        /// Address, interface or host name at which other machines reach this one; may be repeated, the first is tried first
        #[arg(long, value_name = "ADDRESS|INTERFACE|NAME")]
        advertise_address: Vec<String>,
        /// Name of this machine in the cluster [default: the host's name]
        #[arg(long, value_name = "NAME")]
        node_name: Option<String>,
        /// Never hold the cluster's store on this machine
        #[arg(long)]
        no_etcd: bool,
        #[command(flatten)]
        way: ReachOptions,
        /// Prefer this machine when the cluster's store needs another one
        #[arg(long, conflicts_with = "no_etcd")]
        etcd_peer: bool,
    },
    /// Checks this machine, and prints each problem with its solution
    Check {
        /// `cluster.kat` that `init` will be given; without it the cluster's own settings, or the defaults
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Writes a backup of the cluster, sealed with its recovery key; on a machine that holds the store
    Backup {
        /// The file or a folder; without it the folder of the leader's backups
        file: Option<PathBuf>,
    },
    /// Continues with this machine alone after most machines that hold the store are lost for good
    Recover {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Makes this bare machine the one that made the backup, with the cluster as it was then
    Restore {
        /// The backup
        file: PathBuf,
        /// File with the recovery key; without it you are asked for the key
        #[arg(long, value_name = "FILE")]
        recovery_key_file: Option<PathBuf>,
        /// Address or interface at which other machines reach this one
        #[arg(long, value_name = "ADDRESS|INTERFACE")]
        advertise_address: Vec<String>,
    },
    /// Prints the key that opens this cluster's backups
    RecoveryKey,
    /// Trusts the cluster's authority that was replaced while this machine was off
    ///
    /// It then takes a certificate of that authority from a machine of the cluster, and restarts
    /// kat-agent; instances continue to run.
    Trust {
        /// SHA-256 of the authority's certificate: FINGERPRINT of cluster-ca in `katcall ca list -o
        /// wide` on a machine that is not cut off
        hash: String,
    },
    /// Takes this machine out of its cluster and removes its workloads
    Reset {
        /// Do not ask
        #[arg(long)]
        yes: bool,
        /// Stop the instances at once, instead of moving them to other machines first
        #[arg(long)]
        no_drain: bool,
    },
    /// Runs the agent: the program of kat-agent.service
    Run,
    /// Binds what an instance mounts of the machine: the body of kat-hostpath@.service
    #[command(hide = true)]
    BindHostPaths {
        /// Take away what is bound instead
        #[arg(long)]
        undo: bool,
        /// The instance, as UID-NAME
        instance: String,
    },
    /// Works on a file system that may hang: a child process of the agent
    #[command(hide = true)]
    WorkOnDisk,
    /// Connects a container to the overlay: called by Podman for containers from before kat-net was a program
    #[command(hide = true)]
    Hook,
    /// Prints the version
    Version,
    /// Prints a shell's completions
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
}

/// How other machines reach this machine.
#[derive(Debug, Clone, Copy, clap::Args)]
struct ReachOptions {
    /// Other machines cannot open connections to this one: it keeps its connections to them open
    #[arg(long, conflicts_with = "relay")]
    behind_nat: bool,
    /// Machines behind NAT reach each other through this one
    #[arg(long)]
    relay: bool,
}

/// Parses the arguments, runs the command, and maps the result to an exit code.
pub fn main() -> ExitCode {
    match dispatch(AgentArgs::parse().command) {
        Ok(code) => code,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a sentence to stderr. Control characters are replaced: the sentence may contain text of a
/// server whose identity is not verified yet, of a backup's header, or of files.
fn say(sentence: &str) {
    anstream::eprintln!("{}", plain_lines(sentence));
}

fn dispatch(command: AgentCommand) -> anyhow::Result<ExitCode> {
    match command {
        AgentCommand::Init {
            config,
            advertise_address,
            node_name,
            way,
        } => {
            let options = init::InitOptions {
                config,
                advertise: advertise_address,
                node_name,
                behind_nat: way.behind_nat,
                relay: way.relay,
            };
            run_logged(init::run(options, &say))?;
        }
        AgentCommand::Join {
            leader_api,
            token,
            token_file,
            advertise_address,
            node_name,
            no_etcd,
            way,
            etcd_peer,
            insecure_trust_network,
        } => {
            logging::start();
            let token = match token {
                None if !insecure_trust_network => Some(join_token::read(token_file.as_deref())?),
                given => given,
            };
            let options = join::JoinOptions {
                leader_api,
                token,
                advertise: advertise_address,
                node_name,
                no_etcd,
                behind_nat: way.behind_nat,
                relay: way.relay,
                etcd_peer,
            };
            runtime()?.block_on(join::run(options, &say))?;
        }
        AgentCommand::Backup { file } => {
            let path = run_logged(recovery::backup(file, &say))?;
            anstream::println!("{}", path.display());
        }
        AgentCommand::Trust { hash } => run_logged(trust::run(&hash, &say))?,
        AgentCommand::Recover { yes } => run_logged(recovery::recover(yes, &say))?,
        AgentCommand::Restore {
            file,
            recovery_key_file,
            advertise_address,
        } => {
            let options = recovery::RestoreOptions {
                file,
                recovery_key_file,
                advertise: advertise_address,
            };
            run_logged(recovery::restore(options, &say))?;
        }
        AgentCommand::RecoveryKey => anstream::println!("{}", recovery::key()?),
        AgentCommand::Check { config } => return runtime()?.block_on(check(config)),
        AgentCommand::Reset { yes, no_drain } => reset_machine(yes, no_drain)?,
        AgentCommand::Run => run_agent()?,
        AgentCommand::BindHostPaths { undo, instance } => match undo {
            true => bound_paths::unbind_all(&instance)?,
            false => bound_paths::bind_all(&instance)?,
        },
        AgentCommand::WorkOnDisk => disk_child::serve()?,
        AgentCommand::Hook => {
            let error = std::process::Command::new(HOOK_PROGRAM).arg("hook").exec();
            anyhow::bail!("cannot run {HOOK_PROGRAM}: {error}");
        }
        AgentCommand::Version => anstream::println!("kat-agent {}", kat_types::VERSION),
        AgentCommand::Completion { shell } => print_completions(shell),
        AgentCommand::Man { folder } => manual::write_man_pages(&folder)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_logged<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    logging::start();
    runtime()?.block_on(command)
}

fn reset_machine(yes: bool, no_drain: bool) -> anyhow::Result<()> {
    logging::start();
    if !yes && !confirmed()? {
        anyhow::bail!("nothing was changed");
    }
    let first = match no_drain {
        true => DrainFirst::No,
        false => DrainFirst::Yes,
    };
    // With `--yes` it goes on: nobody may be there.
    let go_on = |_: &str| match yes {
        true => Ok(true),
        false => asked("continue? [y/N] "),
    };
    runtime()?.block_on(reset::run(&say, first, go_on))?;
    anstream::eprintln!("this machine is in no cluster any more");
    Ok(())
}

fn run_agent() -> anyhow::Result<()> {
    logging::start();
    let runtime = runtime()?;
    let ended = runtime.block_on(run::run());
    // A thread of the blocking pool that hangs on a disk must not hold up the end.
    runtime.shutdown_timeout(LAST_THREADS);
    ended
}

fn print_completions(shell: clap_complete::Shell) {
    clap_complete::generate(
        shell,
        &mut AgentArgs::command(),
        "kat-agent",
        &mut std::io::stdout(),
    );
}

async fn check(config: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    let given = match config {
        Some(path) => Some(setup::read_cluster(Some(&path))?),
        None => None,
    };
    let machine = setup::read_agent_config()?;
    Ok(look::print_findings(given, &machine).await)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// Asks for confirmation on a terminal; without a terminal `--yes` is required.
fn confirmed() -> anyhow::Result<bool> {
    use std::io::IsTerminal;
    if !std::io::stdin().is_terminal() {
        anyhow::bail!(
            "this stops and removes every workload on this machine, and its part of the cluster's store; without a terminal it needs --yes"
        );
    }
    let question = reset::question::question();
    asked(&format!("{question}; continue? [y/N] "))
}

/// Asks on the terminal.
fn asked(question: &str) -> anyhow::Result<bool> {
    use std::io::BufRead;
    anstream::eprint!("{question}");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
