//! Fixed scenes of the faults of single machines: that each of them bites and heals, and that the
//! checks find a product that ignores it.

use std::{collections::BTreeSet, io::ErrorKind, time::Duration};

use tokio::time::Instant;

use crate::{
    checks::invariants::assigned,
    faults::{disabled_safeguards::Without, machine_faults::small_disk},
    finds,
    load::user::{FENCED, Wish},
    run::{Outcome, SECOND, Scenario, WORKLOADS, play},
    world::{LOST_AFTER, MEMBERS, THERE},
};
use kat_testing::MemoryStore;
use kat_types::{
    api::NodePhase,
    assignment::DesiredRun,
    store::{keys, records::NodeStatusRecord},
};

/// A workload without data that runs anywhere, also while machines are cut off.
const QUEUE: &str = WORKLOADS[2];
const SEED: u64 = 2;

impl Scenario {
    /// Three instances of the workload run; returns the number of a machine with one of them that
    /// does not lead, and its unit.
    async fn three_run(&mut self, workload: &str) -> (usize, String) {
        self.world.net.heal_streams();
        self.pass(8 * SECOND).await;
        self.apply(workload, 1, 3);
        self.pass(40 * SECOND).await;
        assert!(!self.is_over(), "{:?}", self.world.monitor.violation());
        let leader = self.world.leader().unwrap();
        let live = self.world.live().into_iter();
        let mut units = live.filter(|(unit, _)| unit.contains(&format!("-{workload}-")));
        let leads = self.world.machines[leader].name.clone();
        let (unit, on) = units.find(|(_, on)| *on != leads).unwrap();
        let mut machines = self.world.machines.iter();
        (
            machines.position(|machine| machine.name == on).unwrap(),
            unit,
        )
    }

    fn apply(&mut self, workload: &str, version: u64, replicas: u32) {
        self.version = self.version.max(version);
        let leader = self.world.leader().unwrap();
        let to = self.world.machines[leader].name.clone();
        let wish = Wish::Present { version, replicas };
        self.world.person.wish(&to, workload, wish);
    }

    fn status(&self, number: usize) -> NodeStatusRecord {
        let key = keys::node_status(&self.world.machines[number].name);
        let found = self.world.store.peek(&key).items;
        serde_json::from_slice(&found[0].value).unwrap()
    }

    fn served(&self) -> BTreeSet<String> {
        let named = self.world.store.peek(keys::DNS).items;
        let instance = |key: &str| {
            let value = key.rsplit('/').next()?;
            let (instance, _) = value.split_once('=')?;
            Some(format!("kat-default-{instance}.service"))
        };
        named
            .iter()
            .filter_map(|item| instance(&item.key))
            .collect()
    }

    /// An agent hangs until its instances were replaced, and continues.
    async fn hung_agent(&mut self) {
        let (number, unit) = self.three_run(FENCED).await;
        self.world.hang(number);
        self.pass(Duration::from_secs(LOST_AFTER.into()) + 30 * SECOND)
            .await;
        if self.is_over() {
            return;
        }
        assert_eq!(self.status(number).phase, NodePhase::NotReady);
        assert!(!self.served().contains(&unit), "it is lost");
        assert!(
            self.world.live().contains_key(&unit),
            "nothing has stopped it"
        );
        let stays = assigned(&self.world)
            .get(&unit)
            .is_some_and(|(_, one)| one.wanted == DesiredRun::Running);
        assert!(!stays, "it is replaced");
        self.world.wake(number);
        self.pass(20 * SECOND).await;
        assert!(!self.world.live().contains_key(&unit), "it has a successor");
        assert_eq!(self.status(number).phase, NodePhase::Ready);
        self.comes_to_rest().await;
    }

    /// A leader hangs until another one leads, with a change that it has begun to write.
    async fn hung_leader(&mut self) {
        self.three_run(QUEUE).await;
        let leader = self.world.leader().unwrap();
        let worker = (0..3).find(|number| *number != leader).unwrap();
        self.world.kill(worker);
        self.pass(7 * SECOND).await;
        self.world.hang(leader);
        self.pass(12 * SECOND).await;
        let next = self.world.leader().unwrap();
        assert_ne!(next, leader, "another one leads");
        self.world.wake(leader);
        self.pass(5 * SECOND).await;
        assert_eq!(self.world.leader(), Some(next));
        self.world.start(worker);
        self.comes_to_rest().await;
    }

    /// The overlay of a machine dies, and that of no other; its own network is well.
    async fn dead_overlay(&mut self) {
        let (number, unit) = self.three_run(QUEUE).await;
        assert!(self.served().contains(&unit));
        self.world.cut_overlay(number, true);
        self.expect_sent_elsewhere(number).await;
        if self.is_over() {
            return;
        }
        assert_eq!(self.status(number).phase, NodePhase::Ready, "it reports");
        assert!(!self.served().contains(&unit));
        self.pass(60 * SECOND).await;
        assert!(self.world.live().contains_key(&unit), "nothing is stopped");
        self.world.cut_overlay(number, false);
        self.comes_to_rest().await;
        assert!(self.served().contains(&unit), "it is the same one");
    }

