//! Prepares what an instance mounts before it starts (RFC001-KAT 4.7): its folders below the volume
//! base path, and host paths that the machine's owner allows.
//!
//! A missing volume is never replaced by an empty folder: the leader marks volumes that have had
//! data (`made`), and this machine keeps its own list of the folders that it made. The list lies
//! apart from the volumes, since their disk may be missing.

pub(crate) mod carried_files;
pub(crate) mod copies;
pub(crate) mod earlier_grants;
mod forgotten;
pub(crate) mod host_binds;
pub(crate) mod host_paths;
pub(crate) mod moves;
pub(crate) mod removals;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub(crate) use self::forgotten::{RemovalFailure, RemovalFailureKind};
use crate::{
    disk::{
        disk_child::{PrepareVolumes, RemovalStep, RemoveVolume, VolumePlaces},
        foreign_disks::{DiskLane, ForeignDiskError, ForeignDisks, SilentMount},
    },
    volumes::host_paths::HostPaths,
};
use kat_host::{
    bound_paths::PathBind,
    files::{self, FileError},
    volumes::{BaseFolder, FileOwner, VolumeError, remove_folder},
};
use kat_types::{
    assignment::{AssignedVolume, Assignment, WorkloadUser},
    machine::root::Root,
    reason::Reason,
    resource::{AgentConfig, Container},
    volumes::RemovalRecord,
};

/// Largest list of made volumes in bytes.
const LIMIT: u64 = 8 << 20;
/// Mode of a volume's folder whose user is known: new files inherit the folder's group.
const OF_USER: u32 = 0o2770;
/// Mode where the image sets the user, below the volume base path: all users of the container may
/// write. Other users of the machine can't reach the folder, since only the workload's own group
/// may enter its parent folder.
const OF_ANY_USER: u32 = 0o2777;

/// Why an instance can't use a volume, for its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeTrouble {
    pub reason: Reason,
    /// A sentence for users.
    pub message: String,
}

/// The volumes of this machine.
#[derive(Debug)]
pub struct Volumes {
    /// `/` on a real machine.
    root: Root,
    pub(super) base: PathBuf,
    shared: bool,
    hosts: HostPaths,
    made: Mutex<MadeFolders>,
    /// The folders of [`Self::made`] as last written, for reports: these do not wait for a disk.
    written: Mutex<BTreeSet<String>>,
    /// Where [`Self::made`] is kept; `None` in a child of the agent, which keeps it for its children.
    file: Option<PathBuf>,
    /// The machine's settings, for children.
    config: AgentConfig,
    disks: ForeignDisks,
    /// Whether the runtime's threads remove volumes (see [`Volumes::removing_in_paused_time`]).
    removes_in_paused_time: bool,
}

/// What an instance mounts of one file system that is not KAT's own.
struct ForeignPart {
    mount: PathBuf,
    /// Names of the volumes.
    volumes: BTreeSet<String>,
}

/// The content of `/var/lib/kat/volumes.json`: the volume folders that this machine has made and
/// not removed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MadeFolders {
    /// Version of this object's schema, now 1.
    schema: u32,
    folders: BTreeSet<String>,
    /// Folders among them that moves have put there and that no instance has used here.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unused: BTreeSet<String>,
    /// Folders whose data was found and removed, or is being removed, with the mount of it that is not
    /// KAT's own. Where the same file system is mounted and has no such folder any more, the removal is
    /// done: a request for it that comes again has nothing to remove. Kept until the folder is used
    /// again or the leader no longer asks (see [`Volumes::forget_removals`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    removing: BTreeMap<String, Option<PathBuf>>,
    /// The mount of a folder, where that is not KAT's own: a folder that is not there while another
    /// file system is mounted, or none, is not gone.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    mounts: BTreeMap<String, PathBuf>,
    /// Folders whose data a person gave up while its disk was missing, and when that was: an older
    /// folder of that name is never used or removed (see [`forgotten`]).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forgotten: BTreeMap<String, Timestamp>,
    /// Folders that this process has made or used.
    #[serde(skip)]
    noted: BTreeSet<String>,
}

