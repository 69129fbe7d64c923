//! Which machine holds the data of a volume (RFC001-KAT 4.7): an instance runs where its data is,
//! or waits.
//!
//! The place is recorded with the first instance. It stays when that instance ends or is replaced,
//! and when its workload is deleted, until the data's removal is requested. A volume base path that
//! machines share pins nothing.

pub(crate) mod moves;
pub(crate) mod removals;

use std::collections::BTreeMap;

pub use self::removals::{is_forgotten, is_missing};
use super::{Snapshot, draft::Draft, service::WorkloadPlanner};
use crate::rollout::{slot::LiveInstance, slots::slot_of_machine};
use kat_types::{
    api::InstancePhase,
    assignment::{AssignedVolume, Assignment, DesiredRun, is_machine_slot},
    resource::{Container, EnsureType, ReclaimPolicy, Volume, WorkloadSpec},
    store::{
        records::{NodeStatusRecord, VolumeRecord},
        revisions::WorkloadKey,
    },
    volumes::{VolumeKey, VolumeMove},
};

/// The machines that an instance may run on because of its volumes' data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumePlacement<'a> {
    /// The only machine; `None` if the data does not pin the instance to one.
    pub on: Option<&'a str>,
    /// Only a machine with the shared volume base path.
    pub shared: bool,
}

/// An instance of this workload may change data that outlives it.
pub(super) fn writes_data(spec: &WorkloadSpec) -> bool {
    spec.writes_data()
}

/// The key of a slot's volume whose place is recorded: cluster storage, or a host path that KAT
/// creates and `container` writes to. `None` for any other volume, and for one that `container`
/// does not mount.
fn tracked(
    workload: &WorkloadKey,
    volume: &Volume,
    container: &Container,
    slot: u32,
) -> Option<VolumeKey> {
    let name = &volume.name;
    if !container.mounts(name) {
        return None;
    }
    let made_here = |kind: &EnsureType| {
        matches!(
            kind,
            EnsureType::DirectoryOrCreate | EnsureType::FileOrCreate
        )
    };
    let host = volume.host_mount.as_ref();
    let host = host.and_then(|host| host.ensure_type.as_ref());
    let part = if volume.simple_cluster_storage.is_some() {
        match volume.per_replica || is_machine_slot(slot) {
            true => format!("{name}.{slot}"),
            false => name.clone(),
        }
    } else if host.is_some_and(made_here) && container.writes_to(name) {
        format!("{name}@host.{slot}")
    } else {
        return None;
    };
    Some(VolumeKey {
        workload: workload.clone(),
        volume: part,
    })
}

/// The record is of this volume: its manifest may name another host path now.
fn is_of(record: &VolumeRecord, volume: &Volume) -> bool {
    let path = volume.host_mount.as_ref().map(|host| &host.host_path);
    record.host_path.as_ref() == path
}

/// The record is of a machine that does not have this slot any more: it has left the
/// cluster, or came back with another subnet. What is on it is not the data of the next one.
fn is_of_former_machine(snapshot: &Snapshot, key: &VolumeKey, record: &VolumeRecord) -> bool {
    let Some(slot) = key.slot().filter(|slot| is_machine_slot(*slot)) else {
        return false;
    };
    record.node.as_ref().is_some_and(|node| {
        let node = snapshot.nodes.get(node);
        node.is_none_or(|node| slot_of_machine(snapshot, node).is_some_and(|own| own != slot))
    })
}

fn is_shared(statuses: &BTreeMap<String, NodeStatusRecord>, node: &str) -> bool {
    statuses
        .get(node)
        .is_some_and(|status| status.volume_shared)
}

/// The instance's data lies on its machine and nowhere else.
pub(super) fn is_pinned(
    draft: &Draft<'_>,
    workload: &WorkloadKey,
    assignment: &Assignment,
    statuses: &BTreeMap<String, NodeStatusRecord>,
) -> bool {
    let volumes = assignment.volumes.iter().map(|volume| &volume.definition);
    let mut keys = volumes.filter_map(|volume| {
        let key = tracked(workload, volume, &assignment.together(), assignment.slot)?;
        Some((volume, key))
    });
    keys.any(|(volume, key)| {
        let record = draft.volume(&key).filter(|record| is_of(record, volume));
        let node = record.and_then(|record| record.node.as_deref());
        node.is_some_and(|node| volume.host_mount.is_some() || !is_shared(statuses, node))
    })
}

/// The machine on which the data of a workload's first slot lies and nowhere else, if there is one.
pub(super) fn pinned_machine(
    draft: &Draft<'_>,
    workload: &WorkloadKey,
    spec: &WorkloadSpec,
    statuses: &BTreeMap<String, NodeStatusRecord>,
) -> Option<String> {
    let together = spec.together();
    spec.volumes.iter().find_map(|volume| {
        let key = tracked(workload, volume, &together, 0)?;
        let record = draft.volume(&key).filter(|record| is_of(record, volume))?;
        let node = record.node.clone()?;
        (!is_shared(statuses, &node)).then_some(node)
    })
}

