//! The replacement of the cluster's own authority, with machines that do their part in any order and
//! are away, and members that lead in turn.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::observed_authorities;
use kat_plan::{RotationStep, RotationView, Snapshot, present_holders, rotation_step};
use kat_types::{
    api::AuthorityReport,
    assignment::DesiredMeta,
    store::{
        authorities::{
            AuthorityKind, AuthorityRecord, ClusterAuthority, MemberSignature, Rotation,
            RotationPhase, RotationReason,
        },
        members::{ClusterMembers, MemberRecord},
        records::NodeRegistration,
        revisions::Stored,
        snapshot::{NodeEntry, StoredState},
    },
};

const KIND: AuthorityKind = AuthorityKind::Cluster;
const MEMBERS: [&str; 3] = ["n1", "n2", "n3"];
const WORKERS: [&str; 2] = ["n4", "n5"];

/// The files of one machine, and what its servers accept. Authorities are words.
#[derive(Debug, Clone)]
struct Machine {
    current: String,
    next: Option<String>,
    old: Option<String>,
    /// The authority of its certificate.
    issuer: String,
    trust: BTreeSet<String>,
    away: bool,
    was_away: bool,
}

impl Machine {
    fn trusted(&self) -> BTreeSet<String> {
        let all = [Some(&self.current), self.next.as_ref(), self.old.as_ref()];
        all.into_iter().flatten().cloned().collect()
    }

    fn report(&self) -> AuthorityReport {
        AuthorityReport {
            name: KIND.name().to_owned(),
            issues: self.issuer.clone(),
            holds_next: self.next.clone().unwrap_or_default(),
            accepted: self.trust.iter().cloned().collect(),
            successor_signature: Some(MemberSignature {
                key: String::new(),
                signature: self.next.as_ref().unwrap_or(&self.current).clone(),
            }),
            ..AuthorityReport::default()
        }
    }

    /// As `src/agent/etcd/authorities.rs` does it; `has` says which keys the leader hands over.
    fn converge_member(&mut self, record: &AuthorityRecord, has: &BTreeSet<String>) {
        match &record.rotation {
            None if self.current == record.current => (self.next, self.old) = (None, None),
            None => {}
            Some(rotation) => {
                let next = &rotation.next;
                if self.current != *next && self.next.as_ref() != Some(next) && has.contains(next) {
                    self.old = None;
                    self.next = Some(next.clone());
                }
                let takes =
                    rotation.phase >= RotationPhase::Issue && self.next.as_ref() == Some(next);
                if takes && let Some(next) = self.next.take() {
                    self.old = Some(std::mem::replace(&mut self.current, next));
                    self.issuer.clone_from(&self.current);
                }
                if rotation.phase >= RotationPhase::Retire && self.current == *next {
                    self.old = None;
                }
            }
        }
        self.trust = self.trusted();
    }

    /// As `src/agent/cluster/renewal.rs` does it; `leader` signs, if it answers.
    fn converge_worker(&mut self, published: &ClusterAuthority, leader: Option<&Machine>) {
        match &published.replacement {
            None if self.current == published.current => (self.next, self.old) = (None, None),
            None => {}
            Some(replacement) => {
                if self.current != replacement.next {
                    self.next = Some(replacement.next.clone());
                }
                if replacement.phase >= RotationPhase::Retire && self.current == replacement.next {
                    self.old = None;
                }
            }
        }
        self.trust = self.trusted();
        if let Some(leader) = leader.filter(|leader| self.trust.contains(&leader.issuer))
            && self.next.as_ref() == Some(&leader.current)
            && let Some(next) = self.next.take()
        {
            self.old = Some(std::mem::replace(&mut self.current, next));
            self.issuer.clone_from(&self.current);
        }
        self.trust = self.trusted();
    }
}

struct Model {
    machines: BTreeMap<String, Machine>,
    record: AuthorityRecord,
    leader: String,
    made: usize,
    now: Timestamp,
}

fn stored<T>(value: T) -> Stored<T> {
    Stored { revision: 1, value }
}

