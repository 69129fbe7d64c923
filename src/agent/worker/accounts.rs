//! Host users of workloads, behind a trait so that the simulation needs none.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use async_trait::async_trait;

use kat_host::users::{UserError, Users, is_ours};
use kat_types::assignment::{INDEX_LIMIT, USER_BASE, WorkloadUser};

/// The groups of a machine, and which of them a user is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineGroups {
    /// Gids by name.
    pub all: BTreeMap<String, u32>,
    /// Names of those that the user is a member of, beside its own.
    pub of_user: BTreeSet<String>,
}

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

    /// The groups of the machine.
    fn groups(&self, _user: &WorkloadUser) -> Result<MachineGroups, UserError> {
        Ok(MachineGroups::default())
    }

    /// The user is a member of these groups and of no other, beside its own.
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
