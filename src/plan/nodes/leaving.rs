//! Machines being deleted: their instances are removed first, then everything stored for them. The
//! next plan creates the instances anew on other machines.

use crate::draft::{Draft, OperationGroup};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference},
    reason::EventReason,
    store::keys,
};

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
        let message = format!("machine {name} is no part of the cluster any more");
        draft.event(
            &mut group,
            EventKind::Normal,
            EventReason::NodeLeft,
            object,
            message,
        );
        group.delete(keys::registration(name));
        group.delete(keys::node_status(name));
        group.delete_prefix(keys::network_node(name, ""));
        group.delete_prefix(keys::node_desired(name));
        draft.commit(group, format!("machine {name} leaves"), Vec::new());
    }
    leaving
}
