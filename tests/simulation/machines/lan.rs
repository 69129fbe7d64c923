//! The LAN of the machines, and the part of each machine's `kat-net` that holds virtual addresses.
//!
//! [`AddressHolder`], which decides, is real. The keeper around it is a fake: it follows what the agent
//! wrote last, has a set of addresses instead of a link, and hears the other machines at once. It runs
//! from the boot on, whatever happens to the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use crate::{
    checks::monitor::Monitor,
    faults::network_faults::Way,
    world::{LOST_AFTER, World},
};
use kat_agent::address_grants;
use kat_network::virtual_addresses::{
    holder::{AddressHolder, HolderAction},
    packet::{HeardStatement, StatementKind},
};
use kat_store::MirrorState;
use kat_types::{
    api::VirtualAddressReport,
    machine::fence::{BootClock, BootTime, kill_after},
    resource::OnLeaderLoss,
    store::keys,
    virtual_addresses::{AddressGrants, AddressStateWord},
};

/// Longest time for which two machines may hold an address on one segment that carries their packets,
/// while both run their `kat-net`.
const LONGEST_DOUBLE: Duration = Duration::from_secs(2);
/// Pause between two looks of the agent at what `kat-net` says.
const LOOK: Duration = Duration::from_secs(1);
/// Most rounds of actions at one moment.
const MOST_ROUNDS: usize = 64;

/// A machine's connection to the LAN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LanLink {
    #[default]
    Up,
    /// The link has a carrier, and no packet arrives.
    Apart,
    /// The link has no carrier, as with a cable that is pulled.
    NoCarrier,
}

/// The LAN, on which virtual addresses are announced. It is the network that carries reports and the
/// overlay too: [`machines_cut`](crate::faults::network_faults::Conditions::machines_cut) cuts it.
pub(crate) struct Lan {
    state: Mutex<LanState>,
    changed: Notify,
    monitor: Arc<Monitor>,
}

struct LanState {
    ways: BTreeMap<String, Arc<Way>>,
    machines: BTreeMap<String, KatNet>,
    /// Packets carry the number of the leader's decision.
    has_numbers: bool,
    /// Since when two machines that hear each other hold an address.
    doubled: BTreeMap<(IpAddr, String, String), Instant>,
}

/// A machine's `kat-net` and its link.
#[derive(Default)]
struct KatNet {
    /// The machine's clock; `None` while the machine is off.
    clock: Option<BootClock>,
    /// The process runs.
    runs: bool,
    link: LanLink,
    /// What the agent wrote last. It lies on the disk.
    grants: AddressGrants,
    /// Until when addresses with `onLeaderLoss: release` may be held, as the agent wrote it in this boot.
    release: Option<BootTime>,
    holders: BTreeMap<IpAddr, AddressHolder>,
    /// The addresses on the link.
    present: BTreeSet<IpAddr>,
    /// What the process said last in this boot.
    said: BTreeMap<IpAddr, AddressStateWord>,
}

impl KatNet {
    fn now(&self) -> Option<BootTime> {
        self.clock.as_ref().map(|clock| clock())
    }

    /// The process works.
    fn works(&self) -> bool {
        self.runs && self.clock.is_some()
    }

    /// Follows what the agent wrote, as `AddressKeeper::follow` does.
    fn follow(&mut self) {
        let Some(now) = self.now().filter(|_| self.runs) else {
            return;
        };
        let is_new = self.holders.is_empty();
        let grants = &self.grants.addresses;
        self.holders
            .retain(|address, _| grants.contains_key(address));
        for (address, grant) in grants {
            let holder = self.holders.entry(*address).or_default();
            if is_new && grant.number.is_some() && self.present.contains(address) {
                holder.adopt(now);
            }
            let is_released = grant.on_leader_loss == OnLeaderLoss::Release;
            let until = is_released.then(|| self.release.unwrap_or_default());
            holder.set(grant.number, until, true);
        }
        let holders = &self.holders;
        self.present
            .retain(|address| holders.get(address).is_some_and(AddressHolder::is_held));
    }

