//! The replacement of an authority or of the recovery key: when it is due, and the next step.
//!
//! In each phase every machine that uses the authority does one thing, and reports it (see
//! [`RotationPhase`]). Each step is safe alone and starts from what the machines report, so an
//! interrupted replacement goes on under another leader. etcd reads the authorities that it trusts
//! at its start only, so the members are restarted, one after another. Machines without etcd use the
//! cluster's own authority alone; one of them that is away is not waited for. With the recovery key
//! everything that is stored is sealed again, before any machine forgets the old one.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};

use super::store_epoch::is_verifier_published;
use crate::{
    Snapshot,
    secrets::{ResealingStep, reseal_for_recovery_key},
};
use kat_types::{
    api::{AuthorityReport, NodeReport},
    store::{
        authorities::{
            AuthorityKind, AuthorityRecord, MemberSignature, ReplaceableKey, Rotation,
            RotationPhase, RotationReason,
        },
        snapshot::ObservedReports,
    },
};

/// Who plans a replacement, and what it remembers.
#[derive(Debug, Clone, Copy)]
pub struct RotationView<'a> {
    /// Name of the leading machine.
    pub leader: &'a str,
    /// What the machines last reported.
    pub observed: &'a ObservedReports,
    /// Machines that have not been members for a while: the removal of a member that is added again
    /// at once is no reason for a replacement.
    pub left: &'a BTreeSet<String>,
    /// The time.
    pub now: Timestamp,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RotationStep {
    /// Nothing is to do.
    Nothing,
    /// Something is to do that is not possible now, with the reason.
    Wait(String),
    /// The leader makes a new authority or key and writes the record of its replacement.
    Begin(RotationReason),
    /// The record is written.
    Write(Box<AuthorityRecord>),
    /// The recovery key: more of what is stored is sealed again.
    Reseal(Box<ResealingStep>),
}

/// The uids of the present members and of those that prepare to become members, by their names: who may hold the key of a new authority.
pub fn present_holders(snapshot: &Snapshot) -> BTreeMap<String, String> {
    let members = snapshot.members.iter();
    let names = members.flat_map(|stored| stored.value.members.keys().chain(&stored.value.next));
    let known = names.filter_map(|name| {
        let node = snapshot.nodes.get(name)?;
        Some((name.clone(), node.registration.value.uid.clone()))
    });
    known.collect()
}

/// The next step for an authority or the recovery key.
pub fn rotation_step(
    replaced: impl Into<ReplaceableKey>,
    snapshot: &Snapshot,
    view: RotationView<'_>,
) -> RotationStep {
    let kind = replaced.into();
    let members: BTreeSet<&str> = match &snapshot.members {
        Some(members) => members.value.members.keys().map(String::as_str).collect(),
        None => return RotationStep::Nothing,
    };
    if members.is_empty() {
        return RotationStep::Nothing;
    }
    if snapshot.unread_authorities.contains(kind.name()) {
        return RotationStep::Wait("this version can't read its record".to_owned());
    }
    let stored = snapshot.authorities.get(kind.name());
    if let Some(stored) = stored
        && let Some(record) = noted(kind, snapshot, view, &stored.value)
    {
        return RotationStep::Write(Box::new(record));
    }
    let reports = match member_reports(kind, snapshot, &members, view.observed) {
        Ok(reports) => reports,
        Err(machine) => {
            let settled = stored.is_some_and(|stored| {
                stored.value.rotation.is_none() && stored.value.due.is_none()
            });
            return match settled {
                true => RotationStep::Nothing,
                false => {
                    let reports = fresh_report(snapshot, view.observed, machine).is_some();
                    let what = silence(reports);
                    RotationStep::Wait(format!(
                        "machine {machine} does not report how it uses {}{what}",
                        kind.name()
                    ))
                }
            };
        }
    };
    let Some(stored) = stored else {
        return first_record(kind, snapshot, view, &reports);
    };
    let record = &stored.value;
    match (&record.rotation, record.due) {
        (Some(rotation), _) => {
            let under_way = (record, rotation);
            match kind {
                ReplaceableKey::Authority(AuthorityKind::Cluster) => {
                    cluster_step(snapshot, view, under_way, &reports)
                }
                ReplaceableKey::Authority(
                    AuthorityKind::EtcdClients | AuthorityKind::EtcdPeers,
                ) => phase_step(snapshot, view, under_way, &reports),
                ReplaceableKey::Recovery => recovery_step(snapshot, view, under_way, &reports),
            }
        }
        (None, _) if kind == ReplaceableKey::Recovery && !is_held(&record.current, &reports) => {
            held_instead(record, view, &reports)
        }
        (None, Some(reason)) => begin(kind, snapshot, reason),
        (None, None) => RotationStep::Nothing,
    }
}

