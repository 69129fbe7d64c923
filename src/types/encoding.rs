//! How values are written: JSON, digests, text for a terminal, and the frames of streams.

pub mod digest;
pub mod frames;
pub mod json;
pub mod plain;
pub mod state_frames;
