//! Units of new instances, before the user's manager has reloaded.
//!
//! A reload runs every generator and takes longer than most of an instance's start. A unit that a
//! manager has never loaded needs none: when it is asked for, the manager looks for it in its
//! folders again if one of them has changed, but not in those of its generators. So the units that
//! Podman's generator makes of new quadlets are copied to `/run/systemd/user`. The reload follows
//! when no instance starts or stops; the copies are removed before it, so that the manager has the
//! generator's units again.
//!
//! A file `.kat-UID` beside them says that a reload is owed: an agent that is killed before it leaves
//! it to the next one.
//!
//! The folder is root's and shared by all users, and a copy can be read by the group of its user
//! alone. Another user's manager that is asked for a unit of that name fails: permission denied, also
//! where its generator has one. So no two users have units of one name: those of containers are named
//! after the instance, those of images after the uid. A copy outranks the generator's unit, so it
//! exists only as long as its quadlet is unchanged.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use tokio::time::Instant;

use crate::{
    service::paths::{EARLY_UNITS, QUADLETS},
    worker::{
        WorkerError,
        context::UserContext,
        running::jobs::JobKey,
        unit_state::unit_files::{FilesError, make_folder},
    },
};
use kat_host::{
    commands::{CommandError, Invocation},
    files::{self, FileAccess},
};
use kat_types::machine::root::Root;

/// Podman's generator for user managers (podman-systemd.unit(5)).
const GENERATOR: &str = "/usr/lib/systemd/user-generators/podman-user-generator";
/// Longest run of the generator; it takes 10 to 25 ms.
const GENERATOR_LIMIT: Duration = Duration::from_secs(2);
/// Extension of the files of timers.
const TIMER: &str = "timer";
/// Pause between a copy and the reload.
const QUIET: Duration = Duration::from_secs(3);
/// Pause after a reload that failed.
const AGAIN: Duration = Duration::from_secs(30);
/// Folders of quadlets that are the user's own, below its home and its run-time folder.
const OWN_QUADLETS: [&str; 2] = [".config/containers/systemd", "containers/systemd"];

/// Why units can't be had without a reload.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("it printed more than {} KiB", kat_host::commands::OUTPUT_LIMIT / 1024)]
    TooMuch,
}

/// Podman's generator of units.
#[async_trait]
pub trait UnitGenerator: Send + Sync {
    /// The units of the quadlets in the folder of this user's links, by name.
    async fn units(&self, uid: u32) -> Result<BTreeMap<String, String>, GeneratorError>;
}

/// The installed generator.
#[derive(Debug, Default)]
pub(crate) struct PodmanGenerator;

#[async_trait]
impl UnitGenerator for PodmanGenerator {
    async fn units(&self, uid: u32) -> Result<BTreeMap<String, String>, GeneratorError> {
        let folder = Path::new(QUADLETS).join(uid.to_string());
        // It runs as root, which its user can't trace: what it reads is written by KAT.
        let output = Invocation::new(GENERATOR)
            .args(["-dryrun", "-user"])
            .environment("QUADLET_UNIT_DIRS", &folder)
            .limit(GENERATOR_LIMIT)
            .run()
            .await?;
        if output.stdout.len() >= kat_host::commands::OUTPUT_LIMIT {
            return Err(GeneratorError::TooMuch);
        }
        Ok(units_of(&String::from_utf8_lossy(&output.stdout), &folder))
    }
}

