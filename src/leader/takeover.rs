//! Takes the leadership over from a machine that is gone, before its lease expires.
//!
//! A lease outlives its machine by seconds, and a new leader of raft renews every lease to its full
//! time. So a candidate knocks at the leader's API port, that is, opens a TCP connection. If no
//! connection succeeds for a while, and this machine's own etcd leads raft, the candidate deletes
//! the leader's election key: from then on the old leader's fence fails, wherever it is, and the
//! next candidate leads. Leading raft means that most members are connected to this machine, so two
//! machines that only can't reach each other do not depose each other in turn.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    net::TcpStream,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{EtcdMembers, LeaderHandle};
use kat_plan::Snapshot;
use kat_store::{StoreError, TransactionResult};
use kat_types::{
    machine::network::node_address,
    store::{
        snapshot::ElectionCandidate,
        transaction::{Compare, WriteOperation},
    },
};

/// Time between two knocks; a knock does not wait for the one before.
const INTERVAL: Duration = Duration::from_millis(300);
/// Longest wait for the answer to a knock. A lost first packet is sent again after 1 s.
const KNOCK_LIMIT: Duration = Duration::from_millis(1300);
/// A leader that answers no knock for this long is gone.
const GONE_AFTER: Duration = Duration::from_millis(1800);

/// Settings of a candidate.
#[derive(Clone)]
pub struct TakeoverConfig {
    /// Name of this machine.
    pub node: String,
    /// Port of the API, on every machine.
    pub api_port: u16,
    /// URL of this machine's etcd.
    pub own_url: String,
    pub etcd: Arc<dyn EtcdMembers>,
}

