//! A fake of etcd's membership: members, votes, lost data and reachability. The contents of the
//! store do not depend on it. The leader's membership code is the real one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::{checks::monitor::Monitor, faults::network_faults::Way};
use kat_leader::{EtcdMembers, EtcdUpkeep};
use kat_store::{
    StoreError,
    etcd_admin::{EtcdMember, EtcdStatus},
    etcd_maintenance::EtcdAlarm,
};

pub(crate) const CLIENT_PORT: u16 = 2379;
pub(crate) const PEER_PORT: u16 = 2380;
/// How long a caller that is cut off waits before its call fails.
const NO_ANSWER: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
struct One {
    id: u64,
    machine: String,
    voting: bool,
    has_data: bool,
}

#[derive(Default)]
struct State {
    last: u64,
    members: Vec<One>,
    up: BTreeMap<String, bool>,
    /// Machines that are up and whose etcd answers no other: its overlay is dead, or its disk full.
    silent: BTreeSet<String>,
    raft_leader: u64,
}

/// State that all machines share.
pub(crate) struct Etcd {
    /// Machine names by overlay address.
    machines: BTreeMap<String, String>,
    monitor: Arc<Monitor>,
    state: Mutex<State>,
}

impl State {
    fn answers(&self, member: &One) -> bool {
        let up = self.up.get(&member.machine).copied().unwrap_or(false);
        member.has_data && up && !self.silent.contains(&member.machine)
    }

    fn has_quorum(&self, members: &[One]) -> bool {
        let voters = members.iter().filter(|one| one.voting);
        let there = voters.clone().filter(|one| self.answers(one)).count();
        there > voters.count() / 2
    }

    /// The member that leads raft, or 0 without a quorum. A leader stays leader while it answers.
    fn elect(&mut self) -> u64 {
        if !self.has_quorum(&self.members) {
            return 0;
        }
        let mut voters = self
            .members
            .iter()
            .filter(|one| one.voting && self.answers(one));
        let first = voters.clone().next().map_or(0, |one| one.id);
        if !voters.any(|one| one.id == self.raft_leader) {
            self.raft_leader = first;
        }
        self.raft_leader
    }

    fn position(&self, id: u64) -> Result<usize, StoreError> {
        let found = self.members.iter().position(|one| one.id == id);
        found.ok_or_else(|| StoreError::Invalid("member not found".into()))
    }
}

impl Etcd {
    /// The first `first` machines are voting members.
    pub(crate) fn new(machines: &[(String, String)], first: usize, monitor: &Arc<Monitor>) -> Self {
        let members = machines
            .iter()
            .take(first)
            .zip(1..)
            .map(|((machine, _), id)| One {
                id,
                machine: machine.clone(),
                voting: true,
                has_data: true,
            });
        let state = State {
            last: 100,
            members: members.collect(),
            ..State::default()
        };
        let by_address = machines
            .iter()
            .map(|(name, address)| (address.clone(), name.clone()));
        Self {
            machines: by_address.collect(),
            monitor: Arc::clone(monitor),
            state: Mutex::new(state),
        }
    }

    /// Records whether the machine is powered on.
    pub(crate) fn set_up(&self, machine: &str, up: bool) {
        self.state.lock().up.insert(machine.to_owned(), up);
    }

    /// Records whether the machine's etcd answers other machines while the machine is up.
    pub(crate) fn set_silent(&self, machine: &str, silent: bool) {
        let mut state = self.state.lock();
        match silent {
            true => state.silent.insert(machine.to_owned()),
            false => state.silent.remove(machine),
        };
    }

    /// Deletes a member's data. Does nothing unless at least three members are all healthy, because
    /// the cluster could not recover otherwise.
    pub(crate) fn lose_data(&self, machine: &str) {
        let mut state = self.state.lock();
        let well = state
            .members
            .iter()
            .all(|one| one.voting && state.answers(one));
        let position = state.members.iter().position(|one| one.machine == machine);
        if let Some(position) = position.filter(|_| well && state.members.len() >= 3) {
            state.members[position].has_data = false;
            self.monitor
                .note(&format!("the data of {machine}'s etcd is gone"));
        }
    }

    /// What is wrong with the membership once all faults are repaired; `None` when it is complete.
    pub(crate) fn missing(&self) -> Option<String> {
        let state = self.state.lock();
        let well = state
            .members
            .iter()
            .all(|one| one.voting && state.answers(one));
        let machines: std::collections::BTreeSet<_> =
            state.members.iter().map(|one| &one.machine).collect();
        (!well || machines.len() != 3 || state.members.len() != 3)
            .then(|| format!("etcd has the members {:?}", state.members))
    }

    /// The machines of the members.
    pub(crate) fn members(&self) -> Vec<String> {
        let state = self.state.lock();
        state
            .members
            .iter()
            .map(|one| one.machine.clone())
            .collect()
    }

    fn machine_of(&self, url: &str) -> Option<&String> {
        let host = url.strip_prefix("https://")?.rsplit_once(':')?.0;
        self.machines.get(host)
    }

