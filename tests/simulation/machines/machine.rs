//! A simulated machine: its disk, its accounts and its systemd, which outlive the agent on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    faults::network_faults::Way,
    load::jobs::Program,
    machines::timers::{ProgramEnd, RunGates, has_gate, is_timer, timer},
};
use kat_agent::{GeneratorError, UnitGenerator, UserAccounts};
use kat_host::users::UserError;
use kat_systemd::{
    ActiveState, CommandStreams, JobResult, JournalQuery, LogEntries, LogError, LogSource,
    ManagerSource, ProcessEnd, SystemdError, TransientEnd, TransientUnit, UnitEvents, UnitManager,
    UnitStatus, UnitUsage, UserSessions,
};
use kat_testing::systemd::fake::{FakeMachine, FakeManager, ManagerAbsence, UnitBehaviour};
use kat_types::assignment::WorkloadUser;

/// Timeout of systemd jobs.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// The machine's users. They are on its disk and survive a reboot.
pub(crate) struct Accounts {
    root: PathBuf,
    users: Mutex<BTreeMap<u32, WorkloadUser>>,
}

impl Accounts {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            users: Mutex::default(),
        }
    }
}

#[async_trait]
impl UserAccounts for Accounts {
    async fn ensure(&self, user: &WorkloadUser) -> Result<(), UserError> {
        self.users.lock().insert(user.uid, user.clone());
        Ok(())
    }

    async fn remove(&self, user: &WorkloadUser) -> Result<(), UserError> {
        self.users.lock().remove(&user.uid);
        Ok(())
    }

    fn home(&self, user: &WorkloadUser) -> PathBuf {
        self.root.join("home").join(&user.name)
    }

    fn find(&self, uid: u32) -> Option<WorkloadUser> {
        self.users.lock().get(&uid).cloned()
    }

    fn all(&self) -> Vec<u32> {
        self.users.lock().keys().copied().collect()
    }
}

/// An empty journal.
pub(crate) struct NoLogs;

