//! The settings of the cluster that this machine follows while its agent runs.
//!
//! A report counts with the `nodeLossTimeoutSeconds` that the machine had read before it sent the
//! report. So no change makes an instance that was to end live longer, and none stops an instance
//! whose last report is older than a new, shorter time. A leader goes by a higher value before any
//! machine can read it, and by a lower one after all machines have confirmed it
//! (`src/plan/nodes/loss_timeout.rs`, docs/internals/node-loss.md).
//!
//! The settings are written to the machine's identity, so that they hold at the next start, and for
//! an agent of an earlier version too.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::watched_writes::WatchedWrites;
use crate::{NetworkFiles, cluster::identity::MachineIdentity};
use kat_bundle::settings::{ClusterSetting, changed_settings};
use kat_daemon::watchdog::LoopPulses;
use kat_render::NameSearch;
use kat_store::{Mirror, mirror::MirrorEntries};
use kat_types::{
    api::FollowedConfiguration,
    machine::{
        fence::{BootClock, BootTime},
        network::{NODE_FILE, NodeNetwork},
    },
    resource::{ClusterConfiguration, ClusterSpec, Isolation},
    store::{configuration::ConfigurationRecord, keys},
};

/// Pause before settings are taken again that could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Settings that this machine has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MachineSettings {
    /// The change that made them; empty for those of the disk.
    pub(crate) change: String,
    /// `agentTickSeconds`.
    pub(crate) tick: Duration,
    /// `nodeLossTimeoutSeconds`.
    pub(crate) loss_timeout: Duration,
    /// Where containers look names up that have no domain, by `isolation`.
    pub(crate) name_search: NameSearch,
    /// When the machine read them.
    pub(crate) since: BootTime,
}

impl MachineSettings {
    fn of(spec: &ClusterSpec, change: &str, since: BootTime) -> Self {
        Self {
            change: change.to_owned(),
            tick: Duration::from_secs(spec.agent_tick_seconds.into()),
            loss_timeout: Duration::from_secs(spec.node_loss_timeout_seconds.into()),
            name_search: match spec.isolation {
                Isolation::Namespaces => NameSearch::OwnNamespace,
                Isolation::None | Isolation::Audit => NameSearch::Cluster,
            },
            since,
        }
    }
}

/// The settings that this machine follows, for its loops. Cheap to clone.
#[derive(Debug, Clone)]
pub struct FollowedSettings {
    read: watch::Sender<MachineSettings>,
    /// Those by which the last contact with a leader counts, also for `kat-net`.
    confirmed: watch::Sender<MachineSettings>,
}

impl FollowedSettings {
    /// Those of the disk, which the machine has read now.
    pub fn new(spec: &ClusterSpec, now: BootTime) -> Self {
        let settings = MachineSettings::of(spec, "", now);
        Self {
            read: watch::Sender::new(settings.clone()),
            confirmed: watch::Sender::new(settings),
        }
    }

    /// The machine has read these settings, and they hold at its next start.
    pub(crate) fn take(&self, spec: &ClusterSpec, change: &str, clock: &BootClock) {
        // The time is read while nobody can read the settings: a report that states those of before
        // was begun before it, and does not count with these.
        self.read
            .send_modify(|read| *read = MachineSettings::of(spec, change, clock()));
    }

    pub(crate) fn present(&self) -> MachineSettings {
        self.read.borrow().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<MachineSettings> {
        self.read.subscribe()
    }

    pub(crate) fn subscribe_confirmed(&self) -> watch::Receiver<MachineSettings> {
        self.confirmed.subscribe()
    }

    /// The last contact counts by these settings.
    pub(crate) fn confirm(&self, settings: &MachineSettings) {
        self.confirmed.send_if_modified(|present| {
            let differs = present != settings;
            present.clone_from(settings);
            differs
        });
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.read.borrow().change == self.confirmed.borrow().change
    }

    /// What the machine reports.
    pub(crate) fn followed(&self) -> FollowedConfiguration {
        let confirmed = self.confirmed.borrow().clone();
        // The report may count with the settings that were read last.
        let longest = confirmed.loss_timeout.max(self.read.borrow().loss_timeout);
        FollowedConfiguration {
            change: confirmed.change,
            node_loss_timeout_seconds: u32::try_from(longest.as_secs()).unwrap_or(u32::MAX),
        }
    }
}

/// Takes settings from the store.
pub(crate) struct SettingsFollower {
    pub(crate) identity: Arc<MachineIdentity>,
    /// File of the identity.
    pub(crate) file: PathBuf,
    pub(crate) state: Mirror,
    pub(crate) settings: FollowedSettings,
    pub(crate) network: NetworkFiles,
    /// What `kat-net` knows of this machine, apart from the MTU.
    pub(crate) node: NodeNetwork,
    pub(crate) writes: WatchedWrites,
    pub(crate) boot_clock: BootClock,
    pub(crate) pulses: LoopPulses,
}

impl SettingsFollower {
    /// Runs until `cancel`.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("settings of the cluster");
        let mut failed = false;
        loop {
            let next = async {
                match failed {
                    true => tokio::time::timeout(AFTER_FAILURE, self.state.changed())
                        .await
                        .unwrap_or_else(|_| Ok(self.state.snapshot())),
                    false => self.state.changed().await,
                }
            };
            let Some(Ok(state)) = cancel.run_until_cancelled(pulse.wait(next)).await else {
                return;
            };
            if !state.confirmed {
                continue;
            }
            // An error has been logged and reported.
            failed = self.take(&state.entries, failed).is_err();
        }
    }

