//! `kat-agent recover`: after the permanent loss of the quorum this machine continues alone with
//! its own data.

use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::{
    epoch::prove,
    prompt,
    rebuild::{self, EtcdFolders, RebuiltStoreValues, RecoveryCommand, RecoveryMarker, next_epoch},
};
use crate::{
    cluster::{
        cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys,
        machine::wait_ready,
    },
    commands::{host_files, setup, setup::StepPrinter},
    etcd::{member::etcd_group, stores},
    service::paths,
};
use kat_store::StoreError;
use kat_systemd::{ManagerSource, Managers, SystemdError, UnitManager};

/// Longest wait for a quorum that may be about to come back.
const QUORUM_LIMIT: Duration = Duration::from_secs(8);
/// Longest wait for etcd's start before the quorum is checked.
const START_LIMIT: Duration = Duration::from_secs(3);
/// Longest stop of a service.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for the machine to be Ready.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// Makes this machine the only one that holds the store, with its own data, and waits until it
/// leads.
///
/// Fails where the quorum answers. The earlier data is kept until the machine is Ready, and the
/// same command continues an interrupted run.
pub(crate) async fn run(yes: bool, say: StepPrinter<'_>) -> anyhow::Result<()> {
    let identity = super::member()?;
    if super::is_marked_replaced()? {
        bail!(
            "{}; if that machine is gone for good: `systemctl stop kat-agent`, remove {}, `systemctl start kat-agent`, and recover then",
            super::replaced_text(&identity.node),
            paths::REPLACED
        );
    }
    let keys = MachineKeys::new(etcd_group(&identity)?);
    // The certificates of a machine that was off for long may have expired: with them the other
    // members would reject its requests, and the quorum would seem lost. Sealing and renewing can
    // be repeated, and do not affect a running agent.
    keys.seal_authorities()?;
    let known = ClusterCache::stored();
    keys.renew(&identity, &known, Timestamp::now())?;
    let recovery = keys.recovery_key()?;
    let managers = Managers::new();
    let system = managers.system();
    let system = system.as_ref();

    let epoch = match RecoveryMarker::read()? {
        Some(marker) if marker.command == RecoveryCommand::Recover => {
            // Either nothing was changed yet, or everything is done: the other members may have
            // come back meanwhile.
            if !EtcdFolders::new().has_begun()
                && let Err(error) = refuse_if_answered(&identity, &keys, &known, system).await
            {
                RecoveryMarker::remove()?;
                setup::start(system, "kat-agent.service").await?;
                return Err(error);
            }
            say("continuing the interrupted recover");
            marker.epoch
        }
        Some(marker) => bail!(
            "a `kat-agent {}` was interrupted on this machine; run it again, or `kat-agent reset` to remove what it made",
            marker.command
        ),
        None => {
            EtcdFolders::new().check_own()?;
            if !yes {
                prompt::need_terminal("this makes a store of one member")?;
            }
            say("looking for a quorum of the machines that hold the cluster's store");
            refuse_if_answered(&identity, &keys, &known, system).await?;
            if !yes && !prompt::go_on(&question(&identity, &known))? {
                bail!("nothing was changed");
            }
            let epoch = next_epoch(known.store_epoch.epoch, Timestamp::now());
            let marker = RecoveryMarker {
                schema: 1,
                command: RecoveryCommand::Recover,
                epoch,
            };
            marker.write()?;
            epoch
        }
    };
    let epoch = prove(&recovery, &identity.cluster_uid, epoch, &known.store_epoch)?;

    say("stopping kat-agent and etcd; workloads continue to run");
    for unit in ["kat-agent.service", host_files::ETCD] {
        stop(system, unit).await?;
    }
    say("beginning a store of one member with this machine's data");
    let data = EtcdFolders::new();
    data.begin_from_own(&identity, epoch.epoch).await?;
    say("starting etcd");
    let store = rebuild::start_etcd(&identity, &keys, system).await?;
    say("taking the other members out");
    let beginning = RebuiltStoreValues {
        identity: &identity,
        epoch: &epoch,
        endpoints: None,
        message: format!(
            "the store was begun anew on machine {}, with its data: kat-agent recover",
            identity.node
        ),
    };
    rebuild::settle(&store, &beginning, Timestamp::now()).await?;
    rebuild::known_alone(&identity, &epoch, &recovery)?;
    data.forget()?;
    RecoveryMarker::remove()?;

    say("starting kat-agent");
    setup::start(system, "kat-agent.service").await?;
    wait_ready(&identity, READY_LIMIT).await?;
    say(&next_steps(
        &identity,
        &other_store_machines(&identity, &known),
    ));
    Ok(())
}

