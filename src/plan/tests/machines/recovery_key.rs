//! The replacement of the recovery key, with three members that do their part in any order, are
//! away, and lead in turn, while secrets are written and data keys are made.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use kat_pki::{
    RecoveryKeys,
    epoch_proof::{EpochVerifiers, LearnedVerifiers, seal_epoch, sign_epoch},
    recovery_key::RecoveryKey,
};
use kat_plan::epoch_to_publish;
use kat_types::{
    api::{AuthorityReport, StoreEpoch},
    resource::secret::SecretValues,
    store::{
        authorities::{AuthorityRecord, ReplaceableKey, Rotation, RotationPhase, RotationReason},
        members::{ClusterMembers, MemberRecord},
    },
};

const KEY: ReplaceableKey = ReplaceableKey::Recovery;
const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// The files of one member.
#[derive(Debug, Clone)]
struct Member {
    current: RecoveryKey,
    next: Option<RecoveryKey>,
    old: Vec<RecoveryKey>,
    away: bool,
}

impl Member {
    fn held(&self) -> RecoveryKeys {
        let others = self.next.iter().chain(&self.old);
        RecoveryKeys::new(self.current.clone(), others.cloned())
    }

    fn store_next(&mut self, key: RecoveryKey) {
        let before = self.next.replace(key.clone());
        self.old.extend(before.filter(|before| *before != key));
    }

    fn promote(&mut self) {
        if let Some(next) = self.next.take() {
            let before = std::mem::replace(&mut self.current, next);
            self.old.insert(0, before);
        }
    }

    /// The agent's part, as `src/agent/etcd/authorities/recovery_key.rs` does it. `given` are the
    /// keys that the leader hands over.
    fn converge(&mut self, record: &AuthorityRecord, snapshot: &Snapshot, given: &[RecoveryKey]) {
        let find = |held: &RecoveryKeys, wanted: &str| {
            let mut all = held.all().chain(given);
            all.find(|key| key.fingerprint() == wanted).cloned()
        };
        let is = |key: &RecoveryKey, wanted: &str| key.fingerprint() == wanted;
        let (wanted, phase) = match &record.rotation {
            Some(rotation) => (&rotation.next, rotation.phase),
            None if record.due.is_some() => return,
            None => (&record.current, RotationPhase::Retire),
        };
        let is_next = self.next.as_ref().is_some_and(|next| is(next, wanted));
        if !is(&self.current, wanted) && !is_next {
            let Some(key) = find(&self.held(), wanted) else {
                return;
            };
            self.store_next(key);
        }
        if phase >= RotationPhase::Issue && !is(&self.current, wanted) {
            self.promote();
        }
        if phase >= RotationPhase::Retire {
            let mut seen = snapshot.clone();
            seen.sealing = SnapshotSealing::with(self.current.clone());
            if unsealed_by_present_key(&seen).is_empty() && seen.unread_secrets == 0 {
                (self.next, self.old) = (None, Vec::new());
            }
        }
    }

    fn report(&self) -> AuthorityReport {
        let accepted = self.held().fingerprints();
        AuthorityReport {
            name: KEY.name().to_owned(),
            issues: accepted[0].clone(),
            accepted,
            ..AuthorityReport::default()
        }
    }
}

/// A write that was decided and is not committed yet.
type Pending = (Vec<Compare>, Vec<WriteOperation>, (String, Vec<u8>));

struct Model {
    world: World,
    members: BTreeMap<String, Member>,
    leader: String,
    pending: Option<Pending>,
    /// The values of the secrets.
    values: BTreeMap<String, Vec<u8>>,
    writes: u8,
}

impl Model {
    fn new() -> Self {
        let first = RecoveryKey::generate().unwrap();
        let member = Member {
            current: first.clone(),
            next: None,
            old: Vec::new(),
            away: false,
        };
        let mut model = Self {
            world: World::with_machines(3),
            members: NAMES
                .iter()
                .map(|name| ((*name).to_owned(), member.clone()))
                .collect(),
            leader: NAMES[0].to_owned(),
            pending: None,
            values: BTreeMap::new(),
            writes: 0,
        };
        model.write_members();
        let snapshot = model.world.snapshot();
        model.put_record(&AuthorityRecord {
            schema: 1,
            current: first.fingerprint(),
            holders: present_holders(&snapshot),
            ..AuthorityRecord::default()
        });
        model
    }

