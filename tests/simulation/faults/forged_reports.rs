//! A machine that sends forged reports. Its agent works normally; only the reports are replaced.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use crate::random::Random;
use kat_testing::MemoryStore;
use kat_types::{
    api::{
        ApiTime, Condition, Health, InstancePhase, InstanceReport, MemberKeys, NodeReport,
        OverlayPeer, OverlayStatus, VolumeMovePhase, VolumeMoveReport,
    },
    assignment::{Assignment, INDEX_LIMIT},
    resource::{Bytes, MilliCpu},
    store::{keys, records::VolumeRecord},
    volumes::{RemovalRecord, removal_id},
};

/// The machine that forges reports. It is no member of etcd, because a member can write anything
/// anyway.
pub(crate) const NAME: &str = "n4";

const LIES: [Lie; 12] = [
    Lie::OthersInstances,
    Lie::InventedInstances,
    Lie::OwnPhases,
    Lie::AllStopped,
    Lie::Nothing,
    Lie::OldList,
    Lie::Volumes,
    Lie::Users,
    Lie::Machine,
    Lie::Places,
    Lie::Terminal,
    Lie::Endless,
];
/// Percent of the reports that contain a lie; `SELDOM` is for the lie that makes reports long.
const OFTEN: u64 = 25;
const SELDOM: u64 = 4;
/// Most entries of a list in a report.
const MOST: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lie {
    /// Instances of other machines run, have stopped or have failed here.
    OthersInstances,
    /// Instances that never existed.
    InventedInstances,
    /// The machine's own instances have another phase and health.
    OwnPhases,
    /// All of the machine's own instances have stopped.
    AllStopped,
    /// No instances, no users and no data.
    Nothing,
    /// Another revision of the desired state than the one acted on.
    OldList,
    /// All volumes are on this machine, were removed, or have arrived.
    Volumes,
    /// All users, or none.
    Users,
    /// Another size, other capabilities and other keys.
    Machine,
    /// Addresses and endpoints of other machines, which do not answer over the overlay.
    Places,
    /// Texts with terminal escape sequences.
    Terminal,
    /// Every list is as long as its type allows.
    Endless,
}

/// Replaces the reports of the machine [`NAME`].
pub(crate) struct Forger {
    store: MemoryStore,
    state: Mutex<State>,
}

struct State {
    random: Random,
    lies: BTreeSet<Lie>,
    forges: bool,
    honest: Option<Arc<NodeReport>>,
}