    /// Takes the stored settings if they are other ones, or if it failed before. Why they are not
    /// taken is reported like a file that can't be written, until they are.
    fn take(&self, entries: &MirrorEntries, failed: bool) -> Result<(), String> {
        let Some(stored) = entries.get(keys::WANTED_CONFIGURATION) else {
            return Ok(());
        };
        let wanted = serde_json::from_slice::<ConfigurationRecord>(&stored.value);
        let wanted = wanted.map_err(|error| format!("{}: {error}", keys::WANTED_CONFIGURATION));
        let present = self.settings.present();
        let is_followed = |wanted: &ConfigurationRecord| wanted.change == present.change;
        if !failed && wanted.as_ref().is_ok_and(is_followed) {
            return Ok(());
        }
        let configuration = wanted.clone().map(|wanted| wanted.configuration);
        let (own, file) = (Arc::clone(&self.identity), self.file.clone());
        self.writes.write(&self.file, move || {
            keep(&file, &own, &configuration).context("the cluster's settings are not taken")
        })?;
        let wanted = wanted?;
        let spec = &wanted.configuration.spec;
        let node = NodeNetwork {
            mtu: spec.mtu,
            ..self.node.clone()
        };
        let network = self.network.clone();
        let _tried_again = self.writes.write(&self.network.path(NODE_FILE), move || {
            Ok(network.write_node(&node).map(drop)?)
        });
        tracing::info!(
            number = wanted.number,
            agent_tick_seconds = spec.agent_tick_seconds,
            node_loss_timeout_seconds = spec.node_loss_timeout_seconds,
            mtu = spec.mtu,
            "this machine follows the cluster's settings"
        );
        self.settings.take(spec, &wanted.change, &self.boot_clock);
        Ok(())
    }
}

/// Writes the wanted configuration, where it could be read, to the machine's identity in `file`.
fn keep(
    file: &Path,
    own: &MachineIdentity,
    wanted: &Result<ClusterConfiguration, String>,
) -> anyhow::Result<()> {
    let wanted = wanted.as_ref().map_err(|error| anyhow!("{error}"))?;
    refuse_other_cluster(&own.cluster, wanted)?;
    MachineIdentity::update(file, |identity| identity.cluster.clone_from(wanted))
}

/// The API refuses a change of what this machine was made with.
fn refuse_other_cluster(
    own: &ClusterConfiguration,
    wanted: &ClusterConfiguration,
) -> anyhow::Result<()> {
    let changed = changed_settings(own, wanted)?;
    let is_fixed =
        |name: &str| ClusterSetting::of(name).is_some_and(|setting| setting.effect().is_none());
    let fixed = changed.iter().find(|changed| is_fixed(&changed.name));
    anyhow::ensure!(
        fixed.is_none() && own.metadata == wanted.metadata,
        "they change what stays as it was when this machine joined: {}",
        fixed.map_or("metadata.name", |changed| changed.name.as_str())
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Statuses;

    #[test]
    fn a_machine_says_why_it_does_not_follow_until_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.json");
        let own = MachineIdentity::example("n1");
        std::fs::write(&file, serde_json::to_vec(&own).unwrap()).unwrap();
        let statuses = Statuses::default();
        let writes = WatchedWrites::new(statuses.clone());
        let follow = |wanted: Result<ClusterConfiguration, String>| {
            let (own, path) = (own.clone(), file.clone());
            writes.write(&file, move || keep(&path, &own, &wanted))
        };
        follow(Err("/kat/config/wanted: unknown".to_owned())).unwrap_err();
        assert_eq!(statuses.unwritten(), ["/kat/config/wanted: unknown"]);
        let mut other = own.cluster.clone();
        other.metadata.name = "another".to_owned();
        follow(Ok(other)).unwrap_err();
        let told = statuses.unwritten().concat();
        assert!(
            told.ends_with("this machine joined: metadata.name"),
            "{told}"
        );
        let mut next = own.cluster.clone();
        next.spec.mtu = 1380;
        follow(Ok(next)).unwrap();
        assert_eq!(statuses.unwritten(), Vec::<String>::new());
        let text = std::fs::read(&file).unwrap();
        let kept: MachineIdentity = serde_json::from_slice(&text).unwrap();
        assert_eq!(kept.cluster.spec.mtu, 1380);
    }
}