/// What is written down without waiting for reports: who holds a key, and that a replacement is due.
fn noted(
    kind: ReplaceableKey,
    snapshot: &Snapshot,
    view: RotationView<'_>,
    record: &AuthorityRecord,
) -> Option<AuthorityRecord> {
    let members = &snapshot.members.as_ref()?.value;
    let mut changed = record.clone();
    let holders = match &mut changed.rotation {
        Some(rotation) => &mut rotation.holders,
        None => &mut changed.holders,
    };
    for (name, uid) in present_holders(snapshot) {
        // A machine that was made anew does not hide that the earlier one of its name has left.
        holders.entry(name).or_insert(uid);
    }
    if changed.rotation.is_none() && changed.due.is_none() {
        let holds = |(name, uid): (&String, &String)| {
            let registration = snapshot
                .nodes
                .get(name)
                .map(|node| &node.registration.value);
            let same = registration.filter(|one| one.uid == *uid && !one.deleting && !one.no_etcd);
            let member = members.holds_store(name) || !view.left.contains(name);
            same.is_some() && member
        };
        if kind.by_request_alone() {
            // Replacing `cluster-ca` ends connections of katcall that nobody has used meanwhile, and
            // a person has to write down another recovery key.
        } else if record.epoch != store_epoch(snapshot) {
            changed.due = Some(RotationReason::StoreReplaced);
        } else if kind == AuthorityKind::EtcdClients.into() && !record.holders.iter().all(holds) {
            changed.due = Some(RotationReason::HolderLeft);
        }
    }
    (changed != *record).then_some(changed)
}

/// How each member uses the authority; the error names one that does not say it.
fn member_reports<'a>(
    kind: ReplaceableKey,
    snapshot: &Snapshot,
    members: &BTreeSet<&'a str>,
    observed: &'a ObservedReports,
) -> Result<BTreeMap<&'a str, &'a AuthorityReport>, &'a str> {
    let report = |member: &'a str| {
        let reported = fresh_report(snapshot, observed, member)?;
        let mut authorities = reported.authorities.iter();
        let report = authorities.find(|one| one.name == kind.name())?;
        (!report.issues.is_empty()).then_some(report)
    };
    let each = members
        .iter()
        .map(|member| Ok((*member, report(member).ok_or(*member)?)));
    each.collect()
}

/// No version before this one wrote a record, and `init` of this one does for those of etcd. So
/// without one the cluster is one of version 0.1.0, in which every machine had a certificate of
/// etcd's clients.
fn first_record(
    kind: ReplaceableKey,
    snapshot: &Snapshot,
    view: RotationView<'_>,
    reports: &BTreeMap<&str, &AuthorityReport>,
) -> RotationStep {
    if kind == AuthorityKind::EtcdClients.into() {
        let waits = not_migrated(snapshot);
        return match waits.is_empty() {
            true => begin(kind, snapshot, RotationReason::Migration),
            false => RotationStep::Wait(format!(
                "{} still read etcd as version 0.1.0 does; upgrade them, or continue without them: katcall ca migrate --without {}",
                waits.join(", "),
                waits.join(" --without ")
            )),
        };
    }
    let Some(own) = reports.get(view.leader) else {
        return RotationStep::Wait(format!("machine {} holds no etcd", view.leader));
    };
    // The backup has the keys, and version 0.1.0 did not replace them after that.
    let renewed = kind == AuthorityKind::EtcdPeers.into() && store_epoch(snapshot) > 0;
    RotationStep::Write(Box::new(AuthorityRecord {
        schema: 1,
        current: own.issues.clone(),
        since: None,
        epoch: store_epoch(snapshot),
        holders: present_holders(snapshot),
        due: renewed.then_some(RotationReason::StoreReplaced),
        ..AuthorityRecord::default()
    }))
}

