//! The store's own upkeep: its history is cut, its members' files are made smaller, and a store that
//! is full takes writes again where that can be had without a person.
//!
//! etcd's file of a member never shrinks by itself: what a compaction frees is used again, and given
//! back by a defragmentation alone, during which that member answers nobody. When a file has reached
//! etcd's quota, etcd raises the alarm NOSPACE, and from then on takes reads and deletions only,
//! until the alarm is taken back (etcd's manual, op-guide/maintenance).

use std::collections::BTreeSet;

use crate::SeenMember;
use kat_types::resource::Bytes;

/// What a member says of its file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeenStore {
    /// Size of the file, bytes.
    pub file: u64,
    /// Bytes of it that are in use.
    pub used: u64,
    /// At this size etcd takes no more, bytes; 0 where it does not say so (before 3.6).
    pub quota: u64,
}

/// The alarms that are raised, by the members that raised them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreAlarms {
    /// NOSPACE: their files have reached the quota.
    pub full: BTreeSet<u64>,
    /// CORRUPT: their data differs from the others'.
    pub corrupt: BTreeSet<u64>,
}

/// What was done already. It is forgotten when nothing presses any more, and some time after; who
/// keeps it adds what failed of late.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpkeepDone {
    /// The history was cut.
    pub compacted: bool,
    /// The files of these members were made smaller.
    pub defragmented: BTreeSet<u64>,
    /// The alarm was taken back.
    pub disarmed: bool,
}

/// What is to be done about the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpkeepStep {
    /// All is as it should be, or only a person can help.
    Nothing,
    /// A file is to be made smaller, and can't be now: why.
    Wait(String),
    /// Cut the history.
    Compact,
    /// Another member is to lead raft first, since this one will answer nobody for a while.
    MoveRaft {
        /// etcd's id of the other.
        to: u64,
    },
    /// Make a member's file smaller.
    Defragment {
        /// etcd's id of it.
        id: u64,
        /// Its machine.
        node: String,
    },
    /// Take the alarm NOSPACE back. Where there is still no room, the next write raises it again.
    Disarm,
}

/// By so much a file may be larger than the quota before the alarm is raised, bytes.
const OVERSHOOT: u64 = 64 << 20;

/// What the store weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreWeight {
    /// The largest file of a member, bytes.
    pub file: u64,
    /// The most that a member uses of its file, bytes.
    pub used: u64,
    /// At this size of a file etcd takes no more; nothing where it is not known.
    pub quota: Option<u64>,
}

impl StoreWeight {
    /// `default_quota` is what KAT gives etcd. Somebody may have given it more: etcd before 3.6 does
    /// not say, but a much larger file without an alarm does. Somewhat larger is no sign: a write
    /// copies the pages that it touches, and the alarm comes with the next one.
    pub fn of(seen: &[SeenMember], alarms: &StoreAlarms, default_quota: u64) -> Self {
        let stores = || seen.iter().filter_map(|member| member.store);
        let file = stores().map(|store| store.file).max().unwrap_or(0);
        let told = stores().map(|store| store.quota).filter(|quota| *quota > 0);
        let default = Some(default_quota)
            .filter(|quota| file <= quota.saturating_add(OVERSHOOT) || alarms.is_full());
        Self {
            file,
            used: stores().map(|store| store.used).max().unwrap_or(0),
            quota: told.min().or(default),
        }
    }

    /// Four fifths of the quota.
    fn is_nearly(&self, bytes: u64) -> bool {
        self.quota
            .is_some_and(|quota| bytes >= quota / 5 * 4 && quota > 0)
    }
}

impl StoreAlarms {
    /// etcd takes no writes.
    pub fn is_full(&self) -> bool {
        !self.full.is_empty()
    }
}

/// Whether the store is full, or soon will be, so that smaller gains count too.
pub fn presses(weight: &StoreWeight, alarms: &StoreAlarms) -> bool {
    alarms.is_full() || weight.is_nearly(weight.file)
}

