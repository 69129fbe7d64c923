//! Lookup of a workload's images before an apply is written: the digest that a tag has now, and the
//! architectures of the image, so that every replica of a version runs the same image where
//! possible.

use std::{sync::LazyLock, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::submission::Submission;
use crate::{
    access::authentication::Caller,
    apply::{ApplyCause, WorkloadWrite},
    context::Api,
    server::work_permits::{SharedTurns, TurnPermit},
};
use kat_plan::{Snapshot, logins_for};
use kat_registry::RegistryError;
use kat_types::{
    api::Scope,
    registry::{Reference, login_host},
    store::{
        records::{ImageRecord, with_restart},
        revisions::WorkloadKey,
    },
};

/// Maximum number of concurrent lookups, of a namespace and in all: a registry that does not answer
/// takes its time.
const AT_ONCE: (usize, usize) = (2, 8);

/// Time limit for all images of an apply, since the caller waits for the response.
const WHOLE: Duration = Duration::from_secs(15);

static QUESTIONS: LazyLock<SharedTurns> = LazyLock::new(|| SharedTurns::new(AT_ONCE.0, AT_ONCE.1));

/// Waits for a turn to query a registry for this namespace.
pub(crate) async fn registry_permit(namespace: &str) -> TurnPermit<'static> {
    QUESTIONS.take(namespace).await
}

/// The message of a failed lookup for this caller. A deploy token can name any host, and the leader
/// queries it: the message must not reveal which ports of the leader's networks are open, closed or
/// speak TLS.
pub(crate) fn lookup_error(error: &RegistryError, caller: &Caller) -> String {
    let deploys = matches!(
        caller,
        Caller::Token {
            scope: Scope::Deploy { .. },
            ..
        }
    );
    let host = match error {
        RegistryError::Unreachable { host, .. }
        | RegistryError::Refused { host, .. }
        | RegistryError::Unexpected { host, .. } => host,
        // These errors come from a registry over TLS that the machine trusts.
        RegistryError::ShortName(_)
        | RegistryError::Unauthorized(_)
        | RegistryError::NotFound { .. } => return error.to_string(),
    };
    if !deploys {
        return error.to_string();
    }
    tracing::info!(%caller, "a registry could not be asked: {error:#}");
    format!("{host} does not answer as a registry; the leader's journal says why")
}

/// Looks up all images if this apply begins a version; else `None`. A failed lookup does not refuse
/// the apply: it is recorded as the problem.
pub(crate) async fn look_up_images(api: &Api, apply: &WorkloadWrite<'_>) -> Option<ImageRecord> {
    let snapshot = api.snapshot().ok()?;
    if !begins_a_version(apply, &snapshot) {
        return None;
    }
    let namespace = apply.submission.namespace.as_str();
    let images = apply.submission.pulled_images.iter();
    let caller = apply.caller;
    let deadline = Instant::now() + WHOLE;
    let asked = images.map(async |image| {
        let asked = look_at(api, &snapshot, (namespace, image), caller);
        let asked = timeout_at(deadline, asked).await;
        asked.unwrap_or_else(|_| not_asked(image))
    });
    // Concurrently, since each may take its time.
    let records = futures_util::future::join_all(asked).await;
    let records: Vec<ImageRecord> = records.into_iter().flatten().collect();
    let partial =
        apply.submission.has_own_images || records.len() < apply.submission.pulled_images.len();
    ImageRecord::of_all(records).map(|record| ImageRecord { partial, ..record })
}

/// The lookup's results for the images that the submission still names.
pub(crate) fn still_meant(looked: Option<&ImageRecord>, submission: &Submission) -> ImageRecord {
    let images = &submission.pulled_images;
    let meant = looked.map(|looked| {
        let meant = looked.each().filter(|one| images.contains(&one.reference));
        let meant = ImageRecord::of_all(meant.map(|one| ImageRecord {
            others: Vec::new(),
            ..one.clone()
        }));
        meant.map(|meant| ImageRecord {
            partial: looked.partial,
            ..meant
        })
    });
    meant.flatten().unwrap_or_default()
}