    /// What is due for one address now.
    fn due(&mut self) -> Option<(IpAddr, Vec<HolderAction>)> {
        let now = self.now().filter(|_| self.runs)?;
        self.holders.iter_mut().find_map(|(address, holder)| {
            holder.next().filter(|next| *next <= now)?;
            Some((*address, holder.advance(now)))
        })
    }

    /// How long nothing is due.
    fn idle_for(&self) -> Option<Duration> {
        let now = self.now().filter(|_| self.runs)?;
        let next = self
            .holders
            .values()
            .filter_map(AddressHolder::next)
            .min()?;
        Some(next.since(now).max(Duration::from_millis(1)))
    }

    fn say(&mut self) {
        if !self.works() {
            return;
        }
        let has_carrier = self.link != LanLink::NoCarrier;
        let words = self.holders.iter().map(|(address, holder)| {
            let word = match has_carrier {
                true => holder.word(),
                false => AddressStateWord::NoCarrier,
            };
            (*address, word)
        });
        self.said = words.collect();
    }
}

impl LanState {
    /// Packets of one machine arrive at the other.
    fn carries(&self, one: &str, other: &str) -> bool {
        [one, other].into_iter().all(|name| {
            let machine = &self.machines[name];
            let is_linked = machine.link == LanLink::Up && machine.clock.is_some();
            is_linked && !self.ways[name].now().machines_cut
        })
    }

    /// Does everything that is due.
    fn act(&mut self) {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for _ in 0..MOST_ROUNDS {
            let mut has_acted = false;
            for name in &names {
                let machine = self.machines.get_mut(name);
                if let Some((address, actions)) = machine.and_then(KatNet::due) {
                    self.do_all(name, address, &actions);
                    has_acted = true;
                }
            }
            if !has_acted {
                break;
            }
        }
        self.machines.values_mut().for_each(KatNet::say);
    }

    fn do_all(&mut self, name: &str, address: IpAddr, actions: &[HolderAction]) {
        for action in actions {
            let machine = self.machines.get_mut(name).unwrap();
            match action {
                HolderAction::Add => {
                    machine.present.insert(address);
                }
                HolderAction::Remove => {
                    machine.present.remove(&address);
                }
                HolderAction::Ask => self.send(name, address, StatementKind::Asks),
                HolderAction::Announce => self.send(name, address, StatementKind::Has),
            }
        }
    }

    /// Sends a packet to all others. The kernel of a machine with the address answers a question.
    fn send(&mut self, from: &str, address: IpAddr, kind: StatementKind) {
        let holder = self.machines[from].holders.get(&address);
        let claim = holder.map(AddressHolder::claim);
        let claim = claim.filter(|_| self.has_numbers);
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for to in names.iter().map(String::as_str).filter(|to| *to != from) {
            if !self.carries(from, to) {
                continue;
            }
            let has_it = self.machines[to].present.contains(&address);
            self.hear((to, from), address, (kind, claim));
            if has_it && kind == StatementKind::Asks {
                self.hear((from, to), address, (StatementKind::Has, None));
            }
        }
    }

    fn hear(
        &mut self,
        (at, from): (&str, &str),
        address: IpAddr,
        (kind, claim): (StatementKind, Option<u64>),
    ) {
        let number = self.machines.keys().position(|name| name == from).unwrap();
        let machine = self.machines.get_mut(at).unwrap();
        let Some(now) = machine.now().filter(|_| machine.runs) else {
            return;
        };
        let Some(holder) = machine.holders.get_mut(&address) else {
            return;
        };
        let statement = HeardStatement {
            address,
            kind,
            mac: [2, 0, 0, 0, 0, u8::try_from(number).unwrap()],
            claim,
        };
        let actions = holder.hear(&statement, now);
        self.do_all(at, address, &actions);
    }

    /// The machines with an address on their link.
    fn holders(&self, address: IpAddr) -> impl Iterator<Item = (&String, &KatNet)> {
        let machines = self.machines.iter();
        machines.filter(move |(_, machine)| machine.present.contains(&address))
    }

