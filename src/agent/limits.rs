//! The condition that says that a machine can't enforce an instance's limits.

use crate::{api::types::Condition, plan::Assignment};

/// `LimitsNotEnforced` where an instance has limits and the machine lacks the controllers.
pub fn conditions(assignment: &Assignment, enforced: bool) -> Vec<Condition> {
    if enforced || assignment.container.resources.limits.is_empty() {
        return Vec::new();
    }
    vec![Condition {
        kind: "LimitsNotEnforced".to_owned(),
        status: true,
        reason: "ControllerMissing".to_owned(),
        message: "this machine's cgroups lack the memory or the processor controller, so limits do nothing".to_owned(),
        since: String::new(),
    }]
}