    fn write_members(&mut self) {
        let member = |name: &String| {
            let record = MemberRecord {
                id: name.clone(),
                voting: true,
                healthy: true,
            };
            (name.clone(), record)
        };
        let members = ClusterMembers {
            schema: 1,
            members: self.members.keys().map(member).collect(),
            ..ClusterMembers::default()
        };
        self.world.write(keys::MEMBERS.to_owned(), &members);
    }

    fn put_record(&mut self, record: &AuthorityRecord) {
        self.world.write(keys::authority(KEY.name()), record);
    }

    fn ask(&mut self) {
        let record = AuthorityRecord {
            due: Some(RotationReason::Requested),
            ..self.record()
        };
        self.put_record(&record);
    }

    /// The store as a member sees it.
    fn snapshot(&mut self, name: &str) -> Snapshot {
        let sealing = SnapshotSealing::with(self.members[name].held());
        self.world.builder.use_sealing(sealing);
        self.world.snapshot()
    }

    fn led(&mut self) -> Snapshot {
        let leader = self.leader.clone();
        self.snapshot(&leader)
    }

    fn record(&mut self) -> AuthorityRecord {
        self.led().authorities[KEY.name()].value.clone()
    }

    fn phase(&mut self) -> Option<RotationPhase> {
        Some(self.record().rotation?.phase)
    }

    fn step(&mut self) -> RotationStep {
        let present = self.members.iter().filter(|(_, member)| !member.away);
        let reports = present.map(|(name, member)| (name.clone(), member.report()));
        let observed = observed_authorities(reports);
        let snapshot = self.led();
        let view = RotationView {
            leader: &self.leader,
            observed: &observed,
            left: &BTreeSet::new(),
            now: self.world.now,
        };
        rotation_step(KEY, &snapshot, view)
    }

    /// Commits a transaction where its conditions hold.
    fn commit(&mut self, conditions: &[Compare], operations: &[WriteOperation]) -> bool {
        let holds = conditions.iter().all(|condition| match condition {
            Compare::ModRevision(key, revision) => {
                let entry = self.world.entries.get(key.as_str());
                entry.map_or(0, |entry| entry.mod_revision) == *revision
            }
            Compare::CreateRevision(..) => true,
        });
        if holds {
            self.world.apply(operations);
        }
        holds
    }

    /// The leader's step, as `src/leader/rotation.rs` takes it.
    fn lead(&mut self) -> RotationStep {
        let snapshot = self.led();
        if let Some(record) = epoch_to_publish(&snapshot).unwrap() {
            self.world.write(keys::STORE_EPOCH.to_owned(), &record);
        }
        let step = self.step();
        match step.clone() {
            RotationStep::Nothing | RotationStep::Wait(_) => {}
            RotationStep::Write(record) => self.put_record(&record),
            RotationStep::Reseal(step) => {
                assert!(self.commit(&step.conditions, &step.operations));
            }
            RotationStep::Begin(reason) => {
                let made = RecoveryKey::generate().unwrap();
                let holders = present_holders(&self.led());
                let record = AuthorityRecord {
                    due: Some(reason),
                    rotation: Some(Rotation {
                        phase: RotationPhase::Trust,
                        certificate: String::new(),
                        next: made.fingerprint(),
                        reason,
                        since: self.world.now,
                        holders,
                        turn: None,
                        signatures: Default::default(),
                        grace_seconds: 0,
                    }),
                    ..self.record()
                };
                self.members.get_mut(&self.leader).unwrap().store_next(made);
                self.put_record(&record);
            }
        }
        step
    }

