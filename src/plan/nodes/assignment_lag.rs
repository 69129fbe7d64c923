//! Machines that report and do not act on their list of assignments.
//!
//! A report names the revision of the list that the agent has passed to its workers. A machine whose
//! state stream stands still, or which cannot read its list, stays Ready and changes nothing. The
//! watchdog of the agent does not find this: all its loops run. Nothing is moved or stopped; a
//! condition says so.

use std::time::Duration;

use jiff::Timestamp;

use super::node_loss::LastReport;
use kat_types::{
    api::{ASSIGNMENTS_APPLIED, Condition, DISKS_ANSWER, FILES_WRITTEN, STORE_EPOCH_REFUSED},
    assignment::DesiredMeta,
    reason::Reason,
    store::records::NodeStatusRecord,
};

/// A change of the list takes effect within seconds.
const LATE: Duration = Duration::from_secs(60);

/// Replaces what the machine itself says of this condition.
pub(crate) fn set_condition(status: &mut NodeStatusRecord, condition: Option<Condition>) {
    status
        .conditions
        .retain(|one| one.kind != ASSIGNMENTS_APPLIED);
    status.conditions.extend(condition);
}

/// The condition of a machine that has reported for [`LATE`] since its list was changed, and has not
/// acted on it. `before` is its stored status.
pub(crate) fn condition(
    heard: &LastReport<'_>,
    list: &DesiredMeta,
    before: &NodeStatusRecord,
    now: Timestamp,
) -> Option<Condition> {
    let report = heard.report?;
    let acted = report.desired_revision;
    // 0 is that of an agent that has just started.
    let lags = acted > 0 && acted < list.revision;
    if !lags || heard.silent >= LATE || says_why(&report.conditions) {
        return None;
    }
    let mut earlier = before.conditions.iter();
    let earlier = earlier.find(|one| one.kind == ASSIGNMENTS_APPLIED);
    // A further change of the list does not end it.
    if let Some(earlier) = earlier
        && before.desired_revision == acted
    {
        return Some(earlier.clone());
    }
    let changed = list.changed?;
    let waited = now.duration_since(changed);
    let waited: Duration = waited.try_into().unwrap_or(Duration::ZERO);
    let reported = waited.min(heard.steady).saturating_sub(heard.silent);
    (reported >= LATE).then(|| Condition {
        kind: ASSIGNMENTS_APPLIED.to_owned(),
        status: false,
        reason: Reason::AssignmentsNotApplied.into(),
        message: "it reports, and has not acted on the present list of its assignments: changes do not take effect there; what runs continues".to_owned(),
        since: changed.into(),
    })
}

/// The machine itself says why it does not act on the list.
fn says_why(conditions: &[Condition]) -> bool {
    conditions.iter().any(|one| match one.kind.as_str() {
        FILES_WRITTEN | DISKS_ANSWER => !one.status,
        STORE_EPOCH_REFUSED => one.status,
        _ => false,
    })
}
