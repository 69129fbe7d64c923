//! Names of volumes, and messages about data that is deleted or kept.

use std::collections::BTreeMap;

use super::{
    CliSession, confirm,
    console::Console,
    errors::CliError,
    output::{plain, word},
    references::Reference,
    time,
};
use kat_client::KeyedItem as _;
use kat_types::{
    api::{VolumeItem, VolumePhase, VolumeRemovalState},
    resource::ReclaimPolicy,
};

/// Most volumes that one line names.
const NAMED: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeName {
    pub(super) namespace: String,
    pub(super) workload: String,
    pub(super) name: String,
}

impl VolumeName {
    /// Such as `web/data`.
    pub(super) fn without_namespace(&self) -> String {
        format!("{}/{}", self.workload, self.name)
    }
}

/// The volume that a reference names. An error that lists volumes like it where the reference has
/// only the volume or only its workload.
pub(super) async fn named(
    session: &CliSession<'_>,
    reference: &Reference,
) -> Result<VolumeName, CliError> {
    let Some((workload, name)) = reference.name.split_once('/') else {
        return Err(half(session, &reference.namespace, &reference.name).await);
    };
    Ok(VolumeName {
        namespace: reference.namespace.clone(),
        workload: workload.to_owned(),
        name: name.to_owned(),
    })
}

/// The error for a name without its workload, or a workload without its volume.
async fn half(session: &CliSession<'_>, namespace: &str, text: &str) -> CliError {
    let found = session.client.volumes(Some(namespace)).await;
    let found = found.map(|list| list.items).unwrap_or_default();
    let is_meant = |item: &&VolumeItem| {
        let names = [&item.spec.workload, &item.spec.volume, &item.metadata.name];
        names.iter().any(|name| *name == text)
    };
    let meant: Vec<String> = found
        .iter()
        .filter(is_meant)
        .map(|item| format!("`{}`", plain(&item.key().1)))
        .collect();
    let hint = match meant.as_slice() {
        [] => "`katcall get volumes` lists them".to_owned(),
        [only] => format!("did you mean {only}?"),
        more => format!("it is one of {}", first_names(more)),
    };
    CliError::usage(format!(
        "`{text}` is not the name of a volume, which is WORKLOAD/VOLUME"
    ))
    .hinted(hint)
}

/// The machine with the data, `shared`, or empty.
pub(super) fn machine(item: &VolumeItem) -> &str {
    match &item.status.node {
        Some(node) => node,
        None if item.status.shared => "shared",
        None => "",
    }
}

/// The phase; for a moving volume also its destination and progress, and for one whose removal waits
/// for a missing disk the machine.
pub(super) fn state(item: &VolumeItem) -> String {
    let phase = word(&item.status.phase);
    let Some(moving) = &item.status.moving else {
        let mut removals = item.status.removals.iter();
        let missing = removals.find(|one| one.state == VolumeRemovalState::Missing);
        return match missing.filter(|_| item.status.phase == VolumePhase::Removing) {
            Some(removal) => plain(&format!("{phase} (not found on {})", removal.node)),
            None => phase,
        };
    };
    let share = match moving.total_bytes {
        0 => String::new(),
        total => {
            let share = moving.bytes.saturating_mul(100).checked_div(total);
            format!(" {}%", share.unwrap_or(0).min(100))
        }
    };
    plain(&format!(
        "{phase} to {} ({}{share})",
        moving.to,
        word(&moving.phase)
    ))
}

/// Copies from before a move: `n1 until 2026-01-02T03:04:05Z`; followed by `(not found)` where the
/// machine does not find the copy that it is to remove.
pub(super) fn kept_copies(item: &VolumeItem) -> String {
    let kept = item.status.kept.iter();
    let kept = kept.map(|copy| {
        let mut removals = item.status.removals.iter();
        let is_missing =
            removals.any(|one| one.node == copy.node && one.state == VolumeRemovalState::Missing);
        let missing = if is_missing { " (not found)" } else { "" };
        format!(
            "{} until {}{missing}",
            copy.node,
            time::to_the_second(copy.until)
        )
    });
    plain(&kept.collect::<Vec<_>>().join(", "))
}

/// Such as `shop/web/data on n1`.
fn name_and_machine(item: &VolumeItem) -> String {
    let (namespace, name) = item.key();
    let place = match &item.status.node {
        Some(node) => format!("on {node}"),
        None => "on shared storage".to_owned(),
    };
    plain(&format!("{namespace}/{name} {place}"))
}

