//! Changes of the cluster's configuration, and the configurations before.
//!
//! The body of a change is a whole `cluster.kat`, as `init` reads it, so that a mistake gets the same
//! message with its place, and a leader refuses a setting that it does not know.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;

use crate::{
    access::authentication::Caller,
    apply::{put, submission::refusal},
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{Precondition, WriteRequest},
    handlers::{cluster::isolation::not_enforcing, workloads::workload_objects::item},
    server::limits::{check_content_type, read_body},
};
use kat_bundle::settings::{ClusterSetting, SettingRule, changed_settings, fixed_settings};
use kat_plan::{EventLog, Snapshot, awaited_loss_timeout, serving_conflict, too_slow_for};
use kat_types::{
    api::{
        ApiTime, ConfigurationChange, ConfigurationHistory, ConfigurationRevision, EventKind,
        LossTimeoutWait, ObjectKind, ObjectReference, SettingChange,
    },
    reason::EventReason,
    resource::{ClusterConfiguration, Isolation},
    store::{
        configuration::{ConfigurationRecord, KEPT_CONFIGURATIONS},
        ingress::owner_in_words,
        keys,
        snapshot::{NodeEntry, ObservedReports},
        transaction::{Compare, WriteOperation},
    },
    virtual_addresses::address_and_prefix,
};

/// Content type of a change.
const TEXT: &str = "text/plain";
/// Name of the sent file in messages.
const FILE: &str = "cluster.kat";
/// Most names in a message.
const NAMED: usize = 5;

pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    write: WriteRequest,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    check_content_type(&parts.headers, TEXT)?;
    let timeout = api.config.limits.body_timeout;
    let body = read_body(&parts.headers, body, kat_bundle::MAX_FILE, timeout).await?;
    let text = std::str::from_utf8(&body)
        .map_err(|error| ApiError::invalid(format!("the body is no UTF-8 text: {error}")))?;
    let configuration = kat_bundle::parse_cluster(text, FILE).map_err(refusal)?;
    let without_effect = kat_bundle::not_yet_cluster(text, FILE);
    if !without_effect.is_empty() {
        return Err(refusal(without_effect));
    }
    let observed = api.observed();
    let change = ConfigurationRequest {
        caller: &write.caller,
        precondition: write.precondition,
        dry_run: write.query.dry_run,
        text,
        configuration: &configuration,
        observed: &observed,
        uid: (api.config.new_uid)(),
        now: api.now(),
    };
    let (changed, _) = api.write(|snapshot| change.decide(snapshot)).await?;
    Ok(Json(changed).into_response())
}

struct ConfigurationRequest<'a> {
    caller: &'a Caller,
    precondition: Precondition,
    dry_run: bool,
    text: &'a str,
    configuration: &'a ClusterConfiguration,
    observed: &'a ObservedReports,
    uid: String,
    now: Timestamp,
}

