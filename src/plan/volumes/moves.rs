//! Moves of volumes' data to another machine.
//!
//! A record with `moving` keeps every instance that mounts the volume from starting. When the last
//! of these has ended, the machine with the data is asked to send it and the other machine to
//! receive it. The receiver makes a copy beside the volume's place, compares it, and reports that.
//! One transaction then makes the copy the data: it changes the machine in the record and asks the
//! receiver to put the copy in its place, which the receiver confirms. The source stays where it
//! was for a day. So at any point one machine has the data, the record names that machine, and the
//! source is unchanged until the copy is confirmed in its place.

pub(crate) mod cleanup;
pub(crate) mod early_end;
mod phase;

use std::collections::BTreeMap;

use jiff::Timestamp;

use self::{
    early_end::{add_kept_copy, has_kept},
    phase::{CopyReports, CopyTotals, MovePhase, MovingVolumes},
};
use crate::{
    InstanceDemand, Snapshot, VolumePlacement, choose, default_requests,
    draft::{Draft, OperationGroup},
    instances::create::health_check_of,
    rollout::{blocked::DataMove, slot::LiveInstance},
    scheduling::{
        host_ports::{of_instance, ports_of},
        machines::Machines,
    },
    service::WorkloadPlanner,
    volumes,
};
use kat_types::{
    api::{EventKind, NodePhase, ObjectKind, ObjectReference, VolumeMoveReport},
    assignment::needs_crun,
    reason::EventReason,
    store::{
        keys,
        records::{NodeStatusRecord, VolumeRecord},
    },
    volumes::{MoveRecord, VolumeKey, VolumeMove},
};

pub(crate) use crate::volumes::moves::cleanup::move_events;
pub use crate::volumes::moves::early_end::{
    is_used_meanwhile, receiver_phase, stopped_move, without_move,
};

/// Volumes that have to be on the same machine as this one, which is included: those of an instance
/// that mounts it, and all volumes of the workload there if one is shared by all replicas.
pub fn moves_together(snapshot: &Snapshot, key: &VolumeKey) -> Vec<VolumeKey> {
    let Some(node) = node_of(snapshot, key) else {
        return vec![key.clone()];
    };
    let of_workload = |other: &&VolumeKey| {
        let here = node_of(snapshot, other) == Some(node);
        here && other.workload == key.workload
    };
    let all: Vec<&VolumeKey> = snapshot.volumes.keys().filter(of_workload).collect();
    // A volume that all replicas share ties all of them to its machine.
    let shared = all.iter().any(|other| other.slot().is_none());
    let together = all.into_iter();
    let together = together.filter(|other| shared || other.slot() == key.slot());
    together.cloned().collect()
}

fn node_of<'s>(snapshot: &'s Snapshot, key: &VolumeKey) -> Option<&'s str> {
    snapshot.volumes.get(key)?.value.node.as_deref()
}

