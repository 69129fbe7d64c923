//! Whether the leader makes plans and can write them: for `katcall status` and the journal. Counts of
//! plans, for the metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use kat_daemon::durations::DurationCounts;
use kat_plan::{ClusterPlan, NotWritable, RefusedPlace};

/// Writes that fail for this long are reported; a shorter time is a change of leader, or a member
/// that restarts.
const FAILING: Duration = Duration::from_secs(5);
/// A leader that has finished no plan for this long is reported: it makes one every 5 s at least.
const UNFINISHED: Duration = Duration::from_secs(30);

/// State of the leader's plans on the leading machine. Cheap to clone.
#[derive(Clone, Default)]
pub struct PlanningHealth {
    inner: Arc<Mutex<Option<Planning>>>,
    /// Why this machine has no part in the cluster.
    outside: Arc<Mutex<Option<String>>>,
    counts: Arc<Mutex<PlanningCounts>>,
}

/// What this machine has planned and written as the leader since the agent started.
#[derive(Debug, Clone, Default)]
pub struct PlanningCounts {
    /// How long each plan took, without its writes.
    pub plans: DurationCounts,
    /// How long the writes of each plan with changes took, also where one of them failed.
    pub commits: DurationCounts,
    /// Number of changes that were written: transactions of plans.
    pub changes: u64,
    /// Number of plans of which a change was refused: others had changed the same keys.
    pub refused: u64,
    /// Number of plans of which a change could not be written.
    pub failed: u64,
    /// Number of instances that plans have placed.
    pub placed: u64,
    /// How often a slot was newly refused, by reason.
    pub refusals: BTreeMap<&'static str, u64>,
    /// The slots for which the last plan has found no machine; empty on a machine that does not
    /// lead.
    pub waiting: BTreeSet<RefusedPlace>,
}

/// The end of the writes of one plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanWrites {
    Done,
    Refused,
    Failed,
}

struct Planning {
    /// When the last plan was written completely.
    finished: Instant,
    /// When writes began to fail, and the last error.
    failing: Option<(Instant, String)>,
    frozen: Vec<NotWritable>,
}

/// The content of [`PlanningHealth`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanningReport {
    /// Objects that cannot be written.
    pub frozen: Vec<NotWritable>,
    /// Why no plan is made, or none can be written.
    pub trouble: Option<String>,
    /// Why this machine has no part in the cluster, and its answers do not count.
    pub outside: Option<String>,
}

impl PlanningHealth {
    /// Called when this machine begins to lead.
    pub(super) fn begin(&self) {
        *self.inner.lock() = Some(Planning {
            finished: Instant::now(),
            failing: None,
            frozen: Vec::new(),
        });
    }

    /// Called when this machine no longer leads.
    pub(super) fn end(&self) {
        *self.inner.lock() = None;
        self.counts.lock().waiting.clear();
    }

    /// Counts a plan that took this long.
    pub(super) fn count_plan(&self, plan: &ClusterPlan, took: Duration) {
        let mut counts = self.counts.lock();
        counts.plans.count(took);
        let refused = &plan.scheduling.refused;
        let newly: Vec<_> = refused.difference(&counts.waiting).cloned().collect();
        for place in newly {
            let count = counts.refusals.entry(place.reason).or_default();
            *count = count.saturating_add(1);
        }
        counts.waiting.clone_from(refused);
    }

