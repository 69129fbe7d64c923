//! Users of workloads on this machine: created completely and removed completely, also after an
//! interruption.

pub mod accounts;
mod decide;
mod home;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::task::spawn_blocking;

use self::{accounts::AccountFiles, decide::comment};
use super::{
    commands::{CommandError, Invocation},
    files::{self, FileAccess, FileError},
};
use kat_types::{assignment::WorkloadUser, machine::root::Root};

pub use self::decide::{
    AccountConflict, AccountSteps, decide, foreign_indexes, home as home_of, is_ours,
    range_conflicts,
};

/// Folder of the users' homes.
pub const HOMES: &str = "/var/lib/kat/users";
/// Longest run of a shadow program, which may wait for another one's lock.
const LIMIT: Duration = Duration::from_secs(30);

/// Why a user could not be created or removed.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// A name or id is used by another account.
    #[error("{user}: {taken}")]
    Taken {
        user: String,
        /// The conflict.
        taken: AccountConflict,
    },
    /// A network directory has an account with the name or uid.
    #[error("{user}: {what} is taken by {by}, which is in no file of this machine")]
    Directory {
        user: String,
        /// The name or uid.
        what: String,
        /// The account in the directory.
        by: String,
    },
    /// The user is still incomplete after all steps.
    #[error("{user}: is not as it should be after all was done: {missing}")]
    Incomplete {
        user: String,
        /// The missing parts.
        missing: String,
    },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    File(#[from] FileError),
    /// The thread for blocking work ended early.
    #[error("{user}: the work was interrupted")]
    Interrupted {
        /// The workload's user.
        user: String,
    },
}

/// The accounts of a machine. Changes are made with the programs of shadow (`useradd(8)`,
/// `groupadd(8)`, `usermod(8)`, `userdel(8)`), which take its locks.
#[derive(Debug, Clone)]
pub struct Users {
    root: PathBuf,
    homes: PathBuf,
}

impl Default for Users {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            homes: PathBuf::from(HOMES),
        }
    }
}

impl Users {
    /// The accounts of this machine.
    pub fn new() -> Self {
        Self::default()
    }

    /// The accounts of a file tree at `root`, with its homes inside the tree.
    pub fn below(root: &Root) -> Self {
        Self {
            root: root.path().to_owned(),
            homes: root.below(HOMES),
        }
    }

    pub fn home(&self, user: &WorkloadUser) -> PathBuf {
        decide::home(&self.homes, user)
    }

    /// Reads the machine's account files.
    pub fn accounts(&self) -> Result<AccountFiles, FileError> {
        AccountFiles::read(&self.root)
    }

    /// Conflicts with the ids of all workloads (see [`range_conflicts`]).
    pub(crate) fn check_range(
        &self,
        uid_base: u32,
        count: u32,
        subordinate_base: u32,
    ) -> Result<Vec<AccountConflict>, FileError> {
        Ok(range_conflicts(
            &self.accounts()?,
            uid_base,
            count,
            subordinate_base,
        ))
    }

    /// Indexes of workload users whose ids another account of the machine has (see
    /// [`foreign_indexes`]).
    pub fn foreign_indexes(&self) -> Result<Vec<u32>, FileError> {
        Ok(decide::foreign_indexes(&self.accounts()?))
    }

    /// Creates a user, or its missing parts. Returns whether any was missing.
    ///
    /// The user has a group and the ids of the workload, no shell, a home of its own (0700), and
    /// only its own range of subordinate ids. A name or id that another account uses is an error.
    pub async fn create(&self, user: &WorkloadUser) -> Result<bool, UserError> {
        let steps = self.steps(user)?;
        if steps.add_user && self.root == Path::new("/") {
            self.ask_directory(user).await?;
        }
        let changed = steps != AccountSteps::default();
        self.apply_steps(user, &steps).await?;
        self.make_home(user)?;
        if changed {
            let rest = self.steps(user)?;
            if rest != AccountSteps::default() {
                return Err(UserError::Incomplete {
                    user: user.name.clone(),
                    missing: format!("{rest:?}"),
                });
            }
        }
        Ok(changed)
    }

    /// Makes a user a member of these groups of the machine, and of no other beside its own.
    /// Running processes keep their groups.
    pub async fn set_groups(
        &self,
        user: &WorkloadUser,
        groups: &BTreeSet<String>,
    ) -> Result<(), UserError> {
        let names: Vec<&str> = groups.iter().map(String::as_str).collect();
        self.tool("usermod")
            .args(["--groups", &names.join(",")])
            .arg(&user.name)
            .run()
            .await?;
        let found = self.accounts()?.groups_of(&user.name);
        if found == *groups {
            return Ok(());
        }
        Err(UserError::Incomplete {
            user: user.name.clone(),
            missing: format!("its groups are {found:?}, and should be {groups:?}"),
        })
    }

