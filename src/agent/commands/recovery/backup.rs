//! Makes backups on a machine that holds etcd: for `kat-agent backup`, and for the leader's
//! schedule.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use async_trait::async_trait;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::archive::{self, BackupFacts, BackupHeader, UNFINISHED};
use crate::{
    cluster::{identity::MachineIdentity, keys::MachineKeys},
    commands::setup::StepPrinter,
    disk::{
        disk_child::AnyDiskTask,
        foreign_disks::{DiskLane, DiskTask, ForeignDisks},
    },
    etcd::stores,
};
use kat_host::files::{self, FileAccess};
use kat_leader::Backups;
use kat_pki::{RecoveryKeys, recovery_key::RecoveryKey};
use kat_store as store;
use kat_store::EtcdStore;
use kat_types::machine::network;

/// Largest key file in bytes.
const LIMIT: u64 = 64 << 10;
/// Pieces of etcd's data that are buffered for the disk.
const WAITING: usize = 4;
/// How often a backup is begun while the recovery key is replaced.
const ATTEMPTS: usize = 3;
/// Format of the time in a backup's name.
const TIME: &str = "%Y%m%dT%H%M%SZ";
/// Age from which an unfinished file counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(600);
/// How often a file system that may hang is looked at while a backup waits for it.
const LOOK: Duration = Duration::from_secs(2);
/// How long it may be silent while a backup is written: it may have much to write.
const SILENT: Duration = Duration::from_secs(60);

/// `kat-agent backup`: writes one backup, and returns its path. In a folder the backup gets a
/// generated name; without a path the folder of the scheduled backups is used.
pub(crate) async fn run(path: Option<PathBuf>, say: StepPrinter<'_>) -> anyhow::Result<PathBuf> {
    let identity = super::member()?;
    let now = Timestamp::now();
    let path = path.unwrap_or_else(|| {
        // The path in this machine's own copy of the settings: the store's settings may have
        // changed, but the store may be unreachable.
        PathBuf::from(&identity.cluster.spec.backup_path)
    });
    let local = LocalBackups::new(&identity, &MachineKeys::new(None));
    let path = if path.is_dir() || path == Path::new(&identity.cluster.spec.backup_path) {
        make_folder(&path)?;
        path.join(local.name(now))
    } else {
        check_place(&path)?;
        path
    };
    say("copying what etcd holds");
    let bytes = local.write(&path, now).await?;
    say(&format!(
        "{} of the cluster {}, sealed with its recovery key; keep both away from the machines",
        size(bytes),
        identity.cluster.metadata.name
    ));
    // The cluster knows nothing of a place that a person chose, and whether the backup stays there.
    if path.parent() != Some(Path::new(&identity.cluster.spec.backup_path)) {
        say(&format!(
            "`katcall status` shows the age of the leader's backups in {}, and not of this one",
            identity.cluster.spec.backup_path
        ));
    }
    Ok(path)
}

/// Whether a file can be made at this path: a folder that is missing is an unmounted disk more often
/// than a mistake, so that it is not made.
fn check_place(path: &Path) -> anyhow::Result<()> {
    let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let folder = match is_folder {
        true => Some(path),
        false => path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty()),
    };
    match folder {
        Some(folder) if !folder.is_dir() => anyhow::bail!(
            "{}: there is no such folder; mount its disk, or make it with `sudo mkdir -p`",
            folder.display()
        ),
        _ => Ok(()),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..=9_999_999 => format!("{} kB", bytes.div_ceil(1000)),
        _ => format!("{} MB", bytes / 1_000_000),
    }
}

/// Backups on this machine's disk.
pub(crate) struct LocalBackups {
    identity: Arc<MachineIdentity>,
    keys: MachineKeys,
}

/// The scheduled backups, whose folder may be on a file system that hangs, such as a network file
/// system: there a child process does the work, so that nothing of the agent waits for it.
pub(crate) struct ScheduledBackups {
    local: LocalBackups,
    disks: ForeignDisks,
}

