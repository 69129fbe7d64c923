//! Host paths that containers mount: checked before each start, and made where KAT may make them.
//!
//! Programs may change folders that they can write to at any time. So a checked path is recorded
//! with its identity, and bound by descriptor only if the identity is still the same
//! ([`kat_host::bound_paths`]). Paths are made only where root alone can change every parent
//! folder.

use std::path::{Path, PathBuf};

use super::earlier_grants::{EarlierGrants, OwnersSetting};
use crate::{disk::foreign_disks::ForeignDisks, service::paths, volumes::is_of};
use kat_host::{
    bound_paths::PathBind,
    users::HOMES,
    volumes::{BaseFolder, FileOwner, VolumeError, check_ancestors},
};
use kat_types::{
    assignment::{Assignment, BOUND_FOLDER, BoundPath},
    machine::root::Root,
    reason::Reason,
    resource::{AgentConfig, EnsureType},
};

/// Owner and mode of parent folders: they belong to root, and every user may pass through.
const PASSAGE: FileOwner = FileOwner {
    uid: 0,
    gid: 0,
    mode: 0o711,
};

/// Why an instance can't have a host path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostPathError {
    /// No allowed folder contains the path.
    #[error(
        "this machine allows host paths below {allowed} only, and none that holds volumes, so not {}; hostMountAllow in /etc/kat/agent.yaml says which",
        path.display()
    )]
    NotAllowed { allowed: String, path: PathBuf },
    /// The path is in KAT's own state or in folders of users' sessions.
    #[error("{} would give its container {}, which none may have", path.display(), reserved.display())]
    Reserved { path: PathBuf, reserved: PathBuf },
    /// The path is missing, and KAT may not make it.
    #[error(
        "{} is not there, and KAT makes host paths of namespace {namespace} only below {}/{namespace} and the folders of hostMountCreate in /etc/kat/agent.yaml",
        path.display(),
        paths::HOST
    )]
    NotCreated { path: PathBuf, namespace: String },
    /// The file or folder at the path does not fit.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

impl HostPathError {
    /// The reason code.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::NotAllowed { .. } | Self::Reserved { .. } => Reason::HostPathNotAllowed,
            Self::NotCreated { .. } => Reason::HostPathNotCreated,
            Self::Volume(error) => crate::volumes::reason_of(error),
        }
    }
}

/// The host paths that the machine's owner allows.
#[derive(Debug)]
pub(crate) struct HostPaths {
    /// `/` on a real machine.
    root: Root,
    allowed: Vec<PathBuf>,
    create: Vec<PathBuf>,
    reserved: Vec<PathBuf>,
    /// File systems that may hang; `None` in a child of the agent, which may.
    disks: Option<ForeignDisks>,
    earlier: EarlierGrants,
}

impl HostPaths {
    /// The allowed paths of a machine whose files lie below `root` and whose volumes lie below
    /// `volumes`. No reserved folder is resolved across `disks`.
    pub(crate) fn new(
        root: &Root,
        volumes: &Path,
        config: &AgentConfig,
        disks: Option<ForeignDisks>,
    ) -> Self {
        let folders = |written: &[String]| written.iter().map(PathBuf::from).collect();
        Self {
            root: root.clone(),
            allowed: folders(&config.host_mount_allow),
            create: folders(config.host_mount_create.as_deref().unwrap_or_default()),
            reserved: vec![
                volumes.to_owned(),
                // Access to the bus of a user manager is access to that user outside of the
                // container.
                "/run/user".into(),
                HOMES.into(),
                paths::STATE.into(),
                paths::RUN.into(),
                // Binds of other instances.
                BOUND_FOLDER.into(),
            ],
            disks,
            earlier: EarlierGrants::read(root, config),
        }
    }

