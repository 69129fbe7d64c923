//! The service managers and the logind of a machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::sleep;

use super::FakeManager;
use kat_systemd::{ManagerSource, SystemdError, UnitManager, UserSessions, error};

/// The managers and the logind of a simulated machine.
#[derive(Default)]
pub struct FakeMachine {
    system: Arc<FakeManager>,
    users: Mutex<BTreeMap<u32, Arc<FakeManager>>>,
    lingering: Mutex<BTreeSet<u32>>,
    away: Mutex<BTreeMap<u32, ManagerAbsence>>,
}

/// Why the manager of a user who lingers does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerAbsence {
    /// The manager has ended, and logind still counts it as started.
    Ended,
    /// The manager hangs.
    Hangs,
}

impl FakeMachine {
    pub fn new() -> Self {
        Self::default()
    }

    /// The system's manager, to set up in a test.
    pub fn system_manager(&self) -> Arc<FakeManager> {
        Arc::clone(&self.system)
    }

    /// A user's manager, to set up in a test. It answers only while the user lingers.
    pub fn user_manager(&self, uid: u32) -> Arc<FakeManager> {
        let mut users = self.users.lock();
        Arc::clone(users.entry(uid).or_insert_with(|| {
            let manager = FakeManager::new(&format!("user {uid}"));
            manager.set_unreachable(Some("its socket is not there"));
            Arc::new(manager)
        }))
    }

    /// Replaces a user's manager, for example by one with a loader.
    pub fn set_user_manager(&self, uid: u32, manager: FakeManager) {
        if !self.lingering().contains(&uid) {
            manager.set_unreachable(Some("its socket is not there"));
        }
        self.users.lock().insert(uid, Arc::new(manager));
    }

    /// Makes the manager of a lingering user unreachable.
    pub fn lose_user(&self, uid: u32, away: ManagerAbsence) {
        self.away().insert(uid, away);
        self.user_manager(uid)
            .set_unreachable(Some("its socket is not there"));
    }

    fn away(&self) -> MutexGuard<'_, BTreeMap<u32, ManagerAbsence>> {
        self.away.lock()
    }

    pub fn lingering(&self) -> BTreeSet<u32> {
        self.lingering.lock().clone()
    }
}

impl ManagerSource for FakeMachine {
    fn system(&self) -> Arc<dyn UnitManager> {
        Arc::<FakeManager>::clone(&self.system)
    }

    fn user(&self, uid: u32) -> Arc<dyn UnitManager> {
        self.user_manager(uid)
    }

    fn forget_user(&self, _uid: u32) {}
}

#[async_trait]
impl UserSessions for FakeMachine {
    async fn set_linger(&self, uid: u32, linger: bool) -> Result<(), SystemdError> {
        let manager = self.user_manager(uid);
        {
            let mut lingering = self.lingering.lock();
            if linger {
                lingering.insert(uid);
            } else {
                lingering.remove(&uid);
            }
        }
        if !linger {
            self.away().remove(&uid);
        }
        if !self.away().contains_key(&uid) {
            manager.set_unreachable((!linger).then_some("its socket is not there"));
        }
        Ok(())
    }

    async fn wait_for_user_bus(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        if self.lingering().contains(&uid) && !self.away().contains_key(&uid) {
            return Ok(());
        }
        sleep(limit).await;
        Err(error::unreachable(
            &format!("user {uid}"),
            "its socket is not there",
        ))
    }

    async fn terminate_user(&self, uid: u32) -> Result<(), SystemdError> {
        self.user_manager(uid)
            .set_unreachable(Some("its socket is not there"));
        Ok(())
    }

    async fn user_runs(&self, uid: u32) -> Result<bool, SystemdError> {
        let ended = self.away().get(&uid) == Some(&ManagerAbsence::Ended);
        Ok(self.lingering().contains(&uid) && !ended)
    }

    async fn start_user(&self, uid: u32, _limit: Duration) -> Result<(), SystemdError> {
        let ended = self.away().get(&uid) == Some(&ManagerAbsence::Ended);
        if ended {
            self.away().remove(&uid);
            self.user_manager(uid).begin_anew();
        }
        Ok(())
    }

    async fn restart_user(&self, uid: u32, _limit: Duration) -> Result<(), SystemdError> {
        self.user_manager(uid).begin_anew();
        Ok(())
    }

    async fn wait_for_user_stopped(&self, uid: u32, limit: Duration) -> Result<(), SystemdError> {
        if !self.lingering().contains(&uid) {
            return Ok(());
        }
        sleep(limit).await;
        Err(SystemdError::JobTimeout {
            unit: format!("user@{uid}.service"),
            limit,
        })
    }
}
