//! The cluster's certificate authorities and its recovery key: how far a replacement is, requests
//! for one, and the end of the wait for machines of version 0.1.0.
//!
//! Only the leader answers: the machines' reports are its own. It also carries a replacement out;
//! a request only writes that one is due.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{
    Extension, Json,
    extract::{Request, State},
};

use super::ingress_authority;
use crate::{
    access::authentication::Caller,
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{PathParameters, read_json},
    server::limits::MAX_JSON,
};
use jiff::Timestamp;
use kat_pki::{Authorities, Authority, RecoveryKeys, validity_of};
use kat_plan::{
    RotationStep, RotationView, Snapshot, away_machines, grace_end, not_migrated, rotation_step,
};
use kat_types::{
    api::{
        ApiTime, AuthorityMigration, AuthorityMigrationRequest, AuthorityPhase,
        AuthorityRotationRequest, AuthorityStatus, AuthoritySuccessions, CertificateExpiry, List,
        ListMetadata,
    },
    store::{
        authorities::{
            AuthorityKind, AuthorityRecord, ReplaceableKey, RotationPhase, RotationReason,
        },
        ingress::INGRESS_AUTHORITY_NAME,
        keys,
        revisions::Stored,
        snapshot::ObservedReports,
        transaction::Compare,
    },
};

/// For how long a replacement of `cluster-ca` waits for katcall's connections, where the request
/// does not say it: a day.
const DEFAULT_GRACE_SECONDS: u32 = 24 * 3600;
/// The shortest wait: who asks for the replacement learns of the new authority.
const MIN_GRACE_SECONDS: u32 = 10;
/// The longest wait that a request may ask for.
const MAX_GRACE_SECONDS: u32 = 30 * 24 * 3600;
/// Where to read about a replacement.
const SHOWN: &str = "`katcall ca list` shows how far it is";
/// For everybody, from any machine that holds the store: a machine that trusts the replaced
/// authority alone can prove itself to nobody. The signatures vouch for what they say.
pub(crate) async fn successions(
    State(api): State<Arc<Api>>,
) -> Result<Json<AuthoritySuccessions>, ApiError> {
    let snapshot = api.snapshot()?;
    let record = snapshot.authorities.get(AuthorityKind::Cluster.name());
    let successions = record.map(|stored| stored.value.all_successions());
    Ok(Json(AuthoritySuccessions {
        successions: successions.unwrap_or_default(),
    }))
}

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
) -> Result<Json<List<AuthorityStatus>>, ApiError> {
    api.leadership()?;
    let snapshot = api.snapshot()?;
    let observed = api.observed();
    let authorities = api.authorities().ok_or_else(no_authorities)?;
    let view = AuthorityView::new(&api, &authorities, &snapshot, &observed)?;
    let items = ReplaceableKey::ALL.map(|kind| view.status(kind));
    let mut items: Vec<AuthorityStatus> = items.into_iter().collect::<Result<_, _>>()?;
    items.extend(ingress_authority::status(&snapshot)?);
    Ok(Json(List {
        items,
        metadata: ListMetadata {
            resource_version: snapshot.revision.to_string(),
        },
    }))
}