#[async_trait]
impl LogSource for NoLogs {
    async fn synchronize(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn entries(&self, _query: &JournalQuery) -> LogEntries {
        Box::pin(futures_util::stream::empty())
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub starts: Duration,
    pub stops: Duration,
}

/// One boot of a machine. Everything that runs ends with it.
pub(crate) struct Boot {
    root: PathBuf,
    pace: Pace,
    began: Instant,
    fake: Arc<FakeMachine>,
    way: Arc<Way>,
    gates: Arc<RunGates>,
    managers: Mutex<BTreeMap<u32, Arc<Manager>>>,
}

impl Boot {
    /// Boots the machine. Users that linger get their managers, which start the linked units that
    /// are enabled at boot.
    pub(crate) async fn begin(
        root: &Path,
        pace: Pace,
        lingering: &BTreeSet<u32>,
        way: &Arc<Way>,
        gates: RunGates,
    ) -> Arc<Self> {
        let boot = Arc::new(Self {
            root: root.to_owned(),
            pace,
            began: Instant::now(),
            fake: Arc::new(FakeMachine::new()),
            way: Arc::clone(way),
            gates: Arc::new(gates),
            managers: Mutex::default(),
        });
        for uid in lingering {
            // Makes the manager.
            boot.manager(*uid);
            boot.fake.set_linger(*uid, true).await.unwrap();
            boot.start_linked(*uid).await;
        }
        boot
    }

    /// A user's manager has begun: it starts the linked units that are enabled.
    async fn start_linked(&self, uid: u32) {
        let fake = Arc::clone(&self.manager(uid).fake);
        fake.reload().await.unwrap();
        for unit in fake.list("kat-*.service").await.unwrap() {
            if is_container(&unit) && starts_at_boot(&self.root, uid, &unit) {
                let fake = Arc::clone(&fake);
                tokio::spawn(async move { fake.start(&unit, LIMIT).await });
            }
        }
    }

    /// A user's manager is killed, and systemd kills everything of its cgroup. It stays away until
    /// something starts it.
    pub(crate) fn lose_manager(&self, uid: u32) {
        let manager = self.manager(uid);
        self.gates.cut(&manager.fake.live());
        manager.fake.begin_anew();
        self.fake.lose_user(uid, ManagerAbsence::Ended);
    }

    pub(crate) fn lingering(&self) -> BTreeSet<u32> {
        self.fake.lingering()
    }

    /// The agent's logind. `starts_managers` is false where the product does not start managers
    /// that have ended.
    pub(crate) fn sessions(self: &Arc<Self>, starts_managers: bool) -> Arc<dyn UserSessions> {
        Arc::new(Sessions {
            boot: Arc::clone(self),
            starts_managers,
        })
    }

    /// The machine's monotonic clock in microseconds.
    pub(crate) fn monotonic(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap() + 1_000_000
    }

    /// Units of containers that run or may still run.
    pub(crate) fn live(&self) -> Vec<String> {
        let managers = self.managers.lock();
        let units = managers.values().flat_map(|manager| manager.fake.live());
        units.filter(|unit| is_container(unit)).collect()
    }

    /// Whether a unit runs, also one of a timer.
    pub(crate) fn runs(&self, unit: &str) -> bool {
        let managers = self.managers.lock();
        let mut units = managers.values().flat_map(|manager| manager.fake.live());
        units.any(|one| one == unit)
    }

    /// The program of a container exits with code 1.
    pub(crate) async fn program_fails(&self, unit: &str) {
        let managers: Vec<_> = self.managers.lock().values().cloned().collect();
        for manager in managers {
            let status = manager.fake.status(unit).await;
            if status.is_ok_and(|status| status.active_state == ActiveState::Active) {
                self.gates.ended(unit, &ProgramEnd::exited(1));
                manager.fake.exits(unit, 1);
            }
        }
    }

    fn manager(&self, uid: u32) -> Arc<Manager> {
        let mut managers = self.managers.lock();
        let manager = managers.entry(uid).or_insert_with(|| {
            let links = self
                .root
                .join(format!("etc/containers/systemd/users/{uid}"));
            let pace = self.pace;
            let loader = Box::new(move || generate(&links, pace));
            let copies = self.root.join("run/systemd/user");
            let finder = Box::new(move || copied(&copies, uid, pace));
            let fake = FakeManager::with_loader(&format!("user {uid}"), loader).finding(finder);
            self.fake.set_user_manager(uid, fake);
            let fake = self.fake.user_manager(uid);
            let way = Arc::clone(&self.way);
            let gates = Arc::clone(&self.gates);
            Arc::new(Manager { fake, way, gates })
        });
        Arc::clone(manager)
    }
}

/// Whether the unit has a `WantedBy=`.
fn starts_at_boot(root: &Path, uid: u32, unit: &str) -> bool {
    let name = unit.replace(".service", ".container");
    let link = root.join(format!("etc/containers/systemd/users/{uid}/{name}"));
    let text = std::fs::read_to_string(link);
    text.is_ok_and(|text| text.contains("\nWantedBy="))
}

fn is_container(unit: &str) -> bool {
    !unit.ends_with("-image.service") && !is_timer(unit)
}

impl ManagerSource for Boot {
    fn system(&self) -> Arc<dyn UnitManager> {
        self.fake.system()
    }

    fn user(&self, uid: u32) -> Arc<dyn UnitManager> {
        self.manager(uid)
    }

    fn forget_user(&self, _uid: u32) {}
}

/// Podman's generator, whose units have the text of their quadlets.
pub(crate) struct Generator(pub PathBuf);

#[async_trait]
impl UnitGenerator for Generator {
    async fn units(&self, uid: u32) -> Result<BTreeMap<String, String>, GeneratorError> {
        let links = self.0.join(format!("etc/containers/systemd/users/{uid}"));
        let pace = Pace {
            starts: Duration::ZERO,
            stops: Duration::ZERO,
        };
        let units = generate(&links, pace).into_iter();
        Ok(units.map(|(name, one)| (name, one.text)).collect())
    }
}

/// The units of this user that the agent copied to a folder.
fn copied(folder: &Path, uid: u32, pace: Pace) -> BTreeMap<String, UnitBehaviour> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let unit = entry.file_name().into_string().unwrap();
        let is_users = entry.metadata().is_ok_and(|file| file.gid() == uid);
        let text = std::fs::read_to_string(entry.path());
        if let (true, false, Ok(text)) = (is_users, unit.starts_with('.'), text) {
            let behaviour = match (is_timer(&unit), is_container(&unit)) {
                (true, _) => timer(text),
                (false, true) => container(pace, text),
                (false, false) => image(text),
            };
            found.insert(unit, behaviour);
        }
    }
    found
}

