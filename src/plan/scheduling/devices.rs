//! Graphics processors (RFC001-KAT 4.4.4).

use super::schedule::unrequested;
use crate::{GraphicsMemory, MachineCandidate};
use kat_types::resource::{GpuDriver, GpuRequest};

/// A maker of graphics processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GpuMaker {
    Nvidia,
    Amd,
}

impl GpuMaker {
    /// The machine has a graphics processor of this maker (RFC001-KAT 4.4.4).
    fn is_present(self, candidate: &MachineCandidate<'_>) -> bool {
        let label = match self {
            Self::Nvidia => "gpu.nvidia.present",
            Self::Amd => "gpu.amd.present",
        };
        candidate
            .labels
            .get(label)
            .is_some_and(|value| value == "true")
    }

    /// Mebibytes of graphics memory that no instance on the machine requests.
    pub(crate) fn free_memory(self, candidate: &MachineCandidate<'_>) -> u64 {
        let GraphicsMemory { any, nvidia, amd } = candidate.requested.graphics;
        let (label, asked) = match self {
            Self::Nvidia => ("gpu.nvidia.vramMB", nvidia),
            Self::Amd => ("gpu.amd.vramMB", amd),
        };
        let all = candidate
            .labels
            .get(label)
            .and_then(|text| text.parse().ok());
        unrequested(all, asked.saturating_add(any))
    }
}

/// The makers that a request allows and the machine has.
pub(crate) fn makers<'c>(
    gpu: &GpuRequest,
    candidate: &'c MachineCandidate<'c>,
) -> impl Iterator<Item = GpuMaker> + use<'c> {
    let allowed: &[GpuMaker] = match gpu.driver {
        GpuDriver::Any => &[GpuMaker::Nvidia, GpuMaker::Amd],
        GpuDriver::Nvidia => &[GpuMaker::Nvidia],
        GpuDriver::Amd => &[GpuMaker::Amd],
    };
    let present = allowed.iter().copied();
    present.filter(|maker| maker.is_present(candidate))
}
