//! Removes unused images: by age, and where the disk is full the oldest first.
//!
//! Of a user with instances, single images are removed, by a unit of that user. The images of a
//! workload that has left the machine are removed with its user, by its worker.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Statuses,
    disk::pressure::DiskWatch,
    images::{pull as image, pull::StoredImage},
    service::supervisor::DesiredList,
    worker::WorkerTools,
};
use kat_daemon::watchdog::LoopPulses;
use kat_systemd::{JobResult, TransientUnit};
use kat_types::{assignment::WorkloadUser, images::KeptUserImages};

/// Interval of the rounds.
const EVERY: Duration = Duration::from_secs(60);
/// Longest removal of one image.
const REMOVAL: Duration = Duration::from_secs(300);
/// Time that the agent waits beyond the removal's own time limit.
const MARGIN: Duration = Duration::from_secs(10);
/// Most removals in one round.
const MOST: usize = 32;
/// Exit code of `podman image rm` where a container uses the image (podman-rmi(1)).
const IN_USE: i32 = 2;
/// Pause before a failed removal is retried.
const AFTER_FAILURE: Duration = Duration::from_secs(3600);

pub(crate) struct Collector {
    /// The confirmed list.
    pub lists: watch::Receiver<DesiredList>,
    /// Shared with the workers.
    pub tools: Arc<WorkerTools>,
    /// Whether the disks are short of space.
    pub disks: Arc<DiskWatch>,
    /// Receiver of the removed images.
    pub statuses: Statuses,
    /// Reports the loop's liveness to the watchdog.
    pub pulses: LoopPulses,
}

/// An image, or a user with all its images, that may be removed.
struct ImageRemovalCandidate {
    /// For how long it has been unused.
    age: Duration,
    /// It has been unused for too long.
    due: bool,
    user: WorkloadUser,
    /// An image of a user with instances; `None` stands for all images of a user whose workload has
    /// left.
    image: Option<StoredImage>,
}