    fn converge(&mut self, name: &str) {
        let record = self.record();
        let leader = &self.members[&self.leader];
        let given: Vec<RecoveryKey> = match leader.away {
            true => Vec::new(),
            false => leader.held().all().cloned().collect(),
        };
        let snapshot = self.snapshot(name);
        let member = self.members.get_mut(name).unwrap();
        if !member.away {
            member.converge(&record, &snapshot, &given);
        }
    }

    /// Decides to write a secret, as `src/api/handlers/data/secrets.rs` does.
    fn decide_write(&mut self) {
        let snapshot = self.led();
        self.writes = self.writes.wrapping_add(1);
        let place = SecretKey::new(NAMESPACE, &format!("s{}", self.writes % 3));
        let stored = snapshot.secrets.get(&place);
        let mut operations = Vec::new();
        let (number, key, revision) = match snapshot.sealing_keys.last_key_value() {
            Some((number, stored)) => (*number, stored.value.clone(), stored.revision),
            None => {
                let first = snapshot.sealing.new_key(1, self.world.now).unwrap();
                let value = serde_json::to_vec(&first).unwrap();
                operations.push(WriteOperation::Put(keys::sealing_key(1), value));
                (1, first, 0)
            }
        };
        let record = SecretRecord {
            schema: 1,
            uid: "u".to_owned(),
            version: stored.map_or(0, |stored| stored.value.version) + 1,
            created: self.world.now,
            updated: self.world.now,
            keys: BTreeMap::new(),
            key_id: number,
            sealed: String::new(),
        };
        let value = vec![self.writes];
        let values = SecretValues([("A".to_owned(), value.clone())].into());
        let record = snapshot
            .sealing
            .seal((number, &key), &place, &values, record);
        let name = keys::secret(&place.to_string());
        let encoded = serde_json::to_vec(&record.unwrap()).unwrap();
        operations.push(WriteOperation::Put(name.clone(), encoded));
        let conditions = vec![
            Compare::ModRevision(name, stored.map_or(0, |stored| stored.revision)),
            Compare::ModRevision(keys::sealing_key(number), revision),
            Compare::ModRevision(keys::sealing_key(number + 1), 0),
            recovery_key_unchanged(&snapshot),
        ];
        self.pending = Some((conditions, operations, (place.to_string(), value)));
    }

    fn commit_write(&mut self) {
        if let Some((conditions, operations, (name, value))) = self.pending.take()
            && self.commit(&conditions, &operations)
        {
            self.values.insert(name, value);
        }
    }

    /// A part of `katcall secret rotate-key`.
    fn rotate_data_key(&mut self) {
        let snapshot = self.led();
        let step = match snapshot.sealing_keys.len() {
            0 => return,
            1 => another_data_key(&snapshot, self.world.now).unwrap(),
            _ => reseal_batch(&snapshot).unwrap(),
        };
        assert!(self.commit(&step.conditions, &step.operations));
    }

    fn act(&mut self, action: u8) {
        let name = NAMES[usize::from(action % 3)];
        match action / 3 {
            0 | 1 => drop(self.lead()),
            2 | 3 => self.converge(name),
            4 => {
                let member = self.members.get_mut(name).unwrap();
                member.away = !member.away;
            }
            5 => self.leader = name.to_owned(),
            6 => self.decide_write(),
            7 => self.commit_write(),
            _ => self.rotate_data_key(),
        }
    }

    /// Everybody does their part until nothing changes.
    fn settle(&mut self) {
        for member in self.members.values_mut() {
            member.away = false;
        }
        let names: Vec<String> = self.members.keys().cloned().collect();
        for _ in 0..40 {
            self.lead();
            for name in &names {
                self.converge(name);
            }
        }
    }

