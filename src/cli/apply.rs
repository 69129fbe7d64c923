//! `katcall apply`.

pub(super) mod local;

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Session,
    args::Apply,
    console::Console,
    errors::CliError,
    output,
    wait::{self, Target},
};
use crate::api::{client::ClientError, types::ApplyResult};
use local::{Content, Prepared, Purpose};

pub(super) async fn run<'run>(
    session: &impl Fn() -> Result<Session<'run>, CliError>,
    console: &Console,
    arguments: &Apply,
) -> Result<(), CliError> {
    // All folders are read before anything is sent.
    let prepared = local::prepare_all(&arguments.files, Purpose::Apply, console.error_colour)?;
    let session = session()?;
    let mut targets = Vec::new();
    for folder in &prepared {
        for content in &folder.contents {
            let result = send(&session, folder, content, arguments.dry_run)
                .await
                .map_err(|error| explain(error, folder, console))?;
            let remark = if arguments.dry_run { " (dry run)" } else { "" };
            console.line(&format!(
                "{}/{} {}{remark}",
                result.kind.to_lowercase(),
                output::plain(&result.metadata.name),
                output::plain(&result.outcome)
            ))?;
            if let Content::Workload { namespace, .. } = content {
                targets.push(Target {
                    namespace: namespace.clone(),
                    name: result.metadata.name,
                    uid: result.metadata.uid,
                    generation: result.metadata.generation,
                });
            }
        }
    }
    if arguments.wait {
        wait_for_all(&session, targets, arguments.timeout).await?;
    }
    Ok(())
}

/// One beginning and one deadline for all of them.
async fn wait_for_all(
    session: &Session<'_>,
    targets: Vec<Target>,
    timeout: Duration,
) -> Result<(), CliError> {
    let started = Instant::now();
    for target in targets {
        wait::until_running(session, target, started, timeout).await?;
    }
    Ok(())
}

async fn send(
    session: &Session<'_>,
    folder: &Prepared,
    content: &Content,
    dry_run: bool,
) -> Result<ApplyResult, CliError> {
    let client = &session.client;
    Ok(match content {
        Content::Namespace(namespace) => client.create_namespace(namespace, dry_run).await?,
        Content::Workload { namespace, name } => {
            let archive = folder.archive.clone();
            let applied = client.apply(namespace, name, archive, dry_run, None);
            applied.await?.result
        }
    })
}

/// Shows the server's mistakes at their place in the files.
fn explain(error: CliError, folder: &Prepared, console: &Console) -> CliError {
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
    local::mistakes(&excerpts, &format!("`{}`", folder.path))
}