    /// Checks a path that an instance mounts, and makes it for `owner` where it is missing and KAT
    /// may make it.
    pub(crate) fn prepare(
        &self,
        assignment: &Assignment,
        bound: &BoundPath<'_>,
        owner: FileOwner,
    ) -> Result<PathBind, HostPathError> {
        let host = bound.host;
        let path: PathBuf = Path::new(&host.host_path).components().collect();
        let (folder, inner) = self.allowed_folder(&path)?;
        self.check_reserved(&path, &path)?;
        let base = self.below(&folder);
        check_ancestors(self.root.path(), &base)?;
        let makes = host.ensure_type.is_some_and(makes);
        let creates = makes && self.may_create(assignment, &path);
        if creates {
            make_base(&base, &folder)?;
        }
        let open = match BaseFolder::open(&base) {
            Err(VolumeError::Missing(_)) if makes => return Err(not_created(assignment, path)),
            opened => opened?.with_above(PASSAGE),
        };
        self.take_folders_over(assignment, &open, &folder, &inner)?;
        let found = match host.ensure_type {
            None => open.is_there(&inner),
            Some(kind) => open.is_kind(&inner, kind),
        };
        match (found, host.ensure_type) {
            (Err(VolumeError::Missing(_)), Some(kind)) if makes => {
                if !creates {
                    return Err(not_created(assignment, path));
                }
                open.check_above(&inner)?;
                match kind {
                    EnsureType::FileOrCreate => open.file(&inner, Some(owner))?,
                    _ => open.folder(&inner, Some(owner))?,
                };
            }
            (found, _) => found?,
        }
        // The path after resolving links; only links of the machine's owner are followed.
        let (real, judged) = match bound.sub_path.as_os_str().is_empty() {
            true => open.identify(&inner)?,
            false => open.enter(&inner)?.identify(&bound.sub_path)?,
        };
        self.check_reserved(&path, &self.shown(&real))?;
        Ok(PathBind {
            name: bound.name(),
            path: real,
            judged,
            read_only: bound.read_only,
        })
    }

    fn allowed_folder(&self, path: &Path) -> Result<(PathBuf, PathBuf), HostPathError> {
        let mut found = self.allowed.iter().filter_map(|folder| {
            let folder: PathBuf = folder.components().collect();
            let inner = path.strip_prefix(&folder).ok()?.to_owned();
            Some((folder, inner))
        });
        found.next().ok_or_else(|| {
            let allowed: Vec<_> = self.allowed.iter().map(|path| path.display()).collect();
            let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
            HostPathError::NotAllowed {
                allowed: allowed.join(", "),
                path: path.to_owned(),
            }
        })
    }

    /// Rejects paths within a reserved folder and paths that contain one. `path` is the written
    /// path, `real` the resolved one.
    fn check_reserved(&self, path: &Path, real: &Path) -> Result<(), HostPathError> {
        let host = Path::new(paths::HOST);
        let conflict = self.reserved.iter().find(|reserved| {
            let reserved: PathBuf = reserved.components().collect();
            let is_exempt = reserved == Path::new(paths::STATE) && real.starts_with(host);
            let resolved = self.resolved(&reserved);
            let both = [&reserved, &resolved];
            !is_exempt
                && both
                    .iter()
                    .any(|one| real.starts_with(one) || one.starts_with(real))
        });
        match conflict {
            None => Ok(()),
            Some(reserved) => Err(HostPathError::Reserved {
                path: path.to_owned(),
                reserved: reserved.clone(),
            }),
        }
    }

    /// A reserved folder without symbolic links, or the mount point of the file system on its way
    /// that may hang: a path that is checked outside of a child lies on no such file system, so it
    /// is not within one, and contains the folder if it contains the mount point.
    fn resolved(&self, reserved: &Path) -> PathBuf {
        let path = self.below(reserved);
        let mount = self.disks.as_ref().and_then(|disks| disks.mount_of(&path));
        let resolved = mount.map_or_else(|| path.canonicalize(), Ok);
        resolved.map_or_else(|_| reserved.to_owned(), |resolved| self.shown(&resolved))
    }

