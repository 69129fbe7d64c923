//! The faults and requests of a run, drawn from the seed.

use crate::{
    faults::unwritable_workload::Step,
    load::{
        secrets::USER,
        user::{WRITER, Wish, writes},
    },
    run::{Repair, Scenario, WORKLOADS},
};

impl Scenario {
    /// A random machine; with a higher probability the leader.
    fn target(&mut self) -> usize {
        let any = self.world.random.index(self.world.joined().count());
        match self.world.leader() {
            Some(leader) if self.world.random.chance(40) => leader,
            _ => any,
        }
    }

    pub(crate) async fn step(&mut self) {
        let number = self.target();
        let name = self.world.machines[number].name.clone();
        let what = self.world.random.below(115);
        self.world.monitor.note(&format!("step {what} at {name}"));
        match what {
            0..21 => self.wish(),
            21..24 => self.pause(),
            24..26 => self.join(),
            26..30 => self.drain(number),
            30..40 => {
                self.world.kill(number);
                self.later(100, 20_000, Repair::Start(number));
            }
            40..46 => {
                self.world.power_off(number);
                self.later(1_000, 40_000, Repair::PowerOn(number));
            }
            46..60 => {
                let (store, machines) = match what {
                    46..52 => (true, false),
                    52..56 => (false, true),
                    _ => (true, true),
                };
                self.world.change_way(number, |way| {
                    way.store_cut |= store;
                    way.machines_cut |= machines;
                });
                self.later(200, 25_000, Repair::Way(number));
            }
            60..70 => {
                // The leader is cut off from the store while it has work to do.
                if let Some(leader) = self.world.leader() {
                    self.world.change_way(leader, |way| way.store_cut = true);
                    self.later(500, 20_000, Repair::Way(leader));
                }
                self.wish();
            }
            70..74 => {
                self.world.store.set_available(false);
                self.later(100, 15_000, Repair::Store);
            }
            74..82 => {
                let latency = self.world.random.milliseconds(50, 1_200);
                self.world.change_way(number, |way| way.latency = latency);
                self.later(1_000, 20_000, Repair::Way(number));
            }
            82..86 => {
                let count = 1 + u32::try_from(self.world.random.below(3)).unwrap();
                self.world
                    .change_way(number, |way| way.lost_answers = count);
            }
            86..90 => {
                if let Some(process) = &self.world.machines[number].process {
                    process.drop_watches();
                }
            }
            90..92 => {
                let _ = self.world.store.compact(self.world.store.revision());
            }
            92..96 => {
                self.world.stop(number);
                self.later(100, 3_000, Repair::Start(number));
            }
            96..98 => self.world.etcd.lose_data(&name),
            100.. => self.move_data(),
            _ => {
                let live: Vec<String> = self.world.live().into_keys().collect();
                if !live.is_empty() {
                    let unit = live[self.world.random.index(live.len())].clone();
                    for machine in &self.world.machines {
                        if let Some(boot) = &machine.boot {
                            boot.program_fails(&unit).await;
                        }
                    }
                }
            }
        }
    }

    /// Applies or deletes a random workload.
    fn wish(&mut self) {
        let workload = WORKLOADS[self.world.random.index(WORKLOADS.len())];
        let wish = if self.world.random.chance(15) {
            Wish::Absent
        } else {
            // Sometimes the same content is applied again.
            self.version += u64::from(self.world.random.chance(70));
            // At most two replicas with data: an instance that has to stay with its data cannot
            // move away from a full machine.
            let most = if writes(workload) { 3 } else { 4 };
            Wish::Present {
                version: self.version,
                replicas: u32::try_from(self.world.random.below(most)).unwrap(),
            }
        };
        let any = self.world.random.index(3);
        let asked = self.world.leader().unwrap_or(any);
        let to = self.world.machines[asked].name.clone();
        self.world.person.wish(&to, workload, wish);
        // This choice draws no random number, so that existing seeds still run as before.
        if workload == USER && (self.version.is_multiple_of(2) || !self.world.secrets.is_set()) {
            let value = format!("value {}", self.version);
            self.world.secrets.set(&to, &value);
        }
    }

    /// Applies, grows or deletes the workload that grows.
    pub(crate) fn step_of_the_large(&mut self) {
        let Some(large) = &mut self.world.large else {
            return;
        };
        let Some(step) = large.step(&self.world.store) else {
            return;
        };
        let workload = large.workload;
        self.world.monitor.note(&format!("{workload}: {step:?}"));
        let wish = match step {
            Step::Apply { version, replicas } => Wish::Present { version, replicas },
            Step::Delete => Wish::Absent,
            Step::Grow => {
                large.grow(&self.world.store);
                return;
            }
        };
        let asked = self.world.leader().unwrap_or_default();
        let to = self.world.machines[asked].name.clone();
        self.world.person.wish(&to, workload, wish);
    }

    /// Pauses or resumes the rollouts of a random workload.
    fn pause(&mut self) {
        let workload = WORKLOADS[self.world.random.index(WORKLOADS.len())];
        let paused = self.world.random.chance(60);
        let any = self.world.random.index(3);
        let asked = self.world.leader().unwrap_or(any);
        let to = self.world.machines[asked].name.clone();
        self.world.person.pause(&to, workload, paused);
    }

    /// Sends the join request of another machine, possibly again.
    pub(crate) fn join(&mut self) {
        let any = self.world.random.index(3);
        let asked = self.world.leader().unwrap_or(any);
        let to = self.world.machines[asked].name.clone();
        self.world.person.join(&to);
    }

    /// Drains a machine, or ends the drain of another. One machine at a time, so that there is room
    /// for its instances.
    fn drain(&mut self, number: usize) {
        let drains = self.world.person.drains();
        let mut others = drains
            .iter()
            .filter(|(_, drain)| drain.promised || drain.unsure);
        let (machine, empty) = match others.next() {
            Some((machine, _)) => (machine.clone(), false),
            None => (self.world.machines[number].name.clone(), true),
        };
        let any = self.world.random.index(3);
        let asked = self.world.leader().unwrap_or(any);
        let to = self.world.machines[asked].name.clone();
        self.world.person.drain(&to, &machine, empty);
    }

    /// Moves a random volume to a random machine, or cancels its move.
    fn move_data(&mut self) {
        let volumes = self.world.volumes();
        let asked = self.world.random.index(3);
        let asked = self.world.leader().unwrap_or(asked);
        let asked = self.world.machines[asked].name.clone();
        if volumes.is_empty() {
            // The first volume is created by applying a workload that has one.
            self.version += 1;
            let wish = Wish::Present {
                version: self.version,
                replicas: 2,
            };
            self.world.person.wish(&asked, WRITER, wish);
            return;
        }
        let any = self.world.random.index(volumes.len());
        let there = self.world.joined().count();
        let to = self.world.random.index(there);
        let to = self.world.machines[to].name.clone();
        let goes = self.world.random.chance(75);
        let (volume, _) = &volumes[any];
        let mover = &self.world.mover;
        mover.ask(&asked, volume, goes.then_some(to.as_str()));
    }
}