/// Why an instance of a volume's workload could not run on `node` if `node` had its data.
pub fn why_it_does_not_fit(
    snapshot: &Snapshot,
    key: &VolumeKey,
    node: &str,
    now: Timestamp,
) -> Option<String> {
    let entry = snapshot.workloads.get(&key.workload)?;
    let parsed = entry.parsed.as_ref().ok()?;
    let spec = &parsed.workload.spec;
    let statuses = snapshot.nodes.iter().filter_map(|(name, node)| {
        let status = node.status.as_ref()?;
        Some((name.clone(), status.value.clone()))
    });
    let statuses: BTreeMap<String, NodeStatusRecord> = statuses.collect();
    let draft = Draft::new(snapshot, now, crate::SEED);
    let mut machines = Machines::new(&draft, &statuses);
    let candidates = machines.candidates(&key.workload, &draft);
    // Instances with the moving data make room; the workload's other instances stay.
    let together = moves_together(snapshot, key);
    let own = draft.instances_of(&key.workload).iter();
    let replaces: Vec<&str> = own
        .filter(|(_, entry)| {
            let assignment = &entry.assignment.value;
            together.iter().any(|key| volumes::has(assignment, key))
        })
        .map(|(_, entry)| entry.node.as_str())
        .collect();
    let ports = of_instance(ports_of(parsed).to_vec());
    let demand = InstanceDemand {
        images: Some(&entry.meta.value.image),
        default_requests: default_requests(snapshot, &key.workload.namespace),
        ports: &ports,
        workload: Some(&key.workload),
        index: Some(entry.meta.value.index),
        needs_crun: needs_crun(spec, health_check_of(parsed)),
        held: VolumePlacement {
            on: Some(node),
            shared: false,
        },
        replaces: &replaces,
        ..InstanceDemand::of(spec)
    };
    choose(demand, candidates, 0)
        .err()
        .map(|reason| reason.to_string())
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Stops instances whose data moves to another machine, and returns how far the move is.
    pub(crate) fn stop_what_moves(&mut self, all: &[LiveInstance<'_>]) -> Option<DataMove> {
        let records = self.draft.volumes_of(self.key).into_iter();
        let moving: Vec<_> = records
            .filter_map(|(key, record)| Some((key, record.moving?)))
            .collect();
        for live in all.iter().filter(|live| live.is_wanted()) {
            let its = |(key, _): &&(VolumeKey, VolumeMove)| volumes::has(live.assignment, key);
            let to = moving.iter().find(its).map(|(_, moving)| moving.to.clone());
            if let Some(to) = to {
                self.stop(live, &format!("its data moves to {to}"));
            }
        }
        let (key, VolumeMove { from, to, .. }) = moving.first()?;
        let report = report_of(
            self.around.statuses,
            key,
            moving.first().map(|(_, one)| one),
        );
        let mut has = all.iter();
        let has = has.find(|live| volumes::has(live.assignment, key));
        let fails = has.is_none() && report.is_some_and(|report| !report.message.is_empty());
        let far = if let Some(live) = has {
            let away = match live.away {
                true => ", whose machine does not answer",
                false => "",
            };
            format!("{} has to end first{away}", live.id)
        } else if moving.iter().any(|(_, one)| one.placing) {
            message_of_failure(report, format!("{to} puts it in its place"))
        } else {
            message_of_failure(report, format!("{to} copies it"))
        };
        let volume = &key.volume;
        Some(DataMove {
            far: format!(
                "the data of its volume {volume} is on its way from {from} to {to}: {far}"
            ),
            fails,
        })
    }

    /// The command that moves an instance which its data pins to its machine; empty if none does.
    pub(crate) fn how_it_moves(&self, live: &LiveInstance<'_>) -> String {
        let records = self.draft.volumes_of(self.key);
        let mut pinned = records.iter().filter(|(key, record)| {
            let here = record.node.as_deref() == Some(live.node) && record.host_path.is_none();
            here && record.made && volumes::has(live.assignment, key)
        });
        let shares = self.around.statuses.get(live.node);
        match pinned.next() {
            Some((key, _)) if !shares.is_some_and(|status| status.volume_shared) => {
                format!("; `katcall volume move {key} --to NODE` moves it")
            }
            _ => String::new(),
        }
    }
}

/// The message of the last failure, which is retried, or `otherwise`.
fn message_of_failure(report: Option<&VolumeMoveReport>, otherwise: String) -> String {
    let message = report.map(|report| report.message.as_str());
    let message = message.filter(|message| !message.is_empty());
    message.map_or(otherwise, |message| format!("{message}; it is tried again"))
}

fn report_of<'s>(
    statuses: &'s BTreeMap<String, NodeStatusRecord>,
    key: &VolumeKey,
    moving: Option<&VolumeMove>,
) -> Option<&'s VolumeMoveReport> {
    let moving = moving?;
    let name = key.to_string();
    let mut reports = statuses.get(&moving.to)?.volume_moves.iter();
    reports.find(|report| report.volume == name && report.id == moving.id)
}

/// Advances each move by one step, and has copies removed that were kept long enough.
pub(crate) fn plan_moves(draft: &mut Draft<'_>, statuses: &BTreeMap<String, NodeStatusRecord>) {
    let mut groups: BTreeMap<String, Vec<(VolumeKey, VolumeMove)>> = BTreeMap::new();
    for key in draft.snapshot.volumes.keys() {
        // The record as this plan leaves it.
        let moving = draft.volume(key).and_then(|record| record.moving.clone());
        if let Some(moving) = moving.filter(|_| !draft.keeps(&key.workload)) {
            let id = format!("{} {}", key.workload, moving.id);
            groups.entry(id).or_default().push((key.clone(), moving));
        }
    }
    for volumes in groups.values() {
        if let Some((_, moving)) = volumes.first() {
            plan_move(draft, statuses, &MovingVolumes { volumes, moving });
        }
    }
    cleanup::plan_needless(draft);
    cleanup::plan_kept(draft, statuses);
}

