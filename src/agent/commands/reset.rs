//! `kat-agent reset`: removes this machine from the cluster, and everything that init, join and the
//! agent made.

pub(crate) mod drain;
pub(crate) mod question;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::drain::{ClusterLeader, DRAIN_LIMIT, DrainEnd, drain};
use super::{
    forwarding, recovery,
    setup::{StepPrinter, read_identity, read_joined, render_settings},
};
use crate::{
    Statuses,
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, machine},
    desired_state::{job_starts::JobStarts, settings::FollowedSettings},
    disk::ballast,
    images::{registries, unused::ImageCare},
    secrets::Secrets,
    service::paths,
    volumes::Volumes,
    worker::{
        UserDesired, Worker, WorkerTools,
        instance::stopping::user_group_with_processes,
        unit_state::{early_units::PodmanGenerator, unit_files::remove_every_users},
        users::{machine_options::MachineOptions, user::REMOVAL_LIMIT},
    },
};
use kat_host::{files, users::Users};
use kat_network as network;
use kat_render::{ETCD_USER, Renderer};
use kat_systemd::{Journal, Logind, ManagerSource, Managers, SystemdError, UnitManager};
use kat_types::{
    ingress,
    machine::{fence::BootTime, root::Root},
    resource::{AgentConfig, ClusterConfiguration},
};

/// Longest stop of one service.
const STOP_LIMIT: Duration = Duration::from_secs(90);
/// Longest stop of an instance of `kat-ingress`, which finishes what it has.
const INGRESS_STOP_LIMIT: Duration = Duration::from_secs(ingress::INSTANCE_STOP_SECONDS);
/// For how long the stop of kat-agent is tried again while systemd does not answer.
const AGENT_STOP_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two of these tries.
const AGENT_STOP_PAUSE: Duration = Duration::from_secs(1);
/// The agent's unit.
const AGENT: &str = "kat-agent.service";

/// Whether instances move to other machines before they are stopped here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainFirst {
    /// Yes, where a leader answers.
    Yes,
    /// They are stopped at once.
    No,
}

/// Removes everything of KAT except the package and the administrator's own files (`agent.yaml`,
/// backups, volumes). Continues after a failure, and reports at the end what is left.
///
/// `go_on` is asked whether instances that did not move are to be stopped, also where no leader
/// answers.
pub(crate) async fn run(
    say: StepPrinter<'_>,
    drain_first: DrainFirst,
    go_on: impl FnOnce(&str) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: run it with sudo");
    }
    let joined = drain_or_confirm(say, drain_first, go_on).await?;
    let managers: Arc<dyn ManagerSource> = Arc::new(Managers::new());
    let system = managers.system();
    let mut failures = ResetFailures::default();

    say("stopping kat-agent");
    stop_agent(system.as_ref(), say).await?;

    say("stopping and removing the workloads of this machine");
    let tools = Arc::new(tools(&managers)?);
    for uid in tools.accounts.all() {
        failures.note(&format!("user {uid}"), remove_user(&tools, uid).await);
    }

    if let Some(identity) = joined {
        say("telling the cluster that this machine leaves");
        if let Err(error) = machine::leave(&identity).await {
            say(&format!(
                "the cluster does not know that this machine left ({error}); `katcall delete node {}` tells it",
                identity.node
            ));
        }
    }

    say("removing the overlay, etcd and their files");
    stop_units(system.as_ref(), &mut failures).await;
    let network = network::teardown().await.map_err(Into::into);
    failures.note("the network", network);
    failures.note("net.ipv4.ip_forward", forwarding::restore(Path::new("/")));
    failures.note("files", remove_files());
    failures.note("systemd", system.reload().await.map_err(Into::into));
    // Its user's, and kept by systemd when the instances end.
    failures.note(
        ingress::RUN_FOLDER,
        remove_folder(Path::new(ingress::RUN_FOLDER)),
    );
    failures.note("users", remove_accounts().await);
    failures.into_result()
}