/// Whether machines may read etcd as version 0.1.0 does: its authority of etcd's clients is in use,
/// and no replacement has begun.
pub fn is_migrating(snapshot: &Snapshot) -> bool {
    let name = AuthorityKind::EtcdClients.name();
    !snapshot.authorities.contains_key(name) && !snapshot.unread_authorities.contains(name)
}

/// Machines that may still read etcd with a certificate of version 0.1.0.
pub fn not_migrated(snapshot: &Snapshot) -> Vec<String> {
    let members = snapshot
        .members
        .as_ref()
        .map(|stored| &stored.value.members);
    let mut waits = Vec::new();
    for (name, node) in &snapshot.nodes {
        let member = members.is_some_and(|members| members.contains_key(name));
        let registration = &node.registration.value;
        let reads_etcd = !registration.state_stream && !registration.migration_ended;
        if !member && reads_etcd && !registration.deleting {
            waits.push(name.clone());
        }
    }
    waits
}

/// One replacement at a time, and none while the members change: etcd's members are restarted.
fn begin(kind: ReplaceableKey, snapshot: &Snapshot, reason: RotationReason) -> RotationStep {
    let other = snapshot
        .authorities
        .iter()
        .find(|(name, stored)| *name != kind.name() && stored.value.rotation.is_some());
    if let Some((other, _)) = other {
        return RotationStep::Wait(format!("{other} is being replaced"));
    }
    match unsettled_member(snapshot) {
        Some(member) => RotationStep::Wait(format!("etcd of {member} is not ready")),
        None => RotationStep::Begin(reason),
    }
}

/// A member without which etcd's next restart could cost the quorum, in words. One whose machine has
/// left counts for the quorum until it is removed.
fn unsettled_member(snapshot: &Snapshot) -> Option<&str> {
    let stored = &snapshot.members.as_ref()?.value;
    let has_left = |name: &String| !snapshot.nodes.contains_key(name);
    if !stored.left.is_empty() || stored.members.keys().any(has_left) {
        return Some("a machine that has left");
    }
    // It would start with the certificates of the present authority.
    if let Some(next) = stored.next.first() {
        return Some(next);
    }
    let mut unsettled = stored
        .members
        .iter()
        .filter(|(_, one)| !one.voting || !one.healthy);
    unsettled.next().map(|(name, _)| name.as_str())
}

fn phase_step(
    snapshot: &Snapshot,
    view: RotationView<'_>,
    (record, rotation): (&AuthorityRecord, &Rotation),
    reports: &BTreeMap<&str, &AuthorityReport>,
) -> RotationStep {
    let next = &rotation.next;
    let advance = |phase| {
        RotationStep::Write(Box::new(AuthorityRecord {
            rotation: Some(Rotation {
                phase,
                turn: None,
                ..rotation.clone()
            }),
            ..record.clone()
        }))
    };
    let lacking = |done: &dyn Fn(&AuthorityReport) -> bool| {
        let mut lacking = reports.iter().filter(|(_, report)| !done(report));
        lacking.next().map(|(name, _)| *name)
    };
    let has = |one: &&AuthorityReport| one.holds_next == *next || one.issues == *next;
    if !reports.values().any(has) {
        // A store from a backup may say more than the keys that came with it.
        return RotationStep::Begin(rotation.reason);
    }
    match rotation.phase {
        RotationPhase::Trust => {
            let own = reports.get(view.leader);
            // The leader that made it is gone before anybody else had it, or lost its files.
            if own.is_none_or(|own| own.holds_next != *next && own.issues != *next) {
                return RotationStep::Begin(rotation.reason);
            }
            if let Some(machine) = lacking(&|one| one.holds_next == *next || one.issues == *next) {
                return RotationStep::Wait(format!("machine {machine} has not taken it yet"));
            }
            let accepts = |report: &AuthorityReport| report.accepted.contains(next);
            restart_next(snapshot, view, (record, rotation), reports, &accepts)
                .unwrap_or_else(|| advance(RotationPhase::Issue))
        }
        RotationPhase::Issue => match lacking(&|one| one.issues == *next) {
            Some(machine) => RotationStep::Wait(format!("machine {machine} does not issue by it")),
            None => advance(RotationPhase::Retire),
        },
        RotationPhase::Retire => {
            let refuses = |report: &AuthorityReport| !report.refused.is_empty();
            restart_next(snapshot, view, (record, rotation), reports, &refuses)
                .unwrap_or_else(|| complete(record, rotation))
        }
    }
}