    /// Two machines that have held an address on one segment for too long.
    fn doubled_for_long(&mut self) -> Option<String> {
        let now = Instant::now();
        let all = self.machines.values().flat_map(|one| &one.present);
        let addresses: BTreeSet<IpAddr> = all.copied().collect();
        let mut doubled = BTreeMap::new();
        for address in addresses {
            let holders = self.holders(address).filter(|(_, one)| one.works());
            let holders: Vec<&String> = holders.map(|(name, _)| name).collect();
            for (position, one) in holders.iter().enumerate() {
                for other in &holders[position + 1..] {
                    if self.carries(one, other) {
                        let pair = (address, (*one).clone(), (*other).clone());
                        let since = self.doubled.get(&pair).copied().unwrap_or(now);
                        doubled.insert(pair, since);
                    }
                }
            }
        }
        self.doubled = doubled;
        let mut pairs = self.doubled.iter();
        pairs.find_map(|((address, one, other), since)| {
            let lasts = now.duration_since(*since);
            (lasts > LONGEST_DOUBLE).then(|| {
                format!(
                    "{one} and {other} have {address} on one LAN, and both hold it for {lasts:?}"
                )
            })
        })
    }
}

impl Lan {
    /// A LAN of the machines that have these ways. All are off.
    pub(crate) fn start(
        ways: BTreeMap<String, Arc<Way>>,
        has_numbers: bool,
        monitor: &Arc<Monitor>,
    ) -> Arc<Self> {
        let machines = ways.keys();
        let machines = machines.map(|name| (name.clone(), KatNet::default()));
        let state = LanState {
            machines: machines.collect(),
            ways,
            has_numbers,
            doubled: BTreeMap::new(),
        };
        let lan = Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            monitor: Arc::clone(monitor),
        });
        tokio::spawn(Arc::clone(&lan).run());
        lan
    }

    /// Does what is due at its time.
    async fn run(self: Arc<Self>) {
        loop {
            self.look();
            let idle = {
                let state = self.state.lock();
                state.machines.values().filter_map(KatNet::idle_for).min()
            };
            let due = async {
                match idle {
                    Some(idle) => sleep(idle).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = due => {}
            }
        }
    }

    /// Does what is due, and checks that no two machines hold an address for too long.
    pub(crate) fn look(&self) {
        let mut state = self.state.lock();
        state.act();
        let wrong = state.doubled_for_long();
        drop(state);
        if let Some(wrong) = wrong {
            self.monitor.violated(wrong);
        }
    }

    fn change(&self, machine: &str, change: impl FnOnce(&mut KatNet)) {
        {
            let mut state = self.state.lock();
            let machine = state.machines.get_mut(machine).unwrap();
            change(machine);
            machine.follow();
        }
        self.look();
        self.changed.notify_one();
    }

    /// The machine boots. Its `kat-net` reads what the agent wrote before.
    pub(crate) fn power_on(&self, machine: &str, clock: BootClock) {
        self.change(machine, |machine| {
            *machine = KatNet {
                clock: Some(clock),
                runs: true,
                link: machine.link,
                grants: std::mem::take(&mut machine.grants),
                ..KatNet::default()
            };
        });
    }

    pub(crate) fn power_off(&self, machine: &str) {
        self.change(machine, |machine| {
            machine.clock = None;
            machine.runs = false;
            machine.present.clear();
        });
    }

    pub(crate) fn set_link(&self, machine: &str, link: LanLink) {
        self.change(machine, |machine| machine.link = link);
    }

    /// The process ends, and leaves the addresses where they are.
    pub(crate) fn stop_kat_net(&self, machine: &str) {
        self.change(machine, |machine| {
            machine.runs = false;
            machine.holders.clear();
        });
    }

    pub(crate) fn start_kat_net(&self, machine: &str) {
        self.change(machine, |machine| machine.runs = true);
    }

    /// The agent writes which addresses the machine is to hold.
    pub(crate) fn write_grants(&self, machine: &str, grants: AddressGrants) {
        self.change(machine, |machine| machine.grants = grants);
    }

    /// The agent writes until when addresses with `onLeaderLoss: release` may be held.
    pub(crate) fn write_release(&self, machine: &str, until: BootTime) {
        let is_same = self.state.lock().machines[machine].release == Some(until);
        if !is_same {
            self.change(machine, |machine| machine.release = Some(until));
        }
    }

    /// The machines with an address on their link.
    pub(crate) fn holders(&self, address: IpAddr) -> Vec<String> {
        let state = self.state.lock();
        state
            .holders(address)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Every virtual address on a link, each with its machine.
    pub(crate) fn all_held(&self) -> Vec<(String, IpAddr)> {
        let state = self.state.lock();
        let machines = state.machines.iter();
        let held = machines.flat_map(|(name, machine)| {
            let present = machine.present.iter();
            present.map(move |address| (name.clone(), *address))
        });
        held.collect()
    }

    /// The machines whose running `kat-net` holds an address with `onLeaderLoss: release`, each with it.
    pub(crate) fn released_on_loss(&self) -> Vec<(String, IpAddr)> {
        let state = self.state.lock();
        let machines = state.machines.iter().filter(|(_, one)| one.works());
        let held = machines.flat_map(|(name, machine)| {
            let held = machine.present.iter().filter(move |address| {
                let grant = machine.grants.addresses.get(*address);
                grant.is_some_and(|grant| grant.on_leader_loss == OnLeaderLoss::Release)
            });
            held.map(move |address| (name.clone(), *address))
        });
        held.collect()
    }

    /// What the agent reads of the machine's `kat-net`.
    pub(crate) fn reports(&self, machine: &str) -> Vec<VirtualAddressReport> {
        let state = self.state.lock();
        let said = state.machines[machine].said.iter();
        let reports = said.map(|(address, word)| VirtualAddressReport {
            address: *address,
            state: *word,
            interface: "eth0".to_owned(),
            message: String::new(),
        });
        reports.collect()
    }

    /// Waits until the machine's `kat-net` says something else than at this call.
    pub(crate) fn state_change(self: Arc<Self>, machine: &str) -> impl Future<Output = ()> + use<> {
        let (machine, before) = (machine.to_owned(), self.reports(machine));
        async move {
            loop {
                sleep(LOOK).await;
                if self.reports(&machine) != before {
                    return;
                }
            }
        }
    }
}

/// What the agent of a machine wrote for `kat-net`.
#[derive(Default)]
pub(crate) struct WrittenGrants {
    /// Number of the process of `kat-agent`.
    process: u32,
    /// The copy that the process wrote last.
    copy: Option<Arc<MirrorState>>,
}

impl World {
    /// The agents write for `kat-net` what their copies say of virtual addresses. The loops of the product
    /// write to folders of the machine itself; what they write is real.
    pub(crate) fn write_address_grants(&mut self) {
        let Some(addresses) = &mut self.addresses else {
            return;
        };
        let timeout = Duration::from_secs(LOST_AFTER.into());
        for machine in self.machines.iter().filter(|machine| machine.joined) {
            let now = machine.way.now();
            let Some(process) = machine.process.as_ref().filter(|_| !now.hung) else {
                continue;
            };
            let name = &machine.name;
            if let Some(reached) = process.reached() {
                let until = reached.after(kill_after(timeout));
                addresses.lan.write_release(name, until);
            }
            let written = addresses.written.entry(name.clone()).or_default();
            if written.process != machine.processes {
                *written = WrittenGrants {
                    process: machine.processes,
                    copy: None,
                };
            }
            let copy = process.copy();
            let before = written.copy.as_ref();
            let is_same =
                before.is_some_and(|before| copy.same_below(before, keys::VIRTUAL_ADDRESSES));
            // A file that a full disk does not take is written later.
            if !copy.confirmed || is_same || now.disk_full {
                continue;
            }
            let grants = address_grants(&copy.entries, name);
            addresses.lan.write_grants(name, grants);
            written.copy = Some(copy);
        }
    }
}