/// What could not be removed, with the error of each.
#[derive(Default)]
struct ResetFailures(Vec<String>);

impl ResetFailures {
    fn note(&mut self, what: &str, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.0.push(format!("{what}: {error:#}"));
        }
    }

    fn into_result(self) -> anyhow::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        bail!("this is left:\n  {}", self.0.join("\n  "))
    }
}

/// Drains the machine where the cluster continues without it, and asks before the cluster ends.
/// Returns the identity with which the machine leaves the cluster; `None` where nobody is to be told.
async fn drain_or_confirm(
    say: StepPrinter<'_>,
    drain_first: DrainFirst,
    go_on: impl FnOnce(&str) -> anyhow::Result<bool>,
) -> anyhow::Result<Option<MachineIdentity>> {
    // Without other machines with etcd the cluster ends here: nobody takes anything over, and nobody
    // is notified.
    let others = |identity: &MachineIdentity| {
        let known = ClusterCache::stored().of_others(identity);
        !known.endpoints.api().is_empty()
    };
    let identity = read_joined();
    // What the cluster was asked in this machine's name would concern the machine that has it now.
    let is_replaced = match &identity {
        Some(identity) => recovery::is_replaced(identity).await,
        None => false,
    };
    if is_replaced {
        say("another machine has taken this one's place in the cluster: that one stays as it is");
    }
    let identity = identity.filter(|_| !is_replaced);
    let ends = identity
        .as_ref()
        .and_then(|one| cluster_ends(one, ClusterCache::stored()));
    let joined = identity.filter(|one| !one.etcd || others(one));
    if let (Some(identity), DrainFirst::Yes) = (&joined, drain_first) {
        if !drain_machine(identity, say, go_on).await? {
            return Ok(None);
        }
    } else if let Some(ends) = ends {
        say(&ends);
        if !go_on(&ends)? {
            bail!("nothing was removed");
        }
    }
    Ok(joined)
}

/// Stops the units of KAT other than the agent's and the workloads' own.
async fn stop_units(system: &dyn UnitManager, failures: &mut ResetFailures) {
    // Binds of users whose account is gone; usually there are none.
    match system.list("kat-hostpath@*").await {
        Ok(units) => {
            for unit in units {
                failures.note(&unit, stop(system, &unit).await);
            }
        }
        Err(error) => failures.note("host paths", Err(error.into())),
    }
    // Only an empty folder is removed: bound paths belong to the machine.
    let _ = std::fs::remove_dir(kat_types::assignment::BOUND_FOLDER);
    failures.note(
        ingress::SOCKET_UNIT,
        stop(system, ingress::SOCKET_UNIT).await,
    );
    for unit in ingress::INSTANCES.map(ingress::service_unit) {
        let stopped = stop_within(system, &unit, INGRESS_STOP_LIMIT).await;
        failures.note(&unit, stopped);
    }
    for unit in [
        "kat-etcd.service",
        "kat-net.service",
        "kat-net.socket",
        "kat-wg.service",
    ] {
        failures.note(unit, stop(system, unit).await);
    }
}

/// What becomes of the other machines of a cluster whose store this machine alone holds; `None` where
/// another one holds it too, or there is no other machine.
fn cluster_ends(identity: &MachineIdentity, known: ClusterCache) -> Option<String> {
    let others = known.of_others(identity).endpoints.machines;
    if !identity.etcd || others.is_empty() || others.values().any(|one| one.etcd) {
        return None;
    }
    let names: Vec<&str> = others.keys().map(String::as_str).collect();
    Some(format!(
        "the cluster ends: its store is on this machine alone. What runs on {} continues there without a leader, until `kat-agent reset` removes it too; a backup (`kat-agent backup`) is the only way back",
        names.join(", ")
    ))
}

