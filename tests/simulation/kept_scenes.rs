//! Scenes of a schedule that a machine keeps by itself: faults around its machine, and the safeguards
//! without which a scheduled time has two runs.
//!
//! Random seeds have such a Job too, but their faults are over when it is minutes old.

mod per_node;

use std::time::Duration;

use jiff::SignedDuration;
use tokio::time::Instant;

use crate::{
    faults::disabled_safeguards::Without,
    load::{
        added::Requests,
        kept::{DUMP, KeptForm, KeptJob, is_volume_of_dump},
        user::NAMESPACE,
    },
    machine_scenes::holds,
    random::Random,
    run::{HEALED_WITHIN, Outcome, Repair, SECOND, Scenario, play},
};
use kat_types::store::{keys, records::WorkloadMeta};

/// Seeds without shared storage, forged reports, and reports that arrive twice.
const SEEDS: [u64; 3] = [1, 5, 11];
/// Time between two checks of a scene, which lasts for many minutes.
const SLICE: Duration = Duration::from_millis(500);
/// Faults of a scene.
const FAULTS: usize = 8;
/// How often nobody leads for a scheduled time more, until a run was tried again.
const MORE_RUNS: usize = 10;
/// Time for the Job's first run, which the leader makes, and after it for the machine's first one.
const BEGINS_WITHIN: Duration = Duration::from_secs(600);

/// The Job and its user.
struct Keeping {
    job: KeptJob,
    requests: Requests,
    random: Random,
}

impl Keeping {
    fn apply(&self, to: &str) {
        self.job.apply(&self.requests, to);
    }
}

impl Scenario {
    fn leader_name(&self) -> String {
        let leader = self.world.leader().unwrap_or_default();
        self.world.machines[leader].name.clone()
    }

    /// Applies the Job, and waits until a machine keeps its schedule.
    async fn keep_a_schedule(&mut self, seed: u64, form: KeptForm) -> Keeping {
        assert!(!self.world.shared && self.world.forger.is_none());
        let keeping = Keeping {
            job: KeptJob::new(form),
            requests: Requests::new(&self.world.net, &self.world.monitor),
            random: Random::new(seed ^ 0x6b65_6570),
        };
        self.world.net.heal_streams();
        self.pass_in(SLICE, 8 * SECOND).await;
        let end = Instant::now() + BEGINS_WITHIN;
        while self.world.kept_since().is_none() && !self.is_over() {
            assert!(Instant::now() < end, "no machine keeps the schedule");
            if !self.world.has_workload(DUMP) {
                keeping.apply(&self.leader_name());
            }
            self.pass_in(SLICE, SECOND).await;
        }
        keeping
    }

    /// Everything that was asked for has happened, and a machine keeps the schedule.
    async fn keeps_it_again(&mut self, keeping: &mut Keeping) {
        let end = Instant::now() + HEALED_WITHIN;
        while !self.is_over() {
            self.pass_in(SLICE, SECOND).await;
            let to = self.leader_name();
            for (machine, drain) in self.world.person.drains() {
                if drain.promised || drain.unsure {
                    self.world.person.drain(&to, &machine, false);
                }
            }
            // The same files change nothing.
            if self.world.kept_since().is_none() {
                keeping.job.suspended = false;
                keeping.apply(&to);
            }
            let Some(missing) = self.world.kept_missing() else {
                return;
            };
            if Instant::now() >= end {
                let text = format!("{HEALED_WITHIN:?} after all was healed: {missing}");
                self.world.monitor.violated(text);
            }
        }
    }

    /// Nobody leads for some minutes, and the runs go on.
    async fn nobody_leads(&mut self) {
        let kept = self.world.kept_since();
        self.world.store.set_available(false);
        self.pass_in(SLICE, 200 * SECOND).await;
        self.world.check_kept(kept.as_ref());
        self.world.store.set_available(true);
    }

