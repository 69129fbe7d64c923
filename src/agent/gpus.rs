//! GPUs of this machine: what its CDI specs name, and the memory of each.
//!
//! Podman gives a container what the CDI spec of a device says. Root of the machine wrote the spec,
//! and that is the owner's permission: no field of `agent.yaml` names GPUs.

mod cdi;
mod memory;

pub(crate) use cdi::MachineGpus;
pub(crate) use memory::GpuMemory;

use kat_types::{
    api::{ApiTime, Condition, GPU_SPECS_READ},
    machine::gpu::GpuDevice,
    reason::Reason,
};

/// Maximum number of specs that the condition names.
const NAMED: usize = 3;

/// What a report says of the machine's GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedGpus {
    /// The GPUs, by name.
    pub devices: Vec<GpuDevice>,
    /// Why specs, or devices of them, cannot be used; each begins with the path or the name.
    pub troubles: Vec<String>,
}

impl ReportedGpus {
    /// The condition of a machine with a CDI spec that cannot be used.
    pub(crate) fn condition(&self) -> Option<Condition> {
        let named: Vec<&str> = self
            .troubles
            .iter()
            .take(NAMED)
            .map(String::as_str)
            .collect();
        let more = match self.troubles.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        (!named.is_empty()).then(|| Condition {
            kind: GPU_SPECS_READ.to_owned(),
            status: false,
            reason: Reason::CdiSpecUnusable.into(),
            message: format!("{}{more}", named.join("; ")),
            since: ApiTime::UNKNOWN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_names_the_first_specs_and_counts_the_others() {
        assert_eq!(ReportedGpus::default().condition(), None);
        let troubles = ["a", "b", "c", "d", "e"].map(str::to_owned).to_vec();
        let gpus = ReportedGpus {
            troubles,
            ..ReportedGpus::default()
        };
        let condition = gpus.condition().unwrap();
        assert_eq!(condition.message, "a; b; c; and 2 more");
        assert!(!condition.status && condition.reason == Reason::CdiSpecUnusable);
    }
}
