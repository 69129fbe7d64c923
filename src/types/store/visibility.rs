//! Which keys of the store a machine sees that does not hold the store.
//!
//! The decision is made key by key: a key that this version does not know is hidden, unless it is
//! part of the machine's own desired state.

use std::collections::BTreeMap;

use super::{
    keys,
    stored_objects::{SeenBy, StoredObject},
};

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
    let Some(object) = StoredObject::of(key) else {
        return KeyViewers::None;
    };
    match object.seen_by {
        SeenBy::None => KeyViewers::None,
        SeenBy::All => KeyViewers::All,
        SeenBy::Node => object
            .node_of(key)
            .map_or(KeyViewers::None, KeyViewers::One),
    }
}

/// Whether the machine `node` sees `key`.
pub fn is_visible(key: &str, node: &str) -> bool {
    viewers_of(key).include(node)
}

/// Prefixes that together hold every visible key of the machine `node`. They hold other keys too.
pub fn visible_prefixes(node: &str) -> [String; 5] {
    [
        keys::CONFIG.to_owned(),
        keys::node_desired(node),
        keys::NETWORK.to_owned(),
        keys::DNS.to_owned(),
        keys::ACME_CHALLENGES.to_owned(),
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
    use crate::store::stored_objects::STORED_OBJECTS;

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
            hidden(keys::acme_account("id")),
            hidden(keys::acme_order("shop.example.org")),
            shown(keys::acme_challenge("token")),
            hidden(keys::acme_dns("value")),
            hidden(keys::acme_new_orders("default")),
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
            shown(keys::allocation("web-abcde")),
            shown(keys::network_namespace("default")),
            shown(keys::service_access("default", "web")),
            shown(keys::service_address("default", "web")),
            shown(keys::service_balance("default", "web")),
            hidden(keys::host_ports("default", "web")),
            shown(keys::virtual_address([192, 168, 1, 9].into())),
            shown(keys::dns_record("default", "web", "A", "10.100.0.2")),
            shown(keys::WANTED_CONFIGURATION.to_owned()),
            hidden(keys::configuration(7)),
            hidden(keys::INGRESS_AUTHORITY.to_owned()),
            hidden(keys::ingress_certificate("shop.lan")),
            hidden(keys::job_state("shop", "backup")),
            hidden(keys::job_run("shop", "backup", "manual-1")),
            hidden(keys::INGRESS_CLAIMS.to_owned()),
            hidden(keys::outside_route("nas.lan/")),
            hidden(keys::INGRESS_RENEWAL.to_owned()),
            hidden(keys::INGRESS_STICKY.to_owned()),
            shown(keys::desired_routes_of("n1", "default", "web")),
            hidden(keys::desired_routes_of("n2", "default", "web")),
            hidden(keys::token("0123456789ab")),
            hidden(keys::index(7)),
            hidden(keys::event("0001")),
            hidden(format!("{}1", keys::ELECTION)),
            shown("/kat/nodes/desired/n1/later".to_owned()),
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
    fn every_object_has_a_key_of_the_module_that_makes_keys() {
        let made = all_keys();
        let known: Vec<_> = made
            .iter()
            .filter_map(|(key, _)| StoredObject::of(key))
            .collect();
        for object in STORED_OBJECTS {
            assert!(known.contains(&object), "{}", object.key);
        }
    }

    #[test]
    fn every_key_of_a_stored_cluster_is_known() {
        let dump = include_str!("../../../tests/stored/1/store.json");
        let dump: BTreeMap<String, String> = serde_json::from_str(dump).unwrap();
        assert!(dump.len() > 20);
        for key in dump.keys() {
            assert!(StoredObject::of(key).is_some(), "{key}");
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