    /// Removes a user, its group, its subordinate ids and its home, or what is left of them. Its
    /// manager and processes must have ended. An account that is not KAT's is left alone.
    pub async fn remove(&self, user: &WorkloadUser) -> Result<(), UserError> {
        let accounts = self.accounts()?;
        let ours = accounts
            .user(&user.name)
            .is_some_and(|found| found.uid == user.uid && found.comment == comment(user));
        // The home is removed first: as long as files with this uid exist, the uid has a name.
        let home = self.home(user);
        let path = home.clone();
        spawn_blocking(move || home::remove(&path))
            .await
            .map_err(|_| UserError::Interrupted {
                user: user.name.clone(),
            })??;
        if ours {
            self.tool("userdel").arg(&user.name).run().await?;
        }
        let group = self.accounts()?;
        if group
            .group(&user.name)
            .is_some_and(|found| found.gid == user.uid)
            && group.user(&user.name).is_none()
        {
            self.tool("groupdel").arg(&user.name).run().await?;
        }
        Ok(())
    }

    fn steps(&self, user: &WorkloadUser) -> Result<AccountSteps, UserError> {
        decide(&self.accounts()?, user).map_err(|taken| UserError::Taken {
            user: user.name.clone(),
            taken,
        })
    }

    fn tool(&self, program: &str) -> Invocation {
        let invocation = Invocation::new(program).limit(LIMIT);
        if self.root == Path::new("/") {
            invocation
        } else {
            invocation.arg("--prefix").arg(&self.root)
        }
    }

    async fn apply_steps(
        &self,
        user: &WorkloadUser,
        steps: &AccountSteps,
    ) -> Result<(), UserError> {
        let uid = user.uid.to_string();
        if steps.add_group {
            self.tool("groupadd")
                .args(["--gid", &uid, &user.name])
                .run()
                .await?;
        }
        if steps.add_user {
            self.tool("useradd")
                .args(["--uid", &uid, "--gid", &uid])
                .args(["--comment", &comment(user)])
                .args(["--shell", "/usr/sbin/nologin", "--no-create-home"])
                .arg("--home-dir")
                .arg(Path::new(HOMES).join(&user.name))
                // Shadow's own choice of subordinate ids would differ from machine to machine.
                .args(["--key", "SUB_UID_COUNT=0", "--key", "SUB_GID_COUNT=0"])
                .arg(&user.name)
                .run()
                .await?;
        }
        // Shadow does not add subordinate ids if their file is missing.
        for name in ["subuid", "subgid"] {
            let path = self.root.join("etc").join(name);
            if !path.exists() {
                files::write_atomic(&path, b"", FileAccess::mode(0o644))?;
            }
        }
        // `useradd` may have added ids nevertheless, so the files are read again.
        let steps = self.steps(user)?;
        let mut arguments = Vec::new();
        for (option, ranges) in [
            ("--del-subuids", &steps.drop_uids),
            ("--del-subgids", &steps.drop_gids),
        ] {
            for range in ranges {
                let last = range.start + range.count.saturating_sub(1);
                arguments.push(option.to_owned());
                arguments.push(format!("{}-{last}", range.start));
            }
        }
        let last = user.subordinate_start + user.subordinate_count.saturating_sub(1);
        let wanted = format!("{}-{last}", user.subordinate_start);
        for (option, missing) in [
            ("--add-subuids", steps.add_uids),
            ("--add-subgids", steps.add_gids),
        ] {
            if missing {
                arguments.push(option.to_owned());
                arguments.push(wanted.clone());
            }
        }
        if !arguments.is_empty() {
            self.tool("usermod")
                .args(arguments)
                .arg(&user.name)
                .run()
                .await?;
        }
        Ok(())
    }

    fn make_home(&self, user: &WorkloadUser) -> Result<(), UserError> {
        if !self.homes.is_dir() {
            std::fs::create_dir_all(&self.homes).map_err(|error| FileError::System {
                verb: "make the folder",
                path: self.homes.clone(),
                error,
            })?;
            files::ensure_folder(&self.homes, FileAccess::mode(0o711))?;
        }
        files::ensure_folder(
            &self.home(user),
            FileAccess::owned(0o700, user.uid, user.uid),
        )?;
        Ok(())
    }

    /// Checks network directories, which may have names and ids that are in no file.
    async fn ask_directory(&self, user: &WorkloadUser) -> Result<(), UserError> {
        let wanted = user.clone();
        let answer = spawn_blocking(move || {
            let by_uid = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(wanted.uid));
            let by_name = nix::unistd::User::from_name(&wanted.name);
            (by_uid.ok().flatten(), by_name.ok().flatten())
        });
        // A directory that does not answer must not block the user's creation.
        let Ok(Ok((by_uid, by_name))) = tokio::time::timeout(LIMIT, answer).await else {
            return Ok(());
        };
        let taken = |what: String, by: String| UserError::Directory {
            user: user.name.clone(),
            what,
            by,
        };
        if let Some(other) = by_uid {
            return Err(taken(format!("uid {}", user.uid), other.name));
        }
        if let Some(other) = by_name {
            return Err(taken("its name".to_owned(), format!("uid {}", other.uid)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
