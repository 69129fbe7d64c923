//! Endpoints of machines: for agents, which read them from the store, and for users' contexts.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    is_migrating,
    nodes::node_loss::LastReport,
};
use kat_types::{
    api::{
        ApiTime, Condition, EventKind, MachineEndpoints, NodePhase, NodeReport, ObjectKind,
        ObjectReference, Reach,
    },
    machine::network::node_address,
    reason::{EventReason, Reason},
    store::{
        keys, members::ClusterEndpoints, records::NodeStatusRecord, snapshot::NodeEntry,
        transaction::Compare,
    },
};

/// Where machines answer, as the registrations have it.
pub fn cluster_endpoints(snapshot: &Snapshot) -> ClusterEndpoints {
    let port = snapshot.cluster.spec.api_port;
    let machines = snapshot.nodes.iter().map(|(name, node)| {
        let registration = &node.registration.value;
        let names = node.reach.names.iter();
        let names = names.map(|name| format!("{name}:{port}"));
        let at = |address: IpAddr| SocketAddr::new(address, port).to_string();
        let overlay = node.subnet.map(node_address);
        let api = match overlay.filter(|_| node.reach.behind_nat) {
            // Its name is that of a router, or is known in its own network alone.
            Some(overlay) => std::iter::once(at(overlay.into())).chain(names).collect(),
            None => {
                let addresses = registration.advertise.iter().copied();
                names.chain(addresses.map(at)).collect()
            }
        };
        let of_member = |key: &String| match registration.etcd {
            true => key.clone(),
            false => String::new(),
        };
        let endpoints = MachineEndpoints {
            api,
            overlay,
            etcd: registration.etcd,
            node_key: registration.identity_key.clone(),
            leader_key: of_member(&registration.member_keys.leader),
            api_key: of_member(&registration.member_keys.api),
        };
        (name.clone(), endpoints)
    });
    ClusterEndpoints {
        schema: 1,
        machines: machines
            .filter(|(_, machine)| !machine.api.is_empty())
            .collect(),
    }
}

/// `host:port` of an API for a machine that is not in the cluster yet, and so has no route over the
/// overlay: the leader's, or if the leader is behind NAT another machine's, since all machines
/// forward API calls to the leader. A relay comes before others, since it is meant to be reached.
/// `None` if no such machine is Ready.
pub fn endpoint_for_joining(snapshot: &Snapshot) -> Option<String> {
    let machines = cluster_endpoints(snapshot).machines;
    let leader = snapshot.leader_endpoint.as_ref()?;
    let host = leader.parse::<SocketAddr>().ok().map(|leader| leader.ip());
    let is_leader = |machine: &MachineEndpoints| host == machine.overlay.map(IpAddr::V4);
    if host.is_none() || !machines.values().any(is_leader) {
        return Some(leader.clone());
    }
    let open = snapshot.nodes.iter().filter_map(|(name, node)| {
        let machine = machines.get(name).filter(|one| !one.is_hidden())?;
        let status = node.status.as_ref().map(|stored| &stored.value);
        let ready = status.is_some_and(|status| status.phase == NodePhase::Ready);
        let order = (!node.reach.relay, !machine.etcd, name);
        Some((order, machine.api.first()?)).filter(|_| ready)
    });
    open.min().map(|(_, endpoint)| endpoint.clone())
}

/// Type of the condition that says that an address of a machine belongs to another machine.
const ADDRESSES_CONDITION: &str = "AddressesAccepted";

/// Where a machine is reached: `host:port` of its API and of its WireGuard. The port is part of it:
/// two machines behind one router have the router's address, each with a port of its own.
#[derive(Debug, Default)]
pub(crate) struct EndpointAddresses(BTreeSet<String>);

impl EndpointAddresses {
    pub(crate) fn of(
        advertise: &[IpAddr],
        reach: &Reach,
        wireguard: &[String],
        api_port: u16,
    ) -> Self {
        let told = wireguard.iter();
        let told = told.filter(|place| !(reach.behind_nat && is_of_own_network(place)));
        let mut places: BTreeSet<String> = told.cloned().collect();
        // Behind NAT a machine's addresses are valid in its own network alone, and no other machine
        // gets them.
        if !reach.behind_nat {
            let api = advertise.iter().map(|one| api_place(*one, api_port));
            places.extend(api);
            places.extend(reach.names.iter().map(|name| format!("{name}:{api_port}")));
        }
        Self(places)
    }

    pub(crate) fn of_node(snapshot: &Snapshot, node: &NodeEntry) -> Self {
        let advertise = &node.registration.value.advertise;
        let port = snapshot.cluster.spec.api_port;
        Self::of(advertise, &node.reach, &node.endpoints, port)
    }

