//! Credentials for registries: how they are stored, and how an instance's machine gets those that
//! it needs to pull its images.
//!
//! They are stored sealed, as secrets are, for a namespace and a registry or a path of one. An
//! assignment has the credentials for its images and follows the stored ones: they are no part of a
//! version, so that a new password replaces no instance.

use std::collections::BTreeMap;

use super::{
    Snapshot,
    secrets::{SecretTrouble, SnapshotSealing, deliver},
    service::WorkloadPlanner,
};
use crate::rollout::slot::LiveInstance;
use kat_pki::delivery::{PASSWORD, SealingError, SealingPurpose, USERNAME, framed, unframed};
use kat_types::{
    assignment::Assignment,
    reason::Reason,
    registry::{Credentials, LoginPlace, LoginRecord, Logins, needed},
    resource::secret::SecretValues,
    secrets::{AssignedSecrets, SealingKeyRecord, SecretVersion},
    store::revisions::Stored,
};

/// Lowest schema of an assignment with credentials: agents that know only lower ones pull without
/// any.
pub(super) const LOGINS_SCHEMA: u32 = 6;
/// Maximum bytes of an instance's credentials as stored: its assignment is one value of the store.
const MOST_BYTES: usize = 64 << 10;

/// The context of sealing: credentials sealed for one version of one registry's record in a
/// namespace do not open in any other place.
fn context(namespace: &str, place: &LoginPlace, record: &LoginRecord) -> Vec<u8> {
    let (place, version) = (place.to_string(), record.version.to_string());
    let parts = ["registry", namespace, &place, &record.uid, &version];
    framed(parts.iter().map(|part| part.as_bytes()))
}

fn name(namespace: &str, place: &LoginPlace) -> String {
    format!("the credentials for {place} in namespace {namespace}")
}

impl SnapshotSealing {
    /// Seals name and password into `record`, whose other fields say what they are for.
    pub fn seal_login(
        &self,
        key: (u64, &SealingKeyRecord),
        (namespace, place): (&str, &LoginPlace),
        credentials: &Credentials,
        record: LoginRecord,
    ) -> Result<LoginRecord, SealingError> {
        let Credentials { username, password } = credentials;
        let parts = [username.as_bytes(), password.as_bytes()];
        let plain = framed(parts.into_iter());
        let context = context(namespace, place, &record);
        let sealed = self.seal_bytes(key, &plain, &context, &name(namespace, place))?;
        Ok(LoginRecord {
            username: username.clone(),
            key_id: key.0,
            sealed,
            ..record
        })
    }

    /// Opens the name and password of a record.
    pub fn open_login(
        &self,
        snapshot: &Snapshot,
        (namespace, place): (&str, &LoginPlace),
        record: &LoginRecord,
    ) -> Result<Credentials, SealingError> {
        let name = name(namespace, place);
        let context = context(namespace, place, record);
        let sealed = (record.key_id, record.sealed.as_str());
        let plain = self.open_bytes(snapshot, sealed, &context, &name)?;
        let text = |part: &[u8]| String::from_utf8(part.to_vec());
        if let Some(&[username, password]) = unframed(&plain).as_deref()
            && let (Ok(username), Ok(password)) = (text(username), text(password))
        {
            return Ok(Credentials { username, password });
        }
        Err(SealingError::Malformed(name))
    }
}

/// A stored login and what it is for.
type MatchedLogin<'s> = (&'s LoginPlace, &'s Stored<LoginRecord>);

/// The logins of a namespace for these images, by the key in Podman's file.
fn found<'s, 'i>(
    snapshot: &'s Snapshot,
    namespace: &str,
    images: impl IntoIterator<Item = &'i str>,
) -> BTreeMap<String, MatchedLogin<'s>> {
    let Some(logins) = snapshot.logins.get(namespace) else {
        return BTreeMap::new();
    };
    let none = Default::default();
    let settings = snapshot.registries.as_ref();
    let settings = settings.map_or(&none, |stored| &stored.value);
    let images = images.into_iter();
    let needed = images.flat_map(|image| needed(image, settings, logins.keys()));
    let found = needed.filter_map(|(key, place)| Some((key, logins.get_key_value(place)?)));
    found.collect()
}

