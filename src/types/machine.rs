//! What machines have in common: network, labels, versions of programs, paths, the
//! fence, isolation, and GPUs.

pub mod bound_runs;
pub mod fence;
pub mod gpu;
pub mod isolation;
pub mod network;
pub mod node_labels;
pub mod program_version;
pub mod root;
