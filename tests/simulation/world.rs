//! The cluster of a run: machines, store, network, and the people who use it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api_calls::Net,
    checks::{
        copies::ListRevisions,
        false_claims::FalseClaims,
        fault_isolation,
        jobs::AddedChecks,
        monitor::Monitor,
        orders::OrderChecks,
        outside_routes::OutsideRouteChecks,
        routes::RouteChecks,
        virtual_addresses::{AddressChecks, wrong_holder},
    },
    faults::{
        disabled_safeguards::{
            EarlierCertificate, Without, compare_no_runs, forget_positions, give_back_early,
            hear_all, hear_no_witness, label_all, only_reads, overlap_runs, roll_out_badly,
            start_at_once, take_back_at_once, withdraw_no_routes,
        },
        forged_reports::{self, Forger},
        machine_faults::small_disk,
        network_faults::{Conditions, Way},
        returning_clusters::{EpochRules, FollowedEpochs},
        stream_faults::StreamFates,
        unwritable_workload::{self, Large},
    },
    initial_cluster::{endpoints, machine, seed_operations},
    load::{
        added::AddedLoad,
        outside_routes::OutsideRouteLoad,
        routes::RouteLoad,
        secrets::{self, Secrets},
        user::{NAMESPACE, Person},
        virtual_addresses::AddressLoad,
        volume_data::{Mover, Rows},
    },
    machines::{
        acme_servers::AcmeServers,
        agent_process::{OrderRules, Place, Process},
        data_path::DataPath,
        disk::Disk,
        etcd::Etcd,
        lan::Lan,
        machine::{Accounts, Boot, Pace},
        timers::{RunGates, WallClock},
    },
    random::Random,
};
use kat_agent::{MachineIdentity, UserAccounts};
use kat_leader::Planner;
use kat_plan as plan;
use kat_plan::Snapshot;
use kat_render::Renderer;
use kat_testing::MemoryStore;
use kat_types::{
    machine::fence::BootTime,
    store::{
        keys,
        records::NodeRegistration,
        revisions::WorkloadKey,
        snapshot::{JobEntry, ObservedReports},
    },
};

/// Machine names, and whether the machine is a member of etcd and may lead.
const MACHINES: [(&str, bool); 5] = [
    ("n1", true),
    ("n2", true),
    ("n3", true),
    ("n4", false),
    ("n5", false),
];
/// Machines that are in the cluster from the beginning. The last machine joins later.
pub(crate) const THERE: usize = 4;
/// Members of etcd from the beginning, which come first among the machines.
pub(crate) const MEMBERS: usize = 3;
/// Seconds without a heartbeat after which a machine is lost.
pub(crate) const LOST_AFTER: u32 = 10;
/// Seconds between heartbeats.
pub(crate) const TICK: u32 = 3;

/// The wall clock's time at the beginning of a run.
pub(crate) fn start_of_time() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

static RENDERER: LazyLock<Arc<Renderer>> = LazyLock::new(|| Arc::new(Renderer::new(None).unwrap()));

pub(crate) struct Machine {
    pub name: String,
    pub identity: Arc<MachineIdentity>,
    pub way: Arc<Way>,
    pub process: Option<Process>,
    pub boot: Option<Arc<Boot>>,
    /// The machine belongs to the cluster.
    pub joined: bool,
    pub root: std::path::PathBuf,
    /// The machine's own disk, in the seeds in which it fills up.
    pub disk: Option<Disk>,
    /// The machine's `kat-net`, while the machine is on.
    pub data_path: Option<Arc<DataPath>>,
    pub accounts: Arc<Accounts>,
    pub pace: Pace,
    pub lingering: BTreeSet<u32>,
    pub processes: u32,
    /// How far the machine's clock is off.
    pub skew: SignedDuration,
    /// How far its wall clock has jumped besides, in milliseconds.
    pub clock_jump: Arc<AtomicI64>,
    pub started: Option<Instant>,
    /// See [`crate::machines::agent_environment::Sink::known_leader`].
    pub known_leader: Arc<Mutex<Option<String>>>,
}

impl Machine {
    /// The machine's agent has run for more than eight seconds, and its programs end within two.
    pub(crate) fn ends_in_time(&self) -> bool {
        let works = self.process.is_some() && self.boot.is_some() && !self.way.now().hung;
        let for_long = self
            .started
            .is_some_and(|since| since.elapsed() > Duration::from_secs(8));
        works && for_long && self.pace.stops <= Duration::from_secs(2)
    }

