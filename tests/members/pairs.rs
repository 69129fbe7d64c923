//! From one member to three, from three to five and back to one: how long etcd has an even number of
//! voting members, of which it can lose no more than of one less.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cluster::{
    Cluster, LIMIT, Machine, Waiting, members, name, number, reports_of_preparing, until, well,
};
use kat_store::{EtcdStore, StateStore, TransactionResult, etcd_admin};
use kat_types::store::{keys, transaction::WriteOperation};

/// `RestartSec=` of kat-etcd.service.
const RESTART: Duration = Duration::from_secs(1);
/// Longest time for which etcd may have an even number of voting members.
const LONGEST: Duration = Duration::from_secs(1);

/// The numbers of voting members that etcd had, and for how long each.
struct VoterLog {
    counts: JoinHandle<Vec<(usize, Duration)>>,
    end: CancellationToken,
}

impl VoterLog {
    fn of(store: &EtcdStore) -> Self {
        let (store, end) = (store.clone(), CancellationToken::new());
        let until = end.clone();
        let counts = tokio::spawn(async move {
            let mut counts: Vec<(usize, Duration)> = Vec::new();
            let mut since = Instant::now();
            while !until.is_cancelled() {
                if let Some(voters) = voters(&store).await {
                    match counts.last_mut() {
                        Some((count, took)) if *count == voters => *took = since.elapsed(),
                        last => {
                            // The number may have changed directly after the previous look.
                            if let Some((_, took)) = last {
                                *took = since.elapsed();
                            }
                            since = Instant::now();
                            counts.push((voters, Duration::ZERO));
                        }
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            counts
        });
        Self { counts, end }
    }

    /// Asserts that no even number was there for longer than a moment.
    async fn assert_moments(self) {
        self.end.cancel();
        let counts = self.counts.await.expect("a log");
        println!("voting members, and for how long: {counts:?}");
        for (count, took) in &counts {
            assert!(
                count % 2 == 1 || *took < LONGEST,
                "{count} voting members for {took:?}: {counts:?}"
            );
        }
    }
}

/// Machines that follow the member list as agents do: one that is listed starts its etcd, and one
/// that prepares starts an etcd that systemd starts again until it is a member.
struct Agents<'a> {
    cluster: &'a Cluster,
    waiting: Waiting,
    machines: Vec<Machine>,
    /// A machine whose power was cut.
    lost: Option<u8>,
}

impl<'a> Agents<'a> {
    fn new(cluster: &'a Cluster, first: Machine, waiting: &Waiting) -> Self {
        Self {
            cluster,
            waiting: Arc::clone(waiting),
            machines: vec![first],
            lost: None,
        }
    }

    /// Reads the member list once, and does what it says.
    async fn look(&mut self) {
        let Some(now) = members(&self.machines[0].store).await else {
            return;
        };
        let numbers = |names: &mut dyn Iterator<Item = &String>| -> BTreeSet<u8> {
            names.map(|one| number(one)).collect()
        };
        let listed = numbers(&mut now.members.keys());
        let next = numbers(&mut now.next.iter());
        // As `ClusterCache::initial_cluster`.
        let with = |own: u8| -> Vec<u8> {
            let mut all = listed.clone();
            all.insert(own);
            all.into_iter().collect()
        };
        for new in listed.union(&next).copied() {
            if !self.machines.iter().any(|one| one.number == new) {
                let machine = self.cluster.machine(new, &with(new), "existing").await;
                self.machines.push(machine);
            }
        }
        self.waiting.lock().clone_from(&next);
        for machine in &mut self.machines {
            let ended = matches!(machine.etcd.try_wait(), Ok(Some(_)));
            if ended && Some(machine.number) != self.lost {
                let members = with(machine.number);
                machine.etcd = self.cluster.etcd(machine.number, &members, "existing");
            }
        }
    }

    async fn follow(&mut self, count: usize) {
        let store = self.machines[0].store.clone();
        let deadline = Instant::now() + LIMIT;
        while well(&store).await != Some(count) {
            assert!(Instant::now() < deadline, "{:?}", members(&store).await);
            self.look().await;
            tokio::time::sleep(RESTART).await;
        }
    }
}

async fn voters(store: &EtcdStore) -> Option<usize> {
    let listed = etcd_admin::member_list(store).await.ok()?;
    Some(listed.iter().filter(|one| !one.is_learner).count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_members_get_their_votes_in_the_same_moment_and_two_lose_them_so() {
    let cluster = Cluster {
        machines: 5,
        ..Cluster::new()
    };
    let waiting = Waiting::default();
    let first = cluster.first().await;
    let store = first.store.clone();
    let reports = reports_of_preparing(first.handle(), 5, &waiting);
    let mut agents = Agents::new(&cluster, first, &waiting);
    let log = VoterLog::of(&store);
    let begun = Instant::now();
    agents.follow(5).await;
    println!("five members after {:?}", begun.elapsed());
    log.assert_moments().await;

    // Back to one: the others are not to hold etcd any more.
    let leadership = agents.machines[0].handle().leadership.borrow().clone();
    let fence = leadership.expect("n1 leads").fence();
    let log = VoterLog::of(&store);
    let mut writes = Vec::new();
    for number in 2..=5 {
        let key = keys::registration(&name(number));
        let entry = store.get(&key).await.expect("read").expect("there");
        let mut registration: serde_json::Value =
            serde_json::from_slice(&entry.value).expect("an object");
        registration["noEtcd"] = true.into();
        let value = serde_json::to_vec(&registration).expect("plain data");
        writes.push(WriteOperation::Put(key, value));
    }
    let written = store.transact(&[fence], &writes).await;
    assert!(
        matches!(written, Ok(TransactionResult::Yes(_))),
        "{written:?}"
    );
    until("one member is left", async || {
        let listed = etcd_admin::member_list(&store).await.ok()?;
        (listed.len() == 1).then_some(())
    })
    .await;
    log.assert_moments().await;
    reports.abort();
}

/// What the moment is for: a plug that is pulled directly after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_first_two_members_one_may_be_lost_directly_after_the_votes() {
    let cluster = Cluster::new();
    let waiting = Waiting::default();
    let first = cluster.first().await;
    let store = first.store.clone();
    let reports = reports_of_preparing(first.handle(), 3, &waiting);
    let mut agents = Agents::new(&cluster, first, &waiting);
    let begun = Instant::now();
    let pid = loop {
        assert!(begun.elapsed() < LIMIT, "{:?}", members(&store).await);
        agents.look().await;
        let second = agents.machines.iter().find(|one| one.number == 2);
        match second {
            Some(second) => break Pid::from_raw(second.etcd.id().cast_signed()),
            None => tokio::time::sleep(RESTART).await,
        }
    };
    agents.lost = Some(2);
    let watched = store.clone();
    let plug = tokio::spawn(async move {
        while voters(&watched).await != Some(3) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let third = members(&watched).await;
        let _ = kill(pid, Signal::SIGKILL);
        (Instant::now(), third)
    });
    while !plug.is_finished() {
        assert!(begun.elapsed() < LIMIT, "{:?}", members(&store).await);
        agents.look().await;
        tokio::time::sleep(RESTART).await;
    }
    let (pulled, listed) = plug.await.expect("the plug");
    println!("the plug was pulled at {listed:?}");
    // The third etcd starts by itself: systemd starts it again until it is a member.
    let all = [1, 2, 3];
    let third = agents.machines.iter_mut().find(|one| one.number == 3);
    let third = third.expect("it prepared");
    if matches!(third.etcd.try_wait(), Ok(Some(_))) {
        third.etcd = cluster.etcd(3, &all, "existing");
    }
    until("the other two write", async || {
        let leadership = agents.machines[0].handle().leadership.borrow().clone()?;
        let write = [WriteOperation::Put("/kat/test".to_owned(), b"1".to_vec())];
        let written = store.transact(&[leadership.fence()], &write).await;
        matches!(written, Ok(TransactionResult::Yes(_))).then_some(())
    })
    .await;
    println!("written {:?} after the plug was pulled", pulled.elapsed());
    reports.abort();
}