/// Has the leader move what runs here, and says what remains. Returns whether the cluster knows this
/// machine, as far as it answered.
async fn drain_machine(
    identity: &MachineIdentity,
    say: StepPrinter<'_>,
    go_on: impl FnOnce(&str) -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    say(
        "asking the cluster to drain this machine, so that others take over what runs here (`--no-drain` skips this)",
    );
    let end = match ClusterLeader::of(identity) {
        Ok(leader) => drain(&leader, say).await,
        Err(error) => DrainEnd::Nobody(format!("{error:#}")),
    };
    settle(&end, &identity.node, say, go_on)?;
    Ok(end != DrainEnd::NotMember)
}

/// Says how the drain ended, and asks whether instances that did not move are to be stopped.
///
/// # Errors
/// They are not.
fn settle(
    end: &DrainEnd,
    node: &str,
    say: StepPrinter<'_>,
    go_on: impl FnOnce(&str) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let left = match end {
        DrainEnd::Empty => {
            say("nothing is left on this machine");
            return Ok(());
        }
        DrainEnd::NotMember => {
            "this machine is no member of the cluster any more; what runs here is stopped"
                .to_owned()
        }
        DrainEnd::Nobody(why) => {
            format!(
                "nobody drains this machine, so what runs here is stopped and not moved ({why})"
            )
        }
        DrainEnd::Left(count) => format!(
            "instances that did not move within {} s: {count}; they are stopped now (`katcall drain {node}` says why they stay)",
            DRAIN_LIMIT.as_secs(),
        ),
    };
    say(&left);
    if !go_on(&left)? {
        bail!(
            "nothing was removed; if the machine is being drained, `katcall uncordon {node}` ends that"
        );
    }
    Ok(())
}

/// Stops kat-agent before anything is removed: it would write again what it finds missing. A machine
/// that has just booted may reload its manager for longer than one call waits.
async fn stop_agent(system: &dyn UnitManager, say: StepPrinter<'_>) -> anyhow::Result<()> {
    let deadline = Instant::now() + AGENT_STOP_LIMIT;
    loop {
        let Err(error) = stop(system, AGENT).await else {
            return Ok(());
        };
        let unreachable = matches!(error.downcast_ref(), Some(SystemdError::Unreachable { .. }));
        if !unreachable || Instant::now() >= deadline {
            bail!(
                "{AGENT} cannot be stopped: {error:#}; nothing was removed; `systemctl status {AGENT}` shows its state, then run this again"
            );
        }
        say(&format!("{error:#}; trying again"));
        sleep(AGENT_STOP_PAUSE).await;
    }
}

async fn stop(system: &dyn UnitManager, unit: &str) -> anyhow::Result<()> {
    stop_within(system, unit, STOP_LIMIT).await
}

