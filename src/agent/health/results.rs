//! How many probes of each instance succeeded and failed, for the metrics.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use kat_types::api::ProbeMeasurements;

/// Counts of probes by instance since the agent started, over all containers of an instance. Cheap to
/// clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProbeResults(Arc<Mutex<BTreeMap<String, ProbeMeasurements>>>);

impl ProbeResults {
    /// Counts one probe.
    pub(crate) fn count(&self, instance: &str, succeeded: bool, took: Duration) {
        let mut results = self.0.lock();
        let results = results.entry(instance.to_owned()).or_default();
        let count = match succeeded {
            true => &mut results.succeeded,
            false => &mut results.failed,
        };
        *count = count.saturating_add(1);
        results.last_seconds = took.as_secs_f64();
    }

    /// The counts of an instance; `None` before its first probe.
    pub(crate) fn of(&self, instance: &str) -> Option<ProbeMeasurements> {
        self.0.lock().get(instance).copied()
    }

    /// Forgets an instance.
    pub(crate) fn forget(&self, instance: &str) {
        self.0.lock().remove(instance);
    }
}
