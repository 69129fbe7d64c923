//! Keeps the files of `kat-ingress` as the store wants them, and its units running while there is a
//! route to serve.
//!
//! `kat-ingress` needs nothing of this loop but the files: without the agent it serves what they say.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::{
    content::{IngressContent, content},
    files::IngressFiles,
};
use crate::{
    Statuses,
    cluster::identity::MachineIdentity,
    network::host_ports::{HostListeners, sentence},
    service::paths,
};
use kat_daemon::watchdog::{LoopPulse, LoopPulses};
use kat_host::users::Users;
use kat_network::overlay::wireguard::read_private_key;
use kat_store::{Mirror, MirrorState};
use kat_systemd::{ActiveState, JobResult, SystemdError, UnitManager};
use kat_types::{
    api::{IngressReport, IngressState, RefusedRoute},
    ingress::{
        FOLDER, INSTANCE_STOP_SECONDS, INSTANCES, RUN_FOLDER, SOCKET_UNIT, USER, service_unit,
    },
    machine::network,
    reason::Reason,
    resource::Protocol,
    store::{ingress::INGRESS_PORTS, keys},
};

/// Pause between two looks at the units and at what `kat-ingress` says.
const LOOK: Duration = Duration::from_secs(5);
/// The same while `kat-ingress` has not read the newest answers to challenges: an order waits for it.
const CHALLENGE_LOOK: Duration = Duration::from_millis(200);
/// Longest start of a unit, and longest stop of the socket.
const UNIT_LIMIT: Duration = Duration::from_secs(30);
/// Longest stop of an instance, which finishes what it has.
const STOP_LIMIT: Duration = Duration::from_secs(INSTANCE_STOP_SECONDS);

/// Follows the routes that this machine serves.
pub(crate) struct IngressFollower {
    pub(crate) identity: Arc<MachineIdentity>,
    pub(crate) state: Mirror,
    pub(crate) system: Arc<dyn UnitManager>,
    pub(crate) listeners: Arc<dyn HostListeners>,
    pub(crate) statuses: Statuses,
    pub(crate) pulses: LoopPulses,
    /// The last start of the socket failed because another program holds a port.
    pub(crate) port_was_taken: bool,
    /// The challenges that were written last.
    pub(crate) challenges: WrittenChallenges,
}

/// The answers to challenges that were written last.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WrittenChallenges {
    /// Revision of the file, which `kat-ingress` confirms.
    file: i64,
    /// Revision of the newest one in the store; 0 without any.
    newest: i64,
}

