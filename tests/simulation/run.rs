//! One run: faults happen for a while, then all are repaired, and the cluster must reach its
//! desired state.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use jiff::SignedDuration;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use crate::{
    checks::invariants::assigned,
    faults::{
        disabled_safeguards::Without, machine_faults::MachineSteps, network_faults::Conditions,
        returning_clusters::ReturnSteps, stream_faults::StreamSteps,
    },
    load::user::{AT_LAST, FENCED, FENCED_WRITER, WRITER, Wish},
    world::{LOST_AFTER, World},
};
use kat_types::{assignment::DesiredRun, store::keys};

/// Faults and requests before everything is repaired.
const STEPS: usize = 30;
/// Time between two checks of the invariants.
const SLICE: Duration = Duration::from_millis(50);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Time between two looks where a moment counts.
const FINE: Duration = Duration::from_millis(10);
/// Time limit for the desired state after all faults are repaired.
pub(crate) const HEALED_WITHIN: Duration = Duration::from_secs(900);
/// How long nothing may be written after that.
const REST: Duration = Duration::from_secs(60);
/// A workload that is created after all faults are repaired.
const PROBE: &str = "probe";
pub(crate) const WORKLOADS: [&str; 5] = ["web", FENCED, "queue", WRITER, FENCED_WRITER];

pub(crate) struct Outcome {
    pub violation: Option<String>,
    pub trace: Vec<String>,
}

/// A repair that a fault scheduled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Repair {
    Start(usize),
    PowerOn(usize),
    Way(usize),
    Streams(usize),
    Store,
    /// SIGCONT for an agent that hangs.
    Wake(usize),
    /// systemd's watchdog ends an agent that hangs, and it is started again.
    Watchdog(usize),
    Overlay(usize),
    Disk(usize),
    /// A member that returned with an old store serves the present one.
    OldStore(usize),
    /// A machine's wall clock is set right.
    Clock(usize),
    /// A machine's link to the LAN is well.
    Link(usize),
    /// `kat-net` of a machine runs again.
    KatNet(usize),
}

/// Runs a seed to its end, or to the first violation.
pub(crate) fn run(seed: u64, without: Without, addresses_only: bool) -> Outcome {
    play(seed, without, async |scenario| {
        scenario.world.addresses_only = addresses_only;
        scenario.play().await;
    })
}

/// A machine with an instance of [`FENCED`] is cut off until the instance was moved. Then the
/// machine reaches the leader but not yet the store, and its agent restarts. The instance must not
/// run there again.
pub(crate) fn anew_before_its_list(seed: u64, without: Without) -> Outcome {
    play(seed, without, async |scenario| {
        scenario.anew_before_its_list().await
    })
}

/// A machine with an instance of [`FENCED`] reports again at the moment at which the instance was
/// moved, and its list is of before: its server stands still, or its stream is slow. The instance
/// must not run there again.
pub(crate) fn outdated_list(seed: u64, without: Without) -> Outcome {
    play(seed, without, async |scenario| {
        scenario.outdated_list().await
    })
}

/// A volume loses the rows that a program wrote.
pub(crate) fn data_is_lost(seed: u64) -> Outcome {
    play(seed, Without::Nothing, async |scenario| {
        scenario.data_is_lost().await
    })
}

pub(crate) fn play(
    seed: u64,
    without: Without,
    script: impl AsyncFnOnce(&mut Scenario),
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let folder = tempfile::tempdir_in(scratch()).unwrap();
    runtime.block_on(async {
        let mut scenario = Scenario {
            world: World::new(seed, without, folder.path()).await,
            streams: StreamSteps::of_seed(seed),
            machines: MachineSteps::of_seed(seed, without),
            returns: ReturnSteps::of_seed(seed, without),
            repairs: Vec::new(),
            version: 0,
        };
        script(&mut scenario).await;
        let world = scenario.world;
        Outcome {
            violation: world.monitor.violation(),
            trace: world.monitor.trace(),
        }
    })
}

/// `/dev/shm` where it exists, because the agents sync every file that they write.
fn scratch() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    }
}