impl<'a> WorkloadPlanner<'_, 'a, '_> {
    /// The machines that an instance of a slot may run on. An error is the reason why none is
    /// possible now.
    pub(super) fn held(
        &self,
        volumes: &[Volume],
        container: &Container,
        slot: u32,
    ) -> Result<VolumePlacement<'a>, String> {
        let snapshot = self.draft.snapshot;
        let mut held = VolumePlacement::default();
        let mut first: Option<&str> = None;
        for volume in volumes {
            let Some(key) = tracked(self.key, volume, container, slot) else {
                continue;
            };
            let name = &volume.name;
            let record = self.draft.volume(&key);
            let Some(record) = record.filter(|record| is_of(record, volume)) else {
                continue;
            };
            let place = record.node.as_deref();
            if is_of_former_machine(snapshot, &key, record) {
                continue;
            }
            if let Some(moving) = &record.moving {
                let VolumeMove { from, to, .. } = moving;
                return Err(format!(
                    "the data of its volume {name} is on its way from {from} to {to}"
                ));
            }
            let made = record.made || place.is_some_and(|node| self.has_made(&key, node));
            if !made && !record.deleting && !self.is_claimed(&key, slot) {
                // No instance has run with the volume: there is no data to return to.
                continue;
            }
            if record.deleting {
                let wait = self.missing_on(&key);
                let wait = wait.map_or_else(String::new, |node| {
                    format!(
                        ", and {node} does not find it: mount its disk, or give the data up with `katcall volume forget {key} --on {node}`"
                    )
                });
                let place = place.map_or_else(String::new, |node| format!(" from {node}"));
                return Err(format!(
                    "the data of its volume {name} is being removed{place}{wait}"
                ));
            }
            let shares = volume.simple_cluster_storage.is_some();
            let own = place.filter(|node| !(shares && is_shared(self.around.statuses, node)));
            let Some(node) = own else {
                held.shared = true;
                continue;
            };
            let Some((node, _)) = snapshot.nodes.get_key_value(node) else {
                return Err(format!(
                    "the data of its volume {name} lies on {node}, which is no machine of the cluster; `katcall delete volume {key}` gives it up"
                ));
            };
            match (held.on, first) {
                (Some(other), Some(before)) if other != node => {
                    return Err(format!(
                        "the data of its volume {before} lies on {other}, and that of {name} on {node}"
                    ));
                }
                _ => {
                    held.on = Some(node);
                    first = Some(name);
                }
            }
        }
        Ok(held)
    }

    /// A machine that is to remove data of the volume and does not find it.
    fn missing_on(&self, key: &VolumeKey) -> Option<&'a str> {
        let removals = self.draft.snapshot.removals.iter();
        let mut own = removals.filter_map(|(node, all)| Some((node, all.get(key)?)));
        let missing = own.find(|(node, removal)| {
            let status = self.around.statuses.get(*node);
            status.is_some_and(|status| is_missing(status, key, removal))
        });
        missing.map(|(node, _)| node.as_str())
    }

    /// This plan has placed the volume, or a wanted instance of another slot has it.
    fn is_claimed(&self, key: &VolumeKey, slot: u32) -> bool {
        let mut instances = self.draft.instances_of(self.key).iter();
        let another = instances.any(|(_, entry)| {
            let assignment = &entry.assignment.value;
            let apart = assignment.slot != slot && assignment.wanted == DesiredRun::Running;
            apart && has(assignment, key)
        });
        another || self.draft.has_placed(key)
    }

    /// The volumes of an instance on `node`; records their places.
    pub(super) fn assigned_volumes(
        &mut self,
        volumes: &[Volume],
        container: &Container,
        slot: u32,
        node: &str,
    ) -> Vec<AssignedVolume> {
        for volume in volumes {
            if let Some(key) = tracked(self.key, volume, container, slot) {
                self.write_down(&key, volume, node, false);
            }
        }
        self.volumes_of(volumes, container, slot)
    }

    /// The volumes of an instance by their present records.
    pub(super) fn volumes_of(
        &self,
        volumes: &[Volume],
        container: &Container,
        slot: u32,
    ) -> Vec<AssignedVolume> {
        let mounted = volumes.iter().filter(|one| container.mounts(&one.name));
        let assigned = mounted.map(|volume| {
            let key = tracked(self.key, volume, container, slot);
            let record = key.as_ref().and_then(|key| self.draft.volume(key));
            let made = record.is_some_and(|record| record.made);
            let stored = key.filter(|_| volume.simple_cluster_storage.is_some());
            AssignedVolume {
                definition: volume.clone(),
                folder: stored.map(|key| key.to_string()),
                made,
            }
        });
        assigned.collect()
    }

    /// Records that volumes of instances that have run hold data, and the reclaim policy that the
    /// manifest has now.
    pub(super) fn note_volumes(&mut self, all: &[LiveInstance<'_>]) {
        let users = all
            .iter()
            .filter(|live| !live.assignment.volumes.is_empty());
        for live in users.filter(|live| !live.away) {
            let phase = live.record.map(|record| record.phase);
            let has_run = matches!(
                phase,
                Some(
                    InstancePhase::Running
                        | InstancePhase::Restarting
                        | InstancePhase::Stopping
                        | InstancePhase::Failed
                        | InstancePhase::Succeeded
                )
            );
            let mut assignment = Assignment::clone(live.assignment);
            for volume in &mut assignment.volumes {
                let definition = Volume {
                    reclaim: self.reclaim_of(&volume.definition.name, volume.definition.reclaim),
                    ..volume.definition.clone()
                };
                let (container, slot) = (live.assignment.together(), live.assignment.slot);
                let Some(key) = tracked(self.key, &definition, &container, slot) else {
                    continue;
                };
                if has_run || self.has_made(&key, live.node) {
                    self.write_down(&key, &definition, live.node, true);
                    volume.made = true;
                }
            }
            // The assignment says that the data was made: should its folder disappear one day, the
            // machine does not start with an empty one.
            if live.is_wanted() && assignment != **live.assignment && !self.is_frozen() {
                self.make_room_for(&assignment);
                self.draft.update(&mut self.group, live.node, &assignment);
                self.flush_if_full();
            }
        }
    }

    /// The reclaim policy of a volume in the manifest, or `otherwise` if the manifest does not name
    /// it; `Retain` if the manifest can't be read.
    fn reclaim_of(&self, name: &str, otherwise: ReclaimPolicy) -> ReclaimPolicy {
        let Ok(parsed) = &self.entry.parsed else {
            return ReclaimPolicy::Retain;
        };
        let mut volumes = parsed.workload.spec.volumes.iter();
        let volume = volumes.find(|volume| volume.name == name);
        volume.map_or(otherwise, |volume| volume.reclaim)
    }

    /// The machine reports that it has created the volume's folder.
    fn has_made(&self, key: &VolumeKey, node: &str) -> bool {
        let status = self.around.statuses.get(node);
        let name = key.to_string();
        status.is_some_and(|status| status.made_volumes.contains(&name))
    }

    /// Records where the data of a volume lies, if that changed.
    fn write_down(&mut self, key: &VolumeKey, volume: &Volume, node: &str, made: bool) {
        let shares =
            volume.simple_cluster_storage.is_some() && is_shared(self.around.statuses, node);
        let before = self.draft.volume(key);
        let before = before.filter(|record| is_of(record, volume));
        let snapshot = self.draft.snapshot;
        let before = before
            .filter(|record| !is_of_former_machine(snapshot, key, record))
            .cloned();
        // Existing data does not move by itself; at most its machine turns out to share it.
        let there = before.as_ref().filter(|before| before.made);
        let place = match there {
            Some(there) if there.node.as_deref() == Some(node) && shares => None,
            Some(there) => there.node.clone(),
            None => (!shares).then(|| node.to_owned()),
        };
        let record = VolumeRecord {
            schema: 1,
            index: self.entry.meta.value.index,
            node: place,
            host_path: volume
                .host_mount
                .as_ref()
                .map(|host| host.host_path.clone()),
            made: made || before.as_ref().is_some_and(|before| before.made),
            reclaim: volume.reclaim,
            deleting: before.as_ref().is_some_and(|before| before.deleting),
            created: before
                .as_ref()
                .map_or(self.draft.now, |before| before.created),
            moving: before.as_ref().and_then(|before| before.moving.clone()),
            kept: before
                .as_ref()
                .map_or_else(Vec::new, |before| before.kept.clone()),
            forgotten: before
                .as_ref()
                .map_or_else(BTreeMap::new, |before| before.forgotten.clone()),
        };
        if before.as_ref() != Some(&record) {
            self.draft.put_volume(&mut self.group, key, record);
            self.flush_if_full();
        }
    }

    /// Marks the data that is to be removed with a workload that is being deleted. Returns true
    /// while the workload has any volume record.
    pub(super) fn give_up_volumes(&mut self) -> bool {
        let all = self.entry.meta.value.deletes_volumes;
        let records: Vec<(VolumeKey, VolumeRecord)> = self.draft.volumes_of(self.key);
        for (key, record) in &records {
            let goes = all || self.reclaim_of(key.name(), record.reclaim) == ReclaimPolicy::Delete;
            if goes && !record.deleting {
                let record = VolumeRecord {
                    deleting: true,
                    ..record.clone()
                };
                self.draft.put_volume(&mut self.group, key, record);
                self.flush_if_full();
            }
        }
        !records.is_empty()
    }
}

/// Instances that have a volume, or may have it until their machine confirms that they ended.
pub fn users_of<'s>(snapshot: &'s Snapshot, key: &'s VolumeKey) -> impl Iterator<Item = &'s str> {
    let assignments = snapshot.instances_of(&key.workload);
    let users = assignments.filter(|(_, entry)| has(&entry.assignment.value, key));
    users.map(|(id, _)| id.as_str())
}

/// An instance mounts this volume.
pub(super) fn has(assignment: &Assignment, key: &VolumeKey) -> bool {
    let (together, slot) = (assignment.together(), assignment.slot);
    assignment.volumes.iter().any(|volume| {
        let own = tracked(&key.workload, &volume.definition, &together, slot);
        own.as_ref() == Some(key)
    })
}
