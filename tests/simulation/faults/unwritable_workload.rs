//! A workload whose instances are too large to be written. Its stored objects stay unchanged, and
//! no other object is affected.
//!
//! The API refuses files that lead to an assignment larger than a transaction. The store therefore
//! only gets a mark that the workload has grown, as if another version had accepted it, and the
//! planner gets files of that size.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use crate::{load::user::NAMESPACE, random::Random};
use kat_plan::{ClusterPlan, Snapshot};
use kat_testing::MemoryStore;
use kat_types::store::{
    keys,
    records::WorkloadMeta,
    revisions::WorkloadKey,
    snapshot::ParsedWorkload,
    transaction::{MAX_BYTES, WriteOperation},
};

/// A workload that starts new instances before it stops old ones.
const SURGES: &str = "bulk";
/// A workload that stops old instances first.
pub(crate) const IN_PLACE: &str = "heap";
/// A workload that writes data.
pub(crate) const LARGE_WRITER: &str = "hoard";

/// Prefix of the template hash once the workload has grown.
const GROWN: &str = "grown";

/// Files too large for any transaction.
static FILES: LazyLock<Arc<str>> = LazyLock::new(|| "f".repeat(MAX_BYTES).into());

/// The workload of a run that grows.
pub(crate) struct Large {
    pub workload: &'static str,
    pub random: Random,
    pub version: u64,
}

/// The next change to the workload.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Apply { version: u64, replicas: u32 },
    Grow,
    Delete,
}

impl Large {
    /// `None` for seeds without such a workload.
    pub(crate) fn of_seed(seed: u64) -> Option<Self> {
        let has = seed % 5 == 4 || seed % 20 == 10;
        let kinds = [SURGES, IN_PLACE, LARGE_WRITER];
        let workload = kinds[usize::try_from(seed / 5 % 3).unwrap()];
        has.then(|| Self {
            workload,
            // The workload has a generator of its own, so that the seeds without such a workload
            // still run as before.
            random: Random::new(seed ^ 0x006c_6172_6765),
            version: 0,
        })
    }

    pub(crate) fn step(&mut self, store: &MemoryStore) -> Option<Step> {
        let is_there = self.meta(store).is_some();
        match self.random.below(100) {
            _ if self.version == 0 => Some(self.apply()),
            0..30 if !is_there => Some(self.apply()),
            0..20 if self.is_grown(store) => None,
            0..20 => Some(Step::Grow),
            20..28 => Some(self.apply()),
            28..30 => Some(Step::Delete),
            _ => None,
        }
    }

    fn apply(&mut self) -> Step {
        self.version += 1;
        let replicas = 1 + u32::try_from(self.random.below(3)).unwrap();
        Step::Apply {
            version: self.version,
            replicas,
        }
    }

    fn meta(&self, store: &MemoryStore) -> Option<WorkloadMeta> {
        let key = keys::workload_meta(NAMESPACE, self.workload);
        let item = store.peek(&key).items.into_iter().next()?;
        let meta: WorkloadMeta = serde_json::from_slice(&item.value).unwrap();
        (!meta.deleting).then_some(meta)
    }

    /// The workload exists, and its instances cannot be written.
    pub(crate) fn is_grown(&self, store: &MemoryStore) -> bool {
        let meta = self.meta(store);
        meta.is_some_and(|meta| meta.template_hash.starts_with(GROWN))
    }

    /// Marks the next version as too large for a transaction; false if the workload does not exist.
    pub(crate) fn grow(&self, store: &MemoryStore) -> bool {
        let Some(mut meta) = self.meta(store) else {
            return false;
        };
        meta.generation += 1;
        meta.template_hash = format!("{GROWN} to {}", meta.generation);
        meta.spec_hash.clone_from(&meta.template_hash);
        let value = serde_json::to_vec(&meta).unwrap();
        let key = keys::workload_meta(NAMESPACE, self.workload);
        store.write_now(&[WriteOperation::Put(key, value)]);
        true
    }
}