    /// The first place that both machines have.
    pub(crate) fn shared_with(&self, other: &Self) -> Option<String> {
        self.0.intersection(&other.0).next().cloned()
    }
}

/// Whether the address is private: in another network it is another machine's (RFC 1918, 4193,
/// 3927, 6598).
fn is_of_own_network(place: &str) -> bool {
    let Ok(place) = place.parse::<SocketAddr>() else {
        return false;
    };
    match place.ip() {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_private()
                || address.is_link_local()
                || (first == 100 && (64..128).contains(&second))
        }
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    }
}

fn api_place(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

/// The addresses that a machine reports, without those that belong to another machine.
struct AddressClaim {
    advertise: Vec<IpAddr>,
    endpoints: Vec<String>,
    /// Addresses that belong to another machine, each with that machine's name.
    taken: BTreeMap<String, String>,
}

/// An address belongs to the machine that was registered with it first, until that machine reports
/// another address or is deleted: a report must not draw calls for another machine to its sender.
fn claim(
    snapshot: &Snapshot,
    heard: &BTreeMap<&str, LastReport<'_>>,
    name: &str,
    report: &NodeReport,
) -> AddressClaim {
    let port = snapshot.cluster.spec.api_port;
    let hidden = |node: &NodeEntry| node.reach.behind_nat;
    let own = snapshot.nodes.get(name);
    let mut taken = BTreeMap::new();
    let mut is_free = |place: String, is_api: bool| {
        let own_is_hidden = own.is_some_and(hidden);
        if own_is_hidden && !is_api && is_of_own_network(&place) {
            return true;
        }
        let own_has = own.is_some_and(|own| is_registered(own, &place, port));
        let holder = snapshot.nodes.iter().find(|(other, node)| {
            if *other == name
                || is_api && (hidden(node) || own_is_hidden)
                || !is_registered(node, &place, port)
            {
                return false;
            }
            // Both machines are registered with it: it belongs to the older one.
            let earlier = own.filter(|_| own_has).is_none_or(|own| {
                let age = |one: &NodeEntry| one.registration.value.created;
                (age(node), other.as_str()) < (age(own), name)
            });
            earlier && !has_left(heard, other, node, &place, port)
        });
        match holder {
            Some((other, _)) => {
                taken.insert(place, other.clone());
                false
            }
            None => true,
        }
    };
    let advertise = report.advertise.iter().copied();
    let advertise = advertise
        .filter(|address| is_free(api_place(*address, port), true))
        .collect();
    let endpoints = report.endpoints.iter();
    let endpoints = endpoints
        .filter(|endpoint| is_free((*endpoint).clone(), false))
        .cloned()
        .collect();
    AddressClaim {
        advertise,
        endpoints,
        taken,
    }
}

/// Whether [`EndpointAddresses::of_node`] contains `place`, without building the set: each machine's report is
/// compared with each other machine.
fn is_registered(node: &NodeEntry, place: &str, api_port: u16) -> bool {
    let hidden = node.reach.behind_nat;
    if node.endpoints.iter().any(|one| one == place) {
        return !(hidden && is_of_own_network(place));
    }
    let Some((host, port)) = place.rsplit_once(':').filter(|_| !hidden) else {
        return false;
    };
    if port.parse() != Ok(api_port) {
        return false;
    }
    let host = host.trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(address) => node.registration.value.advertise.contains(&address),
        Err(_) => node.reach.names.iter().any(|name| name == host),
    }
}

/// The machine's current report no longer contains `place`.
fn has_left(
    heard: &BTreeMap<&str, LastReport<'_>>,
    name: &str,
    node: &NodeEntry,
    place: &str,
    port: u16,
) -> bool {
    let report = heard.get(name).and_then(|heard| heard.report);
    let says = |report: &&NodeReport| !report.advertise.is_empty() && !report.endpoints.is_empty();
    report.filter(says).is_some_and(|report| {
        let now = EndpointAddresses::of(&report.advertise, &node.reach, &report.endpoints, port);
        !now.0.contains(place)
    })
}