/// Whoever may hold the key stays in the record: a machine that left meanwhile is a reason for the
/// next replacement.
fn complete(record: &AuthorityRecord, rotation: &Rotation) -> RotationStep {
    let signed = AuthorityRecord {
        rotation: Some(rotation.clone()),
        ..record.clone()
    };
    RotationStep::Write(Box::new(AuthorityRecord {
        schema: 1,
        current: rotation.next.clone(),
        successions: signed.all_successions(),
        since: None,
        sealed_since: record.sealed_since,
        epoch: record.epoch,
        holders: rotation.holders.clone(),
        ..AuthorityRecord::default()
    }))
}

/// Whether a member holds this recovery key.
fn is_held(key: &str, reports: &BTreeMap<&str, &AuthorityReport>) -> bool {
    reports.values().any(|one| holds_key(one, key))
}

fn holds_key(report: &AuthorityReport, key: &str) -> bool {
    report.issues == key || report.accepted.iter().any(|held| held == key)
}

/// A store from a backup may name a recovery key that nobody holds: the one that the leader holds is
/// the present one then.
fn held_instead(
    record: &AuthorityRecord,
    view: RotationView<'_>,
    reports: &BTreeMap<&str, &AuthorityReport>,
) -> RotationStep {
    let Some(own) = reports.get(view.leader) else {
        return RotationStep::Wait(format!("machine {} holds no etcd", view.leader));
    };
    RotationStep::Write(Box::new(AuthorityRecord {
        current: own.issues.clone(),
        since: None,
        ..record.clone()
    }))
}

/// The next step in the replacement of the recovery key, which the members hold.
fn recovery_step(
    snapshot: &Snapshot,
    view: RotationView<'_>,
    (record, rotation): (&AuthorityRecord, &Rotation),
    reports: &BTreeMap<&str, &AuthorityReport>,
) -> RotationStep {
    let next = &rotation.next;
    let lost = match rotation.phase {
        // The leader that made it is gone before anybody else had it, or lost its files.
        RotationPhase::Trust => reports
            .get(view.leader)
            .is_none_or(|own| !holds_key(own, next)),
        // A store from a backup may say more than the keys that came with it.
        RotationPhase::Issue | RotationPhase::Retire => !is_held(next, reports),
    };
    if lost {
        return RotationStep::Begin(rotation.reason);
    }
    let done = |report: &AuthorityReport| match rotation.phase {
        RotationPhase::Trust => holds_key(report, next),
        RotationPhase::Issue => report.issues == *next,
        RotationPhase::Retire => report.issues == *next && report.accepted == [next.clone()],
    };
    // Nobody forgets the old key while anything is sealed with it.
    if rotation.phase >= RotationPhase::Issue
        && reports.values().all(|report| report.issues == *next)
    {
        if snapshot.sealing.recovery_fingerprint().as_ref() != Some(next) {
            return RotationStep::Wait("the leader does not seal with it yet".to_owned());
        }
        match reseal_for_recovery_key(snapshot, view.now) {
            Ok(None) => {}
            Ok(Some(step)) if step.operations.is_empty() => {
                return RotationStep::Wait(why_not_resealed(&step));
            }
            Ok(Some(step)) => return RotationStep::Reseal(Box::new(step)),
            Err(error) => {
                return RotationStep::Wait(format!("nothing can be sealed again: {error}"));
            }
        }
    }
    if let Some((machine, _)) = reports.iter().find(|(_, report)| !done(report)) {
        let lacks = match rotation.phase {
            RotationPhase::Trust => "has not taken it yet",
            RotationPhase::Issue => "does not seal with it yet",
            RotationPhase::Retire => "still holds the old one",
        };
        return RotationStep::Wait(format!("machine {machine} {lacks}"));
    }
    // A machine that knows the old key's verifier follows the new key by the old one's endorsement,
    // and nobody can endorse it any more when the old one is forgotten.
    if rotation.phase < RotationPhase::Retire && !is_verifier_published(snapshot, next) {
        let reason = "its verifier is not in the record of the store's epoch yet";
        return RotationStep::Wait(reason.to_owned());
    }
    let (phase, sealed_since) = match rotation.phase {
        RotationPhase::Trust => (RotationPhase::Issue, record.sealed_since),
        RotationPhase::Issue => (RotationPhase::Retire, Some(view.now)),
        RotationPhase::Retire => return complete(record, rotation),
    };
    RotationStep::Write(Box::new(AuthorityRecord {
        sealed_since,
        rotation: Some(Rotation {
            phase,
            ..rotation.clone()
        }),
        ..record.clone()
    }))
}

