//! Who serves: the one answer that names and service addresses stand on.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::{InstanceEntry, InstanceRecord, NodeStatusRecord, Wanted, draft::Draft};
use crate::api::types::{Health, InstancePhase, NodePhase};

/// What an instance is to those who call its workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    /// It takes what comes.
    Serving,
    /// It is on its way out: it ends what it has begun, and takes nothing new.
    Leaving,
    /// It may be there, and nobody is sent to it: it is ill, starts again, or its machine does not
    /// answer. So is what a newer version says that this one does not know.
    #[serde(other)]
    Held,
}

/// Instances of a service by their addresses.
pub type Parts = BTreeMap<Ipv4Addr, Part>;

/// It runs, and nothing says that it is ill.
pub(super) fn is_healthy(record: &InstanceRecord) -> bool {
    record.phase == InstancePhase::Running
        && matches!(record.health, Health::Healthy | Health::NotApplicable)
}

/// What an instance is to callers now; nothing where nobody can have called it yet, or any more.
///
/// One that this plan stops is leaving: its name goes with the stop, not after it.
pub(super) fn part(
    draft: &Draft<'_>,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    instance: &str,
    entry: &InstanceEntry,
) -> Option<Part> {
    let status = statuses.get(&entry.node)?;
    let record = status.instances.get(instance)?;
    let away = status.phase == NodePhase::NotReady;
    let stops = entry.assignment.value.wanted == Wanted::Stopped || draft.stops(instance);
    match record.phase {
        InstancePhase::Pending
        | InstancePhase::Scheduled
        | InstancePhase::Pulling
        | InstancePhase::Building
        | InstancePhase::Starting
        | InstancePhase::Stopped
        | InstancePhase::Failed
        | InstancePhase::Succeeded => None,
        InstancePhase::Running if record.health == Health::PendingCheck && !stops => None,
        InstancePhase::Running | InstancePhase::Stopping if away => Some(Part::Held),
        InstancePhase::Running if is_healthy(record) && !stops => Some(Part::Serving),
        InstancePhase::Stopping => Some(Part::Leaving),
        InstancePhase::Running if stops => Some(Part::Leaving),
        InstancePhase::Running | InstancePhase::Restarting | InstancePhase::Unknown => {
            Some(Part::Held)
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Serving => "serving",
            Self::Leaving => "leaving",
            Self::Held => "held",
        })
    }
}
