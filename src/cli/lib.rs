//! The program `katcall`: its commands, tables, JSON and progress.
//!
//! Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 refused or failed, 2 wrong
//! usage, 3 not found, 4 not reachable, 5 timed out waiting, 10 `plan` or `diff` found changes, 130
//! interrupted.
//!
//! Where to begin:
//! - `lib.rs`: [`run`], and `dispatch` with one arm for each command.
//! - `args.rs`: `KatcallCommand`, the command line.
//! - `connect.rs`: which cluster a command uses, and with which credentials.
//! - `console.rs`, `errors.rs`: the two streams, and errors with hint and exit code.
//! - `commands/changing/apply.rs`: a command from its arguments to its last line.
//!
//! Modules:
//! - `commands/changing`, `commands/data`: workloads; secrets, registries and moves of volumes.
//! - `commands/cluster`: machines, authorities, tokens, completion scripts.
//! - `commands/reading`, `commands/sessions`: lists, status and reasons; logs, shells, copies,
//!   ports.
//! - `output`, `progress`, `terminal`, `time`, `confirm`: formats, progress and prompts.
//! - `connect`, `context`, `references`, `target`, `volumes`: the cluster and the objects of a command.
//! - `wait`: follows a change until it has happened.
//! - `manual`: pages of the manual from the command line and the program's tables, also for
//!   `docs/reference`.
//! - `usage`: errors of the command line.
//!
//! Rules:
//! - `katcall` knows only what the API says: it sees neither the store nor the agent.
//! - Every reason has a text in `commands/reading/why/reasons.rs` or `event_reasons.rs`, by an
//!   exhaustive `match` (invariant 7). `commands/reading/status/urgency.rs` says which reasons make
//!   `katcall status` exit with 1.
//! - Text from a cluster is made safe with `kat_types::encoding::plain` before a terminal gets it.
//! - Code that derives findings from lists does no input or output: `findings.rs`, `story.rs` and
//!   the `state.rs` files.
//! - Messages are lower case without a full stop, and hints stand apart. No message has a value of
//!   a secret or a password.
//!
//! Tests: `tests/cli` runs the program against a fake API and compares snapshots;
//! `tests/cli/real_api.rs` uses the real API. A test in `manual/mod.rs` compares `docs/reference`.

mod args;
mod commands;
mod confirm;
mod connect;
mod console;
mod context;
mod editor;
mod errors;
mod manual;
mod output;
mod progress;
mod references;
mod target;
mod terminal;
mod time;
mod usage;
mod volumes;
mod wait;

use std::{cell::OnceCell, ffi::OsString};

use clap::Parser;

use args::{KatcallArgs, KatcallCommand};
use commands::{changing, cluster, complete, data, reading, sessions};
use console::Console;
use errors::CliError;
use kat_client::Client;

pub use args::command;

/// Exit code after Ctrl-C, as in shells: 128 plus the signal number.
const INTERRUPTED: u8 = 130;

/// Runs `katcall` with these arguments, beginning with the program's name, and returns its exit
/// code. All output has been written then.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let console = Console::detect();
    let words: Vec<OsString> = arguments.into_iter().collect();
    let arguments = match KatcallArgs::try_parse_from(&words) {
        Ok(arguments) => arguments,
        Err(error) => return usage::report(&error, &words, &console),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(until_interrupted(arguments, &console));
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(CliError::failed(format!("no runtime: {error}"))),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            console.error(&error);
            error.exit_code()
        }
    }
}

async fn until_interrupted(arguments: KatcallArgs, console: &Console) -> Result<u8, CliError> {
    // `status` reports an unreachable cluster itself.
    let says_it = matches!(arguments.command, KatcallCommand::Status);
    // `exec` passes signals on, and the editor of `edit` gets them itself.
    let takes_it = matches!(
        arguments.command,
        KatcallCommand::Exec(_) | KatcallCommand::Edit(_)
    );
    let goes_on = arguments.command.goes_on();
    let client = OnceCell::new();
    let global = arguments.global.clone();
    let outcome = tokio::select! {
        outcome = dispatch(arguments, console, &client) => outcome,
        _ = tokio::signal::ctrl_c(), if !takes_it => {
            console.clear_progress();
            if let Some(note) = goes_on {
                console.note(note);
            }
            Ok(INTERRUPTED)
        }
    };
    if client.get().is_some_and(Client::saw_stale) && !says_it {
        console
            .warning("no machine leads that can be reached: what is shown is what was known last");
    }
    if let Some(learned) = client.get().and_then(Client::learned)
        && let Err(error) = connect::keep_learned(&global, &learned)
    {
        let harm = match learned.ca {
            Some(_) => {
                "the cluster's authority is being replaced, or has been, and the connection has the earlier one"
            }
            None => {
                "until it can be written, a server of KAT 0.1.0, which any machine can pose as, is still accepted"
            }
        };
        console.warning(&format!("{error}; {harm}"));
    }
    outcome
}

/// What every command with a connection to the cluster needs.
struct CliSession<'run> {
    client: Client,
    console: &'run Console,
}