    /// Upper limit for the start of a unit on this machine.
    pub(crate) fn longest_start(&self) -> Duration {
        self.pace.starts + Duration::from_secs(1)
    }

    /// Uids of the workload users on the machine.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.accounts.all()
    }
}

/// In a fifth of the seeds reports arrive a second time, after newer ones. In these no machine forges
/// its reports.
fn repeat_reports(seed: u64, machines: &[Machine]) {
    if seed % 5 != 4 {
        return;
    }
    let mut random = Random::new(seed ^ 0x7265_706f_7274);
    for machine in machines {
        let after = random.milliseconds(1_000, 9_000);
        machine.way.change(|way| way.reports_repeated = Some(after));
    }
}

pub(crate) struct World {
    pub store: MemoryStore,
    pub monitor: Arc<Monitor>,
    pub net: Arc<Net>,
    pub etcd: Arc<Etcd>,
    pub person: Person,
    pub secrets: Secrets,
    pub mover: Mover,
    pub rows: Rows,
    pub machines: Vec<Machine>,
    pub random: Random,
    pub without: Without,
    /// Replaces the reports of one machine, in some of the seeds.
    pub forger: Option<Arc<Forger>>,
    /// The workload that grows until it cannot be written, in some of the seeds.
    pub large: Option<Large>,
    /// Volumes that may have been on the machine that forges reports. Their data is not checked.
    pub in_its_hands: BTreeSet<String>,
    /// All machines share one volume base path.
    pub shared: bool,
    /// Of the rules for addresses, check only that no two containers have the same one.
    pub addresses_only: bool,
    /// The state at the last check.
    pub checked: Option<(i64, u64, BTreeMap<String, String>)>,
    /// What the store says and what is not so.
    pub false_claims: FalseClaims,
    /// Slots with too many instances, since when, and how long that is allowed.
    pub crowded: BTreeMap<(String, u32), (Instant, Duration)>,
    pub list_revisions: ListRevisions,
    pub epochs: FollowedEpochs,
    /// Jobs, daemons and start order, in some of the seeds.
    pub added: Option<AddedLoad>,
    pub added_checks: AddedChecks,
    /// Workloads with routes, in some of the seeds.
    pub routes: Option<RouteLoad>,
    pub route_checks: RouteChecks,
    /// Routes to targets outside KAT, in some of the seeds.
    pub outside_routes: Option<OutsideRouteLoad>,
    pub outside_route_checks: OutsideRouteChecks,
    /// Virtual addresses and the LAN, in some of the seeds.
    pub addresses: Option<AddressLoad>,
    pub address_checks: AddressChecks,
    /// The servers from which candidates that start from now on order certificates, in the scenes that
    /// have them.
    pub acme: Option<Arc<AcmeServers>>,
    pub order_checks: OrderChecks,
    seed: u64,
    began: Instant,
    uids: Arc<AtomicU64>,
}

