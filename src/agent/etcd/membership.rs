//! Makes the machine a member of etcd, or ends its membership, as the leader's member list says.
//!
//! The agent changes the files on the disk and then restarts: its role is read only once, at its
//! start. Workloads continue meanwhile.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::{
        cluster_cache::{ClusterCache, ClusterCacheReceiver},
        identity::MachineIdentity,
        keys::MachineKeys,
        machine,
    },
    commands::{
        host_files, recovery,
        recovery::{EpochCheck, EpochQuestion, StoreStanding},
    },
    service::paths,
};
use kat_daemon::watchdog::LoopPulses;
use kat_host::files::{self, FileAccess};
use kat_render::ETCD_FOLDER;
use kat_systemd::{ManagerSource, SystemdError, UnitManager};
use kat_types::store::members::MemberRecord;

/// Pause after a failed change.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Longest stop of etcd.
const STOP_LIMIT: Duration = Duration::from_secs(45);
/// Largest file with a member's id in bytes.
const LIMIT: u64 = 64;

/// The change of this machine's role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoleChange {
    Stay,
    Begin,
    /// The machine is a member; its member id has to be stored.
    Remember,
    /// The machine is no longer a member, or its member was replaced and it has to start again
    /// without data.
    End,
    /// Another machine has this one's name and keys since a restore.
    Replaced,
}

/// `own` is the stored id of this machine's member, if there is one.
fn role_change(identity: &MachineIdentity, known: &ClusterCache, own: Option<&str>) -> RoleChange {
    match (identity.etcd, known.member(identity)) {
        (false, None) if known.prepares(identity) => RoleChange::Begin,
        // Its etcd waits until it is a member.
        (true, None) if known.prepares(identity) => RoleChange::Stay,
        (false, None) => RoleChange::Stay,
        (false, Some(_)) => RoleChange::Begin,
        // Until the leader has written the member list, the first machine is the only member.
        (true, None) if known.members.members.is_empty() => RoleChange::Stay,
        (true, None) => RoleChange::End,
        (true, Some(member)) => match own {
            None => RoleChange::Remember,
            Some(own) if own == member.id => RoleChange::Stay,
            Some(_) => RoleChange::End,
        },
    }
}

/// Whether the leader's list has no member for this machine or one with another id: then its etcd
/// is being stopped for good, and must not be started meanwhile.
pub(crate) fn is_out(identity: &MachineIdentity, known: &ClusterCache) -> bool {
    role_change(identity, known, read_own().as_deref()) == RoleChange::End
}

