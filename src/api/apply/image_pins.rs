//! Lookup of a workload's images before an apply is written: the digest that a tag has now, and the
//! architectures of the image, so that every replica of a version runs the same image where
//! possible. An apply that newly names an image which cannot be pulled is refused.

use std::{collections::BTreeSet, sync::LazyLock, time::Duration};

use tokio::time::{Instant, timeout_at};

use crate::{
    access::authentication::Caller,
    apply::{
        ApplyCause, WorkloadWrite,
        submission::{Submission, refusal},
    },
    context::Api,
    errors::ApiError,
    server::work_permits::{SharedTurns, TurnPermit},
};
use kat_bundle::{SourceFile, image_places};
use kat_plan::{Snapshot, logins_for};
use kat_registry::RegistryError;
use kat_types::{
    api::Scope,
    registry::{Logins, Reference, login_host},
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
        | RegistryError::Nonexistent { .. }
        | RegistryError::NotFound { .. } => return error.to_string(),
    };
    if !deploys {
        return error.to_string();
    }
    tracing::info!(%caller, "a registry could not be asked: {error:#}");
    format!("{host} does not answer as a registry; the leader's journal says why")
}

/// An image that no machine could pull.
struct ImageRefusal {
    message: String,
    hint: String,
}

/// What a lookup found out about one image.
enum LookedUp {
    /// There is nothing to record.
    Nothing,
    Record(ImageRecord),
    /// The image's name is not complete, or its registry states that it does not exist.
    Refusal(ImageRefusal),
}

/// Looks up all images if this apply begins a version; else `None`. A failed lookup does not refuse
/// the apply: it is recorded as the problem.
///
/// # Errors
/// [`ApiError::Invalid`] for images that no machine could pull. Images that the stored workload has
/// already are never refused.
pub(crate) async fn look_up_images(
    api: &Api,
    apply: &WorkloadWrite<'_>,
) -> Result<Option<ImageRecord>, ApiError> {
    let Ok(snapshot) = api.snapshot() else {
        return Ok(None);
    };
    if !begins_a_version(apply, &snapshot) {
        return Ok(None);
    }
    let namespace = apply.submission.namespace.as_str();
    let images = apply.submission.pulled_images.iter();
    let caller = apply.caller;
    let deadline = Instant::now() + WHOLE;
    let asked = images.map(async |image| {
        let asked = look_at(api, &snapshot, (namespace, image), caller);
        let asked = timeout_at(deadline, asked).await;
        (image, asked.unwrap_or_else(|_| not_asked(image)))
    });
    // Concurrently, since each may take its time.
    let asked = futures_util::future::join_all(asked).await;
    let stored = stored_images(apply, &snapshot);
    let mut records = Vec::new();
    let mut refusals = Vec::new();
    for (image, looked_up) in asked {
        match looked_up {
            LookedUp::Nothing => {}
            LookedUp::Record(record) => records.push(record),
            LookedUp::Refusal(refusal) if stored.contains(image.as_str()) => {
                records.push(with_problem(image, refusal.message));
            }
            LookedUp::Refusal(refusal) => refusals.push((image.as_str(), refusal)),
        }
    }
    if !refusals.is_empty() {
        return Err(refused(apply, refusals));
    }
    let partial =
        apply.submission.has_own_images || records.len() < apply.submission.pulled_images.len();
    Ok(ImageRecord::of_all(records).map(|record| ImageRecord { partial, ..record }))
}

/// The images that the present generation of the workload has.
fn stored_images<'a>(apply: &WorkloadWrite<'_>, snapshot: &'a Snapshot) -> BTreeSet<&'a str> {
    let key = WorkloadKey::new(&apply.submission.namespace, &apply.submission.name);
    let entry = snapshot.workloads.get(&key);
    let parsed = entry.and_then(|entry| entry.parsed.as_ref().ok());
    let images = parsed.map(|parsed| parsed.workload.spec.images());
    images
        .into_iter()
        .flatten()
        .map(|(image, _)| image)
        .collect()
}