impl World {
    /// A cluster with all its first machines on and no faults.
    pub(crate) async fn new(seed: u64, without: Without, folder: &Path) -> Self {
        let mut random = Random::new(seed);
        let store = MemoryStore::new();
        let silence = Duration::from_secs(u64::from(LOST_AFTER));
        let monitor = Arc::new(Monitor::new(&store, silence));
        // Every other seed has shared storage, where data is reachable from every machine.
        let shared = seed.is_multiple_of(2);
        let small_disk = small_disk(seed).filter(|_| without.has_machine_faults());
        let machines: Vec<Machine> = MACHINES
            .iter()
            .enumerate()
            .map(|(number, (name, etcd))| {
                let own_disk = small_disk == Some(number);
                machine(number, name, *etcd, folder, &mut random, own_disk)
            })
            .collect();
        if shared {
            let one = folder.join("shared");
            std::fs::create_dir(&one).unwrap();
            for machine in &machines {
                let base = machine.root.join("var/lib/kat/volumes");
                std::os::unix::fs::symlink(&one, base).unwrap();
            }
        }
        if without == Without::Nothing {
            repeat_reports(seed, &machines);
        }
        store.write_now(&seed_operations(&machines[..THERE]));
        let ways = machines
            .iter()
            .map(|machine| (machine.name.clone(), Arc::clone(&machine.way)));
        let net = Arc::new(Net::new(
            ways.collect(),
            endpoints(&machines),
            StreamFates::of_seed(seed),
            without,
            &monitor,
        ));
        let overlay = machines.iter().map(|machine| {
            let address = machine.identity.overlay_address().to_string();
            (machine.name.clone(), address)
        });
        let overlay: Vec<_> = overlay.collect();
        let etcd = Arc::new(Etcd::new(&overlay, MEMBERS, &monitor));
        let person = Person::new(&net, &store, &monitor);
        let secrets = Secrets::new(&net, &store, &monitor);
        let mover = Mover::new(&net, &monitor);
        // Runs without another safeguard have no forger, so that they find the same violations as
        // before.
        let forges = matches!(without, Without::Nothing | Without::OwnInstances);
        let forger = Forger::of_seed(seed, &store).filter(|_| forges);
        let grows = matches!(without, Without::Nothing | Without::Freezing);
        let added = AddedLoad::of_seed(seed, without, &net, &monitor);
        if let Some(added) = &added {
            monitor.follow_jobs(added.jobs.clone());
        }
        let routes = RouteLoad::of_seed(seed, without, &net, &monitor);
        let outside_routes = OutsideRouteLoad::of_seed(seed, without, &net, &monitor);
        let addresses = AddressLoad::of_seed(seed, without, &net, &monitor);
        let mut world = Self {
            store,
            monitor,
            net,
            etcd,
            person,
            secrets,
            mover,
            rows: Rows::default(),
            machines,
            random,
            without,
            forger,
            large: Large::of_seed(seed).filter(|_| grows),
            in_its_hands: BTreeSet::new(),
            shared,
            addresses_only: false,
            checked: None,
            false_claims: FalseClaims::default(),
            crowded: BTreeMap::new(),
            list_revisions: ListRevisions::default(),
            epochs: FollowedEpochs::default(),
            added,
            added_checks: AddedChecks::default(),
            routes,
            route_checks: RouteChecks::default(),
            outside_routes,
            outside_route_checks: OutsideRouteChecks::default(),
            addresses,
            address_checks: AddressChecks::default(),
            acme: None,
            order_checks: OrderChecks::default(),
            seed,
            began: Instant::now(),
            uids: Arc::default(),
        };
        for number in 0..THERE {
            world.power_on(number).await;
        }
        world
    }

    /// Units of containers that run or may run, each with its machine.
    pub(crate) fn live(&self) -> BTreeMap<String, String> {
        let live = self.machines.iter().flat_map(|machine| {
            let units = machine.boot.as_ref().map(|boot| boot.live());
            let units = units.into_iter().flatten();
            units.map(|unit| (unit, machine.name.clone()))
        });
        live.collect()
    }

    /// Why the newest value of the secret is not on every machine; `None` if it is.
    pub(crate) fn secret_behind(&self) -> Option<String> {
        let live = self.live();
        let users = live.iter();
        let begins = format!("kat-{NAMESPACE}-{}-", secrets::USER);
        let users: Vec<_> = users
            .filter(|(unit, _)| unit.starts_with(&begins))
            .collect();
        let Some(value) = self.secrets.stored() else {
            return (!users.is_empty()).then(|| format!("{users:?} run without a secret"));
        };
        self.machines.iter().find_map(|machine| {
            let here = users.iter().filter(|(_, on)| **on == machine.name);
            let here: Vec<String> = here.map(|(unit, _)| (*unit).clone()).collect();
            self.secrets.is_behind(&machine.root, &here, &value)
        })
    }

    /// Index of the machine that leads according to the store.
    pub(crate) fn leader(&self) -> Option<usize> {
        let process = self.monitor.leader()?;
        let name = process.split('.').next()?;
        self.machines
            .iter()
            .position(|machine| machine.name == name)
    }

    /// The leader's process runs and reaches the store.
    pub(crate) fn leader_can_write(&self) -> bool {
        let leader = self.leader().map(|number| &self.machines[number]);
        let reaches =
            leader.is_some_and(|leader| leader.process.is_some() && leader.way.now().writes());
        reaches && self.store.is_available()
    }

    /// The leader's current one-way latency.
    pub(crate) fn leader_latency(&self) -> Duration {
        let leader = self.leader().map(|number| &self.machines[number]);
        leader.map_or(Duration::ZERO, |leader| {
            let now = leader.way.now();
            now.latency + now.copy_lag
        })
    }

