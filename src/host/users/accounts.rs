//! The machine's accounts, as its files say: `passwd(5)`, `group(5)`, `subuid(5)`, `subgid(5)`.

use std::{collections::BTreeSet, path::Path};

use crate::files::{self, FileError};

/// Largest of these files that is read.
const LIMIT: u64 = 16 * 1024 * 1024;

/// A user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Login name.
    pub name: String,
    /// Uid.
    pub uid: u32,
    /// Gid of the first group.
    pub gid: u32,
    /// Comment.
    pub comment: String,
    /// Home.
    pub home: String,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Gid.
    pub gid: u32,
    /// Login names of its members; those whose first group it is are not among them.
    pub members: Vec<String>,
}

/// A range of subordinate ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Login name or uid, as it is written.
    pub owner: String,
    /// First id.
    pub start: u64,
    /// Number of ids.
    pub count: u64,
}

impl Range {
    /// Whether the two share an id.
    pub fn overlaps(&self, start: u64, count: u64) -> bool {
        self.start < start.saturating_add(count) && start < self.start.saturating_add(self.count)
    }
}

/// What the four files hold. Lines that can't be read are passed over, as shadow does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Users.
    pub users: Vec<Account>,
    /// Groups.
    pub groups: Vec<Group>,
    /// Subordinate uids.
    pub subordinate_uids: Vec<Range>,
    /// Subordinate gids.
    pub subordinate_gids: Vec<Range>,
}

impl Accounts {
    /// Reads the files below `root`; those of subordinate ids may be missing.
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

    /// From the texts of the files.
    pub fn parse(passwd: &str, group: &str, subuid: &str, subgid: &str) -> Self {
        Self {
            users: passwd.lines().filter_map(account).collect(),
            groups: group.lines().filter_map(a_group).collect(),
            subordinate_uids: subuid.lines().filter_map(range).collect(),
            subordinate_gids: subgid.lines().filter_map(range).collect(),
        }
    }

    /// The user of this name.
    pub fn user(&self, name: &str) -> Option<&Account> {
        self.users.iter().find(|user| user.name == name)
    }

    /// Names of the groups that a user is a member of, beside its first.
    pub fn groups_of(&self, user: &str) -> BTreeSet<String> {
        let groups = self.groups.iter();
        groups
            .filter(|group| group.members.iter().any(|member| member == user))
            .map(|group| group.name.clone())
            .collect()
    }

    /// The group of this name.
    pub fn group(&self, name: &str) -> Option<&Group> {
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

fn a_group(line: &str) -> Option<Group> {
    let mut fields = line.split(':');
    Some(Group {
        name: fields.next()?.to_owned(),
        gid: fields.nth(1)?.parse().ok()?,
        members: {
            let members = fields.next().unwrap_or_default().split(',');
            let members = members.map(|name| name.trim().to_owned());
            members.filter(|name| !name.is_empty()).collect()
        },
    })
}

fn range(line: &str) -> Option<Range> {
    let mut fields = line.split(':');
    Some(Range {
        owner: fields.next()?.to_owned(),
        start: fields.next()?.parse().ok()?,
        count: fields.next()?.trim().parse().ok()?,
    })
}
