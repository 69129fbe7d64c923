//! The supervisor and its workers against a fake machine and a folder as its root.
//!
//! The unit files get their real owners, so these tests need root.

mod data;
mod desired_lists;
mod end_to_end;
pub(crate) mod hung_disk;
mod machine;
mod running;
mod test_doubles;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    NetworkFiles, Statuses, health::probe::ProbeNetwork, secrets::Secrets, volumes::Volumes,
    worker::WorkerTools,
};
use crate::{
    desired_state::{desired::DesiredState, job_starts::JobStarts, settings::FollowedSettings},
    disk::{eviction::EvictedInstances, foreign_disks::ForeignDisks},
    images::unused::ImageCare,
    service::paths::QUADLETS,
    service::supervisor::{DesiredList, Supervisor},
    tests::{
        machine::other_listeners::Others,
        test_doubles::{Accounts, Answers, Generator, Logs},
    },
    worker::{
        unit_state::early_units::{GeneratorError, UnitGenerator},
        users::{
            accounts::{MachineGroups, UserAccounts},
            machine_options::MachineOptions,
        },
    },
};
use kat_host::{commands::CommandError, users::UserError};
use kat_render::{RenderSettings, Renderer};
use kat_systemd::{JournalQuery, LogEntries, LogEntry, LogError, LogSource, ProgramStream};
use kat_testing::systemd::fake::{FakeMachine, FakeManager, UnitBehaviour};
use kat_types::{
    api::{InstancePhase, InstanceReport},
    assignment::{Assignment, DesiredRun, WorkloadUser},
    machine::{
        fence::{BootClock, BootTime},
        root::Root,
    },
    resource::{
        AgentConfig, ClusterSpec, Container, DEVICE_GROUPS, OnPartition, RestartCondition,
        RestartPolicy, WorkloadType,
    },
};

/// The machine's monotonic clock in microseconds, as the fake managers count it.
/// A clock of the fence that began a second before `started`, and follows the test's time.
pub(crate) fn boot_clock(started: Instant) -> BootClock {
    Arc::new(move || BootTime(microseconds(started)))
}

fn microseconds(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_micros()).unwrap() + 1_000_000
}

/// Behaviour of units that differ from a program that keeps running. `None`: the generator rejects
/// the unit.
type Behaviours = Arc<Mutex<BTreeMap<String, Option<UnitBehaviour>>>>;

struct Bench {
    root: tempfile::TempDir,
    machine: Arc<FakeMachine>,
    accounts: Arc<Accounts>,
    logs: Arc<Logs>,
    answers: Arc<Answers>,
    others: Arc<Others>,
    behaviours: Behaviours,
    generator: Arc<Generator>,
    tools: Arc<WorkerTools>,
    statuses: Statuses,
    lists: watch::Sender<DesiredList>,
    evicted: watch::Sender<EvictedInstances>,
    cancel: CancellationToken,
    running: Option<JoinHandle<()>>,
}

