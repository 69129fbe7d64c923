//! The cluster cache: where this machine reaches the cluster's APIs and etcd. It is updated from
//! the store and kept in `/var/lib/kat/cluster.json` for the next start.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use super::identity::MachineIdentity;
use crate::service::paths;
use kat_host::files::{self, FileAccess, FileError};
use kat_leader::leader_name;
use kat_pki::{KnownServer, KnownServers};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{MachineEndpoints, StoreEpoch},
    store::{
        authorities::ClusterAuthority,
        keys,
        members::{ClusterEndpoints, ClusterMembers, MemberRecord},
    },
};

/// Largest cache file in bytes.
const LIMIT: u64 = 4 << 20;

/// The content of `/var/lib/kat/cluster.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClusterCache {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// `host:port` of the leader's API.
    pub leader: Option<String>,
    /// Name of the leading machine; `None` where the leader's version does not publish the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_name: Option<String>,
    /// API and overlay addresses of every machine.
    pub endpoints: ClusterEndpoints,
    pub members: ClusterMembers,
    /// How often the store was created anew by recover or restore.
    pub store_epoch: StoreEpoch,
    /// Which certificates of the cluster's authority the machines trust and use.
    pub authority: ClusterAuthority,
    /// Every machine with the store had a certificate of the API once. From then on servers are
    /// refused that have the name of version 0.1.0 alone, unless their keys are known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub api_name_required: bool,
}

impl ClusterCache {
    /// Reads the cache from the keys below `/kat/config/`. A value that this version can't read,
    /// because a newer version wrote it, keeps its content from `before`: a machine that holds etcd
    /// must not read it as a member list without itself.
    pub(crate) fn read(entries: &MirrorEntries, before: &Self) -> Self {
        let leader = entries.get(keys::LEADER_ENDPOINT);
        let leader = leader.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        let mut endpoints = read_key(entries, keys::ENDPOINTS, &before.endpoints);
        keep_keys(&mut endpoints, &before.endpoints);
        Self {
            schema: 1,
            store_epoch: read_key(entries, keys::STORE_EPOCH, &before.store_epoch),
            members: read_key(entries, keys::MEMBERS, &before.members),
            authority: read_key(entries, keys::CLUSTER_AUTHORITY, &before.authority),
            leader,
            leader_name: leader_name(entries),
            api_name_required: before.api_name_required || endpoints.is_api_named(),
            endpoints,
        }
    }

    /// The servers of the API, by their keys.
    pub(crate) fn servers(&self) -> KnownServers {
        let hash = |hash: &String| Some(hash.clone()).filter(|hash| !hash.is_empty());
        let machines = self.endpoints.machines.iter().map(|(name, machine)| {
            let server = KnownServer {
                is_member: machine.etcd,
                node_key: hash(&machine.node_key),
                api_key: hash(&machine.api_key),
            };
            (name.clone(), server)
        });
        KnownServers {
            machines: machines.collect(),
            api_name_required: self.api_name_required,
        }
    }

    /// Whether this machine's certificate of the API may have the new name: the cluster knows such
    /// a certificate of every machine with the store, this one included. Clients that see the name
    /// refuse all servers without it, so a machine does not show it before the others know that it
    /// has one: its upgrade may still be taken back.
    pub(crate) fn may_have_api_name(&self) -> bool {
        let lacks = |machine: &MachineEndpoints| machine.etcd && machine.api_key.is_empty();
        self.api_name_required || !self.endpoints.machines.values().any(lacks)
    }

    /// `host:port` of the APIs to connect to, the leader's first. Overlay addresses come last: the
    /// leader stays reachable there when all its addresses outside the overlay have changed.
    pub(crate) fn api(&self, port: u16) -> Vec<String> {
        let mut found: Vec<String> = self.leader.iter().cloned().collect();
        found.extend(self.endpoints.api());
        let members = self.endpoints.machines.values().filter(|one| one.etcd);
        let overlay = members.filter_map(|one| one.overlay);
        found.extend(overlay.map(|address| SocketAddr::from((address, port)).to_string()));
        in_order(found)
    }

    /// etcd URLs for this machine: its own loopback address if it holds etcd, then the other
    /// members.
    pub(crate) fn etcd(&self, identity: &MachineIdentity) -> Vec<String> {
        let port = identity.cluster.spec.etcd_client_port;
        let mut urls = self.endpoints.etcd(port);
        if identity.etcd {
            let own = format!("https://{}:{port}", identity.overlay_address());
            urls.retain(|url| *url != own);
            urls.insert(0, format!("https://127.0.0.1:{port}"));
        }
        urls
    }

