//! Host users of workloads, behind a trait so that the simulation needs none.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use async_trait::async_trait;

use kat_host::users::{UserError, Users, is_ours};
use kat_types::assignment::{INDEX_LIMIT, USER_BASE, WorkloadUser};

/// The machine's groups, and the user's memberships.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineGroups {
    /// Gids by name.
    pub all: BTreeMap<String, u32>,
    /// Names of the groups that the user is a member of, without its own.
    pub of_user: BTreeSet<String>,
}

/// Creates and removes the users of workloads.
#[async_trait]
pub trait UserAccounts: Send + Sync {
    /// Creates the user with its ids unless it exists.
    async fn ensure(&self, user: &WorkloadUser) -> Result<(), UserError>;

    /// Removes the user and its home.
    async fn remove(&self, user: &WorkloadUser) -> Result<(), UserError>;

    /// The user's home folder.
    fn home(&self, user: &WorkloadUser) -> PathBuf;

    /// The user with this uid, if it bears KAT's mark.
    fn find(&self, uid: u32) -> Option<WorkloadUser>;

    /// Whether a user without KAT's mark has this uid.
    fn is_foreign(&self, _uid: u32) -> Result<bool, UserError> {
        Ok(false)
    }

    /// Uids of all users with KAT's mark.
    fn all(&self) -> Vec<u32>;

    /// The machine's groups, and the user's memberships.
    fn groups(&self, _user: &WorkloadUser) -> Result<MachineGroups, UserError> {
        Ok(MachineGroups::default())
    }

    /// Makes the user a member of these groups, and of no other beside its own.
    async fn set_groups(
        &self,
        _user: &WorkloadUser,
        _groups: &BTreeSet<String>,
    ) -> Result<(), UserError> {
        Ok(())
    }
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

    fn is_foreign(&self, uid: u32) -> Result<bool, UserError> {
        let users = self.accounts()?.users;
        let mut users = users.iter().filter(|account| account.uid == uid);
        Ok(users.any(|account| !is_ours(&account.comment)))
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

    fn groups(&self, user: &WorkloadUser) -> Result<MachineGroups, UserError> {
        let accounts = self.accounts()?;
        Ok(MachineGroups {
            of_user: accounts.groups_of(&user.name),
            all: accounts
                .groups
                .into_iter()
                .map(|group| (group.name, group.gid))
                .collect(),
        })
    }

    async fn set_groups(
        &self,
        user: &WorkloadUser,
        groups: &BTreeSet<String>,
    ) -> Result<(), UserError> {
        Users::set_groups(self, user, groups).await
    }
}
