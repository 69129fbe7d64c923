//! Takes, announces and gives up this machine's virtual addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use parking_lot::RwLock;
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    holder::{AddressHolder, HolderAction, LEASE, WaitingCause},
    may_be_held,
    packet::{HeardStatement, Mac, StatementKind, mac_text},
    sockets::{ArpSocket, HeardOnLink, NeighbourSocket, WatchedAddresses, say},
};
use crate::{
    links::{LinkAddress, LinkError, LinkState, Links, changed_addresses},
    run_file,
    state_files::{self, StateFilesSnapshot},
};
use kat_daemon::watchdog::LoopPulse;
use kat_types::{
    machine::fence::{BootClock, BootTime},
    resource::OnLeaderLoss,
    virtual_addresses::{
        AUTO_INTERFACE, AddressGrant, AddressGrants, AddressState, AddressStateWord, AddressStates,
        ReleaseDeadline,
    },
};

/// Longest pause between two looks at the machine's links and addresses.
const LOOKING: Duration = Duration::from_secs(5);
/// Least pause between two looks, however often something changes.
const SETTLING: Duration = Duration::from_millis(200);
/// Statements that wait; further ones are dropped.
const MOST_WAITING: usize = 256;
/// Most that is done for one address at once.
const MOST_STEPS: usize = 8;

/// What the keeper reads and writes.
pub struct AddressKeeperConfig {
    /// What the agent writes.
    pub files: watch::Receiver<Arc<StateFilesSnapshot>>,
    pub links: Links,
    /// File with [`AddressStates`]; also what an earlier process of `kat-net` held.
    pub report: PathBuf,
    /// File with the [`ReleaseDeadline`].
    pub release: PathBuf,
    pub clock: BootClock,
}

/// Holds the machine's virtual addresses.
pub struct AddressKeeper {
    config: AddressKeeperConfig,
    kept: BTreeMap<IpAddr, KeptAddress>,
    /// The machine as it was last seen.
    machine: SeenMachine,
    arp: BTreeMap<u32, ArpSocket>,
    neighbours: Option<NeighbourSocket>,
    watched: WatchedAddresses,
    heard: mpsc::Sender<HeardOnLink>,
    /// Addresses without a mark that are KAT's, on kernels that keep no mark.
    added: BTreeSet<IpAddr>,
    reported: Option<AddressStates>,
}

#[derive(Default)]
struct KeptAddress {
    holder: AddressHolder,
    link: Option<LinkState>,
    /// Since when no link fits, while the last one is still there.
    unfit_since: Option<BootTime>,
    /// The machine has the address without KAT.
    is_foreign: bool,
    /// What the kernel last refused.
    refusal: String,
}

#[derive(Default)]
struct SeenMachine {
    links: Vec<LinkState>,
    addresses: Vec<LinkAddress>,
    when: BootTime,
}

impl AddressKeeper {
    /// Keeps the addresses of `config`.
    pub fn new(config: AddressKeeperConfig) -> (Self, mpsc::Receiver<HeardOnLink>) {
        let (heard, statements) = mpsc::channel(MOST_WAITING);
        let states = state_files::read::<AddressStates>(&config.report);
        let states = states.map(|states| states.addresses).unwrap_or_default();
        let held = states
            .into_iter()
            .filter(|(_, state)| may_be_held(state.word));
        let keeper = Self {
            config,
            kept: BTreeMap::new(),
            machine: SeenMachine::default(),
            arp: BTreeMap::new(),
            neighbours: None,
            watched: Arc::new(RwLock::default()),
            heard,
            added: held.map(|(address, _)| address).collect(),
            reported: None,
        };
        (keeper, statements)
    }

    /// Runs until `cancel`, which leaves the addresses where they are.
    pub async fn run(
        mut self,
        mut statements: mpsc::Receiver<HeardOnLink>,
        pulse: LoopPulse,
        cancel: CancellationToken,
    ) {
        let mut files = self.config.files.clone();
        let mut moved = Box::pin(changed_addresses());
        let mut look_at = BootTime(0);
        loop {
            pulse.beat();
            let grants = files.borrow_and_update().virtual_addresses.clone();
            let mut wait = LOOKING;
            if let Some(grants) = grants.filter(|grants| self.concerns(grants)) {
                if (self.config.clock)() >= look_at {
                    if let Err(error) = self.look().await {
                        tracing::warn!("this machine's addresses are not known: {error}");
                    }
                    look_at = (self.config.clock)().after(LOOKING);
                }
                // What an earlier process left on a link is only known after a look.
                if self.machine.when != BootTime(0) {
                    self.follow(&grants).await;
                    self.act().await;
                    self.report();
                }
                let now = (self.config.clock)();
                let next = self.kept.values().filter_map(|one| one.holder.next());
                let next = next.chain([look_at]).min().unwrap_or(look_at);
                wait = next.since(now).max(Duration::from_millis(1));
            }
            let next = async {
                tokio::select! {
                    () = cancel.cancelled() => false,
                    changed = files.changed() => changed.is_ok(),
                    () = sleep(wait) => true,
                    Some((link, statement)) = statements.recv() => {
                        self.hear(link, &statement).await;
                        true
                    }
                    () = &mut moved => {
                        moved = Box::pin(changed_addresses());
                        look_at = look_at.min(self.machine.when.after(SETTLING));
                        true
                    }
                }
            };
            if !pulse.wait(next).await {
                return;
            }
        }
    }