/// A configuration that allows the common device groups and all devices below `/dev`.
fn with_devices() -> AgentConfig {
    AgentConfig {
        groups_allow: Some(DEVICE_GROUPS.map(str::to_owned).to_vec()),
        devices_allow: Some(vec!["/dev".to_owned()]),
        ..AgentConfig::default()
    }
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("net")).unwrap();
        let machine = Arc::new(FakeMachine::new());
        let behaviours = Behaviours::default();
        for index in 0..4 {
            let uid = WorkloadUser::from_index(index, "default", "web")
                .unwrap()
                .uid;
            let folder = root
                .path()
                .join(format!("etc/containers/systemd/users/{uid}"));
            let early = root.path().join("run/systemd/user");
            let (generated, copied) = (Arc::clone(&behaviours), Arc::clone(&behaviours));
            let loader = Box::new(move || generate(&folder, &generated));
            let finder = Box::new(move || copies(&early, uid, &copied));
            let manager = FakeManager::with_loader(&format!("user {uid}"), loader);
            machine.set_user_manager(uid, manager.finding(finder));
        }
        let groups = [("dialout", 20), ("video", 44), ("sudo", 27)];
        let groups = groups.map(|(name, gid)| (name.to_owned(), gid));
        let accounts = Arc::new(Accounts {
            root: root.path().to_owned(),
            known: Mutex::new(groups.into()),
            ..Accounts::default()
        });
        let started = Instant::now();
        let logs = Arc::new(Logs::new(started));
        let answers = Arc::new(Answers(Mutex::new(Ok(200))));
        let others = Arc::new(Others::default());
        let tree = Root::new(root.path());
        let generator = Arc::new(Generator::new(&tree));
        let tools = WorkerTools {
            managers: Arc::<FakeMachine>::clone(&machine),
            sessions: Arc::<FakeMachine>::clone(&machine),
            accounts: Arc::<Accounts>::clone(&accounts),
            renderer: Arc::new(Renderer::new(None).unwrap()),
            generator: Arc::<Generator>::clone(&generator),
            logs: Arc::<Logs>::clone(&logs),
            settings: RenderSettings::default(),
            domain: "cluster.local".to_owned(),
            cluster_settings: FollowedSettings::new(&ClusterSpec::default(), BootTime::default()),
            overlay_address: Ipv4Addr::new(10, 100, 0, 1),
            root: tree.clone(),
            monotonic: Arc::new(move || microseconds(started)),
            clock: Arc::new(jiff::Timestamp::now),
            limits_enforced: true,
            network: Arc::<Answers>::clone(&answers),
            volumes: Arc::new(
                Volumes::new(&tree, "/var/lib/kat/volumes", &AgentConfig::default())
                    .with_disks(ForeignDisks::new(&tree).with_command(hung_disk::child_command())),
            ),
            secrets: Secrets::new(&tree, "n1", &RenderSettings::default()),
            listeners: Arc::<Others>::clone(&others),
            options: MachineOptions::new(&tree, &with_devices()),
            images: ImageCare::new(&tree, &AgentConfig::default()),
            job_starts: JobStarts::default(),
        };
        // Without a fence, none decides about them.
        tools
            .job_starts
            .allow_until(BootTime(u64::MAX), &boot_clock(started));
        let mut bench = Self {
            root,
            machine,
            accounts,
            logs,
            answers,
            others,
            behaviours,
            generator,
            tools: Arc::new(tools),
            statuses: Statuses::default(),
            lists: watch::Sender::new(DesiredList::default()),
            evicted: watch::Sender::default(),
            cancel: CancellationToken::new(),
            running: None,
        };
        bench.begin();
        bench
    }

    fn begin(&mut self) {
        self.cancel = CancellationToken::new();
        self.statuses = Statuses::default();
        let mut supervisor = Supervisor::new(
            Arc::clone(&self.tools),
            self.statuses.clone(),
            NetworkFiles::new(self.root.path().join("net")),
        );
        supervisor.evicted = self.evicted.subscribe();
        let lists = self.lists.subscribe();
        self.running = Some(tokio::spawn(supervisor.run(lists, self.cancel.clone())));
    }

    /// Starts a new agent process on the same machine, after a clean stop.
    async fn restart(&mut self) {
        self.cancel.cancel();
        self.running.take().unwrap().await.unwrap();
        self.begin();
    }

    /// Starts a new agent process after a SIGKILL, which leaves unfinished work.
    async fn kill(&mut self) {
        let running = self.running.take().unwrap();
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        self.begin();
    }

    fn list(&self, confirmed: bool, assignments: &[Assignment]) {
        let assignments = assignments
            .iter()
            .map(|one| (one.instance.clone(), one.clone()))
            .collect();
        self.lists.send_replace(DesiredList {
            known: true,
            confirmed,
            current: confirmed,
            desired: Arc::new(DesiredState {
                schema: 1,
                revision: 1,
                assignments,
                ..DesiredState::default()
            }),
            ..DesiredList::default()
        });
    }

    /// Advances virtual time and lets everything run that is due by then.
    async fn later(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn soon(&self) {
        self.later(Duration::from_millis(500)).await;
    }

    fn report(&self, instance: &str) -> Option<InstanceReport> {
        self.statuses
            .all()
            .0
            .into_iter()
            .find(|report| report.instance_id == instance)
    }

    fn said(&self, instance: &str) -> (InstancePhase, String, String) {
        let report = self.report(instance).unwrap_or_default();
        (report.phase, report.reason, report.message)
    }

    fn manager(&self, assignment: &Assignment) -> Arc<FakeManager> {
        self.machine.user_manager(assignment.user.uid)
    }

    fn calls(&self, assignment: &Assignment, begin: &str) -> usize {
        self.manager(assignment)
            .calls()
            .iter()
            .filter(|call| call.starts_with(begin))
            .count()
    }

    /// Sets every instance's answer to health probes.
    fn answer(&self, answer: Result<u16, &str>) {
        *self.answers.0.lock() = answer.map_err(str::to_owned);
    }

    fn behave(&self, unit: &str, behaviour: Option<UnitBehaviour>) {
        self.behaviours.lock().insert(unit.to_owned(), behaviour);
    }

    /// Sets the images in the user's storage.
    fn images(&self, assignment: &Assignment, names: &[&str]) {
        let list = self
            .accounts
            .home(&assignment.user)
            .join(".local/share/containers/storage/overlay-images/images.json");
        std::fs::create_dir_all(list.parent().unwrap()).unwrap();
        let images = serde_json::json!([{"id": "a", "digest": "sha256:1", "names": names}]);
        std::fs::write(list, images.to_string()).unwrap();
    }

    fn units(&self, assignment: &Assignment) -> PathBuf {
        let uid = assignment.user.uid;
        self.root.path().join(format!("var/lib/kat/units/{uid}"))
    }

    fn links(&self, assignment: &Assignment) -> PathBuf {
        let uid = assignment.user.uid;
        self.root
            .path()
            .join(format!("etc/containers/systemd/users/{uid}"))
    }
}

