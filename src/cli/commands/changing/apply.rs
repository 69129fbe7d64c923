//! `katcall apply`.

mod expand;
pub(crate) mod local;
pub(crate) mod prune;
mod start_order;

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::plan;
use crate::{
    CliSession,
    args::{ApplyArgs, DryRun},
    console::Console,
    errors::CliError,
    output, volumes,
    volumes::PresentVolumes,
    wait,
    wait::AwaitedWorkload,
};
use kat_bundle::Class;
use kat_client::{ClientError, Deletion};
use kat_types::{
    api::{ApplyResult, WorkloadItem, WriteOutcome},
    store::ingress::OutsideRoute,
};
use local::{FolderObject, FolderUse, PreparedFolder};

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    console: &Console,
    arguments: &ApplyArgs,
) -> Result<u8, CliError> {
    // All folders are read before any request is sent.
    let paths = arguments.folders.paths();
    let prepared = local::prepare_all(&paths, FolderUse::Apply, console.error_colour)?;
    match arguments.dry_run {
        Some(DryRun::Server) => {
            let session = session()?;
            return plan::print_plan(&session, &prepared, &arguments.prune, plan::PlanView::Short)
                .await;
        }
        Some(DryRun::Client) => return checked(console, &prepared),
        None => {}
    }
    let session = session()?;
    let surplus = prune::surplus(&session, &prepared, &arguments.prune).await?;
    prune::confirm(&session, &surplus, &arguments.prune)?;
    let mut targets = Vec::new();
    let mut done = ApplyCounts::default();
    for folder in &prepared {
        for content in &folder.contents {
            let result = match send(&session, folder, content, false).await {
                Ok(result) => result,
                Err(error) => {
                    done.print_summary(console);
                    return Err(explain(error, folder, console));
                }
            };
            console.line(&format!(
                "{}/{} {}",
                result.kind.to_lowercase(),
                output::plain(&result.metadata.name),
                result.outcome
            ))?;
            console.warnings(&result.warnings);
            if let FolderObject::Workload { namespace, .. } = content {
                done.count(result.outcome);
                targets.push(AwaitedWorkload {
                    namespace: namespace.clone(),
                    name: result.metadata.name,
                    uid: result.metadata.uid,
                    generation: result.metadata.generation,
                });
            }
        }
    }
    let gone = delete(&session, surplus, &mut done).await?;
    done.print_summary(console);
    if arguments.wait {
        let started = Instant::now();
        wait_for_all(&session, targets, started, arguments.timeout).await?;
        for target in &gone {
            wait::until_gone(&session, target, started + arguments.timeout).await?;
        }
    }
    Ok(0)
}

/// Deletes the workloads that are in no folder; their instances end some time later.
async fn delete(
    session: &CliSession<'_>,
    surplus: Vec<WorkloadItem>,
    done: &mut ApplyCounts,
) -> Result<Vec<AwaitedWorkload>, CliError> {
    let mut gone = Vec::new();
    let namespaces = surplus
        .iter()
        .filter_map(|item| item.metadata.namespace.as_deref());
    // The note about kept data is left out if the volumes can't be read.
    let present = PresentVolumes::of(session, namespaces)
        .await
        .unwrap_or_default();
    for item in surplus {
        let metadata = item.metadata;
        let namespace = metadata.namespace.unwrap_or_default();
        match session
            .client
            .delete_workload(&namespace, &metadata.name, Deletion::default())
            .await
        {
            Ok(()) => {}
            // Another client has deleted it already.
            Err(error) if error.is_not_found() => continue,
            Err(error) => {
                done.print_summary(session.console);
                return Err(error.into());
            }
        }
        let name = output::plain(&metadata.name);
        session
            .console
            .line(&format!("workload/{name} {}", WriteOutcome::Deleting))?;
        volumes::say_kept(
            session.console,
            present.of_workload(&namespace, &metadata.name),
        );
        done.count(WriteOutcome::Deleting);
        gone.push(AwaitedWorkload {
            namespace,
            name: metadata.name,
            uid: metadata.uid,
            generation: 0,
        });
    }
    Ok(gone)
}