    /// Every data key opens on every member, and every secret has its value there.
    fn check(&mut self) {
        let names: Vec<String> = self.members.keys().cloned().collect();
        for name in names {
            let snapshot = self.snapshot(&name);
            for (place, stored) in &snapshot.secrets {
                let values = snapshot.sealing.open(&snapshot, place, &stored.value);
                assert_eq!(
                    values.unwrap().0["A"],
                    self.values[&place.to_string()],
                    "{name}"
                );
            }
            assert_eq!(snapshot.secrets.len(), self.values.len());
            for (number, stored) in &snapshot.sealing_keys {
                let opened = self.members[&name].held().all().any(|key| {
                    SnapshotSealing::with(key.clone())
                        .is_sealed_with_present_key(*number, &stored.value)
                });
                assert!(opened, "data key {number} on {name}");
            }
        }
    }

    /// The replacement is complete: one key is left everywhere, and another one than `before`.
    fn is_replaced(&mut self, before: &RecoveryKey) {
        let record = self.record();
        assert!(
            record.rotation.is_none() && record.due.is_none(),
            "{record:?}"
        );
        assert_ne!(record.current, before.fingerprint());
        let snapshot = self.led();
        for member in self.members.values() {
            assert_eq!(
                member.held().fingerprints(),
                std::slice::from_ref(&record.current)
            );
        }
        assert!(unsealed_by_present_key(&snapshot).is_empty());
        self.check();
        self.lead();
        self.is_endorsed(before);
    }

    /// A machine that knows the verifier of `before`, and has seen nothing since, believes an epoch
    /// that the present key signs, and follows the record to it.
    fn is_endorsed(&mut self, before: &RecoveryKey) {
        let snapshot = self.led();
        let uid = &snapshot.cluster_uid;
        let present = self.members.values().next().unwrap().current.clone();
        let record = StoreEpoch::clone(&snapshot.store_epoch.as_ref().unwrap().value);
        let knows = |key| EpochVerifiers::of_keys(uid, [key]).unwrap();
        let restored = StoreEpoch {
            epoch: 9,
            signature: sign_epoch(&present, uid, 9).unwrap(),
            ..record.clone()
        };
        assert!(knows(before).is_later(&restored, 0));
        let learned = LearnedVerifiers::Changed(knows(&present));
        assert_eq!(knows(before).learn(&record), learned);
        // The old key is out of force.
        let signature = sign_epoch(before, uid, 9).unwrap();
        let restored = StoreEpoch {
            signature,
            ..restored
        };
        assert!(!knows(&present).is_later(&restored, 0));
    }

    fn until(&mut self, phase: RotationPhase) {
        for _ in 0..40 {
            if self.phase() == Some(phase) {
                return;
            }
            self.lead();
            let names: Vec<String> = self.members.keys().cloned().collect();
            for name in names {
                self.converge(&name);
            }
        }
        panic!("phase {phase:?} is not reached");
    }
}

proptest! {
    #![proptest_config(random_cases(128))]

    /// Members are away, agents do their part late, leaders change, secrets are written late and data
    /// keys are made, at any point.
    #[test]
    fn every_data_key_opens_on_every_member_at_every_point(actions in prop::collection::vec(0_u8..27, 0..90)) {
        let mut model = Model::new();
        let before = model.members["n1"].current.clone();
        model.ask();
        for action in actions {
            model.act(action);
            model.check();
        }
        model.settle();
        model.is_replaced(&before);
        // A write that was decided long ago takes nothing away.
        model.commit_write();
        model.check();
    }
}

/// The control of the property: a data key that was made before the change is written after it.
#[test]
fn without_its_condition_a_late_write_of_a_data_key_would_be_lost() {
    let mut model = Model::new();
    model.ask();
    model.decide_write();
    let (_, operations, (name, value)) = model.pending.take().unwrap();
    model.settle();
    // The secret and its data key, sealed with the key that everybody has forgotten.
    model.world.apply(&operations);
    model.values.insert(name, value);
    let snapshot = model.led();
    assert_eq!(unsealed_by_present_key(&snapshot), [1]);
    let (place, stored) = snapshot.secrets.first_key_value().unwrap();
    let opened = snapshot.sealing.open(&snapshot, place, &stored.value);
    opened.unwrap_err();
}

