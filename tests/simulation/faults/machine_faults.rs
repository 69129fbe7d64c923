//! Faults of single machines: an agent that hangs, an overlay that is dead while the machine's own
//! network is not, users' managers that have ended, and a disk without free space.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    checks::invariants::assigned,
    faults::disabled_safeguards::Without,
    random::Random,
    run::{Repair, SECOND, Scenario},
    world::{THERE, World},
};
use kat_types::{
    reason::Reason,
    store::{keys, records::NodeStatusRecord},
};

/// `WatchdogSec=` of `kat-agent.service`: systemd ends an agent that hangs for longer, and starts
/// it again.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(30);
/// How long a dead overlay may stay without a judgement where nothing else is wrong: the machines
/// agree after 15 s, and the judgement of another machine may have begun just before.
const JUDGED_WITHIN: Duration = Duration::from_secs(120);

/// The machine whose disk fills up in this seed.
pub(crate) fn small_disk(seed: u64) -> Option<usize> {
    let mut random = Random::new(seed ^ 0x6469_736b);
    let machine = random.index(THERE);
    random.chance(20).then_some(machine)
}

/// The steps of a run that concern single machines.
pub(crate) struct MachineSteps {
    random: Random,
    /// One machine's overlay stays dead when everything else is healed.
    overlay_stays: bool,
}

impl MachineSteps {
    /// The steps have a generator of their own, so that the other steps of a seed stay as they are.
    pub(crate) fn of_seed(seed: u64, without: Without) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x006d_6163_6869_6e65);
        let overlay_stays = random.chance(20);
        without.has_machine_faults().then_some(Self {
            random,
            overlay_stays,
        })
    }
}

impl Scenario {
    /// Draws a fault of a machine.
    pub(crate) fn step_of_the_machines(&mut self) {
        let joined = self.world.joined().count();
        let leader = self.world.leader();
        let Some(steps) = &mut self.machines else {
            return;
        };
        let random = &mut steps.random;
        if !random.chance(25) {
            return;
        }
        let any = random.index(joined);
        let number = match leader {
            Some(leader) if random.chance(30) => leader,
            _ => any,
        };
        let what = random.below(100);
        let long = random.milliseconds(500, 50_000);
        let short = random.milliseconds(500, 8_000);
        let pick = random.number();
        let name = self.world.machines[number].name.clone();
        let note = |text: String| self.world.monitor.note(&text);
        match what {
            0..40 => {
                let pause = if what < 20 { short } else { long };
                note(format!("the agent of {name} hangs"));
                self.world.hang(number);
                match pause < WATCHDOG {
                    true => self.repair_after(pause, Repair::Wake(number)),
                    false => self.repair_after(WATCHDOG, Repair::Watchdog(number)),
                }
            }
            40..60 => {
                // More than one dead overlay would take the store's quorum.
                let mut machines = self.world.machines.iter();
                if machines.any(|machine| machine.way.now().store_is_cut()) {
                    return;
                }
                note(format!("the overlay of {name} is dead"));
                self.world.cut_overlay(number, true);
                self.repair_after(long, Repair::Overlay(number));
            }
            60..85 => {
                let Some(boot) = &self.world.machines[number].boot else {
                    return;
                };
                let users: Vec<u32> = boot.lingering().into_iter().collect();
                let Some(count) = u64::try_from(users.len()).ok().filter(|count| *count > 0) else {
                    return;
                };
                let uid = users[usize::try_from(pick % count).unwrap()];
                note(format!("the manager of user {uid} on {name} is killed"));
                self.world.lose_manager(number, uid);
            }
            _ => {
                let mut machines = self.world.machines.iter();
                let Some(number) = machines.position(|machine| machine.disk.is_some()) else {
                    return;
                };
                let name = self.world.machines[number].name.clone();
                note(format!("the disk of {name} is full"));
                self.world.fill_disk(number, true);
                self.repair_after(long, Repair::Disk(number));
            }
        }
    }

    /// Everything is healed but one machine's overlay. Callers are sent to other machines.
    pub(crate) async fn go_on_beside_a_dead_overlay(&mut self) {
        let joined = self.world.joined().count();
        // Reports that are forged take no part in a judgement.
        let forged = self.world.forger.is_some();
        let Some(steps) = &mut self.machines else {
            return;
        };
        let number = steps.random.index(joined);
        if !steps.overlay_stays || forged {
            return;
        }
        let name = self.world.machines[number].name.clone();
        let note = format!("only the overlay of {name} is dead");
        self.world.monitor.note(&note);
        self.world.cut_overlay(number, true);
        self.expect_sent_elsewhere(number).await;
        self.world.cut_overlay(number, false);
    }

    /// Waits until no callers are sent to the machine, whose overlay is dead, where another machine
    /// serves.
    pub(crate) async fn expect_sent_elsewhere(&mut self, number: usize) {
        let name = self.world.machines[number].name.clone();
        let end = Instant::now() + JUDGED_WITHIN;
        while !self.is_over() {
            self.pass_in(SECOND / 5, SECOND).await;
            let Some(ignored) = self.world.sent_to_dead_overlay(&name) else {
                return;
            };
            if Instant::now() >= end {
                let text = format!("the overlay of {name} has been dead for long: {ignored}");
                self.world.monitor.violated(text);
            }
        }
    }
}

impl World {
    /// Why callers are sent to a machine that cannot be reached over the overlay; `None` if they
    /// are not.
    pub(crate) fn sent_to_dead_overlay(&self, name: &str) -> Option<String> {
        let key = keys::node_status(name);
        let status = self.store.peek(&key).items.into_iter().next()?;
        let status: NodeStatusRecord = serde_json::from_slice(&status.value).unwrap();
        let mut conditions = status.conditions.iter();
        if !conditions.any(|one| one.reason == Reason::OverlayDown) {
            return Some("it is not judged".to_owned());
        }
        let assigned = assigned(self);
        let served: Vec<(String, String)> = self
            .store
            .peek(keys::DNS)
            .items
            .into_iter()
            .filter_map(|item| {
                let value = item.key.rsplit('/').next()?;
                let (instance, _) = value.split_once('=')?;
                let mut entries = assigned.values();
                let (node, one) = entries.find(|(_, one)| one.instance == instance)?;
                Some((one.workload.clone(), node.clone()))
            })
            .collect();
        // Nothing of a workload that cannot be written is changed.
        let large = self.large.as_ref();
        let frozen = large.filter(|large| large.is_grown(&self.store));
        let elsewhere = |workload: &str| {
            if frozen.is_some_and(|large| large.workload == workload) {
                return false;
            }
            let mut others = served.iter().filter(|(_, node)| node != name);
            others.any(|(other, _)| other == workload)
        };
        let mut sent = served.iter().filter(|(_, node)| node == name);
        sent.find(|(workload, _)| elsewhere(workload))
            .map(|(workload, _)| format!("callers of {workload} are sent there"))
    }
}
