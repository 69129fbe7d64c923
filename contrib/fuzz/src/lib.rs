//! Helpers of the fuzz targets.

pub mod bundle;
pub mod dns;
mod memory;
pub mod pem;
mod stack;
pub mod tar;

pub use memory::peak_of;
pub use stack::survive_overflow;