    /// One fault, and its end. Those after which the machine begins each run are checked for that.
    async fn fault_of_the_kept(&mut self, keeping: &mut Keeping) {
        let Some((number, _)) = self.world.keeper() else {
            return;
        };
        let what = keeping.random.below(10);
        let lasts = keeping.random.milliseconds(20_000, 150_000);
        let size = i64::try_from(keeping.random.below(200_000)).unwrap();
        let other = keeping.random.index(self.world.joined().count());
        let name = self.world.machines[number].name.clone();
        self.world.monitor.note(&format!(
            "fault {what} for {lasts:?}, and {name} keeps the schedule"
        ));
        let kept = self.world.kept_since();
        let to = self.leader_name();
        let leader = self.world.leader().unwrap_or_default();
        match what {
            0 => {
                self.world.kill(leader);
                self.repair_after(lasts, Repair::Start(leader));
            }
            1 | 2 => {
                self.cut_off(number);
                self.repair_after(lasts, Repair::Way(number));
                self.repair_after(lasts, Repair::Streams(number));
            }
            3 => {
                self.world.kill(number);
                self.repair_after(lasts, Repair::Start(number));
            }
            4 => {
                self.world.store.set_available(false);
                self.repair_after(lasts, Repair::Store);
            }
            5 => {
                self.world.power_off(number);
                self.repair_after(lasts, Repair::PowerOn(number));
            }
            6 => {
                // The keeper's own clock is never ahead: a leader decides about such times again.
                let is_back = other == number || keeping.random.chance(50);
                let jump = SignedDuration::from_millis(if is_back { -size } else { size });
                self.world.set_clock(other, jump);
                self.repair_after(lasts, Repair::Clock(other));
            }
            7 => {
                keeping.job.suspended = true;
                keeping.apply(&to);
            }
            8 if size % 2 == 0 => keeping.requests.run_by_hand(&to, DUMP),
            8 => {
                keeping.job.version += 1;
                keeping.apply(&to);
            }
            _ => self.leave(&to, number, other),
        }
        self.pass_in(SLICE, lasts + 5 * SECOND).await;
        if what < 5 {
            self.world.check_kept(kept.as_ref());
        }
    }

    /// Its data moves to another machine, or its machine is drained.
    fn leave(&mut self, to: &str, number: usize, other: usize) {
        if other == number {
            let name = &self.world.machines[number].name;
            self.world.person.drain(to, name, true);
            return;
        }
        let volumes = self.world.volumes().into_iter();
        let mut volumes = volumes.filter(|(volume, _)| is_volume_of_dump(volume));
        if let Some((volume, _)) = volumes.next() {
            let other = &self.world.machines[other].name;
            self.world.mover.ask(to, &volume, Some(other.as_str()));
        }
    }

    fn cut_off(&mut self, number: usize) {
        self.world.change_way(number, |way| {
            way.store_cut = true;
            way.machines_cut = true;
            way.opens_no_stream = true;
        });
    }

    async fn faults_around_a_schedule(&mut self, seed: u64, form: KeptForm) {
        let mut keeping = self.keep_a_schedule(seed, form).await;
        for _ in 0..FAULTS {
            self.fault_of_the_kept(&mut keeping).await;
            self.keeps_it_again(&mut keeping).await;
            if self.is_over() {
                return;
            }
        }
        self.nobody_leads().await;
        self.keeps_it_again(&mut keeping).await;
        if form == KeptForm::Once {
            return;
        }
        // Faults may have left the machine no run that failed.
        for _ in 0..MORE_RUNS {
            if self.is_over() || self.world.was_tried_again() {
                return;
            }
            self.nobody_leads().await;
            self.keeps_it_again(&mut keeping).await;
        }
        if !self.world.was_tried_again() {
            let text = "no run was tried again: the scene shows nothing of retries".to_owned();
            self.world.monitor.violated(text);
        }
    }

    /// The machine has no power at a time, and makes up for it before the next one.
    async fn a_time_is_missed(&mut self, seed: u64) {
        let mut keeping = self.keep_a_schedule(seed, KeptForm::Retried).await;
        let each = KeptForm::Retried.seconds();
        let end = Instant::now() + BEGINS_WITHIN;
        let (kept, left) = loop {
            if self.is_over() {
                return;
            }
            assert!(Instant::now() < end, "a run is active before each time");
            self.pass_in(SLICE, SECOND).await;
            let left = each - self.world.true_time().as_second().rem_euclid(each);
            let is_near = (9..=15).contains(&left) && self.world.active_runs().is_empty();
            if let Some(kept) = self.world.kept_since().filter(|_| is_near) {
                break (kept, left);
            }
        };
        let Some((number, _)) = self.world.keeper() else {
            return;
        };
        let missed = self.world.true_time().as_second() + left;
        self.world.power_off(number);
        self.repair_after(50 * SECOND, Repair::PowerOn(number));
        let until_next = Duration::from_secs((left + each - 8).unsigned_abs());
        self.pass_in(SLICE, until_next).await;
        if !self.is_over() && !self.world.has_begun(&kept, missed) {
            let text = format!("{missed} was missed, and its machine does not make up for it");
            self.world.monitor.violated(text);
        }
        self.keeps_it_again(&mut keeping).await;
    }

