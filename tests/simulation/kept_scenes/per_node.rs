//! Scenes of a schedule that each machine keeps for itself: faults of one machine, which hold up no other,
//! and the position without which a scheduled time runs twice on one machine.

use super::*;

/// Faults of a scene.
const FAULTS_ON_EACH: usize = 6;
/// Time until all machines have begun a time, from any moment on.
const EACH_BEGINS_WITHIN: Duration = Duration::from_secs(600);
/// Time until the leader decides times, once the machines have given their schedules back.
const LED_AFTER: Duration = Duration::from_secs(60);

impl Scenario {
    /// Applies the Job, and waits until each machine keeps its schedule.
    async fn keep_on_each(&mut self, seed: u64) -> Keeping {
        let keeping = Keeping {
            job: KeptJob::new(KeptForm::Each),
            requests: Requests::new(&self.world.net, &self.world.monitor),
            random: Random::new(seed ^ 0x6561_6368),
        };
        self.world.net.heal_streams();
        self.pass_in(SLICE, 8 * SECOND).await;
        let end = Instant::now() + BEGINS_WITHIN;
        while self.world.each_kept_since().is_none() && !self.is_over() {
            assert!(Instant::now() < end, "a machine does not keep the schedule");
            if !self.world.has_workload(DUMP) {
                keeping.apply(&self.leader_name());
            }
            self.pass_in(SLICE, SECOND).await;
        }
        keeping
    }

    /// Everything that was asked for has happened, and each machine keeps the schedule.
    async fn keeps_on_each_again(&mut self, keeping: &mut Keeping) {
        let end = Instant::now() + HEALED_WITHIN;
        while !self.is_over() {
            self.pass_in(SLICE, SECOND).await;
            let to = self.leader_name();
            // The same files change nothing.
            if self.world.each_kept_since().is_none() {
                keeping.job.suspended = false;
                keeping.job.one_at_once = false;
                keeping.apply(&to);
            }
            let Some(missing) = self.world.each_missing() else {
                return;
            };
            if Instant::now() >= end {
                let text = format!("{HEALED_WITHIN:?} after all was healed: {missing}");
                self.world.monitor.violated(text);
            }
        }
    }

    /// One fault, and its end. While nothing is asked for, the other machines begin each run.
    async fn fault_on_each(&mut self, keeping: &mut Keeping) {
        let what = keeping.random.below(8);
        let lasts = keeping.random.milliseconds(20_000, 250_000);
        let number = keeping.random.index(self.world.joined().count());
        let name = self.world.machines[number].name.clone();
        let note = format!("fault {what} of {name} for {lasts:?}");
        self.world.monitor.note(&note);
        let each = self.world.each_kept_since().unwrap_or_default();
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
                self.world.store.set_available(false);
                self.repair_after(lasts, Repair::Store);
            }
            4 => {
                self.world.power_off(number);
                self.repair_after(lasts, Repair::PowerOn(number));
            }
            5 => {
                keeping.job.suspended = true;
                keeping.apply(&to);
            }
            6 => keeping.requests.run_by_hand(&to, DUMP),
            _ => {
                keeping.job.version += 1;
                keeping.apply(&to);
            }
        }
        self.pass_in(SLICE, lasts + 5 * SECOND).await;
        if what < 5 {
            for since in each.iter().filter(|one| what < 4 || !one.is_of(&name)) {
                self.world.check_kept(Some(since));
            }
        }
    }

    async fn faults_of_single_machines(&mut self, seed: u64) {
        let mut keeping = self.keep_on_each(seed).await;
        for _ in 0..FAULTS_ON_EACH {
            self.fault_on_each(&mut keeping).await;
            self.keeps_on_each_again(&mut keeping).await;
            if self.is_over() {
                return;
            }
        }
    }

    /// The leader takes the times over right after all machines have begun one.
    async fn the_leader_takes_over(&mut self, seed: u64) {
        let mut keeping = self.keep_on_each(seed).await;
        let Some(each) = self.world.each_kept_since() else {
            return;
        };
        let period = KeptForm::Each.seconds();
        let end = Instant::now() + EACH_BEGINS_WITHIN;
        loop {
            let now = self.world.true_time().as_second();
            let newest = now - now.rem_euclid(period);
            let is_fresh = (10..40).contains(&(now - newest));
            if is_fresh && self.world.have_begun(&each, newest) {
                break;
            }
            if self.is_over() {
                return;
            }
            assert!(Instant::now() < end, "a machine begins no run");
            self.pass_in(SLICE, SECOND).await;
        }
        keeping.job.one_at_once = true;
        keeping.apply(&self.leader_name());
        let end = Instant::now() + BEGINS_WITHIN;
        while !self.world.keepers().is_empty() && !self.is_over() {
            assert!(
                Instant::now() < end,
                "a machine does not give its schedule back"
            );
            self.pass_in(SLICE, SECOND).await;
        }
        self.pass_in(SLICE, LED_AFTER).await;
        self.keeps_on_each_again(&mut keeping).await;
    }
}

fn faults_on_each(seed: u64) -> Outcome {
    play(seed, Without::Nothing, async |scenario| {
        scenario.faults_of_single_machines(seed).await
    })
}

fn taken_over(seed: u64, without: Without) -> Outcome {
    play(seed, without, async |scenario| {
        scenario.the_leader_takes_over(seed).await
    })
}

#[test]
fn a_schedule_that_each_machine_keeps_has_each_run_once_on_each_whatever_fails() {
    for seed in SEEDS {
        holds(faults_on_each(seed));
    }
}

#[test]
fn a_leader_that_takes_the_times_over_repeats_none_of_them() {
    holds(taken_over(SEEDS[0], Without::Nothing));
}

#[test]
fn it_is_found_when_a_leader_forgets_what_machines_have_decided() {
    let outcomes = SEEDS.map(|seed| taken_over(seed, Without::Positions));
    let mut found = outcomes.into_iter().filter_map(|outcome| outcome.violation);
    assert!(found.any(|violation| violation.contains("by a leader")));
}