/// The record of an image for which no time was left.
fn not_asked(image: &str) -> Option<ImageRecord> {
    let reference = Reference::parse(image).filter(|one| !one.is_pinned())?;
    let host = &reference.host;
    let seconds = WHOLE.as_secs();
    Some(ImageRecord {
        reference: image.to_owned(),
        problem: format!("{host} was not asked: the images took longer than {seconds} s together"),
        ..ImageRecord::default()
    })
}

/// The lookup of one image; `None` if there is nothing to record.
async fn look_at(
    api: &Api,
    snapshot: &Snapshot,
    (namespace, image): (&str, &str),
    caller: &Caller,
) -> Option<ImageRecord> {
    let _turn = registry_permit(namespace).await;
    let source = api.config.images.as_ref()?;
    let record = |pinned: String, architectures, problem| ImageRecord {
        reference: image.to_owned(),
        pinned,
        architectures,
        problem,
        partial: false,
        others: Vec::new(),
    };
    let Some(reference) = Reference::parse(image) else {
        let problem = RegistryError::ShortName(image.to_owned()).to_string();
        return Some(record(String::new(), Vec::new(), problem));
    };
    let settings = snapshot.registries.as_ref();
    let settings = settings.map_or_else(Default::default, |stored| stored.value.clone());
    // A registry on the leader's loopback address is queried only if an administrator has
    // configured it.
    if reference.is_local() && !settings.registries.contains_key(&reference.host) {
        let problem = format!("{} is the machine itself", reference.host);
        return Some(record(String::new(), Vec::new(), problem));
    }
    let logins = match logins_for(snapshot, namespace, image) {
        Ok(logins) => logins,
        Err(_) if reference.is_pinned() => return None,
        Err(error) => return Some(record(String::new(), Vec::new(), error.to_string())),
    };
    match source.resolve(&reference, &settings, &logins).await {
        Ok(found) => {
            let pinned = match reference.is_pinned() {
                true => String::new(),
                false => reference.pinned_to(&found.digest),
            };
            Some(record(pinned, found.architectures, String::new()))
        }
        // The reference is pinned already.
        Err(_) if reference.is_pinned() => None,
        Err(error @ RegistryError::Unauthorized(_)) => {
            let host = login_host(image);
            let problem = format!("{error}; `katcall registry login {host} -n {namespace}`");
            Some(record(String::new(), Vec::new(), problem))
        }
        Err(error) => Some(record(
            String::new(),
            Vec::new(),
            lookup_error(&error, caller),
        )),
    }
}

/// Whether the apply changes the workload's template.
fn begins_a_version(apply: &WorkloadWrite<'_>, snapshot: &Snapshot) -> bool {
    let submission = &apply.submission;
    let key = WorkloadKey::new(&submission.namespace, &submission.name);
    let Some(entry) = snapshot.workloads.get(&key) else {
        return true;
    };
    let meta = &entry.meta.value;
    match apply.cause {
        // A rollback restores the images recorded with its generation.
        ApplyCause::RolledBack { .. } => false,
        ApplyCause::Restarted { at } => meta.restarted != Some(at),
        ApplyCause::Applied | ApplyCause::Scaled { .. } | ApplyCause::ImageSet => {
            with_restart(&submission.template_hash, meta.restarted) != meta.template_hash
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deploy_token_learns_one_sentence_of_every_host() {
        let caller = |scope| Caller::Token {
            id: "0123456789ab".to_owned(),
            name: String::new(),
            scope,
        };
        let deploy = caller(Scope::Deploy {
            namespace: "shop".to_owned(),
        });
        let host = || "10.0.0.1:22".to_owned();
        let errors =
            ["connection refused", "no answer in time"].map(|error| RegistryError::Unreachable {
                host: host(),
                error: error.to_owned(),
            });
        let others = [
            RegistryError::Refused {
                host: host(),
                status: 500,
            },
            RegistryError::Unexpected {
                host: host(),
                what: "no digest".to_owned(),
            },
        ];
        let errors: Vec<_> = errors.into_iter().chain(others).collect();
        for error in &errors {
            let expected =
                "10.0.0.1:22 does not answer as a registry; the leader's journal says why";
            assert_eq!(lookup_error(error, &deploy), expected);
            assert_eq!(
                lookup_error(error, &caller(Scope::Admin)),
                error.to_string()
            );
        }
    }
}