impl Forger {
    /// `None` for seeds in which no machine forges reports.
    pub(crate) fn of_seed(seed: u64, store: &MemoryStore) -> Option<Arc<Self>> {
        let forges = seed % 5 == 2 || seed % 20 == 10;
        let state = State {
            // The forger has a generator of its own, so that the seeds without a forger still run
            // as before.
            random: Random::new(seed ^ 0x666f_7267_6572),
            lies: BTreeSet::new(),
            forges: true,
            honest: None,
        };
        forges.then(|| {
            Arc::new(Self {
                store: store.clone(),
                state: Mutex::new(state),
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// From now on reports are sent unchanged.
    pub(crate) fn becomes_honest(&self) {
        self.lock().forges = false;
    }

    /// The unchanged form of the latest report.
    pub(crate) fn honest(&self) -> Option<Arc<NodeReport>> {
        self.lock().honest.clone()
    }

    /// The forged form of a report, and the lies in it.
    pub(crate) fn forge(&self, honest: &NodeReport) -> (NodeReport, String) {
        let mut state = self.lock();
        state.honest = Some(Arc::new(honest.clone()));
        let mut report = honest.clone();
        if !state.forges {
            return (report, String::new());
        }
        let State { random, lies, .. } = &mut *state;
        // Some lies stay for several reports, so that reactions that need time happen too.
        if random.chance(40) {
            let told = LIES.into_iter().filter(|lie| {
                let percent = match lie {
                    Lie::Endless => SELDOM,
                    _ => OFTEN,
                };
                random.chance(percent)
            });
            *lies = told.collect();
        }
        for lie in lies.iter() {
            self.tell(*lie, random, &mut report);
        }
        (report, format!("{lies:?}"))
    }

    /// The assignments of all machines, each with its machine.
    fn assigned(&self) -> Vec<(String, Assignment)> {
        let items = self.store.peek(keys::NODE_DESIRED).items.into_iter();
        let assigned = items.filter_map(|item| {
            let (node, _) = item
                .key
                .strip_prefix(keys::NODE_DESIRED)?
                .split_once("/instances/")?;
            let assignment = serde_json::from_slice(&item.value).unwrap();
            Some((node.to_owned(), assignment))
        });
        assigned.collect()
    }

    fn volumes(&self) -> Vec<(String, VolumeRecord)> {
        let items = self.store.peek(keys::VOLUMES).items.into_iter();
        let volumes = items.map(|item| {
            let name = item.key.strip_prefix(keys::VOLUMES).unwrap().to_owned();
            (name, serde_json::from_slice(&item.value).unwrap())
        });
        volumes.collect()
    }

    fn tell(&self, lie: Lie, random: &mut Random, report: &mut NodeReport) {
        match lie {
            Lie::OthersInstances => {
                for (node, one) in self.assigned() {
                    if node != NAME {
                        report.workload_instances.push(claim(random, &one));
                    }
                }
            }
            Lie::InventedInstances => {
                for id in ["nothing-00000", "web-00000", "", "../meta", "web-\u{1b}[2J"] {
                    report.workload_instances.push(InstanceReport {
                        instance_id: id.to_owned(),
                        namespace: "default".to_owned(),
                        workload_name: "web".to_owned(),
                        phase: phase(random),
                        reason: "Forged".to_owned(),
                        ..InstanceReport::default()
                    });
                }
            }
            Lie::OwnPhases => {
                for instance in &mut report.workload_instances {
                    instance.phase = phase(random);
                    instance.health_status = health(random);
                    instance.restarts = [0, 1, u32::MAX][random.index(3)];
                    instance.exit_code = Some(137);
                    instance.reason = "Forged".to_owned();
                    if random.chance(30) {
                        instance.template_hash = "of another version".to_owned();
                    }
                }
            }
            Lie::AllStopped => {
                for instance in &mut report.workload_instances {
                    instance.phase = InstancePhase::Stopped;
                }
            }
            Lie::Nothing => {
                report.workload_instances.clear();
                report.user_indexes.clear();
                report.made_volumes.clear();
            }
            Lie::OldList => {
                let last = report.desired_revision;
                let revisions = [0, 1, last.saturating_sub(1), last + 1, u64::MAX];
                report.desired_revision = revisions[random.index(revisions.len())];
            }
            Lie::Volumes => self.tell_of_volumes(report),
            Lie::Users => {
                report.user_indexes = match random.chance(50) {
                    true => (0..INDEX_LIMIT).collect(),
                    false => Vec::new(),
                };
            }
            Lie::Machine => tell_of_machine(random, report),
            Lie::Places => {
                // The first machine to claim an address keeps it. A free address claimed here could
                // keep its owner from joining until a person decides whose it is.
                let joined = !self.store.peek(&keys::registration("n5")).items.is_empty();
                let fifth = if joined { "192.0.2.5" } else { "192.0.2.4" };
                let others = ["192.0.2.1", fifth, "10.100.0.1", "10.100.0.17"];
                report.advertise = others.map(|one| one.parse().unwrap()).to_vec();
                report.addresses = others.map(str::to_owned).to_vec();
                report.endpoints = others.map(|one| format!("{one}:51820")).to_vec();
                report.overlay_network.status = OverlayStatus::Connected;
                report.overlay_network.peers = ["n1", "n2", "n3"]
                    .map(|name| OverlayPeer {
                        name: name.to_owned(),
                        endpoint: Some("192.0.2.1:51820".to_owned()),
                        via: Some(NAME.to_owned()),
                        unanswered_seconds: Some(3600),
                        ..OverlayPeer::default()
                    })
                    .to_vec();
            }
            Lie::Terminal => {
                let text = "\u{1b}]0;owned\u{7}\u{0}\r\n\u{9b}2J\u{202e}";
                report.version = text.to_owned();
                report.conditions = vec![condition(text.to_owned())];
                for instance in &mut report.workload_instances {
                    instance.reason = text.to_owned();
                    instance.message = text.repeat(100);
                    instance.conditions = vec![condition(text.to_owned())];
                }
            }
            Lie::Endless => endless(report),
        }
    }

    /// All volumes are on this machine, all pending removals are done, and all volumes that move to
    /// other machines have arrived.
    fn tell_of_volumes(&self, report: &mut NodeReport) {
        for item in self.store.peek(keys::NODE_DESIRED).items {
            let Some((_, volume)) = item.key.split_once("/removals/") else {
                continue;
            };
            let removal: RemovalRecord = serde_json::from_slice(&item.value).unwrap();
            let removed = removal_id(volume, removal.asked);
            report.removed_volumes.push(removed);
        }
        for (volume, record) in self.volumes() {
            report.made_volumes.push(volume.clone());
            // The forger does not claim this of volumes that move to its machine: it holds their
            // data, and this lie alone would lose it.
            let moving = record.moving.as_ref();
            if let Some(moving) = moving.filter(|moving| moving.to != NAME) {
                report.volume_moves.push(VolumeMoveReport {
                    volume,
                    id: moving.id.clone(),
                    phase: VolumeMovePhase::Placed,
                    digest: "d".repeat(64),
                    ..VolumeMoveReport::default()
                });
            }
        }
    }
}

fn claim(random: &mut Random, one: &Assignment) -> InstanceReport {
    InstanceReport {
        instance_id: one.instance.clone(),
        namespace: one.namespace.clone(),
        workload_name: one.workload.clone(),
        template_hash: one.template_hash.clone(),
        phase: phase(random),
        health_status: health(random),
        restarts: 7,
        reason: "Forged".to_owned(),
        message: "forged".to_owned(),
        ..InstanceReport::default()
    }
}

fn phase(random: &mut Random) -> InstancePhase {
    const PHASES: [InstancePhase; 8] = [
        InstancePhase::Stopped,
        InstancePhase::Stopped,
        InstancePhase::Failed,
        InstancePhase::Running,
        InstancePhase::Running,
        InstancePhase::Succeeded,
        InstancePhase::Unknown,
        InstancePhase::Restarting,
    ];
    PHASES[random.index(PHASES.len())]
}

fn health(random: &mut Random) -> Health {
    const WORDS: [Health; 3] = [Health::Healthy, Health::Unhealthy, Health::NotApplicable];
    WORDS[random.index(WORDS.len())]
}

fn condition(text: String) -> Condition {
    Condition {
        kind: text.clone(),
        status: true,
        reason: text.clone(),
        message: text,
        since: ApiTime::UNKNOWN,
    }
}

fn tell_of_machine(random: &mut Random, report: &mut NodeReport) {
    let size = [0, u64::MAX][random.index(2)];
    report.resources.capacity.cpu = Some(MilliCpu(size));
    report.resources.allocatable.cpu = Some(MilliCpu(u64::MAX));
    report.resources.allocatable.memory = Some(Bytes(size));
    report.data_path = [0, u32::MAX][random.index(2)];
    report.assignment_schema = [0, 1, u32::MAX][random.index(3)];
    // A volume placed here as shared would exist nowhere once the machine reports the truth, until
    // a person deletes it.
    report.volume_shared = false;
    report.host_network = !report.host_network;
    report.architecture = "riscv64".to_owned();
    report.member_keys = MemberKeys {
        leader: "a".repeat(64),
        admin: "b".repeat(64),
        api: "c".repeat(64),
    };
}

/// Makes the report as long as allowed. A quote takes two bytes in JSON.
fn endless(report: &mut NodeReport) {
    report.addresses = vec!["\"".repeat(128); MOST];
    report.conditions = vec![condition("\"".repeat(4096)); 32];
    report.user_indexes = (0..INDEX_LIMIT).collect();
    let names = |word: &str| -> Vec<String> {
        let names = 0..4000;
        names
            .map(|number| format!("default/{word}/{number:050}"))
            .collect()
    };
    report.made_volumes.extend(names("made"));
    report.removed_volumes.extend(names("removed"));
    report.workload_instances.resize(
        MOST,
        InstanceReport {
            instance_id: "nothing-00000".to_owned(),
            ..InstanceReport::default()
        },
    );
    for instance in &mut report.workload_instances {
        instance.message = "\"".repeat(200);
    }
}