pub(crate) struct Scenario {
    pub world: World,
    pub streams: StreamSteps,
    /// Faults of single machines, in the runs that have them.
    pub machines: Option<MachineSteps>,
    /// The store is made anew, in the runs in which it is.
    pub returns: Option<ReturnSteps>,
    repairs: Vec<(Instant, Repair)>,
    pub version: u64,
}

impl Scenario {
    async fn play(&mut self) {
        self.pass(Duration::from_secs(8)).await;
        for _ in 0..STEPS {
            self.step().await;
            self.step_of_the_large();
            self.step_of_the_streams();
            self.step_of_the_machines();
            self.step_of_the_returns();
            self.step_of_the_added_load();
            self.step_of_the_routes();
            self.step_of_the_outside_routes();
            self.step_of_the_virtual_addresses();
            let pause = if self.world.random.chance(60) {
                self.world.random.milliseconds(1, 800)
            } else {
                self.world.random.milliseconds(800, 8_000)
            };
            self.pass(pause).await;
            if self.is_over() {
                return;
            }
        }
        if let Some(large) = &self.world.large {
            large.grow(&self.world.store);
        }
        self.heal().await;
        if self.is_over() {
            return;
        }
        self.rest().await;
        self.note_digest();
    }

    /// The store must not change for [`REST`].
    async fn rest(&mut self) {
        // Lets the last reports arrive and their results be written.
        self.pass(5 * SECOND).await;
        let before = self.world.store.revision();
        self.pass_in(SECOND, REST).await;
        let after = self.world.store.revision();
        if before != after {
            let items = self.world.store.peek(keys::ROOT).items;
            let written = items.into_iter().filter(|item| item.mod_revision > before);
            let written: Vec<_> = written
                .map(|item| format!("{} {}", item.key, String::from_utf8_lossy(&item.value)))
                .collect();
            let text = format!("something is written in a minute of rest: {written:?}");
            self.world.monitor.violated(text);
        }
    }

    async fn anew_before_its_list(&mut self) {
        self.pass(8 * SECOND).await;
        let leader = self.world.leader().unwrap();
        let to = self.world.machines[leader].name.clone();
        let wish = Wish::Present {
            version: 1,
            replicas: 3,
        };
        self.world.person.wish(&to, FENCED, wish);
        self.pass(20 * SECOND).await;
        let on = |scenario: &Self, name: &str| {
            let live = scenario.world.live().into_iter();
            let units = live.filter(|(unit, on)| on == name && unit.contains(FENCED));
            units.map(|(unit, _)| unit).collect::<Vec<_>>()
        };
        let others = (0..self.world.machines.len()).filter(|number| *number != leader);
        let with = |number: &usize| !on(self, &self.world.machines[*number].name).is_empty();
        let number = others.into_iter().find(with).unwrap();
        let name = self.world.machines[number].name.clone();
        let before = on(self, &name);
        self.world.change_way(number, |way| {
            way.store_cut = true;
            way.machines_cut = true;
            way.opens_no_stream = true;
        });
        // The limit includes the time of programs that end slowly.
        self.pass(60 * SECOND).await;
        self.world
            .change_way(number, |way| way.machines_cut = false);
        let limit = Instant::now() + 30 * SECOND;
        let silent = |scenario: &Self| scenario.world.monitor.silent(&name);
        while silent(self).unwrap_or(HEALED_WITHIN) > SECOND && !self.is_over() {
            assert!(Instant::now() < limit, "no report came");
            self.pass(SLICE).await;
        }
        self.world
            .monitor
            .note(&format!("{name} is heard of, and starts anew"));
        self.world.kill(number);
        self.world.start(number);
        self.pass(10 * SECOND).await;
        let after = on(self, &name);
        if after.iter().any(|unit| before.contains(unit)) {
            let text = format!("{after:?} must not run on {name}: it was moved");
            self.world.monitor.violated(text);
        }
    }

