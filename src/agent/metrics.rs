//! What this machine measures of itself, for `GET /v1alpha1/nodes/{node}/metrics`.
//!
//! Nothing is measured unless somebody asks, and then once in [`INTERVAL`] at most, whoever asks. What
//! other loops know already is taken from them: reports of instances, counts of probes, free space.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{Statuses, disk::pressure::DiskWatch, ingress::files::IngressFiles};
use kat_api::{ListInstances, MEASURED_UNITS};
use kat_daemon::clock;
use kat_host::facts;
use kat_systemd::{ActiveState, UnitManager, UnitUsage};
use kat_types::{
    VERSION,
    api::{
        IngressMeasurements, InstanceMeasurements, MachineMeasurements, NetworkMeasurements,
        NodeMeasurements, NodeReport, NodeUsage, OverlayStatus, PeerMeasurements,
        ProcessMeasurements, ServiceMeasurements,
    },
    machine::fence::{BootClock, BootTime},
};

/// Least time between two measurements.
const INTERVAL: Duration = Duration::from_secs(10);
/// Longest wait for systemd's counts of a service.
const COUNT: Duration = Duration::from_secs(2);

/// Measures this machine.
pub(crate) struct MachineMeasurer {
    /// The instances of this machine's list.
    pub instances: ListInstances,
    pub statuses: Statuses,
    pub disks: Arc<DiskWatch>,
    /// The system's manager.
    pub system: Arc<dyn UnitManager>,
    /// The last report.
    pub report: watch::Receiver<Arc<NodeReport>>,
    /// When this machine last counted as present for every leader.
    pub reached: watch::Receiver<Option<BootTime>>,
    /// Since when `kat-net` runs and does not answer.
    pub data_path_silent: watch::Receiver<Option<Timestamp>>,
    /// The clock of `reached`.
    pub boot_clock: BootClock,
    pub last: LastMeasurement,
}

/// The last measurement, which is repeated for [`INTERVAL`].
#[derive(Default)]
pub(crate) struct LastMeasurement {
    measured: Mutex<Option<(Instant, NodeMeasurements)>>,
    /// Held while the machine is measured, so that callers at the same time get one measurement.
    turn: tokio::sync::Mutex<()>,
}

impl LastMeasurement {
    fn recent(&self) -> Option<NodeMeasurements> {
        let measured = self.measured.lock();
        let (at, last) = measured.as_ref()?;
        (at.elapsed() < INTERVAL).then(|| last.clone())
    }

    /// The last measurement if it is recent, else that of `measure`.
    async fn or_measure(
        &self,
        measure: impl Future<Output = NodeMeasurements>,
    ) -> NodeMeasurements {
        let _turn = self.turn.lock().await;
        if let Some(last) = self.recent() {
            return last;
        }
        let measured = measure.await;
        *self.measured.lock() = Some((Instant::now(), measured.clone()));
        measured
    }
}

impl MachineMeasurer {
    /// The measurements; `usage` reads the resource usage of the instances that it is given.
    pub(crate) async fn measure<U: Future<Output = NodeUsage>>(
        &self,
        usage: impl FnOnce(Vec<kat_types::store::snapshot::InstanceEntry>) -> U,
    ) -> NodeMeasurements {
        let measure = async {
            let entries = (self.instances)();
            let ids = entries.iter();
            let ids = ids.map(|entry| entry.assignment.value.instance.clone());
            let ids: Vec<String> = ids.collect();
            let (usage, services) = futures_util::join!(usage(entries), self.services());
            NodeMeasurements {
                version: VERSION.to_owned(),
                instances: self.of_instances(ids, &usage),
                machine: self.machine(),
                services,
                agent: own_process(),
                network: self.network(),
                leader_contact_age_seconds: self.leader_contact(),
                ingress: ingress().await,
            }
        };
        self.last.or_measure(measure).await
    }

    fn of_instances(&self, ids: Vec<String>, usage: &NodeUsage) -> Vec<InstanceMeasurements> {
        let (reports, _) = self.statuses.all();
        let each = ids.into_iter().map(|id| {
            let used = usage.instances.iter().find(|one| one.instance == id);
            let report = reports.iter().find(|report| report.instance_id == id);
            InstanceMeasurements {
                memory: used.and_then(|used| used.memory),
                cpu: used.and_then(|used| used.cpu),
                restarts: report.map(|report| report.restarts),
                probes: self.statuses.probes().of(&id),
                instance: id,
            }
        });
        each.collect()
    }