/// Takes the next step of one move.
fn plan_move(
    draft: &mut Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    group: &MovingVolumes<'_>,
) {
    let moving = group.moving;
    let phase = MovePhase::of(draft, statuses, group);
    match (phase, CopyReports::of(statuses, group)) {
        (MovePhase::Overtaken, _) => {
            let told = format!(
                "does not move to {}: a leader that knows no moves has started an instance with it",
                moving.to
            );
            end(draft, group, MoveEnd::failed(told), |_, record, _| {
                without_move(record)
            });
        }
        (MovePhase::Stranded(why), _) => {
            end(draft, group, MoveEnd::failed(why), |_, record, _| {
                without_move(record)
            });
        }
        (MovePhase::GivenUp(why), _) => {
            let taker = statuses.get(&moving.to);
            let change =
                |key: &VolumeKey, record: &VolumeRecord, now| stopped_move(key, record, taker, now);
            let told = format!("does not move to {}: {why}", moving.to);
            end(draft, group, MoveEnd::failed(told), change);
        }
        (MovePhase::Stopping, _) => {}
        (MovePhase::Copying, CopyReports::Incomplete) => request(draft, group, MoveRequest::Copy),
        (MovePhase::Copying, CopyReports::Copied | CopyReports::Placed(_)) => {
            request(draft, group, MoveRequest::Commit);
        }
        (MovePhase::Placing, CopyReports::Incomplete | CopyReports::Copied) => {
            request(draft, group, MoveRequest::Place);
        }
        (MovePhase::Placing, CopyReports::Placed(totals)) => {
            let about = MoveEnd::moved(moving, &totals);
            end(draft, group, about, |_, record, _| without_move(record));
        }
    }
}

/// What the machines of a move are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MoveRequest {
    /// One sends the data, the other makes a copy.
    Copy,
    /// The copy becomes the data, and is put in its place.
    Commit,
    /// The copy, which is the data, is put in its place.
    Place,
}

/// Writes what the machines of a move are asked for, as far as it is not stored.
fn request(draft: &mut Draft<'_>, moved: &MovingVolumes<'_>, request: MoveRequest) {
    let mut group = OperationGroup::default();
    for (key, own) in moved.volumes {
        let Some(record) = draft.volume(key).cloned() else {
            continue;
        };
        let place = request != MoveRequest::Copy;
        let desired_move = desired_move(draft, key, own, &record, place);
        if request == MoveRequest::Commit {
            let record = committed(record, own, draft.now);
            draft.put_volume(&mut group, key, record);
        }
        put_desired_move(draft, &mut group, key, &desired_move);
    }
    let MovingVolumes { moving, .. } = moved;
    let reason = format!("move {} of volumes to {}", moving.id, moving.to);
    draft.commit(group, reason, Vec::new());
}

fn desired_move(
    draft: &Draft<'_>,
    key: &VolumeKey,
    own: &VolumeMove,
    record: &VolumeRecord,
    place: bool,
) -> MoveRecord {
    let stored = draft.snapshot.moves.get(&own.to);
    let stored = stored.and_then(|all| all.get(key));
    MoveRecord {
        schema: 1,
        id: own.id.clone(),
        from: own.from.clone(),
        to: own.to.clone(),
        index: record.index,
        place,
        replaces: match stored {
            Some(stored) if stored.id == own.id => stored.replaces,
            _ => has_kept(record, &own.to),
        },
    }
}

/// The record from which on the copy is the data, and the source is a kept copy.
fn committed(record: VolumeRecord, own: &VolumeMove, now: Timestamp) -> VolumeRecord {
    let mut kept = record.kept.iter();
    let replaced = kept.find(|copy| copy.node == own.to).cloned();
    let mut record = VolumeRecord {
        node: Some(own.to.clone()),
        made: true,
        moving: Some(VolumeMove {
            placing: true,
            replaced,
            ..own.clone()
        }),
        ..record
    };
    record.kept.retain(|copy| copy.node != own.to);
    record.forgotten.remove(&own.to);
    add_kept_copy(&mut record, &own.from, now);
    record
}

