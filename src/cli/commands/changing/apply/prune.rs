//! `--prune -l LABEL`: deletes workloads that have the labels and are in no folder.

use std::collections::BTreeSet;

use super::local::{FolderObject, PreparedFolder};
use crate::{CliSession, args::PruneArgs, confirm, errors::CliError, output::plain};
use kat_types::api::WorkloadItem;

/// The workloads to delete, in the namespaces of the folders' workloads.
pub(crate) async fn surplus(
    session: &CliSession<'_>,
    folders: &[PreparedFolder],
    prune: &PruneArgs,
) -> Result<Vec<WorkloadItem>, CliError> {
    if !prune.prune {
        return Ok(Vec::new());
    }
    let kept: BTreeSet<(&str, &str)> = folders
        .iter()
        .flat_map(|folder| &folder.contents)
        .filter_map(|content| match content {
            FolderObject::Workload { namespace, name } => Some((namespace.as_str(), name.as_str())),
            FolderObject::Namespace(_) | FolderObject::Route(_) => None,
        })
        .collect();
    if kept.is_empty() {
        return Err(CliError::usage(
            "`--prune` needs a folder with a workload: it looks at the namespaces of those",
        ));
    }
    let namespaces: BTreeSet<&str> = kept.iter().map(|(namespace, _)| *namespace).collect();
    let mut surplus = Vec::new();
    for namespace in namespaces {
        let found = match session.client.workloads(Some(namespace)).await {
            Ok(list) => list.items,
            // One of the folders creates the namespace.
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error.into()),
        };
        surplus.extend(found.into_iter().filter(|item| {
            !kept.contains(&(namespace, item.metadata.name.as_str()))
                && prune
                    .labels
                    .iter()
                    .all(|label| label.holds(&item.metadata.labels))
        }));
    }
    Ok(surplus)
}

/// Lists the workloads to delete, and asks for confirmation. Without a terminal `--yes` is
/// required.
pub(crate) fn confirm(
    session: &CliSession<'_>,
    surplus: &[WorkloadItem],
    prune: &PruneArgs,
) -> Result<(), CliError> {
    if surplus.is_empty() {
        return Ok(());
    }
    let console = session.console;
    console.note("in no folder, and to be deleted:");
    for item in surplus {
        console.note(&format!("  workload {}", name(item)));
    }
    if prune.yes {
        return Ok(());
    }
    confirm::ask("delete them?")
}

/// Such as `shop/web`.
pub(crate) fn name(item: &WorkloadItem) -> String {
    let namespace = item.metadata.namespace.as_deref().unwrap_or_default();
    plain(&format!("{namespace}/{}", item.metadata.name))
}