    /// Whether there is anything to keep or to remove.
    fn concerns(&self, grants: &AddressGrants) -> bool {
        !grants.addresses.is_empty() || !self.kept.is_empty() || !self.added.is_empty()
    }

    /// Reads the machine's links and addresses.
    async fn look(&mut self) -> Result<(), LinkError> {
        let links = &self.config.links;
        self.machine = SeenMachine {
            links: links.all().await?,
            addresses: links.link_addresses().await?,
            when: (self.config.clock)(),
        };
        Ok(())
    }

    /// Follows what the agent wrote and what the machine looks like.
    async fn follow(&mut self, grants: &AddressGrants) {
        let now = (self.config.clock)();
        let is_new = self.kept.is_empty();
        let release = grants
            .addresses
            .values()
            .any(|grant| grant.on_leader_loss == OnLeaderLoss::Release && grant.number.is_some());
        let release = release.then(|| {
            let read = state_files::read::<ReleaseDeadline>(&self.config.release);
            read.map_or(BootTime(0), |deadline| deadline.until)
        });
        let gone: Vec<IpAddr> = (self.kept.keys().copied())
            .filter(|address| !grants.addresses.contains_key(address))
            .collect();
        for address in gone {
            self.kept.remove(&address);
        }
        *self.watched.write() = grants.addresses.keys().copied().collect();
        for (address, grant) in &grants.addresses {
            let present = self.present(*address);
            let found = self.machine.link_for(*address, grant, &grants.addresses);
            let is_added = self.added.contains(address);
            let kept = self.kept.entry(*address).or_default();
            let mut same = self.machine.addresses.iter();
            kept.is_foreign = same.any(|one| {
                let is_own = one.marked || (is_added && one.is_whole());
                one.address == *address && !is_own
            });
            let link = kept.fitting_link(found, &self.machine.links, now);
            let is_other =
                link.as_ref().map(|link| link.index) != kept.link.as_ref().map(|link| link.index);
            if is_other {
                // What is on the other link is removed below.
                kept.holder = AddressHolder::default();
            }
            kept.link = link;
            let on_link = present.is_some_and(|present| {
                kept.link
                    .as_ref()
                    .is_some_and(|link| link.index == present.link)
            });
            if is_new && on_link && !kept.is_foreign && grant.number.is_some() {
                kept.holder.adopt(now);
            }
            let until = release.filter(|_| grant.on_leader_loss == OnLeaderLoss::Release);
            let linked = kept.link.is_some() && !kept.is_foreign;
            kept.holder.set(grant.number, until, linked);
        }
        self.open_sockets();
        self.remove_left().await;
        self.add_missing().await;
    }

    fn present(&self, address: IpAddr) -> Option<LinkAddress> {
        let mut addresses = self.machine.addresses.iter();
        addresses.find(|one| one.address == address).copied()
    }

    /// Removes addresses of KAT's that are not held, or are on another link.
    async fn remove_left(&mut self) {
        let left: Vec<LinkAddress> = (self.machine.addresses.iter())
            .filter(|one| one.marked || (one.is_whole() && self.added.contains(&one.address)))
            .filter(|one| {
                let kept = self.kept.get(&one.address);
                !kept.is_some_and(|kept| {
                    let link = kept.link.as_ref();
                    // A holder that gives its address up does so itself.
                    kept.holder.is_held() && link.is_some_and(|link| link.index == one.link)
                })
            })
            .copied()
            .collect();
        for one in left {
            match self
                .config
                .links
                .remove_address(one.link, one.address)
                .await
            {
                Err(error) => tracing::warn!("{error}"),
                Ok(()) => {
                    tracing::info!(address = %one.address, "gave up a virtual address");
                    self.machine.addresses.retain(|other| *other != one);
                }
            }
        }
        let present: BTreeSet<IpAddr> = self
            .machine
            .addresses
            .iter()
            .map(|one| one.address)
            .collect();
        let (kept, added) = (&self.kept, &mut self.added);
        added.retain(|address| {
            let held = kept.get(address).is_some_and(|kept| kept.holder.is_held());
            held || present.contains(address)
        });
    }