/// What of an instance's mounts is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PreparedMounts {
    /// Its volumes and its host paths.
    All,
    /// Its host paths alone.
    HostPaths,
    /// Its host paths; its volumes, which its predecessor may still use, are checked and not changed.
    BesidePredecessor,
}

impl Volumes {
    /// The volumes of a machine whose files lie below `root`.
    pub fn new(root: &Root, base: &str, config: &AgentConfig) -> Self {
        let file = root.below(crate::service::paths::VOLUMES);
        let made = match files::read_bounded(&file, LIMIT) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|error| {
                tracing::error!(path = %file.display(), "the list of volumes can't be read: {error:#}");
                MadeFolders::default()
            }),
            Err(error) => {
                if !error.is_not_found() {
                    tracing::error!("the list of volumes can't be read: {error:#}");
                }
                MadeFolders::default()
            }
        };
        let disks = ForeignDisks::new(root);
        Self {
            hosts: HostPaths::new(root, Path::new(base), config, Some(disks.clone())),
            root: root.clone(),
            base: base.into(),
            shared: config.volume_shared,
            written: Mutex::new(made.folders.clone()),
            made: Mutex::new(made),
            file: Some(file),
            config: config.clone(),
            disks,
            removes_in_paused_time: false,
        }
    }

    /// For simulations: tokio's paused clock does not advance while a volume is removed, so that no order
    /// of events depends on how long that takes.
    #[must_use]
    pub fn removing_in_paused_time(self) -> Self {
        Self {
            removes_in_paused_time: true,
            ..self
        }
    }

    /// The volumes as a child of the agent sees them: it keeps no list of made folders.
    pub(crate) fn of_child(root: &Root, places: &VolumePlaces) -> Self {
        let base = places.base.display().to_string();
        let volumes = Self::new(root, &base, &places.config);
        Self {
            hosts: HostPaths::new(root, &places.base, &places.config, None),
            file: None,
            ..volumes
        }
    }

    /// Replaces how file systems are looked at that may hang.
    #[cfg(test)]
    pub(crate) fn with_disks(self, disks: ForeignDisks) -> Self {
        Self { disks, ..self }
    }

    /// The file systems of the machine that are not KAT's own.
    pub(crate) fn disks(&self) -> &ForeignDisks {
        &self.disks
    }

    /// Whether the base path is storage that machines share.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether an instance mounts something of a file system that may hang. Blocks on none.
    pub(crate) fn are_foreign(&self, assignment: &Assignment) -> bool {
        !self.foreign_parts(assignment).is_empty()
    }

    /// Prepares what an instance mounts: what lies on KAT's own disks here, the rest in children of
    /// the agent. Takes as long as those file systems do.
    ///
    /// # Errors
    /// The first volume that the instance can't have, and why.
    pub(crate) async fn prepare_apart(
        &self,
        assignment: &Assignment,
        what: PreparedMounts,
    ) -> Result<Vec<PathBind>, VolumeTrouble> {
        let parts = self.foreign_parts(assignment);
        let elsewhere = |name: &String| parts.iter().any(|part| part.volumes.contains(name));
        let own = only_volumes(assignment, |name| !elsewhere(name));
        let mut binds = match what {
            PreparedMounts::All => self.prepare(&own)?,
            PreparedMounts::HostPaths => self.prepare_host_paths(&own)?,
            PreparedMounts::BesidePredecessor => self.prepare_beside(&own)?,
        };
        for part in parts {
            let task = PrepareVolumes {
                places: self.places(),
                assignment: Box::new(only_volumes(assignment, |name| part.volumes.contains(name))),
                what,
            };
            let prepared = self.disks.run(&part.mount, task).await;
            let prepared = prepared.map_err(|error| foreign_trouble(&part, &error))?;
            for folder in &prepared.noted {
                self.note(folder);
            }
            binds.extend(prepared.into_binds()?);
        }
        let order: Vec<String> = assignment
            .bound_paths()
            .iter()
            .map(|one| one.name())
            .collect();
        binds.sort_by_key(|bind| order.iter().position(|name| *name == bind.name));
        Ok(binds)
    }

    /// The message about a file system that has not answered when an instance was prepared.
    pub(crate) fn silence(&self, assignment: &Assignment) -> Option<String> {
        let parts = self.foreign_parts(assignment);
        let mut silent = parts.iter().filter_map(|part| {
            let silent = self.disks.silence(DiskLane::Prepare, &part.mount)?;
            let volumes: Vec<&str> = part.volumes.iter().map(String::as_str).collect();
            Some(format!("volume {}: {silent}", volumes.join(", ")))
        });
        silent.next()
    }

    /// What an instance mounts of file systems that are not KAT's own, by mount.
    fn foreign_parts(&self, assignment: &Assignment) -> Vec<ForeignPart> {
        let mut parts: Vec<ForeignPart> = Vec::new();
        for volume in &assignment.volumes {
            let definition = &volume.definition;
            let place = match (&volume.folder, &definition.host_mount) {
                (Some(folder), _) => self.base.join(folder),
                (None, Some(host)) => PathBuf::from(&host.host_path),
                (None, None) => continue,
            };
            let mounts = assignment.mounts();
            let inner = mounts.filter(|mount| mount.name == definition.name);
            let inner = inner.filter_map(|mount| mount.sub_path.as_ref());
            let paths = std::iter::once(place.clone()).chain(inner.map(|one| place.join(one)));
            let mut mounts = paths.filter_map(|path| self.disks.mount_of(&self.below(&path)));
            let Some(mount) = mounts.next() else {
                continue;
            };
            let name = definition.name.clone();
            match parts.iter_mut().find(|part| part.mount == mount) {
                Some(part) => drop(part.volumes.insert(name)),
                None => parts.push(ForeignPart {
                    mount,
                    volumes: BTreeSet::from([name]),
                }),
            }
        }
        parts
    }

    /// The file systems that are not KAT's own and that these instances mount, and that of the base
    /// path, each with the workloads that use it.
    pub(crate) fn foreign_users<'a>(
        &self,
        assignments: impl Iterator<Item = &'a Assignment>,
    ) -> BTreeMap<PathBuf, BTreeSet<String>> {
        let base = self.disks.mount_of(&self.below(&self.base));
        let mut users: BTreeMap<PathBuf, BTreeSet<String>> = base
            .map(|mount| (mount, BTreeSet::new()))
            .into_iter()
            .collect();
        for assignment in assignments {
            for part in self.foreign_parts(assignment) {
                let name = format!("{}/{}", assignment.namespace, assignment.workload);
                users.entry(part.mount).or_default().insert(name);
            }
        }
        users
    }

    fn places(&self) -> VolumePlaces {
        VolumePlaces {
            root: self.root.path().to_owned(),
            base: self.base.clone(),
            config: self.config.clone(),
        }
    }

    /// Prepares everything that an instance mounts, and returns the host paths to bind for it.
    /// Blocks for as long as the disk does.
    ///
    /// # Errors
    /// The first volume that the instance can't have, and why.
    pub fn prepare(&self, assignment: &Assignment) -> Result<Vec<PathBind>, VolumeTrouble> {
        for volume in &assignment.volumes {
            let name = &volume.definition.name;
            let trouble = |error| volume_trouble(name, &error);
            let owner = owner_of(&assignment.user, &assignment.container);
            let place = match &volume.folder {
                Some(folder) => Some(self.prepare_folder(assignment, volume, folder)?),
                None => None,
            };
            let mounts = assignment.mounts();
            for mount in mounts.filter(|mount| mount.name == *name) {
                let Some(inner) = &mount.sub_path else {
                    continue;
                };
                // Resolved from the open folder, whatever lies at its path by now.
                if let Some((base, path)) = &place {
                    let base = base.enter(path).map_err(trouble)?.with_above(owner);
                    let made = base.folder(Path::new(inner), Some(owner));
                    made.map_err(trouble)?;
                }
            }
        }
        self.prepare_host_paths(assignment)
    }

    /// Prepares the host paths that an instance mounts, and checks its volumes: no folder is made or
    /// changes its owner, since the instance's predecessor may use it.
    ///
    /// # Errors
    /// The first volume that the instance can't have, and why.
    pub fn prepare_beside(&self, assignment: &Assignment) -> Result<Vec<PathBind>, VolumeTrouble> {
        for volume in &assignment.volumes {
            if let Some(folder) = &volume.folder {
                self.check_folder(assignment, volume, folder)?;
            }
        }
        self.prepare_host_paths(assignment)
    }

    /// Prepares the host paths that an instance mounts.
    ///
    /// # Errors
    /// The first path that the instance can't have, and why.
    pub fn prepare_host_paths(
        &self,
        assignment: &Assignment,
    ) -> Result<Vec<PathBind>, VolumeTrouble> {
        let owner = FileOwner {
            mode: OF_USER,
            ..owner_of(&assignment.user, &assignment.container)
        };
        let bound = assignment.bound_paths();
        let each = bound.iter().map(|one| {
            let prepared = self.hosts.prepare(assignment, one, owner);
            prepared.map_err(|error| VolumeTrouble {
                reason: error.reason(),
                message: format!("volume {}: {error}", one.volume.name),
            })
        });
        each.collect()
    }

    /// Prepares the folder of a volume of simple cluster storage.
    fn prepare_folder(
        &self,
        assignment: &Assignment,
        volume: &AssignedVolume,
        folder: &str,
    ) -> Result<(BaseFolder, PathBuf), VolumeTrouble> {
        let owner = owner_of(&assignment.user, &assignment.container);
        let base = self.below(&self.base);
        let path = Path::new(folder);
        let is_there = self.check_folder(assignment, volume, folder)?;
        let made = || -> Result<BaseFolder, VolumeError> {
            if !is_there {
                std::fs::create_dir_all(&base).map_err(|error| VolumeError::System {
                    verb: "make the folder",
                    path: self.base.clone(),
                    error,
                })?;
            }
            let open = BaseFolder::open(&base)?;
            self.make_passage(&open, path, &assignment.user)?;
            open.folder(path, Some(owner))?;
            Ok(open)
        };
        let open = made().map_err(|error| volume_trouble(&volume.definition.name, &error))?;
        self.note(folder);
        Ok((open, path.to_owned()))
    }

    /// Checks the folder of a volume, and returns whether it is there.
    fn check_folder(
        &self,
        assignment: &Assignment,
        volume: &AssignedVolume,
        folder: &str,
    ) -> Result<bool, VolumeTrouble> {
        let name = &volume.definition.name;
        let trouble = |error| volume_trouble(name, &error);
        let base = self.below(&self.base);
        let path = Path::new(folder);
        let shown = self.base.join(path);
        let was_made = volume.made || self.has_made(folder);
        let there = match BaseFolder::open(&base) {
            Ok(open) => match open.owner_of(path) {
                Ok((uid, _)) => Some(uid),
                Err(VolumeError::Missing(_)) => None,
                Err(error) => return Err(trouble(error)),
            },
            Err(VolumeError::Missing(_)) => None,
            Err(error) => return Err(trouble(error)),
        };
        if let Some(uid) = there.filter(|uid| !is_of(&assignment.user, *uid)) {
            return Err(trouble(VolumeError::Foreign { path: shown, uid }));
        }
        if there.is_some() {
            self.refuse_forgotten(folder).map_err(trouble)?;
        }
        if there.is_none() && was_made {
            return Err(VolumeTrouble {
                reason: Reason::VolumeMissing,
                message: format!(
                    "the data of volume {name} has been in {} and is gone; nothing empty takes its place: mount its disk, or put the data back",
                    shown.display()
                ),
            });
        }
        Ok(there.is_some())
    }

    /// Makes the folders above a volume: other users may pass through them but not list the
    /// workload's own.
    pub(super) fn make_passage(
        &self,
        open: &BaseFolder,
        path: &Path,
        user: &WorkloadUser,
    ) -> Result<(), VolumeError> {
        let mut above = path
            .ancestors()
            .skip(1)
            .filter(|part| part.parent().is_some());
        let (Some(workload), Some(namespace)) = (above.next(), above.next()) else {
            return Err(VolumeError::Missing(self.base.join(path)));
        };
        let passage = |gid, mode| FileOwner { uid: 0, gid, mode };
        open.own_folder(namespace, passage(0, 0o711))?;
        open.own_folder(workload, passage(user.uid, 0o710))
    }

    /// Removes the data of a volume of simple cluster storage if its owner is the user in the
    /// removal record. Blocks for as long as that takes.
    ///
    /// # Errors
    /// [`VolumeError`]; [`VolumeError::Missing`] where data should exist but is missing: its disk
    /// may not be mounted.
    pub fn remove(&self, folder: &str, record: RemovalRecord) -> Result<(), VolumeError> {
        if record.unsure && !self.is_unused(folder) {
            // Data at this path, if any, was not put there by a move.
            return Ok(());
        }
        let (base, path) = (self.below(&self.base), Path::new(folder));
        let found = self.has_data_to_remove(folder, record);
        // A child of the agent keeps no list.
        let forgets = record.forget && self.file.is_some();
        if let Err(error) = &found
            && forgets
            && self.forgets(folder, RemovalFailureKind::of(error))
        {
            return Ok(());
        }
        if found? {
            self.note_removal(folder);
            remove_folder(&base.join(path))?;
        }
        // Parent folders with other content stay.
        for above in path.ancestors().skip(1).take(2) {
            if std::fs::remove_dir(base.join(above)).is_err() {
                break;
            }
        }
        self.forget(folder);
        Ok(())
    }

    /// Whether there is data that a removal removes; blocks as long as its file system does.
    ///
    /// # Errors
    /// [`VolumeError`]; [`VolumeError::Missing`] where data should exist but is missing: its disk
    /// may not be mounted.
    pub(crate) fn has_data_to_remove(
        &self,
        folder: &str,
        record: RemovalRecord,
    ) -> Result<bool, VolumeError> {
        let path = Path::new(folder);
        let normal = |part: Component<'_>| matches!(part, Component::Normal(_));
        if path.components().count() != 3 || !path.components().all(normal) {
            return Err(VolumeError::System {
                verb: "remove",
                path: self.base.join(path),
                error: std::io::ErrorKind::InvalidInput.into(),
            });
        }
        let mut opens = false;
        let found = match BaseFolder::open(&self.below(&self.base)) {
            Ok(open) => {
                opens = true;
                open.owner_of(path)
            }
            Err(error) => Err(error),
        };
        match found {
            Ok((uid, _)) => {
                let user = WorkloadUser::from_index(record.index, "", "");
                if !user.is_some_and(|user| is_of(&user, uid)) {
                    let path = self.base.join(path);
                    return Err(VolumeError::Foreign { path, uid });
                }
                self.refuse_forgotten(folder)?;
                Ok(true)
            }
            // The volume never existed here, so nothing is left of it.
            Err(VolumeError::Missing(_)) if !record.made && !self.has_made(folder) => Ok(false),
            // The copy was removed by hand, or an earlier try has removed the data.
            Err(VolumeError::Missing(_))
                if opens
                    && (self.was_removing(folder)
                        || (record.copy && self.is_on_its_mount(folder))) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Self::remove`], in a child of the agent where the volume lies on a file system that may
    /// hang.
    ///
    /// # Errors
    /// [`RemovalFailure`].
    pub(crate) async fn remove_apart(
        self: Arc<Self>,
        folder: String,
        record: RemovalRecord,
    ) -> Result<(), RemovalFailure> {
        if record.unsure && !self.is_unused(&folder) {
            return Ok(());
        }
        let Some(mount) = self.mount_of_volume(&folder) else {
            let volumes = Arc::clone(&self);
            let work = move || {
                let removed = volumes.remove(&folder, record);
                removed.map_err(|error| RemovalFailure::from(&error))
            };
            // A large folder takes long.
            let removed = match self.removes_in_paused_time {
                false => self.disks.on_thread(work),
                true => self.disks.on_thread_of_runtime(work),
            };
            let removed = removed.map_err(|error| RemovalFailure::of_work(&error))?;
            let removed = removed.await;
            return removed.map_err(|error| RemovalFailure::of_work(&error))?;
        };
        let run = async |step| {
            let task = RemoveVolume {
                places: self.places(),
                folder: folder.clone(),
                record,
                step,
            };
            let done = self.disks.run(&mount, task).await;
            done.map_err(|error| RemovalFailure::of_work(&error))?
        };
        // The child reads the list and does not write it.
        match run(RemovalStep::Look).await {
            Ok(true) => self.note_removal(&folder),
            Ok(false) => {}
            Err(failure) if record.forget && self.forgets(&folder, failure.kind) => return Ok(()),
            Err(failure) => return Err(failure),
        }
        run(RemovalStep::Remove).await?;
        self.forget(&folder);
        Ok(())
    }

    /// The file system of a volume, if its removal takes long and the file system does not answer
    /// another question either.
    pub(crate) fn silent_removal(&self, folder: &str) -> Option<SilentMount> {
        let mount = self.mount_of_volume(folder)?;
        self.disks.confirmed_silence(DiskLane::Remove, &mount)
    }

    fn mount_of_volume(&self, folder: &str) -> Option<PathBuf> {
        self.disks.mount_of(&self.below(&self.base.join(folder)))
    }

    /// Number of threads that work on disks now. They outlive the tasks that started them, which a
    /// simulation of a killed process has to wait for.
    pub fn busy_threads(&self) -> usize {
        self.disks.busy_threads()
    }

    /// Drops a folder whose data was removed from the list of made ones.
    fn forget(&self, folder: &str) {
        let mut made = self.made();
        let was_unused = made.unused.remove(folder);
        let was_mounted = made.mounts.remove(folder).is_some();
        if made.folders.remove(folder) || was_unused || was_mounted {
            self.store(&made);
        }
    }

    /// Forgets removals that the leader no longer asks for: it has received the report about them.
    pub(crate) fn forget_removals(&self, is_asked: impl Fn(&str) -> bool) {
        let mut made = self.made();
        let before = made.removing.len();
        made.removing.retain(|folder, _| is_asked(folder));
        if made.removing.len() != before {
            self.store(&made);
        }
    }

    /// Records that the folder's data was found and is removed now.
    fn note_removal(&self, folder: &str) {
        let mount = self.mount_of_volume(folder);
        let mut made = self.made();
        if made.removing.get(folder) != Some(&mount) {
            made.removing.insert(folder.to_owned(), mount);
            self.store(&made);
        }
    }

    /// Whether the folder's data was found on the present file system, and removed or being removed.
    fn was_removing(&self, folder: &str) -> bool {
        let mount = self.mount_of_volume(folder);
        self.made().removing.get(folder) == Some(&mount)
    }

    /// The folders that a child has made or used, for the agent's list.
    pub(crate) fn noted(&self) -> BTreeSet<String> {
        self.made().noted.clone()
    }

    fn has_made(&self, folder: &str) -> bool {
        !self.shared && self.made().folders.contains(folder)
    }

    /// The volume folders on this machine, for reports. Does not wait for a disk.
    pub fn all_made(&self) -> Vec<String> {
        match self.shared {
            true => Vec::new(),
            false => self.written.lock().iter().cloned().collect(),
        }
    }

    pub(super) fn note(&self, folder: &str) {
        let mount = self.mount_of_volume(folder);
        let mut made = self.made();
        let is_remounted = !self.shared && made.set_mount(folder, mount);
        if self.file.is_none() {
            made.noted.insert(folder.to_owned());
        }
        let was_unused = made.unused.remove(folder);
        let was_removing = made.removing.remove(folder).is_some();
        let is_new = !self.shared && made.folders.insert(folder.to_owned());
        if is_new || is_remounted || was_removing || (was_unused && !self.shared) {
            self.store(&made);
        }
    }

    /// Records that a move has put the folder there.
    pub(super) fn note_placed(&self, folder: &str) {
        let mount = self.mount_of_volume(folder);
        let mut made = self.made();
        made.removing.remove(folder);
        let is_remounted = made.set_mount(folder, mount);
        let is_new = made.folders.insert(folder.to_owned());
        if !self.shared && (made.unused.insert(folder.to_owned()) || is_new || is_remounted) {
            self.store(&made);
        }
    }

    /// Whether a move has put the folder there and no instance has used it here.
    pub(super) fn is_unused(&self, folder: &str) -> bool {
        self.made().unused.contains(folder)
    }

    fn store(&self, made: &MadeFolders) {
        if let Err(error) = self.try_store(made) {
            tracing::error!("the list of volumes can't be kept: {error}");
        }
        self.tell(made);
    }

    /// Lets reports have the present list.
    fn tell(&self, made: &MadeFolders) {
        self.written.lock().clone_from(&made.folders);
    }

    fn try_store(&self, made: &MadeFolders) -> Result<(), FileError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let made = MadeFolders {
            schema: 1,
            ..made.clone()
        };
        files::write_json(file, &made)
    }

    fn made(&self) -> parking_lot::MutexGuard<'_, MadeFolders> {
        self.made.lock()
    }

    pub(super) fn below(&self, path: &Path) -> PathBuf {
        self.root.below(path)
    }
}

/// The reason code of an error.
pub(super) fn reason_of(error: &VolumeError) -> Reason {
    match error {
        VolumeError::System { .. } => Reason::VolumeFailed,
        VolumeError::Missing(_) => Reason::HostPathMissing,
        VolumeError::Link(_) => Reason::HostPathIsLink,
        VolumeError::Unexpected { .. } => Reason::HostPathUnexpected,
        VolumeError::Unprotected { .. } => Reason::HostPathUnprotected,
        VolumeError::Foreign { .. } => Reason::VolumeForeign,
        VolumeError::Forgotten { .. } => Reason::VolumeForgotten,
    }
}

/// The instance with these of its volumes only, and without what a child need not know.
fn only_volumes(assignment: &Assignment, wanted: impl Fn(&String) -> bool) -> Assignment {
    let mut only = Assignment {
        carried: None,
        secrets: None,
        ..assignment.clone()
    };
    only.volumes.retain(|one| wanted(&one.definition.name));
    only
}

fn foreign_trouble(part: &ForeignPart, error: &ForeignDiskError) -> VolumeTrouble {
    let volumes: Vec<&str> = part.volumes.iter().map(String::as_str).collect();
    VolumeTrouble {
        reason: match error {
            ForeignDiskError::Full => Reason::DiskNotAnswering,
            ForeignDiskError::Thread(_) | ForeignDiskError::Child { .. } => Reason::VolumeFailed,
        },
        message: format!("volume {}: {error}", volumes.join(", ")),
    }
}

fn volume_trouble(name: &str, error: &VolumeError) -> VolumeTrouble {
    VolumeTrouble {
        reason: reason_of(error),
        message: format!("volume {name}: {error}"),
    }
}

/// Whether the uid is the workload user's own or one of its subordinate uids.
pub(super) fn is_of(user: &WorkloadUser, uid: u32) -> bool {
    let subordinate = user.subordinate_start..user.subordinate_start + user.subordinate_count;
    uid == user.uid || subordinate.contains(&uid)
}

/// The owner of a new volume: the container's user, mapped to the machine's ids, where the file
/// names it by numbers; otherwise the container's root, with write access for every user of the
/// container.
pub(crate) fn owner_of(user: &WorkloadUser, container: &Container) -> FileOwner {
    let written = container.user.as_deref().unwrap_or_default();
    let (uid, gid) = written.split_once(':').unwrap_or((written, ""));
    let on_machine = |id: u32| match id.checked_sub(1) {
        None => user.uid,
        Some(rest) => user.subordinate_start.saturating_add(rest),
    };
    let gid = gid.parse().map_or(user.uid, on_machine);
    match uid.parse::<u32>() {
        Ok(uid) => FileOwner {
            uid: on_machine(uid),
            gid,
            mode: OF_USER,
        },
        Err(_) => FileOwner {
            uid: user.uid,
            gid: user.uid,
            mode: OF_ANY_USER,
        },
    }
}
