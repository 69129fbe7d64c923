//! Makes a store with one member out of earlier data, and writes the changed state into it.
//!
//! As etcd's documentation advises, a snapshot is restored instead of using `--force-new-cluster`:
//! the new member has another id in another cluster, so that no member of the old one can
//! communicate with it. The revision is increased by a large step, so that a watcher of the old
//! store never takes an old revision for a new one.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::super::{host_files, setup};
use crate::{
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys},
    desired_state::kept_position::PositionFile,
    etcd::stores,
    network::overlay,
    service::paths,
};
use kat_host::{
    files::{self, FileAccess},
    users::Users,
};
use kat_pki::{epoch_proof::epoch_verifier, recovery_key::RecoveryKey};
use kat_plan::EventLog;
use kat_render::{ETCD_FOLDER, ETCD_USER, Renderer};
use kat_store::{EtcdStore, StateStore, TransactionResult, etcd_admin};
use kat_systemd::UnitManager;
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference, StoreEpoch},
    encoding::json,
    reason::EventReason,
    resource::ClusterConfiguration,
    store::{
        authorities::{AuthorityRecord, ReplaceableKey, RotationReason},
        configuration::ConfigurationRecord,
        keys,
        members::ClusterEndpoints,
        records::{NodeRegistration, NodeStatusRecord},
        transaction::{KeyValue, WriteOperation},
    },
};

const ETCDUTL: &str = "/usr/bin/etcdutl";
/// Step of the revision; etcd's manual advises this value for a store with many writes.
const LEAP: &str = "1000000000";
/// Largest marker file in bytes.
const LIMIT: u64 = 64 << 10;

/// A command that creates the store anew, in a marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RecoveryCommand {
    /// `kat-agent recover`.
    Recover,
    /// `kat-agent restore`.
    Restore,
    /// A command of a newer version: the agent must not run, and only that version continues it.
    #[serde(untagged)]
    Other(String),
}

impl fmt::Display for RecoveryCommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Recover => "recover",
            Self::Restore => "restore",
            Self::Other(word) => word,
        })
    }
}

/// The content of `/var/lib/kat/recovery.json`: a store is being created anew, and the agent must
/// not run meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecoveryMarker {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The unfinished command.
    pub command: RecoveryCommand,
    /// The epoch of the new store.
    pub epoch: u64,
}

impl RecoveryMarker {
    /// Reads the marker of an unfinished command.
    pub(super) fn read() -> anyhow::Result<Option<Self>> {
        let path = Path::new(paths::RECOVERY);
        match files::read_text(path, LIMIT) {
            Ok(text) => serde_json::from_str(&text)
                .map(Some)
                .context(paths::RECOVERY),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the marker.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let text = json::bytes(paths::RECOVERY, self)?;
        files::write_atomic(Path::new(paths::RECOVERY), &text, FileAccess::mode(0o600))?;
        Ok(())
    }

    /// Removes the marker at the end of the command.
    pub(super) fn remove() -> anyhow::Result<()> {
        files::remove(Path::new(paths::RECOVERY))?;
        Ok(())
    }
}

/// The next epoch: the time in milliseconds, but always later than the previous epoch.
pub(super) fn next_epoch(before: u64, now: Timestamp) -> u64 {
    let now = u64::try_from(now.as_millisecond()).unwrap_or(0);
    now.max(before.saturating_add(1))
}

/// etcd's folders while the store is being created anew.
pub(super) struct EtcdFolders {
    folder: PathBuf,
}

impl EtcdFolders {
    pub(super) fn new() -> Self {
        Self {
            folder: ETCD_FOLDER.into(),
        }
    }

    /// The present data of etcd.
    fn member(&self) -> PathBuf {
        self.folder.join("member")
    }

    /// The earlier data, put aside.
    fn before(&self) -> PathBuf {
        self.folder.join("before")
    }

    /// The new data until it is put in place.
    fn made(&self) -> PathBuf {
        self.folder.join("made")
    }

    /// Whether the earlier data was put aside already.
    pub(super) fn has_begun(&self) -> bool {
        self.before().exists()
    }

