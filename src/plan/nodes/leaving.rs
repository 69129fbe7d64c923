//! Machines being deleted: their instances are removed first, then everything stored for them. The
//! next plan creates the instances anew on other machines.

use crate::{
    Snapshot,
    draft::{Draft, OperationGroup},
    ingress,
};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference},
    reason::EventReason,
    store::keys,
};

/// Most secrets that an event names.
const MOST_NAMED: usize = 5;

/// The secrets with certificates of users whose keys a machine holds; the first ones, and the number of
/// the rest.
fn brought_certificates(snapshot: &Snapshot, node: &str) -> Vec<String> {
    let of_node = snapshot.routes.get(node).into_iter().flatten();
    let mut names: Vec<String> = of_node
        .flat_map(|(key, stored)| {
            let secrets = stored.value.secrets.iter();
            let given = secrets.flat_map(|secrets| secrets.versions.keys());
            let named = given.filter_map(|given| given.strip_prefix("tls:"));
            named.map(|secret| format!("{}/{secret}", key.namespace))
        })
        .collect();
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(MOST_NAMED);
    names.truncate(MOST_NAMED);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names
}

/// Returns true while a machine is being deleted; nothing else is planned in the same round.
pub(crate) fn plan_leaving(draft: &mut Draft<'_>) -> bool {
    let snapshot = draft.snapshot;
    let mut leaving = false;
    for (name, node) in &snapshot.nodes {
        if !node.registration.value.deleting {
            continue;
        }
        leaving = true;
        let mut group = OperationGroup::default();
        for (id, entry) in &snapshot.instances {
            if entry.node != *name {
                continue;
            }
            draft.remove(&mut group, name, id);
            if Draft::is_full(&group) {
                let full = std::mem::take(&mut group);
                draft.commit(full, format!("instances of machine {name}"), Vec::new());
            }
        }
        draft.commit(group, format!("instances of machine {name}"), Vec::new());
        let mut group = OperationGroup::default();
        let object = ObjectReference {
            kind: ObjectKind::Node,
            name: name.clone(),
            namespace: String::new(),
            uid: node.registration.value.uid.clone(),
        };
        let mut message = format!("machine {name} is no part of the cluster any more");
        let brought = brought_certificates(snapshot, name);
        if !brought.is_empty() {
            message.push_str("; it held the keys of the certificates in these secrets, which only their users can replace: ");
            message.push_str(&brought.join(", "));
        }
        draft.event(
            &mut group,
            EventKind::Normal,
            EventReason::NodeLeft,
            object,
            message,
        );
        if let Some(next) = ingress::certificates::next_round(snapshot) {
            let key = keys::INGRESS_RENEWAL.to_owned();
            group.put(key, &next);
        }
        group.delete(keys::registration(name));
        group.delete(keys::node_status(name));
        group.delete_prefix(keys::network_node(name, ""));
        group.delete_prefix(keys::node_desired(name));
        draft.commit(group, format!("machine {name} leaves"), Vec::new());
    }
    leaving
}
