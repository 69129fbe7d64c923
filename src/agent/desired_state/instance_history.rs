//! `/var/lib/kat/instance-history.json`: which instances this machine has had, so that their lines in
//! the journal are found after the leader has forgotten them.
//!
//! The file says whose lines are whose, and only root writes it. Uids are used again for other
//! workloads (`plan/instances/user_index.rs`), and a container's name has the names of namespace and
//! workload joined, so that two workloads may have equal ones. So an entry has the workload's uid,
//! which is never used again, and the time in which the machine had the instance.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::watched_writes::WatchedWrites;
use crate::service::supervisor::DesiredList;
use kat_api::WallClock;
use kat_daemon::watchdog::LoopPulses;
use kat_host::files::{self, FileAccess};
use kat_types::assignment::Assignment;

/// Instances that are gone and kept, of one workload.
pub(crate) const MOST_OF_A_WORKLOAD: usize = 20;
/// Instances that are gone and kept, of all workloads.
const MOST: usize = 400;
/// Largest file in bytes.
const LIMIT: u64 = 4 << 20;
/// An instance may print before its list is noticed here.
const BEFORE: SignedDuration = SignedDuration::from_secs(60);

/// An instance that this machine has, or had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeldInstance {
    pub namespace: String,
    pub workload: String,
    /// The workload's identity.
    pub workload_uid: String,
    /// Uid of its host user at that time.
    pub uid: u32,
    pub generation: u64,
    /// The unit of the main container.
    pub unit: String,
    /// The units of containers that have a name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub containers: BTreeMap<String, String>,
    /// When it was first seen, by this machine's clock, and a little before.
    pub since: Timestamp,
    /// When it was no longer on the list; `None` while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl HeldInstance {
    fn of(assignment: &Assignment, now: Timestamp) -> Self {
        let containers = assignment.container_names().into_iter();
        let units = containers.filter_map(|name| Some((name, assignment.unit_of(name)?)));
        Self {
            namespace: assignment.namespace.clone(),
            workload: assignment.workload.clone(),
            workload_uid: assignment.workload_uid.clone(),
            uid: assignment.user.uid,
            generation: assignment.generation,
            unit: assignment.unit(),
            containers: units.map(|(name, unit)| (name.to_owned(), unit)).collect(),
            since: now.checked_sub(BEFORE).unwrap_or(now),
            until: None,
        }
    }

    /// Whether it is of this very workload.
    pub(crate) fn is_of(&self, namespace: &str, workload: &str, uid: &str) -> bool {
        // An empty uid names no workload.
        !uid.is_empty()
            && self.workload_uid == uid
            && self.namespace == namespace
            && self.workload == workload
    }
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HistoryFile {
    /// Version of this object's schema, now 1.
    schema: u32,
    /// By id, which is never used again.
    instances: BTreeMap<String, HeldInstance>,
}

/// The instances that this machine has and had. Cheap to clone.
#[derive(Clone)]
pub(crate) struct InstanceHistory {
    path: PathBuf,
    known: Arc<watch::Sender<HistoryFile>>,
}

