//! `katcall rollback`, `history`, `rollout`, `restart`, `scale`, `stop`, `start` and `set image`.

mod args;

use std::fmt;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    CliSession,
    args::NamespaceOption,
    commands::{changing::select, reading::get},
    errors::CliError,
    output,
    output::{
        short_image,
        table::{Cell, Table},
        word,
    },
    references::{self, Reference, WORKLOADS},
    time, wait,
    wait::AwaitedWorkload,
};
use args::{
    RolloutCommand, RolloutWaitArgs, SetCommand, WorkloadNameArgs, WorkloadNamesArgs,
    WorkloadSelectionArgs,
};
use kat_client::ClientError;
use kat_types::{
    api::{ApplyResult, GenerationView, Origin, WorkloadItem, WorkloadPhase, WriteOutcome},
    resource::named_kind::NamedKind,
};

pub(crate) use args::{
    HistoryArgs, RestartArgs, RollbackArgs, RolloutArgs, ScaleArgs, SetArgs, StartArgs, StopArgs,
};

impl WorkloadNameArgs {
    fn named(&self) -> Result<Reference, CliError> {
        let named = references::objects(&self.words, WORKLOADS, &self.namespace)?;
        match <[Reference; 1]>::try_from(named) {
            Ok([only]) => Ok(only),
            Err(_) => Err(CliError::usage("this command is for one workload")),
        }
    }
}

impl WorkloadNamesArgs {
    fn named(&self) -> Result<Vec<Reference>, CliError> {
        references::objects(&self.words, WORKLOADS, &self.namespace)
    }
}

impl WorkloadSelectionArgs {
    async fn named(&self, session: &CliSession<'_>) -> Result<Vec<Reference>, CliError> {
        select::named_or_labelled(session, &self.words, &self.selector, &self.namespace).await
    }
}

pub(crate) async fn rollback(
    session: &CliSession<'_>,
    arguments: &RollbackArgs,
) -> Result<(), CliError> {
    let named = arguments.which.named()?;
    if arguments.to.is_some() && named.len() > 1 {
        return Err(CliError::usage("`--to` is the generation of one workload")
            .hinted("without it each goes back to its last healthy generation"));
    }
    references::for_each(session.console, &named, async |named| {
        let Reference {
            namespace, name, ..
        } = named;
        let answer = session
            .client
            .roll_back(namespace, name, arguments.to)
            .await;
        let result = accepted(session, answer, named).await?;
        let said = match result.outcome {
            WriteOutcome::Unchanged => "unchanged: it has this content already".to_owned(),
            _ => format!("rolled back, as generation {}", result.metadata.generation),
        };
        finish(session, named, result, &said, &arguments.waiting).await
    })
    .await
}

pub(crate) async fn restart(
    session: &CliSession<'_>,
    arguments: &RestartArgs,
) -> Result<(), CliError> {
    let named = arguments.which.named(session).await?;
    references::for_each(session.console, &named, async |named| {
        let Reference {
            namespace, name, ..
        } = named;
        let now = Timestamp::now().into();
        let answer = session.client.restart(namespace, name, now).await;
        let result = accepted(session, answer, named).await?;
        let said = format!("restarting, as generation {}", result.metadata.generation);
        finish(session, named, result, &said, &arguments.waiting).await
    })
    .await
}

pub(crate) async fn scale(session: &CliSession<'_>, arguments: &ScaleArgs) -> Result<(), CliError> {
    let named = arguments.which.named(session).await?;
    let replicas = arguments.replicas;
    references::for_each(session.console, &named, async |named| {
        let Reference {
            namespace, name, ..
        } = named;
        let answer = session.client.scale(namespace, name, replicas).await;
        let result = accepted(session, answer, named).await?;
        let said = match result.outcome {
            WriteOutcome::Unchanged => format!("unchanged: it has {replicas} replicas already"),
            _ => format!(
                "scaled to {replicas}, as generation {}",
                result.metadata.generation
            ),
        };
        finish(session, named, result, &said, &arguments.waiting).await
    })
    .await
}