/// The workload has grown and is not being deleted.
pub(crate) fn is_large(snapshot: &Snapshot, key: &WorkloadKey) -> bool {
    snapshot.workloads.get(key).is_some_and(|entry| {
        let meta = &entry.meta.value;
        meta.template_hash.starts_with(GROWN) && !meta.deleting
    })
}

fn large_ones(snapshot: &Snapshot) -> Vec<WorkloadKey> {
    let all = snapshot.workloads.keys();
    all.filter(|key| is_large(snapshot, key)).cloned().collect()
}

thread_local! {
    /// The last parsed form of each workload, and the same form with large files.
    static GROWN_LAST: RefCell<BTreeMap<WorkloadKey, [Arc<ParsedWorkload>; 2]>> = RefCell::default();
}

/// The parsed workload with large files. The result is the same `Arc` until the workload is parsed
/// again, because the leader measures each parsed workload once.
fn grown(key: &WorkloadKey, read: &Arc<ParsedWorkload>) -> Arc<ParsedWorkload> {
    GROWN_LAST.with_borrow_mut(|all| {
        if let Some([before, grown]) = all.get(key)
            && Arc::ptr_eq(before, read)
        {
            return Arc::clone(grown);
        }
        let mut grown = Arc::clone(read);
        Arc::make_mut(&mut grown).carried = Some(Arc::clone(&FILES));
        all.insert(key.clone(), [Arc::clone(read), Arc::clone(&grown)]);
        grown
    })
}

/// The snapshot with large files in the workloads that have grown; `None` if none has.
pub(crate) fn with_its_files(snapshot: &Snapshot) -> Option<Snapshot> {
    let large = large_ones(snapshot);
    if large.is_empty() {
        return None;
    }
    let mut seen = snapshot.clone();
    for key in large {
        if let Some(entry) = seen.workloads.get_mut(&key)
            && let Ok(parsed) = &mut Arc::make_mut(entry).parsed
        {
            *parsed = grown(&key, parsed);
        }
    }
    Some(seen)
}

/// Removes the workloads that have grown, as a planner that drops objects it cannot write would do.
pub(crate) fn drop_it(snapshot: &mut Snapshot) {
    for key in large_ones(snapshot) {
        snapshot.workloads.remove(&key);
    }
}

/// The workload has no instance until its data has moved. Nothing that is too large is to be written
/// before that, so that the workload is not frozen yet and the move continues.
fn waits_for_its_data(snapshot: &Snapshot, key: &WorkloadKey) -> bool {
    let mut volumes = snapshot.volumes.iter();
    let moves =
        volumes.any(|(volume, stored)| volume.workload == *key && stored.value.moving.is_some());
    moves && snapshot.instances_of(key).next().is_none()
}

/// Why a plan changes a workload that cannot be written; `None` if it does not.
pub(crate) fn touched(snapshot: &Snapshot, plan: &ClusterPlan) -> Option<String> {
    let operations = || plan.changes.iter().flat_map(|change| &change.operations);
    let large = large_ones(snapshot).into_iter();
    let mut large = large.filter(|key| !waits_for_its_data(snapshot, key));
    large.find_map(|key| {
        let WorkloadKey { namespace, name } = &key;
        let (folder, instance) = (format!("/{namespace}/{name}/"), format!("/{name}-"));
        let index = keys::index(snapshot.workloads[&key].meta.value.index);
        let mut written = operations().map(|operation| match operation {
            WriteOperation::Put(key, _)
            | WriteOperation::Delete(key)
            | WriteOperation::DeletePrefix(key) => key,
        });
        let touched = written.find(|one| {
            let own = one.contains(&folder) || one.contains(&instance) || **one == index;
            own && !one.starts_with(keys::EVENTS)
        })?;
        Some(format!(
            "{key} cannot be written, and {touched} of it changes"
        ))
    })
}
