//! `katcall plan` and `katcall apply --dry-run`: shows the changes of an apply without making them.

mod show;

use super::apply::{
    explain,
    local::{FolderObject, FolderUse, PreparedFolder, prepare_all},
    prune, send,
};
use crate::{
    CliSession,
    args::{DocumentFormat, PlanArgs, PruneArgs},
    console::Console,
    errors::CliError,
    output,
    output::json::PrintedItems,
};
use kat_types::api::{ApplyResult, WriteOutcome};

/// Exit code where there are changes.
pub(crate) const CHANGES: u8 = 10;

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    console: &Console,
    arguments: &PlanArgs,
) -> Result<u8, CliError> {
    let paths = arguments.folders.paths();
    let folders = prepare_all(&paths, FolderUse::Apply, console.error_colour)?;
    print_plan(&session()?, &folders, &arguments.prune, arguments.output).await
}

/// Prints the changes of these folders; the exit code tells whether there are any.
pub(crate) async fn print_plan(
    session: &CliSession<'_>,
    folders: &[PreparedFolder],
    prune: &PruneArgs,
    output: Option<DocumentFormat>,
) -> Result<u8, CliError> {
    let console = session.console;
    let mut results: Vec<ApplyResult> = Vec::new();
    for folder in folders {
        for content in &folder.contents {
            let result = send(session, folder, content, true)
                .await
                .map_err(|error| explain(error, folder, console))?;
            if output.is_none() {
                let workload = matches!(content, FolderObject::Workload { .. });
                console.print(&show::changes_of_item(&result, workload, console.colour))?;
                console.warnings(&result.warnings);
            }
            results.push(result);
        }
    }
    for item in prune::surplus(session, folders, prune).await? {
        if output.is_none() {
            console.print(&show::surplus(&prune::name(&item), console.colour))?;
        }
        results.push(ApplyResult {
            outcome: WriteOutcome::Deleted,
            kind: item.kind,
            metadata: item.metadata,
            preview: None,
            warnings: Vec::new(),
        });
    }
    match output {
        Some(format) => output::document(console, format, &PrintedItems { items: &results })?,
        None => console.line(&show::summary(&results))?,
    }
    let same = results
        .iter()
        .all(|result| result.outcome == WriteOutcome::Unchanged);
    Ok(if same { 0 } else { CHANGES })
}
