//! The state of etcd at one moment: its members, their health, and what a leader remembers of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use tokio::time::Instant;

use super::{LeaderHandle, MembersConfig};
use kat_plan::{
    PREPARED_WITHIN, PreparingMachines, SeenMember, SeenStore, Snapshot, StoreAlarms, machine_at,
};
use kat_store::{
    Leadership, StoreError,
    etcd_admin::{EtcdMember, EtcdStatus},
    etcd_maintenance::{EtcdAlarmKind, speaks_of_alarms},
};
use kat_types::api::{DATA_LOST_CONDITION, data_lost_reason};

/// The state of etcd at one moment.
pub(crate) struct EtcdObservation {
    pub(crate) seen: Vec<SeenMember>,
    /// Id of the member that leads raft, 0 if none does.
    pub(crate) raft_leader: u64,
    /// The newest revision that a member knows of.
    pub(crate) revision: i64,
    pub(crate) alarms: StoreAlarms,
    /// URL of each member for clients, by member id.
    pub(crate) urls: BTreeMap<u64, String>,
    /// Version of etcd that each member reports, by its machine.
    pub(crate) versions: BTreeMap<String, String>,
}

/// What one leader remembers of the members, by its own clock.
#[derive(Default)]
pub(crate) struct MemberMemory {
    /// When each silent member was first seen without an answer.
    silent: BTreeMap<u64, Instant>,
    /// Since when each other member has answered without a break.
    steady: BTreeMap<u64, Instant>,
    /// The machine that prepares to become a member, and since when.
    preparing: Option<(String, Instant)>,
    /// Machines whose member was removed because it was lost.
    pub(crate) given_up: BTreeSet<String>,
    /// Why this leader removed the member of a machine, until the event is written.
    pub(crate) why: BTreeMap<String, String>,
    /// Machines whose users were set; empty after a step.
    pub(crate) users: BTreeSet<String>,
    /// Whether the users were removed by which machines of version 0.1.0 read etcd.
    pub(crate) no_readers: bool,
}

impl MemberMemory {
    /// Records which members answer, and sets `silent` of the others.
    pub(crate) fn note(&mut self, seen: &mut [SeenMember]) {
        let answers = |id: &u64| seen.iter().any(|member| member.id == *id && member.healthy);
        let listed = |id: &u64| seen.iter().any(|member| member.id == *id);
        self.silent.retain(|id, _| listed(id) && !answers(id));
        self.steady.retain(|id, _| listed(id) && answers(id));
        for member in seen {
            if member.healthy {
                let since = self.steady.entry(member.id).or_insert_with(Instant::now);
                member.steady = since.elapsed();
                if member.voting
                    && let Some(node) = &member.node
                {
                    self.given_up.remove(node);
                }
                continue;
            }
            let since = self.silent.entry(member.id).or_insert_with(Instant::now);
            member.silent = since.elapsed();
        }
    }
}

impl MemberMemory {
    /// Records which machine prepares to become a member. Returns it, and prefers other machines
    /// from now on, if it should have prepared long ago.
    pub(crate) fn note_preparing(
        &mut self,
        next: Option<&str>,
        preparing: &PreparingMachines,
    ) -> Option<String> {
        let next = next.filter(|name| !preparing.waiting.contains(*name));
        let Some(name) = next else {
            self.preparing = None;
            return None;
        };
        let since = match &self.preparing {
            Some((known, since)) if known == name => *since,
            _ => Instant::now(),
        };
        self.preparing = Some((name.to_owned(), since));
        let overdue = since.elapsed() >= PREPARED_WITHIN;
        (overdue && self.given_up.insert(name.to_owned())).then(|| name.to_owned())
    }
}

