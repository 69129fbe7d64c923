//! Rounds of store upkeep over virtual hours, with members that can refuse a step.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use tokio::{sync::watch, time::sleep};

use super::*;
use crate::{AgentReports, EtcdMembers};
use kat_daemon::watchdog::LoopPulses;
use kat_plan::{SeenMember, StoreAlarms};
use kat_store::{
    StateStore,
    etcd_admin::{EtcdMember, EtcdStatus},
};
use kat_testing::MemoryStore;
use kat_types::store::keys;

const RETRY: Duration = Duration::from_secs(60);

/// Members that defragment their files, or refuse.
#[derive(Default)]
struct Members {
    /// The time and the member of each attempt.
    tried: Mutex<Vec<(Instant, String)>>,
    /// Whether the first member refuses.
    refuses: AtomicBool,
    /// Whether the alarm was disarmed.
    disarmed: AtomicBool,
    /// A store that refuses the next write after a defragmentation.
    breaks: Mutex<Option<MemoryStore>>,
}

impl Members {
    fn tried(&self) -> Vec<(Instant, String)> {
        std::mem::take(&mut *self.tried.lock())
    }
}

#[async_trait]
impl EtcdUpkeep for Members {
    async fn alarms(&self) -> Result<Vec<EtcdAlarm>, StoreError> {
        Ok(Vec::new())
    }

