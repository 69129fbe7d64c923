//! The replacement of an authority of etcd, with three members that do their part in any order, are
//! away, and lead in turn.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use proptest::prelude::*;

use super::observed_authorities;
use kat_plan::{RotationStep, RotationView, Snapshot, present_holders, rotation_step, store_epoch};
use kat_types::{
    api::{AuthorityReport, NodeReport, StoreEpoch},
    assignment::DesiredMeta,
    store::{
        authorities::{AuthorityKind, AuthorityRecord, Rotation, RotationPhase, RotationReason},
        members::{ClusterMembers, MemberRecord},
        records::NodeRegistration,
        revisions::Stored,
        snapshot::{NodeEntry, ObservedReports, ReportedNode, StoredState},
    },
};

const KIND: AuthorityKind = AuthorityKind::EtcdClients;

/// The files of one member, and what its etcd read at its last start. Authorities are words.
#[derive(Debug, Clone, Default)]
struct Member {
    current: String,
    next: Option<String>,
    old: Option<String>,
    retired: Option<String>,
    trusted_by_etcd: BTreeSet<String>,
    away: bool,
}

impl Member {
    fn trusted(&self) -> BTreeSet<String> {
        let all = [Some(&self.current), self.next.as_ref(), self.old.as_ref()];
        all.into_iter().flatten().cloned().collect()
    }

    /// The agent's part, as `src/agent/etcd/authorities.rs` does it. `has` says which authorities
    /// the leader can hand over.
    fn converge(&mut self, name: &str, record: &AuthorityRecord, has: &BTreeSet<String>) {
        let Some(rotation) = &record.rotation else {
            if self.current == record.current {
                (self.next, self.old, self.retired) = (None, None, None);
            }
            return;
        };
        let next = &rotation.next;
        if self.current != *next && self.next.as_ref() != Some(next) {
            if !has.contains(next) {
                return;
            }
            (self.old, self.retired) = (None, None);
            self.next = Some(next.clone());
        }
        if rotation.phase >= RotationPhase::Issue
            && let Some(next) = self.next.take()
        {
            self.old = Some(std::mem::replace(&mut self.current, next));
        }
        if rotation.phase >= RotationPhase::Retire && self.old.is_some() {
            self.retired = self.old.take();
        }
        let report = self.report(rotation);
        let done = match rotation.phase {
            RotationPhase::Trust | RotationPhase::Issue => report.accepted.contains(next),
            RotationPhase::Retire => !report.refused.is_empty(),
        };
        if rotation.turn.as_deref() == Some(name) && !done {
            self.trusted_by_etcd = self.trusted();
        }
    }

    fn report(&self, rotation: &Rotation) -> AuthorityReport {
        let mut report = AuthorityReport {
            name: KIND.name().to_owned(),
            issues: self.current.clone(),
            holds_next: self.next.clone().unwrap_or_default(),
            ..AuthorityReport::default()
        };
        if self.trusted_by_etcd.contains(&rotation.next) {
            report.accepted.push(rotation.next.clone());
        }
        if let Some(retired) = &self.retired
            && !self.trusted_by_etcd.contains(retired)
        {
            report.refused.push(retired.clone());
        }
        report
    }
}

struct Model {
    members: BTreeMap<String, Member>,
    record: Option<AuthorityRecord>,
    registrations: BTreeMap<String, NodeRegistration>,
    leader: String,
    made: usize,
    left: BTreeSet<String>,
    /// Ids of etcd's members whose machine has left.
    left_etcd: Vec<String>,
    epoch: u64,
}

fn stored<T>(value: T) -> Stored<T> {
    Stored { revision: 1, value }
}

fn registration(name: &str) -> NodeRegistration {
    NodeRegistration::new(&format!("uid-{name}"), Timestamp::UNIX_EPOCH)
}