    /// Adds held addresses again that somebody has removed.
    async fn add_missing(&mut self) {
        let missing: Vec<IpAddr> = (self.kept.iter())
            .filter(|(address, kept)| kept.holder.is_held() && self.present(**address).is_none())
            .map(|(address, _)| *address)
            .collect();
        for address in missing {
            tracing::warn!(%address, "a virtual address was removed from its link; adding it again");
            self.act_on(address, &[HolderAction::Add, HolderAction::Announce])
                .await;
        }
    }

    /// Opens the sockets that the granted addresses need, and closes the others.
    fn open_sockets(&mut self) {
        let granted = || {
            self.kept
                .iter()
                .filter(|(_, kept)| kept.holder.claim() != 0)
        };
        let links: BTreeMap<u32, String> = granted()
            .filter(|(address, _)| address.is_ipv4())
            .filter_map(|(_, kept)| kept.link.as_ref())
            .map(|link| (link.index, link.name.clone()))
            .collect();
        let six = granted().any(|(address, _)| address.is_ipv6());
        self.arp.retain(|index, _| links.contains_key(index));
        for (index, name) in links {
            if self.arp.contains_key(&index) {
                continue;
            }
            match ArpSocket::open(&name, index, &self.watched, &self.heard) {
                Ok(socket) => drop(self.arp.insert(index, socket)),
                Err(error) => tracing::warn!("ARP on {name} is neither heard nor sent: {error}"),
            }
        }
        if !six {
            self.neighbours = None;
        } else if self.neighbours.is_none() {
            match NeighbourSocket::open(&self.watched, &self.heard) {
                Ok(socket) => self.neighbours = Some(socket),
                Err(error) => {
                    tracing::warn!("neighbour discovery is neither heard nor sent: {error}");
                }
            }
        }
    }

    /// Does what is due.
    async fn act(&mut self) {
        let addresses: Vec<IpAddr> = self.kept.keys().copied().collect();
        for address in addresses {
            for _ in 0..MOST_STEPS {
                let now = (self.config.clock)();
                let Some(kept) = self.kept.get_mut(&address) else {
                    break;
                };
                if kept.holder.next().is_none_or(|next| next > now) {
                    break;
                }
                let actions = kept.holder.advance(now);
                self.act_on(address, &actions).await;
            }
        }
    }

    async fn hear(&mut self, link: u32, statement: &HeardStatement) {
        // The loopback link has zeros, as a statement without a hardware address.
        let is_own = |link: &LinkState| has_mac(link) && link.mac == Some(statement.mac);
        if self.machine.links.iter().any(is_own) {
            return;
        }
        let address = statement.address;
        let now = (self.config.clock)();
        let Some(kept) = self.kept.get_mut(&address) else {
            return;
        };
        if kept.link.as_ref().is_none_or(|own| own.index != link) {
            return;
        }
        let before = kept.holder.word();
        let actions = kept.holder.hear(statement, now);
        let after = kept.holder.word();
        if before != after {
            let from = mac_text(statement.mac);
            tracing::warn!(%address, claim = ?statement.claim, "{from} has or asks for a virtual address: {after:?}");
        }
        self.act_on(address, &actions).await;
    }

    async fn act_on(&mut self, address: IpAddr, actions: &[HolderAction]) {
        for action in actions {
            let Some((link, claim)) = self.link_and_claim(address) else {
                return;
            };
            let own = link.mac.unwrap_or_default();
            match action {
                HolderAction::Ask => {
                    let is_asked =
                        self.say((address, StatementKind::Asks), (link.index, own), claim);
                    if let Some(kept) = self.kept.get_mut(&address).filter(|_| !is_asked) {
                        kept.holder.unasked();
                    }
                }
                HolderAction::Announce => {
                    self.say((address, StatementKind::Has), (link.index, own), claim);
                }
                HolderAction::Add => {
                    // Nobody may take it for an address of this machine alone.
                    self.added.insert(address);
                    self.report();
                    let added = self
                        .config
                        .links
                        .add_marked_address(link.index, address)
                        .await;
                    let Some(kept) = self.kept.get_mut(&address) else {
                        return;
                    };
                    match added {
                        Ok(()) => {
                            kept.refusal.clear();
                            tracing::info!(%address, link = link.name, number = claim, "holds a virtual address");
                            self.machine.addresses.push(LinkAddress {
                                link: link.index,
                                address,
                                prefix: if address.is_ipv4() { 32 } else { 128 },
                                marked: true,
                            });
                        }
                        Err(error) => {
                            kept.refusal = error.to_string();
                            kept.holder.refuse((self.config.clock)());
                            tracing::warn!(%address, "a virtual address is not held: {error}");
                            return;
                        }
                    }
                }
                HolderAction::Remove => {
                    match self.config.links.remove_address(link.index, address).await {
                        Ok(()) => {
                            tracing::info!(%address, link = link.name, "gave up a virtual address");
                            self.machine.addresses.retain(|one| one.address != address);
                        }
                        // The next look finds it.
                        Err(error) => tracing::warn!(%address, "{error}"),
                    }
                }
            }
        }
    }

