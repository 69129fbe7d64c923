//! Further names of workloads (`aliases`): who has which name of a namespace.
//!
//! An apply is refused by [`name_conflict`]. Of two workloads that have the same name stored all the
//! same, the one whose own name it is has it, else the one that was created first ([`AliasOwners`]).

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use crate::Snapshot;
use kat_types::store::{
    keys,
    revisions::WorkloadKey,
    snapshot::{ParsedWorkload, WorkloadEntry},
};

/// Why a workload can't have a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameConflict {
    /// The name.
    pub name: String,
    /// Index of the name among the aliases of the workload; `None` for its own name.
    pub alias: Option<usize>,
    /// The workload that has it.
    pub owner: WorkloadKey,
    /// How the owner has it.
    pub of_owner: NameUse,
}

/// How a workload has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    /// It is its own name.
    OwnName,
    /// It is the alias with this index.
    Alias(usize),
    /// It is an alias, and the workload's files can't be read.
    UnreadAlias,
}

/// The aliases of a workload's files.
pub fn aliases_of(parsed: &ParsedWorkload) -> &[String] {
    let balancer = parsed.load_balancer.as_ref();
    balancer.map_or(&[], |balancer| balancer.spec.aliases.as_slice())
}

/// The first name of a workload that another one of its namespace has. Names that its stored files have
/// already are not looked at.
pub fn name_conflict(
    snapshot: &Snapshot,
    key: &WorkloadKey,
    aliases: &[String],
) -> Option<NameConflict> {
    let stored = snapshot.workloads.get(key);
    let parsed = stored.and_then(|entry| entry.parsed.as_ref().ok());
    let before: &[String] = parsed.map_or(&[], |parsed| aliases_of(parsed));
    let own = stored.is_none().then_some((None, key.name.as_str()));
    let new = aliases.iter().enumerate();
    let new = new.filter(|(_, alias)| !before.contains(*alias));
    let new = new.map(|(index, alias)| (Some(index), alias.as_str()));
    let mut names = own.into_iter().chain(new);
    names.find_map(|(alias, name)| {
        let (owner, of_owner) = owner_of(snapshot, key, name)?;
        Some(NameConflict {
            name: name.to_owned(),
            alias,
            owner: owner.clone(),
            of_owner,
        })
    })
}

/// Another workload of the namespace that has the name, and how it has it.
fn owner_of<'s>(
    snapshot: &'s Snapshot,
    key: &WorkloadKey,
    name: &str,
) -> Option<(&'s WorkloadKey, NameUse)> {
    let mut others = of_namespace(snapshot, &key.namespace).filter(|(other, _)| *other != key);
    others.find_map(|(other, entry)| {
        if other.name == name {
            return Some((other, NameUse::OwnName));
        }
        let Ok(parsed) = &entry.parsed else {
            let is_alias = stored_aliases(snapshot, other).contains(name);
            return is_alias.then_some((other, NameUse::UnreadAlias));
        };
        let aliases = aliases_of(parsed);
        let index = aliases.iter().position(|alias| alias == name)?;
        Some((other, NameUse::Alias(index)))
    })
}

/// The workloads of a namespace.
fn of_namespace<'s>(
    snapshot: &'s Snapshot,
    namespace: &str,
) -> impl Iterator<Item = (&'s WorkloadKey, &'s WorkloadEntry)> {
    let first = WorkloadKey::new(namespace, "");
    let all = snapshot.workloads.range(first.clone()..);
    let own = all.take_while(move |(key, _)| key.namespace == first.namespace);
    own.map(|(key, entry)| (key, &**entry))
}

/// The workload that has each alias.
#[derive(Debug, Default)]
pub(crate) struct AliasOwners<'s> {
    /// By namespace and alias.
    owners: BTreeMap<(&'s str, &'s str), &'s WorkloadKey>,
    aliases: BTreeMap<&'s WorkloadKey, Vec<&'s str>>,
}

impl<'s> AliasOwners<'s> {
    pub(crate) fn of(snapshot: &'s Snapshot) -> Self {
        let mut claims = Vec::new();
        for (key, entry) in &snapshot.workloads {
            let created = entry.meta.value.created;
            let aliases: Vec<&str> = match &entry.parsed {
                Ok(parsed) => aliases_of(parsed).iter().map(String::as_str).collect(),
                Err(_) => stored_aliases(snapshot, key).into_iter().collect(),
            };
            claims.extend(aliases.into_iter().map(|alias| (created, key, alias)));
        }
        claims.sort();
        let mut owners = Self::default();
        for (_, key, alias) in claims {
            let place = (key.namespace.as_str(), alias);
            let is_name = snapshot
                .workloads
                .contains_key(&WorkloadKey::new(&key.namespace, alias));
            if !is_name && let Entry::Vacant(free) = owners.owners.entry(place) {
                free.insert(key);
                owners.aliases.entry(key).or_default().push(alias);
            }
        }
        owners
    }

    /// The aliases that the workload has.
    pub(crate) fn aliases(&self, key: &WorkloadKey) -> impl Iterator<Item = &'s str> {
        let aliases = self.aliases.get(key).map_or(&[][..], Vec::as_slice);
        aliases.iter().copied()
    }

    /// The workload that has the alias.
    pub(crate) fn owner(&self, namespace: &str, alias: &str) -> Option<&'s WorkloadKey> {
        self.owners.get(&(namespace, alias)).copied()
    }
}

/// The aliases of a workload whose files can't be read: the names in the zone that no workload has, and
/// that share an address with the workload's own name. An address that another workload's own name has
/// too, such as that of a machine, says nothing.
fn stored_aliases<'s>(snapshot: &'s Snapshot, key: &WorkloadKey) -> BTreeSet<&'s str> {
    let prefix = format!("{}{}/", keys::DNS, key.namespace);
    let records = snapshot.dns.range(prefix.clone()..);
    let records = records.map_while(|(record, _)| record.strip_prefix(prefix.as_str()));
    let records: Vec<(&str, &str)> = records
        .filter_map(|record| {
            let (name, value) = record.split_once('/')?;
            (!value.contains('=')).then_some((name, value))
        })
        .collect();
    let own = records.iter().filter(|(name, _)| *name == key.name);
    let mut own: BTreeSet<&str> = own.map(|(_, value)| *value).collect();
    let is_workload = |name: &str| {
        let workload = WorkloadKey::new(&key.namespace, name);
        snapshot.workloads.contains_key(&workload)
    };
    for (name, value) in &records {
        if *name != key.name && own.contains(value) && is_workload(name) {
            own.remove(value);
        }
    }
    let shared = records
        .into_iter()
        .filter(|(name, value)| own.contains(value) && !is_workload(name));
    shared.map(|(name, _)| name).collect()
}