    async fn disarm(&self, _: u64) -> Result<(), StoreError> {
        self.disarmed.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn compact(&self, _: &str, _: i64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn defragment(&self, url: &str) -> Result<(), StoreError> {
        let tried = (Instant::now(), url.to_owned());
        self.tried.lock().push(tried);
        if let Some(store) = self.breaks.lock().take() {
            store.refuse_calls(1);
        }
        match url == "n1" && self.refuses.load(Ordering::Relaxed) {
            true => Err(StoreError::Unavailable("no space left".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl EtcdMembers for Members {
    async fn list(&self) -> Result<Vec<EtcdMember>, StoreError> {
        Ok(Vec::new())
    }

    async fn status(&self, _: &str) -> Result<EtcdStatus, StoreError> {
        Err(StoreError::Unavailable("it is not asked".into()))
    }

    async fn add_user(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn add_voting(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn add(&self, _: &str, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn promote(&self, _: &str, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn remove(&self, _: u64, _: Option<&str>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn remove_readers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn set_users(&self, _: &BTreeSet<String>) -> Result<(), StoreError> {
        Ok(())
    }

    async fn move_raft(&self, _: &str, _: u64) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Keeper {
    members: Arc<Members>,
    handle: LeaderHandle,
    config: MembersConfig,
    upkeep: Upkeep,
    alarms: StoreAlarms,
}

impl Keeper {
    fn new() -> Self {
        let members = Arc::new(Members::default());
        let (_, snapshot) = watch::channel(None);
        let (_, leadership) = watch::channel(None);
        Self {
            handle: LeaderHandle {
                store: Arc::new(MemoryStore::new()),
                snapshot,
                shown: None,
                leadership,
                reports: AgentReports::default(),
                store_health: StoreHealth::default(),
                planning: crate::PlanningHealth::default(),
                feed: None,
            },
            config: MembersConfig {
                node: "n3".to_owned(),
                client_port: 2379,
                peer_port: 2380,
                clock: Arc::new(Timestamp::now),
                etcd: Arc::clone(&members) as _,
                upkeep: Arc::clone(&members) as _,
                quota: 2 << 30,
                retry: RETRY,
                pulses: LoopPulses::default(),
            },
            members,
            upkeep: Upkeep::default(),
            alarms: StoreAlarms::default(),
        }
    }

    /// Runs a round each second for this time. The files have these sizes in MiB, of which 100 MiB
    /// are in use.
    async fn rounds(&mut self, time: Duration, files: [u64; 3]) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let mut look = observation_of(files);
            look.alarms.clone_from(&self.alarms);
            let (handle, config) = (&self.handle, &self.config);
            let _ = self.upkeep.round(handle, config, None, &look).await;
            sleep(Duration::from_secs(1)).await;
        }
    }
}

fn observation_of(files: [u64; 3]) -> EtcdObservation {
    let seen = [1, 2, 3]
        .into_iter()
        .zip(files)
        .map(|(id, file)| SeenMember {
            id,
            node: Some(format!("n{id}")),
            voting: true,
            healthy: true,
            store: Some(SeenStore {
                file: file << 20,
                used: 100 << 20,
                quota: 0,
            }),
            ..SeenMember::default()
        });
    EtcdObservation {
        seen: seen.collect(),
        raft_leader: 3,
        revision: 100,
        alarms: StoreAlarms::default(),
        urls: [1, 2, 3].map(|id| (id, format!("n{id}"))).into(),
        versions: [1, 2, 3]
            .map(|id| (format!("n{id}"), "3.5.16".to_owned()))
            .into(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_report_names_the_version_of_each_member() {
    let mut keeper = Keeper::new();
    keeper.rounds(Duration::from_secs(1), [100; 3]).await;
    let report = keeper.handle.store_health.report().expect("a report");
    let versions: Vec<_> = report.versions.into_iter().collect();
    let expected = ["n1", "n2", "n3"].map(|node| (node.to_owned(), "3.5.16".to_owned()));
    assert_eq!(versions, expected);
}

/// During each attempt the member does not answer.
#[tokio::test(start_paused = true)]
async fn a_file_that_can_not_be_made_smaller_is_tried_less_and_less() {
    let mut keeper = Keeper::new();
    keeper.members.refuses.store(true, Ordering::Relaxed);
    let hour = Duration::from_secs(3600);
    keeper.rounds(5 * hour, [1000, 100, 100]).await;
    let tried = keeper.members.tried();
    let pauses: Vec<u64> = tried
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0).as_secs() / 60)
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    // The delay applies to this member only, and ends with a success.
    keeper.rounds(RETRY / 2, [1000, 1000, 100]).await;
    let tried = keeper.members.tried();
    assert!(
        tried.len() > 1 && tried.iter().all(|(_, url)| url == "n2"),
        "{tried:?}"
    );
    keeper.members.refuses.store(false, Ordering::Relaxed);
    keeper.rounds(hour + RETRY, [1000, 100, 100]).await;
    assert!(keeper.members.tried().len() > 1);
    keeper.members.refuses.store(true, Ordering::Relaxed);
    keeper.rounds(2 * RETRY, [1000, 100, 100]).await;
    assert_eq!(keeper.members.tried().len(), 2, "from a minute on again");
}

/// Failures delay retries in an urgent round too, and a successful step is repeated only after the
/// retry interval.
#[tokio::test(start_paused = true)]
async fn a_store_that_presses_forgets_no_failure() {
    let mut keeper = Keeper::new();
    keeper.members.refuses.store(true, Ordering::Relaxed);
    keeper.rounds(8 * RETRY, [1900, 100, 100]).await;
    assert_eq!(keeper.members.tried().len(), 4, "after 1, 2 and 4 minutes");
}

/// The success of a step counts for as long as the member's file is small, even if the retry
/// interval is over.
#[tokio::test(start_paused = true)]
async fn steps_that_take_longer_than_what_is_kept_of_them_come_to_an_end() {
    let mut keeper = Keeper::new();
    keeper.config.retry = Duration::from_secs(2);
    keeper.alarms.full.insert(1);
    keeper
        .rounds(Duration::from_secs(5), [1000, 1000, 100])
        .await;
    let tried = keeper.members.tried();
    let tried: Vec<_> = tried.iter().map(|(_, url)| url.as_str()).collect();
    assert_eq!(tried, ["n1", "n2"]);
    assert!(keeper.members.disarmed.load(Ordering::Relaxed));
}

/// A step may prevent the write of its event, for example when it moves raft's leader.
#[tokio::test(start_paused = true)]
async fn an_event_that_the_store_does_not_take_is_written_in_the_next_round() {
    let mut keeper = Keeper::new();
    let store = MemoryStore::new();
    keeper.handle.store = Arc::new(store.clone());
    let (_snapshot, seen) = watch::channel(Some(Arc::new(Snapshot::default())));
    keeper.handle.snapshot = seen;
    let lease = Duration::from_secs(5);
    let leadership = store.campaign("n3", lease).await.expect("it leads");
    *keeper.members.breaks.lock() = Some(store.clone());
    let (handle, config) = (&keeper.handle, &keeper.config);
    let larger = observation_of([1000, 100, 100]);
    let round = keeper
        .upkeep
        .round(handle, config, Some(&leadership), &larger);
    assert!(round.await.is_err());
    assert_eq!(keeper.members.tried().len(), 1);
    assert!(store.peek(keys::EVENTS).items.is_empty());
    let small = observation_of([100; 3]);
    let round = keeper
        .upkeep
        .round(handle, config, Some(&leadership), &small);
    assert!(!round.await.expect("a round"));
    let told = store.peek(keys::EVENTS).items;
    assert_eq!(told.len(), 1);
    let told = String::from_utf8_lossy(&told[0].value).into_owned();
    assert!(told.contains("StoreDefragmented"), "{told}");
}
