//! Virtual addresses: settings that have them, are changed and lose them, labels for ingress, and faults of
//! the LAN and of `kat-net`. Its steps have a generator of their own, so that the other steps of a seed stay
//! as they are.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use axum::body::Body;
use hyper::{Request, header};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    faults::disabled_safeguards::Without,
    initial_cluster::cluster,
    load::added::Requests,
    machines::lan::{Lan, LanLink, WrittenGrants},
    random::Random,
    run::{HEALED_WITHIN, Repair, SECOND, Scenario},
    world::World,
};
use kat_types::{
    machine::node_labels::{INGRESS_ROLE, ROLE_LABEL},
    resource::{OnLeaderLoss, VirtualAddress},
    store::{configuration::ConfigurationRecord, keys},
    virtual_addresses::{AUTO_INTERFACE, address_and_prefix},
};

/// The addresses of a run, and whether their holder gives each up when it reaches no leader.
const ADDRESSES: [(&str, OnLeaderLoss); 3] = [
    ("192.168.1.9/24", OnLeaderLoss::Keep),
    ("192.168.1.10/24", OnLeaderLoss::Release),
    ("fd00::9/64", OnLeaderLoss::Keep),
];
/// Bits of all addresses, see [`chosen`].
const ALL: u64 = 0b111;

/// The addresses whose bit is set.
fn chosen(bits: u64) -> Vec<VirtualAddress> {
    let all = ADDRESSES.into_iter().enumerate();
    let chosen = all.filter(|(number, _)| (bits >> number) & 1 == 1);
    let chosen = chosen.map(|(_, (address, on_leader_loss))| VirtualAddress {
        address: address.to_owned(),
        interface: AUTO_INTERFACE.to_owned(),
        on_leader_loss,
    });
    chosen.collect()
}

/// The users of virtual addresses, and the LAN.
pub(crate) struct AddressLoad {
    random: Random,
    requests: Requests,
    pub lan: Arc<Lan>,
    /// What the agents wrote for `kat-net`, by machine.
    pub written: BTreeMap<String, WrittenGrants>,
}

impl AddressLoad {
    pub(crate) fn of_seed(
        seed: u64,
        without: Without,
        net: &Arc<Net>,
        monitor: &Arc<Monitor>,
    ) -> Option<Self> {
        // Not together with forged reports, or with a store that is made anew.
        let has = match without {
            Without::Nothing => seed % 5 == 1,
            _ => without.is_about_virtual_addresses(),
        };
        let has_numbers = without != Without::AddressNumbers;
        has.then(|| Self {
            random: Random::new(seed ^ 0x0061_6464_7265_7373),
            requests: Requests::new(net, monitor),
            lan: Lan::start(net.ways.clone(), has_numbers, monitor),
            written: BTreeMap::new(),
        })
    }

    /// Replaces the cluster's settings. All but the virtual addresses stay as they were.
    fn set(&self, to: &str, addresses: Vec<VirtualAddress>) {
        let mut configuration = cluster();
        configuration.spec.virtual_addresses = addresses;
        let mut file = serde_json::to_value(&configuration).unwrap();
        file["apiVersion"] = json!("kat.dws.rip/v1alpha1");
        file["kind"] = json!("ClusterConfiguration");
        let request = Request::put("/v1alpha1/config/cluster")
            .header(header::CONTENT_TYPE, "text/plain")
            .body(Body::from(file.to_string()));
        self.requests.send(to, "settings", request.unwrap());
    }

    /// Sets or removes the label for ingress of a machine.
    fn label(&self, to: &str, machine: &str, is_for_ingress: bool) {
        let labels = is_for_ingress.then_some((ROLE_LABEL, INGRESS_ROLE));
        let labels: BTreeMap<_, _> = labels.into_iter().collect();
        let body = json!({"labels": labels});
        let request = Request::put(format!("/v1alpha1/nodes/{machine}/labels"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(body.to_string()));
        self.requests.send(to, machine, request.unwrap());
    }
}

impl World {
    /// The addresses of the stored settings; `None` if no change of settings is stored.
    fn addresses_set(&self) -> Option<Vec<VirtualAddress>> {
        let wanted: ConfigurationRecord = self.stored(keys::WANTED_CONFIGURATION)?;
        Some(wanted.configuration.spec.virtual_addresses)
    }

    /// The virtual addresses of the stored settings.
    pub(crate) fn virtual_addresses(&self) -> Vec<IpAddr> {
        let set = self.addresses_set().unwrap_or_default();
        let hosts = set.iter().filter_map(address_and_prefix);
        hosts.map(|(address, _)| address).collect()
    }

