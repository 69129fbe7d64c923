//! Paths of the machine that an instance mounts, each at a place of its own that root binds it to before the instance starts.

use std::path::{Path, PathBuf};

use super::Assignment;
use crate::resource::{HostMount, Volume, VolumeMount};

/// Where the places lie, one folder for each user, and in that one for each instance. Not below `/run/kat`: what removes that folder
/// with all that is in it must not come into what is bound.
pub const BOUND_FOLDER: &str = "/run/kat-hostpath";
/// In the folder of a place: what is bound. The folder opens to its user once that is.
const BOUND: &str = "bound";

/// A path of the machine, or something below it, that containers of an instance mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPath<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// The path of the machine.
    pub host: &'a HostMount,
    /// What is mounted below it; empty for the whole.
    pub sub_path: PathBuf,
    /// No container of the instance writes to it.
    pub read_only: bool,
}

impl BoundPath<'_> {
    /// Name of its place, see [`bound_name`].
    pub fn name(&self) -> String {
        bound_name(&self.volume.name, &self.sub_path)
    }
}

impl Assignment {
    /// Each path of the machine that containers of it mount, once.
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

    /// Names its bound paths among those of all instances of the machine.
    pub fn bound_id(&self) -> String {
        format!("{}-{}", self.user.uid, self.instance)
    }
}

/// What a mount takes of its volume, without what says nothing in a path.
pub fn sub_path_of(mount: &VolumeMount) -> PathBuf {
    let written = mount.sub_path.as_deref().unwrap_or_default();
    let parts = Path::new(written).components();
    parts
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}

/// Where something bound lies below [`BOUND_FOLDER`]: `UID/INSTANCE/NAME/bound`.
pub fn bound_place(uid: u32, instance: &str, name: &str) -> PathBuf {
    Path::new(&uid.to_string())
        .join(instance)
        .join(name)
        .join(BOUND)
}

/// Names the place of a volume, or of what lies below it: a name of a volume has no dot.
pub fn bound_name(volume: &str, sub_path: &Path) -> String {
    use sha2::{Digest, Sha256};
    let mut name = volume.to_owned();
    if !sub_path.as_os_str().is_empty() {
        name.push('.');
        let digest = Sha256::digest(sub_path.as_os_str().as_encoded_bytes());
        let (digest, _) = digest.split_at(16);
        name.push_str(&hex::encode(digest));
    }
    name
}