/// Writes that the replacement is due. A second request changes nothing but the time that katcall
/// has to learn of a new authority.
pub(crate) async fn rotate(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<String>,
    request: Request,
) -> Result<Json<AuthorityStatus>, ApiError> {
    api.leadership()?;
    let request: AuthorityRotationRequest = read_json(&api, request, MAX_JSON).await?;
    if request.grace_seconds > Some(MAX_GRACE_SECONDS) {
        return Err(ApiError::invalid(format!(
            "graceSeconds: expected at most {MAX_GRACE_SECONDS} (30 days)"
        )));
    }
    if name == INGRESS_AUTHORITY_NAME {
        return ingress_authority::rotate(&api, &caller, request.grace_seconds).await;
    }
    let kind =
        ReplaceableKey::from_name(&name).ok_or_else(|| ApiError::not_found("authority", &name))?;
    let may_change_grace = request.grace_seconds.is_some();
    let grace_seconds = match (kind, request.grace_seconds) {
        (ReplaceableKey::Authority(AuthorityKind::Cluster), grace) => grace
            .unwrap_or(DEFAULT_GRACE_SECONDS)
            .max(MIN_GRACE_SECONDS),
        (ReplaceableKey::Authority(_) | ReplaceableKey::Recovery, None) => 0,
        (ReplaceableKey::Authority(_) | ReplaceableKey::Recovery, Some(_)) => {
            return Err(ApiError::invalid(format!(
                "graceSeconds: katcall does not use {}; expected for cluster-ca and {INGRESS_AUTHORITY_NAME} only",
                kind.name()
            )));
        }
    };
    let observed = api.observed();
    let authorities = api.authorities().ok_or_else(no_authorities)?;
    let (_, written) = api
        .write(|snapshot| {
            let under_way = || {
                let view = AuthorityView::new(&api, &authorities, snapshot, &observed)?;
                Err(view.under_way(kind))
            };
            let Some(stored) = snapshot.authorities.get(kind.name()) else {
                return under_way();
            };
            let mut record = stored.value.clone();
            match &mut record.rotation {
                // Another time for katcall to learn of the new authority.
                Some(rotation) if may_change_grace && rotation.phase == RotationPhase::Trust => {
                    rotation.grace_seconds = grace_seconds;
                }
                Some(_) => return under_way(),
                None => {
                    record.due_since = record.due_since.or_else(|| Some(api.now()));
                    record.due = record.due.or(Some(RotationReason::Requested));
                    if may_change_grace || stored.value.due.is_none() {
                        record.grace_seconds = grace_seconds;
                    }
                }
            }
            if record == stored.value {
                return Ok(WriteDecision::Done(()));
            }
            let key = keys::authority(kind.name());
            Ok(WriteDecision::Write {
                conditions: vec![Compare::ModRevision(key.clone(), stored.revision)],
                operations: vec![put(key, &record)?],
                outcome: (),
            })
        })
        .await?;
    if written.is_some() {
        tracing::info!(authority = kind.name(), %caller, "an authority is to be replaced");
    }
    let snapshot = api.snapshot()?;
    let view = AuthorityView::new(&api, &authorities, &snapshot, &observed)?;
    Ok(Json(view.status(kind)?))
}

/// Ends the wait for machines that may still read etcd as version 0.1.0 does. Their users of etcd
/// are removed first, so that a machine that is not waited for can read nothing.
pub(crate) async fn end_migration(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<AuthorityMigration>, ApiError> {
    api.leadership()?;
    let joining = api.joining()?;
    let request: AuthorityMigrationRequest = read_json(&api, request, MAX_JSON).await?;
    let names: BTreeSet<String> = request.without.into_iter().collect();
    if names.is_empty() {
        return Err(ApiError::invalid(
            "without: expected the name of at least one machine",
        ));
    }
    check_all_waited_for(&*api.snapshot()?, &names)?;
    for name in &names {
        joining.users.remove_reader(name).await?;
    }
    api.write(|snapshot| {
        check_all_waited_for(snapshot, &names)?;
        let (mut conditions, mut operations) = (Vec::new(), Vec::new());
        for name in &names {
            let node = snapshot.nodes.get(name);
            let node = node.ok_or_else(|| ApiError::not_found("node", name))?;
            let key = keys::registration(name);
            let mut registration = node.registration.value.clone();
            registration.migration_ended = true;
            let revision = node.registration.revision;
            conditions.push(Compare::ModRevision(key.clone(), revision));
            operations.push(put(key, &registration)?);
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome: (),
        })
    })
    .await?;
    for name in &names {
        tracing::info!(node = name, %caller, "the migration from 0.1.0 continues without a machine");
    }
    Ok(Json(AuthorityMigration {
        waits_for: not_migrated(&*api.snapshot()?),
    }))
}

/// Refuses machines that the migration does not wait for, with the reason.
fn check_all_waited_for(snapshot: &Snapshot, names: &BTreeSet<String>) -> Result<(), ApiError> {
    let waited_for = not_migrated(snapshot);
    for name in names {
        let node = snapshot.nodes.get(name);
        let node = node.ok_or_else(|| ApiError::not_found("node", name))?;
        if waited_for.contains(name) {
            continue;
        }
        let registration = &node.registration.value;
        let why = if registration.deleting {
            "is leaving the cluster"
        } else if registration.state_stream {
            "reads the state stream already"
        } else if registration.migration_ended {
            "was left out already"
        } else {
            "holds the cluster's store, and migrates with its upgrade"
        };
        return Err(ApiError::conflict(
            format!("machine `{name}` {why}, so the migration does not wait for it"),
            "`katcall ca list` names the machines that it waits for",
        ));
    }
    Ok(())
}

fn no_authorities() -> ApiError {
    ApiError::Unavailable("this machine does not hold the cluster's authorities".to_owned())
}

