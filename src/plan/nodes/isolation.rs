//! Machines that do not isolate namespaces, although the cluster does.

use std::time::Duration;

use super::node_loss::LastReport;
use crate::draft::{Draft, OperationGroup};
use kat_types::{
    api::{Condition, EventKind, ISOLATION_ENFORCED, ObjectKind, ObjectReference},
    machine::isolation::ENFORCING_DATA_PATH,
    reason::{EventReason, Reason},
    resource::Isolation,
    store::records::NodeStatusRecord,
};

/// Longest time in which `kat-net` applies a changed setting.
const LATE: Duration = Duration::from_secs(60);

/// Replaces what the machine itself says of this condition.
pub(crate) fn set_condition(status: &mut NodeStatusRecord, condition: Option<Condition>) {
    status
        .conditions
        .retain(|one| one.kind != ISOLATION_ENFORCED);
    status.conditions.extend(condition);
}

/// The condition of a machine whose `kat-net` does not isolate namespaces, or applies no changes of
/// the rules, [`LATE`] after it had to. `before` is its stored status.
pub(crate) fn condition(
    draft: &mut Draft<'_>,
    heard: &LastReport<'_>,
    before: &NodeStatusRecord,
) -> Option<Condition> {
    let snapshot = draft.snapshot;
    let report = heard.report?;
    if snapshot.cluster.spec.isolation != Isolation::Namespaces {
        return None;
    }
    let isolation = report.isolation.as_ref();
    let mode = isolation.and_then(|isolation| isolation.mode);
    let problem = isolation.and_then(|isolation| isolation.problem.as_deref());
    let isolates = mode == Some(Isolation::Namespaces);
    if isolates && problem.is_none() {
        return None;
    }
    let message = if report.data_path < ENFORCING_DATA_PATH {
        "its kat-net is of a version that isolates nothing: containers there reach all namespaces, \
         and are reached by all that its machine can't tell apart"
            .to_owned()
    } else {
        match problem {
            Some(problem) if isolates => {
                format!("its kat-net isolates namespaces by earlier rules only: {problem}")
            }
            Some(problem) => {
                format!("its kat-net does not isolate namespaces: {problem}")
            }
            None => "its kat-net does not isolate namespaces, and does not say why".to_owned(),
        }
    };
    let earlier = judged(before);
    let is_due = earlier.is_some() || report.data_path < ENFORCING_DATA_PATH;
    if !is_due {
        // A change of the setting, and a start of the machine, take effect within this time.
        let changed = snapshot.wanted.as_ref();
        let changed = changed.and_then(|wanted| wanted.value.made_at);
        let since = changed.map(|changed| draft.now.duration_since(changed));
        let since = since.map_or(LATE, |since| since.try_into().unwrap_or(Duration::ZERO));
        let waited = since.min(heard.steady);
        let left = LATE.saturating_sub(waited);
        if !left.is_zero() {
            draft.wake(left);
            return None;
        }
    }
    let since = earlier.map_or(draft.now.into(), |earlier| earlier.since);
    Some(Condition {
        kind: ISOLATION_ENFORCED.to_owned(),
        status: false,
        reason: Reason::IsolationNotEnforced.into(),
        message,
        since,
    })
}

fn judged(status: &NodeStatusRecord) -> Option<&Condition> {
    let mut conditions = status.conditions.iter();
    conditions
        .find(|one| one.kind == ISOLATION_ENFORCED && one.reason == Reason::IsolationNotEnforced)
}

/// Says that a machine does not isolate any more, or that it does.
pub(crate) fn event(
    draft: &mut Draft<'_>,
    group: &mut OperationGroup,
    (name, uid): (&str, &str),
    (before, status): (&NodeStatusRecord, &NodeStatusRecord),
) {
    let (kind, reason, message) = match (judged(before), judged(status)) {
        (None, Some(condition)) => (
            EventKind::Warning,
            EventReason::IsolationNotEnforced,
            condition.message.clone(),
        ),
        (Some(_), None) => (
            EventKind::Normal,
            EventReason::IsolationEnforced,
            format!("machine {name} isolates namespaces as the cluster asks"),
        ),
        _ => return,
    };
    let object = ObjectReference {
        kind: ObjectKind::Node,
        name: name.to_owned(),
        namespace: String::new(),
        uid: uid.to_owned(),
    };
    draft.event(group, kind, reason, object, message);
}