    /// Changes the members as etcd does: only with a quorum before and after the change.
    fn change(
        &self,
        what: &str,
        change: impl FnOnce(&mut State) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let before = state.members.clone();
        if !state.has_quorum(&before) {
            return Err(StoreError::Unavailable("no quorum".into()));
        }
        change(&mut state)?;
        let after = state.members.clone();
        if !state.has_quorum(&after) {
            state.members = before;
            return Err(StoreError::Unavailable("unhealthy cluster".into()));
        }
        self.monitor.note(&format!("etcd: {what}: {after:?}"));
        let voters = |members: &[One]| members.iter().filter(|one| one.voting).count();
        if voters(&after) < 2 {
            self.monitor
                .violated(format!("etcd has {after:?} after {before:?}"));
        }
        Ok(())
    }
}

/// One machine's connection to etcd.
pub(crate) struct EtcdWay {
    pub etcd: Arc<Etcd>,
    pub way: Arc<Way>,
}

impl EtcdWay {
    async fn travel(&self) -> Result<(), StoreError> {
        self.way.awake().await;
        let way = self.way.now();
        if way.store_is_cut() {
            sleep(NO_ANSWER).await;
            return Err(StoreError::Unavailable("no answer".into()));
        }
        sleep(way.latency).await;
        Ok(())
    }
}

#[async_trait]
impl EtcdMembers for EtcdWay {
    async fn list(&self) -> Result<Vec<EtcdMember>, StoreError> {
        self.travel().await?;
        let state = self.etcd.state.lock();
        if !state.has_quorum(&state.members) {
            return Err(StoreError::Unavailable("no quorum".into()));
        }
        let address = |machine: &str| {
            let mut machines = self.etcd.machines.iter();
            let found = machines.find(|(_, name)| *name == machine);
            found.map(|(address, _)| address.clone()).unwrap()
        };
        let members = state.members.iter().map(|one| EtcdMember {
            id: one.id,
            name: one.machine.clone(),
            peer_urls: vec![format!("https://{}:{PEER_PORT}", address(&one.machine))],
            client_urls: Vec::new(),
            is_learner: !one.voting,
        });
        Ok(members.collect())
    }

    async fn status(&self, url: &str) -> Result<EtcdStatus, StoreError> {
        self.travel().await?;
        let mut state = self.etcd.state.lock();
        let leader = state.elect();
        let machine = self.etcd.machine_of(url);
        let mut members = state.members.iter();
        let member = members.find(|one| Some(&one.machine) == machine && state.answers(one));
        let member = member.ok_or_else(|| StoreError::Unavailable("no answer".into()))?;
        Ok(EtcdStatus {
            version: "3.5.16".to_owned(),
            db_size: 1 << 20,
            db_size_in_use: 1 << 19,
            member: member.id,
            leader,
            raft_term: 1,
            errors: Vec::new(),
            revision: 1,
            quota: 0,
        })
    }

    async fn add_user(&self, _: &str) -> Result<(), StoreError> {
        self.travel().await
    }

    async fn add_voting(&self, peer_url: &str) -> Result<(), StoreError> {
        self.travel().await?;
        let machine = self.etcd.machine_of(peer_url).unwrap().clone();
        let what = format!("{machine} is added with a vote");
        self.etcd.change(&what, |state| {
            if state.members.iter().any(|one| one.machine == machine) {
                return Ok(());
            }
            state.last += 1;
            let id = state.last;
            state.members.push(One {
                id,
                machine,
                voting: true,
                has_data: true,
            });
            Ok(())
        })
    }

    async fn add(&self, node: &str, peer_url: &str) -> Result<(), StoreError> {
        self.travel().await?;
        let machine = self.etcd.machine_of(peer_url).unwrap().clone();
        self.etcd.change(&format!("{node} is added"), |state| {
            if state.members.iter().any(|one| !one.voting) {
                return Err(StoreError::Invalid(
                    "too many learner members in cluster".into(),
                ));
            }
            if state.members.iter().any(|one| one.machine == machine) {
                return Ok(());
            }
            state.last += 1;
            let id = state.last;
            state.members.push(One {
                id,
                machine,
                voting: false,
                has_data: true,
            });
            Ok(())
        })
    }

    async fn promote(&self, _: &str, id: u64) -> Result<(), StoreError> {
        self.travel().await?;
        self.etcd.change("a vote", |state| {
            let position = state.position(id)?;
            if !state.answers(&state.members[position]) {
                return Err(StoreError::Invalid("it has not caught up".into()));
            }
            state.members[position].voting = true;
            Ok(())
        })
    }

    async fn remove(&self, id: u64, _: Option<&str>) -> Result<(), StoreError> {
        self.travel().await?;
        self.etcd.change("one is removed", |state| {
            if let Ok(position) = state.position(id) {
                state.members.remove(position);
            }
            Ok(())
        })
    }

    async fn remove_readers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn set_users(&self, _: &BTreeSet<String>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn move_raft(&self, _: &str, to: u64) -> Result<(), StoreError> {
        self.travel().await?;
        let mut state = self.etcd.state.lock();
        let position = state.position(to)?;
        if state.answers(&state.members[position]) {
            state.raft_leader = to;
        }
        Ok(())
    }
}

#[async_trait]
impl EtcdUpkeep for EtcdWay {
    async fn alarms(&self) -> Result<Vec<EtcdAlarm>, StoreError> {
        Ok(Vec::new())
    }

    async fn disarm(&self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn compact(&self, _: &str, _: i64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn defragment(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}