    /// Whether the machine forges its reports.
    pub(crate) fn forges(&self, machine: &str) -> bool {
        self.forger.is_some() && machine == forged_reports::NAME
    }

    /// The time of a wall clock that is right.
    pub(crate) fn true_time(&self) -> Timestamp {
        start_of_time() + SignedDuration::try_from(self.began.elapsed()).unwrap()
    }

    /// Sets a machine's wall clock to what it was and this much later.
    pub(crate) fn set_clock(&self, number: usize, jump: SignedDuration) {
        let jump = i64::try_from(jump.as_millis()).unwrap();
        let clock = &self.machines[number].clock_jump;
        clock.store(jump, Ordering::Relaxed);
    }

    /// The machine's wall clock.
    fn clock(&self, number: usize) -> WallClock {
        let machine = &self.machines[number];
        let (skew, jump) = (machine.skew, Arc::clone(&machine.clock_jump));
        let (start, began) = (start_of_time(), self.began);
        Arc::new(move || {
            let jump = SignedDuration::from_millis(jump.load(Ordering::Relaxed));
            start + SignedDuration::try_from(began.elapsed()).unwrap() + skew + jump
        })
    }

    /// The LAN, in the seeds with virtual addresses.
    fn lan(&self) -> Option<Arc<Lan>> {
        let addresses = self.addresses.as_ref();
        addresses.map(|addresses| Arc::clone(&addresses.lan))
    }

    /// Starts `kat-agent` on a machine that is on.
    pub(crate) fn start(&mut self, number: usize) {
        let planner = self.planner(number);
        let (clock, uids) = (self.clock(number), Arc::clone(&self.uids));
        let (store, net, monitor) = (
            self.store.clone(),
            Arc::clone(&self.net),
            Arc::clone(&self.monitor),
        );
        let etcd = Arc::clone(&self.etcd);
        let fenced = self.without != Without::Fence;
        let forges = self.machines[number].name == forged_reports::NAME;
        let forger = self.forger.clone().filter(|_| forges);
        let lan = self.lan();
        let machine = &mut self.machines[number];
        let Some(boot) = machine.boot.as_ref().filter(|_| machine.process.is_none()) else {
            return;
        };
        let Some(data_path) = machine.data_path.clone() else {
            return;
        };
        let place = Place {
            seed: self.seed,
            identity: Arc::clone(&machine.identity),
            root: machine.root.clone(),
            boot: Arc::clone(boot),
            accounts: Arc::clone(&machine.accounts),
            way: Arc::clone(&machine.way),
            store,
            net,
            etcd,
            monitor,
            renderer: Arc::clone(&RENDERER),
            clock,
            new_uid: Arc::new(move || format!("uid-{}", uids.fetch_add(1, Ordering::Relaxed))),
            planner,
            forger,
            fenced,
            stops: self.without != Without::Partition,
            two_hops: self.without != Without::SecondHop,
            known_leader: Arc::clone(&machine.known_leader),
            shared: self.shared,
            data_path,
            lan,
            retries_writes: self.without != Without::RetriedWrites,
            starts_managers: self.without != Without::ManagerStart,
            orders_reports: self.without != Without::ReportOrder,
            epochs: EpochRules::of(self.without),
            acme: self.acme.clone(),
            order_rules: OrderRules::of(self.without),
        };
        machine.processes += 1;
        let name = format!("{}.{}", machine.name, machine.processes);
        machine.process = Some(Process::start(&place, &name));
        machine.started = Some(Instant::now());
    }