/// The opened logins of a namespace for an image, to query its registry with.
pub fn logins_for(
    snapshot: &Snapshot,
    namespace: &str,
    image: &str,
) -> Result<Logins, SealingError> {
    let found = found(snapshot, namespace, [image]).into_values();
    let opened = found.map(|(place, stored)| {
        let login = (namespace, place);
        let opened = snapshot.sealing.open_login(snapshot, login, &stored.value);
        opened.map(|credentials| (place.clone(), credentials))
    });
    opened.collect::<Result<_, _>>().map(Logins)
}

fn versions(found: &BTreeMap<String, MatchedLogin<'_>>) -> BTreeMap<String, SecretVersion> {
    let found = found.iter();
    found
        .map(|(key, (_, stored))| (key.clone(), stored.value.secret_version()))
        .collect()
}

/// The credentials for these images, sealed for an instance's machine.
fn sealed_for<'i>(
    snapshot: &Snapshot,
    namespace: &str,
    images: impl IntoIterator<Item = &'i str>,
    (node, instance): (&str, &str),
) -> Result<Option<AssignedSecrets>, SealingError> {
    let found = found(snapshot, namespace, images);
    if found.is_empty() {
        return Ok(None);
    }
    let size: usize = found
        .iter()
        .map(|(key, (_, stored))| key.len() + stored.value.sealed.len())
        .sum();
    if size > MOST_BYTES {
        let what =
            format!("the credentials for the registries of its images in namespace {namespace}");
        return Err(SealingError::TooMuch(what, size, MOST_BYTES));
    }
    let open = || {
        let values = found.iter().map(|(key, (place, stored))| {
            let login = (namespace, *place);
            let opened = snapshot.sealing.open_login(snapshot, login, &stored.value);
            let Credentials { username, password } = opened?;
            let values = [(USERNAME, username), (PASSWORD, password)];
            let values = values.map(|(name, value)| (name.to_owned(), value.into_bytes()));
            Ok((key.clone(), SecretValues(values.into())))
        });
        values.collect()
    };
    let machine = (node, instance);
    deliver(
        snapshot,
        SealingPurpose::Logins,
        machine,
        versions(&found),
        open,
    )
    .map(Some)
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Lowest assignment schema that an agent must know to pull these images.
    pub(super) fn logins_schema<'i>(&self, images: impl IntoIterator<Item = &'i str>) -> u32 {
        match found(self.draft.snapshot, &self.key.namespace, images).is_empty() {
            true => 1,
            false => LOGINS_SCHEMA,
        }
    }

    /// Credentials for a new instance's images.
    pub(super) fn sealed_logins<'i>(
        &self,
        images: impl IntoIterator<Item = &'i str>,
        node: &str,
        instance: &str,
    ) -> Result<Option<AssignedSecrets>, SecretTrouble> {
        let sealed = sealed_for(
            self.draft.snapshot,
            &self.key.namespace,
            images,
            (node, instance),
        );
        sealed.map_err(|error| SecretTrouble {
            reason: Reason::CredentialsUnreadable,
            message: error.to_string(),
        })
    }

    /// Updates the credentials of instances that have other ones than are stored. If they can't be
    /// sealed, the old ones stay: a running instance does not need them. What this plan has changed in
    /// another way follows in the next one.
    pub(super) fn follow_logins<'l, 'i: 'l>(
        &mut self,
        all: impl Iterator<Item = &'l LiveInstance<'i>>,
    ) {
        let snapshot = self.draft.snapshot;
        let namespace = &self.key.namespace;
        let none = BTreeMap::new();
        for live in all {
            let assignment = live.assignment.as_ref();
            if !assignment.will_run() || self.draft.changes(live.id) {
                continue;
            }
            let wanted = versions(&found(snapshot, namespace, assignment.images()));
            let given = assignment.logins.as_ref();
            if *given.map_or(&none, |given| &given.versions) == wanted {
                continue;
            }
            let place = (live.node, live.id);
            let Ok(logins) = sealed_for(snapshot, namespace, assignment.images(), place) else {
                continue;
            };
            let assignment = Assignment {
                logins,
                ..assignment.clone()
            };
            self.make_room_for(&assignment);
            self.draft.update(&mut self.group, live.node, &assignment);
            self.flush_if_full();
        }
    }
}
