//! Workloads with `startAfter`, often applied before what they start after.

use serde_json::json;

use crate::load::{added::workload_file, jobs::SETUP};
use kat_bundle::SourceFile;
use kat_types::resource::StartCondition;

/// A workload that [`AFTER`] starts after.
pub(crate) const BASE: &str = "base";
/// Starts after [`BASE`].
pub(crate) const AFTER: &str = "after";
/// Starts when the Job [`SETUP`] has succeeded.
pub(crate) const LATE: &str = "late";

/// The files of a workload with one instance; `condition` is that of [`AFTER`].
pub(crate) fn order_files(workload: &str, condition: StartCondition) -> Vec<SourceFile> {
    let after = match workload {
        AFTER => json!([{"workload": BASE, "condition": condition}]),
        LATE => json!([{"workload": SETUP, "condition": StartCondition::Completed}]),
        _ => json!([]),
    };
    let spec = json!({"replicas": 1, "startAfter": after});
    vec![workload_file(workload, "Service", 1, &spec)]
}
