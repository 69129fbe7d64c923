//! `kat-agent restore`: a bare machine replaces the one that made a backup.
//!
//! It takes over the name, identity, subnet, WireGuard key and certificate key from the backup, so
//! that the other machines recognise it at any address. It holds the store alone; further members
//! are added as usual.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::{
    archive::{Archive, BackupFacts},
    epoch::{is_led, prove},
    prompt,
    rebuild::{self, EtcdFolders, RebuiltStoreValues, RecoveryCommand, RecoveryMarker, next_epoch},
    running_machine::{refuse_if_running, refuse_if_running_at},
};
use crate::{
    cluster::{
        cluster_cache::ClusterCache,
        identity::MachineIdentity,
        keys::MachineKeys,
        machine::wait_ready,
        reach::{ReachSettings, wireguard_endpoints},
    },
    commands::{
        check::check_machine,
        forwarding,
        setup::{
            EarlierJoin, StepPrinter, put_in_place, read_agent_config, refuse_second,
            reload_bus_policy, render_settings, restart_journal, start, write_network,
        },
    },
    service::paths,
};
use kat_host::{
    check::CheckStage,
    files::{self, FileAccess},
    users::Users,
};
use kat_pki::{epoch_proof::sign_server, recovery_key::RecoveryKey};
use kat_render::Renderer;
use kat_store::{EtcdStore, StateStore};
use kat_systemd::{ManagerSource, Managers, UnitManager};
use kat_types::{
    api::{MembershipAnswer, StoreEpoch},
    encoding::{json, plain::plain},
    machine::network::{self, PeerMachines, node_address},
    resource::AgentConfig,
    store::{keys, members::ClusterEndpoints},
};

/// Longest wait for the machine to be Ready.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// The discard port (RFC 863), on which no program listens: a packet to it only opens the tunnel.
const DISCARD: u16 = 9;
/// Prefix of the folders in which a backup is unpacked.
const UNPACKED: &str = "restore-";

#[derive(Debug, Clone)]
pub(crate) struct RestoreOptions {
    /// Path of the backup.
    pub file: PathBuf,
    /// File with the recovery key; `None` prompts for it.
    pub recovery_key_file: Option<PathBuf>,
    /// Addresses or interfaces at which others reach this machine.
    pub advertise: Vec<String>,
}

/// Makes this machine what the backup describes, and waits until it leads.
///
/// Nothing is changed before the file, the key and the machine have been checked. After a later
/// failure the same command repeats the steps, or `kat-agent reset` removes what was made.
pub(crate) async fn run(options: RestoreOptions, say: StepPrinter<'_>) -> anyhow::Result<()> {
    super::need_root()?;
    let again = match RecoveryMarker::read()? {
        Some(marker) if marker.command == RecoveryCommand::Restore => {
            // The identity is written last: without it the restore can be started again.
            files::remove(Path::new(paths::IDENTITY))?;
            true
        }
        Some(marker) => bail!(
            "a `kat-agent {}` was interrupted on this machine",
            marker.command
        ),
        None => false,
    };
    if refuse_second()? == EarlierJoin::HalfJoin && !again {
        bail!("an earlier join was interrupted; `kat-agent reset` removes what it made");
    }
    forget_unpacked(Path::new(paths::STATE))?;
    let archive = Archive::open(&options.file)?;
    let header = archive.header().clone();
    say(&format!(
        "a backup of the cluster {}, made on machine {} at {:.0} by KAT {}",
        plain(&header.cluster),
        plain(&header.node),
        header.created,
        plain(&header.version)
    ));
    let recovery = prompt::recovery_key(options.recovery_key_file.as_deref())?;
    let reached = ReachSettings::new(&options.advertise).await?;
    let advertise = reached.addresses_now()?;
    let config = read_agent_config()?;

    let fresh = !Path::new(paths::STATE).exists();
    files::ensure_folder(Path::new(paths::STATE), FileAccess::mode(0o755))?;
    let opened = open(archive, &recovery, &config, (again, say)).await;
    let (folder, facts) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // Only this folder was made so far, and it may hold files that are not KAT's.
            if fresh {
                let _ = std::fs::remove_dir(paths::STATE);
            }
            return Err(error);
        }
    };
    // NAT and relay stay as in the backup, since the other machines' peers were chosen by them.
    let reached = ReachSettings {
        by: reached.by,
        ..facts.identity.reached.clone()
    };
    let identity = MachineIdentity {
        advertise,
        reached,
        etcd: true,
        ..facts.identity.clone()
    };
    let restoring = RestoreContext {
        identity: &identity,
        facts: &facts,
        recovery: &recovery,
        config: &config,
        snapshot: &folder.path().join("snapshot"),
        created: header.created,
    };
    restoring.settle(say).await?;
    say(&format!(
        "machine {} is Ready and leads the cluster {} alone, as it was at {:.0}\n\n  katcall get nodes                # machines that still run find it by themselves\n  katcall delete node NAME         # for each that will not come back\n  katcall token create --join      # for new machines\n\nThe machine that made the backup must not come back as {}: `kat-agent reset` on it first.",
        identity.node, identity.cluster.metadata.name, header.created, identity.node
    ));
    Ok(())
}