/// What is done in the folder of the backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BackupStep {
    /// Lists the times of the backups, oldest first.
    List,
    /// Makes the backup of this time.
    Take(Timestamp),
    /// Removes the backup of this time.
    Remove(Timestamp),
}

/// One step in the folder of the backups, as the work of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackupWork {
    identity: Arc<MachineIdentity>,
    folder: PathBuf,
    step: BackupStep,
}

impl From<BackupWork> for AnyDiskTask {
    fn from(work: BackupWork) -> Self {
        Self::Backup(work)
    }
}

impl DiskTask for BackupWork {
    const LANE: DiskLane = DiskLane::Backup;
    /// The times of the backups for [`BackupStep::List`], otherwise nothing.
    type Answer = Result<Vec<Timestamp>, String>;

    fn run(self) -> Self::Answer {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let local = LocalBackups::new(&self.identity, &MachineKeys::new(None));
        runtime.block_on(local.step(&self.folder, self.step))
    }
}

impl ScheduledBackups {
    /// Backups of this machine's etcd, on the disks of this machine.
    pub(crate) fn new(
        identity: &Arc<MachineIdentity>,
        keys: &MachineKeys,
        disks: ForeignDisks,
    ) -> Self {
        Self {
            local: LocalBackups::new(identity, keys),
            disks,
        }
    }

    /// Does a step, in a child where the folder is not on one of KAT's own disks. It fails once the
    /// file system has not answered for a while.
    async fn step(&self, folder: &Path, step: BackupStep) -> Result<Vec<Timestamp>, String> {
        let Some(mount) = self.disks.mount_of(folder) else {
            return self.local.step(folder, step).await;
        };
        let work = BackupWork {
            identity: Arc::clone(&self.local.identity),
            folder: folder.to_owned(),
            step,
        };
        let patience = match step {
            BackupStep::List | BackupStep::Remove(_) => Duration::ZERO,
            BackupStep::Take(_) => SILENT,
        };
        let mut done = pin!(self.disks.run(&mount, work));
        let mut since = None;
        loop {
            tokio::select! {
                done = &mut done => return done.map_err(|error| error.to_string())?,
                () = tokio::time::sleep(LOOK) => {}
            }
            let Some(silent) = self.disks.confirmed_silence(BackupWork::LANE, &mount) else {
                since = None;
                continue;
            };
            if since.get_or_insert_with(Instant::now).elapsed() >= patience {
                return Err(silent.to_string());
            }
        }
    }
}

impl LocalBackups {
    /// Backups of this machine's etcd.
    pub(crate) fn new(identity: &Arc<MachineIdentity>, keys: &MachineKeys) -> Self {
        Self {
            identity: Arc::clone(identity),
            keys: keys.clone(),
        }
    }