pub(crate) async fn stop(session: &CliSession<'_>, arguments: &StopArgs) -> Result<(), CliError> {
    let named = arguments.which.named(session).await?;
    references::for_each(session.console, &named, async |named| {
        let Reference {
            namespace, name, ..
        } = named;
        let answer = session.client.stop_workload(namespace, name, true).await;
        let result = accepted(session, answer, named).await?;
        let said = match result.outcome {
            WriteOutcome::Unchanged => "unchanged: it has 0 replicas already".to_owned(),
            _ => format!(
                "stopping, as generation {}; `katcall start` starts it",
                result.metadata.generation
            ),
        };
        finish(session, named, result, &said, &arguments.waiting()).await
    })
    .await
}

pub(crate) async fn start(session: &CliSession<'_>, arguments: &StartArgs) -> Result<(), CliError> {
    let named = arguments.which.named(session).await?;
    references::for_each(session.console, &named, async |named| {
        let Reference {
            namespace, name, ..
        } = named;
        let answer = session.client.stop_workload(namespace, name, false).await;
        let result = accepted(session, answer, named).await?;
        let said = match result.outcome {
            WriteOutcome::Unchanged => "unchanged: it is not stopped".to_owned(),
            _ => format!("starting, as generation {}", result.metadata.generation),
        };
        finish(session, named, result, &said, &arguments.waiting).await
    })
    .await
}

/// A workload and its new image.
struct NewImage {
    workload: Reference,
    image: String,
}

impl fmt::Display for NewImage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.workload, formatter)
    }
}

/// Parses `[workload] [NAMESPACE/]NAME=IMAGE...`.
fn new_images(words: &[String], option: &NamespaceOption) -> Result<Vec<NewImage>, CliError> {
    let words = match words {
        [kind, rest @ ..] if !rest.is_empty() && !kind.contains('=') => {
            if NamedKind::of_word(kind) != Some(NamedKind::Workload) {
                return Err(not_an_image(kind));
            }
            rest
        }
        words => words,
    };
    let parse = |word: &String| {
        let (name, image) = word.split_once('=').ok_or_else(|| not_an_image(word))?;
        Ok(NewImage {
            workload: references::one(name, WORKLOADS, option)?,
            image: image.to_owned(),
        })
    };
    words.iter().map(parse).collect()
}

fn not_an_image(word: &str) -> CliError {
    CliError::usage(format!(
        "found `{}`, expected a workload and its image",
        output::plain(word)
    ))
    .hinted("such as `katcall set image web=registry.example/web:2`")
}

pub(crate) async fn set(session: &CliSession<'_>, arguments: &SetArgs) -> Result<(), CliError> {
    let SetCommand::Image {
        words,
        namespace,
        waiting,
    } = &arguments.command;
    let images = new_images(words, namespace)?;
    references::for_each(session.console, &images, async |one| {
        let NewImage { workload, image } = one;
        let Reference {
            namespace, name, ..
        } = workload;
        let answer = session.client.set_image(namespace, name, image).await;
        let result = accepted(session, answer, workload).await?;
        let said = match result.outcome {
            WriteOutcome::Unchanged => "unchanged: it has this image already".to_owned(),
            _ => format!("image set, as generation {}", result.metadata.generation),
        };
        finish(session, workload, result, &said, waiting).await
    })
    .await
}

pub(crate) async fn rollout(
    session: &CliSession<'_>,
    arguments: &RolloutArgs,
) -> Result<(), CliError> {
    let console = session.console;
    match &arguments.command {
        RolloutCommand::Status { which, waiting } => {
            let named = which.named()?;
            references::for_each(console, &named, async |named| {
                status(session, named, waiting).await
            })
            .await
        }
        RolloutCommand::Restart(arguments) => restart(session, arguments).await,
        RolloutCommand::Undo(arguments) => rollback(session, arguments).await,
        RolloutCommand::Pause { which } => {
            let named = which.named()?;
            let said = "paused; `katcall rollout resume` continues it";
            references::for_each(console, &named, async |named| {
                set_paused(session, named, (true, said), None).await
            })
            .await
        }
        RolloutCommand::Resume { which, waiting } => {
            let named = which.named()?;
            references::for_each(console, &named, async |named| {
                set_paused(session, named, (false, "resumed"), Some(waiting)).await
            })
            .await
        }
    }
}

