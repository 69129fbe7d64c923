//! Decides which parts of a user are missing, and what is in conflict. Pure.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use super::accounts::{AccountFiles, SubordinateRange};
use kat_types::assignment::{
    INDEX_LIMIT, SUBORDINATE_BASE, SUBORDINATE_COUNT, USER_BASE, WorkloadUser,
};

/// Comment that marks an account as KAT's; the index follows.
const MARK: &str = "KAT workload ";
/// Ids that systemd assigns itself (systemd's UIDS-GIDS): first, last, purpose.
const RESERVED: &[(u64, u64, &str)] = &[
    (60_001, 60_513, "homes of systemd-homed"),
    (60_578, 60_705, "hosts' users in containers of systemd"),
    (61_184, 65_519, "dynamic users of systemd"),
    (524_288, 1_879_048_191, "containers of systemd-nspawn"),
    (2_147_352_576, 4_294_967_295, "foreign files and no one"),
];

/// A name or id that a workload's user needs is in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountConflict {
    /// The login name is in use.
    #[error("the user name {name} is taken by uid {uid}, which is not KAT's")]
    Name {
        name: String,
        /// Uid of the account with that name.
        uid: u32,
    },
    /// The uid is in use.
    #[error("uid {uid} is taken by the user {by}")]
    Uid {
        uid: u32,
        /// The account with that uid.
        by: String,
    },
    /// The group's name is in use.
    #[error("the group name {name} is taken by gid {gid}")]
    Group {
        name: String,
        /// Gid of the group with that name.
        gid: u32,
    },
    /// The gid is in use.
    #[error("gid {gid} is taken by the group {by}")]
    Gid {
        gid: u32,
        /// The group with that gid.
        by: String,
    },
    /// Subordinate ids are in use.
    #[error("subordinate ids {first} to {last} overlap those of {by}")]
    Subordinate {
        first: u64,
        last: u64,
        /// Owner of the ids.
        by: String,
    },
    /// The ids are reserved on every machine.
    #[error("ids {first} to {last} overlap those that are kept for {what}")]
    Reserved {
        first: u64,
        last: u64,
        /// Their purpose.
        what: &'static str,
    },
}

/// Steps that complete a user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountSteps {
    /// Create the group.
    pub(crate) add_group: bool,
    /// Create the user.
    pub(crate) add_user: bool,
    /// The user's ranges of subordinate uids that have to be removed.
    pub(crate) drop_uids: Vec<SubordinateRange>,
    /// Add its subordinate uids.
    pub(crate) add_uids: bool,
    /// The user's ranges of subordinate gids that have to be removed.
    pub(crate) drop_gids: Vec<SubordinateRange>,
    /// Add its subordinate gids.
    pub(crate) add_gids: bool,
}

/// The comment of a workload's account, with its index.
pub(super) fn comment(user: &WorkloadUser) -> String {
    format!("{MARK}{}", user.index)
}

pub fn home(base: &Path, user: &WorkloadUser) -> PathBuf {
    base.join(&user.name)
}

/// Whether an account is KAT's, by its comment.
pub fn is_ours(comment: &str) -> bool {
    comment.starts_with(MARK)
}

/// The missing steps of a user, or the conflict.
pub fn decide(
    accounts: &AccountFiles,
    user: &WorkloadUser,
) -> Result<AccountSteps, AccountConflict> {
    let mut steps = AccountSteps::default();
    match accounts.user(&user.name) {
        Some(found)
            if found.uid != user.uid || found.gid != user.uid || found.comment != comment(user) =>
        {
            return Err(AccountConflict::Name {
                name: user.name.clone(),
                uid: found.uid,
            });
        }
        Some(_) => {}
        None => steps.add_user = true,
    }
    if let Some(other) = accounts
        .users
        .iter()
        .find(|other| other.uid == user.uid && other.name != user.name)
    {
        return Err(AccountConflict::Uid {
            uid: user.uid,
            by: other.name.clone(),
        });
    }
    match accounts.group(&user.name) {
        Some(found) if found.gid != user.uid => {
            return Err(AccountConflict::Group {
                name: user.name.clone(),
                gid: found.gid,
            });
        }
        Some(_) => {}
        None => steps.add_group = true,
    }
    if let Some(other) = accounts
        .groups
        .iter()
        .find(|other| other.gid == user.uid && other.name != user.name)
    {
        return Err(AccountConflict::Gid {
            gid: user.uid,
            by: other.name.clone(),
        });
    }
    (steps.add_uids, steps.drop_uids) = ranges(&accounts.subordinate_uids, user)?;
    (steps.add_gids, steps.drop_gids) = ranges(&accounts.subordinate_gids, user)?;
    Ok(steps)
}