    /// etcd's id of this machine's member, and whether it has a vote.
    pub(crate) fn member(&self, identity: &MachineIdentity) -> Option<&MemberRecord> {
        self.members.members.get(&identity.node)
    }

    /// Whether this machine prepares to become a member of etcd.
    pub(crate) fn prepares(&self, identity: &MachineIdentity) -> bool {
        self.members.next.contains(&identity.node)
    }

    /// `name=url` of every member, as etcd's `--initial-cluster` needs it on a member's first
    /// start; `None` where this machine is the only member or no member. A machine that prepares to
    /// become a member counts as one: its etcd starts as soon as it is.
    pub(crate) fn initial_cluster(&self, identity: &MachineIdentity) -> Option<String> {
        let own = self.prepares(identity).then_some(&identity.node);
        let members: BTreeSet<&String> = self.members.members.keys().chain(own).collect();
        if members.len() < 2 || !members.contains(&identity.node) {
            return None;
        }
        let port = identity.cluster.spec.etcd_peer_port;
        let mut named = Vec::new();
        for name in members {
            let address = self.endpoints.machines.get(name)?.overlay?;
            named.push(format!("{name}=https://{address}:{port}"));
        }
        Some(named.join(","))
    }

    /// Removes this machine from the cache.
    pub(crate) fn of_others(mut self, identity: &MachineIdentity) -> Self {
        self.leader = self.other_leader(identity);
        self.leader_name = self.leader_name.filter(|name| *name != identity.node);
        self.endpoints.machines.remove(&identity.node);
        self.members.members.remove(&identity.node);
        self.members.next.remove(&identity.node);
        self
    }

