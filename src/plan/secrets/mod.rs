//! Secrets: what is stored of them, which workloads use them, and how an instance gets their
//! values.
//!
//! Values are stored sealed with a data key, which is sealed with the recovery key. The values that
//! an instance uses are in its assignment, sealed for its machine ([`kat_pki::secret_sealing`]). An
//! instance keeps the values that it was placed with. If a secret has another version than an
//! instance of the present generation was given, the workload gets a new generation, as by a
//! restart. Both versions are in each snapshot, so that it does not matter which leader compares
//! them, or when.

mod resealing;
mod sealing;

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};

use super::{Snapshot, service::WorkloadPlanner};
use crate::rollout::slot::LiveInstance;
use kat_pki::delivery::{SealingError, SealingPurpose, seal_for};
use kat_types::{
    api::EventKind,
    assignment::Assignment,
    reason::{EventReason, Reason},
    resource::{
        Container, Volume, WorkloadSpec,
        secret::{INSTANCE_LIMIT, SecretValues},
    },
    secrets::{
        AssignedSecrets, SecretKey, SecretRecord, SecretUse, SecretVersion, secret_uses, secrets_of,
    },
    store::{
        keys,
        records::{GenerationRecord, Origin, WorkloadMeta, with_restart},
        revisions::{Stored, WorkloadKey},
        transaction::Compare,
    },
};

pub use resealing::{
    ResealingError, ResealingStep, another_data_key, recovery_key_unchanged, reseal_batch,
    reseal_for_recovery_key, unsealed_by_present_key,
};
pub use sealing::SnapshotSealing;

/// What is wrong with the secrets that a workload of a namespace uses; `None` if all are there.
pub fn lacks_secret(snapshot: &Snapshot, namespace: &str, spec: &WorkloadSpec) -> Option<String> {
    let found = find(snapshot, namespace, secrets_of(spec));
    found.err().map(|trouble| trouble.message)
}

/// The name of a secret of which the instance was given another version than is stored now.
pub(super) fn outdated<'i>(snapshot: &Snapshot, assignment: &'i Assignment) -> Option<&'i str> {
    let assigned = assignment.secrets.as_ref()?;
    let mut versions = assigned.versions.iter();
    let found = versions.find(|(name, version)| {
        let key = SecretKey::new(&assignment.namespace, name);
        let stored = snapshot.secrets.get(&key);
        stored.is_some_and(|stored| SecretVersion::of(&stored.value) != **version)
    });
    found.map(|(name, _)| name.as_str())
}

/// Workloads, and routes to something outside KAT, that use a secret: by their files, or through an instance that was placed with it.
pub fn users_of_secret<'s>(snapshot: &'s Snapshot, key: &SecretKey) -> Vec<&'s str> {
    let workloads = snapshot.workloads.iter();
    let named = workloads.filter(|(workload, entry)| {
        let uses = entry.parsed.as_ref().is_ok_and(|parsed| {
            secrets_of(&parsed.workload.spec).contains_key(&key.name)
                || crate::ingress::uses_secret(parsed, &key.name)
        });
        workload.namespace == key.namespace && !entry.meta.value.deleting && uses
    });
    let instances = snapshot
        .instances
        .values()
        .map(|entry| &entry.assignment.value);
    let placed = instances.filter(|assignment| {
        let secrets = assignment.secrets.as_ref();
        let uses = secrets.is_some_and(|secrets| secrets.versions.contains_key(&key.name));
        assignment.namespace == key.namespace && assignment.will_run() && uses
    });
    let named = named.map(|(workload, _)| workload.name.as_str());
    let outside = snapshot.outside_routes.iter().filter(|(_, stored)| {
        let route = &stored.value;
        route.key.namespace == key.namespace
            && crate::ingress::names_secret(&route.route, &key.name)
    });
    let outside = outside.map(|(name, _)| name.as_str());
    let mut users: Vec<&str> = named
        .chain(placed.map(|assignment| assignment.workload.as_str()))
        .chain(outside)
        .collect();
    users.sort_unstable();
    users.dedup();
    users
}