    /// Counts the writes of a plan: how many changes were written, and how many instances it places,
    /// which count only once all of it is written.
    pub(super) fn count_writes(
        &self,
        end: PlanWrites,
        (changes, placed): (usize, usize),
        took: Duration,
    ) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut counts = self.counts.lock();
        counts.commits.count(took);
        counts.changes = counts.changes.saturating_add(number(changes));
        let ended = match end {
            PlanWrites::Done => {
                counts.placed = counts.placed.saturating_add(number(placed));
                return;
            }
            PlanWrites::Refused => &mut counts.refused,
            PlanWrites::Failed => &mut counts.failed,
        };
        *ended = ended.saturating_add(1);
    }

    /// What was counted since the agent started.
    pub fn counts(&self) -> PlanningCounts {
        self.counts.lock().clone()
    }

    /// Time since a plan was written completely; `None` on a machine that does not lead.
    pub fn since_last_plan(&self) -> Option<Duration> {
        let inner = self.inner.lock();
        inner.as_ref().map(|planning| planning.finished.elapsed())
    }

    /// Records the objects that the last plan leaves as they are.
    pub(super) fn planned(&self, frozen: &[NotWritable]) {
        let mut inner = self.inner.lock();
        let Some(planning) = inner.as_mut() else {
            return;
        };
        let objects = |list: &[NotWritable]| -> Vec<_> {
            let objects = list.iter().map(|one| (one.object.clone(), one.key.clone()));
            objects.collect()
        };
        if objects(&planning.frozen) != objects(frozen) {
            for one in frozen {
                tracing::error!(
                    object = %one.object,
                    "{} is left as it is: {one}",
                    one.object
                );
            }
            if frozen.is_empty() {
                tracing::info!("everything can be written again");
            }
        }
        frozen.clone_into(&mut planning.frozen);
    }

    /// Records that the whole plan is written.
    pub(super) fn finished(&self) {
        if let Some(planning) = self.inner.lock().as_mut() {
            planning.finished = Instant::now();
            planning.failing = None;
        }
    }

    /// Records that the plan could not be written.
    pub(super) fn failed(&self, error: String) {
        if let Some(planning) = self.inner.lock().as_mut() {
            let since = planning.failing.take();
            let since = since.map_or_else(Instant::now, |(since, _)| since);
            planning.failing = Some((since, error));
        }
    }

    /// Sets why this machine has no part in the cluster, for its own callers; `None` if it has.
    pub fn set_outside(&self, why: Option<&str>) {
        *self.outside.lock() = why.map(ToOwned::to_owned);
    }

    /// Whether this machine has no part in the cluster.
    pub fn is_outside(&self) -> bool {
        self.outside.lock().is_some()
    }

    /// The present state; `None` on a machine that does not lead, and is in the cluster.
    pub fn report(&self) -> Option<PlanningReport> {
        if let Some(why) = self.outside.lock().clone() {
            return Some(PlanningReport {
                outside: Some(why),
                ..PlanningReport::default()
            });
        }
        let inner = self.inner.lock();
        let planning = inner.as_ref()?;
        let failing = planning.failing.as_ref();
        let failing = failing.filter(|(since, _)| since.elapsed() >= FAILING);
        let unfinished = planning.finished.elapsed();
        let trouble = match failing {
            Some((since, error)) => Some(format!(
                "the leader cannot write its decisions for {} s: {error}",
                since.elapsed().as_secs()
            )),
            None if unfinished >= UNFINISHED => Some(format!(
                "the leader has finished no plan for {} s: nothing is placed or moved",
                unfinished.as_secs()
            )),
            None => None,
        };
        Some(PlanningReport {
            frozen: planning.frozen.clone(),
            trouble,
            outside: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::store::revisions::WorkloadKey;

    #[tokio::test(start_paused = true)]
    async fn writes_that_fail_for_five_seconds_are_a_trouble_with_their_error() {
        let health = PlanningHealth::default();
        assert_eq!(health.report(), None, "it does not lead");
        health.begin();
        health.failed("etcd does not answer".to_owned());
        assert_eq!(health.report(), Some(PlanningReport::default()));
        tokio::time::advance(Duration::from_secs(6)).await;
        health.failed("etcd does not answer".to_owned());
        let trouble = health.report().and_then(|report| report.trouble);
        let trouble = trouble.expect("a trouble");
        assert!(trouble.contains("6 s: etcd does not answer"), "{trouble}");
        health.finished();
        assert_eq!(health.report(), Some(PlanningReport::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_finishes_no_plan_is_a_trouble() {
        let health = PlanningHealth::default();
        health.begin();
        tokio::time::advance(Duration::from_secs(31)).await;
        let trouble = health.report().and_then(|report| report.trouble);
        assert!(trouble.expect("a trouble").contains("no plan for 31 s"));
        health.end();
        assert_eq!(health.report(), None);
    }

    #[test]
    fn a_place_that_stays_refused_counts_once_and_waits_until_it_is_found() {
        let health = PlanningHealth::default();
        let refused = |slot, reason| RefusedPlace {
            workload: WorkloadKey::new("shop", "web"),
            slot,
            reason,
        };
        let plan = |refused: &[RefusedPlace]| {
            let mut plan = ClusterPlan::default();
            plan.scheduling.refused = refused.iter().cloned().collect();
            health.count_plan(&plan, Duration::from_millis(2));
        };
        plan(&[refused(0, "not ready")]);
        plan(&[refused(0, "not ready"), refused(1, "not ready")]);
        let counts = health.counts();
        assert_eq!(counts.refusals, [("not ready", 2)].into());
        assert_eq!((counts.waiting.len(), counts.plans.count), (2, 2));
        plan(&[]);
        assert!(health.counts().waiting.is_empty());
        plan(&[refused(0, "being drained")]);
        assert_eq!(health.counts().refusals.len(), 2);
        health.end();
        assert!(health.counts().waiting.is_empty(), "another machine leads");
    }

    #[test]
    fn instances_count_as_placed_once_all_of_their_plan_is_written() {
        let health = PlanningHealth::default();
        let took = Duration::from_millis(2);
        health.count_writes(PlanWrites::Refused, (3, 5), took);
        health.count_writes(PlanWrites::Failed, (0, 5), took);
        health.count_writes(PlanWrites::Done, (4, 5), took);
        let counts = health.counts();
        assert_eq!((counts.changes, counts.placed), (7, 5));
        assert_eq!((counts.refused, counts.failed), (1, 1));
        assert_eq!(counts.commits.count, 3);
    }

    #[test]
    fn a_machine_that_the_cluster_does_not_know_says_so_to_its_own_callers() {
        let health = PlanningHealth::default();
        health.set_outside(Some("it was deleted"));
        let outside = health.report().and_then(|report| report.outside);
        assert_eq!(outside.as_deref(), Some("it was deleted"));
        health.set_outside(None);
        assert_eq!(health.report(), None);
    }
}