    /// The machines' own network is cut, and with it the overlay: the machine is lost, and nobody
    /// judges its overlay.
    async fn dead_network(&mut self) {
        let (number, _) = self.three_run(QUEUE).await;
        self.world.change_way(number, |way| {
            way.machines_cut = true;
            way.store_cut = true;
        });
        self.pass(60 * SECOND).await;
        let status = self.status(number);
        assert_eq!(status.phase, NodePhase::NotReady);
        self.world.change_way(number, |way| {
            way.machines_cut = false;
            way.store_cut = false;
        });
        self.comes_to_rest().await;
    }

    /// Reports arrive a second time, when their machine is already lost.
    async fn late_reports(&mut self) {
        let (number, _) = self.three_run(QUEUE).await;
        let late = Duration::from_secs(LOST_AFTER.into()) - 2 * SECOND;
        self.world
            .change_way(number, |way| way.reports_repeated = Some(late));
        self.pass(20 * SECOND).await;
        assert_eq!(self.status(number).phase, NodePhase::Ready);
        let name = self.world.machines[number].name.clone();
        self.world.kill(number);
        let lost = Duration::from_secs(LOST_AFTER.into()) + 3 * SECOND;
        while self.world.monitor.silent(&name).unwrap() < lost && !self.is_over() {
            self.pass(SECOND).await;
        }
        if self.status(number).phase != NodePhase::NotReady {
            let text = format!("{name} is believed what it reported before it fell silent");
            self.world.monitor.violated(text);
        }
        if self.is_over() {
            return;
        }
        self.world.start(number);
        self.comes_to_rest().await;
        assert!(self.is_over() || self.status(number).phase == NodePhase::Ready);
    }

    /// The manager of a workload's user is killed.
    async fn lost_manager(&mut self) {
        let (number, unit) = self.three_run(QUEUE).await;
        let boot = self.world.machines[number].boot.clone().unwrap();
        for uid in boot.lingering() {
            self.world.lose_manager(number, uid);
        }
        assert!(!self.world.live().contains_key(&unit), "it ended with it");
        let end = Instant::now() + 30 * SECOND;
        while self.served().contains(&unit) && !self.is_over() {
            assert!(Instant::now() < end, "callers are sent to what has ended");
            self.pass(SECOND).await;
        }
        self.comes_to_rest().await;
        assert!(self.is_over() || self.world.live().contains_key(&unit));
    }

    /// The store is made anew, and all machines follow it.
    async fn new_store(&mut self) {
        self.three_run(QUEUE).await;
        self.world.publish_verifier();
        self.pass(10 * SECOND).await;
        self.world.begin_epoch();
        self.pass(20 * SECOND).await;
        assert!(!self.is_over(), "{:?}", self.world.monitor.violation());
        for number in 0..THERE {
            assert_eq!(self.world.followed_epoch(number), Some(1));
        }
    }

    /// A member returns with an old store. An agent starts meanwhile, and reaches no other member.
    async fn meets_alone(&mut self, old: &MemoryStore) {
        let returns = self.world.leader().unwrap();
        let away: Vec<usize> = (0..MEMBERS).filter(|other| *other != returns).collect();
        self.world.return_with(returns, old);
        for other in &away {
            self.world.change_way(*other, |way| way.machines_cut = true);
        }
        self.world.kill(MEMBERS);
        self.world.start(MEMBERS);
        self.pass(25 * SECOND).await;
        if self.is_over() {
            return;
        }
        assert_eq!(self.world.followed_epoch(MEMBERS), None);
        for other in away {
            self.world.change_way(other, |way| way.machines_cut = false);
        }
        self.world.end_return(returns);
        self.comes_to_rest().await;
        if self.is_over() {
            return;
        }
        for number in 0..THERE {
            assert_eq!(self.world.followed_epoch(number), Some(1));
        }
    }

    /// The store of before returns.
    async fn returning_store(&mut self) {
        let record = self.world.store_epoch();
        self.new_store().await;
        let old = self.world.old_store(&record);
        self.meets_alone(&old).await;
    }

    /// A store of a later epoch appears that the recovery key has not signed.
    async fn unproved_store(&mut self) {
        self.new_store().await;
        let unproved = self.world.old_store(&self.world.forged_epoch());
        self.meets_alone(&unproved).await;
    }

