//! `katcall job`: runs a Job by hand, suspends and resumes it, and ends runs.

use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::time::Instant;

use crate::{
    CliSession,
    args::NamespaceOption,
    commands::sessions::logs,
    errors::CliError,
    output::plain,
    references::{self, CANCELLED, Reference, WORKLOADS},
    time,
};
use kat_client::{ListChange, RequestPath};
use kat_types::{
    api::{RunItem, WriteOutcome},
    resource::named_kind::NamedKind,
    store::jobs::RunPhase,
};

#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// Run a Job now
    Run(JobRunArgs),
    /// Start no further run by the schedule of a Job
    Suspend(JobNamesArgs),
    /// Let the schedule of a Job start runs again
    Resume(JobNamesArgs),
    /// End a run, as run/NAME-N, or all active runs of a Job
    Cancel(JobCancelArgs),
}

#[derive(Debug, Args)]
struct JobRunArgs {
    /// Job, as NAME or NAMESPACE/NAME
    #[arg(value_name = "JOB")]
    name: String,
    #[command(flatten)]
    namespace: NamespaceOption,
    /// Show the output of the run, and end with the exit code of its program
    #[arg(long)]
    wait: bool,
    /// Time limit of the wait
    #[arg(long, default_value = "24h", value_parser = time::parse_duration, value_name = "TIME")]
    timeout: Duration,
    /// Arguments of the program, after --, in place of those of the file
    #[arg(last = true, value_name = "ARGS")]
    arguments: Vec<String>,
}

#[derive(Debug, Args)]
struct JobNamesArgs {
    /// Jobs, as NAME or NAMESPACE/NAME
    #[arg(value_name = "JOB")]
    words: Vec<String>,
    #[command(flatten)]
    namespace: NamespaceOption,
}

#[derive(Debug, Args)]
struct JobCancelArgs {
    /// Runs, as run/NAME-N, or Jobs, as NAME
    #[arg(value_name = "run/NAME-N|JOB")]
    words: Vec<String>,
    #[command(flatten)]
    namespace: NamespaceOption,
}

impl JobArgs {
    /// Whether the command waits for a run.
    pub(crate) fn waits(&self) -> bool {
        matches!(&self.command, JobCommand::Run(run) if run.wait)
    }
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &JobArgs) -> Result<u8, CliError> {
    match &arguments.command {
        JobCommand::Run(arguments) => run_now(session, arguments).await,
        JobCommand::Suspend(arguments) => suspend(session, arguments, true).await.map(|()| 0),
        JobCommand::Resume(arguments) => suspend(session, arguments, false).await.map(|()| 0),
        JobCommand::Cancel(arguments) => cancel(session, arguments).await.map(|()| 0),
    }
}

async fn run_now(session: &CliSession<'_>, arguments: &JobRunArgs) -> Result<u8, CliError> {
    let object = references::one(&arguments.name, WORKLOADS, &arguments.namespace)?;
    let Reference {
        namespace, name, ..
    } = &object;
    let args = (!arguments.arguments.is_empty()).then(|| arguments.arguments.clone());
    let made = session.client.run_job(namespace, name, args).await?;
    let run = AwaitedRun {
        namespace: namespace.clone(),
        workload: name.clone(),
        number: made.spec.number,
    };
    session
        .console
        .note(&format!("run/{} begins", plain(&made.metadata.name)));
    match arguments.wait {
        true => until_over(session, &run, Instant::now() + arguments.timeout).await,
        false => Ok(0),
    }
}

async fn suspend(
    session: &CliSession<'_>,
    arguments: &JobNamesArgs,
    suspend: bool,
) -> Result<(), CliError> {
    let named = references::objects(&arguments.words, WORKLOADS, &arguments.namespace)?;
    references::for_each(session.console, &named, async |object| {
        let (namespace, name) = (&object.namespace, &object.name);
        let item = session.client.workload(namespace, name).await?;
        if item.spec.job.is_none() {
            return Err(
                CliError::failed(format!("`{name}` is no Job")).hinted(format!(
                    "`katcall stop {name} -n {namespace}` stops a Service"
                )),
            );
        }
        let result = session
            .client
            .stop_workload(namespace, name, suspend)
            .await?;
        let said = match (result.outcome, suspend) {
            (WriteOutcome::Unchanged, true) => "unchanged: it is suspended already",
            (WriteOutcome::Unchanged, false) => "unchanged: it is not suspended",
            (_, true) => "suspended; `katcall job resume` resumes it",
            (_, false) => "resumed",
        };
        session.console.sentence(&format!("{object} {said}"))
    })
    .await
}

