//! Records for how long images have been unused.
//!
//! The time is counted while the agent runs, by the monotonic clock, and stored on the disk. So a
//! jump of the wall clock removes nothing, and a machine that was off keeps its images longer,
//! never shorter.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use crate::{images::pull as image, service::paths};
use kat_host::files;
use kat_types::{
    api::ImagesRemoved, assignment::WorkloadUser, images::KeptUserImages, machine::root::Root,
    resource::AgentConfig,
};

/// Rounds after which the file is written if only times have changed.
const ROUNDS: u32 = 10;
/// Largest file in bytes.
const LIMIT: u64 = 16 << 20;

/// The unused images of this machine's workload users.
pub struct ImageCare {
    file: PathBuf,
    /// How long the images of a workload that has left are kept.
    left: Duration,
    /// How long an unused image of an old version is kept.
    old: Duration,
    state: Mutex<ImageUsage>,
}

#[derive(Default)]
struct ImageUsage {
    ledger: ImageLedger,
    stored: ImageLedger,
    /// Users whose images are to be removed now, since a disk is short of space.
    expired: BTreeSet<u32>,
    /// Removed images that were not reported yet.
    pending: ImagesRemoved,
    /// Rounds since the file was written.
    rounds: u32,
}

/// The content of `/var/lib/kat/images.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ImageLedger {
    schema: u32,
    users: BTreeMap<u32, UnusedImages>,
    /// The last report of removed images.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<ImagesRemoved>,
}

/// Unused images of one user, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct UnusedImages {
    /// For how long the user's workload has been away.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
    /// For how long each image has been unused, by Podman's id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    images: BTreeMap<String, u64>,
}

impl ImageLedger {
    /// The ledger with all times set to 0, to compare its other content.
    fn without_times(&self) -> Self {
        let mut about = self.clone();
        about.schema = 0;
        for unused in about.users.values_mut() {
            unused.left = unused.left.map(|_| 0);
            unused.images.values_mut().for_each(|age| *age = 0);
        }
        about
    }
}