    /// A disk fills up before new instances are assigned to its machine.
    async fn full_disk(&mut self) {
        self.world.net.heal_streams();
        self.pass(8 * SECOND).await;
        let mut machines = self.world.machines.iter();
        let number = machines.position(|machine| machine.disk.is_some()).unwrap();
        self.world.fill_disk(number, true);
        let machine = &self.world.machines[number];
        let (name, file) = (machine.name.clone(), machine.root.join("net/file"));
        let written = std::fs::write(&file, [7; 8192]);
        let error = written.unwrap_err().kind();
        assert_eq!(error, ErrorKind::StorageFull);
        std::fs::remove_file(file).unwrap();
        self.pass(20 * SECOND).await;
        self.apply(QUEUE, 1, 8);
        self.pass(30 * SECOND).await;
        assert!(!self.is_over(), "{:?}", self.world.monitor.violation());
        let assigned = assigned(&self.world).into_iter();
        let own: Vec<String> = assigned
            .filter(|(_, (on, _))| *on == name)
            .map(|(unit, _)| unit)
            .collect();
        let live = self.world.live();
        assert!(!own.is_empty(), "it reports");
        let runs = own.iter().find(|unit| live.contains_key(*unit));
        assert_eq!(runs, None, "its files cannot be written");
        self.world.fill_disk(number, false);
        self.comes_to_rest().await;
    }
}

fn seed_with_small_disk() -> u64 {
    (1..).find(|seed| small_disk(*seed).is_some()).unwrap()
}

pub(crate) fn holds(outcome: Outcome) {
    let trace = outcome.trace.join("\n");
    assert_eq!(outcome.violation, None, "{trace}");
}

fn fails(outcome: Outcome, words: &str) {
    let violation = outcome.violation.unwrap_or_default();
    assert!(violation.contains(words), "{violation}");
}

fn hung_agent(without: Without) -> Outcome {
    play(SEED, without, async |scenario| scenario.hung_agent().await)
}

fn dead_overlay(without: Without) -> Outcome {
    play(SEED, without, async |scenario| {
        scenario.dead_overlay().await
    })
}

fn lost_manager(without: Without) -> Outcome {
    play(SEED, without, async |scenario| {
        scenario.lost_manager().await
    })
}

fn returning_store(without: Without) -> Outcome {
    play(SEED, without, async |scenario| {
        scenario.returning_store().await
    })
}

fn unproved_store(without: Without) -> Outcome {
    play(SEED, without, async |scenario| {
        scenario.unproved_store().await
    })
}

fn late_reports(without: Without) -> Outcome {
    play(SEED, without, async |scenario| {
        scenario.late_reports().await
    })
}

fn full_disk(without: Without) -> Outcome {
    let seed = seed_with_small_disk();
    play(seed, without, async |scenario| scenario.full_disk().await)
}

#[test]
fn a_machine_whose_agent_hangs_is_lost_and_its_instances_are_replaced_once() {
    holds(hung_agent(Without::Nothing));
}

#[test]
fn a_leader_that_hung_changes_nothing_when_it_continues() {
    holds(play(SEED, Without::Nothing, async |scenario| {
        scenario.hung_leader().await;
    }));
}

#[test]
fn it_is_found_when_an_agent_that_hangs_is_said_to_be_well() {
    fails(hung_agent(Without::Silence), "is said to be well");
}

#[test]
fn callers_are_sent_past_a_machine_whose_overlay_is_dead() {
    holds(dead_overlay(Without::Nothing));
}

#[test]
fn a_machine_whose_own_network_is_cut_is_lost_and_its_overlay_not_judged() {
    holds(play(SEED, Without::Nothing, async |scenario| {
        scenario.dead_network().await;
    }));
}

#[test]
fn it_is_found_when_nobody_hears_of_a_dead_overlay() {
    fails(
        dead_overlay(Without::OverlayWitnesses),
        "has been dead for long",
    );
    finds(
        Without::OverlayWitnesses,
        false,
        50,
        "has been dead for long",
    );
}

#[test]
fn a_report_that_arrives_after_a_newer_one_keeps_no_lost_machine() {
    holds(late_reports(Without::Nothing));
}

#[test]
fn it_is_found_when_the_report_that_arrives_last_is_believed() {
    fails(late_reports(Without::ReportOrder), "before it fell silent");
}

#[test]
fn no_agent_returns_to_the_store_from_before_it_was_made_anew() {
    holds(returning_store(Without::Nothing));
}

#[test]
fn it_is_found_when_an_agent_that_starts_forgets_the_epoch() {
    fails(
        returning_store(Without::KeptEpoch),
        "and has followed epoch 1",
    );
}

#[test]
fn no_agent_follows_a_later_epoch_that_nothing_proves() {
    holds(unproved_store(Without::Nothing));
}

#[test]
fn it_is_found_when_every_later_epoch_is_believed() {
    fails(
        unproved_store(Without::EpochProofs),
        "which no recovery key has signed",
    );
}

#[test]
fn what_ended_with_the_manager_of_its_user_runs_again() {
    holds(lost_manager(Without::Nothing));
}

#[test]
fn it_is_found_when_nobody_starts_a_manager_that_has_ended() {
    fails(lost_manager(Without::ManagerStart), "not whole");
    finds(Without::ManagerStart, false, 50, "not whole");
}

#[test]
fn a_machine_with_a_full_disk_runs_what_it_was_given_once_there_is_space() {
    holds(full_disk(Without::Nothing));
}

#[test]
fn it_is_found_when_a_file_that_was_not_written_is_left_so() {
    fails(full_disk(Without::RetriedWrites), "has another list");
}