/// The units in the generator's output: each follows a line `---NAME---`. Only those count whose
/// source is a file of the folder.
fn units_of(output: &str, folder: &Path) -> BTreeMap<String, String> {
    let mut units: BTreeMap<String, String> = BTreeMap::new();
    let mut text = None;
    for line in output.lines() {
        let name = line
            .strip_prefix("---")
            .and_then(|rest| rest.strip_suffix("---"));
        match (name, &mut text) {
            (Some(name), _) => text = Some(units.entry(name.to_owned()).or_default()),
            (None, Some(text)) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    let source = format!("\nSourcePath={}/", folder.display());
    units.retain(|name, text| {
        let expected = quadlets_of(name);
        let found = text
            .split_once(&source)
            .and_then(|(_, rest)| rest.lines().next());
        found.is_some_and(|found| expected.iter().any(|one| one == found))
    });
    units
}

/// The quadlets that could make a unit.
fn quadlets_of(unit: &str) -> Vec<String> {
    let stem = unit.strip_suffix(".service").unwrap_or(unit);
    let image = stem
        .strip_suffix("-image")
        .map(|stem| format!("{stem}.image"));
    [format!("{stem}.container")]
        .into_iter()
        .chain(image)
        .collect()
}

/// The unit that Podman's generator makes of a quadlet.
pub(crate) fn unit_of(quadlet: &str) -> String {
    match quadlet.rsplit_once('.') {
        Some((stem, "image")) => format!("{stem}-image.service"),
        Some((stem, _)) => format!("{stem}.service"),
        None => format!("{quadlet}.service"),
    }
}

/// The timer that starts a unit.
pub(crate) fn timer_of(unit: &str) -> String {
    let stem = unit.strip_suffix(".service").unwrap_or(unit);
    format!("{stem}.{TIMER}")
}

/// Whether the user's manager is to reload, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReloadDue {
    /// It knows all units as they are.
    No,
    /// Copies of units are to leave from this time on, once no unit is about to start.
    WhenQuiet(Instant),
    /// It does not know all units as they are; it is to reload at this time.
    Owed(Instant),
}

/// The copies of one user's units.
pub(crate) struct EarlyUnits {
    folder: PathBuf,
    uid: u32,
}

impl EarlyUnits {
    pub(crate) fn new(root: &Root, uid: u32) -> Self {
        Self {
            folder: root.below(EARLY_UNITS),
            uid,
        }
    }

    /// Copies these units.
    fn write(&self, units: &BTreeMap<&str, &str>) -> Result<(), FilesError> {
        make_folder(&self.folder, FileAccess::mode(0o755))?;
        let access = FileAccess::owned(0o640, 0, self.uid);
        for (name, text) in units {
            files::write_atomic(&self.folder.join(name), text.as_bytes(), access)?;
        }
        Ok(())
    }

    /// Remembers that the manager is to reload. A mark that can't be written is none: this agent
    /// reloads all the same.
    pub(crate) fn mark(&self) {
        let access = FileAccess::owned(0o600, 0, self.uid);
        let written = make_folder(&self.folder, FileAccess::mode(0o755))
            .and_then(|()| Ok(files::write_if_changed(&self.mark_path(), b"", access)?));
        if let Err(error) = written {
            tracing::debug!(uid = self.uid, "no mark of a reload: {error:#}");
        }
    }

    fn unmark(&self) -> Result<(), FilesError> {
        files::remove(&self.mark_path())?;
        Ok(())
    }

    fn mark_path(&self) -> PathBuf {
        self.folder.join(format!(".kat-{}", self.uid))
    }

    /// Whether a reload is owed.
    fn is_marked(&self) -> bool {
        self.has_any() || self.mark_path().exists()
    }

    /// Whether there are any.
    fn has_any(&self) -> bool {
        self.all().next().is_some()
    }

    /// Removes the copy of this unit, if there is one.
    pub(crate) fn remove(&self, unit: &str) -> Result<(), FilesError> {
        let path = self.folder.join(unit);
        if fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.gid() == self.uid) {
            files::remove(&path)?;
        }
        Ok(())
    }

    pub(crate) fn remove_all(&self) -> Result<(), FilesError> {
        for path in self.all() {
            files::remove(&path)?;
        }
        Ok(())
    }

    /// Removes the copies, timers and the mark, with the user.
    pub(crate) fn forget(&self) -> Result<(), FilesError> {
        for path in self.files() {
            files::remove(&path)?;
        }
        self.unmark()
    }

    /// The timer of the instance with this main unit.
    pub(crate) fn timer(&self, unit: &str) -> PathBuf {
        self.folder.join(timer_of(unit))
    }

    /// Writes the timer of the instance with this main unit if it differs; returns whether it did.
    pub(crate) fn write_timer(&self, unit: &str, text: &str) -> Result<bool, FilesError> {
        make_folder(&self.folder, FileAccess::mode(0o755))?;
        let access = FileAccess::owned(0o640, 0, self.uid);
        Ok(files::write_if_changed(
            &self.timer(unit),
            text.as_bytes(),
            access,
        )?)
    }

    /// Copies of units: files of KAT's names whose group is the user's. Timers are no copies.
    fn all(&self) -> impl Iterator<Item = PathBuf> {
        self.files()
            .filter(|path| path.extension().is_none_or(|kind| kind != TIMER))
    }

    /// Files of KAT's names whose group is the user's.
    fn files(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let metadata = entry.metadata().ok()?;
            let is_copy = metadata.is_file()
                && metadata.gid() == self.uid
                && (name.starts_with("kat-") || name.starts_with(".kat-"));
            let path = entry.path();
            (is_copy && path != self.mark_path()).then_some(path)
        })
    }
}