/// The next step. Members are defragmented one at a time, who leads raft last and only after it
/// leads no more, and never while another does not answer: the quorum would hang on one machine.
/// Only a full store does not wait for that, since nothing can be written anyway; not even that a
/// machine is lost, and so the wait might never end.
pub fn next_upkeep(
    seen: &[SeenMember],
    weight: &StoreWeight,
    alarms: &StoreAlarms,
    (own, raft_leader): (&str, u64),
    done: &UpkeepDone,
) -> UpkeepStep {
    // Which of two copies is the right one is for a person to say.
    if !alarms.corrupt.is_empty() {
        return UpkeepStep::Nothing;
    }
    let presses = presses(weight, alarms);
    if presses && !done.compacted {
        return UpkeepStep::Compact;
    }
    let mut worth_it: Vec<_> = seen
        .iter()
        .filter(|member| member.voting && member.healthy && !done.defragmented.contains(&member.id))
        .filter(|member| {
            member
                .store
                .is_some_and(|store| is_worth_it(store, weight, presses))
        })
        .collect();
    worth_it.sort_by_key(|member| (member.id == raft_leader, member.id));
    if let Some(member) = worth_it.first() {
        let name = member.node.clone().unwrap_or_default();
        let others = || seen.iter().filter(|other| other.id != member.id);
        if let Some(away) = others().find(|other| !other.healthy && !alarms.is_full()) {
            let away = away.node.as_deref().unwrap_or("a machine that is gone");
            return UpkeepStep::Wait(format!(
                "etcd's file on {name} is made smaller when etcd of {away} answers"
            ));
        }
        let mut heirs: Vec<_> = others().filter(|one| one.voting && one.healthy).collect();
        heirs.sort_by_key(|heir| (heir.node.as_deref() == Some(own), heir.id));
        return match heirs.first().filter(|_| member.id == raft_leader) {
            Some(heir) => UpkeepStep::MoveRaft { to: heir.id },
            None => UpkeepStep::Defragment {
                id: member.id,
                node: name,
            },
        };
    }
    if alarms.is_full() && !done.disarmed {
        return UpkeepStep::Disarm;
    }
    UpkeepStep::Nothing
}

/// Half of a file that is not small; where it presses, a tenth of any.
fn is_worth_it(store: SeenStore, weight: &StoreWeight, presses: bool) -> bool {
    let free = store.file.saturating_sub(store.used);
    if presses {
        return free > 0 && free >= store.file / 10;
    }
    let large = weight
        .quota
        .is_some_and(|quota| store.file >= quota.div_ceil(16));
    large && free >= store.file / 2
}

/// What is wrong with the store, for people; nothing where all is well. `stuck` is a full store that
/// was still full after all that could be done.
pub fn store_trouble(
    seen: &[SeenMember],
    weight: &StoreWeight,
    alarms: &StoreAlarms,
    stuck: bool,
) -> Option<String> {
    if let Some(id) = alarms.corrupt.first() {
        return Some(corrupt(seen, *id));
    }
    let (file, used) = (Bytes(weight.file).rounded(), Bytes(weight.used).rounded());
    let more = "more room: on each machine that holds etcd `systemctl edit kat-etcd.service`, with [Service] and Environment=ETCD_QUOTA_BACKEND_BYTES=4294967296, then `systemctl restart kat-etcd.service`, one machine after the other";
    if alarms.is_full() && stuck {
        return Some(format!(
            "the store is full of what is in use ({used} of a file of {file}), so nothing can be changed; what runs goes on. It needs {more}"
        ));
    }
    if alarms.is_full() {
        return Some(format!(
            "the store is full (a file of {file}), so nothing can be changed; what runs goes on, and KAT is making room"
        ));
    }
    if weight.is_nearly(weight.used) {
        let quota = weight.quota.map_or_else(String::new, |quota| {
            format!(" of at most {}", Bytes(quota).rounded())
        });
        return Some(format!(
            "the store is nearly full: {used}{quota} are in use; delete what is not needed, or give it {more}"
        ));
    }
    None
}

/// What a person does about the alarm CORRUPT, in the only order that works: while it is raised etcd
/// refuses every write of every member, so nothing that KAT does helps; its members may be changed. As
/// soon as the alarm is taken back KAT makes the member anew that was taken out (etcd's manual,
/// op-guide/data_corruption, "Replace member"). Where etcd can't tell whose data is wrong, it names
/// the member 0 (etcd issue 14849).
fn corrupt(seen: &[SeenMember], id: u64) -> String {
    let member = seen.iter().find(|member| member.id == id);
    let (whose, remove) = match member.and_then(|member| member.node.as_deref()) {
        Some(node) => (
            format!("the data of etcd on machine {node} differs from the others'"),
            format!("`etcdctl member remove {id:x}` takes it out"),
        ),
        None => (
            "the data of etcd's members differs".to_owned(),
            "`etcdctl endpoint hashkv --cluster` shows whose is not that of most, and `etcdctl member remove ID` takes it out (where it is none of the present members, nothing has to be taken out)".to_owned(),
        ),
    };
    format!(
        "{whose} (alarm CORRUPT), so nothing can be changed; what runs goes on. First {remove}, then `etcdctl alarm disarm` lets the others take writes again, and KAT makes the member anew. Run both as root on a machine whose data is right"
    )
}

#[cfg(test)]
mod tests;