fn container(pace: Pace, text: String) -> UnitBehaviour {
    // The unit of a Job's instance.
    let remains = text.contains("\nRemainAfterExit=yes\n");
    UnitBehaviour {
        start_takes: pace.starts,
        stop_takes: pace.stops,
        restarts: !remains && !has_gate(&text),
        remains,
        text,
        ..UnitBehaviour::default()
    }
}

fn image(text: String) -> UnitBehaviour {
    UnitBehaviour {
        oneshot: true,
        exits: Some(0),
        text,
        ..UnitBehaviour::default()
    }
}

/// Waits for the end of the program of a Job's instance that has just started, by itself or by
/// `RuntimeMaxSec=`.
pub(crate) async fn attend(gates: Arc<RunGates>, fake: Arc<FakeManager>, unit: String) {
    let is_run = |one: &UnitBehaviour| one.remains || has_gate(&one.text);
    let Some(behaviour) = fake.behaviour(&unit).filter(is_run) else {
        return;
    };
    let Ok(invocation) = fake.invocation_id(&unit).await else {
        return;
    };
    let mut lines = behaviour.text.lines();
    let longest = lines.find_map(|line| line.strip_prefix("RuntimeMaxSec="));
    let longest = longest.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    // All runs that its machine begins have one unit.
    let run = gates.invocation(&unit).unwrap_or_default();
    let name = format!("{unit}{run}");
    let program = match gates.has_retries(&unit) {
        true => Program::of_attempt(&name),
        false => Program::of_unit(&name, longest.is_some()),
    };
    let by_itself = program
        .lasts
        .filter(|lasts| longest.is_none_or(|most| *lasts < most));
    let Some(ends) = by_itself.or(longest) else {
        return;
    };
    sleep(ends).await;
    if by_itself.is_none() {
        // It ends as slowly as at a stop.
        sleep(behaviour.stop_takes).await;
    }
    let same = fake.invocation_id(&unit).await;
    let status = fake.status(&unit).await;
    let runs = status
        .is_ok_and(|status| status.active_state == ActiveState::Active && status.main_pid != 0);
    if !runs || same.ok() != Some(invocation) {
        return;
    }
    match by_itself {
        Some(_) => {
            gates.ended(&unit, &ProgramEnd::exited(program.code));
            fake.exits(&unit, program.code);
        }
        None => {
            gates.ended(&unit, &ProgramEnd::timed_out());
            fake.exceeds_runtime(&unit);
        }
    }
}

/// The units that Podman's generator makes from a folder of quadlets.
fn generate(folder: &Path, pace: Pace) -> BTreeMap<String, UnitBehaviour> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        if let Some(stem) = name.strip_suffix(".container") {
            found.insert(format!("{stem}.service"), container(pace, text));
        } else if let Some(stem) = name.strip_suffix(".image") {
            found.insert(format!("{stem}-image.service"), image(text));
        }
    }
    found
}

/// A user's service manager as the agent sees it. Its jobs continue when the caller is gone, and
/// an agent that hangs calls nothing.
struct Manager {
    fake: Arc<FakeManager>,
    way: Arc<Way>,
    gates: Arc<RunGates>,
}

impl Manager {
    /// What runs after a unit that the agent has ended.
    async fn after_end(gates: &RunGates, fake: &FakeManager, unit: &str) {
        let status = fake.status(unit).await;
        if status.is_ok_and(|status| status.active_state.is_down()) {
            gates.ended(unit, &ProgramEnd::stopped());
        }
    }
}

/// The machine's logind as the agent sees it.
struct Sessions {
    boot: Arc<Boot>,
    starts_managers: bool,
}

#[async_trait]
impl UserSessions for Sessions {
    async fn set_linger(&self, uid: u32, linger: bool) -> Result<(), SystemdError> {
        self.boot.way.awake().await;
        self.boot.fake.set_linger(uid, linger).await
    }

    async fn wait_for_user_bus(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        self.boot.way.awake().await;
        self.boot.fake.wait_for_user_bus(uid, limit).await
    }

    async fn terminate_user(&self, uid: u32) -> Result<(), SystemdError> {
        self.boot.way.awake().await;
        self.boot.fake.terminate_user(uid).await
    }

    async fn wait_for_user_stopped(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        self.boot.way.awake().await;
        self.boot.fake.wait_for_user_stopped(uid, limit).await
    }

    async fn user_runs(&self, uid: u32) -> Result<bool, SystemdError> {
        self.boot.way.awake().await;
        self.boot.fake.user_runs(uid).await
    }

