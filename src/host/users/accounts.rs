//! The machine's accounts from its files: `passwd(5)`, `group(5)`, `subuid(5)`, `subgid(5)`.

use std::{collections::BTreeSet, path::Path};

use crate::files::{self, FileError};

/// Largest of these files that is read, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    /// Gid of the primary group.
    pub gid: u32,
    pub comment: String,
    pub home: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixGroup {
    pub name: String,
    pub gid: u32,
    /// Login names of its members, without users whose primary group it is.
    pub members: Vec<String>,
}

/// A range of subordinate ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubordinateRange {
    /// Login name or uid, as written in the file.
    pub owner: String,
    pub start: u64,
    pub count: u64,
}

impl SubordinateRange {
    /// Whether the ranges overlap.
    pub fn overlaps(&self, start: u64, count: u64) -> bool {
        self.start < start.saturating_add(count) && start < self.start.saturating_add(self.count)
    }
}

/// The content of the four files. Unreadable lines are skipped, as shadow does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountFiles {
    pub users: Vec<Account>,
    pub groups: Vec<UnixGroup>,
    pub subordinate_uids: Vec<SubordinateRange>,
    pub subordinate_gids: Vec<SubordinateRange>,
}

impl AccountFiles {
    /// Reads the files below `root`; those with subordinate ids may be missing.
    pub fn read(root: &Path) -> Result<Self, FileError> {
        let text = |name: &str| files::read_text(&root.join("etc").join(name), LIMIT);
        let optional = |name: &str| match text(name) {
            Err(error) if error.is_not_found() => Ok(String::new()),
            other => other,
        };
        Ok(Self::parse(
            &text("passwd")?,
            &text("group")?,
            &optional("subuid")?,
            &optional("subgid")?,
        ))
    }

    pub fn parse(passwd: &str, group: &str, subuid: &str, subgid: &str) -> Self {
        Self {
            users: passwd.lines().filter_map(account).collect(),
            groups: group.lines().filter_map(a_group).collect(),
            subordinate_uids: subuid.lines().filter_map(range).collect(),
            subordinate_gids: subgid.lines().filter_map(range).collect(),
        }
    }

    pub fn user(&self, name: &str) -> Option<&Account> {
        self.users.iter().find(|user| user.name == name)
    }

    /// Names of the groups that a user is a member of, without its primary group.
    pub fn groups_of(&self, user: &str) -> BTreeSet<String> {
        let groups = self.groups.iter();
        groups
            .filter(|group| group.members.iter().any(|member| member == user))
            .map(|group| group.name.clone())
            .collect()
    }

    pub fn group(&self, name: &str) -> Option<&UnixGroup> {
        self.groups.iter().find(|group| group.name == name)
    }
}

fn account(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let uid = fields.nth(1)?.parse().ok()?;
    Some(Account {
        name,
        uid,
        gid: fields.next()?.parse().ok()?,
        comment: fields.next()?.to_owned(),
        home: fields.next()?.to_owned(),
    })
}

fn a_group(line: &str) -> Option<UnixGroup> {
    let mut fields = line.split(':');
    Some(UnixGroup {
        name: fields.next()?.to_owned(),
        gid: fields.nth(1)?.parse().ok()?,
        members: {
            let members = fields.next().unwrap_or_default().split(',');
            let members = members.map(|name| name.trim().to_owned());
            members.filter(|name| !name.is_empty()).collect()
        },
    })
}

fn range(line: &str) -> Option<SubordinateRange> {
    let mut fields = line.split(':');
    Some(SubordinateRange {
        owner: fields.next()?.to_owned(),
        start: fields.next()?.parse().ok()?,
        count: fields.next()?.trim().parse().ok()?,
    })
}