impl ConfigurationRequest<'_> {
    fn decide(&self, snapshot: &Snapshot) -> Result<WriteDecision<ConfigurationChange>, ApiError> {
        refuse_unread_configuration(snapshot)?;
        self.precondition.check(Some(written_at(snapshot)))?;
        let before = snapshot.wanted_cluster();
        let fixed = fixed_settings(before, self.configuration, (self.text, FILE));
        let fixed = fixed.map_err(|error| ApiError::Internal(error.to_string()))?;
        if !fixed.is_empty() {
            return Err(refusal(fixed));
        }
        let changes = setting_changes(before, self.configuration)?;
        let present = present_record(snapshot);
        if changes.is_empty() {
            return Ok(WriteDecision::Done(ConfigurationChange {
                number: present.number,
                dry_run: self.dry_run,
                changes,
            }));
        }
        self.refuse_older_machines(snapshot, &changes)?;
        self.refuse_slow_workloads(snapshot)?;
        self.refuse_unenforced_isolation(snapshot)?;
        self.refuse_taken_ports(snapshot)?;
        self.refuse_addresses_of_machines(snapshot)?;
        let number = present.number.saturating_add(1);
        let words: Vec<_> = changes
            .iter()
            .map(|one| format!("{} {} to {}", one.setting, one.before, one.after))
            .collect();
        let outcome = ConfigurationChange {
            number,
            dry_run: self.dry_run,
            changes,
        };
        if self.dry_run {
            return Ok(WriteDecision::Done(outcome));
        }
        let wanted = ConfigurationRecord {
            schema: 1,
            number,
            change: self.uid.clone(),
            made_at: Some(self.now),
            made_by: self.caller.to_string(),
            configuration: self.configuration.clone(),
        };
        // Leaders take over a lower time only when every machine has confirmed it
        // (`kat_plan`'s `nodes/loss_timeout.rs`).
        let mut of_leaders = self.configuration.clone();
        let seconds = &mut of_leaders.spec.node_loss_timeout_seconds;
        *seconds = (*seconds).max(snapshot.cluster.spec.node_loss_timeout_seconds);
        let mut operations = vec![
            put(keys::WANTED_CONFIGURATION.to_owned(), &wanted)?,
            put(keys::configuration(present.number), &present)?,
            put(keys::CLUSTER.to_owned(), &of_leaders)?,
            // No plan that was made with the settings of before is written after this.
            WriteOperation::Put(keys::PLANNED.to_owned(), Vec::new()),
        ];
        let least = number.saturating_sub(KEPT_CONFIGURATIONS);
        let outdated = snapshot.earlier_configurations.range(..least);
        operations.extend(
            outdated.map(|(number, _)| WriteOperation::Delete(keys::configuration(*number))),
        );
        let cluster = ObjectReference {
            kind: ObjectKind::Cluster,
            name: snapshot.cluster.metadata.name.clone(),
            namespace: String::new(),
            uid: snapshot.cluster_uid.clone(),
        };
        let message = format!(
            "settings were changed by {}: {}",
            self.caller,
            words.join(", ")
        );
        let mut log = EventLog::new(&snapshot.events, self.now);
        let reason = EventReason::ConfigurationChanged;
        operations.extend(log.record(EventKind::Normal, reason, cluster, message));
        let mut conditions = vec![
            Compare::ModRevision(
                keys::WANTED_CONFIGURATION.to_owned(),
                snapshot.wanted_revision,
            ),
            Compare::ModRevision(keys::CLUSTER.to_owned(), snapshot.cluster_revision),
        ];
        if self.begins_to_serve(snapshot) {
            // An apply that was decided without an ingress is decided again.
            let key = keys::INGRESS_CLAIMS.to_owned();
            conditions.push(Compare::ModRevision(key.clone(), snapshot.claims_revision));
            operations.push(WriteOperation::Put(key, Vec::new()));
        }
        Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome,
        })
    }

    /// Refuses a change that a machine of an earlier version would not follow.
    fn refuse_older_machines(
        &self,
        snapshot: &Snapshot,
        changes: &[SettingChange],
    ) -> Result<(), ApiError> {
        let is_followed = |change: &&SettingChange| {
            let setting = ClusterSetting::of(&change.setting);
            setting.is_some_and(|setting| matches!(setting.change, SettingRule::OfMachines(_)))
        };
        let Some(followed) = changes.iter().find(is_followed) else {
            return Ok(());
        };
        let reports = self.observed.reports.iter();
        let older = reports.filter(|(name, reported)| {
            snapshot.nodes.contains_key(*name) && reported.report.configuration.is_none()
        });
        let older: Vec<_> = older
            .map(|(name, reported)| format!("{name} ({})", reported.report.version))
            .collect();
        if older.is_empty() {
            return Ok(());
        }
        Err(ApiError::conflict(
            format!(
                "{} is followed by every machine, and these have a version of KAT that keeps the settings of its join: {}",
                followed.setting,
                named(&older)
            ),
            "upgrade them first",
        ))
    }

    /// Refuses a virtual address that a machine has by itself: the other machines reach it there.
    fn refuse_addresses_of_machines(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        let before = &snapshot.wanted_cluster().spec.virtual_addresses;
        let wanted = self.configuration.spec.virtual_addresses.iter();
        let new = wanted.filter(|one| !before.contains(one));
        for (address, _) in new.filter_map(address_and_prefix) {
            let has = |node: &&NodeEntry| {
                let reported = node.status.as_ref().map(|stored| &stored.value.addresses);
                let mut reported = reported.into_iter().flatten();
                node.registration.value.advertise.contains(&address)
                    || reported.any(|own| own.parse() == Ok(address))
            };
            let found = snapshot.nodes.iter().find(|(_, node)| has(node));
            if let Some((name, _)) = found {
                return Err(ApiError::conflict(
                    format!("virtualAddresses: {address} is the own address of machine {name}"),
                    "use an address of the LAN that no host has",
                ));
            }
        }
        Ok(())
    }

    /// Refuses an isolation that a machine would not enforce.
    fn refuse_unenforced_isolation(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        let before = snapshot.wanted_cluster().spec.isolation;
        let after = self.configuration.spec.isolation;
        if after != Isolation::Namespaces || before == after {
            return Ok(());
        }
        let open: Vec<_> = not_enforcing(snapshot, self.observed).into_iter().collect();
        if open.is_empty() {
            return Ok(());
        }
        Err(ApiError::conflict(
            format!(
                "isolation Namespaces is enforced by kat-net of every machine, and that of these does not: {}",
                named(&open)
            ),
            "upgrade kat on them first, or delete machines that are gone; isolation Audit lists what would be refused",
        ))
    }

    /// The change lets machines serve routes, and they serve none before it.
    fn begins_to_serve(&self, snapshot: &Snapshot) -> bool {
        let before = snapshot.wanted_cluster().spec.ingress.enabled;
        self.configuration.spec.ingress.enabled && !before
    }

    /// Refuses an ingress while a workload has port 80 or 443 of machines that stored routes need.
    fn refuse_taken_ports(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        if !self.begins_to_serve(snapshot) {
            return Ok(());
        }
        let Some(conflict) = serving_conflict(snapshot) else {
            return Ok(());
        };
        let said = conflict.in_words(&owner_in_words(conflict.owner()));
        Err(ApiError::conflict(
            format!("spec.ingress.enabled: {said}"),
            "have that workload use another hostPort, or a route of its own, first",
        ))
    }

    /// Refuses a time that is too short for workloads that have to end within it.
    fn refuse_slow_workloads(&self, snapshot: &Snapshot) -> Result<(), ApiError> {
        let seconds = self.configuration.spec.node_loss_timeout_seconds;
        if seconds >= snapshot.wanted_cluster().spec.node_loss_timeout_seconds {
            return Ok(());
        }
        let slow: Vec<_> = too_slow_for(seconds, snapshot).into_iter().collect();
        if slow.is_empty() {
            return Ok(());
        }
        Err(ApiError::conflict(
            format!(
                "spec.nodeLossTimeoutSeconds {seconds} is too short for workloads with onPartition stop, whose programs may not have ended within it: {}",
                named(&slow)
            ),
            "lower their terminationGraceSeconds first",
        ))
    }
}