    /// Does a step. Blocks for as long as the folder's file system does.
    async fn step(&self, folder: &Path, step: BackupStep) -> Result<Vec<Timestamp>, String> {
        match step {
            BackupStep::List => return self.kept_backups(folder),
            BackupStep::Take(now) => self
                .take(folder, now)
                .await
                .map_err(|error| format!("{error:#}"))?,
            BackupStep::Remove(made) => {
                self.remove(folder, made)
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(Vec::new())
    }

    /// The name of a backup made at this time.
    fn name(&self, made: Timestamp) -> String {
        let cluster = &self.identity.cluster.metadata.name;
        format!("kat-{cluster}-{}.backup", made.strftime(TIME))
    }

    /// The time in a backup's name; `None` for other files.
    fn made(&self, name: &str) -> Option<Timestamp> {
        let cluster = &self.identity.cluster.metadata.name;
        let rest = name.strip_prefix(&format!("kat-{cluster}-"))?;
        let time = DateTime::strptime(TIME, rest.strip_suffix(".backup")?).ok()?;
        Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
    }

    /// Times of the backups in the folder, oldest first; empty if the folder does not exist.
    /// Removes unfinished files that are abandoned.
    fn kept_backups(&self, folder: &Path) -> Result<Vec<Timestamp>, String> {
        let mut kept = Vec::new();
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(kept),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let header = || archive::header_of_own(&entry.path());
            if let Some(made) = self.made(name)
                && header()
                    .is_some_and(|header| header.cluster == self.identity.cluster.metadata.name)
            {
                kept.push(made);
            }
            if name.starts_with(UNFINISHED) && is_abandoned(&entry.path()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        kept.sort_unstable();
        Ok(kept)
    }

    async fn take(&self, folder: &Path, now: Timestamp) -> anyhow::Result<()> {
        make_folder(folder)?;
        self.write(&folder.join(self.name(now)), now).await?;
        Ok(())
    }

    fn remove(&self, folder: &Path, made: Timestamp) -> Result<(), files::FileError> {
        files::remove(&folder.join(self.name(made)))?;
        Ok(())
    }

    /// Writes a backup; returns its size in bytes. It is begun again where the recovery key was
    /// replaced meanwhile: etcd's data may then need a key that the backup does not have.
    async fn write(&self, path: &Path, now: Timestamp) -> anyhow::Result<u64> {
        for _ in 0..ATTEMPTS {
            if let Some(bytes) = self.write_once(path, now).await? {
                return Ok(bytes);
            }
        }
        bail!("the recovery key is being replaced; make the backup again in a moment")
    }

    /// `None` if this machine has got another recovery key meanwhile.
    async fn write_once(&self, path: &Path, now: Timestamp) -> anyhow::Result<Option<u64>> {
        let recovery = self.keys.recovery_keys()?;
        let key = recovery.current().clone();
        let (header, facts) = (self.header(&recovery, now), self.facts(&recovery)?);
        let store = self.store().await?;
        let (sender, pieces) = mpsc::channel(WAITING);
        let (tell, whole) = oneshot::channel();
        let target = path.to_owned();
        let writer = tokio::task::spawn_blocking(move || {
            archive::write(&target, &key, (&header, &facts), pieces, whole)
        });
        let copied = store::etcd::snapshot(&store, &sender).await;
        let has_all = has_all(&recovery, &self.keys.recovery_keys()?);
        // The writer waits for the confirmation or for the end of the channel.
        match &copied {
            Ok(_) if has_all => drop(tell.send(())),
            Ok(_) | Err(_) => drop(tell),
        }
        drop(sender);
        // A full disk is reported as the cause, rather than the reading end that stopped because of
        // it.
        match (writer.await?, copied) {
            (Ok(bytes), Ok(_)) => Ok(Some(bytes)),
            (Err(archive::ArchiveError::NotWhole(_)), Ok(_)) if !has_all => Ok(None),
            (Ok(_) | Err(archive::ArchiveError::NotWhole(_)), Err(error)) => {
                Err(error).context("this machine's etcd gives no copy of its data; `systemctl status kat-agent kat-etcd` shows more")
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    async fn store(&self) -> anyhow::Result<EtcdStore> {
        let port = self.identity.cluster.spec.etcd_client_port;
        let own = vec![format!("https://127.0.0.1:{port}")];
        let options = stores::at(&self.keys, own, "leader-etcd")?;
        Ok(EtcdStore::connect(&options).await?)
    }

    fn header(&self, recovery: &RecoveryKeys, now: Timestamp) -> BackupHeader {
        let identity = &self.identity;
        BackupHeader {
            schema: 1,
            cluster: identity.cluster.metadata.name.clone(),
            cluster_uid: identity.cluster_uid.clone(),
            node: identity.node.clone(),
            created: now,
            version: kat_types::VERSION.to_owned(),
            recovery_key: recovery.current().fingerprint(),
        }
    }

    fn facts(&self, recovery: &RecoveryKeys) -> anyhow::Result<BackupFacts> {
        let wireguard = Path::new(network::FOLDER).join(network::PRIVATE_KEY_FILE);
        Ok(BackupFacts {
            identity: MachineIdentity::clone(&self.identity),
            authorities: self.keys.authorities()?,
            node_key: self.keys.leaf("node")?.key_pem,
            api_key: self.keys.api_key()?,
            wireguard_key: files::read_text(&wireguard, LIMIT)?,
            other_recovery_keys: recovery.others().iter().map(RecoveryKey::reveal).collect(),
        })
    }
}

#[async_trait]
impl Backups for ScheduledBackups {
    async fn kept_backups(&self, folder: &Path) -> Result<Vec<Timestamp>, String> {
        self.step(folder, BackupStep::List).await
    }

    async fn take(&self, folder: &Path, now: Timestamp) -> Result<(), String> {
        self.step(folder, BackupStep::Take(now)).await.map(drop)
    }

    async fn remove(&self, folder: &Path, made: Timestamp) -> Result<(), String> {
        self.step(folder, BackupStep::Remove(made)).await.map(drop)
    }
}

/// Whether a backup with the keys `held` has all that are there `now`.
fn has_all(held: &RecoveryKeys, now: &RecoveryKeys) -> bool {
    now.all()
        .all(|key| held.with_fingerprint(&key.fingerprint()).is_some())
}

fn is_abandoned(path: &Path) -> bool {
    let modified = path.metadata().and_then(|metadata| metadata.modified());
    let age = modified.map(|then| SystemTime::now().duration_since(then).unwrap_or_default());
    age.is_ok_and(|age| age >= ABANDONED)
}

/// Makes the folder of backups with its parents; an existing folder keeps its mode.
fn make_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if folder.exists() {
        bail!("{}: it is no folder", folder.display());
    }
    if let Some(parent) = folder.parent() {
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    files::ensure_folder(folder, FileAccess::mode(0o700))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_into_a_folder_that_is_missing_says_which() {
        let folder = tempfile::tempdir().unwrap();
        let below = |path: &str| folder.path().join(path);
        assert!(check_place(&below("new.backup")).is_ok());
        assert!(check_place(Path::new("new.backup")).is_ok());
        for missing in ["usb/", "usb/new.backup"] {
            let error = check_place(&below(missing)).unwrap_err().to_string();
            assert!(error.contains("usb"), "{error}");
            assert!(error.contains("there is no such folder"), "{error}");
        }
    }
    use crate::tests::hung_disk::{HungDisk, OwnDisk, child_command};
    use kat_types::machine::root::Root;

    fn local() -> LocalBackups {
        LocalBackups::new(
            &Arc::new(MachineIdentity::example("n1")),
            &MachineKeys::new(None),
        )
    }

    /// Writes a complete backup without any data of etcd.
    fn write_backup(local: &LocalBackups, path: &Path) {
        let key = kat_pki::recovery_key::RecoveryKey::generate().unwrap();
        let header = BackupHeader {
            schema: 1,
            cluster: local.identity.cluster.metadata.name.clone(),
            cluster_uid: local.identity.cluster_uid.clone(),
            node: local.identity.node.clone(),
            created: Timestamp::UNIX_EPOCH,
            version: kat_types::VERSION.to_owned(),
            recovery_key: key.fingerprint(),
        };
        let facts = BackupFacts {
            identity: MachineIdentity::clone(&local.identity),
            authorities: std::collections::BTreeMap::new(),
            node_key: String::new(),
            api_key: String::new(),
            wireguard_key: String::new(),
            other_recovery_keys: Vec::new(),
        };
        let (sender, pieces) = mpsc::channel(1);
        let (tell, whole) = oneshot::channel();
        drop(sender);
        tell.send(()).unwrap();
        // `archive::write` blocks, which the tests' runtime does not allow on its own thread.
        let path = path.to_owned();
        let writer = std::thread::spawn(move || {
            archive::write(&path, &key, (&header, &facts), pieces, whole)
        });
        writer.join().unwrap().unwrap();
    }

    fn scheduled(root: &Path) -> ScheduledBackups {
        let disks = ForeignDisks::new(&Root::new(root)).with_command(child_command());
        let identity = Arc::new(MachineIdentity::example("n1"));
        ScheduledBackups::new(&identity, &MachineKeys::new(None), disks)
    }

    #[tokio::test]
    async fn on_another_file_system_a_child_lists_makes_and_removes_backups() {
        let root = tempfile::tempdir().unwrap();
        let point = root.path().join("nas");
        let _disk = OwnDisk::mount(&point, &root.path().join("memory"));
        let backups = scheduled(root.path());
        let folder = point.join("backups");
        assert_eq!(backups.disks.mount_of(&folder), Some(point.clone()));
        assert_eq!(backups.kept_backups(&folder).await.unwrap(), []);
        // This machine has no keys of a member.
        let made: Timestamp = "2026-11-22T03:45:07Z".parse().unwrap();
        assert!(backups.take(&folder, made).await.is_err());
        assert!(folder.is_dir());
        write_backup(&backups.local, &folder.join(backups.local.name(made)));
        assert_eq!(backups.kept_backups(&folder).await.unwrap(), [made]);
        backups.remove(&folder, made).await.unwrap();
        assert_eq!(backups.kept_backups(&folder).await.unwrap(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_does_not_answer_is_a_failure_and_not_a_wait() {
        let root = tempfile::tempdir().unwrap();
        let point = root.path().join("nas");
        let disk = HungDisk::mount(&point);
        let backups = scheduled(root.path());
        let folder = point.join("backups");
        for _ in 0..2 {
            let why = backups.kept_backups(&folder).await.unwrap_err();
            assert!(why.contains("nas has not answered since 20"), "{why}");
        }
        let why = backups.take(&folder, Timestamp::now()).await.unwrap_err();
        assert!(why.contains("has not answered since 20"), "{why}");
        drop(disk);
        assert_eq!(backups.kept_backups(&folder).await.unwrap(), []);
    }

    #[test]
    fn a_backup_that_lacks_a_recovery_key_of_its_end_is_made_again() {
        let [first, second] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let one = RecoveryKeys::from(first.clone());
        let both = RecoveryKeys::new(second.clone(), [first]);
        assert!(has_all(&one, &one) && has_all(&both, &one));
        assert!(has_all(&both, &second.clone().into()));
        assert!(!has_all(&one, &both) && !has_all(&one, &second.into()));
    }

    #[test]
    fn only_backups_of_this_cluster_are_seen_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let local = local();
        let written = |name: &str| write_backup(&local, &folder.path().join(name));
        let made: Timestamp = "2026-11-22T03:45:07Z".parse().unwrap();
        assert_eq!(local.name(made), "kat-kat-20261122T034507Z.backup");
        let others = [
            "kat-other-20261122T034507Z.backup",
            "kat-kat-20261122T034507Z.backup.old",
            "kat-kat-.backup",
            "kat-kat-20261399T034507Z.backup",
            ".kat-backup-x",
            "mine.backup",
        ];
        for name in others {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        written("kat-kat-20261122T034507Z.backup");
        written("kat-kat-20251122T034507Z.backup");
        let earlier: Timestamp = "2025-11-22T03:45:07Z".parse().unwrap();
        assert_eq!(local.kept_backups(folder.path()).unwrap(), [earlier, made]);
        local.remove(folder.path(), earlier).unwrap();
        assert_eq!(local.kept_backups(folder.path()).unwrap(), [made]);
        for name in others {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        // Files that are not KAT's do not count as backups: a file of another user, an empty file,
        // a link to a backup.
        let foreign = folder.path().join("kat-kat-20271122T034507Z.backup");
        written("kat-kat-20271122T034507Z.backup");
        // Control: the file counts as a backup while root owns it.
        assert_eq!(local.kept_backups(folder.path()).unwrap().len(), 2);
        std::os::unix::fs::chown(&foreign, Some(20_003), None).unwrap();
        std::fs::write(folder.path().join("kat-kat-20281122T034507Z.backup"), "").unwrap();
        let link = folder.path().join("kat-kat-20291122T034507Z.backup");
        std::os::unix::fs::symlink(local.name(made), link).unwrap();
        assert_eq!(local.kept_backups(folder.path()).unwrap(), [made]);
        let nowhere = local.kept_backups(&folder.path().join("none"));
        assert_eq!(nowhere.unwrap(), []);
    }
}
