//! The condition `LimitsNotEnforced`: the machine can't enforce an instance's limits.

use kat_types::{
    api::{ApiTime, Condition},
    assignment::Assignment,
    reason::Reason,
};

/// `LimitsNotEnforced` where an instance has limits and the machine lacks the controllers.
pub(crate) fn conditions(assignment: &Assignment, enforced: bool) -> Vec<Condition> {
    if enforced || has_no_limits(assignment) {
        return Vec::new();
    }
    vec![Condition {
        kind: "LimitsNotEnforced".to_owned(),
        status: true,
        reason: Reason::ControllerMissing.into(),
        message: "this machine's cgroups lack the memory or the processor controller, so limits do nothing".to_owned(),
        since: ApiTime::UNKNOWN,
    }]
}

fn has_no_limits(assignment: &Assignment) -> bool {
    let others = assignment.others().map(|(_, one)| one);
    std::iter::once(&assignment.container)
        .chain(others)
        .all(|one| one.resources.limits.is_empty())
}
