//! Labels that every machine has.

use std::collections::BTreeMap;

/// Label of machines that serve routes from outside, with the value [`INGRESS_ROLE`]; all serve them
/// while none has it.
pub const ROLE_LABEL: &str = "kat.dws.rip/role";
/// See [`ROLE_LABEL`].
pub const INGRESS_ROLE: &str = "ingress";
/// The label of earlier versions, with the value `true`.
pub const INGRESS_LABEL: &str = "kat.dws.rip/ingress";

/// Whether a machine with these labels is labelled to serve routes.
pub fn is_for_ingress(labels: &BTreeMap<String, String>) -> bool {
    let has = |label: &str, value: &str| labels.get(label).is_some_and(|own| own == value);
    has(ROLE_LABEL, INGRESS_ROLE) || has(INGRESS_LABEL, "true")
}

/// Label of a machine that is never to become a member of etcd; its only value is [`NEVER`]. One that
/// is a member stays one.
pub const ETCD_LABEL: &str = "kat.dws.rip/etcd";
/// See [`ETCD_LABEL`].
pub const NEVER: &str = "never";

const NODE_NAME: &str = "kat.dws.rip/nodeName";
const ARCHITECTURE: &str = "kat.dws.rip/arch";
const OPERATING_SYSTEM: &str = "kat.dws.rip/os";

/// Labels that say what a machine is; users can't change them.
pub const OWN_LABELS: [&str; 3] = [NODE_NAME, ARCHITECTURE, OPERATING_SYSTEM];

/// Labels that every machine has.
pub fn node_labels(name: &str, architecture: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (NODE_NAME.to_owned(), name.to_owned()),
        (ARCHITECTURE.to_owned(), architecture.to_owned()),
        (OPERATING_SYSTEM.to_owned(), "linux".to_owned()),
    ])
}
