//! The instance that a command uses: a named one, or a running one of a workload.

use super::{CliSession, errors::CliError, references::Reference};
use kat_bundle::nearest_name;
use kat_types::{
    api::{InstanceItem, InstancePhase},
    resource::named_kind::NamedKind,
};

/// One instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceRef {
    pub(super) namespace: String,
    pub(super) workload: String,
    pub(super) id: String,
}

/// Finds the instance; of a workload's instances the one that has run longest, so that repeated
/// calls find the same one.
///
/// A reference with a kind means an object of that kind alone.
pub(super) async fn find(
    session: &CliSession<'_>,
    object: &Reference,
) -> Result<InstanceRef, CliError> {
    let Reference {
        kind,
        namespace,
        name,
        ..
    } = object;
    let is_instance = *kind != Some(NamedKind::Workload);
    let is_workload = *kind != Some(NamedKind::Instance);
    let items = session.client.instances(Some(namespace)).await?.items;
    let target = |item: &InstanceItem| InstanceRef {
        namespace: namespace.clone(),
        workload: item.status.workload.clone(),
        id: item.metadata.name.clone(),
    };
    if let Some(item) = items
        .iter()
        .find(|item| is_instance && item.metadata.name == *name)
    {
        return Ok(target(item));
    }
    let of_workload = |item: &&InstanceItem| is_workload && item.status.workload == *name;
    let mut running: Vec<&InstanceItem> = items
        .iter()
        .filter(of_workload)
        .filter(|item| item.status.phase == InstancePhase::Running)
        .collect();
    running.sort_by_key(|item| (&item.metadata.creation_timestamp, &item.metadata.name));
    if let Some(first) = running.first() {
        if running.len() > 1 {
            session.console.note(&format!(
                "`{name}` has {} instances that run; this is `{}`",
                running.len(),
                first.metadata.name
            ));
        }
        return Ok(target(first));
    }
    if items.iter().any(|item| of_workload(&item)) {
        return Err(
            CliError::failed(format!("no instance of workload `{name}` runs")).hinted(format!(
                "`katcall describe workload {name} -n {namespace}` says why"
            )),
        );
    }
    let names = items
        .iter()
        .flat_map(|item| [item.metadata.name.as_str(), item.status.workload.as_str()]);
    let near = nearest_name(name, names).map(ToOwned::to_owned);
    let error = CliError::not_found(format!(
        "there is no workload or instance `{name}` with something that runs in namespace `{namespace}`"
    ));
    Err(match near {
        Some(near) => error.hinted(format!("did you mean `{near}`?")),
        None => error,
    })
}