    async fn outdated_list(&mut self) {
        self.world.net.heal_streams();
        self.pass(8 * SECOND).await;
        let leader = self.world.leader().unwrap();
        let to = self.world.machines[leader].name.clone();
        let wish = |version, replicas| Wish::Present { version, replicas };
        self.world.person.wish(&to, FENCED, wish(1, 3));
        self.world.person.wish(&to, WORKLOADS[0], wish(1, 3));
        self.pass(20 * SECOND).await;
        let runs_on = |scenario: &Self| {
            let live = scenario.world.live().into_iter();
            let mut fenced = live.filter(|(unit, _)| unit.contains(FENCED));
            fenced.find(|(_, on)| *on != to)
        };
        let (unit, name) = runs_on(self).unwrap();
        let mut machines = self.world.machines.iter();
        let number = machines.position(|machine| machine.name == name).unwrap();
        let random = &mut self.streams.random;
        let (slow, ahead) = (random.chance(50), random.milliseconds(0, 2_000));
        let pace = random.milliseconds(200, 1_500);
        self.world
            .change_way(number, |way| way.reports_refused = true);
        let lost = Duration::from_secs(LOST_AFTER.into());
        while self.world.monitor.silent(&name).unwrap() < lost - ahead {
            self.pass_in(FINE, FINE).await;
        }
        let server = match self.world.machines[number].identity.etcd {
            true => name.clone(),
            false => self.world.net.server_of(&name).unwrap(),
        };
        let mut machines = self.world.machines.iter();
        let server = machines.position(|machine| machine.name == server).unwrap();
        // A leader whose copy stands still moves nothing.
        if slow || server == leader {
            self.world.change_way(number, |way| way.stream_pace = pace);
            self.world.person.wish(&to, WORKLOADS[0], wish(2, 4));
        } else {
            self.world
                .change_way(number, |way| way.opens_no_stream = true);
            self.world.change_way(server, |way| way.copy_frozen = true);
        }
        let limit = Instant::now() + HEALED_WITHIN;
        let stays = |scenario: &Self| {
            let assigned = assigned(&scenario.world);
            let found = assigned.get(&unit);
            found.is_some_and(|(_, one)| one.wanted == DesiredRun::Running)
        };
        while stays(self) && !self.is_over() {
            assert!(Instant::now() < limit, "{unit} is not moved");
            self.pass_in(FINE, FINE).await;
        }
        self.world.monitor.note(&format!("{unit} was moved"));
        self.world
            .change_way(number, |way| way.reports_refused = false);
        let (end, mut ended) = (Instant::now() + 20 * SECOND, false);
        while Instant::now() < end && !self.is_over() {
            self.pass(SLICE).await;
            let runs = self.world.live().contains_key(&unit);
            if runs && ended {
                let text = format!("{unit} must not run on {name} again: it was moved");
                self.world.monitor.violated(text);
            }
            ended |= !runs;
        }
    }

    async fn data_is_lost(&mut self) {
        self.pass(8 * SECOND).await;
        let leader = self.world.leader().unwrap();
        let to = self.world.machines[leader].name.clone();
        let wish = |version| Wish::Present {
            version,
            replicas: 1,
        };
        self.world.person.wish(&to, WRITER, wish(1));
        self.pass(60 * SECOND).await;
        assert!(!self.is_over(), "{:?}", self.world.monitor.violation());
        assert!(self.world.forget_rows(), "nothing was written");
        self.world.person.wish(&to, WRITER, wish(2));
        self.pass(60 * SECOND).await;
    }

    pub(crate) fn is_over(&self) -> bool {
        self.world.monitor.violation().is_some()
    }

    /// Lets virtual time pass, does the repairs that are due, and checks the invariants.
    pub(crate) async fn pass(&mut self, time: Duration) {
        self.pass_in(SLICE, time).await;
    }

    pub(crate) async fn pass_in(&mut self, slice: Duration, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.is_over() {
            self.world.wait_for_threads();
            sleep(slice.min(end - Instant::now())).await;
            let due = |(at, _): &mut (Instant, Repair)| *at <= Instant::now();
            let due: Vec<_> = self.repairs.extract_if(.., due).collect();
            for (_, repair) in due {
                self.repair(repair).await;
            }
            if self.world.person.join_state().done {
                self.world.let_in().await;
            }
            self.world.check();
        }
    }

