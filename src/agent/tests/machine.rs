//! Images, disks and the machine's own settings.

mod earlier_grants;
mod eviction;
mod images;
mod machine_options;
pub(super) mod other_listeners;
mod pulls;

use super::*;