async fn cancel(session: &CliSession<'_>, arguments: &JobCancelArgs) -> Result<(), CliError> {
    let named = references::objects(&arguments.words, CANCELLED, &arguments.namespace)?;
    references::for_each(session.console, &named, async |object| {
        let runs = session.client.runs(Some(&object.namespace)).await?.items;
        let found: Vec<RunItem> = match object.kind {
            Some(NamedKind::Run) => vec![named_run(runs, object)?],
            _ => runs
                .into_iter()
                .filter(|run| run.spec.workload == object.name)
                .filter(|run| run.status.phase == RunPhase::Active)
                .collect(),
        };
        if found.is_empty() {
            return session
                .console
                .sentence(&format!("{object} unchanged: it has no active run"));
        }
        for run in found {
            let spec = &run.spec;
            let client = &session.client;
            let result = client
                .cancel_run(&object.namespace, &spec.workload, spec.number)
                .await?;
            let said = match result.outcome {
                WriteOutcome::Unchanged => "unchanged: it is over already",
                _ => "cancelled",
            };
            let name = plain(&run.metadata.name);
            session.console.line(&format!("run/{name} {said}"))?;
        }
        Ok(())
    })
    .await
}

/// The run that a reference names.
pub(crate) fn named_run(runs: Vec<RunItem>, object: &Reference) -> Result<RunItem, CliError> {
    let mut runs = runs.into_iter();
    runs.find(|run| run.metadata.name == object.name)
        .ok_or_else(|| {
            CliError::not_found(format!(
                "there is no run `{}` in namespace `{}`",
                plain(&object.name),
                object.namespace
            ))
            .hinted(format!(
                "`katcall get runs -n {}` lists them",
                object.namespace
            ))
        })
}

/// A run whose end is waited for.
pub(crate) struct AwaitedRun {
    pub(crate) namespace: String,
    pub(crate) workload: String,
    pub(crate) number: u64,
}

impl AwaitedRun {
    fn is(&self, item: &RunItem) -> bool {
        item.spec.workload == self.workload && item.spec.number == self.number
    }
}

/// Shows the output of a run, instance by instance, and returns the exit code of its program: 0 if the
/// run succeeded, and that of its last instance, or 1, if not.
pub(crate) async fn until_over(
    session: &CliSession<'_>,
    run: &AwaitedRun,
    deadline: Instant,
) -> Result<u8, CliError> {
    let route = RequestPath::runs(Some(&run.namespace))?;
    let mut runs = session.client.follow::<RunItem>(route, true);
    let mut shown: Vec<String> = Vec::new();
    let mut seen = false;
    loop {
        let change = tokio::select! {
            change = runs.next() => change?,
            () = tokio::time::sleep_until(deadline) => {
                return Err(CliError::deadline(format!(
                    "run {}-{} is not over yet", run.workload, run.number
                ))
                .hinted("the run continues without katcall: `katcall get runs` shows it"));
            }
        };
        let item = match change {
            ListChange::Listed(items) => {
                let found = items.into_iter().find(|item| run.is(item));
                if found.is_none() && seen {
                    return Err(gone(run));
                }
                found
            }
            ListChange::Changed(item) => Some(item).filter(|item| run.is(item)),
            ListChange::Deleted(item) if run.is(&item) => return Err(gone(run)),
            ListChange::Deleted(_) | ListChange::Interrupted(_) => None,
        };
        let Some(item) = item else { continue };
        seen = true;
        let news = item.status.attempts.iter();
        let news: Vec<_> = news
            .filter(|attempt| !shown.contains(&attempt.instance))
            .cloned()
            .collect();
        for attempt in news {
            shown.push(attempt.instance.clone());
            let output = logs::of_attempt(session, run, &attempt);
            tokio::select! {
                () = output => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
        let status = &item.status;
        match status.phase {
            RunPhase::Active => {}
            RunPhase::Succeeded => return Ok(0),
            RunPhase::Failed | RunPhase::Cancelled => {
                let name = plain(&item.metadata.name);
                session.console.warning(&format!(
                    "run/{name}: {}: {}",
                    plain(&status.reason),
                    plain(&status.message)
                ));
                let code = status.exit_code.and_then(|code| u8::try_from(code).ok());
                return Ok(code.filter(|code| *code != 0).unwrap_or(1));
            }
        }
    }
}

fn gone(run: &AwaitedRun) -> CliError {
    CliError::not_found(format!(
        "run {}-{} is gone: its Job was deleted, or its history is shorter",
        run.workload, run.number
    ))
}
