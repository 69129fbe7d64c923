//! Election, the loop that feeds `plan/` and commits what it returns, and what the API needs of both.

mod backup;
mod clients;
mod handle;
mod look;
mod member_events;
mod members;
mod planning;
mod rehearsal;
mod run;
mod state;
mod takeover;
mod upkeep;

pub use backup::{Backups, BackupsConfig, keep_backups};
pub use clients::{MemberClients, MemberOptions};
pub use handle::*;
pub use members::{EtcdMembers, MembersConfig, keep_members};
pub use planning::{PlanningHealth, PlanningReport};
pub use rehearsal::{Rehearsal, Rehearsed};
pub use run::{LeaderConfig, Planner, start, start_with};
pub use state::*;
pub use takeover::{TakeoverConfig, watch_over};
pub use upkeep::{EtcdUpkeep, StoreHealth, StoreReport};