    /// All links, and every machine's `kat-net`, are well from now on.
    pub(crate) fn heal_the_lan(&self) {
        let Some(addresses) = &self.addresses else {
            return;
        };
        for machine in &self.machines {
            addresses.lan.set_link(&machine.name, LanLink::Up);
            addresses.lan.start_kat_net(&machine.name);
        }
    }

    /// The link of one machine is well again.
    pub(crate) fn mend_link(&self, number: usize) {
        if let Some(addresses) = &self.addresses {
            let name = &self.machines[number].name;
            addresses.lan.set_link(name, LanLink::Up);
        }
    }

    /// `kat-net` of a machine runs again.
    pub(crate) fn start_kat_net(&self, number: usize) {
        if let Some(addresses) = &self.addresses {
            let name = &self.machines[number].name;
            addresses.lan.start_kat_net(name);
        }
    }
}

impl Scenario {
    /// Draws a step of virtual addresses.
    pub(crate) fn step_of_the_virtual_addresses(&mut self) {
        let to = self.asked();
        let joined = self.world.joined().count();
        let is_set = self.world.addresses_set().is_some();
        let machines = &self.world.machines;
        let Some(load) = &mut self.world.addresses else {
            return;
        };
        if !is_set {
            load.set(&to, chosen(ALL));
            return;
        }
        let random = &mut load.random;
        let what = random.below(100);
        let any = random.index(joined);
        let at_holder = random.chance(60);
        let (address, _) = ADDRESSES[random.index(ADDRESSES.len())];
        let bits = random.below(ALL + 1);
        let short = random.milliseconds(200, 3_000);
        let long = random.milliseconds(200, 20_000);
        let lost = random.milliseconds(20_000, 26_000);
        let later = random.milliseconds(4_000, 8_000);
        let is_for_ingress = random.chance(50);
        let (address, _) = address.split_once('/').unwrap();
        let holders = load.lan.holders(address.parse().unwrap());
        let holder = holders
            .first()
            .and_then(|holder| machines.iter().position(|one| one.name == *holder));
        let number = holder.filter(|_| at_holder).unwrap_or(any);
        let name = machines[number].name.clone();
        let note = |text: &str| self.world.monitor.note(&format!("{text} {name}"));
        match what {
            0..12 => load.set(&to, chosen(bits)),
            12..24 => load.label(&to, &machines[any].name, is_for_ingress),
            24..36 => {
                note("no packet of the LAN reaches");
                load.lan.set_link(&name, LanLink::Apart);
                self.repair_after(long, Repair::Link(number));
            }
            36..44 => {
                note("the LAN has no carrier on");
                load.lan.set_link(&name, LanLink::NoCarrier);
                self.repair_after(long, Repair::Link(number));
            }
            44..58 => {
                note("kat-net ends on");
                load.lan.stop_kat_net(&name);
                self.repair_after(short, Repair::KatNet(number));
            }
            58..74 => {
                // Another machine gets its addresses. The LAN is whole again before the agent is back.
                note("the LAN and the agent are lost on");
                load.lan.set_link(&name, LanLink::Apart);
                self.world.kill(number);
                self.repair_after(lost, Repair::Link(number));
                self.repair_after(lost + later, Repair::Start(number));
            }
            _ => {}
        }
    }

    /// Every address has one holder, and leaves with the settings.
    pub(crate) async fn settle_the_virtual_addresses(&mut self) {
        if self.world.addresses.is_none() {
            return;
        }
        for bits in [ALL, 0] {
            let end = Instant::now() + HEALED_WITHIN;
            loop {
                self.set_at_last(bits);
                self.pass_in(SECOND / 5, SECOND).await;
                if self.is_over() {
                    return;
                }
                let missing = match self.world.virtual_addresses().len() {
                    count if count != chosen(bits).len() => Some("they are not set".to_owned()),
                    0 => self.world.addresses_left(),
                    _ => self.world.addresses_missing(),
                };
                let Some(missing) = missing else { break };
                if Instant::now() >= end {
                    let text = format!("virtual addresses after {HEALED_WITHIN:?}: {missing}");
                    self.world.monitor.violated(text);
                }
            }
        }
    }

    fn set_at_last(&mut self, bits: u64) {
        let to = self.asked();
        let is_set = self.world.addresses_set() == Some(chosen(bits));
        if let Some(load) = self.world.addresses.as_ref().filter(|_| !is_set) {
            load.set(&to, chosen(bits));
        }
    }
}
