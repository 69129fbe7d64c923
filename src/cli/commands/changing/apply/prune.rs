//! `--prune -l LABEL`: deletes workloads that have the labels and are in no folder.

use std::collections::BTreeSet;

use super::local::{FolderObject, PreparedFolder};
use crate::{CliSession, args::PruneArgs, confirm, errors::CliError, output::plain};
use kat_bundle::{check_label_key, check_label_value};
use kat_types::api::WorkloadItem;

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelRequirement {
    key: String,
    /// `None` accepts any value.
    value: Option<String>,
}

/// Parses `key` or `key=value`.
pub(crate) fn parse(text: &str) -> Result<LabelRequirement, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    check_label_key(key)?;
    value.map_or(Ok(()), check_label_value)?;
    Ok(LabelRequirement {
        key: key.to_owned(),
        value: value.map(str::to_owned),
    })
}

impl LabelRequirement {
    fn holds(&self, item: &WorkloadItem) -> bool {
        let found = item.metadata.labels.get(&self.key);
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| value == found))
    }
}

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
            FolderObject::Namespace(_) => None,
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
                && prune.labels.iter().all(|label| label.holds(item))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_asked_for_by_key_or_with_their_value() {
        let mut item: WorkloadItem = serde_json::from_value(serde_json::json!({
            "kind": "Workload", "metadata": {"name": "web"}, "status": {},
            "spec": {"type": "Service", "source": {}, "restartPolicy": {"condition": "Always"}, "container": {}},
        }))
        .unwrap();
        item.metadata.labels = [("app".to_owned(), "shop".to_owned())].into();
        let holds = |text: &str| parse(text).unwrap().holds(&item);
        assert!(holds("app") && holds("app=shop"));
        assert!(!holds("app=other") && !holds("team"));
        assert!(parse("a b").is_err() && parse("").is_err());
    }
}