impl Model {
    /// A cluster that is asked to replace its authority.
    fn new(grace_seconds: u32) -> Self {
        let machine = Machine {
            current: "a0".to_owned(),
            next: None,
            old: None,
            issuer: "a0".to_owned(),
            trust: ["a0".to_owned()].into(),
            away: false,
            was_away: false,
        };
        let all = MEMBERS.iter().chain(&WORKERS);
        Self {
            machines: all
                .map(|name| ((*name).to_owned(), machine.clone()))
                .collect(),
            record: AuthorityRecord {
                schema: 1,
                current: "a0".to_owned(),
                due: Some(RotationReason::Requested),
                grace_seconds,
                ..AuthorityRecord::default()
            },
            leader: "n1".to_owned(),
            made: 0,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    fn snapshot(&self) -> Snapshot {
        let node = |name: &String| {
            let uid = format!("uid-{name}");
            let entry = NodeEntry {
                registration: stored(NodeRegistration::new(&uid, Timestamp::UNIX_EPOCH)),
                status: None,
                subnet: None,
                public_key: None,
                endpoints: Vec::new(),
                reach: Default::default(),
                desired: stored(DesiredMeta::default()),
            };
            (name.clone(), entry)
        };
        let member = |name: &&str| {
            let record = MemberRecord {
                id: (*name).to_owned(),
                voting: true,
                healthy: true,
            };
            ((*name).to_owned(), record)
        };
        Snapshot::from(StoredState {
            nodes: self.machines.keys().map(node).collect(),
            members: Some(stored(ClusterMembers {
                schema: 1,
                members: MEMBERS.iter().map(member).collect(),
                ..ClusterMembers::default()
            })),
            authorities: [(KIND.name().to_owned(), stored(self.record.clone()))].into(),
            ..StoredState::default()
        })
    }

    fn step(&self) -> RotationStep {
        let present = self.machines.iter().filter(|(_, machine)| !machine.away);
        let reports = present.map(|(name, machine)| (name.clone(), machine.report()));
        let observed = observed_authorities(reports);
        let view = RotationView {
            leader: &self.leader,
            observed: &observed,
            left: &BTreeSet::new(),
            now: self.now,
        };
        rotation_step(KIND, &self.snapshot(), view)
    }

    /// The leader's step, as `src/leader/rotation.rs` takes it.
    fn lead(&mut self) -> RotationStep {
        let step = self.step();
        match step.clone() {
            RotationStep::Nothing | RotationStep::Wait(_) => {}
            RotationStep::Reseal(_) => panic!("an authority seals nothing"),
            RotationStep::Write(record) => self.record = *record,
            RotationStep::Begin(reason) => {
                self.made += 1;
                let next = format!("a{}", self.made);
                let own = self.machines.get_mut(&self.leader).unwrap();
                (own.old, own.next) = (None, Some(next.clone()));
                self.record = AuthorityRecord {
                    due: Some(reason),
                    rotation: Some(Rotation {
                        phase: RotationPhase::Trust,
                        certificate: String::new(),
                        next,
                        reason,
                        since: self.now,
                        holders: present_holders(&self.snapshot()),
                        turn: None,
                        signatures: Default::default(),
                        grace_seconds: self.record.grace_seconds,
                    }),
                    ..self.record.clone()
                };
            }
        }
        step
    }

    fn converge(&mut self, name: &str) {
        let leader = self.machines[&self.leader].clone();
        let leader = Some(leader).filter(|leader| !leader.away);
        let has = leader.as_ref().map(Machine::trusted).unwrap_or_default();
        let machine = self.machines.get_mut(name).unwrap();
        if machine.away {
            return;
        }
        match MEMBERS.contains(&name) {
            true => machine.converge_member(&self.record, &has),
            false => machine.converge_worker(&ClusterAuthority::of(&self.record), leader.as_ref()),
        }
    }

    fn settle(&mut self) {
        for machine in self.machines.values_mut() {
            machine.away = false;
        }
        for _ in 0..40 {
            self.now = self.now.checked_add(SignedDuration::from_mins(1)).unwrap();
            self.lead();
            let names: Vec<_> = self.machines.keys().cloned().collect();
            for name in names {
                self.converge(&name);
            }
        }
    }

    /// Whether the certificate of every machine that is waited for is accepted by every other.
    fn reach_each_other(&self) -> bool {
        let machines = || {
            let waited = |(name, machine): &(&String, &Machine)| {
                MEMBERS.contains(&name.as_str()) || !machine.was_away
            };
            self.machines
                .iter()
                .filter(waited)
                .map(|(_, machine)| machine)
        };
        machines().all(|server| machines().all(|client| server.trust.contains(&client.issuer)))
    }
}

proptest! {
    /// Machines are away, agents do their part late and members lead in turn, at any point: every
    /// certificate is accepted everywhere, but by machines without the store that were away, and in
    /// the end nobody trusts the old authority.
    #[test]
    fn every_certificate_is_accepted_by_every_machine_at_every_point(actions in prop::collection::vec(0_u8..20, 0..120)) {
        let mut model = Model::new(0);
        for action in actions {
            let name = ["n1", "n2", "n3", "n4", "n5"][usize::from(action % 5)];
            match action / 5 {
                0 => { model.lead(); }
                1 => model.converge(name),
                2 => {
                    let machine = model.machines.get_mut(name).unwrap();
                    machine.away = !machine.away;
                    machine.was_away = true;
                }
                _ if MEMBERS.contains(&name) => model.leader = name.to_owned(),
                _ => {}
            }
            prop_assert!(model.reach_each_other(), "{:?} {:?}", model.record, model.machines);
        }
        model.settle();
        let record = &model.record;
        prop_assert!(record.rotation.is_none() && record.due.is_none(), "{record:?} {:?}", model.machines);
        prop_assert!(record.current != "a0");
        // Every member has signed, and for that authority.
        let signed = record.successions.last().unwrap();
        prop_assert_eq!((signed.before.as_str(), &signed.after), ("a0", &record.current));
        prop_assert!(signed.signatures.keys().eq(MEMBERS.iter()));
        prop_assert!(signed.signatures.values().all(|one| one.signature == record.current));
        for (name, machine) in &model.machines {
            if machine.was_away && WORKERS.contains(&name.as_str()) {
                continue;
            }
            prop_assert_eq!(&machine.issuer, &record.current);
            prop_assert_eq!(&machine.trust, &BTreeSet::from([record.current.clone()]));
        }
    }
}

/// The control of the property: with the first phase left out, a certificate is refused.
#[test]
fn without_the_first_phase_a_certificate_is_refused() {
    let mut model = Model::new(0);
    // Who holds the key is noted first.
    model.lead();
    model.lead();
    model.record.rotation.as_mut().unwrap().phase = RotationPhase::Issue;
    model.converge("n1");
    assert!(!model.reach_each_other());
}

#[test]
fn a_machine_that_answers_is_waited_for_and_one_without_the_store_that_is_away_is_not() {
    let mut model = Model::new(0);
    let settle = |model: &mut Model, names: &[&str]| {
        for _ in 0..20 {
            model.lead();
            names.iter().for_each(|name| model.converge(name));
        }
        model.step()
    };
    let waits = |step: RotationStep, machine: &str| match step {
        RotationStep::Wait(reason) => assert!(reason.contains(machine), "{reason}"),
        other => panic!("{other:?}"),
    };
    // It answers, and does not do its part.
    waits(settle(&mut model, &["n1", "n2", "n3", "n4"]), "n5");
    model.machines.get_mut("n5").unwrap().away = true;
    model.machines.get_mut("n3").unwrap().away = true;
    waits(settle(&mut model, &["n1", "n2", "n4"]), "n3");
    model.machines.get_mut("n3").unwrap().away = false;
    assert_eq!(
        settle(&mut model, &["n1", "n2", "n3", "n4"]),
        RotationStep::Nothing
    );
    assert_eq!(model.record.current, "a1");
    // It is back, and needs to be told.
    model.machines.get_mut("n5").unwrap().away = false;
    model.converge("n5");
    assert_eq!(model.machines["n5"].trust, ["a0".to_owned()].into());
}

#[test]
fn katcall_has_the_time_that_was_asked_for() {
    let mut model = Model::new(600);
    for minute in 0..12 {
        for _ in 0..20 {
            model.lead();
            MEMBERS
                .iter()
                .chain(&WORKERS)
                .for_each(|name| model.converge(name));
        }
        let replaced = model.record.rotation.is_none();
        assert_eq!(replaced, minute >= 10, "{minute}: {:?}", model.step());
        model.now = model.now.checked_add(SignedDuration::from_mins(1)).unwrap();
    }
}
