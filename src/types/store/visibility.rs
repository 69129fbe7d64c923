//! Which keys of the store a machine sees that does not hold the store.
//!
//! The decision is made key by key and never by a prefix alone: a key that this version does not
//! know is hidden.

use std::collections::BTreeMap;

use super::keys;

/// A key of the store, by what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKey<'a> {
    /// [`keys::SCHEMA_VERSION`].
    SchemaVersion,
    /// [`keys::CLUSTER_UID`].
    ClusterUid,
    /// [`keys::LEADER_ENDPOINT`].
    LeaderEndpoint,
    /// [`keys::LEADER_NAME`].
    LeaderName,
    /// [`keys::CLUSTER`].
    Cluster,
    /// [`keys::CLUSTER_AUTHORITY`].
    ClusterAuthority,
    /// [`keys::ENDPOINTS`].
    Endpoints,
    /// [`keys::MEMBERS`].
    Members,
    /// [`keys::REGISTRIES`].
    Registries,
    /// [`keys::STORE_EPOCH`].
    StoreEpoch,
    /// [`keys::OVERLAY_CIDR`].
    OverlayCidr,
    /// Below [`keys::NAMESPACES`].
    Namespace,
    /// Below [`keys::REGISTRATIONS`].
    Registration,
    /// Below [`keys::NODE_STATUS`].
    NodeStatus,
    /// Below [`keys::NODE_DESIRED`]: the desired state of this machine.
    NodeDesired {
        /// The machine's name.
        node: &'a str,
    },
    /// Below [`keys::WORKLOADS`].
    Workload,
    /// Below [`keys::WORKLOAD_STATUS`].
    WorkloadStatus,
    /// Below [`keys::ARCHIVE`].
    Archive,
    /// `subnet` of a machine.
    NodeSubnet,
    /// `wg_pubkey` of a machine.
    NodePublicKey,
    /// `wg_endpoints` of a machine.
    NodeEndpoints,
    /// `reach` of a machine.
    NodeReach,
    /// Below [`keys::ALLOCATIONS`].
    Allocation,
    /// `ip` of a service.
    ServiceAddress,
    /// `balance` of a service.
    ServiceBalance,
    /// `host_ports` of a service.
    ServiceHostPorts,
    /// Below [`keys::DNS`].
    DnsRecord,
    /// Below [`keys::TOKENS`].
    Token,
    /// Below [`keys::VOLUMES`].
    Volume,
    /// Below [`keys::SECRETS`].
    Secret,
    /// Below [`keys::LOGINS`].
    Login,
    /// Below [`keys::SEALING`].
    SealingKey,
    /// Below [`keys::INDEXES`].
    Index,
    /// [`keys::BACKUP`].
    Backup,
    /// [`keys::PLANNED`].
    Planned,
    /// Below [`keys::AUTHORITIES`].
    Authority,
    /// Below [`keys::EVENTS`].
    Event,
    /// Below [`keys::ELECTION`].
    Election,
}

/// The machines that see a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// None.
    Never,
    /// Every machine.
    All,
    /// The machine that the key is about.
    Own,
}

impl<'a> StoreKey<'a> {
    /// What a key holds; `None` for a key that this version does not know.
    pub fn parse(key: &'a str) -> Option<Self> {
        let exact = match key {
            keys::SCHEMA_VERSION => Some(Self::SchemaVersion),
            keys::CLUSTER_UID => Some(Self::ClusterUid),
            keys::LEADER_ENDPOINT => Some(Self::LeaderEndpoint),
            keys::LEADER_NAME => Some(Self::LeaderName),
            keys::CLUSTER => Some(Self::Cluster),
            keys::CLUSTER_AUTHORITY => Some(Self::ClusterAuthority),
            keys::ENDPOINTS => Some(Self::Endpoints),
            keys::MEMBERS => Some(Self::Members),
            keys::REGISTRIES => Some(Self::Registries),
            keys::STORE_EPOCH => Some(Self::StoreEpoch),
            keys::OVERLAY_CIDR => Some(Self::OverlayCidr),
            keys::BACKUP => Some(Self::Backup),
            keys::PLANNED => Some(Self::Planned),
            _ => None,
        };
        exact.or_else(|| {
            if let Some(rest) = key.strip_prefix(keys::NODE_DESIRED) {
                let (node, _) = rest.split_once('/')?;
                return (!node.is_empty()).then_some(Self::NodeDesired { node });
            }
            if let Some(rest) = key.strip_prefix(keys::NETWORK_NODES) {
                return match rest.split_once('/')?.1 {
                    "subnet" => Some(Self::NodeSubnet),
                    "wg_pubkey" => Some(Self::NodePublicKey),
                    "wg_endpoints" => Some(Self::NodeEndpoints),
                    "reach" => Some(Self::NodeReach),
                    _ => None,
                };
            }
            if let Some(rest) = key.strip_prefix(keys::SERVICES) {
                return match rest.rsplit_once('/')?.1 {
                    "ip" => Some(Self::ServiceAddress),
                    "balance" => Some(Self::ServiceBalance),
                    "host_ports" => Some(Self::ServiceHostPorts),
                    _ => None,
                };
            }
            let below = [
                (keys::NAMESPACES, Self::Namespace),
                (keys::REGISTRATIONS, Self::Registration),
                (keys::NODE_STATUS, Self::NodeStatus),
                (keys::WORKLOADS, Self::Workload),
                (keys::WORKLOAD_STATUS, Self::WorkloadStatus),
                (keys::ARCHIVE, Self::Archive),
                (keys::ALLOCATIONS, Self::Allocation),
                (keys::DNS, Self::DnsRecord),
                (keys::TOKENS, Self::Token),
                (keys::VOLUMES, Self::Volume),
                (keys::SECRETS, Self::Secret),
                (keys::LOGINS, Self::Login),
                (keys::SEALING, Self::SealingKey),
                (keys::INDEXES, Self::Index),
                (keys::AUTHORITIES, Self::Authority),
                (keys::EVENTS, Self::Event),
                (keys::ELECTION, Self::Election),
            ];
            let mut below = below.into_iter();
            below.find_map(|(prefix, kind)| key.starts_with(prefix).then_some(kind))
        })
    }