/// The condition of a machine that reports an address which belongs to another machine.
pub(crate) fn address_condition(
    snapshot: &Snapshot,
    heard: &BTreeMap<&str, LastReport<'_>>,
    name: &str,
) -> Option<Condition> {
    let report = heard.get(name).and_then(|heard| heard.report)?;
    let taken = claim(snapshot, heard, name, report).taken;
    let each = taken
        .iter()
        .map(|(place, other)| format!("{place} is the address of machine {other}"));
    let message = each.collect::<Vec<_>>().join(", ");
    (!taken.is_empty()).then(|| Condition {
        kind: ADDRESSES_CONDITION.to_owned(),
        status: false,
        reason: Reason::AddressTaken.into(),
        message: format!("{message}; it was registered first, and others are not sent elsewhere"),
        since: ApiTime::UNKNOWN,
    })
}

/// Writes a warning event when [`address_condition`] appears or names other addresses.
pub(crate) fn address_event(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    name: &str,
    (before, status): (&NodeStatusRecord, &NodeStatusRecord),
) {
    let find = |one: &NodeStatusRecord| {
        let mut conditions = one.conditions.iter();
        let found = conditions.find(|one| one.kind == ADDRESSES_CONDITION);
        found.map(|one| one.message.clone())
    };
    let Some(message) = find(status).filter(|message| find(before).as_ref() != Some(message))
    else {
        return;
    };
    let uid = draft.snapshot.nodes.get(name);
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.map_or_else(String::new, |node| node.registration.value.uid.clone()),
    };
    let message = format!("machine {name} says that it has an address of another one: {message}");
    draft.event(
        group,
        EventKind::Warning,
        EventReason::AddressTaken,
        object,
        message,
    );
}

/// Stores where a machine is reached, and the keys of its certificates as a member, if its agent
/// reports other ones than are stored. An agent that does not know them reports none.
pub(crate) fn plan_reach(draft: &mut Draft<'_>, heard: &BTreeMap<&str, LastReport<'_>>) {
    for (name, node) in &draft.snapshot.nodes {
        let Some(report) = heard.get(name.as_str()).and_then(|heard| heard.report) else {
            continue;
        };
        let registration = &node.registration;
        let mut group = OperationGroup::default();
        let mut conditions = Vec::new();
        let claim = claim(draft.snapshot, heard, name, report);
        let endpoints = !claim.endpoints.is_empty() && claim.endpoints != node.endpoints;
        if endpoints {
            let key = keys::network_node(name, "wg_endpoints");
            group.put(key, &claim.endpoints);
        }
        let mut changed = registration.value.clone();
        if !claim.advertise.is_empty() {
            changed.advertise.clone_from(&claim.advertise);
        }
        if endpoints || changed.advertise != registration.value.advertise {
            // A machine may join with this address at this moment.
            let (key, revision) = (keys::OVERLAY_CIDR, draft.snapshot.overlay_revision);
            conditions.push(Compare::ModRevision(key.to_owned(), revision));
        }
        // The report came with the certificate for the machine's registered key.
        if report.member_keys.is_complete() {
            changed.member_keys.clone_from(&report.member_keys);
        } else if report.member_keys.is_empty() {
            // An agent of version 0.1.0, to which the machine's upgrade was taken back: it has no
            // certificate of the API.
            changed.member_keys.api.clear();
        }
        // Until the authority of etcd's clients is replaced, a machine can go back to version 0.1.0,
        // which reads etcd.
        let migrating = is_migrating(draft.snapshot);
        changed.state_stream = match report.state_stream {
            Some(true) => true,
            Some(false) => changed.state_stream,
            None => changed.state_stream && !migrating,
        };
        if changed != registration.value {
            group.put(keys::registration(name), &changed);
            // A user may change its labels or other settings at this moment.
            let key = keys::registration(name);
            conditions.push(Compare::ModRevision(key, registration.revision));
        }
        if endpoints {
            let object = ObjectReference {
                kind: ObjectKind::Node,
                name: name.clone(),
                namespace: String::new(),
                uid: registration.value.uid.clone(),
            };
            let message = format!(
                "others reach machine {name} at {}",
                claim.endpoints.join(" ")
            );
            draft.event(
                &mut group,
                EventKind::Normal,
                EventReason::EndpointsChanged,
                object,
                message,
            );
        }
        draft.commit(group, format!("endpoints of machine {name}"), conditions);
    }
}

/// Writes the list of endpoints if the registrations give another one than is stored.
pub(crate) fn plan_endpoints(draft: &mut Draft<'_>) {
    let wanted = cluster_endpoints(draft.snapshot);
    let stored = draft.snapshot.endpoints.as_ref();
    if stored.map_or(wanted.machines.is_empty(), |stored| stored.value == wanted) {
        return;
    }
    let mut group = OperationGroup::default();
    group.put(keys::ENDPOINTS.to_owned(), &wanted);
    draft.commit(group, "endpoints of the machines".to_owned(), Vec::new());
}