    /// The real planner without the disabled safeguard. Every plan is checked.
    fn planner(&self, number: usize) -> Planner {
        let (monitor, without) = (Arc::clone(&self.monitor), self.without);
        let name = self.machines[number].name.clone();
        let forger = self.forger.clone();
        // The runs of Jobs as the plan before saw them.
        let runs_before: Mutex<(bool, BTreeMap<WorkloadKey, JobEntry>)> = Mutex::default();
        let certificate_before: Mutex<EarlierCertificate> = Mutex::default();
        Arc::new(
            move |snapshot: &Snapshot, observed: &ObservedReports, now, seed| {
                let observed_before = observed;
                let mut observed = observed.clone();
                if without == Without::OwnInstances {
                    fault_isolation::believe(&mut observed, snapshot);
                }
                if without == Without::Silence {
                    hear_all(&mut observed);
                }
                if without == Without::OverlayWitnesses {
                    hear_no_witness(&mut observed);
                }
                if without == Without::FullTimeout {
                    observed.leading_for = Duration::from_secs(3600);
                }
                let mut seen = match unwritable_workload::with_its_files(snapshot) {
                    Some(large) => Cow::Owned(large),
                    None => Cow::Borrowed(snapshot),
                };
                if without == Without::Freezing {
                    unwritable_workload::drop_it(seen.to_mut());
                }
                if without == Without::Drain {
                    for node in seen.to_mut().nodes.values_mut() {
                        node.registration.value.draining = false;
                    }
                }
                if matches!(without, Without::Surge | Without::Pause) {
                    for entry in seen.to_mut().workloads.values_mut() {
                        roll_out_badly(Arc::make_mut(entry), without);
                    }
                }
                if without == Without::OneWriter {
                    let seen = seen.to_mut();
                    for entry in seen.workloads.values_mut() {
                        if let Ok(parsed) = &mut Arc::make_mut(entry).parsed {
                            only_reads(&mut Arc::make_mut(parsed).workload.spec.container);
                        }
                    }
                    for entry in seen.instances.values_mut() {
                        only_reads(&mut Arc::make_mut(&mut entry.assignment.value).container);
                    }
                }
                if without == Without::Forbid {
                    overlap_runs(seen.to_mut());
                }
                if without == Without::GiveBack {
                    take_back_at_once(seen.to_mut());
                }
                if without == Without::Positions {
                    forget_positions(seen.to_mut());
                }
                if without == Without::StartOrder {
                    start_at_once(seen.to_mut());
                }
                if matches!(without, Without::FreshRuns | Without::RunCompare) {
                    let (is_old, before) = &mut *runs_before.lock();
                    let jobs = std::mem::replace(before, snapshot.jobs.clone());
                    // Every second plan sees the present runs: otherwise no run would come to an end.
                    *is_old = !*is_old;
                    if *is_old {
                        seen.to_mut().jobs = jobs;
                    }
                }
                if without == Without::IngressHolders {
                    label_all(seen.to_mut());
                }
                if without == Without::NewestCertificate {
                    certificate_before.lock().show(seen.to_mut());
                }
                let mut plan = plan::plan(&seen, &observed, now, seed);
                if without == Without::RouteWithdrawal {
                    withdraw_no_routes(&mut plan);
                }
                if without == Without::RunCompare {
                    compare_no_runs(&mut plan);
                }
                if without == Without::AddressHold {
                    give_back_early(&mut plan);
                }
                monitor.decided(&name, snapshot, &plan);
                if let Some(why) = wrong_holder(snapshot, &plan) {
                    monitor.violated(format!("{name} plans: {why}"));
                }
                let honest = forger.as_ref();
                let honest = honest.and_then(|forger| {
                    fault_isolation::with_the_honest_report(observed_before, forger)
                });
                if let Some(honest) = honest {
                    let report = &honest.reports[forged_reports::NAME].report;
                    let planned = plan::plan(&seen, &honest, now, seed);
                    if let Some(why) =
                        fault_isolation::hurts_another(snapshot, &plan, &planned, report)
                    {
                        monitor.violated(format!("{name} plans: {why}"));
                    }
                }
                plan
            },
        )
    }

    /// Waits for threads that work on disks: they do so in real time, while virtual time jumps to the
    /// next timer as soon as nothing else is to be done.
    pub(crate) fn wait_for_threads(&self) {
        let machines = self.machines.iter();
        for process in machines.filter_map(|machine| machine.process.as_ref()) {
            process.wait_for_threads();
        }
    }

