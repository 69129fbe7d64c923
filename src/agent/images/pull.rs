//! Images of a workload user: those in its storage, and pulls of missing ones.

use std::{io::Read, path::Path, time::Duration};

use serde::Deserialize;

use crate::worker::reports::{log_tail, log_tail::shorten};
use kat_host::files::open_plain;
use kat_render::pull_policy;
use kat_systemd::{JournalQuery, LogEntry, LogSource, ServiceResult, SystemdError, UnitManager};
use kat_types::{assignment::Assignment, resource::ImagePullPolicy};

/// The list of images in a user's storage (containers-storage(1)), relative to its home.
const LISTS: [&str; 2] = [
    ".local/share/containers/storage/overlay-images/images.json",
    ".local/share/containers/storage/vfs-images/images.json",
];
/// Largest list that is read, in bytes; without the list the pull's unit decides.
const LARGEST: u64 = 16 << 20;

/// The list of layers in a user's storage, relative to its home.
const LAYERS: [&str; 2] = [
    ".local/share/containers/storage/overlay-layers/layers.json",
    ".local/share/containers/storage/vfs-layers/layers.json",
];

/// An image in a user's storage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoredImage {
    /// Podman's id.
    #[serde(default)]
    pub id: String,
    /// Such as `registry.example/web:1` or `registry.example/web@sha256:...`; empty for an image
    /// whose name another image has taken.
    #[serde(default)]
    pub names: Vec<String>,
    #[serde(default)]
    digest: String,
}

impl StoredImage {
    /// Whether the reference names this image.
    pub fn is(&self, reference: &str) -> bool {
        let wanted = stored_name(reference);
        let names = |name: &String| match has_registry(&wanted) {
            true => *name == wanted,
            // A name without a registry matches every registry: the machine's settings choose it.
            false => name.ends_with(&format!("/{wanted}")),
        };
        self.names.iter().any(names)
    }
}

#[derive(Deserialize)]
struct StoredLayer {
    #[serde(default, rename = "diff-size")]
    bytes: i64,
}

/// All images in a user's storage; empty where there is no storage. Only the list of one storage
/// driver is read; another driver's list, from earlier settings of the machine, is ignored.
///
/// # Errors
/// A sentence, where a list exists but can't be read: its images are unknown then.
pub(crate) fn list(home: &Path) -> Result<Vec<StoredImage>, String> {
    let Some(path) = LISTS
        .iter()
        .map(|list| home.join(list))
        .find(|path| path.exists())
    else {
        return Ok(Vec::new());
    };
    let content = read(&path).ok_or_else(|| format!("{}: can't be read", path.display()))?;
    serde_json::from_slice(&content).map_err(|error| format!("{}: {error}", path.display()))
}

/// Bytes of all layers in a user's storage, each counted once; 0 where the list can't be read.
pub(crate) fn layer_bytes(home: &Path) -> u64 {
    let layers = LAYERS.iter().find_map(|list| {
        let layers: Vec<StoredLayer> = serde_json::from_slice(&read(&home.join(list))?).ok()?;
        Some(layers)
    });
    let sizes = layers
        .iter()
        .flatten()
        .map(|layer| u64::try_from(layer.bytes).unwrap_or(0));
    sizes.fold(0, u64::saturating_add)
}

/// Whether the storage has an image for this reference. Only a hint that saves a process: if it is
/// wrong, the start fails and the pull's unit checks.
pub(crate) fn is_present(home: &Path, reference: &str) -> bool {
    find(home, reference).is_some()
}

/// Whether the container's image is missing and may be pulled.
pub(crate) fn is_lost(home: &Path, only: &Assignment) -> bool {
    pull_policy(only) != ImagePullPolicy::Never && !is_present(home, &only.image)
}

/// The digest `sha256:...` of an image in the storage.
pub(crate) fn digest(home: &Path, reference: &str) -> Option<String> {
    find(home, reference).map(|image| image.digest)
}

fn find(home: &Path, reference: &str) -> Option<StoredImage> {
    LISTS.iter().find_map(|list| {
        let images: Vec<StoredImage> = serde_json::from_slice(&read(&home.join(list))?).ok()?;
        images.into_iter().find(|image| image.is(reference))
    })
}

/// Reads a file in the user's own home: whatever the user has put there must not block the agent.
fn read(path: &Path) -> Option<Vec<u8>> {
    let file = open_plain(path).ok()?;
    let mut content = Vec::new();
    file.take(LARGEST).read_to_end(&mut content).ok()?;
    Some(content)
}