    /// Checks that this machine's data can be used, before anything is stopped.
    ///
    /// # Errors
    /// The data is missing, or etcdutl is not installed.
    pub(super) fn check_own(&self) -> anyhow::Result<()> {
        let source = self.member().join("snap/db");
        if !source.exists() {
            bail!(
                "{} is missing: this machine has no data of the store; recover on another that holds it, or `kat-agent restore` begins from a backup",
                source.display()
            );
        }
        if !Path::new(ETCDUTL).exists() {
            bail!("{ETCDUTL} is missing; it comes with `sudo apt install etcd-client`");
        }
        Ok(())
    }

    /// Creates the store anew from the data of this machine's member; etcd must not run. Continues
    /// an interrupted run: the earlier data is kept until [`Self::forget`].
    pub(super) async fn begin_from_own(
        &self,
        identity: &MachineIdentity,
        epoch: u64,
    ) -> anyhow::Result<()> {
        if !self.before().exists() {
            let source = self.member().join("snap/db");
            if !source.exists() {
                bail!(
                    "{} is missing: this machine has no data of the store; `kat-agent restore` begins from a backup",
                    source.display()
                );
            }
            self.make(&source, true, identity, epoch).await?;
            fs::rename(self.member(), self.before())
                .with_context(|| self.before().display().to_string())?;
        }
        self.put_in_place()
    }

    /// Creates the store anew from a snapshot; existing data is replaced.
    pub(super) async fn begin_from_snapshot(
        &self,
        snapshot: &Path,
        identity: &MachineIdentity,
        epoch: u64,
    ) -> anyhow::Result<()> {
        self.make(snapshot, false, identity, epoch).await?;
        remove_folder(&self.member())?;
        self.put_in_place()
    }

    /// Removes the earlier data.
    pub(super) fn forget(&self) -> anyhow::Result<()> {
        remove_folder(&self.before())?;
        remove_folder(&self.made())
    }

    fn put_in_place(&self) -> anyhow::Result<()> {
        if !self.member().exists() {
            let made = self.made().join("member");
            fs::rename(&made, self.member()).with_context(|| made.display().to_string())?;
        }
        sync(&self.folder).with_context(|| self.folder.display().to_string())
    }

    async fn make(
        &self,
        source: &Path,
        own: bool,
        identity: &MachineIdentity,
        epoch: u64,
    ) -> anyhow::Result<()> {
        let made = self.made();
        remove_folder(&made)?;
        let url = format!(
            "https://{}:{}",
            identity.overlay_address(),
            identity.cluster.spec.etcd_peer_port
        );
        let mut command = Command::new(ETCDUTL);
        command.args(["snapshot", "restore"]).arg(source);
        command.arg("--data-dir").arg(&made);
        command.args(["--name", &identity.node]);
        command.args(["--initial-cluster", &format!("{}={url}", identity.node)]);
        command.args(["--initial-advertise-peer-urls", &url]);
        command.args(["--initial-cluster-token", &format!("kat-{epoch}")]);
        command.args(["--bump-revision", LEAP, "--mark-compacted"]);
        if own {
            // Only snapshots have a hash at their end.
            command.arg("--skip-hash-check=true");
        }
        let output = match command.output().await {
            Ok(output) => output,
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "{ETCDUTL} is missing; it comes with etcd's client: `sudo apt install etcd-client`"
            ),
            Err(error) => return Err(error).context(ETCDUTL),
        };
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            let last = words.trim().lines().last().unwrap_or_default();
            bail!(
                "etcdutl can't begin a store from {}: {last}",
                source.display()
            );
        }
        give_to_etcd(&made)?;
        sync(&made).with_context(|| made.display().to_string())
    }
}

/// Writes the file system of the folder to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    let folder = File::open(folder)?;
    rustix::fs::syncfs(&folder)?;
    Ok(())
}