#[test]
fn a_late_write_of_the_first_data_key_is_refused_and_a_write_after_it_is_not() {
    let mut model = Model::new();
    model.ask();
    model.decide_write();
    model.settle();
    model.commit_write();
    assert!(model.values.is_empty());
    model.decide_write();
    model.commit_write();
    assert_eq!(model.values.len(), 1);
    model.check();
}

#[test]
fn everything_is_sealed_again_in_batches_before_a_member_forgets_the_old_key() {
    let mut model = Model::new();
    let before = model.members["n1"].current.clone();
    for number in 0..70_u8 {
        model.decide_write();
        let (conditions, operations, (_, value)) = model.pending.take().unwrap();
        // Each under a name of its own.
        let snapshot = model.led();
        assert!(model.commit(&conditions, &operations));
        let place = SecretKey::new(NAMESPACE, &format!("many-{number}"));
        let (key, sealed) = model
            .led()
            .sealing_keys
            .first_key_value()
            .map(|(n, k)| (*n, k.value.clone()))
            .unwrap();
        let record = SecretRecord {
            schema: 1,
            uid: "u".to_owned(),
            version: 1,
            created: model.world.now,
            updated: model.world.now,
            keys: BTreeMap::new(),
            key_id: key,
            sealed: String::new(),
        };
        let values = SecretValues([("A".to_owned(), vec![number])].into());
        let record = model
            .led()
            .sealing
            .seal((key, &sealed), &place, &values, record)
            .unwrap();
        model.world.write(keys::secret(&place.to_string()), &record);
        model.values.insert(place.to_string(), vec![number]);
        model
            .values
            .insert(format!("{NAMESPACE}/s{}", model.writes % 3), value);
        drop(snapshot);
    }
    model.check();
    let updated: BTreeMap<_, _> = {
        let snapshot = model.led();
        let secrets = snapshot.secrets.iter();
        secrets
            .map(|(key, stored)| (key.clone(), (stored.value.updated, stored.value.version)))
            .collect()
    };
    model.ask();
    model.until(RotationPhase::Issue);
    let mut batches = 0;
    while model.phase() == Some(RotationPhase::Issue) {
        if let RotationStep::Reseal(_) = model.lead() {
            batches += 1;
        }
        for name in NAMES {
            model.converge(name);
            let held = model.members[name].held();
            if model.phase() == Some(RotationPhase::Issue) {
                assert!(held.with_fingerprint(&before.fingerprint()).is_some());
            }
        }
        model.check();
    }
    // The new data key, three batches, and the deletion of the old one.
    assert_eq!(batches, 5);
    let sealed_since = model.record().sealed_since;
    assert_eq!(sealed_since, Some(model.world.now));
    model.settle();
    model.is_replaced(&before);
    assert_eq!(model.record().sealed_since, sealed_since);
    let snapshot = model.led();
    assert_eq!(snapshot.sealing_keys.keys().collect::<Vec<_>>(), [&2]);
    for (key, stored) in &snapshot.secrets {
        assert_eq!(
            (stored.value.updated, stored.value.version),
            updated[key],
            "sealing again is no change"
        );
    }
}

#[test]
fn a_member_that_does_not_answer_is_waited_for_by_name_in_each_phase() {
    for phase in [
        RotationPhase::Trust,
        RotationPhase::Issue,
        RotationPhase::Retire,
    ] {
        let mut model = Model::new();
        let before = model.members["n1"].current.clone();
        model.ask();
        model.until(phase);
        model.members.get_mut("n3").unwrap().away = true;
        let reached = model.record();
        for _ in 0..10 {
            model.lead();
            model.converge("n1");
            model.converge("n2");
        }
        assert_eq!(model.record(), reached);
        let RotationStep::Wait(reason) = model.step() else {
            panic!("it did not wait");
        };
        assert!(reason.contains("n3"), "{reason}");
        model.settle();
        model.is_replaced(&before);
    }
}

