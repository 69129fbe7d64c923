//! `katcall rollback`, `history`, `rollout`, `restart`, `scale` and `set image`.

mod args;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    CliSession,
    commands::reading::get,
    errors::CliError,
    names, output,
    output::{
        short_image,
        table::{Cell, Table},
        word,
    },
    time, wait,
    wait::AwaitedWorkload,
};
use args::{RolloutCommand, RolloutWaitArgs, SetCommand, WorkloadNameArgs};
use kat_client::ClientError;
use kat_types::api::{
    ApplyResult, GenerationView, Origin, WorkloadItem, WorkloadPhase, WriteOutcome,
};

pub(crate) use args::{HistoryArgs, RestartArgs, RollbackArgs, RolloutArgs, ScaleArgs, SetArgs};

struct WorkloadName {
    namespace: String,
    name: String,
}

impl WorkloadNameArgs {
    fn named(&self) -> Result<WorkloadName, CliError> {
        let name = match self.words.as_slice() {
            [name] => name,
            [kind, name] if matches!(kind.as_str(), "workload" | "workloads" | "wl") => name,
            [kind, _] => {
                return Err(CliError::usage(format!(
                    "found `{kind}`, expected `workload`"
                )));
            }
            _ => return Err(CliError::usage("expected the name of a workload")),
        };
        Ok(match name.split_once('/') {
            Some((namespace, rest)) => WorkloadName {
                namespace: names::written_before(namespace, name, &self.namespace)?,
                name: rest.to_owned(),
            },
            None => WorkloadName {
                namespace: self.namespace.namespace.clone(),
                name: name.clone(),
            },
        })
    }
}

pub(crate) async fn rollback(
    session: &CliSession<'_>,
    arguments: &RollbackArgs,
) -> Result<(), CliError> {
    let named = arguments.which.named()?;
    let WorkloadName { namespace, name } = &named;
    let answer = session
        .client
        .roll_back(namespace, name, arguments.to)
        .await;
    let result = accepted(session, answer, &named).await?;
    let said = match result.outcome {
        WriteOutcome::Unchanged => "unchanged: it has this content already".to_owned(),
        _ => format!("rolled back, as generation {}", result.metadata.generation),
    };
    finish(session, named, result, &said, &arguments.waiting).await
}

pub(crate) async fn restart(
    session: &CliSession<'_>,
    arguments: &RestartArgs,
) -> Result<(), CliError> {
    let named = arguments.which.named()?;
    let WorkloadName { namespace, name } = &named;
    let now = Timestamp::now().into();
    let answer = session.client.restart(namespace, name, now).await;
    let result = accepted(session, answer, &named).await?;
    let said = format!("restarting, as generation {}", result.metadata.generation);
    finish(session, named, result, &said, &arguments.waiting).await
}

pub(crate) async fn scale(session: &CliSession<'_>, arguments: &ScaleArgs) -> Result<(), CliError> {
    let named = arguments.which.named()?;
    let WorkloadName { namespace, name } = &named;
    let replicas = arguments.replicas;
    let answer = session.client.scale(namespace, name, replicas).await;
    let result = accepted(session, answer, &named).await?;
    let said = match result.outcome {
        WriteOutcome::Unchanged => format!("unchanged: it has {replicas} replicas already"),
        _ => format!(
            "scaled to {replicas}, as generation {}",
            result.metadata.generation
        ),
    };
    finish(session, named, result, &said, &arguments.waiting).await
}

pub(crate) async fn set(session: &CliSession<'_>, arguments: &SetArgs) -> Result<(), CliError> {
    let SetCommand::Image {
        words,
        namespace,
        waiting,
    } = &arguments.command;
    let mut words = words.clone();
    let last = words.pop().unwrap_or_default();
    let Some((name, image)) = last.split_once('=') else {
        return Err(CliError::usage(format!(
            "found `{}`, expected a workload and its image",
            output::plain(&last)
        ))
        .hinted("such as `katcall set image web=registry.example/web:2`"));
    };
    words.push(name.to_owned());
    let which = WorkloadNameArgs {
        words,
        namespace: namespace.clone(),
    };
    let named = which.named()?;
    let WorkloadName { namespace, name } = &named;
    let answer = session.client.set_image(namespace, name, image).await;
    let result = accepted(session, answer, &named).await?;
    let said = match result.outcome {
        WriteOutcome::Unchanged => "unchanged: it has this image already".to_owned(),
        _ => format!("image set, as generation {}", result.metadata.generation),
    };
    finish(session, named, result, &said, waiting).await
}

pub(crate) async fn rollout(
    session: &CliSession<'_>,
    arguments: &RolloutArgs,
) -> Result<(), CliError> {
    match &arguments.command {
        RolloutCommand::Status { which, waiting } => status(session, which, waiting).await,
        RolloutCommand::Pause { which } => {
            let named = which.named()?;
            let said = "paused; `katcall rollout resume` continues it";
            set_paused(session, named, (true, said), None).await
        }
        RolloutCommand::Resume { which, waiting } => {
            let named = which.named()?;
            set_paused(session, named, (false, "resumed"), Some(waiting)).await
        }
    }
}

async fn set_paused(
    session: &CliSession<'_>,
    named: WorkloadName,
    (paused, said): (bool, &str),
    waiting: Option<&RolloutWaitArgs>,
) -> Result<(), CliError> {
    let WorkloadName { namespace, name } = &named;
    let answer = session.client.pause_rollout(namespace, name, paused).await;
    let result = accepted(session, answer, &named).await?;
    let said = match (result.outcome, paused) {
        (WriteOutcome::Unchanged, true) => "unchanged: it is paused already",
        (WriteOutcome::Unchanged, false) => "unchanged: it is not paused",
        _ => said,
    };
    match waiting {
        Some(waiting) => finish(session, named, result, said, waiting).await,
        None => session.console.line(&format!("workload/{name} {said}")),
    }
}