async fn set_paused(
    session: &CliSession<'_>,
    named: &Reference,
    (paused, said): (bool, &str),
    waiting: Option<&RolloutWaitArgs>,
) -> Result<(), CliError> {
    let Reference {
        namespace, name, ..
    } = named;
    let answer = session.client.pause_rollout(namespace, name, paused).await;
    let result = accepted(session, answer, named).await?;
    let said = match (result.outcome, paused) {
        (WriteOutcome::Unchanged, true) => "unchanged: it is paused already",
        (WriteOutcome::Unchanged, false) => "unchanged: it is not paused",
        _ => said,
    };
    match waiting {
        Some(waiting) => finish(session, named, result, said, waiting).await,
        None => session.console.sentence(&format!("workload/{name} {said}")),
    }
}

/// Prints the progress in one line; an error where the rollout has stalled.
async fn status(
    session: &CliSession<'_>,
    named: &Reference,
    waiting: &RolloutWaitArgs,
) -> Result<(), CliError> {
    let Reference {
        namespace, name, ..
    } = named;
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
            namespace: namespace.clone(),
            name: name.clone(),
        };
        return wait::until_running(session, target, Instant::now(), waiting.timeout).await;
    }
    let status = &item.status;
    let condition = status.conditions.first();
    let message = condition
        .map(|one| output::plain(&one.message))
        .unwrap_or_default();
    let line = format!(
        "workload/{name} generation {}: {}: {message}\n",
        item.metadata.generation,
        word(&status.phase)
    );
    let console = session.console;
    console.print(&output::wrapped(&line, console.width))?;
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
    let Reference {
        namespace, name, ..
    } = &named;
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
    let mut table =
        Table::new(vec!["GENERATION", "APPLIED", "BY", "CHANGE", "IMAGE"]).with_optional(&["BY"]);
    for one in &list.items {
        table.row(vec![
            Cell::new(match (one.current, one.good) {
                (true, _) => format!("{} (current)", one.generation),
                (false, true) => format!("{} (good)", one.generation),
                // One that was overtaken before it was healthy is not known to be bad.
                (false, false) => one.generation.to_string(),
            }),
            Cell::new(time::to_the_second(one.applied)),
            Cell::new(who(one)),
            Cell::new(change(one)),
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
        Some(Origin::Scaled) => format!("scaled to {}", one.replicas),
        Some(Origin::Restarted) => "restarted".to_owned(),
        Some(Origin::ImageSet) => "image set".to_owned(),
        Some(Origin::SecretChanged) => "secret changed".to_owned(),
        Some(Origin::Stopped) => "stopped".to_owned(),
        Some(Origin::Started) => format!("started with {}", one.replicas),
        None => String::new(),
    }
}

/// For a missing workload the error names similar ones; other errors stay unchanged.
async fn accepted(
    session: &CliSession<'_>,
    answer: Result<ApplyResult, ClientError>,
    named: &Reference,
) -> Result<ApplyResult, CliError> {
    let Reference {
        namespace, name, ..
    } = named;
    let is_missing = |error: &ClientError| {
        let other = error.is_unknown_request() || error.to_string().contains("no generation ");
        error.is_not_found() && !other
    };
    match answer {
        Err(error) if is_missing(&error) => {
            let scope = Some(namespace.as_str());
            Err(get::missing::<WorkloadItem>(session, error, scope, name).await)
        }
        other => Ok(other?),
    }
}

/// Prints the result, and waits if requested.
async fn finish(
    session: &CliSession<'_>,
    named: &Reference,
    result: ApplyResult,
    said: &str,
    waiting: &RolloutWaitArgs,
) -> Result<(), CliError> {
    let Reference {
        namespace, name, ..
    } = named;
    session
        .console
        .sentence(&format!("workload/{name} {said}"))?;
    session.console.warnings(&result.warnings);
    if !waiting.wait {
        return Ok(());
    }
    let target = AwaitedWorkload {
        namespace: namespace.clone(),
        name: name.clone(),
        uid: result.metadata.uid,
        generation: result.metadata.generation,
    };
    wait::until_running(session, target, Instant::now(), waiting.timeout).await
}