impl InstanceHistory {
    /// Reads the file. Without a readable one, nothing is known of instances that are gone.
    pub(crate) fn stored(path: PathBuf) -> Self {
        let known = match files::read_bounded(&path, LIMIT) {
            Ok(content) => serde_json::from_slice(&content).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), "the history of instances can't be read; it begins anew: {error:#}");
                HistoryFile::default()
            }),
            Err(error) => {
                if !error.is_not_found() {
                    tracing::warn!("the history of instances can't be read; it begins anew: {error:#}");
                }
                HistoryFile::default()
            }
        };
        Self {
            path,
            known: Arc::new(watch::Sender::new(known)),
        }
    }

    /// The instances of the workload that are gone, by id.
    pub(crate) fn gone(
        &self,
        namespace: &str,
        workload: &str,
        uid: &str,
    ) -> Vec<(String, HeldInstance)> {
        let known = self.known.borrow();
        let gone = known
            .instances
            .iter()
            .filter(|(_, one)| one.until.is_some() && one.is_of(namespace, workload, uid));
        gone.map(|(id, one)| (id.clone(), one.clone())).collect()
    }

    /// Waits until the instance was on this machine's list and is not any more: the leader removes it
    /// from there once this machine has reported its end.
    pub(crate) async fn until_gone(&self, instance: &str) {
        let mut was_here = false;
        let is_gone = |known: &HistoryFile| match known.instances.get(instance) {
            Some(held) => {
                was_here = true;
                held.until.is_some()
            }
            // One of many that went at once is not kept.
            None => was_here,
        };
        // The sender is this object's own, so that the wait ends in no other way.
        let _ = self.known.subscribe().wait_for(is_gone).await;
    }

    /// Follows the confirmed lists of this machine, until `cancel`.
    pub(crate) async fn follow(
        self,
        mut lists: watch::Receiver<DesiredList>,
        clock: WallClock,
        writes: WatchedWrites,
        pulses: LoopPulses,
        cancel: CancellationToken,
    ) {
        let pulse = pulses.watch("the history of instances");
        loop {
            let list = lists.borrow_and_update().clone();
            if list.confirmed && self.note(&list.desired.assignments, clock()) {
                let (path, known) = (self.path.clone(), Arc::clone(&self.known));
                let _tried_again = writes.write(&self.path, move || {
                    let content = files::json_of(&path, &*known.borrow())?;
                    files::write_if_changed(&path, &content, FileAccess::mode(0o600))?;
                    Ok(())
                });
            }
            let changed = cancel.run_until_cancelled(pulse.wait(lists.changed()));
            if !matches!(changed.await, Some(Ok(()))) {
                return;
            }
        }
    }

    /// Takes a confirmed list; whether it changed anything.
    pub(crate) fn note(&self, assignments: &BTreeMap<String, Assignment>, now: Timestamp) -> bool {
        self.known.send_if_modified(|known| {
            let before = known.clone();
            known.schema = 1;
            for (id, assignment) in assignments {
                let held = known.instances.entry(id.clone());
                let held = held.or_insert_with(|| HeldInstance::of(assignment, now));
                // A list that lacked it, such as one of a restored store, was not the last word.
                held.until = None;
            }
            for (id, held) in &mut known.instances {
                if held.until.is_none() && !assignments.contains_key(id) {
                    // The clock may have been set back.
                    held.until = Some(now.max(held.since));
                }
            }
            shorten(&mut known.instances);
            *known != before
        })
    }
}

/// Removes the oldest instances that are gone, of a workload with too many. While there are too many
/// in all, the namespace with most loses one of its workload with most; among equals, the oldest one
/// goes. So no namespace makes the machine forget another's, with however many workloads.
fn shorten(instances: &mut BTreeMap<String, HeldInstance>) {
    // By namespace and by the workload's uid.
    let mut gone: BTreeMap<String, BTreeMap<String, BTreeSet<(Timestamp, String)>>> =
        BTreeMap::new();
    for (id, held) in &*instances {
        if let Some(until) = held.until {
            let of_namespace = gone.entry(held.namespace.clone()).or_default();
            let of_workload = of_namespace.entry(held.workload_uid.clone()).or_default();
            of_workload.insert((until, id.clone()));
        }
    }
    let mut count = 0;
    for of_workload in gone.values_mut().flat_map(BTreeMap::values_mut) {
        while of_workload.len() > MOST_OF_A_WORKLOAD {
            let Some((_, id)) = of_workload.pop_first() else {
                break;
            };
            instances.remove(&id);
        }
        count += of_workload.len();
    }
    while count > MOST {
        let of_namespace = gone.values_mut().max_by_key(|workloads| {
            let size: usize = workloads.values().map(BTreeSet::len).sum();
            (size, Reverse(workloads.values().filter_map(oldest).min()))
        });
        let of_workload = of_namespace.and_then(|workloads| {
            let workloads = workloads.values_mut();
            workloads.max_by_key(|workload| (workload.len(), Reverse(oldest(workload))))
        });
        let Some((_, id)) = of_workload.and_then(BTreeSet::pop_first) else {
            return;
        };
        instances.remove(&id);
        count -= 1;
    }
}

