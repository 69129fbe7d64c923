//! Host users of workloads, behind a trait so that the simulation needs none.

use std::path::PathBuf;

use async_trait::async_trait;

use crate::{
    host::users::{UserError, Users, is_ours},
    plan::{INDEX_LIMIT, USER_BASE, WorkloadUser},
};

/// Makes and removes the users of workloads.
#[async_trait]
pub trait UserAccounts: Send + Sync {
    /// The user exists, with its ids.
    async fn ensure(&self, user: &WorkloadUser) -> Result<(), UserError>;

    /// Nothing of the user is left, its home included.
    async fn remove(&self, user: &WorkloadUser) -> Result<(), UserError>;

    /// Its home.
    fn home(&self, user: &WorkloadUser) -> PathBuf;

    /// The marked user of this uid.
    fn find(&self, uid: u32) -> Option<WorkloadUser>;

    /// Uids of all marked users.
    fn all(&self) -> Vec<u32>;
}

#[async_trait]
impl UserAccounts for Users {
    async fn ensure(&self, user: &WorkloadUser) -> Result<(), UserError> {
        self.create(user).await.map(drop)
    }

    async fn remove(&self, user: &WorkloadUser) -> Result<(), UserError> {
        Users::remove(self, user).await
    }

    fn home(&self, user: &WorkloadUser) -> PathBuf {
        Users::home(self, user)
    }

    fn find(&self, uid: u32) -> Option<WorkloadUser> {
        let index = uid
            .checked_sub(USER_BASE)
            .filter(|index| *index < INDEX_LIMIT)?;
        let accounts = self.accounts().ok()?;
        let account = accounts
            .users
            .iter()
            .find(|account| account.uid == uid && is_ours(&account.comment))?;
        let user = WorkloadUser::from_index(index, "", "")?;
        Some(WorkloadUser {
            name: account.name.clone(),
            ..user
        })
    }

    fn all(&self) -> Vec<u32> {
        let accounts = self
            .accounts()
            .map(|accounts| accounts.users)
            .unwrap_or_default();
        accounts
            .into_iter()
            .filter(|account| is_ours(&account.comment))
            .map(|account| account.uid)
            .collect()
    }
}