/// Workloads of [`users_of_secret`] with instances of the present generation that were given
/// another version.
pub fn behind_secret<'s>(snapshot: &'s Snapshot, key: &SecretKey) -> Vec<&'s str> {
    let users = users_of_secret(snapshot, key).into_iter();
    let version = snapshot.secrets.get(key);
    let version = version.map(|stored| SecretVersion::of(&stored.value));
    let is_behind = |name: &&str| {
        let workload = WorkloadKey::new(&key.namespace, name);
        let hash = snapshot.workloads.get(&workload);
        let hash = hash.map(|entry| &entry.meta.value.template_hash);
        snapshot.instances.values().any(|entry| {
            let assignment = &entry.assignment.value;
            let secrets = assignment.secrets.as_ref();
            let given = secrets.and_then(|secrets| secrets.versions.get(&key.name));
            assignment.namespace == key.namespace
                && assignment.workload == **name
                && assignment.will_run()
                && Some(&assignment.template_hash) == hash
                && given.is_some_and(|given| Some(given) != version.as_ref())
        })
    };
    users.filter(is_behind).collect()
}

/// The secrets that an instance uses, all of which exist.
pub(super) type UsedSecrets<'a> = Vec<(SecretKey, &'a Stored<Arc<SecretRecord>>, SecretUse)>;

/// Why an instance that uses secrets is not placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecretTrouble {
    pub(super) reason: Reason,
    pub(super) message: String,
}

fn find<'a>(
    snapshot: &'a Snapshot,
    namespace: &str,
    uses: BTreeMap<String, SecretUse>,
) -> Result<UsedSecrets<'a>, SecretTrouble> {
    let trouble = |reason, message| Err(SecretTrouble { reason, message });
    let mut wanted = Vec::new();
    let mut size = 0;
    for (name, used) in uses {
        let key = SecretKey::new(namespace, &name);
        let Some(stored) = snapshot.secrets.get(&key) else {
            let keys: Vec<&str> = used.keys.keys().map(String::as_str).collect();
            let keys = match keys.as_slice() {
                [] => String::new(),
                keys => format!(" (of which it uses {})", keys.join(", ")),
            };
            let message = format!("there is no secret {name} in namespace {namespace}{keys}");
            return trouble(Reason::SecretMissing, message);
        };
        let there = &stored.value.keys;
        for (key, as_variable) in &used.keys {
            match there.get(key) {
                None => {
                    let message = format!("secret {name} has no key {key}");
                    return trouble(Reason::SecretMissing, message);
                }
                Some(known) if *as_variable && !known.text => {
                    let message = format!(
                        "the value of key {key} of secret {name} can't be that of a variable: it is no UTF-8 text, or has a NUL; mount it as a file"
                    );
                    return trouble(Reason::SecretUnusable, message);
                }
                Some(_) => {}
            }
        }
        let given = there.iter().filter(|(key, _)| gives(&used, key));
        size += given
            .map(|(key, known)| name.len() + key.len() + known.size)
            .sum::<usize>();
        wanted.push((key, stored, used));
    }
    if size > INSTANCE_LIMIT {
        let message = format!(
            "what it uses of secrets has {size} bytes; an instance can have {INSTANCE_LIMIT} at most"
        );
        return trouble(Reason::SecretUnusable, message);
    }
    Ok(wanted)
}

fn gives(used: &SecretUse, key: &str) -> bool {
    used.whole || used.keys.contains_key(key)
}

fn sealed_for(
    snapshot: &Snapshot,
    wanted: &UsedSecrets<'_>,
    node: &str,
    instance: &str,
) -> Result<Option<AssignedSecrets>, SealingError> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let versions = wanted.iter();
    let versions: BTreeMap<_, _> = versions
        .map(|(key, stored, _)| (key.name.clone(), SecretVersion::of(&stored.value)))
        .collect();
    let open = || {
        let mut given: BTreeMap<String, SecretValues> = BTreeMap::new();
        for (place, stored, used) in wanted {
            let mut values = snapshot.sealing.open(snapshot, place, &stored.value)?;
            values.0.retain(|key, _| gives(used, key));
            given.insert(place.name.clone(), values);
        }
        Ok(given)
    };
    deliver(
        snapshot,
        SealingPurpose::Secrets,
        (node, instance),
        versions,
        open,
    )
    .map(Some)
}