impl IngressFollower {
    /// Runs until `cancel`, which leaves everything as it is.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("routes");
        let mut written: Option<Arc<MirrorState>> = None;
        let mut serves = IngressFiles::to_read().is_written();
        let mut said = String::new();
        loop {
            pulse.beat();
            let state = self.state.snapshot();
            let is_new = needs_new_files(&state, written.as_deref(), &self.identity.node);
            let done = async {
                if is_new {
                    serves = self.write(&state).await?;
                    written = Some(Arc::clone(&state));
                }
                // The list of before the start may be old: nothing is stopped because of it.
                let known = written.is_some();
                self.units(serves, known, &pulse).await
            };
            let report = match done.await {
                Ok(report) => {
                    said.clear();
                    report
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    if said != text {
                        tracing::error!("routes are not served as they should be: {text}");
                        said.clone_from(&text);
                    }
                    Some(IngressReport {
                        state: IngressState::Failed,
                        message: text,
                        ..IngressReport::default()
                    })
                }
            };
            let reported = report.as_ref();
            let confirmed = reported.is_none_or(|report| {
                report.state != IngressState::Serving || report.challenges >= self.challenges.newest
            });
            let pause = if confirmed { LOOK } else { CHALLENGE_LOOK };
            self.statuses.set_ingress(report);
            let next = async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => false,
                    changed = self.state.changed() => changed.is_ok(),
                    () = tokio::time::sleep(pause) => true,
                }
            };
            if !pulse.wait(next).await {
                return;
            }
        }
    }

    /// Writes the files. Returns whether there is something to serve.
    async fn write(&mut self, state: &Arc<MirrorState>) -> anyhow::Result<bool> {
        let (state, node) = (Arc::clone(state), self.identity.node.clone());
        let has_routes = state.below(&keys::desired_routes(&node)).next().is_some();
        if !has_routes {
            return Ok(false);
        }
        make_user().await?;
        let written = tokio::task::spawn_blocking(move || {
            let path = Path::new(network::FOLDER).join(network::PRIVATE_KEY_FILE);
            let key = read_private_key(&path)?;
            let content: IngressContent = content(&state.entries, &node, key.bytes());
            if !content.serves() {
                return anyhow::Ok(None);
            }
            let file = installed()?.write(&content)?;
            let newest = content.newest_challenge;
            Ok(Some(WrittenChallenges { file, newest }))
        });
        let written = written.await.context("the files of kat-ingress")??;
        self.challenges = written.unwrap_or_default();
        Ok(written.is_some())
    }

    /// Starts the units while there is something to serve; stops them otherwise, and removes the files
    /// with the keys.
    async fn units(
        &mut self,
        serves: bool,
        known: bool,
        pulse: &LoopPulse,
    ) -> anyhow::Result<Option<IngressReport>> {
        if !serves {
            if known {
                self.withdraw(pulse).await?;
            }
            return Ok(None);
        }
        let socket = self.system.active_state(SOCKET_UNIT).await?;
        if socket != ActiveState::Active {
            if let Some(report) = self.start_socket().await? {
                return Ok(Some(report));
            }
            // Also where another instance runs: a failed start of the socket disabled it.
            if let Some(first) = INSTANCES.first() {
                self.system.enable(&service_unit(first)).await?;
            }
        }
        let system = self.system.as_ref();
        let mut runs = false;
        let mut processes = Vec::new();
        for instance in INSTANCES {
            let Ok(status) = system.status(&service_unit(instance)).await else {
                continue;
            };
            runs |= matches!(
                status.active_state,
                ActiveState::Active | ActiveState::Activating | ActiveState::Reloading
            );
            processes.push(status.main_pid);
        }
        if !runs && let Some(first) = INSTANCES.first() {
            let unit = service_unit(first);
            system.enable(&unit).await?;
            match system.start(&unit, UNIT_LIMIT).await? {
                JobResult::Done => {}
                result => {
                    bail!("{unit} did not start ({result:?}); `journalctl -u {unit}` says why")
                }
            }
            processes.push(system.status(&unit).await?.main_pid);
        }
        let status =
            tokio::task::spawn_blocking(move || installed().map(|files| files.status(&processes)))
                .await??;
        let Some(status) = status else {
            return Ok(Some(IngressReport {
                state: IngressState::Starting,
                ..IngressReport::default()
            }));
        };
        let refused = status.refused.into_iter().map(|part| RefusedRoute {
            file: part.file,
            name: part.name,
            message: part.reason,
        });
        let challenges = match status.revisions.challenges >= self.challenges.file {
            true => self.challenges.newest,
            false => 0,
        };
        Ok(Some(IngressReport {
            state: IngressState::Serving,
            challenges,
            refused: refused.collect(),
            ..IngressReport::default()
        }))
    }

    /// Opens ports 80 and 443; returns who holds one of them.
    async fn start_socket(&mut self) -> anyhow::Result<Option<IngressReport>> {
        // A port that was taken is tried again once it is free: each start that fails is in the journal.
        if self.port_was_taken
            && let Some(report) = self.holder().await?
        {
            return Ok(Some(report));
        }
        self.port_was_taken = false;
        let system = self.system.as_ref();
        match system.reset_failed(SOCKET_UNIT).await {
            Ok(()) | Err(SystemdError::NoSuchUnit(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let result = open_ports(system).await?;
        if result == JobResult::Done {
            return Ok(None);
        }
        let holder = self.holder().await?;
        if holder.is_none() {
            bail!(
                "{SOCKET_UNIT} did not start ({result:?}); `journalctl -u {SOCKET_UNIT}` says why"
            );
        }
        self.port_was_taken = true;
        Ok(holder)
    }

    /// Who else listens on port 80 or 443.
    async fn holder(&self) -> anyhow::Result<Option<IngressReport>> {
        let listeners = Arc::clone(&self.listeners);
        let found = tokio::task::spawn_blocking(move || {
            listeners.listeners_on(&INGRESS_PORTS.map(|port| (Protocol::Tcp, port)))
        });
        let holders: BTreeSet<String> = found.await?.iter().map(sentence).collect();
        if holders.is_empty() {
            return Ok(None);
        }
        let holders: Vec<String> = holders.into_iter().collect();
        Ok(Some(IngressReport {
            state: IngressState::PortInUse,
            reason: Reason::IngressPortInUse.into(),
            message: holders.join(" and "),
            ..IngressReport::default()
        }))
    }

    async fn withdraw(&self, pulse: &LoopPulse) -> anyhow::Result<()> {
        let files = IngressFiles::to_read();
        if !files.is_written() {
            return Ok(());
        }
        close_ports(self.system.as_ref(), files, pulse).await?;
        tracing::info!("this machine serves no routes any more; their keys are removed");
        Ok(())
    }
}

/// Whether the files have to be written: the copy is confirmed, and something that the files depend on
/// differs from the copy that was written last. `written` is `None` after the start of the agent.
pub fn needs_new_files(state: &MirrorState, written: Option<&MirrorState>, node: &str) -> bool {
    let routes = keys::desired_routes(node);
    let prefixes = [
        routes.as_str(),
        keys::NETWORK,
        keys::CONFIG,
        keys::ACME_CHALLENGES,
    ];
    let is_same = |before: &MirrorState| {
        let mut prefixes = prefixes.iter();
        prefixes.all(|prefix| state.same_below(before, prefix))
    };
    state.confirmed && !written.is_some_and(is_same)
}

/// Starts the socket, and enables it only once it holds its ports: at the next boot an enabled one would
/// take them before the machine's own program.
async fn open_ports(system: &dyn UnitManager) -> Result<JobResult, SystemdError> {
    let started = system.start(SOCKET_UNIT, UNIT_LIMIT).await;
    if matches!(started, Ok(JobResult::Done)) {
        system.enable(SOCKET_UNIT).await?;
        return started;
    }
    // An instance that starts at boot would open them too (`Sockets=`).
    let services = INSTANCES.map(service_unit);
    for unit in std::iter::once(SOCKET_UNIT.to_owned()).chain(services) {
        unless_missing(system.disable(&unit).await)?;
    }
    started
}

/// Stops the units and removes the files. The keys go before the instances are stopped, which finish
/// what they have for a minute and more.
async fn close_ports(
    system: &dyn UnitManager,
    files: IngressFiles,
    pulse: &LoopPulse,
) -> anyhow::Result<()> {
    let stopped = system.stop(SOCKET_UNIT, UNIT_LIMIT).await.map(drop);
    let keys = files.clone();
    tokio::task::spawn_blocking(move || keys.remove_keys()).await??;
    unless_missing(stopped)?;
    unless_missing(system.disable(SOCKET_UNIT).await)?;
    for unit in INSTANCES.map(service_unit) {
        let stopped = pulse.wait(system.stop(&unit, STOP_LIMIT)).await;
        unless_missing(stopped.map(drop))?;
        unless_missing(system.disable(&unit).await)?;
    }
    tokio::task::spawn_blocking(move || files.remove()).await??;
    Ok(())
}

/// A unit that there is not is stopped and disabled.
fn unless_missing(done: Result<(), SystemdError>) -> Result<(), SystemdError> {
    match done {
        Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        done => done,
    }
}

/// The files on a real machine, of which the group has to exist.
fn installed() -> anyhow::Result<IngressFiles> {
    let accounts = Users::new().accounts()?;
    let group = accounts.group(USER);
    let group = group.with_context(|| format!("there is no group {USER}"))?;
    Ok(IngressFiles {
        folder: FOLDER.into(),
        run: RUN_FOLDER.into(),
        group: group.gid,
    })
}

/// Makes the user of `kat-ingress` on a machine whose init did not know it.
async fn make_user() -> anyhow::Result<()> {
    let known = tokio::task::spawn_blocking(|| {
        let accounts = Users::new().accounts()?;
        anyhow::Ok(accounts.group(USER).is_some())
    });
    if known.await?? {
        return Ok(());
    }
    let output = tokio::process::Command::new("/usr/bin/systemd-sysusers")
        .arg(paths::SYSUSERS)
        .output()
        .await
        .context("systemd-sysusers")?;
    if !output.status.success() {
        bail!(
            "systemd-sysusers {}: {}",
            paths::SYSUSERS,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_testing::systemd::fake::{FakeManager, UnitBehaviour};
    use kat_types::ingress::{CERTIFICATES_FILE, ROUTES_FILE};

    fn manager(socket: UnitBehaviour) -> FakeManager {
        let system = FakeManager::new("system");
        system.define(SOCKET_UNIT, socket);
        let service = UnitBehaviour {
            stop_takes: Duration::from_secs(92),
            ..UnitBehaviour::default()
        };
        for unit in INSTANCES.map(service_unit) {
            system.define(&unit, service.clone());
        }
        system
    }

    #[tokio::test(start_paused = true)]
    async fn the_socket_is_enabled_only_while_it_holds_its_ports() {
        let system = manager(UnitBehaviour {
            oneshot: true,
            exits: Some(1),
            ..UnitBehaviour::default()
        });
        // It held them once, and another program has one of them now.
        system.enable(SOCKET_UNIT).await.unwrap();
        system.enable(&service_unit("a")).await.unwrap();
        assert_eq!(open_ports(&system).await.unwrap(), JobResult::Failed);
        assert_eq!(system.enabled(), Vec::<String>::new());
        system.define(SOCKET_UNIT, UnitBehaviour::default());
        assert_eq!(open_ports(&system).await.unwrap(), JobResult::Done);
        assert_eq!(system.enabled(), [SOCKET_UNIT]);
        // A start without an answer is none.
        system.define(
            SOCKET_UNIT,
            UnitBehaviour {
                start_hangs: true,
                ..UnitBehaviour::default()
            },
        );
        system.stop(SOCKET_UNIT, UNIT_LIMIT).await.unwrap();
        assert!(open_ports(&system).await.is_err());
        assert_eq!(system.enabled(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn the_keys_go_before_the_instances_which_end_in_their_own_time() {
        let system = Arc::new(manager(UnitBehaviour::default()));
        let a = service_unit("a");
        for unit in [SOCKET_UNIT, &a] {
            system.start(unit, UNIT_LIMIT).await.unwrap();
            system.enable(unit).await.unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [ROUTES_FILE, CERTIFICATES_FILE] {
            std::fs::write(path(name), "{}").unwrap();
        }
        let files = IngressFiles {
            folder: folder.path().to_owned(),
            run: folder.path().to_owned(),
            group: 0,
        };
        let pulses = LoopPulses::default();
        let pulse = pulses.watch("routes");
        let closing = close_ports(system.as_ref(), files, &pulse);
        let seen = async {
            while system.live().contains(&SOCKET_UNIT.to_owned())
                || path(CERTIFICATES_FILE).exists()
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (system.live(), path(ROUTES_FILE).exists())
        };
        let (closed, (live, has_routes)) = tokio::join!(closing, seen);
        closed.unwrap();
        assert_eq!((live, has_routes), (vec![a], true));
        assert_eq!(system.live(), Vec::<String>::new());
        assert_eq!(system.enabled(), Vec::<String>::new());
        assert!(!path(ROUTES_FILE).exists());
    }
}