/// `seen` is set to the client of the command once there is one.
async fn dispatch(
    arguments: KatcallArgs,
    console: &Console,
    seen: &OnceCell<Client>,
) -> Result<u8, CliError> {
    use KatcallCommand as Command;
    let KatcallArgs { global, command } = arguments;
    let session = || -> Result<CliSession<'_>, CliError> {
        if let Some(warning) = connect::warning(&global) {
            console.warning(&warning);
        }
        let client = connect::client(&global)?;
        let _ = seen.set(client.clone());
        Ok(CliSession { client, console })
    };
    match command {
        Command::Apply(arguments) => {
            return changing::apply::run(&session, console, &arguments).await;
        }
        Command::Plan(arguments) => {
            return changing::plan::run(&session, console, &arguments).await;
        }
        Command::Run(arguments) => {
            return changing::run::run(&session, console, &arguments).await;
        }
        Command::New(arguments) => changing::run::new(console, &arguments)?,
        Command::Diff(arguments) => {
            return changing::diff::run(&session, console, &arguments).await;
        }
        Command::Export(arguments) => changing::export::run(&session()?, &arguments).await?,
        Command::Edit(arguments) => return changing::edit::run(&session()?, &arguments).await,
        Command::Get(arguments) => reading::get::run(&session()?, &arguments).await?,
        Command::Describe(arguments) => reading::describe::run(&session()?, &arguments).await?,
        Command::Ps(arguments) => reading::get::instances(&session()?, arguments).await?,
        Command::Events(arguments) => reading::get::list_events(&session()?, arguments).await?,
        Command::Why(arguments) => reading::why::run(&session()?, &arguments).await?,
        Command::Logs(arguments) => sessions::logs::run(&session()?, &arguments).await?,
        Command::Exec(arguments) => return sessions::exec::run(&session()?, &arguments).await,
        Command::Top(arguments) => reading::top::run(&session()?, &arguments).await?,
        Command::Cp(arguments) => sessions::cp::run(&session()?, &arguments).await?,
        Command::PortForward(arguments) => {
            sessions::port_forward::run(&session()?, &arguments).await?
        }
        Command::Delete(arguments) => changing::delete::run(&session()?, &arguments).await?,
        Command::Rollback(arguments) => {
            changing::rollout::rollback(&session()?, &arguments).await?
        }
        Command::History(arguments) => changing::rollout::history(&session()?, &arguments).await?,
        Command::Rollout(arguments) => changing::rollout::rollout(&session()?, &arguments).await?,
        Command::Restart(arguments) => changing::rollout::restart(&session()?, &arguments).await?,
        Command::Scale(arguments) => changing::rollout::scale(&session()?, &arguments).await?,
        Command::Stop(arguments) => changing::rollout::stop(&session()?, &arguments).await?,
        Command::Start(arguments) => changing::rollout::start(&session()?, &arguments).await?,
        Command::Job(arguments) => return changing::job::run(&session()?, &arguments).await,
        Command::Status => {
            let namespace = connect::default_namespace(&global);
            let session = session()?;
            let own = connect::own_agent(&global);
            let own = own.as_ref();
            return reading::status::run(&session, own, &namespace).await;
        }
        Command::Create(arguments) => changing::create::run(&session()?, &arguments).await?,
        Command::Namespace(arguments) => changing::quota::run(&session()?, &arguments).await?,
        Command::Drain(arguments) => cluster::drain::run(&session()?, &arguments).await?,
        Command::Volume(arguments) => data::volume_move::run(&session()?, &arguments).await?,
        Command::Cordon(arguments) => cluster::node::cordon(&session()?, &arguments).await?,
        Command::Uncordon(arguments) => cluster::node::uncordon(&session()?, &arguments).await?,
        Command::Label(arguments) => cluster::node::label(&session()?, &arguments).await?,
        Command::Taint(arguments) => cluster::node::taint(&session()?, &arguments).await?,
        Command::Set(arguments) => changing::rollout::set(&session()?, &arguments).await?,
        Command::Registry(arguments) => data::registry::run(&session, &arguments).await?,
        Command::Ca(arguments) => cluster::authorities::run(&session()?, &arguments).await?,
        Command::Token(arguments) => cluster::token::run(&session()?, &arguments).await?,
        Command::Wait(arguments) => changing::wait_for::run(&session()?, &arguments).await?,
        Command::Secret(arguments) => data::secret::run(&session, &arguments).await?,
        Command::Explain(arguments) => reading::explain::run(console, &arguments)?,
        Command::Config(arguments) => cluster::config::run(&session, &arguments).await?,
        Command::Context(arguments) => context::run(console, &arguments)?,
        Command::Completion(arguments) => cluster::generate::completion(console, &arguments)?,
        Command::Complete(arguments) => complete::run(console, &arguments).await?,
        Command::Man(arguments) => cluster::generate::man(&arguments)?,
        Command::Version(arguments) => reading::version::run(&global, console, &arguments).await?,
    }
    Ok(0)
}