    /// Whether KAT may make the path: below its own folder of the namespace, below
    /// `hostMountCreate`, or where an earlier version made it for the workload.
    fn may_create(&self, assignment: &Assignment, path: &Path) -> bool {
        let own = own_folder(&assignment.namespace);
        let is_own = path.starts_with(&own) && path != own;
        let is_allowed = self.create.iter().any(|folder| path.starts_with(folder));
        is_own || is_allowed || self.was_made(assignment, path)
    }

    fn was_made(&self, assignment: &Assignment, path: &Path) -> bool {
        let path = path.display().to_string();
        let setting = OwnersSetting::HostMountCreate;
        self.earlier.has(setting, assignment, &path)
    }

    /// Earlier versions made the parent folders of a path for its workload. Root becomes their
    /// owner, except for folders that a workload mounts itself: such a folder and a path below it
    /// can't both be mounted.
    fn take_folders_over(
        &self,
        assignment: &Assignment,
        open: &BaseFolder,
        folder: &Path,
        inner: &Path,
    ) -> Result<(), HostPathError> {
        let path = folder.join(inner);
        let setting = OwnersSetting::HostMountCreate;
        let had = path.display().to_string();
        if !self.earlier.had(setting, assignment, &had) {
            return Ok(());
        }
        let mut above: Vec<&Path> = inner.ancestors().skip(1).collect();
        above.reverse();
        for part in above.into_iter().filter(|one| *one != Path::new("")) {
            let shown = folder.join(part).display().to_string();
            let uid = match open.owner_of(part) {
                Ok((uid, _)) => uid,
                Err(VolumeError::Missing(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if is_of(&assignment.user, uid) && !self.earlier.anybody_had(setting, &shown) {
                tracing::info!(
                    path = shown,
                    "a folder above a host path is root's from now on"
                );
                open.own_folder(part, PASSAGE)?;
            }
        }
        Ok(())
    }

    fn below(&self, path: &Path) -> PathBuf {
        self.root.below(path)
    }

    /// The path without the root folder, as on a real machine.
    fn shown(&self, path: &Path) -> PathBuf {
        let root = self.root.path();
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        match path.strip_prefix(&root) {
            Ok(inner) => Path::new("/").join(inner),
            Err(_) => path.to_owned(),
        }
    }
}

/// The host paths outside of KAT's own folder that an instance asks KAT to make, as earlier
/// versions did for every workload.
pub(crate) fn made_elsewhere(assignment: &Assignment) -> impl Iterator<Item = String> {
    let own = own_folder(&assignment.namespace);
    let hosts = assignment
        .volumes
        .iter()
        .filter_map(|volume| volume.definition.host_mount.as_ref());
    let made = hosts.filter(|host| host.ensure_type.is_some_and(makes));
    made.filter_map(move |host| {
        let path: PathBuf = Path::new(&host.host_path).components().collect();
        let is_own = path.starts_with(&own) && path != own;
        (!is_own).then(|| path.display().to_string())
    })
}

fn own_folder(namespace: &str) -> PathBuf {
    Path::new(paths::HOST).join(namespace)
}

fn makes(kind: EnsureType) -> bool {
    matches!(
        kind,
        EnsureType::DirectoryOrCreate | EnsureType::FileOrCreate
    )
}

fn not_created(assignment: &Assignment, path: PathBuf) -> HostPathError {
    HostPathError::NotCreated {
        path,
        namespace: assignment.namespace.clone(),
    }
}

/// Makes a folder of `hostMountAllow`. The caller has checked that only root can change its parent
/// folders.
fn make_base(base: &Path, shown: &Path) -> Result<(), VolumeError> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = match shown == Path::new(paths::HOST) {
        true => 0o711,
        false => 0o755,
    };
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(mode).create(base);
    made.map_err(|error| VolumeError::System {
        verb: "make the folder",
        path: shown.to_owned(),
        error,
    })
}