/// The first names, and the number of the others.
fn first_names(all: &[String]) -> String {
    let shown = all.get(..NAMED).unwrap_or(all).join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Prints what happens to the data of volumes that are deleted, and asks for confirmation. Host
/// paths are not removed, so no confirmation is needed for them.
pub(super) fn confirm_removal<'item>(
    console: &Console,
    items: impl IntoIterator<Item = &'item VolumeItem>,
    yes: bool,
) -> Result<VolumeConfirmation, CliError> {
    let going = items
        .into_iter()
        .filter(|item| item.status.phase != VolumePhase::Removing);
    let (stay, go): (Vec<_>, Vec<_>) = going.partition(|item| item.spec.host_path.is_some());
    let list = |title: &str, items: &[&VolumeItem]| {
        if !items.is_empty() {
            console.note(title);
        }
        for item in items {
            let path = plain(&item.status.path);
            console.note(&format!("  volume {}: {path}", name_and_machine(item)));
        }
    };
    list("data that is to be removed for good:", &go);
    list(
        "places that are to be forgotten; the files there stay:",
        &stay,
    );
    if go.is_empty() || yes {
        return Ok(VolumeConfirmation::Nobody);
    }
    confirm::ask("remove it?")?;
    Ok(VolumeConfirmation::Somebody)
}

/// Whether the user has confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VolumeConfirmation {
    Nobody,
    Somebody,
}

/// The volumes of the namespaces in which objects are deleted.
#[derive(Debug, Default)]
pub(super) struct PresentVolumes(BTreeMap<String, Vec<VolumeItem>>);

impl PresentVolumes {
    /// Lists each namespace once.
    pub(super) async fn of<'name>(
        session: &CliSession<'_>,
        namespaces: impl IntoIterator<Item = &'name str>,
    ) -> Result<Self, CliError> {
        let mut present = Self::default();
        for namespace in namespaces {
            if present.0.contains_key(namespace) {
                continue;
            }
            let items = match session.client.volumes(Some(namespace)).await {
                Ok(list) => list.items,
                // The namespace is gone, or the cluster's version has no volumes yet.
                Err(error) if error.is_not_found() => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            present.0.insert(namespace.to_owned(), items);
        }
        Ok(present)
    }

    /// The volumes of one namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &VolumeItem> {
        self.0.get(namespace).into_iter().flatten()
    }

    /// The volumes of one workload.
    pub(super) fn of_workload(
        &self,
        namespace: &str,
        workload: &str,
    ) -> impl Iterator<Item = &VolumeItem> {
        self.in_namespace(namespace)
            .filter(move |item| item.spec.workload == workload)
    }
}

/// Prints which data is kept when a workload or namespace is deleted, and how to remove it.
pub(super) fn say_kept<'item>(
    console: &Console,
    items: impl IntoIterator<Item = &'item VolumeItem>,
) {
    let kept = items.into_iter().filter(|item| {
        let stays = match item.status.phase {
            VolumePhase::Removing => false,
            VolumePhase::Released | VolumePhase::Moving => true,
            VolumePhase::Pending | VolumePhase::Bound => item.spec.reclaim == ReclaimPolicy::Retain,
        };
        stays && item.spec.host_path.is_none()
    });
    let kept: Vec<&VolumeItem> = kept.collect();
    let Some(first) = kept.first() else {
        return;
    };
    let (namespace, name) = first.key();
    let command = plain(&format!("katcall delete volume {namespace}/{name}"));
    let places: Vec<String> = kept.iter().map(|item| name_and_machine(item)).collect();
    console.note(&match kept.len() {
        1 => format!(
            "the data of volume {} is kept; `{command}` removes it",
            first_names(&places)
        ),
        _ => format!(
            "the data of volumes {} is kept; `{command}` removes that of the first",
            first_names(&places)
        ),
    });
}

/// Prints which data is on a machine that has left the cluster.
pub(super) fn warn_left_behind(console: &Console, node: &str, items: &[VolumeItem]) {
    let here = |item: &&VolumeItem| item.status.node.as_deref() == Some(node);
    let left: Vec<String> = items
        .iter()
        .filter(here)
        .map(|item| {
            let (namespace, name) = item.key();
            plain(&format!("{namespace}/{name}"))
        })
        .collect();
    if left.is_empty() {
        return;
    }
    console.warning(&format!(
        "on {} lies the data of {}: {}; workloads that need it wait until the machine joins again, or `katcall delete volume` gives the data up",
        plain(node),
        match left.len() {
            1 => "a volume".to_owned(),
            count => format!("{count} volumes"),
        },
        first_names(&left)
    ));
}