fn remove_folder(path: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Gives the data to etcd's user; no other user can read it.
fn give_to_etcd(folder: &Path) -> anyhow::Result<()> {
    let accounts = Users::new().accounts()?;
    let user = accounts
        .user(ETCD_USER)
        .with_context(|| format!("the user {ETCD_USER} is missing"))?;
    let (uid, gid) = (user.uid, user.gid);
    let mut waiting = vec![folder.to_owned()];
    while let Some(path) = waiting.pop() {
        let mut give = || -> io::Result<()> {
            chown(&path, Some(uid), Some(gid))?;
            if path.is_dir() {
                for entry in fs::read_dir(&path)? {
                    waiting.push(entry?.path());
                }
            }
            Ok(())
        };
        give().with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Starts etcd with the new data, and waits until it serves.
pub(super) async fn start_etcd(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    system: &dyn UnitManager,
) -> anyhow::Result<EtcdStore> {
    let renderer = Renderer::installed()?;
    let alone = ClusterCache::default();
    setup::write_host_file(&host_files::etcd(&renderer, identity, &alone)?)?;
    system.reload().await?;
    let limit = Duration::from_secs(60);
    let deadline = tokio::time::Instant::now() + limit;
    overlay::wait_for_address(identity.overlay_address().into(), limit)
        .await
        .context("kat0 did not come up; `journalctl -u kat-net -u kat-wg` says why")?;
    setup::start(system, host_files::ETCD).await?;
    let store = stores::leader(identity, keys, &alone).await?;
    loop {
        match store.health().await {
            Ok(_) => return Ok(store),
            Err(error) if tokio::time::Instant::now() >= deadline => {
                return Err(error)
                    .context("etcd does not serve; `journalctl -u kat-etcd` says why");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// What is written into a store that was created anew.
pub(super) struct RebuiltStoreValues<'a> {
    /// The machine that holds the store.
    pub identity: &'a MachineIdentity,
    /// Epoch of the new store.
    pub epoch: &'a StoreEpoch,
    /// `host:port` of the machine's WireGuard, where that has changed.
    pub endpoints: Option<Vec<String>>,
    /// Message of the event.
    pub message: String,
}

/// The record of an authority or of the recovery key in a store that was created anew. A replacement
/// that was under way needs machines that are gone, and its new authority may be on none of those
/// that remain: it is done anew. What is replaced by request alone stays as it is otherwise, also
/// because the backup opens with the recovery key that a person has.
fn of_rebuilt_store(name: &str, record: AuthorityRecord, now: Timestamp) -> AuthorityRecord {
    let by_request = ReplaceableKey::from_name(name).is_some_and(ReplaceableKey::by_request_alone);
    let under_way = record.rotation.as_ref();
    let due = match by_request {
        true => record.due.or(under_way.map(|rotation| rotation.reason)),
        false => Some(RotationReason::StoreReplaced),
    };
    AuthorityRecord {
        due,
        due_since: due.and(record.due_since.or(Some(now))),
        grace_seconds: under_way.map_or(record.grace_seconds, |rotation| rotation.grace_seconds),
        rotation: None,
        ..record
    }
}

/// The configuration of a store that was created anew, as a change that no machine has read: each
/// machine takes it, also one that follows a change which this store does not have, and confirms it.
/// Leaders go by the longest time that is known here until then. What a later version wrote stays.
fn of_rebuilt_configuration(
    cluster: Option<&KeyValue>,
    wanted: Option<&KeyValue>,
    own: &ClusterConfiguration,
    change: &str,
) -> anyhow::Result<Vec<WriteOperation>> {
    let read = cluster.map(|stored| serde_json::from_slice::<ClusterConfiguration>(&stored.value));
    let Some(Ok(mut cluster)) = read else {
        return Ok(Vec::new());
    };
    let wanted = match wanted {
        Some(stored) => serde_json::from_slice::<ConfigurationRecord>(&stored.value).ok(),
        None => Some(ConfigurationRecord::of_init(cluster.clone())),
    };
    let mut operations = Vec::new();
    let seconds = &mut cluster.spec.node_loss_timeout_seconds;
    *seconds = (*seconds).max(own.spec.node_loss_timeout_seconds);
    if let Some(mut wanted) = wanted {
        change.clone_into(&mut wanted.change);
        *seconds = (*seconds).max(wanted.configuration.spec.node_loss_timeout_seconds);
        operations.push(WriteOperation::Put(
            keys::WANTED_CONFIGURATION.to_owned(),
            json::bytes(keys::WANTED_CONFIGURATION, &wanted)?,
        ));
    }
    operations.push(WriteOperation::Put(
        keys::CLUSTER.to_owned(),
        json::bytes(keys::CLUSTER, &cluster)?,
    ));
    Ok(operations)
}

/// Records in the store that this machine alone holds it and that there is no leader, before any
/// agent reads the store. May be repeated. Returns the names of the machines that held the store
/// before.
///
/// No leader can write this: no agent runs that could be elected (the exception is named in
/// invariant 2).
pub(super) async fn settle(
    store: &EtcdStore,
    beginning: &RebuiltStoreValues<'_>,
    now: Timestamp,
) -> anyhow::Result<Vec<String>> {
    let RebuiltStoreValues {
        identity, epoch, ..
    } = beginning;
    let mut operations = Vec::new();
    let mut others = Vec::new();
    for item in store.list(keys::REGISTRATIONS).await?.items {
        let name = item.key.trim_start_matches(keys::REGISTRATIONS).to_owned();
        let Ok(mut registration) = serde_json::from_slice::<NodeRegistration>(&item.value) else {
            continue;
        };
        let own = name == identity.node;
        if !own && registration.etcd {
            // The machine's etcd user is removed first: from then on the machine can't write,
            // whatever still runs there.
            etcd_admin::remove_leader_user(store, &name).await?;
            others.push(name);
        }
        let before = registration.clone();
        registration.etcd = own;
        if own && beginning.endpoints.is_some() {
            registration.advertise.clone_from(&identity.advertise);
        }
        if registration != before {
            let value = json::bytes(&item.key, &registration)?;
            operations.push(WriteOperation::Put(item.key, value));
        }
    }
    set_others_unheard(store, &identity.node).await?;
    if let Some(stored) = store.get(keys::ENDPOINTS).await? {
        let mut endpoints: ClusterEndpoints = serde_json::from_slice(&stored.value)?;
        hold_alone(&mut endpoints, identity);
        let value = json::bytes(&stored.key, &endpoints)?;
        operations.push(WriteOperation::Put(stored.key, value));
    }
    if let Some(endpoints) = &beginning.endpoints {
        let key = keys::network_node(&identity.node, "wg_endpoints");
        let value = json::bytes(&key, endpoints)?;
        operations.push(WriteOperation::Put(key, value));
        let key = keys::network_node(&identity.node, "reach");
        let reach = identity.reached.published_reach();
        let value = json::bytes(&key, &reach)?;
        operations.push(WriteOperation::Put(key, value));
    }
    operations.extend(of_rebuilt_configuration(
        store.get(keys::CLUSTER).await?.as_ref(),
        store.get(keys::WANTED_CONFIGURATION).await?.as_ref(),
        &identity.cluster,
        &kat_api::random_uid(),
    )?);
    for item in store.list(keys::AUTHORITIES).await?.items {
        if let Ok(record) = serde_json::from_slice::<AuthorityRecord>(&item.value) {
            let name = item.key.trim_start_matches(keys::AUTHORITIES);
            let value = json::bytes(&item.key, &of_rebuilt_store(name, record, now))?;
            operations.push(WriteOperation::Put(item.key, value));
        }
    }
    operations.push(WriteOperation::Put(
        keys::STORE_EPOCH.to_owned(),
        json::bytes(keys::STORE_EPOCH, epoch)?,
    ));
    // The leader writes the members anew; their ids were those of the old store.
    operations.push(WriteOperation::Delete(keys::MEMBERS.to_owned()));
    operations.push(WriteOperation::DeletePrefix(keys::ELECTION.to_owned()));
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: identity.node.clone(),
        namespace: String::new(),
        uid: identity.node_uid.clone(),
    };
    let mut log = EventLog::new(&Default::default(), now);
    let message = beginning.message.clone();
    operations.extend(log.record(
        EventKind::Warning,
        EventReason::StoreBegunAnew,
        object,
        message,
    ));
    match store.transact(&[], &operations).await? {
        TransactionResult::Yes(_) => Ok(others),
        TransactionResult::No => bail!("etcd did not take what is true now"),
    }
}

/// Records of every other machine that it has not reported to this store. A transaction for each,
/// since a status may be large.
async fn set_others_unheard(store: &EtcdStore, own: &str) -> anyhow::Result<()> {
    for item in store.list(keys::NODE_STATUS).await?.items {
        let name = item.key.trim_start_matches(keys::NODE_STATUS);
        let Ok(mut status) = serde_json::from_slice::<NodeStatusRecord>(&item.value) else {
            continue;
        };
        if name == own || !status.set_unheard(name) {
            continue;
        }
        let value = json::bytes(&item.key, &status)?;
        let operation = WriteOperation::Put(item.key, value);
        match store.transact(&[], &[operation]).await? {
            TransactionResult::Yes(_) => {}
            TransactionResult::No => bail!("etcd did not take that a machine has not reported"),
        }
    }
    Ok(())
}

/// Marks every other machine as one without etcd.
fn hold_alone(endpoints: &mut ClusterEndpoints, identity: &MachineIdentity) {
    for (name, machine) in &mut endpoints.machines {
        machine.etcd = *name == identity.node;
    }
}

/// Writes the cluster cache with this machine as the only member, for the time before it has read
/// the new store. It accepts the new epoch by `key`, with which a person has begun it, and no list
/// of an earlier one.
pub(super) fn known_alone(
    identity: &MachineIdentity,
    epoch: &StoreEpoch,
    key: &RecoveryKey,
) -> anyhow::Result<()> {
    let own = epoch_verifier(key)?;
    let mut verifiers = epoch.verifiers.clone();
    verifiers.retain(|one| *one != own);
    verifiers.insert(0, own);
    let position = PositionFile {
        path: paths::POSITION.into(),
        cluster_uid: identity.cluster_uid.clone(),
    };
    position.begin_epoch(epoch.epoch, &verifiers)?;
    let mut known = ClusterCache::stored();
    known.schema = 1;
    known.leader = None;
    known.members = Default::default();
    known.store_epoch = epoch.clone();
    hold_alone(&mut known.endpoints, identity);
    known.store()?;
    files::remove(Path::new(paths::MEMBER))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::store::authorities::Rotation;

    #[test]
    fn a_rebuilt_store_replaces_the_authorities_of_etcd_and_nothing_that_nobody_asked_for() {
        let now = Timestamp::from_second(5).unwrap();
        let settled = AuthorityRecord {
            current: "a".to_owned(),
            ..AuthorityRecord::default()
        };
        for name in ["cluster-ca", "recovery-key"] {
            assert_eq!(of_rebuilt_store(name, settled.clone(), now), settled);
        }
        let rotation: Rotation = serde_json::from_value(serde_json::json!({
            "phase": "Issue", "certificate": "", "next": "b", "reason": "Requested",
            "since": "2026-01-01T00:00:00Z", "graceSeconds": 7,
        }))
        .unwrap();
        let under_way = AuthorityRecord {
            rotation: Some(rotation),
            ..settled.clone()
        };
        for name in [
            "cluster-ca",
            "etcd-client-ca",
            "etcd-peer-ca",
            "recovery-key",
        ] {
            let rebuilt = of_rebuilt_store(name, under_way.clone(), now);
            assert!(rebuilt.rotation.is_none() && rebuilt.due.is_some());
            assert_eq!((rebuilt.due_since, rebuilt.grace_seconds), (Some(now), 7));
            assert_eq!(rebuilt.current, "a");
        }
        for name in ["etcd-client-ca", "etcd-peer-ca"] {
            let rebuilt = of_rebuilt_store(name, settled.clone(), now);
            assert_eq!(rebuilt.due, Some(RotationReason::StoreReplaced));
            assert_eq!(
                of_rebuilt_store(name, rebuilt.clone(), Timestamp::MAX),
                rebuilt
            );
        }
    }

    #[test]
    fn a_rebuilt_store_has_a_new_change_and_the_longest_time_that_is_known() {
        let of = |seconds: u32| {
            let mut configuration = ClusterConfiguration::default();
            configuration.spec.node_loss_timeout_seconds = seconds;
            configuration
        };
        let stored = |value: Vec<u8>| KeyValue {
            key: String::new(),
            value,
            mod_revision: 1,
            create_revision: 1,
        };
        let cluster = stored(serde_json::to_vec(&of(60)).unwrap());
        let written = |wanted: Option<&KeyValue>, own: u32| {
            let operations =
                of_rebuilt_configuration(Some(&cluster), wanted, &of(own), "new").unwrap();
            let puts = operations.into_iter().map(|one| match one {
                WriteOperation::Put(key, value) => (key, value),
                other => panic!("{other:?}"),
            });
            let puts: std::collections::BTreeMap<_, _> = puts.collect();
            let leaders: ClusterConfiguration =
                serde_json::from_slice(&puts[keys::CLUSTER]).unwrap();
            let wanted = puts.get(keys::WANTED_CONFIGURATION);
            let wanted = wanted.and_then(|value| serde_json::from_slice(value).ok());
            let wanted = wanted.map(|one: ConfigurationRecord| {
                let seconds = one.configuration.spec.node_loss_timeout_seconds;
                (one.number, one.change, seconds)
            });
            (leaders.spec.node_loss_timeout_seconds, wanted)
        };
        // A backup of before the first change.
        let first = Some((1, "new".to_owned(), 60));
        assert_eq!(written(None, 20), (60, first.clone()));
        assert_eq!(written(None, 600), (600, first));
        let lower = ConfigurationRecord {
            number: 4,
            change: "old".to_owned(),
            ..ConfigurationRecord::of_init(of(20))
        };
        let lower = stored(serde_json::to_vec(&lower).unwrap());
        let kept = Some((4, "new".to_owned(), 20));
        assert_eq!(written(Some(&lower), 20), (60, kept));
        let later = stored(b"{\"schema\":9}".to_vec());
        assert_eq!(written(Some(&later), 90), (90, None));
    }

    #[test]
    fn epochs_go_up_whatever_the_clock_says() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert_eq!(next_epoch(0, at(5)), 5000);
        assert_eq!(next_epoch(5000, at(9)), 9000);
        assert_eq!(next_epoch(5000, at(1)), 5001);
        assert_eq!(next_epoch(0, at(-7)), 1);
    }

    #[test]
    fn a_marker_keeps_its_words_and_reads_the_command_of_a_newer_version() {
        for (command, word) in [
            (RecoveryCommand::Recover, "recover"),
            (RecoveryCommand::Restore, "restore"),
            (RecoveryCommand::Other("rebuild".to_owned()), "rebuild"),
        ] {
            let marker = RecoveryMarker {
                schema: 1,
                command,
                epoch: 7,
            };
            let text = format!(r#"{{"schema":1,"command":"{word}","epoch":7}}"#);
            assert_eq!(serde_json::to_string(&marker).unwrap(), text);
            let read: RecoveryMarker = serde_json::from_str(&text).unwrap();
            assert_eq!(read, marker);
            assert_eq!(read.command.to_string(), word);
        }
    }

    fn data(folder: &tempfile::TempDir, there: &[(&str, &str)]) -> EtcdFolders {
        for (path, text) in there {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        EtcdFolders {
            folder: folder.path().to_owned(),
        }
    }

    #[test]
    fn a_move_that_was_broken_off_goes_on_and_keeps_the_old_data() {
        let old = ("before/snap/db", "old");
        // The machine restarts between the two renames in the first case, and after both in the
        // second.
        for there in ["made/member/snap/db", "member/snap/db"] {
            let folder = tempfile::tempdir().unwrap();
            let data = data(&folder, &[old, (there, "new")]);
            data.put_in_place().unwrap();
            let read = |path: PathBuf| fs::read_to_string(path.join("snap/db")).unwrap();
            assert_eq!(
                (read(data.member()), read(data.before())),
                ("new".into(), "old".into())
            );
            data.forget().unwrap();
            assert_eq!(read(data.member()), "new");
            assert!(!data.before().exists() && !data.made().exists());
        }
    }
}
