//! What machines have in common: network, labels, versions of programs, paths, the
//! fence, and isolation.

pub mod fence;
pub mod isolation;
pub mod network;
pub mod node_labels;
pub mod program_version;
pub mod root;
