//! The managers of the machine: the system manager and user managers.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

use super::{
    UnitManager,
    connect::{SystemBus, UserBus},
    manager::BusManager,
};

/// Provides managers: the machine's own, or a simulated machine's.
pub trait ManagerSource: Send + Sync {
    fn system(&self) -> Arc<dyn UnitManager>;

    /// A user's manager; always the same object until [`ManagerSource::forget_user`].
    fn user(&self, uid: u32) -> Arc<dyn UnitManager>;

    /// Closes the connection to a user's manager, which must not be in use any more.
    fn forget_user(&self, uid: u32);

    /// Closes the connection to a user's manager that has ended. The next call opens another one.
    fn close_user(&self, _uid: u32) {}
}

/// The machine's managers, over D-Bus: one connection for the system and one for each user,
/// opened at the first call.
pub struct Managers {
    system: Arc<BusManager>,
    users: Mutex<BTreeMap<u32, Arc<BusManager>>>,
}

impl Default for Managers {
    fn default() -> Self {
        Self {
            system: Arc::new(BusManager::new(Arc::new(SystemBus))),
            users: Mutex::default(),
        }
    }
}

impl Managers {
    pub fn new() -> Self {
        Self::default()
    }

    fn with_users<T>(&self, change: impl FnOnce(&mut BTreeMap<u32, Arc<BusManager>>) -> T) -> T {
        change(&mut self.users.lock())
    }
}

impl ManagerSource for Managers {
    fn system(&self) -> Arc<dyn UnitManager> {
        Arc::<BusManager>::clone(&self.system)
    }

    fn user(&self, uid: u32) -> Arc<dyn UnitManager> {
        self.with_users(|users| {
            Arc::<BusManager>::clone(
                users
                    .entry(uid)
                    .or_insert_with(|| Arc::new(BusManager::new(Arc::new(UserBus::new(uid))))),
            )
        })
    }

    fn forget_user(&self, uid: u32) {
        self.with_users(|users| users.remove(&uid));
    }

    fn close_user(&self, uid: u32) {
        let manager = self.with_users(|users| users.get(&uid).cloned());
        if let Some(manager) = manager {
            manager.close();
        }
    }
}