/// Prints the progress in one line; an error where the rollout has stalled.
async fn status(
    session: &CliSession<'_>,
    which: &WorkloadNameArgs,
    waiting: &RolloutWaitArgs,
) -> Result<(), CliError> {
    let named = which.named()?;
    let WorkloadName { namespace, name } = &named;
    let item = match session.client.workload(namespace, name).await {
        Ok(item) => item,
        Err(error) => {
            let scope = Some(namespace.as_str());
            return Err(get::missing::<WorkloadItem>(session, error, scope, name).await);
        }
    };
    if waiting.wait {
        let target = AwaitedWorkload {
            uid: item.metadata.uid,
            generation: item.metadata.generation,
            namespace: named.namespace,
            name: named.name,
        };
        return wait::until_running(session, target, Instant::now(), waiting.timeout).await;
    }
    let status = &item.status;
    let condition = status.conditions.first();
    let message = condition
        .map(|one| output::plain(&one.message))
        .unwrap_or_default();
    let line = format!(
        "workload/{name} generation {}: {}: {message}",
        item.metadata.generation,
        word(&status.phase)
    );
    session.console.line(&line)?;
    for other in status.conditions.iter().skip(1) {
        let message = output::plain(&other.message);
        session
            .console
            .note(&format!("  {}: {message}", other.kind));
    }
    if status.paused && status.phase != WorkloadPhase::Paused {
        session
            .console
            .note("  its rollouts are paused: a new version would wait");
    }
    match status.phase {
        WorkloadPhase::Stalled => {
            let hint = if has_earlier_good(&item) {
                format!(
                    "`katcall rollback workload {namespace}/{name}` goes back to the last good generation"
                )
            } else {
                format!("`katcall why workload {name} -n {namespace}` says why")
            };
            Err(CliError::failed(format!("workload `{name}` has stalled")).hinted(hint))
        }
        _ => Ok(()),
    }
}

/// Whether there is an earlier good generation to roll back to.
pub(crate) fn has_earlier_good(item: &WorkloadItem) -> bool {
    let good = item.status.last_good_generation;
    good.is_some_and(|good| good < item.metadata.generation)
}

pub(crate) async fn history(
    session: &CliSession<'_>,
    arguments: &HistoryArgs,
) -> Result<(), CliError> {
    let named = arguments.which.named()?;
    let WorkloadName { namespace, name } = &named;
    let list = match session.client.generations(namespace, name).await {
        Ok(list) => list,
        Err(error) => {
            let scope = Some(namespace.as_str());
            return Err(get::missing::<WorkloadItem>(session, error, scope, name).await);
        }
    };
    let console = session.console;
    if let Some(format) = arguments.output {
        return output::document(console, format, &list);
    }
    let mut table = Table::new(vec![
        "GENERATION",
        "APPLIED",
        "BY",
        "CHANGE",
        "REPLICAS",
        "GOOD",
        "IMAGE",
    ]);
    for one in &list.items {
        table.row(vec![
            Cell::new(match one.current {
                true => format!("{} (current)", one.generation),
                false => one.generation.to_string(),
            }),
            Cell::new(time::to_the_second(one.applied)),
            Cell::new(who(one)),
            Cell::new(change(one)),
            Cell::new(one.replicas.to_string()),
            // One that was overtaken before it was healthy is not known to be bad.
            Cell::new(if one.good { "yes" } else { "" }),
            Cell::new(short_image(&one.image)),
        ]);
    }
    console.print(&table.within(console.width).render(console.colour))
}

/// Who asked for a generation: the name of a token or certificate, an id where there is no name.
fn who(one: &GenerationView) -> &str {
    if !one.by_name.is_empty() {
        return &one.by_name;
    }
    &one.by
}

fn change(one: &GenerationView) -> String {
    let of = one.of.map_or_else(String::new, |of| format!(" to {of}"));
    match one.origin {
        Some(Origin::Applied) => "applied".to_owned(),
        Some(Origin::RolledBack) => format!("rolled back{of}"),
        Some(Origin::RolledBackItself) => format!("went back{of}"),
        Some(Origin::Scaled) => "scaled".to_owned(),
        Some(Origin::Restarted) => "restarted".to_owned(),
        Some(Origin::ImageSet) => "image set".to_owned(),
        Some(Origin::SecretChanged) => "secret changed".to_owned(),
        None => String::new(),
    }
}

/// For a missing workload the error names similar ones; other errors stay unchanged.
async fn accepted(
    session: &CliSession<'_>,
    answer: Result<ApplyResult, ClientError>,
    named: &WorkloadName,
) -> Result<ApplyResult, CliError> {
    let WorkloadName { namespace, name } = named;
    match answer {
        Err(error) if error.is_not_found() && !error.to_string().contains("no generation ") => {
            let scope = Some(namespace.as_str());
            Err(get::missing::<WorkloadItem>(session, error, scope, name).await)
        }
        other => Ok(other?),
    }
}

/// Prints the result, and waits if requested.
async fn finish(
    session: &CliSession<'_>,
    named: WorkloadName,
    result: ApplyResult,
    said: &str,
    waiting: &RolloutWaitArgs,
) -> Result<(), CliError> {
    let WorkloadName { namespace, name } = named;
    session.console.line(&format!("workload/{name} {said}"))?;
    session.console.warnings(&result.warnings);
    if !waiting.wait {
        return Ok(());
    }
    let target = AwaitedWorkload {
        namespace,
        name,
        uid: result.metadata.uid,
        generation: result.metadata.generation,
    };
    wait::until_running(session, target, Instant::now(), waiting.timeout).await
}