    /// Sends SIGKILL to `kat-agent`.
    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(process) = self.machines[number].process.take() {
            process.kill();
        }
        self.change_way(number, |way| way.hung = false);
    }

    /// Sends SIGSTOP to `kat-agent`.
    pub(crate) fn hang(&mut self, number: usize) {
        if self.machines[number].process.is_some() {
            self.change_way(number, |way| way.hung = true);
        }
    }

    /// Sends SIGCONT to `kat-agent`.
    pub(crate) fn wake(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        if machine.way.now().hung {
            machine.started = Some(Instant::now());
            self.change_way(number, |way| way.hung = false);
        }
    }

    /// Cuts the machine off from the overlay, or ends that.
    pub(crate) fn cut_overlay(&mut self, number: usize, cut: bool) {
        self.change_way(number, |way| way.overlay_cut = cut);
        self.silence_etcd(number);
    }

    /// Takes all free space of the machine's disk, or returns it.
    pub(crate) fn fill_disk(&mut self, number: usize, full: bool) {
        let Some(disk) = &self.machines[number].disk else {
            return;
        };
        disk.set_full(full);
        self.change_way(number, |way| way.disk_full = full);
        self.silence_etcd(number);
    }

    fn silence_etcd(&self, number: usize) {
        let machine = &self.machines[number];
        let now = machine.way.now();
        let silent = now.overlay_cut || now.disk_full;
        self.etcd.set_silent(&machine.name, silent);
    }

    /// Kills the manager of a workload's user.
    pub(crate) fn lose_manager(&self, number: usize, uid: u32) {
        if let Some(boot) = &self.machines[number].boot {
            boot.lose_manager(uid);
        }
    }

    /// Sends SIGTERM to `kat-agent`.
    pub(crate) fn stop(&mut self, number: usize) {
        // systemd sends SIGCONT too.
        self.change_way(number, |way| way.hung = false);
        if let Some(process) = self.machines[number].process.take() {
            process.stop();
        }
    }

    /// Cuts the machine's power.
    pub(crate) fn power_off(&mut self, number: usize) {
        self.kill(number);
        if let Some(lan) = self.lan() {
            lan.power_off(&self.machines[number].name);
        }
        let machine = &mut self.machines[number];
        machine.way.change(|way| {
            way.power += 1;
            way.off = true;
        });
        machine.data_path = None;
        self.etcd.set_up(&machine.name, false);
        if let Some(boot) = machine.boot.take() {
            machine.lingering = boot.lingering();
        }
        let _ = std::fs::remove_dir_all(machine.root.join("run"));
    }

    /// Boots the machine and starts `kat-agent`. Does nothing for a machine outside the cluster.
    pub(crate) async fn power_on(&mut self, number: usize) {
        let clock = self.clock(number);
        let forget = self.without == Without::RunGate;
        let lan = self.lan();
        let machine = &mut self.machines[number];
        if !machine.joined {
            return;
        }
        if machine.boot.is_none() {
            machine.way.change(|way| way.off = false);
            let (root, way) = (&machine.root, &machine.way);
            let gates = RunGates::new(&machine.name, root, clock, way, &self.monitor, forget);
            let boot = Boot::begin(root, machine.pace, &machine.lingering, way, gates).await;
            if let Some(lan) = lan {
                let boot = Arc::clone(&boot);
                let clock = Arc::new(move || BootTime(boot.monotonic()));
                lan.power_on(&machine.name, clock);
            }
            machine.boot = Some(boot);
            let data_path = DataPath::start(&machine.name, self.net.ways.clone(), &self.store);
            machine.data_path = Some(Arc::new(data_path));
        }
        self.etcd.set_up(&machine.name, true);
        self.start(number);
    }

    /// Machines in the cluster.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(|machine| machine.joined)
    }

    /// The machine that joins has its answer, takes its identity from the store, and starts.
    pub(crate) async fn let_in(&mut self) {
        let machine = &mut self.machines[THERE];
        if machine.joined {
            return;
        }
        // It knows no epoch yet, and would follow any.
        self.net.end_old_stores();
        let one = |key: &str| {
            let found = self.store.peek(key).items.into_iter();
            found.map(|item| item.value).next().unwrap_or_default()
        };
        let registration = one(&keys::registration(&machine.name));
        let registration: NodeRegistration = serde_json::from_slice(&registration).unwrap();
        let subnet = one(&keys::network_node(&machine.name, "subnet"));
        let subnet = String::from_utf8(subnet).unwrap();
        machine.identity = Arc::new(MachineIdentity {
            node_uid: registration.uid,
            subnet: subnet.parse().unwrap(),
            ..machine.identity.as_ref().clone()
        });
        machine.joined = true;
        self.power_on(THERE).await;
    }

    /// Changes the conditions of a machine's network path.
    pub(crate) fn change_way(&mut self, number: usize, change: impl FnOnce(&mut Conditions)) {
        let machine = &self.machines[number];
        machine.way.change(change);
        if let Some(process) = &machine.process {
            process.follow_way();
        }
    }
}
