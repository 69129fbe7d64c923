//! The machines' copies of their lists: a confirmed copy is at most as old as the fence counts.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use crate::world::World;
use kat_store::{SILENCE, SURE_FOR};
use kat_types::store::{
    keys,
    visibility::{is_visible, visible_prefixes},
};

/// Largest age of a confirmed copy: of a beat, and of the read from a quorum before it.
const MOST_AGE: Duration = SILENCE.saturating_add(SURE_FOR);

/// The revisions of the machines' lists in the store, each with the time at which it was seen.
#[derive(Default)]
pub(crate) struct ListRevisions {
    seen: BTreeMap<String, VecDeque<(Instant, i64)>>,
    revision: i64,
}

impl World {
    /// Why a machine's copy is not what the machine may see of the store, once all faults are
    /// repaired; `None` if every copy is.
    pub(crate) fn copy_behind(&self) -> Option<String> {
        self.joined().find_map(|machine| {
            let name = &machine.name;
            let copy = machine.process.as_ref()?.copy();
            if !copy.confirmed {
                return Some(format!("the copy of {name} is not confirmed"));
            }
            let prefixes = visible_prefixes(name);
            let stored = prefixes
                .iter()
                .flat_map(|prefix| self.store.peek(prefix).items);
            let stored = stored.filter(|item| is_visible(&item.key, name));
            let stored: BTreeMap<String, i64> =
                stored.map(|item| (item.key, item.mod_revision)).collect();
            let shown = copy.entries.iter();
            let shown: BTreeMap<String, i64> = shown
                .map(|(key, item)| (key.to_string(), item.mod_revision))
                .collect();
            let differs = |(key, revision): &(&String, &i64)| {
                stored.get(*key) != Some(*revision) || shown.get(*key) != Some(*revision)
            };
            let mut all = stored.iter().chain(&shown);
            let (key, _) = all.find(differs)?;
            Some(format!(
                "the copy of {name} has revision {:?} of {key}, and the store {:?}",
                shown.get(key),
                stored.get(key)
            ))
        })
    }

    /// Every change that the store had longer than [`MOST_AGE`] ago is in each confirmed copy.
    pub(crate) fn check_copies(&mut self) {
        let now = Instant::now();
        let revision = self.store.revision();
        let lists = &mut self.list_revisions;
        if std::mem::replace(&mut lists.revision, revision) != revision {
            for machine in self.machines.iter().filter(|machine| machine.joined) {
                let key = keys::desired_meta(&machine.name);
                let found = self.store.peek(&key).items.into_iter().next();
                let Some(meta) = found else { continue };
                let seen = lists.seen.entry(machine.name.clone()).or_default();
                if seen
                    .back()
                    .is_none_or(|(_, last)| *last < meta.mod_revision)
                {
                    seen.push_back((now, meta.mod_revision));
                }
            }
        }
        for machine in &self.machines {
            let (Some(process), Some(seen)) = (&machine.process, lists.seen.get_mut(&machine.name))
            else {
                continue;
            };
            let is_old = |(at, _): &(Instant, i64)| *at + MOST_AGE < now;
            while seen.get(1).is_some_and(is_old) {
                seen.pop_front();
            }
            let copy = process.copy();
            let Some((at, wanted)) = seen.front().copied().filter(is_old) else {
                continue;
            };
            let shown = copy.get(&keys::desired_meta(&machine.name));
            let shown = shown.map_or(0, |meta| meta.mod_revision);
            if copy.confirmed && shown < wanted {
                self.monitor.violated(format!(
                    "the confirmed copy of {} shows its list of revision {shown}, and {wanted} is {:?} old",
                    machine.name,
                    now - at
                ));
            }
        }
    }
}