/// Opens values with `open` and seals them for an instance on its machine.
pub(super) fn deliver(
    snapshot: &Snapshot,
    purpose: SealingPurpose,
    (node, instance): (&str, &str),
    versions: BTreeMap<String, SecretVersion>,
    open: impl FnOnce() -> Result<BTreeMap<String, SecretValues>, SealingError>,
) -> Result<AssignedSecrets, SealingError> {
    if let SnapshotSealing::Rehearsed = snapshot.sealing {
        let sealed = "rehearsed".to_owned();
        return Ok(AssignedSecrets { versions, sealed });
    }
    let (number, key) = snapshot
        .sealing_keys
        .last_key_value()
        .ok_or(SealingError::NoDataKey(1))?;
    let key = snapshot.sealing.data_key(*number, &key.value)?;
    let unknown = || SealingError::Machine(node.to_owned());
    let machine = snapshot.nodes.get(node);
    let machine = machine.and_then(|node| node.public_key.as_deref());
    let machine = BASE64_STANDARD.decode(machine.ok_or_else(unknown)?.trim());
    let machine: [u8; 32] = machine
        .map_err(|_| unknown())?
        .try_into()
        .map_err(|_| unknown())?;
    let given = open()?;
    seal_for(purpose, &key, (node, &machine), instance, versions, &given)
}

impl<'a> WorkloadPlanner<'_, 'a, '_> {
    /// The secrets that an instance uses.
    pub(super) fn wanted_secrets(
        &self,
        volumes: &[Volume],
        container: &Container,
    ) -> Result<UsedSecrets<'a>, SecretTrouble> {
        let uses = secret_uses([container], volumes);
        find(self.draft.snapshot, &self.key.namespace, uses)
    }

    /// Seals the secrets for the machine.
    pub(super) fn sealed_secrets(
        &self,
        wanted: &UsedSecrets<'_>,
        node: &str,
        instance: &str,
    ) -> Result<Option<AssignedSecrets>, SecretTrouble> {
        let sealed = sealed_for(self.draft.snapshot, wanted, node, instance);
        sealed.map_err(|error| SecretTrouble {
            reason: Reason::SecretUnreadable,
            message: error.to_string(),
        })
    }

    /// Writes a new generation of the same files if a secret changed. Returns true if it did.
    pub(super) fn follow_secrets(&mut self, all: &[LiveInstance<'_>]) -> bool {
        let snapshot = self.draft.snapshot;
        let present = all.iter().filter(|live| live.is_wanted() && live.current);
        let mut changed = present.filter_map(|live| outdated(snapshot, live.assignment));
        let Some(name) = changed.next() else {
            return false;
        };
        let before = &self.entry.meta.value;
        // The hash differs from that of any earlier generation, however quickly changes follow each
        // other.
        let after = |at: Timestamp| at.saturating_add(SignedDuration::from_millis(1));
        let after = before.restarted.and_then(|at| after(at).ok());
        let at = after.map_or(self.draft.now, |after| after.max(self.draft.now));
        let earlier = with_restart("", before.restarted);
        let files = before.template_hash.strip_suffix(&earlier);
        let files = files.unwrap_or(&before.template_hash);
        let meta = WorkloadMeta {
            generation: before.generation + 1,
            template_hash: with_restart(files, Some(at)),
            restarted: Some(at),
            updated: self.draft.now,
            ..before.clone()
        };
        let generation = meta.generation;
        let why = format!("secret {name} has changed");
        let record = GenerationRecord {
            schema: 1,
            applied: self.draft.now,
            by: String::new(),
            origin: Origin::SecretChanged,
            of: None,
            why: why.clone(),
            spec_hash: meta.spec_hash.clone(),
            template_hash: meta.template_hash.clone(),
            restarted: meta.restarted,
            image: meta.image.clone(),
        };
        let message = format!("generation {generation} begins its instances anew: {why}");
        self.workload_event(EventKind::Normal, EventReason::SecretChanged, message);
        self.flush_if_full();
        let mut group = std::mem::take(&mut self.group);
        let WorkloadKey { namespace, name } = self.key;
        for (file, stored) in &self.entry.files {
            let copy = keys::archive_file(namespace, name, generation, file);
            group.put_text(copy, stored.value.as_bytes());
        }
        for old in crate::outdated_generations(self.entry, generation) {
            group.delete_prefix(keys::archive_generation(namespace, name, old));
        }
        group.put(keys::archive_meta(namespace, name, generation), &record);
        let meta_key = keys::workload_meta(namespace, name);
        group.put(meta_key.clone(), &meta);
        let unchanged = Compare::ModRevision(meta_key, self.entry.meta.revision);
        let reason = format!("workload {} takes up a changed secret", self.key);
        self.draft.commit(group, reason, vec![unchanged]);
        true
    }
}