/// When the first of these instances went.
fn oldest(gone: &BTreeSet<(Timestamp, String)>) -> Option<Timestamp> {
    gone.first().map(|(until, _)| *until)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn assignment(id: &str, uid: &str) -> Assignment {
        let text = include_str!("../../../tests/render/every-field/assignment.json");
        let assignment: Assignment = serde_json::from_str(text).unwrap();
        Assignment {
            instance: id.to_owned(),
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            workload_uid: uid.to_owned(),
            ..assignment
        }
    }

    fn list(ids: &[(&str, &str)]) -> BTreeMap<String, Assignment> {
        let all = ids.iter();
        all.map(|(id, uid)| ((*id).to_owned(), assignment(id, uid)))
            .collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn history() -> InstanceHistory {
        InstanceHistory::stored("/nonexistent/history.json".into())
    }

    #[test]
    fn an_instance_is_gone_when_a_confirmed_list_lacks_it() {
        let history = history();
        assert!(history.note(&list(&[("web-aaaaa", "u1")]), at(0)));
        assert!(!history.note(&list(&[("web-aaaaa", "u1")]), at(5)));
        assert!(history.gone("shop", "web", "u1").is_empty());
        assert!(history.note(&list(&[]), at(100)));
        assert!(!history.note(&list(&[]), at(200)));
        let gone = history.gone("shop", "web", "u1");
        assert_eq!(gone.len(), 1);
        let (id, held) = &gone[0];
        assert_eq!(id, "web-aaaaa");
        assert_eq!((held.since, held.until), (at(-60), Some(at(100))));
        assert_eq!(held.unit, "kat-shop-web-aaaaa.service");
    }

    /// The attack: a namespace and a workload of the same names, made anew by somebody else.
    #[test]
    fn a_workload_that_was_created_again_does_not_find_what_the_earlier_one_had() {
        let history = history();
        history.note(&list(&[("web-aaaaa", "u1")]), at(0));
        history.note(&list(&[("web-bbbbb", "u2")]), at(10));
        history.note(&list(&[]), at(20));
        let of = |namespace, workload, uid| -> Vec<String> {
            let gone = history.gone(namespace, workload, uid).into_iter();
            gone.map(|(id, _)| id).collect()
        };
        assert_eq!(of("shop", "web", "u1"), ["web-aaaaa"]);
        assert_eq!(of("shop", "web", "u2"), ["web-bbbbb"]);
        for (namespace, workload, uid) in [
            ("shop", "web", ""),
            ("shop", "web", "u3"),
            ("shop", "db", "u1"),
            ("other", "web", "u1"),
        ] {
            assert!(of(namespace, workload, uid).is_empty(), "{workload} {uid}");
        }
    }

    #[test]
    fn a_workload_with_many_restarts_makes_the_machine_forget_its_own_alone() {
        let history = history();
        history.note(&list(&[("db-aaaaa", "db")]), at(0));
        history.note(&list(&[]), at(1));
        for number in 0..MOST_OF_A_WORKLOAD + 5 {
            let id = format!("web-{number:05}");
            let second = i64::try_from(number).unwrap() * 10 + 10;
            history.note(&list(&[(&id, "web")]), at(second));
            history.note(&list(&[]), at(second + 5));
        }
        let gone = history.gone("shop", "web", "web");
        assert_eq!(gone.len(), MOST_OF_A_WORKLOAD);
        assert_eq!(gone[0].0, "web-00005");
        assert_eq!(history.gone("shop", "web", "db").len(), 1);
    }

    #[test]
    fn all_workloads_together_are_bounded_too() {
        let mut instances = BTreeMap::new();
        for number in 0..MOST + 30 {
            let uid = format!("u{}", number % 60);
            let mut held = HeldInstance::of(&assignment("x", &uid), at(0));
            held.until = Some(at(i64::try_from(number).unwrap()));
            instances.insert(format!("web-{number:05}"), held);
        }
        shorten(&mut instances);
        assert_eq!(instances.len(), MOST);
    }

    /// The attack: one namespace with very many workloads, each with few instances.
    #[test]
    fn a_namespace_with_many_workloads_makes_the_machine_forget_its_own_alone() {
        let mut instances = BTreeMap::new();
        let mut add = |id: String, namespace: &str, uid: &str, second: i64| {
            let mut held = HeldInstance::of(&assignment("x", uid), at(0));
            held.namespace = namespace.to_owned();
            held.until = Some(at(second));
            instances.insert(id, held);
        };
        // The victim's are the oldest of all, and of the largest workload.
        for number in 0..10 {
            add(format!("web-{number:05}"), "shop", "web", number);
        }
        for number in 0..450 {
            let uid = format!("loud-{}", number / 2);
            add(format!("loud-{number:05}"), "loud", &uid, 1000 + number);
        }
        shorten(&mut instances);
        assert_eq!(instances.len(), MOST);
        let of_shop = instances.values().filter(|one| one.namespace == "shop");
        assert_eq!(of_shop.count(), 10);
        // Among workloads of the same size the oldest one goes.
        assert!(!instances.contains_key("loud-00000"));
        assert!(instances.contains_key("loud-00449"));
    }

    #[test]
    fn an_instance_that_is_on_a_list_again_is_not_gone() {
        let history = history();
        let there = list(&[("web-aaaaa", "u1")]);
        history.note(&there, at(0));
        history.note(&list(&[]), at(10));
        assert_eq!(history.gone("shop", "web", "u1").len(), 1);
        assert!(history.note(&there, at(20)));
        assert!(history.gone("shop", "web", "u1").is_empty());
        history.note(&list(&[]), at(30));
        let gone = history.gone("shop", "web", "u1");
        assert_eq!((gone[0].1.since, gone[0].1.until), (at(-60), Some(at(30))));
    }

    #[tokio::test]
    async fn the_end_of_an_instance_is_told_even_if_it_is_not_kept() {
        let history = history();
        let ids: Vec<String> = (0..MOST_OF_A_WORKLOAD + 5)
            .map(|number| format!("web-{number:05}"))
            .collect();
        let all: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "u1")).collect();
        history.note(&list(&all), at(0));
        let mut waits: Vec<_> = ids
            .iter()
            .map(|id| Box::pin(history.until_gone(id)))
            .collect();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        history.note(&list(&[]), at(10));
        assert_eq!(history.gone("shop", "web", "u1").len(), MOST_OF_A_WORKLOAD);
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_some());
        }
        // One that was never here has no end here.
        assert!(history.until_gone("db-aaaaa").now_or_never().is_none());
    }

    #[test]
    fn no_instance_ends_before_its_beginning_though_the_clock_was_set_back() {
        let history = history();
        history.note(&list(&[("web-aaaaa", "u1")]), at(0));
        history.note(&list(&[]), at(-3600));
        let gone = history.gone("shop", "web", "u1");
        assert_eq!(gone[0].1.until, Some(gone[0].1.since));
    }

    #[tokio::test]
    async fn what_is_gone_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("instance-history.json");
        let history = InstanceHistory::stored(path.clone());
        history.note(&list(&[("web-aaaaa", "u1")]), at(0));
        let content = files::json_of(&path, &*history.known.borrow()).unwrap();
        std::fs::write(&path, content).unwrap();
        // It went while the agent did not run.
        let next = InstanceHistory::stored(path.clone());
        next.note(&list(&[]), at(50));
        assert_eq!(next.gone("shop", "web", "u1").len(), 1);
        std::fs::write(&path, "{").unwrap();
        let anew = InstanceHistory::stored(path);
        assert!(anew.gone("shop", "web", "u1").is_empty());
    }
}
