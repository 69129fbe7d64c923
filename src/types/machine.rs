//! What machines have in common: network, labels, versions of programs, paths, and the fence.

pub mod fence;
pub mod network;
pub mod node_labels;
pub mod program_version;
pub mod root;