/// Removes the folders that an aborted restore left behind: they contain the whole store in clear.
pub(crate) fn forget_unpacked(state: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(state) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| state.display().to_string())?,
    };
    for entry in entries {
        let entry = entry.with_context(|| state.display().to_string())?;
        let unpacked = entry.file_name().to_string_lossy().starts_with(UNPACKED);
        if unpacked && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            std::fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Unpacks the backup, and checks whether this machine can take it and the other one is gone.
async fn open(
    archive: Archive,
    recovery: &RecoveryKey,
    config: &AgentConfig,
    (again, say): (bool, StepPrinter<'_>),
) -> anyhow::Result<(tempfile::TempDir, BackupFacts)> {
    let folder = tempfile::Builder::new()
        .prefix(UNPACKED)
        .tempdir_in(paths::STATE)
        .with_context(|| paths::STATE.to_owned())?;
    say("opening it");
    let facts = archive.unpack(recovery, &folder.path().join("snapshot"))?;
    say("looking at the machine");
    let stage = if again {
        CheckStage::Running
    } else {
        CheckStage::BeforeInit
    };
    check_machine(&facts.identity.cluster, config, stage, say).await?;
    say(&format!(
        "asking whether machine {} still runs",
        facts.identity.node
    ));
    refuse_if_running(&facts).await?;
    Ok((folder, facts))
}

struct RestoreContext<'a> {
    identity: &'a MachineIdentity,
    facts: &'a BackupFacts,
    recovery: &'a RecoveryKey,
    config: &'a AgentConfig,
    snapshot: &'a Path,
    created: Timestamp,
}

impl RestoreContext<'_> {
    async fn settle(&self, say: StepPrinter<'_>) -> anyhow::Result<()> {
        let identity = self.identity;
        let managers = Managers::new();
        let system = managers.system();
        let system = system.as_ref();
        let now = Timestamp::now();
        // The backup's own epoch is not known yet; [`Self::epoch`] corrects the value of a clock
        // that is slow.
        let epoch = next_epoch(0, now);
        let marker = RecoveryMarker {
            schema: 1,
            command: RecoveryCommand::Restore,
            epoch,
        };
        marker.write()?;

        say("putting sysctls, users and folders in place");
        let renderer = Renderer::installed()?;
        forwarding::remember(Path::new("/"))?;
        put_in_place(&renderer.host_files(&render_settings(identity))?).await?;
        reload_bus_policy().await?;
        restart_journal(system, say).await?;

        say("putting the cluster's authorities and the machine's keys in place");
        let keys = self.keys(now)?;

        say("bringing up the overlay");
        let nobody = PeerMachines {
            schema: 1,
            ..PeerMachines::default()
        };
        write_network(identity, self.config, &nobody)?;
        for unit in ["kat-net.socket", "kat-net.service"] {
            system.enable(unit).await?;
            start(system, unit).await?;
        }

        say("beginning the store with the backup's data");
        super::recover::stop(system, crate::commands::host_files::ETCD).await?;
        let data = EtcdFolders::new();
        data.begin_from_snapshot(self.snapshot, identity, epoch)
            .await?;
        let store = rebuild::start_etcd(identity, &keys, system).await?;
        self.refuse_if_alive(&store, &keys).await?;
        let epoch = self.epoch(&store, &keys, epoch).await?;
        let spec = &identity.cluster.spec;
        let beginning = RebuiltStoreValues {
            identity,
            epoch: &epoch,
            endpoints: Some(wireguard_endpoints(
                &identity.reached.published_reach(),
                &identity.advertise,
                self.config,
                spec.wireguard_port,
            )),
            message: format!(
                "the store was begun anew on machine {}, from a backup of {:.0}: kat-agent restore",
                identity.node, self.created
            ),
        };
        rebuild::settle(&store, &beginning, now).await?;
        rebuild::known_alone(identity, &epoch, self.recovery)?;
        data.forget()?;
        self.start_agent(system, say).await?;
        greet(&store, identity).await;
        Ok(())
    }

    /// Machines of a running cluster would find the later epoch and end their membership, and the
    /// machine of the backup would stop what it runs.
    async fn refuse_if_alive(&self, store: &EtcdStore, keys: &MachineKeys) -> anyhow::Result<()> {
        let endpoints = match store.get(keys::ENDPOINTS).await? {
            Some(stored) => serde_json::from_slice(&stored.value)?,
            None => ClusterEndpoints::default(),
        };
        if let Some(machine) = endpoints.machines.get(&self.identity.node) {
            refuse_if_running_at(self.facts, &machine.api).await?;
        }
        let known = ClusterCache {
            endpoints,
            ..ClusterCache::default()
        };
        if is_led(self.identity, keys, &known).await? {
            bail!(
                "other machines lead this cluster, and a restore would take it back to the backup; `kat-agent reset` here, and `kat-agent join` it"
            );
        }
        Ok(())
    }

    async fn start_agent(
        &self,
        system: &dyn UnitManager,
        say: StepPrinter<'_>,
    ) -> anyhow::Result<()> {
        say("starting kat-agent");
        files::ensure_folder(Path::new(paths::CONFIGURATION), FileAccess::mode(0o755))?;
        let text = json::pretty(paths::IDENTITY, self.identity)?;
        files::write_atomic(Path::new(paths::IDENTITY), &text, FileAccess::mode(0o600))?;
        RecoveryMarker::remove()?;
        system.enable("kat-agent.service").await?;
        // Enabling changes links that the manager has read already.
        system.reload().await?;
        start(system, "kat-agent.service").await?;
        wait_ready(self.identity, READY_LIMIT).await
    }

    /// Stores the sealed authorities and the machine's identity key, and issues its leaves.
    fn keys(&self, now: Timestamp) -> anyhow::Result<MachineKeys> {
        let group = Users::new()
            .accounts()?
            .group(kat_render::ETCD_USER)
            .map(|group| group.gid);
        let keys = MachineKeys::new(Some(
            group.context("the group of etcd's user was not made")?,
        ));
        let given = MembershipAnswer {
            authorities: self.facts.authorities.clone(),
            next: BTreeMap::new(),
            recovery_key: self.recovery.reveal(),
            other_recovery_keys: self.facts.other_recovery_keys.clone(),
        };
        keys.store_authorities(&given)?;
        keys.store_node_key(&self.facts.node_key)?;
        // The other machines accept this server by a key that they know. A backup of version 0.1.0
        // has no key of the API.
        keys.store_api_key(match self.facts.api_key.as_str() {
            "" => &self.facts.node_key,
            api_key => api_key,
        })?;
        keys.renew(self.identity, &ClusterCache::default(), now)?;
        files::ensure_folder(Path::new(network::FOLDER), FileAccess::mode(0o700))?;
        let wireguard = Path::new(network::FOLDER).join(network::PRIVATE_KEY_FILE);
        let key = self.facts.wireguard_key.as_bytes();
        files::write_atomic(&wireguard, key, FileAccess::mode(0o600))?;
        Ok(keys)
    }

    /// An epoch that is also later than the one in the backup. It says which machine was restored:
    /// the one that made the backup must not return under its name.
    async fn epoch(
        &self,
        store: &EtcdStore,
        keys: &MachineKeys,
        epoch: u64,
    ) -> anyhow::Result<StoreEpoch> {
        let stored = store.get(keys::STORE_EPOCH).await?;
        let before =
            stored.and_then(|stored| serde_json::from_slice::<StoreEpoch>(&stored.value).ok());
        let before = before.unwrap_or_default();
        let epoch = epoch.max(before.epoch.saturating_add(1));
        let uid = &self.identity.cluster_uid;
        let api_key = keys.member_keys()?.api;
        let server = (self.identity.node.as_str(), api_key.as_str());
        Ok(StoreEpoch {
            restored: Some(sign_server(self.recovery, uid, epoch, server)?),
            ..prove(self.recovery, uid, epoch, &before)?
        })
    }
}