/// Whether the user's own range is missing, and which of its other ranges have to be removed.
fn ranges(
    all: &[SubordinateRange],
    user: &WorkloadUser,
) -> Result<(bool, Vec<SubordinateRange>), AccountConflict> {
    let (start, count) = (
        u64::from(user.subordinate_start),
        u64::from(user.subordinate_count),
    );
    let (own, others): (Vec<&SubordinateRange>, Vec<&SubordinateRange>) = all
        .iter()
        .partition(|range| range.owner == user.name || range.owner == user.uid.to_string());
    if let Some(other) = others.iter().find(|range| range.overlaps(start, count)) {
        return Err(AccountConflict::Subordinate {
            first: start,
            last: start + count.saturating_sub(1),
            by: other.owner.clone(),
        });
    }
    let right = |range: &&SubordinateRange| range.start == start && range.count == count;
    let missing = !own.iter().any(right);
    let wrong = own
        .into_iter()
        .filter(|range| !right(range))
        .cloned()
        .collect();
    Ok((missing, wrong))
}

/// All conflicts with the ids of all workloads: `count` ids from `uid_base`, and the ranges from
/// `subordinate_base`. KAT's own accounts are no conflict.
pub fn range_conflicts(
    accounts: &AccountFiles,
    uid_base: u32,
    count: u32,
    subordinate_base: u32,
) -> Vec<AccountConflict> {
    let count = count.min(INDEX_LIMIT);
    let uids = u64::from(uid_base)..u64::from(uid_base) + u64::from(count);
    let (start, length) = (
        u64::from(subordinate_base),
        u64::from(count) * u64::from(SUBORDINATE_COUNT),
    );
    let ours: Vec<&str> = accounts
        .users
        .iter()
        .filter(|user| is_ours(&user.comment))
        .map(|user| user.name.as_str())
        .collect();
    let mut found = Vec::new();
    for (first, last, size) in [
        (
            uids.start,
            uids.end.saturating_sub(1),
            uids.end - uids.start,
        ),
        (start, (start + length).saturating_sub(1), length),
    ] {
        for (low, high, what) in RESERVED {
            let reserved = SubordinateRange {
                owner: String::new(),
                start: *low,
                count: high - low + 1,
            };
            if reserved.overlaps(first, size) {
                found.push(AccountConflict::Reserved { first, last, what });
            }
        }
    }
    for user in &accounts.users {
        let uid = u64::from(user.uid);
        let subordinate = (start..start + length).contains(&uid);
        if (uids.contains(&uid) || subordinate) && !is_ours(&user.comment) {
            found.push(AccountConflict::Uid {
                uid: user.uid,
                by: user.name.clone(),
            });
        }
    }
    for group in &accounts.groups {
        if uids.contains(&u64::from(group.gid)) && !ours.contains(&group.name.as_str()) {
            found.push(AccountConflict::Gid {
                gid: group.gid,
                by: group.name.clone(),
            });
        }
    }
    let mut owners: Vec<&SubordinateRange> = Vec::new();
    for range in accounts
        .subordinate_uids
        .iter()
        .chain(&accounts.subordinate_gids)
    {
        let known = owners.contains(&range);
        if !known && range.overlaps(start, length) && !ours.contains(&range.owner.as_str()) {
            owners.push(range);
            found.push(AccountConflict::Subordinate {
                first: range.start,
                last: (range.start + range.count).saturating_sub(1),
                by: range.owner.clone(),
            });
        }
    }
    found
}