/// Returns when the agent has to restart, or with `cancel`. `replaced` says that the state stream of
/// another machine proves [`RoleChange::Replaced`].
pub(crate) async fn follow(
    identity: Arc<MachineIdentity>,
    keys: MachineKeys,
    managers: Arc<dyn ManagerSource>,
    mut known: ClusterCacheReceiver,
    mut replaced: watch::Receiver<bool>,
    pulses: LoopPulses,
    cancel: CancellationToken,
) {
    let pulse = pulses.watch("etcd membership");
    let work = async {
        // Left by an unfinished change: a machine without etcd must have no authority.
        if !identity.etcd
            && let Err(error) = clear(&keys, managers.system().as_ref()).await
        {
            tracing::error!("what only a member has is left on this machine: {error:#}");
        }
        let lookout = EpochCheck {
            identity: Arc::clone(&identity),
            keys: keys.clone(),
            turns: AtomicUsize::default(),
        };
        loop {
            pulse.beat();
            let now = known.borrow_and_update().clone();
            let own = read_own();
            let is_replaced = *replaced.borrow_and_update();
            let standing = match is_replaced {
                true => StoreStanding::Replaced,
                false => lookout.standing(&now).await,
            };
            let decided = match standing {
                StoreStanding::Replaced => RoleChange::Replaced,
                StoreStanding::Outdated => RoleChange::End,
                StoreStanding::Current => role_change(&identity, &now, own.as_deref()),
            };
            let done = match decided {
                RoleChange::Stay => Ok(false),
                RoleChange::Remember => remember(&identity, &now).map(|()| false),
                RoleChange::Begin => begin(&identity, &keys, &now).await.map(|()| true),
                RoleChange::End => end(&keys, managers.system().as_ref()).await.map(|()| true),
                RoleChange::Replaced => {
                    stand_aside(managers.system().as_ref()).await.map(|()| true)
                }
            };
            match done {
                Ok(true) => return,
                Ok(false) => {
                    let news = async {
                        tokio::select! {
                            changed = known.changed() => changed,
                            changed = replaced.changed() => changed,
                        }
                    };
                    let changed = timeout(recovery::LOOKOUT_INTERVAL, news);
                    if let Ok(Err(_)) = pulse.wait(changed).await {
                        pulse.wait(std::future::pending::<()>()).await;
                    }
                }
                Err(error) => {
                    tracing::warn!("this machine's part in the store can't change yet: {error:#}");
                    sleep(AFTER_FAILURE).await;
                }
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

fn read_own() -> Option<String> {
    id_in(Path::new(paths::MEMBER))
}

fn id_in(file: &Path) -> Option<String> {
    files::read_text(file, LIMIT).ok()
}

fn remember(identity: &MachineIdentity, known: &ClusterCache) -> anyhow::Result<()> {
    let member = known.member(identity).context("it is no member")?;
    let access = FileAccess::mode(0o600);
    files::write_atomic(Path::new(paths::MEMBER), member.id.as_bytes(), access)?;
    Ok(())
}

/// Fetches the authorities from the leader; the machine is a member from the next start on, or its
/// etcd waits until it is one.
async fn begin(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> anyhow::Result<()> {
    tracing::info!("this machine is to hold the cluster's store");
    let member = known.member(identity);
    let same = member.is_some_and(|one| has_data() && read_own().as_ref() == Some(&one.id));
    if member.is_some_and(|member| member.voting) && !same {
        bail!(
            "its member has a vote and its data is gone from this machine; the leader takes that member out and makes it anew"
        );
    }
    let given = machine::membership(identity, known, keys).await?;
    keys.store_authorities(&given)?;
    if !same {
        // Data of an earlier membership must not be used for this one.
        empty_data()?;
    }
    match member {
        Some(_) => remember(identity, known)?,
        None => {
            files::remove(Path::new(paths::MEMBER))?;
        }
    }
    write_role(true)
}

/// Ends this machine's membership if the store was created anew on another machine while it was
/// away, and its part in the cluster if that machine has its name. This is checked before etcd
/// starts, since two such members could form a quorum. True when the agent has to restart.
pub(crate) async fn give_up_outdated(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
    system: &dyn UnitManager,
) -> anyhow::Result<bool> {
    if !identity.etcd {
        return Ok(false);
    }
    // The keys are sealed first, which makes the recovery key: other members' statements about the
    // store's epoch are sealed with it.
    if keys.seal_authorities()? {
        tracing::info!(
            "the authorities' keys are sealed now; `kat-agent recovery-key` shows the key that opens them and backups: keep it away from the machines"
        );
    }
    let standing = recovery::store_standing(identity, keys, known, EpochQuestion::Patient).await;
    match standing {
        StoreStanding::Current => return Ok(false),
        StoreStanding::Outdated => end(keys, system).await?,
        StoreStanding::Replaced => stand_aside(system).await?,
    }
    Ok(true)
}

/// Marks that another machine has this one's place, and stops etcd. The old data stays: it may have
/// what the backup has not.
async fn stand_aside(system: &dyn UnitManager) -> anyhow::Result<()> {
    // etcd goes also where the disk takes no mark.
    let marked = recovery::mark_replaced();
    stop(system).await?;
    marked
}

/// Stops etcd and removes the files that only a member has; the machine is a worker from the next
/// start on.
async fn end(keys: &MachineKeys, system: &dyn UnitManager) -> anyhow::Result<()> {
    tracing::info!("this machine holds the cluster's store no more");
    stop(system).await?;
    // The role is written first: whatever fails after this, the machine does not start with keys
    // that it must not have.
    write_role(false)?;
    clear(keys, system).await
}

/// Stops etcd.
pub(crate) async fn stop(system: &dyn UnitManager) -> anyhow::Result<()> {
    match system.stop(host_files::ETCD, STOP_LIMIT).await {
        Ok(_) | Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes everything that only a member has, also after an interrupted removal.
async fn clear(keys: &MachineKeys, system: &dyn UnitManager) -> anyhow::Result<()> {
    stop(system).await?;
    // etcd without a quorum may have to be killed; a failed unit would stay without its file.
    match system.reset_failed(host_files::ETCD).await {
        Ok(()) | Err(SystemdError::NoSuchUnit(_)) => {}
        Err(error) => tracing::warn!("etcd's unit stays failed: {error:#}"),
    }
    files::remove(Path::new("/etc/systemd/system/kat-etcd.service"))?;
    files::remove(Path::new(paths::MEMBER))?;
    empty_data()?;
    keys.forget_authorities()?;
    Ok(())
}

fn write_role(etcd: bool) -> anyhow::Result<()> {
    MachineIdentity::update(Path::new(paths::IDENTITY), |identity| identity.etcd = etcd)
}

/// Whether etcd has become a member here: it writes its log only then.
pub(crate) fn has_data() -> bool {
    log().exists()
}

fn log() -> PathBuf {
    Path::new(ETCD_FOLDER).join("member/wal")
}

/// Looks for [`lost_data`] on a thread of its own, so that a disk of etcd that hangs stops no report.
#[derive(Debug)]
pub(crate) struct LostDataReader {
    /// etcd's log.
    log: PathBuf,
    /// The file with the id of this machine's member.
    own: PathBuf,
    /// The member that was found without its data.
    newest: Arc<Mutex<Option<String>>>,
    /// A thread looks.
    looking: Arc<AtomicBool>,
}

impl Default for LostDataReader {
    fn default() -> Self {
        Self::new(log(), paths::MEMBER.into())
    }
}

impl LostDataReader {
    fn new(log: PathBuf, own: PathBuf) -> Self {
        Self {
            log,
            own,
            newest: Arc::default(),
            looking: Arc::default(),
        }
    }

    /// The id of this machine's member, if the last look found it without its data. Begins to look
    /// again, unless an earlier look has not ended.
    pub(crate) fn newest(
        &self,
        identity: &MachineIdentity,
        known: &ClusterCache,
    ) -> Option<String> {
        let member = known.member(identity)?.clone();
        if !self.looking.swap(true, Ordering::AcqRel) {
            let (newest, looking) = (Arc::clone(&self.newest), Arc::clone(&self.looking));
            let (member, log, own) = (member.clone(), self.log.clone(), self.own.clone());
            let thread = std::thread::Builder::new().name("etcd's data".to_owned());
            let started = thread.spawn(move || {
                // The disk is looked at after the cluster's state, which is older then.
                let found = lost(&member, log.exists(), id_in(&own).as_deref());
                *newest.lock() = found;
                looking.store(false, Ordering::Release);
            });
            if let Err(error) = started {
                self.looking.store(false, Ordering::Release);
                tracing::warn!("a thread that looks for etcd's data can't be started: {error:#}");
            }
        }
        let found = self.newest.lock().clone();
        found.filter(|lost| *lost == member.id)
    }
}

/// The id of this machine's member, if it has a vote and its data is missing. etcd must not start
/// as that member again: it would have forgotten its votes and the entries that it acknowledged.
/// The leader removes the member and adds it again.
pub(crate) fn lost_data(identity: &MachineIdentity, known: &ClusterCache) -> Option<String> {
    lost(known.member(identity)?, has_data(), read_own().as_deref())
}

fn lost(member: &MemberRecord, has_data: bool, own: Option<&str>) -> Option<String> {
    let same = own.is_none_or(|own| own == member.id);
    (member.voting && !(has_data && same)).then(|| member.id.clone())
}

fn empty_data() -> anyhow::Result<()> {
    match std::fs::remove_dir_all(Path::new(ETCD_FOLDER).join("member")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(ETCD_FOLDER)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::hung_disk::HungDisk;
    use kat_types::store::members::ClusterMembers;

    #[test]
    fn the_role_follows_what_the_leader_wrote() {
        let identity = |etcd| MachineIdentity {
            etcd,
            ..MachineIdentity::example("n2")
        };
        let known = |members: &[(&str, &str)]| {
            let record = |id: &str| MemberRecord {
                id: id.to_owned(),
                ..MemberRecord::default()
            };
            let members = members.iter().map(|(n, id)| ((*n).to_owned(), record(id)));
            ClusterCache {
                members: ClusterMembers {
                    schema: 1,
                    members: members.collect(),
                    ..ClusterMembers::default()
                },
                ..ClusterCache::default()
            }
        };
        let nobody = known(&[]);
        let other = known(&[("n1", "a")]);
        let both = known(&[("n1", "a"), ("n2", "b")]);
        for (etcd, known, own, expected) in [
            (false, &nobody, None, RoleChange::Stay),
            (false, &other, None, RoleChange::Stay),
            (false, &both, None, RoleChange::Begin),
            (true, &nobody, None, RoleChange::Stay),
            (true, &both, None, RoleChange::Remember),
            (true, &both, Some("b"), RoleChange::Stay),
            // The member was removed and added again while this machine was away, so its data is
            // useless.
            (true, &both, Some("c"), RoleChange::End),
            (true, &other, Some("b"), RoleChange::End),
        ] {
            let found = role_change(&identity(etcd), known, own);
            assert_eq!(found, expected, "{etcd} {known:?} {own:?}");
        }
    }

    #[test]
    fn a_report_about_lost_data_waits_for_no_disk() {
        let folder = tempfile::tempdir().unwrap();
        let point = folder.path().join("etcd");
        let own = folder.path().join("member");
        std::fs::write(&own, "b").unwrap();
        let identity = MachineIdentity::example("n2");
        let known = |id: &str| {
            let member = MemberRecord {
                id: id.to_owned(),
                voting: true,
                ..MemberRecord::default()
            };
            let mut known = ClusterCache::default();
            known.members.members.insert("n2".to_owned(), member);
            known
        };
        let reader = LostDataReader::new(point.join("member/wal"), own);
        let until = |known: &ClusterCache, expected: Option<&str>| {
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while reader.newest(&identity, known).as_deref() != expected {
                assert!(std::time::Instant::now() < deadline, "{expected:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until(&known("b"), Some("b"));
        std::fs::create_dir_all(point.join("member/wal")).unwrap();
        until(&known("b"), None);
        // As a member of another id, its data is another one's.
        until(&known("c"), Some("c"));
        let disk = HungDisk::mount(&point);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while disk.asked() == 0 {
            // What was found before stays.
            assert_eq!(reader.newest(&identity, &known("c")).as_deref(), Some("c"));
            assert!(std::time::Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        for _ in 0..3 {
            assert_eq!(reader.newest(&identity, &known("c")).as_deref(), Some("c"));
            assert_eq!(reader.newest(&identity, &known("b")), None);
        }
        drop(disk);
        until(&known("b"), None);
    }

    /// Its etcd waits, so that it starts in the moment in which it becomes a member.
    #[test]
    fn a_machine_that_prepares_starts_an_etcd_and_ends_it_when_it_is_not_wanted_any_more() {
        let identity = |etcd| MachineIdentity {
            etcd,
            ..MachineIdentity::example("n3")
        };
        let record = |id: &str| MemberRecord {
            id: id.to_owned(),
            ..MemberRecord::default()
        };
        let known = |members: &[&str], next: &[&str]| ClusterCache {
            members: ClusterMembers {
                schema: 1,
                members: members
                    .iter()
                    .map(|name| ((*name).to_owned(), record(name)))
                    .collect(),
                next: next.iter().map(|name| (*name).to_owned()).collect(),
                ..ClusterMembers::default()
            },
            ..ClusterCache::default()
        };
        let prepares = known(&["n1", "n2"], &["n3"]);
        let added = known(&["n1", "n2", "n3"], &[]);
        let not_any_more = known(&["n1", "n2"], &[]);
        for (etcd, known, own, expected) in [
            (false, &prepares, None, RoleChange::Begin),
            (true, &prepares, None, RoleChange::Stay),
            (true, &added, None, RoleChange::Remember),
            (true, &not_any_more, None, RoleChange::End),
        ] {
            let found = role_change(&identity(etcd), known, own);
            assert_eq!(found, expected, "{etcd} {known:?} {own:?}");
        }
    }

    #[test]
    fn only_a_member_with_a_vote_can_have_lost_its_data() {
        let member = |voting| MemberRecord {
            id: "b".to_owned(),
            voting,
            healthy: false,
        };
        for (voting, has_data, own, expected) in [
            (true, true, Some("b"), None),
            // The first machine has not read its member id yet.
            (true, true, None, None),
            (true, false, Some("b"), Some("b")),
            (true, false, None, Some("b")),
            // The data belongs to an earlier membership.
            (true, true, Some("a"), Some("b")),
            // The member starts for the first time.
            (false, false, Some("b"), None),
        ] {
            let found = lost(&member(voting), has_data, own);
            assert_eq!(found.as_deref(), expected, "{voting} {has_data} {own:?}");
        }
    }
}
