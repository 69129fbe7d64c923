//! Images that machines keep besides those of their instances, and events of machines' disks.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Draft, OperationGroup};
use kat_types::{
    api::{Condition, DISK_PRESSURE, EventKind, ObjectKind, ObjectReference},
    images::{KeptImages, KeptUserImages},
    reason::EventReason,
    resource::ImagePullPolicy,
    store::{keys, records::NodeStatusRecord, snapshot::WorkloadEntry},
};

/// Maximum bytes of a machine's record of images, so that a transaction takes it. Users beyond that
/// keep all their images while they have instances, and none when these have gone.
const MOST_BYTES: usize = 1 << 20;
/// Bytes that a user or an image takes besides its name.
const BESIDES: usize = 64;

/// Writes the images that each machine has to keep, where they changed.
pub(super) fn plan_images(draft: &mut Draft<'_>, statuses: &BTreeMap<String, NodeStatusRecord>) {
    let snapshot = draft.snapshot;
    let workloads = snapshot.workloads.values();
    let workloads = workloads.filter(|entry| !entry.meta.value.deleting);
    let entries: BTreeMap<u32, &WorkloadEntry> = workloads
        .map(|entry| (entry.meta.value.index, entry.as_ref()))
        .collect();
    let mut present: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (name, status) in statuses {
        let indexes = present.entry(name.as_str()).or_default();
        indexes.extend(&status.user_indexes);
    }
    for entry in snapshot.instances.values() {
        let indexes = present.entry(entry.node.as_str()).or_default();
        indexes.insert(entry.assignment.value.user.index);
    }
    let mut known: BTreeMap<u32, KeptUserImages> = BTreeMap::new();
    for name in snapshot.nodes.keys() {
        let indexes = present.remove(name.as_str()).unwrap_or_default();
        let users = indexes.into_iter().filter_map(|index| {
            let entry = entries.get(&index)?;
            let kept = known.entry(index).or_insert_with(|| kept_of(entry));
            Some((index, kept.clone()))
        });
        let users = bounded(users);
        let stored = snapshot.kept_images.get(name);
        let mut group = OperationGroup::default();
        if users.is_empty() {
            if stored.is_some() {
                group.delete(keys::desired_images(name));
            }
        } else if stored.is_none_or(|stored| stored.value.users != users) {
            group.put(keys::desired_images(name), &KeptImages { schema: 1, users });
        }
        let reason = format!("images that machine {name} keeps");
        draft.commit(group, reason, Vec::new());
    }
}

/// The users that fit into [`MOST_BYTES`].
fn bounded(users: impl Iterator<Item = (u32, KeptUserImages)>) -> BTreeMap<u32, KeptUserImages> {
    let mut bytes = 0;
    let fits = |(_, kept): &(u32, KeptUserImages)| {
        let names = kept.images.iter().map(|image| image.len() + BESIDES);
        bytes += BESIDES + names.sum::<usize>();
        bytes <= MOST_BYTES
    };
    users.take_while(fits).collect()
}

fn kept_of(entry: &WorkloadEntry) -> KeptUserImages {
    let meta = &entry.meta.value;
    let mut images = BTreeSet::new();
    let mut unknown = false;
    match &entry.parsed {
        Ok(parsed) => {
            for (image, policy) in parsed.workload.spec.images() {
                images.insert(meta.image.pinned(image).to_owned());
                // Somebody who puts images there by hand may do so before the version that runs
                // them is applied.
                unknown |= policy == Some(ImagePullPolicy::Never);
            }
        }
        Err(_) => unknown = true,
    }
    let good = entry.status.iter().flat_map(|status| &status.value.good);
    let good = good.rev().filter_map(|generation| {
        let record = entry.archive.get(generation)?.record.as_ref()?;
        Some((*generation, record))
    });
    let good: Vec<_> = good.collect();
    let last = good.first();
    let other = good.iter().find(|(_, record)| record.is_another(meta));
    for (generation, record) in last.into_iter().chain(other) {
        match &record.image {
            // The images of the present generation come from its files.
            image if image.is_empty() => unknown |= *generation != meta.generation,
            image => {
                unknown |= image.partial;
                images.extend(
                    image
                        .each()
                        .map(|one| image.pinned(&one.reference).to_owned()),
                );
            }
        }
    }
    KeptUserImages {
        images: images.into_iter().collect(),
        unknown,
    }
}

/// Writes events of a machine whose disk runs short or recovers, and of images that it removed.
pub(super) fn care_events(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    (name, uid): (&str, &str),
    before: &NodeStatusRecord,
    status: &NodeStatusRecord,
) {
    let object = || ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.to_owned(),
    };
    match (pressure(&before.conditions), pressure(&status.conditions)) {
        (None, Some(now)) => {
            let message = format!("{}; nothing new is placed on it", now.message);
            draft.event(
                group,
                EventKind::Warning,
                EventReason::DiskPressure,
                object(),
                message,
            );
        }
        (Some(_), None) => {
            let message = format!("machine {name} has enough free disk space again");
            let reason = EventReason::DiskPressureEnded;
            draft.event(group, EventKind::Normal, reason, object(), message);
        }
        _ => {}
    }
    if let Some(removed) = &status.images_removed
        && before.images_removed.as_ref() != Some(removed)
    {
        let message = removed.to_string();
        draft.event(
            group,
            EventKind::Normal,
            EventReason::ImagesRemoved,
            object(),
            message,
        );
    }
}

/// The condition of a machine that is short of disk space.
pub(super) fn pressure(conditions: &[Condition]) -> Option<&Condition> {
    let mut conditions = conditions.iter();
    conditions.find(|one| one.kind == DISK_PRESSURE && one.status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::store::transaction::MAX_BYTES;

    #[test]
    fn a_transaction_takes_the_record_however_long_names_are() {
        for length in [0, 20, 512] {
            let kept = KeptUserImages {
                images: vec!["r".repeat(length); 20],
                unknown: true,
            };
            let users = bounded((0..4000).map(|index| (index, kept.clone())));
            let record = KeptImages { schema: 1, users };
            let bytes = serde_json::to_vec(&record).unwrap().len();
            assert!(bytes < MAX_BYTES, "{length}: {bytes}");
            assert!(record.users.len() > 80, "{length}: {}", record.users.len());
        }
    }
}