/// Marks the members whose machine has reported that their data is gone.
pub(crate) fn note_lost_data(
    handle: &LeaderHandle,
    leadership: &Leadership,
    seen: &mut [SeenMember],
) {
    let observed = handle.reports.observed(leadership.since.elapsed());
    for member in seen {
        let report = member
            .node
            .as_ref()
            .and_then(|name| observed.reports.get(name));
        let reason = data_lost_reason(&format!("{:x}", member.id));
        member.data_lost = report.is_some_and(|reported| {
            let mut conditions = reported.report.conditions.iter();
            conditions.any(|one| one.kind == DATA_LOST_CONDITION && one.reason == reason)
        });
    }
}

impl EtcdObservation {
    /// URL of a member for clients.
    pub(crate) fn url(&self, id: u64) -> Result<&str, StoreError> {
        let url = self.urls.get(&id).map(String::as_str);
        url.ok_or_else(|| StoreError::Unavailable(format!("the member {id:x} has no address")))
    }

    /// URL of the member that leads raft, for clients.
    pub(crate) fn raft_url(&self) -> Result<&str, StoreError> {
        if self.raft_leader == 0 {
            return Err(StoreError::Unavailable("no member leads raft".into()));
        }
        self.url(self.raft_leader)
    }
}

/// Lists etcd's members, and queries each for its status.
pub(crate) async fn observe_etcd(
    config: &MembersConfig,
    snapshot: &Snapshot,
) -> Result<EtcdObservation, StoreError> {
    let listed = config.etcd.list().await?;
    let asked = listed.iter().map(|member| async move {
        let address = address_of(member);
        let url = address.map(|address| format!("https://{address}:{}", config.client_port));
        let status = match &url {
            Some(url) => config.etcd.status(url).await.ok(),
            None => None,
        };
        (member, address, url, status)
    });
    let answers = futures_util::future::join_all(asked).await;
    let mut look = EtcdObservation {
        seen: Vec::new(),
        raft_leader: 0,
        revision: 0,
        alarms: StoreAlarms::default(),
        urls: BTreeMap::new(),
        versions: BTreeMap::new(),
    };
    let mut newest = 0;
    let mut alarmed = false;
    for (member, address, url, status) in answers {
        // At the address of a removed member another one may answer.
        let status = status.filter(|status| status.member == member.id);
        let has_leader = status.as_ref().filter(|status| status.leader != 0);
        if let Some(status) = has_leader.filter(|status| status.raft_term >= newest) {
            newest = status.raft_term;
            look.raft_leader = status.leader;
        }
        if let Some(status) = &status {
            look.revision = look.revision.max(status.revision);
            alarmed |= speaks_of_alarms(&status.errors);
        }
        let node = address.and_then(|at| machine_at(snapshot, at).map(ToOwned::to_owned));
        let version = status.as_ref().map(|status| status.version.clone());
        look.versions.extend(node.clone().zip(version));
        let entry = node.as_ref().and_then(|name| snapshot.nodes.get(name));
        look.seen.push(SeenMember {
            id: member.id,
            leaving: entry.is_none_or(|entry| entry.registration.value.deleting),
            node,
            voting: !member.is_learner,
            healthy: has_leader.is_some(),
            store: status.as_ref().map(store_of),
            ..SeenMember::default()
        });
        look.urls.extend(url.map(|url| (member.id, url)));
    }
    if alarmed {
        for alarm in config.upkeep.alarms().await? {
            match alarm.kind {
                EtcdAlarmKind::Full => look.alarms.full.insert(alarm.member),
                EtcdAlarmKind::Corrupt => look.alarms.corrupt.insert(alarm.member),
            };
        }
    }
    Ok(look)
}

fn store_of(status: &EtcdStatus) -> SeenStore {
    let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
    SeenStore {
        file: bytes(status.db_size),
        used: bytes(status.db_size_in_use),
        quota: bytes(status.quota),
    }
}

/// The address in a member's first URL for peers, which is known before the member has started.
fn address_of(member: &EtcdMember) -> Option<Ipv4Addr> {
    let url = member.peer_urls.first()?;
    let (host, _) = url.strip_prefix("https://")?.rsplit_once(':')?;
    host.parse().ok()
}