/// Whether the user has, or may have, settings for quadlets that the generator would not find in the
/// folder of KAT's links: in folders of its own, or of all users.
fn has_other_settings(root: &Root, home: &Path, uid: u32) -> bool {
    let run = root.below("/run/user").join(uid.to_string());
    let own = [home, &run].into_iter().zip(OWN_QUADLETS);
    let mut own = own.map(|(base, name)| may_be_there(base, name));
    let of_all = fs::read_dir(root.below(QUADLETS))
        .into_iter()
        .flatten()
        .flatten();
    let mut of_all = of_all.filter_map(|entry| entry.file_name().into_string().ok());
    own.any(|there| there) || of_all.any(|name| !name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether there is anything at a path below a folder that its user may change. No link is followed
/// and no mount is entered, so this asks no file system that the user has mounted.
fn may_be_there(base: &Path, relative: &str) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let base = match rustix::fs::open(base, flags | OFlags::DIRECTORY, Mode::empty()) {
        Ok(base) => base,
        Err(error) => return error != Errno::NOENT,
    };
    let closed = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    let found = rustix::fs::openat2(&base, relative, flags, Mode::empty(), closed);
    !matches!(found, Err(Errno::NOENT))
}

impl UserContext {
    /// Makes new units known to the user's manager: without a reload where that is possible.
    pub(crate) async fn announce(&mut self, added: &BTreeSet<String>) -> Result<(), WorkerError> {
        match self.copy_units(added).await {
            Ok(true) if matches!(self.reload_due, ReloadDue::Owed(_)) => {
                // That of other units does not wait until these have started.
                self.reload_where_due().await
            }
            Ok(true) => {
                self.reload_when_quiet_after(QUIET);
                Ok(())
            }
            Ok(false) => self.reload().await,
            Err(error) => {
                tracing::debug!(user = self.user.name, "new units need a reload: {error:#}");
                self.reload().await
            }
        }
    }

    /// Copies the units; false where only a reload makes them what they should be.
    async fn copy_units(&self, added: &BTreeSet<String>) -> Result<bool, WorkerError> {
        let uid = self.user.uid;
        if has_other_settings(&self.tools.root, &self.home(), uid) {
            return Ok(false);
        }
        // A unit that is loaded keeps its earlier text until a reload.
        let loaded = self.manager.list("kat-*.service").await?;
        if loaded.iter().any(|unit| added.contains(unit)) {
            return Ok(false);
        }
        let generated = match self.tools.generator.units(uid).await {
            Ok(generated) => generated,
            Err(error) => {
                tracing::debug!(user = self.user.name, "{GENERATOR}: {error:#}");
                return Ok(false);
            }
        };
        let units = added.iter().map(|unit| {
            let text = generated.get(unit)?;
            Some((unit.as_str(), text.as_str()))
        });
        let Some(units) = units.collect::<Option<BTreeMap<_, _>>>() else {
            return Ok(false);
        };
        self.folder.early.write(&units)?;
        Ok(true)
    }

    /// Makes the user's manager read all units from its generators.
    pub(crate) async fn reload(&mut self) -> Result<(), WorkerError> {
        self.owe_reload();
        // A start loads its unit again if systemd has unloaded it meanwhile.
        if self.is_quiet() {
            self.folder.early.remove_all()?;
        }
        self.manager.reload().await?;
        self.reload_due = ReloadDue::No;
        if self.folder.early.has_any() {
            self.reload_when_quiet_after(QUIET);
        } else {
            self.folder.early.unmark()?;
        }
        Ok(())
    }

    /// Remembers that the manager does not know all units as they are now.
    pub(crate) fn owe_reload(&mut self) {
        self.reload_due = ReloadDue::Owed(Instant::now());
    }

    fn reload_when_quiet_after(&mut self, pause: Duration) {
        self.reload_due = ReloadDue::WhenQuiet(Instant::now() + pause);
        self.wake_within(pause);
    }

    /// Reloads the user's manager where that is due. A failure delays nothing else.
    pub(crate) async fn reload_where_due(&mut self) -> Result<(), WorkerError> {
        let (at, waits_for_quiet) = match self.reload_due {
            ReloadDue::No => return Ok(()),
            ReloadDue::WhenQuiet(at) => (at, true),
            ReloadDue::Owed(at) => (at, false),
        };
        let wait = at.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            self.wake_within(wait);
            return Ok(());
        }
        // The end of a job makes another pass.
        if waits_for_quiet && !self.is_quiet() {
            return Ok(());
        }
        if let Err(error) = self.reload().await {
            tracing::warn!(
                user = self.user.name,
                "the user's manager is not reloaded, which is tried again: {error:#}"
            );
            self.reload_due = ReloadDue::Owed(Instant::now() + AGAIN);
            self.wake_within(AGAIN);
        }
        Ok(())
    }

    /// The reload that an earlier process of the agent left to do.
    pub(crate) fn reload_left(folder: &EarlyUnits) -> ReloadDue {
        match folder.is_marked() {
            true => ReloadDue::WhenQuiet(Instant::now()),
            false => ReloadDue::No,
        }
    }

    /// Whether no job is about to start a unit.
    fn is_quiet(&self) -> bool {
        let starts = |key: &JobKey| {
            matches!(
                key,
                JobKey::Instance(_) | JobKey::Pull(_) | JobKey::Sidecar(_)
            )
        };
        !self.jobs.keys().any(starts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_the_folder() {
        let folder = Path::new("/etc/containers/systemd/users/20001");
        let unit = |name: &str| {
            format!(
                "[Unit]\nSourcePath={}/{name}\n\n[Service]\n",
                folder.display()
            )
        };
        let (one, image) = (unit("kat-a.container"), unit("kat-b.image"));
        let output = format!(
            "noise\n---kat-a.service---\n{one}\n---kat-b-image.service---\n{image}\n\
             ---kat-c.service---\n[Unit]\nSourcePath=/home/kat-c.container\n\
             ---kat-d.service---\n[Unit]\nSourcePath={}/kat-a.container\n",
            folder.display()
        );
        let expected = [
            ("kat-a.service".to_owned(), format!("{one}\n")),
            ("kat-b-image.service".to_owned(), format!("{image}\n")),
        ];
        assert_eq!(units_of(&output, folder), BTreeMap::from(expected));
        assert_eq!(unit_of("kat-a.container"), "kat-a.service");
        assert_eq!(unit_of("kat-b.image"), "kat-b-image.service");
    }

    #[test]
    fn a_folder_of_the_users_own_is_seen_whatever_it_is() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        assert!(!may_be_there(base, "containers"));
        assert!(!may_be_there(&base.join("none"), "containers"));
        std::os::unix::fs::symlink("/nonexistent", base.join("containers")).unwrap();
        assert!(may_be_there(base, "containers"));
        std::os::unix::fs::symlink("/nonexistent", base.join(".config")).unwrap();
        assert!(may_be_there(base, OWN_QUADLETS[0]));
    }
}