fn why_not_resealed(step: &ResealingStep) -> String {
    match &step.failed {
        Some(error) => format!(
            "{} secrets and credentials can't be sealed again: {error}",
            step.left
        ),
        None => format!(
            "{} secrets and credentials can't be read by this version, and may be sealed with the old one",
            step.left
        ),
    }
}

/// Machines without etcd that have said nothing for so long that the replacement of the cluster's
/// authority does not wait for them.
pub fn away_machines(snapshot: &Snapshot, observed: &ObservedReports) -> Vec<String> {
    let members = snapshot.members.as_ref();
    let is_member =
        |name: &String| members.is_some_and(|stored| stored.value.members.contains_key(name));
    let mut away = Vec::new();
    for (name, node) in &snapshot.nodes {
        let leaving = node.registration.value.deleting;
        let gone = observed.leading_for >= loss_timeout(snapshot)
            && fresh_report(snapshot, observed, name).is_none();
        if !leaving && gone && !is_member(name) {
            away.push(name.clone());
        }
    }
    away
}

fn loss_timeout(snapshot: &Snapshot) -> Duration {
    Duration::from_secs(u64::from(snapshot.cluster.spec.node_loss_timeout_seconds))
}

/// What a machine has reported to this leader within the time after which it counts as lost.
fn fresh_report<'a>(
    snapshot: &Snapshot,
    observed: &'a ObservedReports,
    machine: &str,
) -> Option<&'a NodeReport> {
    let reported = observed.reports.get(machine)?;
    let current = reported.age <= loss_timeout(snapshot) && reported.age <= observed.leading_for;
    current.then_some(&*reported.report)
}