impl Model {
    /// A cluster of this version with these members.
    fn new(names: &[&str]) -> Self {
        let first = "a0".to_owned();
        let member = Member {
            current: first.clone(),
            trusted_by_etcd: [first.clone()].into(),
            ..Member::default()
        };
        let each = |name: &&str| ((*name).to_owned(), member.clone());
        let holders = names
            .iter()
            .map(|name| ((*name).to_owned(), format!("uid-{name}")));
        Self {
            record: Some(AuthorityRecord {
                schema: 1,
                current: first,
                holders: holders.collect(),
                ..AuthorityRecord::default()
            }),
            members: names.iter().map(each).collect(),
            registrations: names
                .iter()
                .map(|name| ((*name).to_owned(), registration(name)))
                .collect(),
            leader: names[0].to_owned(),
            made: 0,
            left: BTreeSet::new(),
            left_etcd: Vec::new(),
            epoch: 0,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let node = |(name, registration): (&String, &NodeRegistration)| {
            let entry = NodeEntry {
                registration: stored(registration.clone()),
                status: None,
                subnet: None,
                public_key: None,
                endpoints: Vec::new(),
                reach: Default::default(),
                desired: stored(DesiredMeta::default()),
            };
            (name.clone(), entry)
        };
        let member = |name: &String| {
            let record = MemberRecord {
                id: name.clone(),
                voting: true,
                healthy: true,
            };
            (name.clone(), record)
        };
        let records = self
            .record
            .iter()
            .map(|record| (KIND.name().to_owned(), stored(record.clone())));
        Snapshot::from(StoredState {
            nodes: self.registrations.iter().map(node).collect(),
            members: Some(stored(ClusterMembers {
                schema: 1,
                members: self.members.keys().map(member).collect(),
                left: self.left_etcd.clone(),
                ..ClusterMembers::default()
            })),
            authorities: records.collect(),
            store_epoch: Some(stored(StoreEpoch {
                epoch: self.epoch,
                ..StoreEpoch::default()
            })),
            ..StoredState::default()
        })
    }

    fn step(&self) -> RotationStep {
        let rotation = self
            .record
            .as_ref()
            .and_then(|record| record.rotation.clone());
        let nothing = Rotation {
            phase: RotationPhase::Trust,
            certificate: String::new(),
            next: "none".to_owned(),
            reason: RotationReason::Requested,
            since: Timestamp::UNIX_EPOCH,
            holders: BTreeMap::new(),
            turn: None,
            signatures: Default::default(),
            grace_seconds: 0,
        };
        let rotation = rotation.unwrap_or(nothing);
        let present = self.members.iter().filter(|(_, member)| !member.away);
        let reports = present.map(|(name, member)| (name.clone(), member.report(&rotation)));
        let observed = observed_authorities(reports);
        let view = RotationView {
            leader: &self.leader,
            observed: &observed,
            left: &self.left,
            now: Timestamp::UNIX_EPOCH,
        };
        rotation_step(KIND, &self.snapshot(), view)
    }

    /// The leader's step, as `src/leader/rotation.rs` takes it.
    fn lead(&mut self) -> RotationStep {
        let step = self.step();
        match step.clone() {
            RotationStep::Nothing | RotationStep::Wait(_) => {}
            RotationStep::Reseal(_) => panic!("an authority seals nothing"),
            RotationStep::Write(record) => self.record = Some(*record),
            RotationStep::Begin(reason) => {
                self.made += 1;
                let next = format!("a{}", self.made);
                let own = self.members.get_mut(&self.leader).unwrap();
                (own.old, own.retired, own.next) = (None, None, Some(next.clone()));
                let before = self.record.clone().unwrap_or_default();
                let snapshot = self.snapshot();
                self.record = Some(AuthorityRecord {
                    schema: 1,
                    due: Some(reason),
                    epoch: store_epoch(&snapshot),
                    rotation: Some(Rotation {
                        phase: RotationPhase::Trust,
                        certificate: String::new(),
                        next,
                        reason,
                        since: Timestamp::UNIX_EPOCH,
                        holders: present_holders(&snapshot),
                        turn: None,
                        signatures: Default::default(),
                        grace_seconds: 0,
                    }),
                    ..before
                });
            }
        }
        step
    }

    fn converge(&mut self, name: &str) {
        let leader = &self.members[&self.leader];
        let has = match leader.away {
            true => BTreeSet::new(),
            false => leader.trusted(),
        };
        if let (Some(record), Some(member)) = (&self.record, self.members.get_mut(name))
            && !member.away
        {
            member.converge(name, record, &has);
        }
    }

    /// Everybody does their part until nothing changes.
    fn settle(&mut self) {
        for member in self.members.values_mut() {
            member.away = false;
        }
        for _ in 0..100 {
            self.lead();
            let names: Vec<_> = self.members.keys().cloned().collect();
            for name in names {
                self.converge(&name);
            }
        }
    }

    /// Whether every member's certificate opens every etcd.
    fn reach_each_other(&self) -> bool {
        let etcds = self.members.values();
        etcds
            .flat_map(|etcd| self.members.values().map(move |one| (etcd, one)))
            .all(|(etcd, one)| etcd.trusted_by_etcd.contains(&one.current))
    }
}

fn ask(model: &mut Model) {
    model.record.as_mut().unwrap().due = Some(RotationReason::Requested);
}

proptest! {
    /// Members are away, agents do their part late and leaders change, at any point: every
    /// certificate in use always opens every etcd, and in the end no etcd trusts the old authority.
    #[test]
    fn every_certificate_in_use_opens_every_etcd_at_every_point(actions in prop::collection::vec(0_u8..12, 0..80)) {
        let names = ["n1", "n2", "n3"];
        let mut model = Model::new(&names);
        ask(&mut model);
        for action in actions {
            let name = names[usize::from(action % 3)];
            match action / 3 {
                0 => { model.lead(); }
                1 => model.converge(name),
                2 => {
                    let member = model.members.get_mut(name).unwrap();
                    member.away = !member.away;
                }
                _ => model.leader = name.to_owned(),
            }
            prop_assert!(model.reach_each_other(), "{:?} {:?}", model.record, model.members);
        }
        model.settle();
        let record = model.record.clone().unwrap();
        prop_assert!(record.rotation.is_none() && record.due.is_none(), "{record:?} {:?}", model.members);
        prop_assert!(record.current != "a0");
        for member in model.members.values() {
            prop_assert_eq!(&member.current, &record.current);
            prop_assert_eq!(&member.trusted_by_etcd, &BTreeSet::from([record.current.clone()]));
        }
    }
}

/// The control of the property: with a phase left out, a certificate does not open some etcd.
#[test]
fn without_the_first_phase_a_certificate_opens_no_other_etcd() {
    let mut model = Model::new(&["n1", "n2"]);
    ask(&mut model);
    model.lead();
    let rotation = model.record.as_mut().unwrap().rotation.as_mut().unwrap();
    rotation.phase = RotationPhase::Issue;
    model.converge("n1");
    assert!(!model.reach_each_other());
}

#[test]
fn etcd_is_restarted_on_one_machine_at_a_time_and_on_the_leader_last() {
    let mut model = Model::new(&["n1", "n2", "n3"]);
    ask(&mut model);
    let mut turns = Vec::new();
    for _ in 0..100 {
        if let RotationStep::Write(record) = model.lead()
            && let Some(turn) = record.rotation.and_then(|rotation| rotation.turn)
        {
            turns.push(turn);
        }
        for name in ["n1", "n2", "n3"] {
            model.converge(name);
        }
    }
    assert_eq!(turns, ["n2", "n3", "n1", "n2", "n3", "n1"]);
}

#[test]
fn etcd_is_not_restarted_while_a_member_is_still_listed_whose_machine_has_left() {
    let mut model = Model::new(&["n1", "n2", "n3"]);
    ask(&mut model);
    model.lead();
    for name in ["n1", "n2", "n3"] {
        model.converge(name);
    }
    // n3 has left, and the leader has not looked at etcd's members since.
    model.registrations.remove("n3");
    let waits = RotationStep::Wait("etcd of a machine that has left is not ready".to_owned());
    assert_eq!(model.step(), waits);
    model.members.remove("n3");
    model.left_etcd = vec!["9f2f379c0984abec".to_owned()];
    assert_eq!(model.step(), waits);
    model.left_etcd.clear();
    let RotationStep::Write(record) = model.step() else {
        panic!("nothing is restarted");
    };
    assert_eq!(record.rotation.unwrap().turn.as_deref(), Some("n2"));
}

#[test]
fn a_cluster_of_version_0_1_0_waits_for_every_machine_that_reads_etcd() {
    let mut model = Model::new(&["n1"]);
    model.record = None;
    model
        .registrations
        .insert("n4".to_owned(), registration("n4"));
    let RotationStep::Wait(reason) = model.step() else {
        panic!("it did not wait");
    };
    assert!(reason.starts_with("n4 "), "{reason}");
    assert!(
        reason.contains("katcall ca migrate --without n4"),
        "{reason}"
    );
    model.registrations.get_mut("n4").unwrap().state_stream = true;
    assert_eq!(model.step(), RotationStep::Begin(RotationReason::Migration));
    model.settle();
    let record = model.record.unwrap();
    assert_eq!((record.current.as_str(), record.rotation), ("a1", None));
}

#[test]
fn a_machine_that_held_the_key_and_left_is_a_reason_and_a_short_absence_is_none() {
    for (change, due) in [
        (0, None),
        (1, Some(RotationReason::HolderLeft)),
        (2, Some(RotationReason::HolderLeft)),
        (3, Some(RotationReason::HolderLeft)),
        (4, Some(RotationReason::StoreReplaced)),
    ] {
        let mut model = Model::new(&["n1", "n2", "n3"]);
        model.members.remove("n3");
        match change {
            0 => {}
            1 => {
                model.registrations.remove("n3");
            }
            2 => model.registrations.get_mut("n3").unwrap().no_etcd = true,
            3 => model.left = ["n3".to_owned()].into(),
            _ => model.epoch = 1,
        }
        let found = match model.step() {
            RotationStep::Write(record) => record.due,
            RotationStep::Nothing => None,
            other => panic!("{change}: {other:?}"),
        };
        assert_eq!(found, due, "{change}");
    }
}

#[test]
fn a_member_that_does_not_report_is_waited_for_by_name() {
    let mut model = Model::new(&["n1", "n2", "n3"]);
    model.members.get_mut("n3").unwrap().away = true;
    assert_eq!(model.step(), RotationStep::Nothing);
    ask(&mut model);
    let RotationStep::Wait(reason) = model.step() else {
        panic!("it did not wait");
    };
    assert!(reason.contains("n3"), "{reason}");
}

/// The leader's steps with everybody's part, until the authority is as it should be.
fn phase_of(model: &Model) -> Option<RotationPhase> {
    let rotation = model.record.as_ref()?.rotation.as_ref()?;
    Some(rotation.phase)
}

#[test]
fn a_machine_that_leaves_in_the_middle_has_the_new_key_and_causes_another_replacement() {
    let mut model = Model::new(&["n1", "n2", "n3"]);
    ask(&mut model);
    while phase_of(&model) != Some(RotationPhase::Issue) {
        model.lead();
        for name in ["n1", "n2", "n3"] {
            model.converge(name);
        }
    }
    model.members.remove("n3");
    model.registrations.remove("n3");
    model.settle();
    let record = model.record.unwrap();
    assert_eq!(record.current, "a2", "{record:?}");
    let holders: Vec<_> = record.holders.keys().collect();
    assert_eq!(holders, ["n1", "n2"]);
}

#[test]
fn who_holds_a_key_is_noted_before_it_reports_anything() {
    let mut model = Model::new(&["n1", "n2"]);
    let newcomer = Member {
        away: true,
        ..model.members["n2"].clone()
    };
    model.members.insert("n4".to_owned(), newcomer);
    model
        .registrations
        .insert("n4".to_owned(), registration("n4"));
    model.lead();
    // It leaves without a word.
    model.members.remove("n4");
    model.registrations.remove("n4");
    // A member that does not report holds up the replacement, but not that it is due.
    model.members.get_mut("n2").unwrap().away = true;
    model.lead();
    let due = model.record.as_ref().unwrap().due;
    assert_eq!(due, Some(RotationReason::HolderLeft));
    assert!(matches!(model.step(), RotationStep::Wait(_)));
}

#[test]
fn a_store_that_was_created_anew_in_the_middle_causes_another_replacement() {
    let mut model = Model::new(&["n1", "n2"]);
    ask(&mut model);
    while phase_of(&model) != Some(RotationPhase::Retire) {
        model.lead();
        model.converge("n1");
        model.converge("n2");
    }
    model.epoch = 1;
    model.settle();
    assert_eq!(model.record.unwrap().current, "a2");
}

#[test]
fn the_next_leader_makes_another_authority_where_it_lacks_the_new_one() {
    let mut model = Model::new(&["n1", "n2", "n3"]);
    ask(&mut model);
    model.lead();
    assert_eq!(phase_of(&model), Some(RotationPhase::Trust));
    // n1 made it, and is gone before another machine has it.
    model.members.remove("n1");
    model.registrations.remove("n1");
    model.leader = "n2".to_owned();
    model.settle();
    let record = model.record.unwrap();
    assert!(
        record.rotation.is_none() && record.current != "a0",
        "{record:?}"
    );
}

#[test]
fn a_record_that_cannot_be_read_begins_nothing() {
    let model = Model::new(&["n1"]);
    let mut snapshot = model.snapshot();
    snapshot.authorities.clear();
    snapshot.unread_authorities.insert(KIND.name().to_owned());
    let observed = ObservedReports::default();
    let view = RotationView {
        leader: "n1",
        observed: &observed,
        left: &BTreeSet::new(),
        now: Timestamp::UNIX_EPOCH,
    };
    let step = rotation_step(KIND, &snapshot, view);
    assert!(matches!(step, RotationStep::Wait(_)), "{step:?}");
}

/// The backup of version 0.1.0 has the keys of both authorities.
#[test]
fn the_first_record_after_a_restore_says_that_the_authority_of_peers_is_to_be_replaced() {
    for (epoch, due) in [(0, None), (1, Some(RotationReason::StoreReplaced))] {
        let mut model = Model::new(&["n1"]);
        (model.epoch, model.record) = (epoch, None);
        let report = NodeReport {
            authorities: vec![AuthorityReport {
                name: AuthorityKind::EtcdPeers.name().to_owned(),
                issues: "a0".to_owned(),
                ..AuthorityReport::default()
            }],
            ..NodeReport::default()
        };
        let reported = ReportedNode {
            age: Duration::ZERO,
            steady: Duration::from_secs(3600),
            report: Arc::new(report),
        };
        let observed = ObservedReports {
            leading_for: Duration::from_secs(3600),
            reports: [("n1".to_owned(), reported)].into(),
        };
        let view = RotationView {
            leader: "n1",
            observed: &observed,
            left: &BTreeSet::new(),
            now: Timestamp::UNIX_EPOCH,
        };
        let step = rotation_step(AuthorityKind::EtcdPeers, &model.snapshot(), view);
        let RotationStep::Write(record) = step else {
            panic!("{step:?}");
        };
        assert_eq!(record.due, due, "{epoch}");
    }
}
