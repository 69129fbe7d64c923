//! The leader: the election, the loop that feeds `plan/` and commits its changes, and the API's
//! access to both.

// Tests may build JSON values directly; in the build without tests clippy forbids
// `serde_json::to_vec` and similar functions.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod backup;
mod clients;
mod etcd_status;
mod handle;
mod member_events;
mod members;
mod planning;
mod rehearsal;
mod rotation;
mod run;
mod snapshot_builder;
mod takeover;
mod upkeep;

pub use crate::snapshot_builder::*;
pub use backup::{Backups, BackupsConfig, keep_backups};
pub use clients::{MemberClients, MemberOptions};
pub use handle::*;
pub use members::{EtcdMembers, MembersConfig, keep_members};
pub use planning::{PlanningHealth, PlanningReport};
pub use rehearsal::{Rehearsal, RehearsalResult};
pub use rotation::{AuthorityMaker, NewAuthority, RotationConfig, keep_authorities};
pub use run::{LeaderConfig, Planner, start, start_with};
pub use takeover::{TakeoverConfig, watch_over};
pub use upkeep::{EtcdUpkeep, StoreHealth, StoreReport};