/// The next step in the replacement of the cluster's own authority, which every machine uses.
fn cluster_step(
    snapshot: &Snapshot,
    view: RotationView<'_>,
    (record, rotation): (&AuthorityRecord, &Rotation),
    members: &BTreeMap<&str, &AuthorityReport>,
) -> RotationStep {
    let next = &rotation.next;
    let own = members.get(view.leader);
    let has = |one: &AuthorityReport| one.holds_next == *next || one.issues == *next;
    let lost = match rotation.phase {
        RotationPhase::Trust => own.is_none_or(|own| !has(own)),
        // A store from a backup may say more than the keys that came with it.
        RotationPhase::Issue | RotationPhase::Retire => !members.values().any(|one| has(one)),
    };
    if lost {
        return RotationStep::Begin(rotation.reason);
    }
    if rotation.phase == RotationPhase::Trust
        && let Some((machine, _)) = members.iter().find(|(_, report)| !has(report))
    {
        return RotationStep::Wait(format!("machine {machine} has not taken it yet"));
    }
    let done = |report: &AuthorityReport| match rotation.phase {
        RotationPhase::Trust => report.accepted.contains(next),
        RotationPhase::Issue => report.issues == *next && report.accepted.contains(next),
        RotationPhase::Retire => report.accepted == [next.clone()],
    };
    let away = away_machines(snapshot, view.observed);
    for (name, node) in &snapshot.nodes {
        if node.registration.value.deleting || away.contains(name) {
            continue;
        }
        let reported = fresh_report(snapshot, view.observed, name);
        let report = reported.and_then(|report| {
            let mut authorities = report.authorities.iter();
            authorities.find(|one| one.name == AuthorityKind::Cluster.name())
        });
        let lacks = match (report, rotation.phase) {
            (None, _) => format!(
                "does not report how it uses the authority{}",
                silence(reported.is_some())
            ),
            (Some(report), _) if done(report) => continue,
            (Some(_), RotationPhase::Trust) => "does not trust it yet".to_owned(),
            (Some(_), RotationPhase::Issue) => "has no certificate of it yet".to_owned(),
            (Some(_), RotationPhase::Retire) => "still trusts the old one".to_owned(),
        };
        return RotationStep::Wait(format!("machine {name} {lacks}"));
    }
    let rotation = Rotation {
        signatures: signatures(members, rotation),
        ..rotation.clone()
    };
    let phase = match rotation.phase {
        RotationPhase::Trust => {
            let end = grace_end(&rotation);
            if view.now < end {
                return RotationStep::Wait(format!(
                    "until {end:.0} each katcall that is used learns of it"
                ));
            }
            RotationPhase::Issue
        }
        RotationPhase::Issue => RotationPhase::Retire,
        RotationPhase::Retire => return complete(record, &rotation),
    };
    RotationStep::Write(Box::new(AuthorityRecord {
        rotation: Some(Rotation { phase, ..rotation }),
        ..record.clone()
    }))
}

/// The signatures for the replacement that are stored, and those that the members report.
fn signatures(
    members: &BTreeMap<&str, &AuthorityReport>,
    rotation: &Rotation,
) -> BTreeMap<String, MemberSignature> {
    let mut all = rotation.signatures.clone();
    for (name, report) in members {
        let is_meant = [&report.holds_next, &report.issues].contains(&&rotation.next);
        if let Some(signature) = report.successor_signature.as_ref().filter(|_| is_meant) {
            all.insert((*name).to_owned(), signature.clone());
        }
    }
    all
}

/// What can be done about a machine that does not say how it uses an authority, as version 0.1.0
/// does not.
fn silence(reports: bool) -> &'static str {
    match reports {
        true => ": upgrade KAT on it",
        false => ": it is away",
    }
}

/// When the new authority may begin to issue certificates.
pub fn grace_end(rotation: &Rotation) -> Timestamp {
    let grace = SignedDuration::from_secs(i64::from(rotation.grace_seconds));
    rotation.since.checked_add(grace).unwrap_or(Timestamp::MAX)
}

/// Lets the etcd of the next machine restart whose etcd has not shown that it is `done`; `None` if
/// all are. The leader's comes last.
fn restart_next(
    snapshot: &Snapshot,
    view: RotationView<'_>,
    (record, rotation): (&AuthorityRecord, &Rotation),
    reports: &BTreeMap<&str, &AuthorityReport>,
    done: &dyn Fn(&AuthorityReport) -> bool,
) -> Option<RotationStep> {
    let left = reports.iter().filter(|(_, report)| !done(report));
    let mut left: Vec<&str> = left.map(|(name, _)| *name).collect();
    left.sort_by_key(|name| *name == view.leader);
    let next = *left.first()?;
    let turn = rotation.turn.as_deref();
    if let Some(turn) = turn.filter(|turn| left.contains(turn)) {
        return Some(RotationStep::Wait(format!("etcd of {turn} restarts")));
    }
    if let Some(member) = unsettled_member(snapshot) {
        return Some(RotationStep::Wait(format!("etcd of {member} is not ready")));
    }
    Some(RotationStep::Write(Box::new(AuthorityRecord {
        rotation: Some(Rotation {
            turn: Some(next.to_owned()),
            ..rotation.clone()
        }),
        ..record.clone()
    })))
}

/// Epoch of the store: how often it was created anew.
pub fn store_epoch(snapshot: &Snapshot) -> u64 {
    let epoch = snapshot.store_epoch.as_ref();
    epoch.map_or(0, |stored| stored.value.epoch)
}