    fn link_and_claim(&self, address: IpAddr) -> Option<(LinkState, u64)> {
        let kept = self.kept.get(&address)?;
        Some((kept.link.clone()?, kept.holder.claim()))
    }

    /// Says something of an address on the LAN; returns whether it was sent.
    fn say(&self, what: (IpAddr, StatementKind), (link, own): (u32, Mac), claim: u64) -> bool {
        let sockets = (self.arp.get(&link), self.neighbours.as_ref());
        match say(sockets, what, (link, own), claim) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(address = %what.0, "nothing was said on the LAN: {error}");
                false
            }
        }
    }

    /// Writes the states, where they changed.
    fn report(&mut self) {
        let states = AddressStates {
            schema: 1,
            addresses: (self.kept.iter())
                .map(|(address, kept)| (*address, kept.state()))
                .collect(),
        };
        if self.reported.as_ref() == Some(&states) {
            return;
        }
        match run_file::write(&self.config.report, &states) {
            Ok(()) => self.reported = Some(states),
            Err(error) => tracing::warn!("{}: {error}", self.config.report.display()),
        }
    }
}

impl SeenMachine {
    /// The link that an address belongs on, or why there is none.
    fn link_for(
        &self,
        address: IpAddr,
        grant: &AddressGrant,
        shared: &BTreeMap<IpAddr, AddressGrant>,
    ) -> Option<LinkState> {
        let is_usable = |link: &&LinkState| has_mac(link) && !link.name.starts_with("kat");
        let mut links = self.links.iter().filter(is_usable);
        if grant.interface != AUTO_INTERFACE {
            return links.find(|link| link.name == grant.interface).cloned();
        }
        let network = IpNet::new(address, grant.prefix).ok()?;
        let holds = |link: &LinkState| {
            self.addresses.iter().any(|one| {
                one.link == link.index
                    && network.contains(&one.address)
                    && !shared.contains_key(&one.address)
            })
        };
        links.find(|link| holds(link)).cloned()
    }
}

/// Whether a link is an Ethernet with a hardware address of its own; the loopback link has zeros.
fn has_mac(link: &LinkState) -> bool {
    link.mac.is_some_and(|mac| mac != Mac::default())
}

impl KeptAddress {
    /// The link that fits. A link stays for [`LEASE`] that fits no more and is still there: its addresses
    /// are removed for a moment when the machine's network is set up anew.
    fn fitting_link(
        &mut self,
        found: Option<LinkState>,
        links: &[LinkState],
        now: BootTime,
    ) -> Option<LinkState> {
        if found.is_some() {
            self.unfit_since = None;
            return found;
        }
        let last = self.link.as_ref()?;
        let present = links.iter().find(|link| link.index == last.index)?;
        let since = *self.unfit_since.get_or_insert(now);
        (now.since(since) < LEASE).then(|| present.clone())
    }

    fn state(&self) -> AddressState {
        let say = |word, message: String| AddressState {
            word,
            interface: self
                .link
                .as_ref()
                .map(|link| link.name.clone())
                .unwrap_or_default(),
            message,
        };
        if self.is_foreign {
            let message =
                "this machine has the address without KAT; remove it from its own network settings";
            return say(AddressStateWord::Taken, message.to_owned());
        }
        let Some(link) = &self.link else {
            let message = "no interface of this machine has an address of its network";
            return say(AddressStateWord::NoInterface, message.to_owned());
        };
        if !link.running {
            return say(
                AddressStateWord::NoCarrier,
                format!("{} has no carrier", link.name),
            );
        }
        let message = match self.holder.waits_for() {
            Some(WaitingCause::Taken(mac)) => {
                format!(
                    "the host {} answers for the address on {}",
                    mac_text(mac),
                    link.name
                )
            }
            Some(WaitingCause::Conflict(mac)) => {
                format!(
                    "the host {} announces the address on {}",
                    mac_text(mac),
                    link.name
                )
            }
            Some(WaitingCause::Refused) => self.refusal.clone(),
            Some(WaitingCause::Superseded | WaitingCause::Released) | None => String::new(),
        };
        say(self.holder.word(), message)
    }
}
