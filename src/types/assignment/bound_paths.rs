//! Host paths that an instance mounts. Root binds each to a folder of its own before the instance
//! starts.

use std::path::{Path, PathBuf};

use super::Assignment;
use crate::{
    encoding::digest::sha256_prefix_hex,
    resource::{HostMount, Volume, VolumeMount},
};

/// Folder of the bound paths, with one folder for each user, and in it one for each instance. It is
/// not below `/run/kat`: the removal of that folder with its content must not reach into bound
/// paths.
pub const BOUND_FOLDER: &str = "/run/kat-hostpath";
/// Name of the mount point in the folder of a bound path. The folder is opened to its user once the
/// path is bound.
const BOUND: &str = "bound";

/// A host path, or a path below it, that containers of an instance mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPath<'a> {
    /// The volume with the host path.
    pub volume: &'a Volume,
    /// The host path.
    pub host: &'a HostMount,
    /// The mounted path below it; empty for the whole.
    pub sub_path: PathBuf,
    /// No container of the instance writes to it.
    pub read_only: bool,
}

impl BoundPath<'_> {
    /// Name of its folder, see [`bound_name`].
    pub fn name(&self) -> String {
        bound_name(&self.volume.name, &self.sub_path)
    }
}

impl Assignment {
    /// Each host path that containers of the instance mount, once.
    pub fn bound_paths(&self) -> Vec<BoundPath<'_>> {
        let mut found: Vec<BoundPath<'_>> = Vec::new();
        for mount in self.mounts() {
            let mut volumes = self.volumes.iter().map(|one| &one.definition);
            let volume = volumes.find(|volume| volume.name == mount.name);
            let Some((volume, host)) = volume.and_then(|one| Some((one, one.host_mount.as_ref()?)))
            else {
                continue;
            };
            let sub_path = sub_path_of(mount);
            let same = |one: &&mut BoundPath<'_>| {
                one.volume.name == volume.name && one.sub_path == sub_path
            };
            match found.iter_mut().find(same) {
                Some(other) => other.read_only &= mount.read_only,
                None => found.push(BoundPath {
                    volume,
                    host,
                    sub_path,
                    read_only: mount.read_only,
                }),
            }
        }
        found
    }

    /// Id of its bound paths among those of all instances of the machine.
    pub fn bound_id(&self) -> String {
        format!("{}-{}", self.user.uid, self.instance)
    }
}

/// The path of a mount within its volume, normalised.
pub fn sub_path_of(mount: &VolumeMount) -> PathBuf {
    let written = mount.sub_path.as_deref().unwrap_or_default();
    let parts = Path::new(written).components();
    parts
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}

/// Mount point of a bound path below [`BOUND_FOLDER`]: `UID/INSTANCE/NAME/bound`.
pub fn bound_place(uid: u32, instance: &str, name: &str) -> PathBuf {
    Path::new(&uid.to_string())
        .join(instance)
        .join(name)
        .join(BOUND)
}

/// Name of the folder for a volume, or for a path below it: names of volumes have no dot.
pub fn bound_name(volume: &str, sub_path: &Path) -> String {
    let mut name = volume.to_owned();
    if !sub_path.as_os_str().is_empty() {
        name.push('.');
        name.push_str(&sha256_prefix_hex(
            sub_path.as_os_str().as_encoded_bytes(),
            16,
        ));
    }
    name
}
