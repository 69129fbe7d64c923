//! Machines whose `kat-net` does not know the host ports with `hostPortOn: ingress` that they are to have.
//!
//! An agent of the same age does not know them either, and reports nothing of them: the leader judges by
//! the reported version of the data path.

use std::time::Duration;

use super::node_loss::LastReport;
use crate::{draft::Draft, scheduling::host_ports::SOURCES_DATA_PATH};
use kat_types::{
    api::{Condition, INGRESS_PORTS_OPEN},
    reason::Reason,
    store::records::NodeStatusRecord,
};

/// Longest time in which a machine that starts says the version of its data path.
const LATE: Duration = Duration::from_secs(60);
/// Most ports that a message names.
const NAMED: usize = 5;

/// Sets the condition in place of what the machine itself says of these ports; without one that stays.
pub(crate) fn set_condition(status: &mut NodeStatusRecord, condition: Option<Condition>) {
    status.conditions.retain(|one| {
        let is_judged = one.reason == Reason::KatNetTooOld;
        one.kind != INGRESS_PORTS_OPEN || (condition.is_none() && !is_judged)
    });
    status.conditions.extend(condition);
}

/// The condition of a machine that does not open such a port because of the version of its `kat-net`.
/// `before` is its stored status.
pub(crate) fn condition(
    draft: &mut Draft<'_>,
    name: &str,
    heard: &LastReport<'_>,
    before: &NodeStatusRecord,
) -> Option<Condition> {
    let report = heard.report?;
    if report.data_path >= SOURCES_DATA_PATH {
        return None;
    }
    let services = draft.snapshot.services.iter();
    let ports = services.flat_map(|(key, service)| {
        let balance = service.balance.as_ref();
        let ingress = balance.and_then(|stored| stored.value.ingress.as_ref());
        let own = ingress.filter(|ingress| ingress.machines.contains(name));
        let ports = own.into_iter().flat_map(|ingress| &ingress.ports);
        ports.map(move |one| format!("{}/{} of {key}", one.port, one.protocol.word()))
    });
    let ports: Vec<String> = ports.collect();
    if ports.is_empty() {
        return None;
    }
    let left = LATE.saturating_sub(heard.steady);
    if report.data_path == 0 && !left.is_zero() {
        draft.wake(left);
        return None;
    }
    let named: Vec<&str> = ports.iter().take(NAMED).map(String::as_str).collect();
    let more = match ports.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let mut earlier = before.conditions.iter();
    let earlier =
        earlier.find(|one| one.kind == INGRESS_PORTS_OPEN && one.reason == Reason::KatNetTooOld);
    Some(Condition {
        kind: INGRESS_PORTS_OPEN.to_owned(),
        status: false,
        reason: Reason::KatNetTooOld.into(),
        message: format!(
            "its kat-net is of a version that opens no host ports of machines that serve routes: {}{more}",
            named.join(", ")
        ),
        since: earlier.map_or(draft.now.into(), |earlier| earlier.since),
    })
}
