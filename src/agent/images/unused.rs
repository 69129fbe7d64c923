//! What is remembered of images that nothing uses: for how long that has been so.
//!
//! Time is counted while the agent runs, by the monotonic clock, and kept on the disk. So a wall clock that jumps
//! removes nothing, and a machine that was off keeps its images for longer, never for less.

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
use kat_types::images::KeptOfUser;
use kat_types::{api::ImagesRemoved, assignment::WorkloadUser, resource::AgentConfig, root::Root};

/// Rounds after which the file is written when nothing but time went by.
const ROUNDS: u32 = 10;
/// Largest file.
const LIMIT: u64 = 16 << 20;

/// The images of this machine's workload users that nothing uses.
pub struct ImageCare {
    file: PathBuf,
    /// For so long those of a workload stay that has left.
    left: Duration,
    /// For so long one stays of a version that is not wanted.
    old: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    stored: Ledger,
    /// Users whose images are to go now, since there is no room.
    expired: BTreeSet<u32>,
    /// What was removed and not told yet.
    pending: ImagesRemoved,
    /// Rounds since the file was written.
    rounds: u32,
}

/// `/var/lib/kat/images.json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ledger {
    schema: u32,
    /// By uid.
    users: BTreeMap<u32, Unused>,
    /// What was removed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<ImagesRemoved>,
}

/// Of one user, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Unused {
    /// For how long its workload has been away.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
    /// By Podman's id, for how long nothing has used the image.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    images: BTreeMap<String, u64>,
}

impl Ledger {
    /// The same without how long it has been so.
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
    /// What an earlier process of the agent remembered, below `root`, which is `/` on a real machine.
    pub fn new(root: &Path, config: &AgentConfig) -> Arc<Self> {
        let file = Root::new(root).below(paths::IMAGES);
        let ledger = match files::read_bounded(&file, LIMIT) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|error| {
                tracing::warn!(path = %file.display(), "since when images are not used is not known; it is counted anew: {error:#}");
                Ledger::default()
            }),
            Err(error) if error.is_not_found() => Ledger::default(),
            Err(error) => {
                tracing::warn!("since when images are not used is not known; it is counted anew: {error:#}");
                Ledger::default()
            }
        };
        let times = config.images;
        Arc::new(Self {
            file,
            left: Duration::from_secs(u64::from(times.keep_days) * 86_400),
            old: Duration::from_secs(u64::from(times.old_hours) * 3600),
            state: Mutex::new(State {
                stored: ledger.clone(),
                ledger,
                ..State::default()
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the images of a workload that has left stay for its return: it is still a workload (`kept`), there
    /// are some, and it has not been away for too long. Where none of them is one that it would run, they are
    /// those of an old version.
    pub fn stays(&self, user: &WorkloadUser, home: &Path, kept: Option<&KeptOfUser>) -> bool {
        let Some(kept) = kept else {
            return false;
        };
        // Where nobody can tell what is there, it may be what is needed.
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

    /// Nothing of a user is left, or its workload is back.
    pub fn forget(&self, uid: u32) {
        let mut state = self.state();
        state.ledger.users.remove(&uid);
        state.expired.remove(&uid);
    }

    /// Counts the time for which a user has been without instances. Gives back how long that is, where its images
    /// are kept.
    pub fn away(&self, uid: u32, passed: Duration) -> Option<Duration> {
        let mut state = self.state();
        let left = state.ledger.users.get_mut(&uid)?.left.as_mut()?;
        *left = left.saturating_add(passed.as_secs());
        Some(Duration::from_secs(*left))
    }

    /// Counts the time for which images of a user with instances are unused; these are all of them, by id. Gives
    /// back how long that is of each, and whether it is to go for that.
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
            // One that is seen for the first time was used a moment ago.
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

    /// The images of a user whose workload has left are to go now. False where that was said before.
    pub fn expire(&self, uid: u32) -> bool {
        self.state().expired.insert(uid)
    }

    /// These images of a user were removed.
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

    /// What was removed since the last call, as it is to be told, and keeps all that is remembered. What was told
    /// before stays what was removed last.
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