    /// The leader's API; `None` where this machine leads.
    pub(crate) fn other_leader(&self, identity: &MachineIdentity) -> Option<String> {
        let leader = self.leader.as_ref()?;
        if let Some(name) = &self.leader_name {
            return (*name != identity.node).then(|| leader.clone());
        }
        let host = leader
            .rsplit_once(':')
            .map_or(leader.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let own = |address: &IpAddr| host.parse() == Ok(*address);
        let here = self.endpoints.machines.get(&identity.node);
        let named = here.is_some_and(|here| here.api.contains(leader));
        (!named && !identity.advertise.iter().any(own)).then(|| leader.clone())
    }

    /// `host:port` of the leader's API on each of its addresses; empty where this machine leads.
    /// The overlay address comes first: it stays valid where the leader is behind NAT or its other
    /// addresses have changed. The leader is looked up by its name, and only among machines that
    /// hold etcd, since any machine may claim any address as its own.
    pub(crate) fn ways_to_leader(&self, identity: &MachineIdentity) -> Vec<String> {
        let Some(leader) = self.other_leader(identity) else {
            return Vec::new();
        };
        let port = identity.cluster.spec.api_port;
        let mut members = self.endpoints.machines.iter().filter(|(_, one)| one.etcd);
        let named = match &self.leader_name {
            Some(leader_name) => members.find(|(name, _)| *name == leader_name),
            None => {
                members.find(|(name, one)| **name != identity.node && one.api.contains(&leader))
            }
        };
        let machine = named.map(|(_, machine)| machine);
        let overlay = machine.and_then(|machine| machine.overlay);
        let overlay = overlay.map(|address| SocketAddr::from((address, port)).to_string());
        let others = machine.map(|machine| machine.api.clone());
        let mut found: Vec<String> = overlay.into_iter().chain([leader]).collect();
        found.extend(others.unwrap_or_default());
        in_order(found)
    }

    /// Writes the cache to the disk.
    pub(crate) fn store(&self) -> Result<(), FileError> {
        let path = Path::new(paths::KNOWN);
        let text = files::json_of(path, self)?;
        files::write_if_changed(path, &text, FileAccess::mode(0o600)).map(drop)
    }

    /// Reads the cache from the disk; empty where there is no file.
    pub(crate) fn stored() -> Self {
        let content = match files::read_bounded(Path::new(paths::KNOWN), LIMIT) {
            Ok(content) => content,
            Err(error) if error.is_not_found() => return Self::default(),
            Err(error) => {
                tracing::error!("where the cluster was is not known: {error:#}");
                return Self::default();
            }
        };
        serde_json::from_slice(&content).unwrap_or_else(|error| {
            tracing::error!(path = paths::KNOWN, "it can't be read: {error:#}");
            Self::default()
        })
    }
}

/// Keeps the keys of machines with the store that a leader of version 0.1.0 leaves out when it
/// writes the endpoints: by them a server of that version is told from a worker.
fn keep_keys(endpoints: &mut ClusterEndpoints, before: &ClusterEndpoints) {
    for (name, machine) in &mut endpoints.machines {
        let known = before.machines.get(name).filter(|known| known.etcd);
        let Some(known) = known.filter(|_| machine.etcd && machine.node_key.is_empty()) else {
            continue;
        };
        machine.node_key.clone_from(&known.node_key);
        machine.leader_key.clone_from(&known.leader_key);
        machine.api_key.clone_from(&known.api_key);
    }
}

/// Removes duplicate endpoints and keeps the order.
fn in_order(mut endpoints: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    endpoints.retain(|endpoint| seen.insert(endpoint.clone()));
    endpoints
}

/// Reads one key; a missing key gives the default, an unreadable one `before`.
fn read_key<T: DeserializeOwned + Default + Clone>(
    entries: &MirrorEntries,
    key: &str,
    before: &T,
) -> T {
    let Some(entry) = entries.get(key) else {
        return T::default();
    };
    serde_json::from_slice(&entry.value).unwrap_or_else(|error| {
        tracing::error!(
            key,
            "it can't be read; what was known before still holds: {error:#}"
        );
        before.clone()
    })
}

/// Channel with the present cluster cache.
pub(crate) type ClusterCacheReceiver = watch::Receiver<Arc<ClusterCache>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> ClusterCache {
        let machine = |api: &[&str], overlay: [u8; 4], etcd| MachineEndpoints {
            api: api.iter().map(|text| (*text).to_owned()).collect(),
            overlay: Some(overlay.into()),
            etcd,
            ..MachineEndpoints::default()
        };
        let member = |id: &str| MemberRecord {
            id: id.to_owned(),
            voting: true,
            healthy: true,
        };
        ClusterCache {
            schema: 1,
            store_epoch: StoreEpoch::default(),
            authority: ClusterAuthority::default(),
            api_name_required: false,
            members: ClusterMembers {
                schema: 1,
                members: [
                    ("n1".to_owned(), member("a")),
                    ("n2".to_owned(), member("b")),
                ]
                .into(),
                ..ClusterMembers::default()
            },
            leader: Some("192.0.2.2:9115".to_owned()),
            leader_name: None,
            endpoints: ClusterEndpoints {
                schema: 1,
                machines: [
                    (
                        "n1".to_owned(),
                        machine(
                            &["192.0.2.1:9115", "[2001:db8::1]:9115"],
                            [10, 100, 0, 1],
                            true,
                        ),
                    ),
                    (
                        "n2".to_owned(),
                        machine(&["192.0.2.2:9115"], [10, 100, 2, 1], true),
                    ),
                    (
                        "n3".to_owned(),
                        machine(&["192.0.2.3:9115"], [10, 100, 4, 1], false),
                    ),
                ]
                .into(),
            },
        }
    }

    fn identity(node: &str, subnet: &str, etcd: bool) -> MachineIdentity {
        MachineIdentity {
            subnet: subnet.parse().unwrap(),
            etcd,
            ..MachineIdentity::example(node)
        }
    }

    #[test]
    fn a_member_asks_its_own_etcd_first_and_names_all_when_it_starts() {
        let known = known();
        let second = identity("n2", "10.100.2.0/23", true);
        let urls = ["https://127.0.0.1:2379", "https://10.100.0.1:2379"];
        assert_eq!(known.etcd(&second), urls);
        let cluster = known.initial_cluster(&second);
        let expected = "n1=https://10.100.0.1:2380,n2=https://10.100.2.1:2380";
        assert_eq!(cluster.as_deref(), Some(expected));
        let worker = identity("n3", "10.100.4.0/23", false);
        assert_eq!(known.etcd(&worker).len(), 2);
        assert_eq!(known.initial_cluster(&worker), None);
        // A machine that prepares starts an etcd for the moment in which it is a member.
        let mut prepares = known.clone();
        prepares.members.next.insert("n3".to_owned());
        let with_third = format!("{expected},n3=https://10.100.4.1:2380");
        assert_eq!(prepares.initial_cluster(&worker), Some(with_third));
        assert_eq!(prepares.initial_cluster(&second).as_deref(), Some(expected));
        let mut alone = known;
        alone.members.members.remove("n1");
        assert_eq!(alone.initial_cluster(&second), None);
    }