#[test]
fn a_key_that_only_a_lost_leader_had_is_made_anew() {
    let mut model = Model::new();
    let before = model.members["n1"].current.clone();
    model.ask();
    model.lead();
    assert_eq!(model.phase(), Some(RotationPhase::Trust));
    let lost = model.record().rotation.unwrap().next;
    model.members.remove("n1");
    model.write_members();
    model.leader = "n2".to_owned();
    model.settle();
    model.is_replaced(&before);
    assert_ne!(model.record().current, lost);
}

/// A store from a backup may say that any replacement is under way, or name a key that nobody
/// holds. No member loses the key that its data keys need, and the replacement comes to an end.
#[test]
fn a_record_from_a_backup_takes_no_key_away_and_converges() {
    let phases = [
        None,
        Some(RotationPhase::Trust),
        Some(RotationPhase::Issue),
        Some(RotationPhase::Retire),
    ];
    for phase in phases {
        let mut model = Model::new();
        let own = model.members["n1"].current.clone();
        model.decide_write();
        model.commit_write();
        let rotation = phase.map(|phase| Rotation {
            phase,
            certificate: String::new(),
            next: "feedfeedfeedfeed".to_owned(),
            reason: RotationReason::Requested,
            since: model.world.now,
            holders: BTreeMap::new(),
            turn: None,
            signatures: Default::default(),
            grace_seconds: 0,
        });
        model.put_record(&AuthorityRecord {
            schema: 1,
            current: "deadbeefdeadbeef".to_owned(),
            due: phase.map(|_| RotationReason::Requested),
            rotation,
            ..AuthorityRecord::default()
        });
        for _ in 0..40 {
            for name in NAMES {
                model.converge(name);
                model.check();
            }
            model.lead();
            model.check();
        }
        model.settle();
        let record = model.record();
        assert_eq!((record.rotation, record.due), (None, None), "{phase:?}");
        match phase {
            None => assert_eq!(record.current, own.fingerprint()),
            Some(_) => model.is_replaced(&own),
        }
    }
}

/// As after `restore` of a disk from before: the machine has the earlier key alone.
#[test]
fn a_member_with_an_earlier_key_takes_the_present_one_from_the_leader() {
    let mut model = Model::new();
    let before = model.members["n3"].clone();
    model.decide_write();
    model.commit_write();
    model.ask();
    model.settle();
    model.members.insert("n3".to_owned(), before.clone());
    model.settle();
    model.is_replaced(&before.current);
}

/// A machine that becomes a member in the middle gets the keys that the leader holds.
#[test]
fn a_new_member_takes_all_keys_of_the_leader_in_each_phase() {
    for phase in [
        RotationPhase::Trust,
        RotationPhase::Issue,
        RotationPhase::Retire,
    ] {
        let mut model = Model::new();
        let before = model.members["n3"].clone();
        model.members.remove("n3");
        model.write_members();
        model.decide_write();
        model.commit_write();
        model.ask();
        model.until(phase);
        let given = model.members["n1"].held();
        let joined = Member {
            current: given.current().clone(),
            next: None,
            old: given.others().to_vec(),
            away: false,
        };
        model.members.insert("n3".to_owned(), joined);
        model.write_members();
        model.check();
        model.settle();
        model.is_replaced(&before.current);
    }
}

