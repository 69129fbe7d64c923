//! Stops of instances, also of evicted ones.

use std::{sync::Arc, time::Duration};

use crate::{
    disk::eviction,
    worker::{
        JOB_MARGIN, context::UserContext, instance::containers, running::jobs::StopUrgency,
        unit_state::unit_files::FilesError,
    },
};
use kat_systemd::{JobResult, SystemdError, TransientUnit, UnitManager};
use kat_types::{assignment::Assignment, machine::root::Root};

/// Grace of an evicted instance: its programs are killed after this time, whatever stop time its
/// file sets.
const EVICTED_PATIENCE: Duration = Duration::from_secs(5);
/// Longest run of a `podman` command on the containers of an evicted instance.
const COMMAND: Duration = Duration::from_secs(30);
/// Shell script that kills the programs in the containers of these units, but not Podman's
/// processes, which clean up after them. It uses the kernel's `cgroup.kill` (cgroups(7)), so
/// nothing is written to the disk.
const KILL: &str = r#"for unit; do
    group=$(systemctl --user show --property=ControlGroup --value -- "$unit")
    [ -n "$group" ] || continue
    for kill in /sys/fs/cgroup"$group"/libpod-payload-*/cgroup.kill; do
        [ ! -e "$kill" ] || echo 1 >"$kill"
    done
done"#;

/// An instance to stop, with its main unit.
#[derive(Debug)]
pub(crate) struct InstanceStop<'a> {
    pub instance: &'a str,
    pub unit: String,
    /// `None` where the instance is no longer assigned.
    pub assignment: Option<&'a Assignment>,
    pub urgency: StopUrgency,
    /// The instance's containers are removed, and its programs killed after a short grace.
    pub evicted: bool,
}

impl UserContext {
    /// Stops a unit and the instance's other containers.
    pub(crate) fn begin_stop(&mut self, stop: InstanceStop<'_>) -> Result<(), FilesError> {
        let InstanceStop {
            instance,
            unit,
            assignment,
            urgency,
            evicted,
        } = stop;
        let manager = Arc::clone(&self.manager);
        let limit = stop_limit(assignment);
        let others = self.folder.other_units(&unit)?;
        let root = self.tools.root.clone();
        self.jobs.begin_stop(instance, urgency, async move {
            let units: Vec<String> = std::iter::once(&unit).chain(&others).cloned().collect();
            let stop = async {
                let main = manager.stop(&unit, limit).await;
                containers::stop(manager.as_ref(), main, others, limit).await
            };
            if evicted {
                stop_for_room(manager.as_ref(), &units, &root, stop).await
            } else {
                stop.await
            }
        });
        Ok(())
    }
}

/// Waits for a stop, and removes the containers of these units with the data that they wrote.
async fn stop_for_room(
    manager: &dyn UnitManager,
    units: &[String],
    root: &Root,
    stop: impl Future<Output = Result<JobResult, SystemdError>>,
) -> Result<JobResult, SystemdError> {
    tokio::pin!(stop);
    let result = match tokio::time::timeout(EVICTED_PATIENCE, &mut stop).await {
        Ok(result) => result,
        Err(_) => {
            let kill = ["/bin/sh", "-c", KILL, "sh"].map(str::to_owned);
            run(manager, kill.into_iter().chain(units.iter().cloned())).await;
            stop.await
        }
    };
    // Podman needs some room to remove containers. The programs that filled the disk have ended.
    eviction::give_up_reserve(root);
    let remove = [
        "/usr/bin/podman",
        "rm",
        "--force",
        "--volumes",
        "--ignore",
        "--time=0",
        "--",
    ];
    let names = units
        .iter()
        .map(|unit| unit.trim_end_matches(".service").to_owned());
    run(manager, remove.map(str::to_owned).into_iter().chain(names)).await;
    result
}

async fn run(manager: &dyn UnitManager, command: impl Iterator<Item = String>) {
    let unit = TransientUnit {
        name: format!("evict-kat-{:016x}.service", rand::random::<u64>()),
        description: "KAT makes room on a full disk".to_owned(),
        command: command.collect(),
        limit: COMMAND,
        ..TransientUnit::default()
    };
    match manager.run_transient(&unit, COMMAND + JOB_MARGIN).await {
        Ok(end) if end.result == JobResult::Done => {}
        Ok(end) => {
            tracing::warn!(command = ?unit.command, ?end, "an evicted instance's containers may be left")
        }
        Err(error) => {
            tracing::warn!(command = ?unit.command, "an evicted instance's containers may be left: {error:#}")
        }
    }
}

/// Longest stop of an instance.
pub(crate) fn stop_limit(assignment: Option<&Assignment>) -> Duration {
    let grace = assignment.map_or(60, Assignment::stop_seconds);
    Duration::from_secs(u64::from(grace) + 10) + JOB_MARGIN
}