    async fn repair(&mut self, repair: Repair) {
        self.world.monitor.note(&format!("{repair:?}"));
        match repair {
            Repair::Start(number) => self.world.start(number),
            Repair::PowerOn(number) => self.world.power_on(number).await,
            Repair::Way(number) => {
                let latency = self.world.random.milliseconds(1, 20);
                self.world.change_way(number, |way| {
                    way.store_cut = false;
                    way.machines_cut = false;
                    way.latency = latency;
                });
            }
            Repair::Streams(number) => {
                self.world.change_way(number, Conditions::heal_streams);
            }
            Repair::Store => self.world.store.set_available(true),
            Repair::Wake(number) => self.world.wake(number),
            Repair::Watchdog(number) => {
                if self.world.machines[number].way.now().hung {
                    self.world.kill(number);
                    self.world.start(number);
                }
            }
            Repair::Overlay(number) => self.world.cut_overlay(number, false),
            Repair::Disk(number) => self.world.fill_disk(number, false),
            Repair::OldStore(number) => self.world.end_return(number),
            Repair::Clock(number) => self.world.set_clock(number, SignedDuration::ZERO),
            Repair::Link(number) => self.world.mend_link(number),
            Repair::KatNet(number) => self.world.start_kat_net(number),
        }
    }

    pub(crate) fn later(&mut self, least: u64, most: u64, repair: Repair) {
        let after = self.world.random.milliseconds(least, most);
        self.repair_after(after, repair);
    }

    pub(crate) fn repair_after(&mut self, after: Duration, repair: Repair) {
        self.repairs.push((Instant::now() + after, repair));
    }

    /// Repairs all faults and waits for the desired state.
    async fn heal(&mut self) {
        self.world.monitor.note("all is healed");
        self.repairs.clear();
        self.world.store.set_available(true);
        self.world.net.heal_streams();
        self.world.net.end_old_stores();
        self.world.heal_the_lan();
        for number in 0..self.world.machines.len() {
            self.world.change_way(number, |way| way.lost_answers = 0);
            self.repair(Repair::Way(number)).await;
            self.repair(Repair::Streams(number)).await;
            self.repair(Repair::Wake(number)).await;
            self.repair(Repair::Overlay(number)).await;
            self.repair(Repair::Disk(number)).await;
            self.repair(Repair::PowerOn(number)).await;
            self.repair(Repair::Clock(number)).await;
        }
        // Every request with an unknown outcome has taken effect by now, or never will.
        self.pass_in(SECOND / 5, AT_LAST).await;
        self.settle_the_virtual_addresses().await;
        self.settle_the_outside_routes().await;
        self.settle_the_routes().await;
        self.settle_the_added_load().await;
        self.go_on_beside_the_forger().await;
        self.go_on_beside_a_dead_overlay().await;
        self.comes_to_rest().await;
        self.delete_the_large().await;
    }

    /// A new workload runs on the other machines while one machine still forges its reports.
    async fn go_on_beside_the_forger(&mut self) {
        let Some(forger) = self.world.forger.clone() else {
            return;
        };
        self.world.monitor.note("it forges on");
        let end = Instant::now() + HEALED_WITHIN;
        self.version += 1;
        let wish = Wish::Present {
            version: self.version,
            replicas: 3,
        };
        while !self.is_over() {
            if self.world.person.promised(PROBE) != (wish.clone(), true)
                && let Some(leader) = self.world.leader()
            {
                let to = self.world.machines[leader].name.clone();
                self.world.person.wish(&to, PROBE, wish.clone());
            }
            self.pass_in(SECOND / 5, SECOND).await;
            let Some(missing) = self.world.stands_still(PROBE, 3) else {
                break;
            };
            if Instant::now() >= end {
                let text = format!("nothing goes on beside a forged report: {missing}");
                self.world.monitor.violated(text);
            }
        }
        self.world.monitor.note("it says what is so");
        forger.becomes_honest();
    }

    /// The workload that has grown stays unchanged, also under another leader, until it is deleted.
    async fn delete_the_large(&mut self) {
        let Some(large) = self.world.large.as_ref().map(|large| large.workload) else {
            return;
        };
        if self.is_over() || self.frozen().is_none() {
            return;
        }
        self.rest().await;
        let before = self.world.keys_of(large);
        if let Some(leader) = self.world.leader() {
            self.world.kill(leader);
            self.pass(15 * SECOND).await;
            self.world.start(leader);
        }
        self.pass(15 * SECOND).await;
        self.comes_to_rest().await;
        let after = self.world.keys_of(large);
        if before != after && !self.is_over() {
            let text = format!(
                "{large} cannot be written, and another leader has {after:?} instead of {before:?}"
            );
            self.world.monitor.violated(text);
        }
        let end = Instant::now() + HEALED_WITHIN;
        while self.world.person.promised(large) != (Wish::Absent, true) && !self.is_over() {
            if let Some(leader) = self.world.leader() {
                let to = self.world.machines[leader].name.clone();
                self.world.person.wish(&to, large, Wish::Absent);
            }
            self.pass_in(SECOND / 5, SECOND).await;
            if Instant::now() >= end {
                let text = format!("{large} cannot be written, and nobody can delete it");
                self.world.monitor.violated(text);
            }
        }
        self.comes_to_rest().await;
    }