/// Number of workloads by outcome.
#[derive(Debug, Default)]
struct ApplyCounts {
    workloads: BTreeMap<&'static str, usize>,
}

impl ApplyCounts {
    fn count(&mut self, outcome: WriteOutcome) {
        *self.workloads.entry(outcome.word()).or_default() += 1;
    }

    /// Prints a summary line if there was more than one workload.
    fn print_summary(&self, console: &Console) {
        let all: usize = self.workloads.values().sum();
        if all > 1 {
            let parts = self.workloads.iter();
            let parts: Vec<String> = parts
                .map(|(outcome, count)| format!("{count} {outcome}"))
                .collect();
            console.note(&format!("{all} workloads: {}", parts.join(", ")));
        }
    }
}

/// Prints the result of the checks that need no cluster.
fn checked(console: &Console, folders: &[PreparedFolder]) -> Result<u8, CliError> {
    for content in folders.iter().flat_map(|folder| &folder.contents) {
        let (kind, name) = match content {
            FolderObject::Namespace(namespace) => ("namespace", namespace.metadata.name.clone()),
            FolderObject::Route(route) => {
                let name = OutsideRoute::name(&route.spec.host, &route.spec.path);
                ("route", name)
            }
            FolderObject::Workload { name, .. } => ("workload", name.clone()),
        };
        console.line(&format!("{kind}/{name} is valid"))?;
    }
    Ok(0)
}

/// Waits for all targets with one start time and one deadline.
async fn wait_for_all(
    session: &CliSession<'_>,
    targets: Vec<AwaitedWorkload>,
    started: Instant,
    timeout: Duration,
) -> Result<(), CliError> {
    for target in targets {
        wait::until_running(session, target.clone(), started, timeout).await?;
        wait::until_certificates(session, &target, started, timeout).await?;
    }
    Ok(())
}

pub(crate) async fn send(
    session: &CliSession<'_>,
    folder: &PreparedFolder,
    content: &FolderObject,
    dry_run: bool,
) -> Result<ApplyResult, CliError> {
    let client = &session.client;
    Ok(match content {
        FolderObject::Namespace(namespace) => client.create_namespace(namespace, dry_run).await?,
        FolderObject::Route(route) => client.put_route(route, dry_run).await?,
        FolderObject::Workload { namespace, name } => {
            let archive = folder.archive.clone();
            let applied = client.apply(namespace, name, archive, dry_run, None);
            applied.await?.result
        }
    })
}

/// Shows mistakes that the server found at their place in the files.
pub(crate) fn explain(error: CliError, folder: &PreparedFolder, console: &Console) -> CliError {
    let CliError::Client(ClientError::Refused(refusal)) = error else {
        return error;
    };
    let details = &refusal.body.details;
    if details.is_empty() {
        return CliError::Client(ClientError::Refused(refusal));
    }
    let colour = console.error_colour;
    let excerpts: Vec<String> = details
        .iter()
        .map(|detail| local::excerpt(detail, &folder.path, &folder.sources, colour))
        .collect();
    // katcall has read the files itself before, as strictly as a server of its own version does.
    let is_of_reader = |detail: &serde_json::Value| {
        let word = detail.get("class").and_then(serde_json::Value::as_str);
        let classes = [
            Class::Shape,
            Class::Type,
            Class::Unknown,
            Class::Missing,
            Class::NotYet,
        ];
        classes.iter().any(|class| word == Some(class.as_str()))
    };
    let place = format!("`{}`", folder.path);
    match (
        details.iter().any(is_of_reader),
        local::mistakes(&excerpts, &place),
    ) {
        (true, CliError::Diagnostics { text, message }) => CliError::Diagnostics {
            text,
            message: format!(
                "{message}. This katcall reads the files, so the server runs another version of KAT: `katcall version` shows both"
            ),
        },
        (_, mistakes) => mistakes,
    }
}