/// Writes the desired move of both machines, or of the receiving one alone once it is to put the
/// copy in its place.
fn put_desired_move(
    draft: &Draft<'_>,
    group: &mut OperationGroup,
    key: &VolumeKey,
    desired_move: &MoveRecord,
) {
    let name = key.to_string();
    let MoveRecord { from, to, .. } = desired_move;
    let stored = |node: &str| draft.snapshot.moves.get(node).and_then(|all| all.get(key));
    if stored(to) != Some(desired_move) {
        group.put(keys::desired_move(to, &name), desired_move);
    }
    match stored(from) {
        Some(_) if desired_move.place => group.delete(keys::desired_move(from, &name)),
        stored if !desired_move.place && stored != Some(desired_move) => {
            group.put(keys::desired_move(from, &name), desired_move);
        }
        _ => {}
    }
}

/// The machine's report is current.
fn answers(status: &NodeStatusRecord) -> bool {
    let phase = status.phase;
    matches!(
        phase,
        NodePhase::Ready | NodePhase::Draining | NodePhase::Drained
    )
}

/// This plan has given the volume to an instance.
fn is_placed(draft: &Draft<'_>, key: &VolumeKey) -> bool {
    let stored = draft.snapshot.volumes.get(key).map(|stored| &stored.value);
    draft.has_placed(key) && draft.volume(key) != stored
}

/// What is said of the end of a move.
struct MoveEnd {
    kind: EventKind,
    reason: EventReason,
    told: String,
}

impl MoveEnd {
    fn failed(told: String) -> Self {
        Self {
            kind: EventKind::Warning,
            reason: EventReason::VolumeMoveFailed,
            told,
        }
    }

    fn moved(moving: &VolumeMove, totals: &CopyTotals) -> Self {
        let VolumeMove { from, to, .. } = moving;
        let CopyTotals {
            files,
            bytes,
            skipped,
        } = totals;
        let but = match skipped {
            0 => String::new(),
            count => format!("; {count} sockets and devices were left out"),
        };
        Self {
            kind: EventKind::Normal,
            reason: EventReason::VolumeMoved,
            told: format!(
                "has moved from {from} to {to}: {files} files, {bytes} bytes, compared{but}; the old copy is kept for a day"
            ),
        }
    }
}

/// Ends a move: changes its records and deletes its desired moves in one transaction.
fn end(
    draft: &mut Draft<'_>,
    moved: &MovingVolumes<'_>,
    MoveEnd { kind, reason, told }: MoveEnd,
    change: impl Fn(&VolumeKey, &VolumeRecord, Timestamp) -> VolumeRecord,
) {
    let volumes = moved.volumes;
    let mut group = OperationGroup::default();
    let mut names = Vec::new();
    for (key, moving) in volumes {
        let Some(record) = draft.volume(key) else {
            continue;
        };
        let record = change(key, record, draft.now);
        draft.put_volume(&mut group, key, record);
        for node in [&moving.from, &moving.to] {
            let there = draft.snapshot.moves.get(node);
            if there.is_some_and(|all| all.contains_key(key)) {
                group.delete(keys::desired_move(node, &key.to_string()));
            }
        }
        names.push(key.volume.as_str());
    }
    let Some((key, _)) = volumes.first() else {
        return;
    };
    let what = match names.as_slice() {
        [only] => format!("the data of volume {only}"),
        several => format!("the data of volumes {}", several.join(", ")),
    };
    let object = object_of(draft, key);
    draft.event(&mut group, kind, reason, object, format!("{what} {told}"));
    draft.commit(group, format!("{what} {told}"), Vec::new());
}

fn object_of(draft: &Draft<'_>, key: &VolumeKey) -> ObjectReference {
    let entry = draft.snapshot.workloads.get(&key.workload);
    ObjectReference {
        kind: ObjectKind::Workload,
        name: key.workload.name.clone(),
        namespace: key.workload.namespace.clone(),
        uid: entry.map_or_else(String::new, |entry| entry.meta.value.uid.clone()),
    }
}
