//! What an apply learns of its image before it is written: the digest that its tag means now, and for which
//! architectures it is made, so that every replica of a version runs the same, where it can.

use std::sync::LazyLock;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    apply::{Apply, Cause},
    context::Api,
    submission::Submission,
};
use crate::{
    plan::{ImageRecord, Snapshot, WorkloadKey, logins_for, with_restart},
    registry::{Reference, RegistryError, login_host},
};

/// Most images that are asked for at once.
const AT_ONCE: usize = 4;

static QUESTIONS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(AT_ONCE));

/// Waits for a turn to ask.
pub(super) async fn permit() -> Option<SemaphorePermit<'static>> {
    QUESTIONS.acquire().await.ok()
}

/// Asks the registries of all its images where this apply begins a version; `None` where it does not. Who can't be
/// asked keeps nobody from applying: it is written down as the problem.
pub(super) async fn look(api: &Api, apply: &Apply<'_>) -> Option<ImageRecord> {
    let snapshot = api.snapshot().ok()?;
    if !begins_a_version(apply, &snapshot) {
        return None;
    }
    let namespace = apply.submission.namespace.as_str();
    let images = apply.submission.pulled_images.iter();
    let asked = images.map(|image| look_at(api, &snapshot, (namespace, image)));
    // At once, as each may take its time.
    let records = futures_util::future::join_all(asked).await;
    let records: Vec<ImageRecord> = records.into_iter().flatten().collect();
    let partial =
        apply.submission.has_own_images || records.len() < apply.submission.pulled_images.len();
    ImageRecord::of_all(records).map(|record| ImageRecord { partial, ..record })
}

/// What was learned of the images of an apply, but of those that are others by now.
pub(super) fn still_meant(looked: Option<&ImageRecord>, submission: &Submission) -> ImageRecord {
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

/// What is to be known of one image; `None` where nothing is.
async fn look_at(
    api: &Api,
    snapshot: &Snapshot,
    (namespace, image): (&str, &str),
) -> Option<ImageRecord> {
    let _permit = permit().await;
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
    // What listens on the leader alone is nobody's registry but an administrator's.
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
        // It is pinned as it is.
        Err(_) if reference.is_pinned() => None,
        Err(error @ RegistryError::Unauthorized(_)) => {
            let host = login_host(image);
            let problem = format!("{error}; `katcall registry login {host} -n {namespace}`");
            Some(record(String::new(), Vec::new(), problem))
        }
        Err(error) => Some(record(String::new(), Vec::new(), error.to_string())),
    }
}

/// What the workload is made of is another than now.
fn begins_a_version(apply: &Apply<'_>, snapshot: &Snapshot) -> bool {
    let submission = &apply.submission;
    let key = WorkloadKey::new(&submission.namespace, &submission.name);
    let Some(entry) = snapshot.workloads.get(&key) else {
        return true;
    };
    let meta = &entry.meta.value;
    match apply.cause {
        // What it ran is kept with it.
        Cause::RolledBack { .. } => false,
        Cause::Restarted { at } => meta.restarted != Some(at),
        Cause::Applied | Cause::Scaled { .. } | Cause::ImageSet => {
            with_restart(&submission.template_hash, meta.restarted) != meta.template_hash
        }
    }
}