/// The units that Podman's generator would produce from a folder of quadlets.
fn generate(folder: &Path, behaviours: &Behaviours) -> BTreeMap<String, UnitBehaviour> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        let (unit, image) = match (name.strip_suffix(".container"), name.strip_suffix(".image")) {
            (Some(stem), _) => (format!("{stem}.service"), false),
            (None, Some(stem)) => (format!("{stem}-image.service"), true),
            (None, None) => continue,
        };
        if let Some(behaviour) = behaviour_of(&unit, image, text, behaviours) {
            found.insert(unit, behaviour);
        }
    }
    found
}

/// The units of this user that were copied to a folder.
fn copies(folder: &Path, uid: u32, behaviours: &Behaviours) -> BTreeMap<String, UnitBehaviour> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let unit = entry.file_name().into_string().unwrap();
        if entry.metadata().unwrap().gid() == uid && !unit.starts_with('.') {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            let image = unit.ends_with("-image.service");
            found.extend(behaviour_of(&unit, image, text, behaviours).map(|one| (unit, one)));
        }
    }
    found
}

/// What the unit with this text does; `None` where the generator rejects it.
fn behaviour_of(
    unit: &str,
    image: bool,
    text: String,
    behaviours: &Behaviours,
) -> Option<UnitBehaviour> {
    let usual = UnitBehaviour {
        oneshot: image,
        exits: image.then_some(0),
        text,
        ..UnitBehaviour::default()
    };
    match behaviours.lock().get(unit) {
        Some(None) => None,
        Some(Some(other)) => {
            let mut other = other.clone();
            if other.rests {
                // The start limit comes from the unit file.
                other.start_limit = starts_of(&usual.text);
            }
            Some(other)
        }
        None => Some(usual),
    }
}

/// The start limit in the text of a unit; 0 if it has none.
fn starts_of(text: &str) -> u32 {
    text.lines()
        .find_map(|line| line.strip_prefix("StartLimitBurst="))
        .map_or(0, |number| number.parse().unwrap())
}

/// The first instance of workload `name`, with this user index.
pub(super) fn assignment(index: u32, name: &str) -> Assignment {
    Assignment {
        created: None,
        schema: 1,
        instance: format!("{name}-aaaaa"),
        namespace: "default".to_owned(),
        workload: name.to_owned(),
        workload_uid: "5f0c".to_owned(),
        workload_type: WorkloadType::Service,
        labels: BTreeMap::new(),
        slot: 0,
        generation: 1,
        template_hash: "abc".to_owned(),
        user: WorkloadUser::from_index(index, "default", name).unwrap(),
        address: Ipv4Addr::new(10, 100, 0, 2 + u8::try_from(index).unwrap()),
        image: format!("registry.lab:5000/{name}:1"),
        container: Container::default(),
        init_containers: Vec::new(),
        sidecars: Vec::new(),
        ports: Vec::new(),
        health_check: None,
        restart_policy: RestartPolicy {
            condition: RestartCondition::Always,
            max_restarts: 5,
            reset_seconds: 3600,
        },
        on_partition: OnPartition::Keep,
        machine_access: Vec::new(),
        volumes: Vec::new(),
        carried: None,
        wanted: DesiredRun::Running,
        secrets: None,
        logins: None,
        run: None,
        gpu: None,
        bound: None,
        not_understood: None,
    }
}

fn stopped(assignment: &Assignment) -> Assignment {
    Assignment {
        wanted: DesiredRun::Stopped,
        ..assignment.clone()
    }
}

fn with_policy(assignment: Assignment, condition: RestartCondition) -> Assignment {
    Assignment {
        restart_policy: RestartPolicy {
            condition,
            ..assignment.restart_policy.clone()
        },
        ..assignment
    }
}

fn image_unit(bench: &Bench, assignment: &Assignment) -> String {
    bench
        .tools
        .renderer
        .image(assignment, &bench.tools.settings, false)
        .unwrap()
        .unwrap()
        .service()
        .unwrap()
}
