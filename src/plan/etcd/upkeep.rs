//! Upkeep of etcd: compaction, defragmentation of the members' files, and recovery of a full store
//! where that is possible without a person.
//!
//! A member's database file never shrinks by itself: space that a compaction frees is reused, and
//! only a defragmentation returns it, during which the member does not answer. When a file has
//! reached etcd's quota, etcd raises the alarm NOSPACE, and then accepts only reads and deletions
//! until the alarm is disarmed (etcd's manual, op-guide/maintenance).

use std::collections::BTreeSet;

use crate::SeenMember;
use kat_types::{reason::Reason, resource::Bytes};

/// What a member reports of its database file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeenStore {
    /// Size of the file, bytes.
    pub file: u64,
    /// Bytes of it that are in use.
    pub used: u64,
    /// File size in bytes at which etcd takes no more writes; 0 if it does not report it (before
    /// 3.6).
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

/// Steps that were done already. Forgotten some time after the store is no longer under pressure;
/// the caller adds steps that failed lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpkeepDone {
    /// The history was compacted.
    pub compacted: bool,
    /// The members whose files were defragmented.
    pub defragmented: BTreeSet<u64>,
    /// The alarm was disarmed.
    pub disarmed: bool,
}

/// The next step of the upkeep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpkeepStep {
    /// Nothing is needed, or only a person can help.
    Nothing,
    /// A file has to be defragmented, which is not possible now, with the reason.
    Wait(String),
    /// Compact the history.
    Compact,
    /// Move the leadership of raft to another member first, since this member will not answer for a
    /// while.
    MoveRaft {
        /// etcd's id of the other member.
        to: u64,
    },
    /// Defragment a member's file.
    Defragment {
        /// etcd's member id.
        id: u64,
        node: String,
    },
    /// Disarm the alarm NOSPACE. If there is still no room, the next write raises it again.
    Disarm,
}

/// Bytes by which a file may exceed the quota before the alarm is raised.
const OVERSHOOT: u64 = 64 << 20;

/// The size of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreWeight {
    /// The largest file of a member, bytes.
    pub file: u64,
    /// The most that a member uses of its file, bytes.
    pub used: u64,
    /// File size at which etcd takes no more writes, bytes; `None` if unknown.
    pub quota: Option<u64>,
}

impl StoreWeight {
    /// `default_quota` is the quota that KAT gives etcd. Somebody may have given it more: etcd
    /// before 3.6 does not report it, but a much larger file without an alarm shows it. A somewhat
    /// larger file does not: a write copies the pages that it touches, and the alarm comes with the
    /// next one.
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

    /// Whether `bytes` is at least four fifths of the quota.
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
pub fn is_under_pressure(weight: &StoreWeight, alarms: &StoreAlarms) -> bool {
    alarms.is_full() || weight.is_nearly(weight.file)
}

/// The next step. Members are defragmented one at a time, the leader of raft last and only after it
/// has passed on the leadership, and never while another member does not answer: the quorum would
/// depend on one machine. A full store does not wait for that, since nothing can be written anyway,
/// not even that a machine is lost, and so the wait might never end.
pub fn next_upkeep(
    seen: &[SeenMember],
    weight: &StoreWeight,
    alarms: &StoreAlarms,
    (own, raft_leader): (&str, u64),
    done: &UpkeepDone,
) -> UpkeepStep {
    // Only a person can say which of two copies is right.
    if !alarms.corrupt.is_empty() {
        return UpkeepStep::Nothing;
    }
    let is_under_pressure = is_under_pressure(weight, alarms);
    if is_under_pressure && !done.compacted {
        return UpkeepStep::Compact;
    }
    let mut worth_it: Vec<_> = seen
        .iter()
        .filter(|member| member.voting && member.healthy && !done.defragmented.contains(&member.id))
        .filter(|member| {
            member
                .store
                .is_some_and(|store| is_worth_it(store, weight, is_under_pressure))
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

/// Whether a defragmentation frees enough: half of a file that is not small, or under pressure a
/// tenth of any file.
fn is_worth_it(store: SeenStore, weight: &StoreWeight, is_under_pressure: bool) -> bool {
    let free = store.file.saturating_sub(store.used);
    if is_under_pressure {
        return free > 0 && free >= store.file / 10;
    }
    let large = weight
        .quota
        .is_some_and(|quota| store.file >= quota.div_ceil(16));
    large && free >= store.file / 2
}

/// What is wrong with the store, as text for users; `None` if nothing is. `stuck` is a full store
/// that was still full after all steps.
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
            "the store is full of what is in use ({used} of a file of {file}), so nothing can be changed; instances continue to run. It needs {more}"
        ));
    }
    if alarms.is_full() {
        return Some(format!(
            "the store is full (a file of {file}), so nothing can be changed; instances continue to run, and KAT is making room"
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

/// What [`store_trouble`] says, as a word.
pub fn store_reason(weight: &StoreWeight, alarms: &StoreAlarms) -> Option<Reason> {
    if !alarms.corrupt.is_empty() {
        Some(Reason::StoreCorrupt)
    } else if alarms.is_full() {
        Some(Reason::StoreFull)
    } else {
        let nearly = weight.is_nearly(weight.used);
        nearly.then_some(Reason::StoreNearlyFull)
    }
}

/// How a person handles the alarm CORRUPT, in the only order that works. While it is raised etcd
/// refuses every write of every member, so nothing that KAT does helps, but members may be changed.
/// As soon as the alarm is disarmed KAT makes the removed member anew (etcd's manual,
/// op-guide/data_corruption, "Replace member"). If etcd can't tell whose data is wrong, it names
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
        "{whose} (alarm CORRUPT), so nothing can be changed; instances continue to run. First {remove}, then `etcdctl alarm disarm` lets the others take writes again, and KAT makes the member anew. Run both as root on a machine whose data is right"
    )
}

#[cfg(test)]
mod tests;