async fn stop_within(system: &dyn UnitManager, unit: &str, limit: Duration) -> anyhow::Result<()> {
    for done in [
        system.stop(unit, limit).await.map(drop),
        system.disable(unit).await,
    ] {
        match done {
            Ok(()) | Err(SystemdError::NoSuchUnit(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match system.reset_failed(unit).await {
        Ok(()) | Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn tools(managers: &Arc<dyn ManagerSource>) -> anyhow::Result<WorkerTools> {
    let cluster = read_identity()
        .map(|identity| identity.cluster.clone())
        .unwrap_or_default();
    let settings = read_identity()
        .map(|identity| render_settings(&identity))
        .unwrap_or_default();
    let ClusterConfiguration { spec, .. } = cluster;
    let root = Root::new("/");
    let cluster_settings = FollowedSettings::new(&spec, BootTime::default());
    Ok(WorkerTools {
        managers: Arc::clone(managers),
        sessions: Arc::new(Logind::new(managers.system())),
        accounts: Arc::new(Users::new()),
        renderer: Arc::new(Renderer::installed()?),
        generator: Arc::new(PodmanGenerator),
        logs: Arc::new(Journal::new()),
        secrets: Secrets::new(&root, "", &settings),
        settings,
        domain: spec.cluster_domain,
        cluster_settings,
        overlay_address: std::net::Ipv4Addr::LOCALHOST,
        root: root.clone(),
        monotonic: Arc::new(machine::monotonic_microseconds),
        clock: Arc::new(jiff::Timestamp::now),
        limits_enforced: true,
        network: Arc::new(crate::health::probe::OverlayProbeNetwork),
        volumes: Arc::new(Volumes::new(
            &root,
            &spec.volume_base_path,
            &AgentConfig::default(),
        )),
        listeners: Arc::new(crate::network::host_ports::SystemListeners {
            overlay: spec.cluster_cidr,
        }),
        options: MachineOptions::new(&root, &AgentConfig::default()),
        images: ImageCare::new(&root, &AgentConfig::default()),
        job_starts: JobStarts::default(),
    })
}

/// Removes a user with a worker that has an empty, confirmed list.
async fn remove_user(tools: &Arc<WorkerTools>, uid: u32) -> anyhow::Result<()> {
    let user = tools.accounts.find(uid).context("it is not KAT's")?;
    let (_sender, receiver) = watch::channel(UserDesired {
        confirmed: true,
        ..UserDesired::default()
    });
    let worker = Worker::new(Arc::clone(tools), user, receiver, Statuses::default());
    let cancel = CancellationToken::new();
    tokio::time::timeout(REMOVAL_LIMIT, worker.run(cancel))
        .await
        .map_err(|_| anyhow!(removal_failure(&tools.root, uid)))
}

/// Why a user is not removed although its time is over.
fn removal_failure(root: &Root, uid: u32) -> String {
    let seconds = REMOVAL_LIMIT.as_secs();
    match user_group_with_processes(root, uid) {
        Some(group) => format!(
            "processes of the user have not ended within {seconds} s; `systemd-cgls {group}` shows them"
        ),
        None => format!("its workload has not ended within {seconds} s"),
    }
}

fn remove_files() -> anyhow::Result<()> {
    let settings = kat_render::RenderSettings::default();
    for file in Renderer::installed()?.host_files(&settings)? {
        files::remove(&file.path)?;
    }
    // Folders that Debian's systemd package does not have; they stay if they have other content.
    for folder in ["/etc/systemd/journald.conf.d", "/etc/sysusers.d"] {
        let _ = std::fs::remove_dir(folder);
    }
    for file in [
        registries::FILE,
        "/etc/systemd/system/kat-etcd.service",
        paths::ADMIN_CONNECTION,
    ] {
        files::remove(Path::new(file))?;
    }
    remove_every_users(&Root::new("/"))?;
    for folder in [
        "pki", "etcd-pki", "etcd", "files", "ingress", "network", "resolv", "hooks.d", "secrets",
        "holder",
    ] {
        remove_folder(&Path::new(paths::STATE).join(folder))?;
    }
    recovery::forget_unpacked(Path::new(paths::STATE))?;
    files::remove(&Path::new(paths::STATE).join(ballast::FILE))?;
    files::remove(Path::new(paths::EVICTION_RESERVE))?;
    // A folder with data of volumes stays.
    let _ = std::fs::remove_dir(Path::new(paths::STATE).join("volumes"));
    // The home of a user that could not be removed stays: something may be mounted in it.
    let _ = std::fs::remove_dir(kat_host::users::HOMES);
    for file in [
        paths::DESIRED,
        paths::INSTANCE_HISTORY,
        paths::POSITION,
        paths::GRANTED,
        paths::VOLUMES,
        paths::IMAGES,
        paths::KNOWN,
        paths::JOINING,
        paths::MEMBER,
        paths::RECOVERY,
        paths::REPLACED,
        paths::IDENTITY,
    ] {
        files::remove(Path::new(file))?;
    }
    for folder in [paths::STATE, paths::CONFIGURATION] {
        files::remove_unfinished(Path::new(folder))?;
    }
    // The folders stay if the administrator has files in them.
    for folder in [paths::STATE, paths::CONFIGURATION, paths::RUN] {
        if Path::new(folder) == Path::new(paths::RUN) {
            remove_folder(Path::new(folder))?;
        } else {
            let _ = std::fs::remove_dir(folder);
        }
    }
    Ok(())
}

/// Removes a folder with its content. A mount point in its place, as may be used for etcd, stays as
/// an empty folder.
fn remove_folder(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && is_empty(path) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Removes the users and groups that init made.
async fn remove_accounts() -> anyhow::Result<()> {
    let accounts = Users::new().accounts()?;
    let mut commands = Vec::new();
    for user in [ETCD_USER, ingress::USER] {
        if accounts.user(user).is_some() {
            commands.push(["userdel", user]);
        }
    }
    for group in [ETCD_USER, ingress::USER, "kat"] {
        if accounts.group(group).is_some() {
            commands.push(["groupdel", group]);
        }
    }
    for [program, name] in commands {
        let output = tokio::process::Command::new(program)
            .arg(name)
            .output()
            .await
            .context(program)?;
        let gone = Users::new().accounts()?;
        let left = gone.user(name).is_some() || gone.group(name).is_some();
        if !output.status.success() && left {
            bail!(
                "{program} {name}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_testing::systemd::fake::FakeManager;
    use kat_types::api::MachineEndpoints;

    #[test]
    fn the_only_machine_with_the_store_names_those_that_are_left_without_a_leader() {
        let mut identity = MachineIdentity::example("n1");
        let known = |machines: &[(&str, bool)]| {
            let mut known = ClusterCache::default();
            for (name, etcd) in machines {
                let machine = MachineEndpoints {
                    etcd: *etcd,
                    ..MachineEndpoints::default()
                };
                known.endpoints.machines.insert((*name).to_owned(), machine);
            }
            known
        };
        identity.etcd = true;
        let said = cluster_ends(
            &identity,
            known(&[("n1", true), ("n2", false), ("n3", false)]),
        );
        assert!(
            said.unwrap()
                .contains("What runs on n2, n3 continues there")
        );
        assert_eq!(cluster_ends(&identity, known(&[("n1", true)])), None);
        let members = known(&[("n1", true), ("n2", true)]);
        assert_eq!(cluster_ends(&identity, members), None);
        identity.etcd = false;
        let worker = known(&[("n1", false), ("n2", false)]);
        assert_eq!(cluster_ends(&identity, worker), None);
    }

    #[test]
    fn a_user_that_is_not_removed_in_time_has_its_processes_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        assert_eq!(
            removal_failure(&root, 20_001),
            "its workload has not ended within 120 s"
        );
        let group = folder
            .path()
            .join("sys/fs/cgroup/user.slice/user-20001.slice");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        assert_eq!(
            removal_failure(&root, 20_001),
            "processes of the user have not ended within 120 s; `systemd-cgls /user.slice/user-20001.slice` shows them"
        );
    }

    fn silent(_: &str) {}

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_answers_late_still_stops_the_agent_before_anything_is_removed() {
        let system = FakeManager::new("system");
        system.set_unreachable(Some("it reloads"));
        let answer = async {
            sleep(AGENT_STOP_LIMIT / 2).await;
            system.set_unreachable(None);
        };
        let (stopped, ()) = tokio::join!(stop_agent(&system, &silent), answer);
        stopped.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_cannot_be_stopped_ends_the_reset_before_anything_is_removed() {
        let system = FakeManager::new("system");
        system.set_unreachable(Some("it hangs"));
        let began = Instant::now();
        let error = stop_agent(&system, &silent).await.unwrap_err();
        assert!(began.elapsed() >= AGENT_STOP_LIMIT);
        let said = error.to_string();
        assert!(
            said.contains("kat-agent.service cannot be stopped"),
            "{said}"
        );
        assert!(
            said.contains("it hangs") && said.contains("nothing was removed"),
            "{said}"
        );
    }
}
