//! `kat-agent run` on a machine whose place another one has taken since a restore: it says so, and
//! nothing of the cluster runs here until a person resets the machine.
//!
//! The other machine has this one's name, certificates' keys and WireGuard key. So nobody else may
//! hear of this one: no port is served, no report is sent, and the overlay has no peers. A peer
//! would take a packet from here for one of the other machine.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    loops::AgentLoops,
    paths,
    run::{Machine, tools, wait_for_end},
    supervisor::{DesiredList, Supervisor},
};
use crate::{
    NetworkFiles, Statuses,
    cluster::{cluster_cache::ClusterCache, keys::MachineKeys, peer_agents::PeerAgents},
    commands::{recovery::replaced_text, setup},
    desired_state::{instance_history::InstanceHistory, settings::FollowedSettings},
    etcd::{member::etcd_group, membership},
    exec::{LocalSessions, sessions::ClusterSessions},
    local_api::{
        listeners::socket_alone,
        logs::{ClusterLogs, JournalLogs},
        standalone as local,
    },
    worker::WorkerTools,
};
use kat_api as api;
use kat_api::{ApiConfig, ApiLimits, InstanceLogs, InstanceSessions};
use kat_leader::LeaderHandle;
use kat_store::AbsentStore;
use kat_systemd::UnitManager;
use kat_types::machine::{
    fence::BootTime,
    network::{self, NodeNetwork, PeerMachines},
};

/// Pause before a step that failed is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Runs until SIGTERM, or until `restart`.
pub(super) async fn run(
    mut loops: AgentLoops,
    machine: &Machine,
    known: ClusterCache,
    restart: CancellationToken,
) -> anyhow::Result<()> {
    let Machine {
        identity,
        config,
        managers,
        ..
    } = machine;
    let stopped = all_stopped(Path::new(paths::DESIRED));
    let mut text = replaced_text(&identity.node);
    if !stopped.known {
        text.push_str("; which instances ran here is not known: stop them by hand");
    }
    tracing::error!("{text}");
    loops.status.say(&text);
    let files = NetworkFiles::new(network::FOLDER.into());

    let settings = FollowedSettings::new(&identity.cluster.spec, BootTime::default());
    let tools = Arc::new(tools(identity, config, managers, &settings).await?);
    let statuses = Statuses::default();
    let (_listed_now, lists) = watch::channel(stopped);
    let mut supervisor = Supervisor::new(Arc::clone(&tools), statuses, files.clone());
    supervisor.pulses = loops.pulses.clone();
    let retries = supervisor.writes.clone();
    let retries = retries.run(loops.pulses.clone(), loops.cancel.clone());
    loops.add("writes that failed", retries);
    let workers = supervisor.run(lists.clone(), loops.cancel.clone());
    loops.add_blocking("workers", workers);
    let node = setup::node_network(identity, config);
    let leaving = leave_cluster(files, node, managers.system(), loops.cancel.clone());
    loops.add("leaving the cluster", leaving);

    let (_reported_now, reports) = watch::channel(Arc::default());
    let (handle, _shown) = local::start(
        Arc::new(AbsentStore),
        Arc::clone(identity),
        lists,
        reports,
        loops.cancel.clone(),
    );
    handle.planning.set_outside(Some(&text));
    let (_known_now, known) = watch::channel(Arc::new(known));
    let keys = MachineKeys::new(etcd_group(identity)?);
    let agents = PeerAgents::new(identity, &keys, &known);
    let config = api_config(&loops, machine, handle, (&tools, agents));
    let serving = api::serve(config, socket_alone()?, loops.cancel.clone());
    loops.add("API", serving);

    let end = async {
        tokio::select! {
            ended = wait_for_end() => ended,
            () = restart.cancelled() => Ok(()),
        }
    };
    loops.supervise(end).await?;
    loops.end().await;
    Ok(())
}

/// Ends etcd, peers and names, and then waits for `cancel`. A disk or an etcd that hangs does not
/// delay the workers, and each step that failed is tried again.
async fn leave_cluster(
    files: NetworkFiles,
    node: NodeNetwork,
    system: Arc<dyn UnitManager>,
    cancel: CancellationToken,
) {
    let no_peers = PeerMachines {
        schema: 1,
        ..PeerMachines::default()
    };
    let work = async {
        loop {
            let stopped = membership::stop(system.as_ref()).await;
            match stopped.and_then(|()| setup::write_machines(&files, &node, &no_peers)) {
                Ok(()) => std::future::pending().await,
                Err(error) => tracing::warn!(
                    "this machine is not out of the cluster yet, which is tried again: {error:#}"
                ),
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let _cancelled = cancel.run_until_cancelled(work).await;
}

/// The last list that was confirmed here, of which nothing may run.
fn all_stopped(path: &Path) -> DesiredList {
    let stored = DesiredList::stored(path);
    let all = stored.desired.assignments.keys().cloned();
    DesiredList {
        fenced: Arc::new(all.collect()),
        ..stored
    }
}

/// What callers on this machine's socket see: this machine alone.
fn api_config(
    loops: &AgentLoops,
    machine: &Machine,
    handle: LeaderHandle,
    (tools, agents): (&Arc<WorkerTools>, PeerAgents),
) -> ApiConfig {
    let Machine {
        identity,
        managers,
        clock,
        ..
    } = machine;
    let logs: Arc<dyn InstanceLogs> = Arc::new(JournalLogs {
        journal: Arc::clone(&tools.logs),
        managers: Arc::clone(managers),
        node: identity.node.clone(),
        history: InstanceHistory::stored(paths::INSTANCE_HISTORY.into()),
    });
    let sessions: Arc<dyn InstanceSessions> = Arc::new(LocalSessions::new(
        Arc::clone(managers),
        tools.root.path().to_owned(),
    ));
    ApiConfig {
        handle,
        logs: Arc::new(ClusterLogs {
            node: identity.node.clone(),
            here: logs,
            agents: agents.clone(),
        }),
        sessions: Arc::new(ClusterSessions {
            node: identity.node.clone(),
            here: sessions,
            agents,
        }),
        clock: Arc::clone(clock),
        new_uid: Arc::new(api::random_uid),
        node_name: identity.node.clone(),
        limits: ApiLimits::default(),
        pulses: loops.pulses.clone(),
        joining: None,
        images: None,
        relay: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{desired_state::desired::DesiredState, tests::assignment};

    #[test]
    fn every_instance_of_the_stored_list_is_stopped_and_none_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("desired.json");
        assert!(!all_stopped(&path).known);
        let mut desired = DesiredState::default();
        for (index, name) in [(0, "db"), (1, "web")] {
            let one = assignment(index, name);
            desired.assignments.insert(one.instance.clone(), one);
        }
        desired.store(&path).unwrap();
        let list = all_stopped(&path);
        assert!(list.known && !list.confirmed);
        assert_eq!(list.fenced.len(), 2);
        assert!(list.fenced.iter().eq(list.desired.assignments.keys()));
    }
}