/// Opens the tunnels to the other machines: they know this machine's key, and learn its address
/// from the first packet. Machines that do not respond are ignored.
async fn greet(store: &EtcdStore, identity: &MachineIdentity) {
    let Ok(listing) = store.list(keys::NETWORK_NODES).await else {
        return;
    };
    let own = identity.overlay_address();
    let subnets = listing
        .items
        .iter()
        .filter(|item| item.key.ends_with("/subnet"));
    let subnets = subnets.filter_map(|item| std::str::from_utf8(&item.value).ok()?.parse().ok());
    let others: Vec<_> = subnets.map(node_address).filter(|at| *at != own).collect();
    let Ok(socket) = tokio::net::UdpSocket::bind(SocketAddr::from((own, 0))).await else {
        return;
    };
    // kat-net needs a moment to configure its peers from the agent's file.
    for _ in 0..3 {
        for address in &others {
            let _ = socket
                .send_to(b"", SocketAddr::from((*address, DISCARD)))
                .await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_restore_that_was_killed_unpacked_goes() {
        let folder = tempfile::tempdir().unwrap();
        forget_unpacked(&folder.path().join("none")).unwrap();
        for name in ["restore-a", "restore-b/deeper", "etcd", "restored"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        for name in ["restore-a/snapshot", "restore-b/deeper/x", "restore-notes"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        forget_unpacked(folder.path()).unwrap();
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["etcd", "restore-notes", "restored"]);
    }
}
