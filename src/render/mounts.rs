//! The mounts of an instance's volumes.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{RenderError, RenderSettings};
use kat_types::{
    assignment::{AssignedVolume, Assignment, bound_name, bound_place, sub_path_of},
    resource::VolumeMount,
};

/// A mount of a container.
#[derive(Debug, Serialize)]
pub(super) struct MountValues {
    /// Path on the machine; `None` for a volume in memory.
    source: Option<String>,
    target: String,
    /// `:ro`, or empty.
    options: &'static str,
}

/// The mounts in the order in which they are written.
pub(super) fn mounts_of(
    assignment: &Assignment,
    settings: &RenderSettings,
) -> Result<Vec<MountValues>, RenderError> {
    let normal = |path: &Path| path.components().collect::<PathBuf>().display().to_string();
    let mounts = assignment.container.volume_mounts.iter().map(|mount| {
        let whole = source_of(assignment, mount, settings);
        // Otherwise a program would write into its container, and lose the data with it.
        let whole = whole.ok_or_else(|| RenderError::Mount {
            instance: assignment.instance.clone(),
            volume: mount.name.clone(),
        })?;
        let source = whole.map(|whole| match &mount.sub_path {
            // The bind already leads to the sub path.
            Some(_) if is_host(assignment, mount) => whole,
            Some(inner) => whole.join(inner),
            None => whole,
        });
        Ok(MountValues {
            source: source.as_deref().map(normal),
            target: normal(Path::new(&mount.mount_path)),
            options: if mount.read_only || is_given(assignment, mount) {
                ":ro"
            } else {
                ""
            },
        })
    });
    mounts.collect()
}

/// Whether the volume is a host path.
fn is_host(assignment: &Assignment, mount: &VolumeMount) -> bool {
    let mut volumes = assignment.volumes.iter().map(|one| &one.definition);
    volumes.any(|one| one.name == mount.name && one.host_mount.is_some())
}

/// Whether the volume is files of the workload's folder or a secret, which no container may change.
fn is_given(assignment: &Assignment, mount: &VolumeMount) -> bool {
    let mut volumes = assignment.volumes.iter().map(|one| &one.definition);
    volumes.any(|one| one.name == mount.name && (one.files.is_some() || one.secret.is_some()))
}

/// The source of a mount on the machine: `None` if it is unknown, `Some(None)` for memory.
#[allow(clippy::option_option, reason = "not known, or nothing on the machine")]
fn source_of(
    assignment: &Assignment,
    mount: &VolumeMount,
    settings: &RenderSettings,
) -> Option<Option<PathBuf>> {
    let mut volumes = assignment.volumes.iter();
    let AssignedVolume {
        definition, folder, ..
    } = volumes.find(|one| one.definition.name == mount.name)?;
    if definition.tmpfs.is_some() {
        return Some(None);
    }
    if let Some(inner) = definition.carried_folder() {
        let folder = settings
            .carried_folder
            .join(assignment.user.uid.to_string());
        let whole = folder.join(assignment.carried_digest()?);
        return Some(Some(whole.join(inner)));
    }
    if let Some(secret) = &definition.secret {
        let folder = settings.secrets_of(assignment);
        return Some(Some(folder.join(&secret.name)));
    }
    if definition.host_mount.is_some() {
        let name = bound_name(&mount.name, &sub_path_of(mount));
        let place = bound_place(assignment.user.uid, &assignment.instance, &name);
        return Some(Some(settings.bound_folder.join(place)));
    }
    let stored = folder
        .as_ref()
        .map(|folder| settings.volumes_folder.join(folder));
    stored.map(Some)
}