#[test]
fn what_does_not_open_or_is_not_read_holds_the_replacement_up_with_the_reason() {
    let mut model = Model::new();
    let before = model.members["n1"].current.clone();
    model.decide_write();
    model.commit_write();
    let unread = keys::secret("default/newer");
    model
        .world
        .apply(&[WriteOperation::Put(unread.clone(), b"{}".to_vec())]);
    model.values.insert("default/newer".to_owned(), Vec::new());
    model.ask();
    model.settle();
    assert_eq!(model.phase(), Some(RotationPhase::Issue));
    let RotationStep::Wait(reason) = model.step() else {
        panic!("it did not wait");
    };
    assert!(reason.contains("can't be read by this version"), "{reason}");
    for member in model.members.values() {
        let held = member.held();
        assert!(held.with_fingerprint(&before.fingerprint()).is_some());
    }
    model.world.apply(&[WriteOperation::Delete(unread)]);
    model.values.remove("default/newer");
    // A value that somebody damaged.
    let (place, stored) = {
        let snapshot = model.led();
        let (place, stored) = snapshot.secrets.first_key_value().unwrap();
        (place.clone(), SecretRecord::clone(&stored.value))
    };
    let damaged = SecretRecord {
        sealed: "AAAA".to_owned(),
        key_id: 1,
        ..stored.clone()
    };
    model
        .world
        .write(keys::secret(&place.to_string()), &damaged);
    model.settle();
    let reason = match model.step() {
        RotationStep::Wait(reason) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason.contains(&place.to_string()), "{reason}");
    model
        .world
        .apply(&[WriteOperation::Delete(keys::secret(&place.to_string()))]);
    model.values.clear();
    model.settle();
    model.is_replaced(&before);
}

#[test]
fn one_thing_is_replaced_at_a_time() {
    let mut model = Model::new();
    model.ask();
    let other = AuthorityRecord {
        schema: 1,
        rotation: Some(Rotation {
            phase: RotationPhase::Trust,
            certificate: String::new(),
            next: "x".to_owned(),
            reason: RotationReason::Requested,
            since: model.world.now,
            holders: BTreeMap::new(),
            turn: None,
            signatures: Default::default(),
            grace_seconds: 0,
        }),
        ..AuthorityRecord::default()
    };
    model.world.write(keys::authority("etcd-peer-ca"), &other);
    assert_eq!(
        model.step(),
        RotationStep::Wait("etcd-peer-ca is being replaced".to_owned())
    );
}

#[test]
fn a_cluster_of_an_earlier_version_gets_a_record_of_the_key_that_its_leader_holds() {
    let mut model = Model::new();
    let key = keys::authority(KEY.name());
    model.world.apply(&[WriteOperation::Delete(key)]);
    let RotationStep::Write(record) = model.step() else {
        panic!("nothing is written");
    };
    assert_eq!(record.current, model.members["n1"].current.fingerprint());
    assert_eq!((record.due, record.sealed_since), (None, None));
}

/// Nobody can endorse the new key after the old one is forgotten, so the replacement waits for it.
#[test]
fn a_replacement_does_not_go_on_before_the_new_verifier_is_endorsed() {
    let mut model = Model::new();
    let before = model.members["n1"].current.clone();
    model.ask();
    model.lead();
    for name in NAMES {
        model.converge(name);
    }
    // The record without the new key's verifier, as before the leader's write.
    let RotationStep::Wait(reason) = model.step() else {
        panic!("it did not wait");
    };
    assert!(reason.contains("verifier"), "{reason}");
    model.settle();
    model.is_replaced(&before);
}

#[test]
fn the_record_of_the_epoch_gets_the_verifiers_once() {
    let mut model = Model::new();
    // An epoch that an earlier version has begun.
    let key = model.members["n1"].current.clone();
    let uid = model.led().cluster_uid.clone();
    let earlier = StoreEpoch {
        schema: 1,
        epoch: 7,
        proof: seal_epoch(&key, &uid, 7).unwrap(),
        ..StoreEpoch::default()
    };
    model.world.write(keys::STORE_EPOCH.to_owned(), &earlier);
    let record = epoch_to_publish(&model.led()).unwrap().unwrap();
    let knows = EpochVerifiers::of_keys(&uid, [&key]).unwrap();
    assert_eq!((record.epoch, &record.proof), (7, &earlier.proof));
    assert_eq!(record.verifiers, knows.known());
    assert!(knows.is_later(&record, 6));
    model.world.write(keys::STORE_EPOCH.to_owned(), &record);
    assert_eq!(epoch_to_publish(&model.led()).unwrap(), None);
    // A leader of an earlier version leaves the fields out.
    model.world.write(keys::STORE_EPOCH.to_owned(), &earlier);
    assert_eq!(epoch_to_publish(&model.led()).unwrap(), Some(record));
}