    /// The machines that see the key.
    pub fn visibility(self) -> Visibility {
        match self {
            Self::NodeDesired { .. } => Visibility::Own,
            Self::ClusterUid
            | Self::LeaderEndpoint
            | Self::LeaderName
            | Self::Cluster
            | Self::ClusterAuthority
            | Self::Endpoints
            | Self::Members
            | Self::Registries
            | Self::StoreEpoch
            | Self::NodeSubnet
            | Self::NodePublicKey
            | Self::NodeEndpoints
            | Self::NodeReach
            | Self::ServiceAddress
            | Self::ServiceBalance
            | Self::DnsRecord => Visibility::All,
            Self::SchemaVersion
            | Self::OverlayCidr
            | Self::Namespace
            | Self::Registration
            | Self::NodeStatus
            | Self::Workload
            | Self::WorkloadStatus
            | Self::Archive
            | Self::Allocation
            | Self::ServiceHostPorts
            | Self::Token
            | Self::Volume
            | Self::Secret
            | Self::Login
            | Self::SealingKey
            | Self::Index
            | Self::Backup
            | Self::Planned
            | Self::Authority
            | Self::Event
            | Self::Election => Visibility::Never,
        }
    }
}

/// The machines that see one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyViewers<'a> {
    /// No machine.
    None,
    /// Every machine.
    All,
    /// The machine of this name.
    One(&'a str),
}

impl KeyViewers<'_> {
    /// Whether the machine `node` is one of them.
    pub fn include(self, node: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::One(own) => own == node,
        }
    }
}

/// The machines that see `key`.
pub fn viewers_of(key: &str) -> KeyViewers<'_> {
    let Some(parsed) = StoreKey::parse(key) else {
        return KeyViewers::None;
    };
    match (parsed.visibility(), parsed) {
        (Visibility::All, _) => KeyViewers::All,
        (Visibility::Own, StoreKey::NodeDesired { node }) => KeyViewers::One(node),
        (Visibility::Own | Visibility::Never, _) => KeyViewers::None,
    }
}

/// Whether the machine `node` sees `key`.
pub fn is_visible(key: &str, node: &str) -> bool {
    viewers_of(key).include(node)
}

/// Prefixes that together hold every visible key of the machine `node`. They hold other keys too.
pub fn visible_prefixes(node: &str) -> [String; 4] {
    [
        keys::CONFIG.to_owned(),
        keys::node_desired(node),
        keys::NETWORK.to_owned(),
        keys::DNS.to_owned(),
    ]
}

/// Sizes of what machines see, keys and values together, as
/// [`crate::encoding::state_frames::MOST_LIST`] counts them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VisibleBytes {
    shared: usize,
    own: BTreeMap<String, usize>,
}

impl VisibleBytes {
    /// Counts a key with a value of this size.
    pub fn add(&mut self, key: &str, value: usize) {
        if let Some(bytes) = self.seen_with(key) {
            *bytes += key.len() + value;
        }
    }

    /// Counts no longer a key that was added with a value of this size.
    pub fn remove(&mut self, key: &str, value: usize) {
        if let Some(bytes) = self.seen_with(key) {
            *bytes = bytes.saturating_sub(key.len() + value);
        }
    }

    /// The bytes that the machines see who see this key.
    fn seen_with(&mut self, key: &str) -> Option<&mut usize> {
        match viewers_of(key) {
            KeyViewers::All => Some(&mut self.shared),
            KeyViewers::One(node) => Some(self.own.entry(node.to_owned()).or_default()),
            KeyViewers::None => None,
        }
    }