    /// A member that read objects of a newer version as a list without itself would remove its
    /// data.
    #[test]
    fn unreadable_objects_of_a_newer_version_leave_the_cache_unchanged() {
        let before = known();
        let entries = |members: &str, endpoints: &str| -> MirrorEntries {
            let pairs = [(keys::MEMBERS, members), (keys::ENDPOINTS, endpoints)];
            let pairs = pairs.into_iter().filter(|(_, value)| !value.is_empty());
            pairs
                .map(|(key, value)| {
                    let entry = kat_types::store::transaction::KeyValue {
                        key: key.to_owned(),
                        value: value.as_bytes().to_vec(),
                        mod_revision: 1,
                        create_revision: 1,
                    };
                    (Arc::from(key), Arc::new(entry))
                })
                .collect()
        };
        let newer = r#"{"schema":2,"members":[["n1","a","voting"]]}"#;
        let read = ClusterCache::read(&entries(newer, r#"{"schema":2,"machines":7}"#), &before);
        assert_eq!(read.members, before.members);
        assert_eq!(read.endpoints, before.endpoints);
        let members = r#"{"schema":9,"members":{"n1":{"id":"c","voting":true,"mood":"fine"}}}"#;
        let read = ClusterCache::read(&entries(members, ""), &before);
        assert_eq!(read.members.members["n1"].id, "c");
        assert!(read.endpoints.machines.is_empty(), "nothing is stored");
    }

    fn with_keys(known: &mut ClusterCache, node: &str, node_key: &str, api_key: &str) {
        let machine = known.endpoints.machines.get_mut(node).unwrap();
        machine.node_key = node_key.to_owned();
        machine.api_key = api_key.to_owned();
    }

    fn endpoints_of(known: &ClusterCache) -> MirrorEntries {
        let entry = kat_types::store::transaction::KeyValue {
            key: keys::ENDPOINTS.to_owned(),
            value: serde_json::to_vec(&known.endpoints).unwrap(),
            mod_revision: 1,
            create_revision: 1,
        };
        [(Arc::from(keys::ENDPOINTS), Arc::new(entry))]
            .into_iter()
            .collect()
    }

    #[test]
    fn the_name_of_the_api_is_demanded_from_when_every_member_has_it() {
        let mut published = known();
        let read = |published: &ClusterCache, before: &ClusterCache| {
            ClusterCache::read(&endpoints_of(published), before)
        };
        with_keys(&mut published, "n1", "node 1", "api 1");
        let half = read(&published, &ClusterCache::default());
        assert!(!half.api_name_required);
        assert!(!half.may_have_api_name(), "n2 has no certificate yet");
        with_keys(&mut published, "n2", "node 2", "api 2");
        let whole = read(&published, &half);
        assert!(whole.api_name_required, "n3 is no member");
        assert!(whole.may_have_api_name());
        // A member that joins, or goes back to an earlier version, takes it from nobody.
        with_keys(&mut published, "n2", "node 2", "");
        let later = read(&published, &whole);
        assert!(later.api_name_required && later.may_have_api_name());
        let text = serde_json::to_vec(&later).unwrap();
        let stored: ClusterCache = serde_json::from_slice(&text).unwrap();
        assert!(stored.api_name_required && stored.servers().api_name_required);
    }

    #[test]
    fn members_stay_known_by_their_keys_while_a_leader_of_an_earlier_version_leaves_them_out() {
        let mut before = known();
        for (node, number) in [("n1", "1"), ("n2", "2"), ("n3", "3")] {
            with_keys(&mut before, node, &format!("node {number}"), "");
        }
        let now = ClusterCache::read(&endpoints_of(&known()), &before);
        let key = |node: &str| now.servers().machines[node].node_key.clone();
        assert_eq!(key("n1").as_deref(), Some("node 1"));
        assert_eq!(key("n2").as_deref(), Some("node 2"));
        assert_eq!(key("n3"), None, "it serves no API");
        // A key that is published replaces the known one.
        let mut published = known();
        with_keys(&mut published, "n1", "another", "api 1");
        let now = ClusterCache::read(&endpoints_of(&published), &before);
        let first = &now.servers().machines["n1"];
        assert!(first.is_member && first.node_key.as_deref() == Some("another"));
        assert_eq!(first.api_key.as_deref(), Some("api 1"));
    }

    #[test]
    fn callers_are_passed_on_over_the_overlay_before_any_address_outside() {
        let mut known = known();
        let worker = identity("n3", "10.100.4.0/23", false);
        let second = identity("n2", "10.100.2.0/23", true);
        assert_eq!(known.ways_to_leader(&second), [""; 0], "it leads");
        assert_eq!(
            known.ways_to_leader(&worker),
            ["10.100.2.1:9115", "192.0.2.2:9115"]
        );
        known.leader = Some("[2001:db8::1]:9115".to_owned());
        let expected = ["10.100.0.1:9115", "[2001:db8::1]:9115", "192.0.2.1:9115"];
        assert_eq!(known.ways_to_leader(&second), expected);
        // Behind NAT, a leader's endpoint is its overlay address.
        let first = known.endpoints.machines.get_mut("n1").unwrap();
        first.api = vec!["10.100.0.1:9115".to_owned()];
        known.leader = Some("10.100.0.1:9115".to_owned());
        assert_eq!(known.ways_to_leader(&second), ["10.100.0.1:9115"]);
        // The leader has just moved, and no machine has this address in `endpoints` yet.
        known.leader = Some("192.0.2.99:9115".to_owned());
        assert_eq!(known.ways_to_leader(&second), ["192.0.2.99:9115"]);
        known.leader = None;
        assert_eq!(known.ways_to_leader(&second), [""; 0]);
    }

    /// A machine that reports the leader's address as its own is not called in place of the leader.
    #[test]
    fn the_leader_is_found_by_its_name_and_among_members_alone() {
        let mut known = known();
        let second = identity("n2", "10.100.2.0/23", true);
        known.leader = Some("192.0.2.1:9115".to_owned());
        let own = known.endpoints.machines["n3"].clone();
        let worker = MachineEndpoints {
            api: vec!["192.0.2.1:9115".to_owned()],
            overlay: Some([10, 100, 6, 1].into()),
            ..own
        };
        // This worker's name sorts before the leader's.
        known.endpoints.machines.insert("a4".to_owned(), worker);
        let expected = ["10.100.0.1:9115", "192.0.2.1:9115", "[2001:db8::1]:9115"];
        assert_eq!(known.ways_to_leader(&second), expected);
        known.leader_name = Some("n1".to_owned());
        assert_eq!(known.ways_to_leader(&second), expected);
        // A machine that is named as the leader but has no store is not called either.
        known.leader_name = Some("a4".to_owned());
        assert_eq!(known.ways_to_leader(&second), ["192.0.2.1:9115"]);
        known.leader_name = Some("n2".to_owned());
        assert_eq!(known.ways_to_leader(&second), [""; 0], "it leads");
    }

    #[test]
    fn a_name_beside_an_endpoint_of_another_transaction_is_not_the_leaders() {
        let entry = |key: &str, value: &str, mod_revision| {
            let entry = kat_types::store::transaction::KeyValue {
                key: key.to_owned(),
                value: value.as_bytes().to_vec(),
                mod_revision,
                create_revision: 1,
            };
            (Arc::from(key), Arc::new(entry))
        };
        let read = |endpoint_revision| {
            let entries: MirrorEntries = [
                entry(keys::LEADER_ENDPOINT, "192.0.2.2:9115", endpoint_revision),
                entry(keys::LEADER_NAME, "n2", 7),
            ]
            .into_iter()
            .collect();
            ClusterCache::read(&entries, &ClusterCache::default()).leader_name
        };
        assert_eq!(read(7).as_deref(), Some("n2"));
        // The state after a takeover by a leader of version 0.1.0, which writes only the endpoint.
        assert_eq!(read(9), None);
    }

    #[test]
    fn the_leader_is_asked_first_and_workers_never() {
        let expected = [
            "192.0.2.2:9115",
            "192.0.2.1:9115",
            "[2001:db8::1]:9115",
            "10.100.0.1:9115",
            "10.100.2.1:9115",
        ];
        assert_eq!(known().api(9115), expected);
        assert_eq!(
            known().endpoints.etcd(2379),
            ["https://10.100.0.1:2379", "https://10.100.2.1:2379"]
        );
    }
}
