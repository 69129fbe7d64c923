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

/// How a plan is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanView {
    /// What changes: fields, files and instances.
    Short,
    /// The differences of units too.
    WithUnits,
    /// The cluster's whole response.
    Document(DocumentFormat),
}

/// Exit code where there are changes.
pub(crate) const CHANGES: u8 = 10;

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    console: &Console,
    arguments: &PlanArgs,
) -> Result<u8, CliError> {
    let paths = arguments.folders.paths();
    let folders = prepare_all(&paths, FolderUse::Apply, console.error_colour)?;
    let view = match arguments.output {
        Some(format) => PlanView::Document(format),
        None if arguments.units => PlanView::WithUnits,
        None => PlanView::Short,
    };
    print_plan(&session()?, &folders, &arguments.prune, view).await
}

/// Prints the changes of these folders; the exit code tells whether there are any.
pub(crate) async fn print_plan(
    session: &CliSession<'_>,
    folders: &[PreparedFolder],
    prune: &PruneArgs,
    view: PlanView,
) -> Result<u8, CliError> {
    let console = session.console;
    let mut results: Vec<ApplyResult> = Vec::new();
    for folder in folders {
        for content in &folder.contents {
            let result = send(session, folder, content, true)
                .await
                .map_err(|error| explain(error, folder, console))?;
            if let Some(units) = shows_units(view) {
                let workload = matches!(content, FolderObject::Workload { .. });
                console.print(&show::changes_of_item(&result, workload, units, console))?;
                console.warnings(&result.warnings);
            }
            results.push(result);
        }
    }
    for item in prune::surplus(session, folders, prune).await? {
        if shows_units(view).is_some() {
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
    match view {
        PlanView::Document(format) => {
            output::document(console, format, &PrintedItems { items: &results })?;
        }
        PlanView::Short | PlanView::WithUnits => console.line(&show::summary(&results))?,
    }
    let same = results
        .iter()
        .all(|result| result.outcome == WriteOutcome::Unchanged);
    Ok(if same { 0 } else { CHANGES })
}

/// Whether units are printed; `None` where no text for people is.
fn shows_units(view: PlanView) -> Option<show::Units> {
    match view {
        PlanView::Short => Some(show::Units::Counted),
        PlanView::WithUnits => Some(show::Units::Shown),
        PlanView::Document(_) => None,
    }
}