/// The name under which Podman stores a reference: with `:latest` where it has neither a tag nor a
/// digest, without a tag where it has a digest, and Docker Hub images without an owner below
/// `docker.io/library`.
fn stored_name(reference: &str) -> String {
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    let at = name.rfind('/').map_or(0, |slash| slash + 1);
    let (path, last) = name.split_at(at);
    let (last, tag) = match last.split_once(':') {
        Some((last, tag)) => (last, Some(tag)),
        None => (last, None),
    };
    let path = match path {
        "docker.io/" | "index.docker.io/" => "docker.io/library/".to_owned(),
        path => match path.strip_prefix("index.docker.io/") {
            Some(rest) => format!("docker.io/{rest}"),
            None => path.to_owned(),
        },
    };
    match (digest, tag) {
        (Some(digest), _) => format!("{path}{last}@{digest}"),
        (None, tag) => format!("{path}{last}:{}", tag.unwrap_or("latest")),
    }
}

/// Whether the first part of a name is a registry's host.
fn has_registry(name: &str) -> bool {
    let host = name.split_once('/').map(|(host, _)| host);
    host.is_some_and(|host| host.contains(['.', ':']) || host == "localhost")
}

/// Starts the pull's unit and waits for its end. The error is Podman's message.
pub(crate) async fn pull(
    manager: &dyn UnitManager,
    logs: &dyn LogSource,
    uid: u32,
    unit: &str,
    limit: Duration,
) -> Result<(), String> {
    let started = std::time::SystemTime::now();
    let result = manager.start(unit, limit).await;
    let status = manager
        .status(unit)
        .await
        .map_err(|error| error.to_string())?;
    // The unit's condition skips it where the image exists.
    if matches!(
        status.result,
        ServiceResult::Success | ServiceResult::ExecCondition
    ) && result.is_ok()
    {
        return Ok(());
    }
    if let Err(error @ (SystemdError::Unreachable { .. } | SystemdError::NoSuchUnit(_))) = &result {
        return Err(error.to_string());
    }
    let words = podman_words(logs, uid, unit, started).await;
    match manager.reset_failed(unit).await {
        Ok(()) | Err(SystemdError::NoSuchUnit(_)) => {}
        Err(error) => tracing::debug!(unit, "a failed pull stays marked as failed: {error:#}"),
    }
    Err(words.unwrap_or_else(|| format!("{unit} ended with result {}", status.result)))
}

/// Podman's `Error:` line of this try, otherwise its last line.
async fn podman_words(
    logs: &dyn LogSource,
    uid: u32,
    unit: &str,
    since: std::time::SystemTime,
) -> Option<String> {
    let query = JournalQuery {
        since: Some(since),
        ..log_tail::query(uid, unit, Some(40))
    };
    let entries = tokio::time::timeout(Duration::from_secs(5), log_tail::collect(logs, &query))
        .await
        .ok()?;
    let podman: Vec<String> = entries
        .iter()
        .filter(|entry| entry.identifier != "systemd")
        .map(LogEntry::text)
        .collect();
    let error = podman
        .iter()
        .rev()
        .find(|message| message.starts_with("Error:"))
        .or(podman.last())?;
    Some(shorten(error.trim_start_matches("Error:").trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_an_image_by_its_full_reference() {
        let home = tempfile::tempdir().unwrap();
        let list = home.path().join(LISTS[0]);
        std::fs::create_dir_all(list.parent().unwrap()).unwrap();
        std::fs::write(
            &list,
            r#"[{"id":"a","digest":"sha256:1","names":["r.example/web:latest"]}]"#,
        )
        .unwrap();
        assert!(is_present(home.path(), "r.example/web"));
        assert!(!is_present(home.path(), "r.example/web:2"));
        assert_eq!(
            digest(home.path(), "r.example/web:latest").as_deref(),
            Some("sha256:1")
        );
    }

    #[test]
    fn an_image_is_known_by_every_way_to_write_its_name() {
        let stored = |name: &str| StoredImage {
            id: "a".to_owned(),
            names: vec![name.to_owned()],
            digest: String::new(),
        };
        for (written, name) in [
            ("registry.lab:5000/web", "registry.lab:5000/web:latest"),
            ("registry.lab:5000/web:1", "registry.lab:5000/web:1"),
            ("r.example/web:1@sha256:ab", "r.example/web@sha256:ab"),
            ("docker.io/nginx:1.28", "docker.io/library/nginx:1.28"),
            (
                "docker.io/nginx@sha256:ab",
                "docker.io/library/nginx@sha256:ab",
            ),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest"),
            ("index.docker.io/me/web:1", "docker.io/me/web:1"),
            ("docker.io/me/web:1", "docker.io/me/web:1"),
            ("nginx", "docker.io/library/nginx:latest"),
            ("me/web:1", "quay.io/me/web:1"),
            ("localhost/web", "localhost/web:latest"),
        ] {
            assert!(stored(name).is(written), "{written} is {name}");
        }
        for (written, name) in [
            ("r.example/web:1", "r.example/web:2"),
            ("r.example/web@sha256:ab", "r.example/web:1"),
            ("web:1", "r.example/other-web:1"),
            ("localhost/web", "r.example/localhost/web:latest"),
            (
                "registry.lab:5000/web",
                "registry.lab:5000/library/web:latest",
            ),
        ] {
            assert!(!stored(name).is(written), "{written} is not {name}");
        }
    }
}