/// The authorities as this leader knows them.
struct AuthorityView<'a> {
    /// Name of this machine.
    leader: &'a str,
    snapshot: &'a Snapshot,
    observed: &'a ObservedReports,
    /// The authorities that sign on this machine.
    held: [&'a Authority; 3],
    /// Those that will.
    next: &'a [Authority],
    /// The recovery keys on this machine.
    recovery: Option<&'a RecoveryKeys>,
    now: Timestamp,
}

impl<'a> AuthorityView<'a> {
    fn new(
        api: &'a Api,
        authorities: &'a Authorities,
        snapshot: &'a Snapshot,
        observed: &'a ObservedReports,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            leader: &api.config.node_name,
            snapshot,
            observed,
            held: authorities.all().ok_or_else(no_authorities)?,
            next: authorities.next(),
            recovery: authorities.recovery_keys(),
            now: api.now(),
        })
    }

    fn record(&self, kind: ReplaceableKey) -> Option<&'a AuthorityRecord> {
        let stored: &Stored<AuthorityRecord> = self.snapshot.authorities.get(kind.name())?;
        Some(&stored.value)
    }

    fn status(&self, kind: ReplaceableKey) -> Result<AuthorityStatus, ApiError> {
        let record = self.record(kind);
        let fingerprint = match record {
            Some(record) => record.current.clone(),
            None => self.held_fingerprint(kind).unwrap_or_default(),
        };
        let rotation = record.and_then(|record| record.rotation.as_ref());
        Ok(AuthorityStatus {
            name: kind.name().to_owned(),
            not_after: self.not_after(&fingerprint)?,
            fingerprint,
            since: record.and_then(|record| record.since).into(),
            phase: self.phase(kind),
            next: rotation.map(|rotation| rotation.next.clone()),
            reason: self.reason(kind),
            replacement_since: rotation
                .map(|rotation| rotation.since)
                .or_else(|| record.and_then(|record| record.due_since))
                .into(),
            grace_until: rotation
                .filter(|rotation| rotation.grace_seconds > 0)
                .map(grace_end)
                .into(),
            message: self.message(kind),
            certificates: self.certificates(kind),
        })
    }

    fn held_fingerprint(&self, kind: ReplaceableKey) -> Option<String> {
        match kind {
            ReplaceableKey::Authority(kind) => {
                let mut held = self.held.iter();
                Some(held.find(|one| one.kind() == kind)?.fingerprint())
            }
            ReplaceableKey::Recovery => Some(self.recovery?.current().fingerprint()),
        }
    }

    /// Unknown for the recovery key, and for an authority that this machine does not hold any more.
    fn not_after(&self, fingerprint: &str) -> Result<ApiTime, ApiError> {
        let mut known = self.held.into_iter().chain(self.next);
        let Some(found) = known.find(|one| one.fingerprint() == fingerprint) else {
            return Ok(ApiTime::UNKNOWN);
        };
        let validity = validity_of(found.certificate_pem());
        let validity = validity.map_err(|error| ApiError::Internal(error.to_string()))?;
        Ok(validity.not_after.into())
    }

    fn phase(&self, kind: ReplaceableKey) -> AuthorityPhase {
        match (kind, self.record(kind)) {
            (_, Some(record)) => match &record.rotation {
                Some(rotation) => rotation.phase.into(),
                None if record.due.is_some() => AuthorityPhase::Due,
                None => AuthorityPhase::Settled,
            },
            // No version before this one wrote a record, and `init` of this one does.
            (ReplaceableKey::Authority(AuthorityKind::EtcdClients), None) => {
                AuthorityPhase::Migration
            }
            (ReplaceableKey::Authority(_) | ReplaceableKey::Recovery, None) => {
                AuthorityPhase::Settled
            }
        }
    }

    fn reason(&self, kind: ReplaceableKey) -> Option<RotationReason> {
        match (self.phase(kind), self.record(kind)) {
            (AuthorityPhase::Migration, _) => Some(RotationReason::Migration),
            (_, Some(record)) => {
                let rotation = record.rotation.as_ref().map(|rotation| rotation.reason);
                rotation.or(record.due)
            }
            (_, None) => None,
        }
    }

    fn message(&self, kind: ReplaceableKey) -> String {
        let why = self.reason(kind).map(|reason| {
            let how = match self.phase(kind) {
                AuthorityPhase::Settled | AuthorityPhase::Migration | AuthorityPhase::Due => {
                    "to be replaced"
                }
                AuthorityPhase::Trust | AuthorityPhase::Issue | AuthorityPhase::Retire => {
                    "being replaced"
                }
            };
            format!("{how}, because {}", reason.in_words())
        });
        let parts = why
            .into_iter()
            .chain(self.wait(kind))
            .chain(self.note(kind));
        parts.collect::<Vec<_>>().join("; ")
    }

    /// What a person has to know about a key that a machine's departure alone does not replace: that it
    /// may be elsewhere, and for the cluster's own authority machines that have to be told by hand.
    fn note(&self, kind: ReplaceableKey) -> Option<String> {
        let by_itself = kind == AuthorityKind::EtcdClients.into();
        let record = self.record(kind).filter(|_| !by_itself)?;
        if record.rotation.is_some() {
            if kind != AuthorityKind::Cluster.into() {
                return None;
            }
            let away = away_machines(self.snapshot, self.observed);
            let away = (!away.is_empty()).then(|| away.join(", "))?;
            return Some(format!(
                "it continues without {away}: when back they take it from the signatures of the machines that hold the store, or say that they need `kat-agent trust`"
            ));
        }
        let holds = |(name, uid): (&String, &String)| {
            let node = self.snapshot.nodes.get(name);
            node.is_some_and(|node| node.registration.value.uid == *uid)
        };
        let mut gone = record.holders.iter().filter(|holder| !holds(*holder));
        let (name, _) = gone.next().filter(|_| record.due.is_none())?;
        Some(format!(
            "machine {name} had {} and has left; where you do not trust it: katcall ca rotate {}",
            match kind {
                ReplaceableKey::Authority(_) => "its key",
                ReplaceableKey::Recovery => "it",
            },
            kind.name()
        ))
    }

    /// What a replacement waits for at this moment.
    fn wait(&self, kind: ReplaceableKey) -> Option<String> {
        let view = RotationView {
            leader: self.leader,
            observed: self.observed,
            left: &BTreeSet::new(),
            now: self.now,
        };
        match rotation_step(kind, self.snapshot, view) {
            RotationStep::Wait(reason) => Some(reason),
            RotationStep::Reseal(step) => Some(format!(
                "{} secrets and credentials are sealed again",
                step.left
            )),
            RotationStep::Nothing | RotationStep::Begin(_) | RotationStep::Write(_) => None,
        }
    }

    /// When the certificates of each machine that should have some expire.
    fn certificates(&self, kind: ReplaceableKey) -> Vec<CertificateExpiry> {
        let ReplaceableKey::Authority(kind) = kind else {
            return Vec::new();
        };
        let mut expiries = BTreeMap::new();
        let members = self.snapshot.members.as_ref();
        for (name, node) in &self.snapshot.nodes {
            let member = members.is_some_and(|stored| stored.value.members.contains_key(name));
            let expected = kind == AuthorityKind::Cluster || member;
            let reported = self.observed.reports.get(name).and_then(|reported| {
                let mut authorities = reported.report.authorities.iter();
                let report = authorities.find(|one| one.name == kind.name())?;
                Some(report.expires)
            });
            if (expected || reported.is_some()) && !node.registration.value.deleting {
                expiries.insert(name.clone(), reported.unwrap_or(ApiTime::UNKNOWN));
            }
        }
        let expiries = expiries.into_iter();
        expiries
            .map(|(name, expires)| CertificateExpiry { name, expires })
            .collect()
    }

    /// The refusal of a request while a replacement is under way, or before the leader has recorded
    /// which authority is in use.
    fn under_way(&self, kind: ReplaceableKey) -> ApiError {
        let (name, wait) = (kind.name(), self.wait(kind));
        let wait = wait.map_or_else(String::new, |wait| format!(": {wait}"));
        let phase = self.phase(kind);
        match phase {
            AuthorityPhase::Settled => ApiError::conflict(
                format!("the leader has not recorded yet which {name} is in use{wait}"),
                "send the request again in a moment",
            ),
            AuthorityPhase::Migration => ApiError::conflict(
                format!(
                    "{name} is replaced at the end of the migration from version 0.1.0, in phase Migration{wait}"
                ),
                SHOWN,
            ),
            AuthorityPhase::Due
            | AuthorityPhase::Trust
            | AuthorityPhase::Issue
            | AuthorityPhase::Retire => ApiError::conflict(
                format!("{name} is being replaced already, in phase {phase:?}{wait}"),
                SHOWN,
            ),
        }
    }
}
