//! GPUs of machines (RFC001-KAT 4.4.4). Each is assigned to one instance, which has it until its
//! machine confirms its end.

use crate::MachineCandidate;
use kat_types::{assignment::Assignment, machine::gpu::GpuDevice, resource::GpuRequest};

const NO_GPU: &str = "without a GPU of the requested driver in its CDI specs";
const NO_MEMORY: &str = "without a GPU that is known to have minVRAM_MB";
/// Every GPU that suffices has an instance.
const NONE_FREE: &str = "whose GPUs of the requested kind are all in use";
/// An instance has a GPU whose name the machine reports no more: it may be any of those that it reports.
const UNKNOWN_IN_USE: &str = "with an instance whose GPU its CDI specs name no more";

/// Why no GPU of the machine suffices, whoever has it.
pub(crate) fn missing(
    request: &GpuRequest,
    candidate: &MachineCandidate<'_>,
) -> Option<&'static str> {
    let gpus = || candidate.gpus.iter();
    if !gpus().any(|gpu| gpu.is_of_driver(request)) {
        return Some(NO_GPU);
    }
    (!gpus().any(|gpu| gpu.suffices(request))).then_some(NO_MEMORY)
}

/// Why a new instance on the machine gets no GPU now, though one suffices.
pub(crate) fn none_free(
    request: &GpuRequest,
    candidate: &MachineCandidate<'_>,
) -> Option<&'static str> {
    if is_any_renamed(candidate) {
        return Some(UNKNOWN_IN_USE);
    }
    free(request, candidate).is_none().then_some(NONE_FREE)
}

/// Whether an instance has a GPU whose name the machine reports no more.
fn is_any_renamed(candidate: &MachineCandidate<'_>) -> bool {
    let mut held = candidate.gpu_holders.iter();
    held.any(|(name, holders)| {
        !holders.is_empty() && !candidate.gpus.iter().any(|gpu| gpu.name == *name)
    })
}

/// The GPU that a new instance on the machine gets: of those that suffice and that no instance has,
/// one with the least memory, so that the larger ones stay for those who need them.
pub(crate) fn free<'c>(
    request: &GpuRequest,
    candidate: &'c MachineCandidate<'_>,
) -> Option<&'c GpuDevice> {
    if is_any_renamed(candidate) {
        return None;
    }
    let is_free = |gpu: &&GpuDevice| {
        let holders = candidate.gpu_holders.get(&gpu.name);
        holders.is_none_or(|holders| holders.is_empty())
    };
    let gpus = candidate.gpus.iter().filter(is_free);
    gpus.filter(|gpu| gpu.suffices(request))
        .min_by(|one, other| (one.memory, &one.name).cmp(&(other.memory, &other.name)))
}

/// Counts the instance as the holder of its GPU.
pub(crate) fn take(candidate: &mut MachineCandidate<'_>, assignment: &Assignment) {
    if let Some(gpu) = &assignment.gpu {
        let holders = candidate.gpu_holders.entry(gpu.clone()).or_default();
        holders.insert(assignment.instance.clone());
    }
}

/// Counts the instance as the holder of no GPU.
pub(crate) fn release(candidate: &mut MachineCandidate<'_>, assignment: &Assignment) {
    if let Some(gpu) = &assignment.gpu
        && let Some(holders) = candidate.gpu_holders.get_mut(gpu)
    {
        holders.remove(&assignment.instance);
    }
}