/// Watches whichever machine leads, until `cancel`.
pub async fn watch_over(handle: LeaderHandle, config: TakeoverConfig, cancel: CancellationToken) {
    let work = async {
        let mut silence: Option<LeaderSilence> = None;
        let mut knocks = FuturesUnordered::new();
        let mut rounds = interval(INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_round = Instant::now();
        let (mut snapshots, mut leaderships) = (handle.snapshot.clone(), handle.leadership.clone());
        loop {
            tokio::select! {
                biased;
                Some(opened) = knocks.next() => {
                    if let (Some(silence), Some(answered)) = (&mut silence, opened) {
                        silence.ends(answered);
                    }
                    continue;
                }
                _ = rounds.tick() => {}
            }
            let now = Instant::now();
            // A process that was held up itself knows nothing of that time.
            if now.duration_since(last_round) > GONE_AFTER / 2 {
                silence = None;
            }
            last_round = now;
            let snapshot = snapshots.borrow_and_update().clone();
            let leads = leaderships.borrow_and_update().is_some();
            let leader = snapshot
                .as_deref()
                .and_then(|one| other_leader(one, &config));
            let Some((standing, address)) = leader.filter(|_| !leads) else {
                silence = None;
                knocks.clear();
                // There is nobody to watch until one of these changes.
                tokio::select! {
                    Ok(()) = snapshots.changed() => {}
                    Ok(()) = leaderships.changed() => {}
                    else => return,
                }
                rounds.reset_immediately();
                last_round = Instant::now();
                continue;
            };
            let since = match &silence {
                Some(silence) if silence.key == standing.key => silence.since,
                _ => {
                    knocks.clear();
                    silence = Some(LeaderSilence {
                        key: standing.key.clone(),
                        since: now,
                    });
                    now
                }
            };
            knocks.push(knock(address, now));
            if now.duration_since(since) < GONE_AFTER {
                continue;
            }
            match depose(&handle, &config, &standing).await {
                Ok(true) => {
                    tracing::warn!(
                        leader = standing.candidate,
                        "the leader is gone; its place is free"
                    );
                    silence = None;
                }
                Ok(false) => {}
                Err(error) => tracing::debug!("the leader does not answer: {error:#}"),
            }
            // The wait for etcd above does not count as being held up.
            last_round = Instant::now();
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// The first candidate in the election, if it is another machine, and its API's address on the
/// overlay.
fn other_leader(
    snapshot: &Snapshot,
    config: &TakeoverConfig,
) -> Option<(ElectionCandidate, SocketAddr)> {
    let first = snapshot.election.first()?;
    if first.candidate == config.node {
        return None;
    }
    let address = node_address(snapshot.nodes.get(&first.candidate)?.subnet?);
    Some((first.clone(), SocketAddr::from((address, config.api_port))))
}

/// Time for which a leader has answered no knock.
struct LeaderSilence {
    /// The leader's election key.
    key: String,
    since: Instant,
}

impl LeaderSilence {
    /// Counts an answered knock, which was sent at `answered`.
    fn ends(&mut self, answered: Instant) {
        self.since = self.since.max(answered);
    }
}

/// Opens a connection; returns `now`, the time of the knock, if that succeeds.
async fn knock(address: SocketAddr, now: Instant) -> Option<Instant> {
    let connecting = TcpStream::connect(address);
    matches!(timeout(KNOCK_LIMIT, connecting).await, Ok(Ok(_))).then_some(now)
}

/// Deletes the leader's election key if this machine's etcd leads raft.
async fn depose(
    handle: &LeaderHandle,
    config: &TakeoverConfig,
    standing: &ElectionCandidate,
) -> Result<bool, StoreError> {
    let status = config.etcd.status(&config.own_url).await?;
    if status.leader == 0 || status.leader != status.member {
        return Ok(false);
    }
    let same = Compare::CreateRevision(standing.key.clone(), standing.create_revision);
    let delete = WriteOperation::Delete(standing.key.clone());
    let committed = handle.store.transact(&[same], &[delete]).await?;
    Ok(matches!(committed, TransactionResult::Yes(_)))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use async_trait::async_trait;
    use jiff::Timestamp;
    use tokio::sync::watch;

    use super::*;
    use crate::{AgentReports, PlanningHealth, StoreHealth};
    use kat_store::{
        StateStore,
        etcd_admin::{EtcdMember, EtcdStatus},
    };
    use kat_testing::MemoryStore;
    use kat_types::{
        assignment::DesiredMeta,
        store::{
            keys,
            records::NodeRegistration,
            revisions::Stored,
            snapshot::{NodeEntry, StoredState},
        },
    };

    /// An etcd that only reports raft's leader.
    struct Raft {
        leader: u64,
    }

    #[async_trait]
    impl EtcdMembers for Raft {
        async fn list(&self) -> Result<Vec<EtcdMember>, StoreError> {
            Ok(Vec::new())
        }

        async fn status(&self, _: &str) -> Result<EtcdStatus, StoreError> {
            Ok(EtcdStatus {
                version: String::new(),
                db_size: 0,
                db_size_in_use: 0,
                member: 2,
                leader: self.leader,
                raft_term: 1,
                errors: Vec::new(),
                revision: 1,
                quota: 0,
            })
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

    /// The machine `n1`, with a subnet on loopback.
    fn machine() -> NodeEntry {
        let registration = NodeRegistration {
            etcd: true,
            ..NodeRegistration::new("", Timestamp::UNIX_EPOCH)
        };
        fn stored<T>(value: T) -> Stored<T> {
            Stored { revision: 1, value }
        }
        NodeEntry {
            registration: stored(registration),
            status: None,
            subnet: Some("127.78.1.0/24".parse().unwrap()),
            public_key: None,
            endpoints: Vec::new(),
            reach: Default::default(),
            desired: stored(DesiredMeta::default()),
        }
    }

    /// Whether n1 is still a candidate after n2 has watched it for a while.
    async fn leads_on(port: u16, raft_leader: u64) -> bool {
        let store = MemoryStore::new();
        let lease = Duration::from_secs(60);
        let led = store.campaign("n1", lease).await.unwrap();
        let snapshot = Snapshot::from(StoredState {
            nodes: BTreeMap::from([("n1".to_owned(), machine())]),
            election: vec![ElectionCandidate {
                key: led.key.clone(),
                create_revision: led.create_revision,
                candidate: "n1".to_owned(),
            }],
            ..StoredState::default()
        });
        let (_snapshots, snapshot) = watch::channel(Some(Arc::new(snapshot)));
        let (_leaderships, leadership) = watch::channel(None);
        let handle = LeaderHandle {
            store: Arc::new(store.clone()),
            snapshot,
            shown: None,
            leadership,
            reports: AgentReports::default(),
            store_health: StoreHealth::default(),
            planning: PlanningHealth::default(),
            feed: None,
        };
        let config = TakeoverConfig {
            node: "n2".to_owned(),
            api_port: port,
            own_url: String::new(),
            etcd: Arc::new(Raft {
                leader: raft_leader,
            }),
        };
        let watched = watch_over(handle, config, CancellationToken::new());
        let _ = timeout(2 * GONE_AFTER + KNOCK_LIMIT, watched).await;
        let left = store.list(keys::ELECTION).await.unwrap().items;
        left.iter().any(|item| item.key == led.key)
    }

    #[tokio::test]
    async fn only_a_leader_that_is_gone_is_deposed_and_only_where_raft_is_led() {
        let open = tokio::net::TcpListener::bind("127.78.1.1:0").await.unwrap();
        let closed = tokio::net::TcpListener::bind("127.78.1.1:0").await.unwrap();
        let port = |listener: &tokio::net::TcpListener| listener.local_addr().unwrap().port();
        let (open_port, closed_port) = (port(&open), port(&closed));
        drop(closed);
        let (answers, elsewhere, nobody, gone) = tokio::join!(
            leads_on(open_port, 2),
            leads_on(closed_port, 1),
            leads_on(closed_port, 0),
            leads_on(closed_port, 2),
        );
        assert!(answers, "it answers");
        assert!(elsewhere, "raft is led elsewhere");
        assert!(nobody, "nobody leads raft");
        assert!(!gone, "nothing answers, and raft is led here");
    }
}