impl Collector {
    /// Checks all users' images every minute.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("image removal");
        self.statuses
            .set_images_removed(self.tools.images.conclude());
        let mut failed = BTreeMap::new();
        let mut before = Instant::now();
        loop {
            let rest = cancel.run_until_cancelled(tokio::time::sleep(EVERY));
            if pulse.wait(rest).await.is_none() {
                return;
            }
            let passed = before.elapsed();
            before += passed;
            let listed = self.lists.borrow().clone();
            // Without a confirmed list no image is removed and no time is counted.
            if listed.confirmed && listed.current {
                let round = self.round(&listed, passed, &mut failed);
                let Some(()) = pulse.wait(cancel.run_until_cancelled(round)).await else {
                    return;
                };
            }
            self.statuses
                .set_images_removed(self.tools.images.conclude());
        }
    }

    /// Runs one round. `passed` is the time since the last one.
    async fn round(
        &self,
        listed: &DesiredList,
        passed: Duration,
        failed: &mut BTreeMap<(u32, String), Instant>,
    ) {
        failed.retain(|_, when| when.elapsed() < AFTER_FAILURE);
        let mut candidates = self.candidates(listed, passed);
        candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.age));
        let mut may_expire = true;
        let mut left = MOST;
        for ImageRemovalCandidate {
            due, user, image, ..
        } in candidates
        {
            let Some(image) = image else {
                // The worker needs some time for the removal, so the next user waits for the next
                // round. A user that was not removed since then delays no other.
                if may_expire && self.disks.images_are_short() && self.tools.images.expire(user.uid)
                {
                    may_expire = false;
                }
                continue;
            };
            let key = (user.uid, image.id.clone());
            let goes = left > 0
                && !failed.contains_key(&key)
                && (due || (may_expire && self.disks.images_are_short()));
            // The list may have changed meanwhile.
            let used = goes && is_used(&self.lists.borrow(), &user, &image);
            if !goes || used {
                continue;
            }
            left -= 1;
            match self.remove(&user, &image).await {
                Ok(true) => {}
                // Podman keeps the image: a container of an earlier image with this name uses it.
                Ok(false) => drop(failed.insert(key, Instant::now())),
                Err(error) => {
                    let (user, image) = (&user.name, &image.id);
                    tracing::warn!(
                        "image {image} of {user}, which nothing uses, can't be removed: {error}"
                    );
                    failed.insert(key, Instant::now());
                }
            }
        }
    }

    fn candidates(&self, listed: &DesiredList, passed: Duration) -> Vec<ImageRemovalCandidate> {
        let (accounts, care) = (&self.tools.accounts, &self.tools.images);
        // Without a list of kept images from the leader no image may be removed.
        let Some(kept) = &listed.desired.images else {
            return Vec::new();
        };
        let assignments = listed.desired.assignments.values();
        let busy: BTreeSet<u32> = assignments.map(|one| one.user.uid).collect();
        let mut candidates = Vec::new();
        for uid in accounts.all() {
            let Some(user) = accounts.find(uid) else {
                continue;
            };
            if !busy.contains(&uid) {
                if let Some(age) = care.away(uid, passed) {
                    candidates.push(ImageRemovalCandidate {
                        age,
                        due: false,
                        user,
                        image: None,
                    });
                }
                continue;
            }
            let stored = match image::list(&accounts.home(&user)) {
                Ok(stored) => stored,
                Err(error) => {
                    tracing::debug!(error, "a list of images is left alone");
                    continue;
                }
            };
            let kept = kept.users.get(&user.index);
            let unused = stored
                .into_iter()
                .filter(|image| !is_kept(kept, image) && !is_used(listed, &user, image));
            let unused: Vec<StoredImage> = unused.collect();
            let ids = unused.iter().map(|image| image.id.as_str()).collect();
            let mut ages = care.unused(uid, &ids, passed);
            candidates.extend(unused.into_iter().filter_map(|image| {
                let (age, due) = ages.remove(&image.id)?;
                let (user, image) = (user.clone(), Some(image));
                Some(ImageRemovalCandidate {
                    age,
                    due,
                    user,
                    image,
                })
            }));
        }
        candidates
    }

    /// Removes an image with Podman, as its user; false where Podman keeps it because a container
    /// uses it.
    async fn remove(&self, user: &WorkloadUser, image: &StoredImage) -> Result<bool, String> {
        let home = self.tools.accounts.home(user);
        let before = image::layer_bytes(&home);
        let mut command: Vec<String> = ["/usr/bin/podman", "image", "rm", "--ignore", "--"]
            .map(str::to_owned)
            .into();
        match image.names.is_empty() {
            true => command.push(image.id.clone()),
            false => command.extend(image.names.iter().cloned()),
        }
        let unit = TransientUnit {
            name: format!("images-kat-{:016x}.service", rand::random::<u64>()),
            description: format!("Removal of an image that {} does not use", user.name),
            command,
            limit: REMOVAL,
            ..TransientUnit::default()
        };
        let manager = self.tools.managers.user(user.uid);
        let ended = manager.run_transient(&unit, REMOVAL + MARGIN).await;
        let ended = ended.map_err(|error| error.to_string())?;
        if ended.exit_status == Some(IN_USE) {
            return Ok(false);
        }
        if ended.result != JobResult::Done {
            return Err(format!(
                "podman image rm ended with {:?}, exit code {:?}; journalctl _UID={} has its words",
                ended.result, ended.exit_status, user.uid
            ));
        }
        let bytes = before.saturating_sub(image::layer_bytes(&home));
        self.tools
            .images
            .note(user, std::slice::from_ref(image), bytes);
        Ok(true)
    }
}

/// Whether the workload may run the image next; where the list is incomplete, it may.
fn is_kept(kept: Option<&KeptUserImages>, image: &StoredImage) -> bool {
    kept.is_none_or(|kept| kept.unknown || kept.images.iter().any(|one| image.is(one)))
}

/// Whether an assignment of this machine uses the image. One that this version does not understand
/// may use any.
fn is_used(listed: &DesiredList, user: &WorkloadUser, image: &StoredImage) -> bool {
    let assignments = listed.desired.assignments.values();
    let mut own = assignments.filter(|one| one.user.uid == user.uid);
    own.any(|one| one.not_understood.is_some() || one.images().any(|name| image.is(name)))
}
