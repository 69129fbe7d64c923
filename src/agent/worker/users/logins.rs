//! Registry credentials of a worker: one file for all pulls of its user.

use crate::{
    images::logins::OpenedLogins,
    worker::{
        UserDesired, Worker, WorkerError,
        running::{jobs::JobKey, start_backoff::RetryDelay},
    },
};
use kat_types::{assignment::Assignment, reason::Reason};

/// Parts of Podman's messages where a registry refuses the credentials, in lower case. Some
/// registries also answer so where the image does not exist.
const REFUSALS: [&str; 9] = [
    "unauthorized",
    "authentication required",
    "access to the resource is denied",
    "denied:",
    "no basic auth credentials",
    "invalid username/password",
    "403 (forbidden)",
    "status code 403",
    "status code 401",
];

impl Worker {
    /// Writes the file with the credentials that pulls of this user's images need, if any.
    pub(crate) fn write_logins(&mut self, desired: &UserDesired) -> Result<(), WorkerError> {
        let mut all = OpenedLogins::new();
        let mut is_sealed = false;
        for assignment in desired.to_run().chain(desired.to_prepare()) {
            let (instance, context) = self.instance(&assignment.instance);
            let opened = context.tools.secrets.logins(assignment);
            instance.set_sealed_logins(opened.as_ref().err().cloned());
            match opened {
                Ok(opened) => all.extend(opened),
                Err(_) => is_sealed = true,
            }
        }
        let context = &mut self.context;
        if all.is_empty() {
            let stays = !desired.confirmed || is_sealed;
            context.has_logins = stays && context.tools.secrets.has_logins(&context.user);
            return Ok(());
        }
        if context.tools.secrets.write_logins(&context.user, &all)? {
            // A pull that was refused may succeed with the new credentials.
            for image in context.images.values_mut() {
                image.failure = None;
                image.attempts = RetryDelay::default();
            }
        }
        context.has_logins = true;
        Ok(())
    }

    /// Removes the file when no unit names it any more and no running pull may read it.
    pub(crate) fn remove_logins(&self) -> Result<(), WorkerError> {
        let context = &self.context;
        let mut jobs = context.jobs.keys();
        let pulls = jobs.any(|key| matches!(key, JobKey::Pull(_)));
        if !context.has_logins && !pulls {
            context.tools.secrets.remove_logins(&context.user)?;
        }
        Ok(())
    }
}

/// The reason and message of a pull that failed with this error text.
pub(crate) fn pull_failure(assignment: &Assignment, words: &str) -> (Reason, String) {
    if is_missing(words) {
        return (Reason::ImageNotFound, words.to_owned());
    }
    if !is_refusal(words) {
        return (Reason::ImagePullFailed, words.to_owned());
    }
    let Assignment {
        namespace, image, ..
    } = assignment;
    let host = kat_types::registry::login_host(image);
    let of_host = |key: &String| {
        let key = key.strip_prefix(&host);
        key.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let logins = assignment.logins.as_ref();
    let given = logins.filter(|logins| logins.versions.keys().any(of_host));
    let means = match given {
        Some(_) => "replaces the name and password that it was given",
        None => "gives this namespace a name and password for it",
    };
    let message = format!("{words}; `katcall registry login {host} -n {namespace}` {means}");
    (Reason::ImagePullUnauthorized, message)
}

/// Whether the registry answered that it does not have the image: the codes `MANIFEST_UNKNOWN` and
/// `NAME_UNKNOWN` of the distribution specification, in Podman's words.
fn is_missing(words: &str) -> bool {
    let words = words.to_lowercase();
    let missing = ["manifest unknown", "name unknown"];
    missing.iter().any(|missing| words.contains(missing))
}

/// Whether the error text is a registry's refusal, and not about this machine's own files.
fn is_refusal(words: &str) -> bool {
    let words = words.to_lowercase().replace("permission denied", "");
    REFUSALS.iter().any(|refusal| words.contains(refusal))
}

#[cfg(test)]
mod tests {
    use super::{is_missing, is_refusal};

    #[test]
    fn an_image_that_the_registry_does_not_have_is_told_from_a_registry_that_fails() {
        for words in [
            "initializing source docker://r.example/a:2: reading manifest 2 in r.example/a: manifest unknown",
            "reading manifest 1 in r.example/none: name unknown: repository name not known to registry",
        ] {
            assert!(is_missing(words), "{words}");
        }
        for words in [
            "dial tcp: lookup r.example: no such host",
            "reading manifest 1 in ghcr.io/a/b: denied: denied",
        ] {
            assert!(!is_missing(words), "{words}");
        }
    }

    #[test]
    fn refusals_of_registries_are_told_from_other_failures() {
        for words in [
            "reading manifest 1 in r.example/a: authentication required",
            "reading manifest 1 in r.example/a: unauthorized: authentication required",
            "unable to retrieve auth token: invalid username/password: unauthorized: incorrect username or password",
            "requested access to the resource is denied",
            "reading manifest 1 in ghcr.io/a/b: denied: denied",
            "denied: Permission \"artifactregistry.repositories.downloadArtifacts\" denied on resource",
            "received unexpected HTTP status: 403 (Forbidden)",
            "no basic auth credentials",
        ] {
            assert!(is_refusal(words), "{words}");
        }
        for words in [
            "manifest unknown",
            "open /run/kat/auth/20000.json: permission denied: x",
            "dial tcp: lookup r.example: no such host",
            "pinging container registry r.example: received unexpected HTTP status: 500",
        ] {
            assert!(!is_refusal(words), "{words}");
        }
    }
}