/// Refuses a write that depends on a wanted configuration which this version can't read.
pub(crate) fn refuse_unread_configuration(snapshot: &Snapshot) -> Result<(), ApiError> {
    match snapshot.wanted_is_unread() {
        true => Err(ApiError::conflict(
            "the stored configuration is of a later version",
            "upgrade the machine that leads",
        )),
        false => Ok(()),
    }
}

fn named(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Revision at which a user last changed the configuration.
fn written_at(snapshot: &Snapshot) -> i64 {
    match snapshot.wanted_revision {
        // At least 1: a configuration is always there.
        0 => snapshot.cluster_revision.max(1),
        revision => revision,
    }
}

/// The present configuration with its number.
fn present_record(snapshot: &Snapshot) -> ConfigurationRecord {
    snapshot.wanted.as_ref().map_or_else(
        || ConfigurationRecord::of_init(snapshot.cluster.clone()),
        |stored| stored.value.clone(),
    )
}

fn setting_changes(
    before: &ClusterConfiguration,
    after: &ClusterConfiguration,
) -> Result<Vec<SettingChange>, ApiError> {
    let changed = changed_settings(before, after);
    let changed = changed.map_err(|error| ApiError::Internal(error.to_string()))?;
    let changes = changed.into_iter().map(|one| SettingChange {
        effect: ClusterSetting::of(&one.name)
            .and_then(ClusterSetting::effect)
            .unwrap_or_default()
            .to_owned(),
        setting: one.name,
        before: one.before,
        after: one.after,
    });
    Ok(changes.collect())
}

pub(crate) async fn history(State(api): State<Arc<Api>>) -> Result<Response, ApiError> {
    let snapshot = api.snapshot()?;
    let present = present_record(&snapshot);
    let kept = snapshot.earlier_configurations.values();
    let mut revisions: Vec<ConfigurationRevision> = Vec::new();
    for record in kept.chain([&present]) {
        let before = revisions.last().map(|before| &before.configuration);
        let changes = match before {
            Some(before) => setting_changes(before, &record.configuration)?,
            None => Vec::new(),
        };
        revisions.push(ConfigurationRevision {
            number: record.number,
            made_at: record.made_at.map(ApiTime::from),
            made_by: record.made_by.clone(),
            changes,
            configuration: record.configuration.clone(),
        });
    }
    let waiting = awaited_loss_timeout(&snapshot, &api.observed());
    let history = ConfigurationHistory {
        resource_version: written_at(&snapshot).to_string(),
        revisions,
        waiting: waiting.map(|waiting| LossTimeoutWait {
            leaders_seconds: waiting.leaders_seconds,
            machines: waiting.machines,
            workloads: waiting.workloads.into_iter().collect(),
        }),
    };
    Ok(item(&history, &history.resource_version))
}