    /// Bytes of what the machine `node` sees.
    pub fn of(&self, node: &str) -> usize {
        self.shared + self.own.get(node).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One key of each kind that `keys` can make, and whether the machine `n1` sees it.
    fn all_keys() -> Vec<(String, bool)> {
        let shown = |key: String| (key, true);
        let hidden = |key: String| (key, false);
        vec![
            hidden(keys::SCHEMA_VERSION.to_owned()),
            shown(keys::CLUSTER_UID.to_owned()),
            shown(keys::LEADER_ENDPOINT.to_owned()),
            shown(keys::LEADER_NAME.to_owned()),
            shown(keys::CLUSTER.to_owned()),
            shown(keys::CLUSTER_AUTHORITY.to_owned()),
            shown(keys::ENDPOINTS.to_owned()),
            shown(keys::MEMBERS.to_owned()),
            shown(keys::REGISTRIES.to_owned()),
            shown(keys::STORE_EPOCH.to_owned()),
            hidden(format!("{}settings", keys::CONFIG)),
            hidden(keys::OVERLAY_CIDR.to_owned()),
            hidden(keys::LAST_INDEX.to_owned()),
            hidden(keys::BACKUP.to_owned()),
            hidden(keys::PLANNED.to_owned()),
            hidden(keys::authority("etcd-client-ca")),
            hidden(keys::authority("cluster-ca")),
            hidden(keys::namespace("default")),
            hidden(keys::registration("n1")),
            hidden(keys::node_status("n1")),
            shown(keys::desired_meta("n1")),
            shown(keys::desired_instance("n1", "web-abcde")),
            shown(keys::desired_removal("n1", "default/db/data")),
            shown(keys::desired_move("n1", "default/db/data")),
            shown(keys::desired_images("n1")),
            hidden(keys::desired_meta("n2")),
            hidden(keys::desired_instance("n2", "web-abcde")),
            // A machine whose name begins with this machine's name.
            hidden(keys::desired_instance("n10", "web-abcde")),
            hidden(keys::volume("default/db/data")),
            hidden(keys::secret("default/password")),
            hidden(keys::login("default", "registry.example.org")),
            hidden(keys::sealing_key(1)),
            hidden(keys::manifest("default", "web", "workload.kat")),
            hidden(keys::workload_meta("default", "web")),
            hidden(keys::workload_status("default", "web")),
            hidden(keys::archive_file("default", "web", 1, "workload.kat")),
            hidden(keys::archive_meta("default", "web", 1)),
            shown(keys::network_node("n2", "subnet")),
            shown(keys::network_node("n2", "wg_pubkey")),
            shown(keys::network_node("n2", "wg_endpoints")),
            shown(keys::network_node("n2", "reach")),
            hidden(keys::network_node("n2", "private")),
            hidden(keys::allocation("web-abcde")),
            shown(keys::service_address("default", "web")),
            shown(keys::service_balance("default", "web")),
            hidden(keys::host_ports("default", "web")),
            shown(keys::dns_record("default", "web", "A", "10.100.0.2")),
            hidden(keys::token("0123456789ab")),
            hidden(keys::index(7)),
            hidden(keys::event("0001")),
            hidden(format!("{}1", keys::ELECTION)),
            hidden("/kat/later/version".to_owned()),
            hidden("/other".to_owned()),
            hidden(String::new()),
        ]
    }

    #[test]
    fn a_machine_sees_its_own_list_and_the_shared_keys_by_name() {
        for (key, shown) in all_keys() {
            assert_eq!(is_visible(&key, "n1"), shown, "{key}");
        }
    }

    #[test]
    fn every_key_of_a_stored_cluster_is_known() {
        let dump = include_str!("../../../tests/stored/1/store.json");
        let dump: BTreeMap<String, String> = serde_json::from_str(dump).unwrap();
        assert!(dump.len() > 20);
        for key in dump.keys() {
            assert!(StoreKey::parse(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_key_of_an_empty_or_nested_machine_name_belongs_to_no_other_machine() {
        for key in [
            "/kat/nodes/desired//meta",
            "/kat/nodes/desired/n1",
            "/kat/nodes/desired/n2/../n1/meta",
        ] {
            assert!(!is_visible(key, "n1"), "{key}");
            assert!(!is_visible(key, ""), "{key}");
        }
    }

    #[test]
    fn the_size_of_what_a_machine_sees_is_that_of_its_visible_keys() {
        let mut visible = VisibleBytes::default();
        for (key, _) in all_keys() {
            visible.add(&key, 100);
        }
        for node in ["n1", "n2", "n10", "n3"] {
            let keys = all_keys().into_iter().map(|(key, _)| key);
            let seen = keys.filter(|key| is_visible(key, node));
            let expected: usize = seen.map(|key| key.len() + 100).sum();
            assert_eq!(visible.of(node), expected, "{node}");
        }
        assert!(visible.of("n1") > visible.of("n2"));
        for (key, _) in all_keys() {
            visible.remove(&key, 100);
        }
        assert_eq!((visible.of("n1"), visible.of("n2")), (0, 0));
    }

    #[test]
    fn the_prefixes_hold_every_visible_key() {
        let prefixes = visible_prefixes("n1");
        for (key, shown) in all_keys() {
            let held = prefixes.iter().any(|prefix| key.starts_with(prefix));
            assert!(held || !shown, "{key}");
        }
    }
}