/// The indexes of workload users whose uid, gid or subordinate ids an account has that is not
/// KAT's, ascending.
pub fn foreign_indexes(accounts: &AccountFiles) -> Vec<u32> {
    let count = u64::from(SUBORDINATE_COUNT);
    let (uids, start) = (u64::from(USER_BASE), u64::from(SUBORDINATE_BASE));
    let limit = u64::from(INDEX_LIMIT);
    let mut found = BTreeSet::new();
    let mut take = |first: u64, last: u64| found.extend(first..=last.min(limit - 1));
    for conflict in range_conflicts(accounts, USER_BASE, INDEX_LIMIT, SUBORDINATE_BASE) {
        match conflict {
            AccountConflict::Uid { uid: id, .. } | AccountConflict::Gid { gid: id, .. } => {
                let id = u64::from(id);
                let index = match id < start {
                    true => id - uids,
                    false => (id - start) / count,
                };
                take(index, index);
            }
            AccountConflict::Subordinate { first, last, .. } => {
                take(first.saturating_sub(start) / count, (last - start) / count);
            }
            // These concern all indexes alike, on every machine.
            AccountConflict::Name { .. }
            | AccountConflict::Group { .. }
            | AccountConflict::Reserved { .. } => {}
        }
    }
    let indexes = found.into_iter();
    indexes
        .filter_map(|index| u32::try_from(index).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:,,,:/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nann:x:1000:\n";
    const OURS: &str = "kat-default-web:x:20003:20003:KAT workload 3:/h:/usr/sbin/nologin\n";

    fn user() -> WorkloadUser {
        WorkloadUser::from_index(3, "default", "web").unwrap()
    }

    fn line(owner: &str, user: &WorkloadUser) -> String {
        format!(
            "{owner}:{}:{}\n",
            user.subordinate_start, user.subordinate_count
        )
    }

    #[test]
    fn a_new_user_needs_everything() {
        let accounts = AccountFiles::parse(PASSWD, GROUP, "ann:100000:65536\n", "");
        let steps = decide(&accounts, &user()).unwrap();
        let all = AccountSteps {
            add_group: true,
            add_user: true,
            add_uids: true,
            add_gids: true,
            ..AccountSteps::default()
        };
        assert_eq!(steps, all);
    }

    #[test]
    fn a_user_that_stands_needs_nothing_and_half_a_user_the_rest() {
        let user = user();
        let passwd = format!("{PASSWD}{OURS}");
        let group = format!("{GROUP}kat-default-web:x:20003:\n");
        let sub = line(&user.name, &user);
        let accounts = AccountFiles::parse(&passwd, &group, &sub, &sub);
        assert_eq!(decide(&accounts, &user).unwrap(), AccountSteps::default());
        let stray = format!("{sub}kat-default-web:231072:65536\n");
        let accounts = AccountFiles::parse(&passwd, &group, &stray, "");
        let steps = decide(&accounts, &user).unwrap();
        assert_eq!(steps.drop_uids.len(), 1);
        assert_eq!(steps.drop_uids[0].start, 231_072);
        assert!(!steps.add_uids && steps.add_gids && !steps.add_user);
    }

    #[test]
    fn names_who_is_in_the_way() {
        let user = user();
        let sub = line("bob", &user);
        let cases = [
            (
                "kat-default-web:x:1500:1500::/:/\n",
                "",
                "",
                "the user name kat-default-web is taken by uid 1500, which is not KAT's",
            ),
            // The ids are right, but KAT's mark is missing, because the account was created by
            // hand.
            (
                "kat-default-web:x:20003:20003:Web:/:/\n",
                "",
                "",
                "the user name kat-default-web is taken by uid 20003, which is not KAT's",
            ),
            (
                "bob:x:20003:100::/:/\n",
                "",
                "",
                "uid 20003 is taken by the user bob",
            ),
            (
                "",
                "kat-default-web:x:77:\n",
                "",
                "the group name kat-default-web is taken by gid 77",
            ),
            (
                "",
                "wheel:x:20003:\n",
                "",
                "gid 20003 is taken by the group wheel",
            ),
            (
                "",
                "",
                sub.as_str(),
                "subordinate ids 1879244800 to 1879310335 overlap those of bob",
            ),
        ];
        for (passwd, group, subuid, expected) in cases {
            let error = decide(&AccountFiles::parse(passwd, group, subuid, ""), &user).unwrap_err();
            assert_eq!(error.to_string(), expected);
            let error = decide(&AccountFiles::parse(passwd, group, "", subuid), &user);
            assert!(error.is_err(), "{expected}");
        }
    }

    #[test]
    fn the_default_ranges_keep_clear_of_systemds() {
        let accounts = AccountFiles::parse(PASSWD, GROUP, "ann:100000:65536\n", "");
        assert_eq!(
            range_conflicts(&accounts, USER_BASE, INDEX_LIMIT, SUBORDINATE_BASE),
            []
        );
    }

    #[test]
    fn a_taken_range_names_everyone_in_it() {
        let passwd = format!("{PASSWD}{OURS}carl:x:20100:100::/:/\n");
        let group = "kat-default-web:x:20003:\nstaff:x:24093:\nnext:x:24094:\n";
        let sub = "kat-default-web:1879244800:65536\ndora:2000000000:10\n";
        let accounts = AccountFiles::parse(&passwd, group, sub, sub);
        let found = range_conflicts(&accounts, USER_BASE, INDEX_LIMIT, SUBORDINATE_BASE);
        let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "uid 20100 is taken by the user carl",
                "gid 24093 is taken by the group staff",
                "subordinate ids 2000000000 to 2000000009 overlap those of dora",
            ]
        );
        let found = range_conflicts(&AccountFiles::default(), 58_000, INDEX_LIMIT, 100_000);
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn the_indexes_of_foreign_accounts_are_those_of_their_ids() {
        let passwd = format!("{PASSWD}{OURS}eve:x:20004:20004::/:/\nlow:x:19999:5::/:/\n");
        let group = "kat-default-web:x:20003:\neve:x:20004:\nstaff:x:24093:\nnext:x:24094:\n";
        // The ranges of indexes 3, of 5 and 6 in part, and of the last index and beyond.
        let sub = "kat-default-web:1879244800:65536\ndora:1879375872:65537\nend:2147287039:1\n\
                   far:2147352575:100000000\n";
        let accounts = AccountFiles::parse(&passwd, group, sub, "all:0:1879048193\n");
        assert_eq!(foreign_indexes(&accounts), [0, 4, 5, 6, 4092, 4093]);
        assert!(foreign_indexes(&AccountFiles::default()).is_empty());
    }
}