    fn machine(&self) -> MachineMeasurements {
        let memory = facts::memory_now().ok();
        let load = facts::load_now().ok();
        let disk = self.disks.state_space();
        MachineMeasurements {
            memory: memory.map(|(all, _)| all),
            memory_available: memory.map(|(_, available)| available),
            load1: load.map(|[load, _, _]| load),
            load5: load.map(|[_, load, _]| load),
            load15: load.map(|[_, _, load]| load),
            disk: disk.map(|disk| disk.bytes),
            disk_free: disk.map(|disk| disk.free_bytes),
        }
    }

    /// Those of KAT's services that run here.
    async fn services(&self) -> Vec<ServiceMeasurements> {
        let each = MEASURED_UNITS.map(|unit| async move {
            let counting = async {
                match self.system.active_state(unit).await {
                    Ok(ActiveState::Active) => self.system.usage(unit).await.ok(),
                    _ => None,
                }
            };
            let UnitUsage { memory, cpu } = timeout(COUNT, counting).await.ok()??;
            Some(ServiceMeasurements {
                unit: unit.to_owned(),
                memory,
                cpu,
            })
        });
        let each = futures_util::future::join_all(each).await;
        each.into_iter().flatten().collect()
    }

    fn network(&self) -> NetworkMeasurements {
        let report = self.report.borrow();
        let overlay = &report.overlay_network;
        let silent = self.data_path_silent.borrow().is_some();
        let answers = match overlay.status {
            _ if silent => Some(false),
            OverlayStatus::Connected | OverlayStatus::Degraded => Some(true),
            OverlayStatus::Down => Some(false),
            OverlayStatus::Unknown => None,
        };
        let peers = overlay.peers.iter().map(|peer| PeerMeasurements {
            name: peer.name.clone(),
            connected: peer.connected,
            sent: peer.sent,
            received: peer.received,
            unanswered_seconds: peer.unanswered_seconds,
        });
        NetworkMeasurements {
            answers,
            peers: peers.collect(),
        }
    }

    fn leader_contact(&self) -> Option<f64> {
        let reached = *self.reached.borrow();
        let age = reached.map(|reached| (self.boot_clock)().since(reached));
        age.map(|age| age.as_secs_f64())
    }
}

/// What `kat-ingress` counts.
async fn ingress() -> Option<IngressMeasurements> {
    let read = tokio::task::spawn_blocking(|| IngressFiles::to_read().measured());
    read.await.ok().flatten()
}

fn own_process() -> ProcessMeasurements {
    let cpu = clock::process_time().as_nanos();
    ProcessMeasurements {
        resident: facts::own_resident_memory().ok(),
        cpu: u64::try_from(cpu).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_is_measured_once_in_ten_seconds_however_many_ask() {
        let last = Arc::new(LastMeasurement::default());
        let measured = Arc::new(AtomicU64::new(0));
        let ask = || {
            let (last, measured) = (Arc::clone(&last), Arc::clone(&measured));
            async move {
                let measure = async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let count = measured.fetch_add(1, Ordering::SeqCst);
                    NodeMeasurements {
                        version: count.to_string(),
                        ..NodeMeasurements::default()
                    }
                };
                last.or_measure(measure).await.version
            }
        };
        let both = futures_util::join!(ask(), ask());
        assert_eq!(both, ("0".to_owned(), "0".to_owned()));
        tokio::time::advance(INTERVAL - Duration::from_millis(1)).await;
        assert_eq!(ask().await, "0");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(ask().await, "1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_leaves_holds_up_no_other_one() {
        let last = LastMeasurement::default();
        let hanging = last.or_measure(std::future::pending());
        let left = timeout(Duration::from_secs(1), hanging).await;
        assert!(left.is_err(), "the measurement hangs");
        let next = last.or_measure(async { NodeMeasurements::default() });
        let next = timeout(Duration::from_secs(1), next).await;
        assert_eq!(next.ok(), Some(NodeMeasurements::default()));
    }
}