    async fn start_user(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        self.boot.way.awake().await;
        let runs = self.boot.fake.user_runs(uid).await?;
        if runs || !self.starts_managers || !self.boot.lingering().contains(&uid) {
            return Ok(());
        }
        self.boot.fake.start_user(uid, limit).await?;
        self.boot.start_linked(uid).await;
        Ok(())
    }

    async fn restart_user(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        self.boot.way.awake().await;
        let manager = self.boot.manager(uid);
        self.boot.gates.cut(&manager.fake.live());
        self.boot.fake.restart_user(uid, limit).await?;
        self.boot.start_linked(uid).await;
        Ok(())
    }
}

#[async_trait]
impl UnitManager for Manager {
    async fn reload(&self) -> Result<(), SystemdError> {
        self.way.awake().await;
        self.fake.reload().await
    }

    async fn start(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.way.awake().await;
        let (fake, unit) = (Arc::clone(&self.fake), unit.to_owned());
        let gates = Arc::clone(&self.gates);
        let job = tokio::spawn(async move {
            if is_timer(&unit) {
                return gates.start_timer(fake, unit, limit).await;
            }
            let result = fake.start(&unit, limit).await;
            if matches!(result, Ok(JobResult::Done)) {
                tokio::spawn(attend(gates, fake, unit));
            }
            result
        });
        job.await.unwrap()
    }

    async fn stop(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.way.awake().await;
        let (fake, unit) = (Arc::clone(&self.fake), unit.to_owned());
        let gates = Arc::clone(&self.gates);
        let job = tokio::spawn(async move {
            let result = fake.stop(&unit, limit).await;
            Self::after_end(&gates, &fake, &unit).await;
            result
        });
        job.await.unwrap()
    }

    async fn restart(&self, unit: &str, limit: Duration) -> Result<JobResult, SystemdError> {
        self.way.awake().await;
        if is_timer(unit) {
            self.fake.stop(unit, limit).await?;
            let (fake, gates) = (Arc::clone(&self.fake), Arc::clone(&self.gates));
            return gates.start_timer(fake, unit.to_owned(), limit).await;
        }
        let result = self.fake.restart(unit, limit).await;
        Self::after_end(&self.gates, &self.fake, unit).await;
        result
    }

    async fn reset_failed(&self, unit: &str) -> Result<(), SystemdError> {
        self.way.awake().await;
        self.fake.reset_failed(unit).await
    }

    async fn status(&self, unit: &str) -> Result<UnitStatus, SystemdError> {
        self.way.awake().await;
        self.fake.status(unit).await
    }

    async fn usage(&self, unit: &str) -> Result<UnitUsage, SystemdError> {
        self.way.awake().await;
        self.fake.usage(unit).await
    }

    async fn invocation_id(&self, unit: &str) -> Result<String, SystemdError> {
        self.way.awake().await;
        self.fake.invocation_id(unit).await
    }

    async fn needs_reload(&self, unit: &str) -> Result<bool, SystemdError> {
        self.way.awake().await;
        self.fake.needs_reload(unit).await
    }

    async fn list(&self, pattern: &str) -> Result<Vec<String>, SystemdError> {
        self.way.awake().await;
        self.fake.list(pattern).await
    }

    async fn run_transient(
        &self,
        unit: &TransientUnit,
        limit: Duration,
    ) -> Result<TransientEnd, SystemdError> {
        self.way.awake().await;
        self.fake.run_transient(unit, limit).await
    }

    async fn run_with(
        &self,
        unit: &TransientUnit,
        streams: CommandStreams,
    ) -> Result<ProcessEnd, SystemdError> {
        self.way.awake().await;
        self.fake.run_with(unit, streams).await
    }

    async fn kill(&self, unit: &str, signal: i32) -> Result<(), SystemdError> {
        self.way.awake().await;
        let result = self.fake.kill(unit, signal).await;
        Self::after_end(&self.gates, &self.fake, unit).await;
        result
    }

    async fn enable(&self, unit: &str) -> Result<(), SystemdError> {
        self.way.awake().await;
        self.fake.enable(unit).await
    }

    async fn disable(&self, unit: &str) -> Result<(), SystemdError> {
        self.way.awake().await;
        self.fake.disable(unit).await
    }

    async fn events(&self) -> Result<UnitEvents, SystemdError> {
        self.way.awake().await;
        self.fake.events().await
    }
}