impl ImageCare {
    /// Reads what an earlier process of the agent stored below `root`, which is `/` on a real
    /// machine.
    pub fn new(root: &Root, config: &AgentConfig) -> Arc<Self> {
        let file = root.below(paths::IMAGES);
        let ledger = match files::read_bounded(&file, LIMIT) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|error| {
                tracing::warn!(path = %file.display(), "since when images are not used is not known; it is counted anew: {error:#}");
                ImageLedger::default()
            }),
            Err(error) if error.is_not_found() => ImageLedger::default(),
            Err(error) => {
                tracing::warn!("since when images are not used is not known; it is counted anew: {error:#}");
                ImageLedger::default()
            }
        };
        let times = config.images;
        Arc::new(Self {
            file,
            left: Duration::from_secs(u64::from(times.keep_days) * 86_400),
            old: Duration::from_secs(u64::from(times.old_hours) * 3600),
            state: Mutex::new(ImageUsage {
                stored: ledger.clone(),
                ledger,
                ..ImageUsage::default()
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, ImageUsage> {
        self.state.lock()
    }

    /// Whether the images of a workload that has left are kept for its return: the workload still
    /// exists (`kept`), there are images, and it has not been away for too long. Where it would use
    /// none of the images, they count as those of an old version.
    pub fn keeps_images(
        &self,
        user: &WorkloadUser,
        home: &Path,
        kept: Option<&KeptUserImages>,
    ) -> bool {
        let Some(kept) = kept else {
            return false;
        };
        // Where the list can't be read, a needed image may be among them.
        let images = image::list(home).ok();
        if images.as_ref().is_some_and(Vec::is_empty) {
            return false;
        }
        let mut wanted = kept.images.iter();
        let useful = kept.unknown
            || images
                .is_none_or(|images| wanted.any(|wanted| images.iter().any(|one| one.is(wanted))));
        let limit = if useful { self.left } else { self.old };
        let mut state = self.state();
        let expired = state.expired.contains(&user.uid);
        let unused = state.ledger.users.entry(user.uid).or_default();
        unused.images.clear();
        let away = *unused.left.get_or_insert(0);
        !expired && away < limit.as_secs()
    }

    /// Forgets a user: it was removed, or its workload has returned.
    pub fn forget(&self, uid: u32) {
        let mut state = self.state();
        state.ledger.users.remove(&uid);
        state.expired.remove(&uid);
    }

    /// Adds to the time for which a user has been without instances. Returns that time if the
    /// user's images are kept.
    pub fn away(&self, uid: u32, passed: Duration) -> Option<Duration> {
        let mut state = self.state();
        let left = state.ledger.users.get_mut(&uid)?.left.as_mut()?;
        *left = left.saturating_add(passed.as_secs());
        Some(Duration::from_secs(*left))
    }

    /// Adds to the times for which images of a user with instances have been unused. `ids` are all
    /// its unused images. Returns the time of each, and whether it is long enough for a removal.
    pub fn unused(
        &self,
        uid: u32,
        ids: &BTreeSet<&str>,
        passed: Duration,
    ) -> BTreeMap<String, (Duration, bool)> {
        let mut state = self.state();
        state.expired.remove(&uid);
        if ids.is_empty() {
            state.ledger.users.remove(&uid);
            return BTreeMap::new();
        }
        let unused = state.ledger.users.entry(uid).or_default();
        unused.left = None;
        let before = std::mem::take(&mut unused.images);
        for id in ids {
            // An image that was not in the last round was in use a moment ago.
            let age = before
                .get(*id)
                .map_or(0, |age| age.saturating_add(passed.as_secs()));
            unused.images.insert((*id).to_owned(), age);
        }
        let ages = unused.images.iter().map(|(id, age)| {
            let age = Duration::from_secs(*age);
            (id.clone(), (age, age >= self.old))
        });
        ages.collect()
    }

    /// Orders the removal of the images of a user whose workload has left. False where that was
    /// ordered before.
    pub fn expire(&self, uid: u32) -> bool {
        self.state().expired.insert(uid)
    }

    /// Records that these images of a user were removed.
    pub fn note(&self, user: &WorkloadUser, images: &[image::StoredImage], bytes: u64) {
        let count = u32::try_from(images.len()).unwrap_or(u32::MAX);
        let names = images.iter().map(|image| match image.names.first() {
            Some(name) => name.clone(),
            None => format!("{} without a name", image.id),
        });
        let names: Vec<String> = names.collect();
        let told = ImagesRemoved {
            images: count,
            bytes,
            names: names.clone(),
            ..ImagesRemoved::default()
        };
        tracing::info!("{}: {}", user.name, told.bounded());
        let mut state = self.state();
        state.pending.images = state.pending.images.saturating_add(count);
        state.pending.bytes = state.pending.bytes.saturating_add(bytes);
        state.pending.names.extend(names);
    }

    /// Stores the ledger, and returns the report of the images that were removed since the last
    /// call; the last report where none were.
    pub fn conclude(&self) -> Option<ImagesRemoved> {
        let mut state = self.state();
        if state.pending.images > 0 {
            let id = state.ledger.removed.as_ref().map_or(0, |last| last.id);
            let pending = std::mem::take(&mut state.pending);
            let removed = ImagesRemoved {
                id: id.saturating_add(1),
                ..pending.bounded()
            };
            state.ledger.removed = Some(removed);
        }
        state.ledger.schema = 1;
        state.rounds = state.rounds.saturating_add(1);
        let is_new = state.ledger.without_times() != state.stored.without_times();
        let is_later = state.rounds >= ROUNDS
            && !state.ledger.users.is_empty()
            && state.ledger != state.stored;
        if is_new || is_later {
            match files::write_json(&self.file, &state.ledger) {
                Ok(()) => {
                    state.stored = state.ledger.clone();
                    state.rounds = 0;
                }
                Err(error) => {
                    tracing::warn!("for how long images are not used can't be kept: {error:#}");
                }
            }
        }
        state.ledger.removed.clone()
    }
}