/// The error with the places of the files that name these images.
fn refused(apply: &WorkloadWrite<'_>, refusals: Vec<(&str, ImageRefusal)>) -> ApiError {
    if apply.cause == ApplyCause::ImageSet {
        // The caller has sent a name and no files.
        let messages = refusals.into_iter();
        let messages =
            messages.map(|(_, refusal)| format!("{}; {}", refusal.message, refusal.hint));
        let messages: Vec<String> = messages.collect();
        return ApiError::invalid(format!("image: {}", messages.join("; ")));
    }
    let files = apply.submission.files.iter();
    let files = files.map(|(name, text)| SourceFile {
        name: name.clone(),
        text: text.clone(),
    });
    let files: Vec<SourceFile> = files.collect();
    let found = refusals
        .iter()
        .flat_map(|(image, refusal)| image_places(&files, image, &refusal.message, &refusal.hint));
    refusal(found.collect())
}

/// The record of an image whose lookup failed.
fn with_problem(image: &str, problem: String) -> ImageRecord {
    ImageRecord {
        reference: image.to_owned(),
        problem,
        ..ImageRecord::default()
    }
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
fn not_asked(image: &str) -> LookedUp {
    let reference = Reference::parse(image).filter(|one| !one.is_pinned());
    reference.map_or(LookedUp::Nothing, |reference| {
        let seconds = WHOLE.as_secs();
        let problem = format!(
            "{} was not asked: the images took longer than {seconds} s together",
            reference.host
        );
        LookedUp::Record(with_problem(image, problem))
    })
}

/// The lookup of one image.
async fn look_at(
    api: &Api,
    snapshot: &Snapshot,
    (namespace, image): (&str, &str),
    caller: &Caller,
) -> LookedUp {
    let problem = |problem: String| LookedUp::Record(with_problem(image, problem));
    let Some(reference) = Reference::parse(image) else {
        let full = Reference::with_docker(image);
        return LookedUp::Refusal(ImageRefusal {
            message: RegistryError::ShortName(image.to_owned()).to_string(),
            hint: format!("write the full name, such as `{full}`"),
        });
    };
    let _turn = registry_permit(namespace).await;
    let Some(source) = api.config.images.as_ref() else {
        return LookedUp::Nothing;
    };
    let settings = snapshot.registries.as_ref();
    let settings = settings.map_or_else(Default::default, |stored| stored.value.clone());
    // A registry on the leader's loopback address is queried only if an administrator has
    // configured it.
    if reference.is_local() && !settings.registries.contains_key(&reference.host) {
        return problem(format!("{} is the machine itself", reference.host));
    }
    let logins = match logins_for(snapshot, namespace, image) {
        Ok(logins) => logins,
        Err(_) if reference.is_pinned() => return LookedUp::Nothing,
        Err(error) => return problem(error.to_string()),
    };
    match source.resolve(&reference, &settings, &logins).await {
        Ok(found) => LookedUp::Record(ImageRecord {
            reference: image.to_owned(),
            pinned: match reference.is_pinned() {
                true => String::new(),
                false => reference.pinned_to(&found.digest),
            },
            architectures: found.architectures,
            ..ImageRecord::default()
        }),
        Err(error @ RegistryError::Nonexistent { .. }) => LookedUp::Refusal(ImageRefusal {
            message: error.to_string(),
            hint: nonexistent_hint(namespace, image, &logins),
        }),
        // The reference is pinned already.
        Err(_) if reference.is_pinned() => LookedUp::Nothing,
        Err(error @ RegistryError::Unauthorized(_)) => {
            let host = login_host(image);
            problem(format!(
                "{error}; `katcall registry login {host} -n {namespace}`"
            ))
        }
        Err(error) => problem(lookup_error(&error, caller)),
    }
}

/// What to do about an image that does not exist. Some registries deny private images to callers
/// without a login in the same words.
fn nonexistent_hint(namespace: &str, image: &str, logins: &Logins) -> String {
    let hint = "check the name and the tag, or push the image first".to_owned();
    if !logins.0.is_empty() {
        return hint;
    }
    let host = login_host(image);
    format!("{hint}; if the image is private: `katcall registry login {host} -n {namespace}`")
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
        ApplyCause::Applied
        | ApplyCause::Scaled { .. }
        | ApplyCause::ImageSet
        | ApplyCause::Stopped { .. }
        | ApplyCause::Started { .. } => {
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