    /// The workload that cannot be written, if there is one.
    fn frozen(&self) -> Option<&'static str> {
        let large = self.world.large.as_ref()?;
        large.is_grown(&self.world.store).then_some(large.workload)
    }

    /// Waits until the cluster is in its desired state, and repeats requests with an unknown
    /// outcome.
    pub(crate) async fn comes_to_rest(&mut self) {
        let end = Instant::now() + HEALED_WITHIN;
        loop {
            self.pass_in(SECOND / 5, SECOND).await;
            let unsure: Vec<String> = self
                .world
                .person
                .workloads()
                .into_iter()
                .filter(|workload| !self.world.person.promised(workload).1)
                .collect();
            for workload in &unsure {
                self.version += 1;
                let wish = Wish::Present {
                    version: self.version,
                    replicas: 2,
                };
                if let Some(leader) = self.world.leader() {
                    let to = self.world.machines[leader].name.clone();
                    self.world.person.wish(&to, workload, wish);
                }
            }
            let drains = self.world.person.drains();
            // A machine with data that is not shared cannot be drained, so its drain is ended.
            let promised = drains.iter().filter(|(_, drain)| drain.promised);
            let promised: Vec<String> = promised.map(|(machine, _)| machine.clone()).collect();
            if let (false, Some(leader)) = (self.world.shared, self.world.leader()) {
                let to = self.world.machines[leader].name.clone();
                for machine in &promised {
                    self.world.person.drain(&to, machine, false);
                }
            }
            let mut unknown = drains.iter().filter(|(_, drain)| drain.unsure);
            let unknown = unknown.next().map(|(machine, _)| machine.clone());
            if let (Some(machine), Some(leader)) = (&unknown, self.world.leader()) {
                let to = self.world.machines[leader].name.clone();
                self.world.person.drain(&to, machine, self.world.shared);
            }
            let join = self.world.person.join_state();
            if join.begun && !join.done {
                self.join();
            }
            if let (false, Some(leader)) = (self.world.secrets.is_set(), self.world.leader()) {
                let to = self.world.machines[leader].name.clone();
                self.world.secrets.set(&to, "value at last");
            }
            let paused = self.world.person.paused();
            if let Some(leader) = self.world.leader() {
                let to = self.world.machines[leader].name.clone();
                for workload in &paused {
                    self.world.person.pause(&to, workload, false);
                }
            }
            let missing = match unsure.is_empty() && unknown.is_none() && paused.is_empty() {
                true => self
                    .world
                    .missing(self.frozen())
                    .or_else(|| self.world.secret_behind())
                    .or_else(|| self.world.copy_behind()),
                false => Some(format!(
                    "{unsure:?}, {unknown:?} and {paused:?} are not sure"
                )),
            };
            let Some(missing) = missing else { return };
            if self.is_over() {
                return;
            }
            if Instant::now() >= end {
                let text = format!("not whole {HEALED_WITHIN:?} after all was healed: {missing}");
                self.world.monitor.violated(text);
                return;
            }
        }
    }

    /// Adds a hash of the whole store to the trace, so that any difference between two runs shows.
    fn note_digest(&self) {
        let mut digest = Sha256::new();
        for item in self.world.store.peek(keys::ROOT).items {
            digest.update(item.key.as_bytes());
            digest.update(&item.value);
            digest.update(item.mod_revision.to_be_bytes());
        }
        let text = format!("digest {:x}", digest.finalize());
        self.world.monitor.note(&text);
    }
}

/// Runs `work` and measures its time on the real clock.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = SystemTime::now();
    let done = work();
    (done, began.elapsed().unwrap_or_default())
}