    /// The machine's clock is set back, so that times come again.
    async fn times_come_again(&mut self, seed: u64) {
        let mut keeping = self.keep_a_schedule(seed, KeptForm::Once).await;
        self.pass_in(SLICE, 130 * SECOND).await;
        for _ in 0..2 {
            let Some((number, _)) = self.world.keeper() else {
                return;
            };
            self.world.set_clock(number, SignedDuration::from_secs(-90));
            self.pass_in(SLICE, 100 * SECOND).await;
            self.world.set_clock(number, SignedDuration::ZERO);
            self.pass_in(SLICE, 100 * SECOND).await;
        }
        self.keeps_it_again(&mut keeping).await;
    }

    /// Files are applied while the machine is cut off: it goes on, and nobody else begins a run.
    async fn files_change_meanwhile(&mut self, seed: u64) {
        // A schedule that is taken back too early gives the address of a run back, too.
        self.world.addresses_only = true;
        let mut keeping = self.keep_a_schedule(seed, KeptForm::Once).await;
        let Some((number, _)) = self.world.keeper() else {
            return;
        };
        let kept = self.world.kept_since();
        self.cut_off(number);
        self.pass_in(SLICE, 30 * SECOND).await;
        keeping.job.version += 1;
        let generation = |scenario: &Self| {
            let key = keys::workload_meta(NAMESPACE, DUMP);
            let meta: Option<WorkloadMeta> = scenario.world.stored(&key);
            meta.map(|meta| meta.generation)
        };
        let (before, end) = (generation(self), Instant::now() + 60 * SECOND);
        while generation(self) == before && !self.is_over() {
            assert!(Instant::now() < end, "nobody takes the files");
            keeping.apply(&self.leader_name());
            self.pass_in(SLICE, 2 * SECOND).await;
        }
        self.pass_in(SLICE, 200 * SECOND).await;
        self.world.check_kept(kept.as_ref());
        self.repair_after(Duration::ZERO, Repair::Way(number));
        self.repair_after(Duration::ZERO, Repair::Streams(number));
        self.keeps_it_again(&mut keeping).await;
    }
}

fn faults(seed: u64, form: KeptForm) -> Outcome {
    play(seed, Without::Nothing, async |scenario| {
        scenario.faults_around_a_schedule(seed, form).await
    })
}

fn missed(seed: u64) -> Outcome {
    play(seed, Without::Nothing, async |scenario| {
        scenario.a_time_is_missed(seed).await
    })
}

fn times_again(seed: u64, without: Without) -> Outcome {
    play(seed, without, async |scenario| {
        scenario.times_come_again(seed).await
    })
}

fn files_meanwhile(seed: u64, without: Without) -> Outcome {
    play(seed, without, async |scenario| {
        scenario.files_change_meanwhile(seed).await
    })
}

#[test]
fn a_schedule_that_a_machine_keeps_has_each_run_once_whatever_fails() {
    for seed in SEEDS {
        holds(faults(seed, KeptForm::Once));
    }
}

#[test]
fn a_run_that_its_machine_tries_again_has_no_attempt_too_many_whatever_fails() {
    for seed in SEEDS {
        holds(faults(seed, KeptForm::Retried));
    }
}

#[test]
fn a_time_without_power_is_made_up_for_once() {
    for seed in SEEDS {
        holds(missed(seed));
    }
}

#[test]
fn a_time_that_comes_again_on_a_machine_has_no_second_run() {
    holds(times_again(SEEDS[0], Without::Nothing));
}

#[test]
fn it_is_found_when_a_gate_looks_at_nothing_that_is_written() {
    let outcomes = SEEDS.map(|seed| times_again(seed, Without::RunGate));
    let mut found = outcomes.into_iter().filter_map(|outcome| outcome.violation);
    assert!(found.any(|violation| violation.contains("runs twice")));
}

#[test]
fn a_machine_that_is_cut_off_begins_its_runs_and_nobody_else_does() {
    holds(files_meanwhile(SEEDS[0], Without::Nothing));
}

/// The first thing that is found differs: a run by both, or what was given back while it was in use.
#[test]
fn it_is_found_when_a_leader_takes_a_schedule_back_without_its_machine() {
    let found = files_meanwhile(SEEDS[0], Without::GiveBack).violation;
    assert!(found.is_some(), "machine and leader decide the same times");
}