/// The other machines that held the store, from this machine's cluster cache.
fn other_store_machines(identity: &MachineIdentity, known: &ClusterCache) -> Vec<String> {
    let machines = known.endpoints.machines.iter();
    let others = machines.filter(|(name, machine)| machine.etcd && **name != identity.node);
    others.map(|(name, _)| name.clone()).collect()
}

fn question(identity: &MachineIdentity, known: &ClusterCache) -> String {
    let others = other_store_machines(identity, known).join(", ");
    format!(
        "this begins the cluster's store anew with the data of {} alone: what {others} accepted and did not\nreplicate yet is lost, and none of them holds the store any more. Only do this if they are gone for\ngood: one that still runs, cut off from here, would continue by itself until it reaches this machine",
        identity.node
    )
}

fn next_steps(identity: &MachineIdentity, others: &[String]) -> String {
    let mut text = format!(
        "machine {} is Ready and leads the cluster {} alone\n",
        identity.node, identity.cluster.metadata.name
    );
    for other in others {
        text.push_str(&format!(
            "\n  katcall delete node {other}      # if it will not come back: what ran there is placed elsewhere"
        ));
    }
    text.push_str(
        "\n  katcall token create --join      # for new machines; from three on the store is on three again\n\nMachines that do come back keep their part in the cluster, and may hold the store again.",
    );
    text
}

/// Starts etcd first where it does not run: it may be the only missing member.
async fn refuse_if_answered(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
    system: &dyn UnitManager,
) -> anyhow::Result<()> {
    match system.start(host_files::ETCD, START_LIMIT).await {
        Ok(_) | Err(SystemdError::JobTimeout { .. }) => {}
        Err(error) => tracing::warn!("etcd can't be started: {error:#}"),
    }
    let store = stores::leader(identity, keys, known).await?;
    let deadline = Instant::now() + QUORUM_LIMIT;
    loop {
        match store.health().await {
            Err(StoreError::Unavailable(_)) if Instant::now() >= deadline => return Ok(()),
            Err(StoreError::Unavailable(_)) => sleep(Duration::from_millis(300)).await,
            Ok(_) | Err(_) => bail!(
                "the cluster's store answers: there is nothing to recover, and nothing was changed. `katcall status` says what is not well; `katcall delete node` takes a machine out that is gone"
            ),
        }
    }
}

pub(crate) async fn stop(system: &dyn UnitManager, unit: &str) -> anyhow::Result<()> {
    match system.stop(unit, STOP_LIMIT).await {
        Ok(_) | Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::MachineEndpoints;

    #[test]
    fn the_question_and_the_end_name_the_other_members() {
        let identity = MachineIdentity::example("n1");
        let mut known = ClusterCache::default();
        for (name, etcd) in [("n1", true), ("n2", true), ("n3", true), ("n4", false)] {
            let machine = MachineEndpoints {
                etcd,
                ..MachineEndpoints::default()
            };
            known.endpoints.machines.insert(name.to_owned(), machine);
        }
        let others = other_store_machines(&identity, &known);
        assert_eq!(others, ["n2", "n3"]);
        assert!(question(&identity, &known).contains("what n2, n3 accepted"));
        let next = next_steps(&identity, &others);
        assert!(
            next.contains("delete node n2") && !next.contains("n4"),
            "{next}"
        );
    }
}
