//! Graphics processors (RFC001-KAT 4.4.4).

use super::schedule::left;
use crate::{Candidate, GraphicsMemory};
use kat_types::resource::{GpuDriver, GpuRequest};

/// A maker of graphics processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    Nvidia,
    Amd,
}

impl Maker {
    /// The machine has a graphics processor of this maker (RFC001-KAT 4.4.4).
    fn is_present(self, candidate: &Candidate<'_>) -> bool {
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
    pub(crate) fn left(self, candidate: &Candidate<'_>) -> u64 {
        let GraphicsMemory { any, nvidia, amd } = candidate.requested.graphics;
        let (label, asked) = match self {
            Self::Nvidia => ("gpu.nvidia.vramMB", nvidia),
            Self::Amd => ("gpu.amd.vramMB", amd),
        };
        let all = candidate
            .labels
            .get(label)
            .and_then(|text| text.parse().ok());
        left(all, asked.saturating_add(any))
    }
}

/// The makers that a request allows and the machine has.
pub(crate) fn makers<'c>(
    gpu: &GpuRequest,
    candidate: &'c Candidate<'c>,
) -> impl Iterator<Item = Maker> + use<'c> {
    let allowed: &[Maker] = match gpu.driver {
        GpuDriver::Any => &[Maker::Nvidia, Maker::Amd],
        GpuDriver::Nvidia => &[Maker::Nvidia],
        GpuDriver::Amd => &[Maker::Amd],
    };
    let present = allowed.iter().copied();
    present.filter(|maker| maker.is_present(candidate))
}
