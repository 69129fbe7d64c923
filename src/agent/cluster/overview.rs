//! The cluster's overview on a machine without the store. The agent reads it by itself with this
//! machine's certificate from the machines that hold the store, and only when a local user asks:
//! no call of a user is passed on with that certificate.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    cluster_cache::{ClusterCache, ClusterCacheReceiver},
    identity::MachineIdentity,
    keys::MachineKeys,
    state_stream::{addresses, first_reachable, member_config},
};
use crate::{
    local_api::standalone::LocalSnapshots, reporter::LeaderSilence, service::blocking::may_block,
};
use kat_api::OverviewRelay;
use kat_client::{Client, ClientOptions};
use kat_pki as pki;
use kat_types::{
    api::{ApiTime, AskedServer, ClusterOverview, OverviewRelayState},
    encoding::digest::sha256_u64,
};

/// Shortest time between two reads.
const INTERVAL: Duration = Duration::from_secs(5);
/// Head start of a server before the next one is asked as well.
const HEAD_START: Duration = Duration::from_millis(300);
/// Longest time of a read, whoever answers.
const LIMIT: Duration = Duration::from_secs(3);
/// Longest error of a server that is kept, characters.
const MAX_ERROR: usize = 200;

/// The machines that hold the store, as this machine asks them.
#[async_trait]
pub(crate) trait OverviewSource: Send + Sync + 'static {
    /// The machines in the order in which they are asked.
    fn servers(&self) -> Vec<AskedServer>;

    /// Reads the overview of one of them.
    ///
    /// # Errors
    /// Why it gave none, for users.
    async fn ask(&self, server: &str) -> Result<ClusterOverview, String>;
}

/// Asks over TLS, with this machine's certificate.
pub(crate) struct StoreMembers {
    pub identity: Arc<MachineIdentity>,
    /// Read from the disk for each call, since the certificate is renewed.
    pub keys: MachineKeys,
    pub known: ClusterCacheReceiver,
}

#[async_trait]
impl OverviewSource for StoreMembers {
    fn servers(&self) -> Vec<AskedServer> {
        servers(&self.known.borrow(), &self.identity)
    }

    async fn ask(&self, server: &str) -> Result<ClusterOverview, String> {
        let known = self.known.borrow().clone();
        let port = self.identity.cluster.spec.api_port;
        let machine = known.endpoints.machines.get(server);
        let addresses = machine.map(|machine| addresses(machine, port));
        let reached = first_reachable(&addresses.unwrap_or_default()).await;
        let endpoint = reached.map_err(|error| error.to_string())?;
        let config = may_block(async { member_config(&self.identity, &self.keys, &known) }).await;
        let config = config.map_err(|error| error.to_string())?;
        let options = ClientOptions {
            connect_timeout: LIMIT,
            request_timeout: LIMIT,
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..ClientOptions::default()
        };
        // By this name a member passes the connection on to the leader, and answers by itself where
        // it reaches none.
        let name = pki::cluster_name(&self.identity.cluster_uid);
        let client = Client::of_state_server(&endpoint, &name, config, options);
        let client = client.map_err(|error| error.to_string())?;
        client
            .overview()
            .await
            .map_err(|error| match error.status() {
                Some(404) => "its version of KAT has no overview".to_owned(),
                Some(401) => {
                    "it does not know this machine any more (`sudo kat-agent reset`)".to_owned()
                }
                _ => error.to_string(),
            })
    }
}

/// The machines that hold the store: the leader first, then from one that depends on this machine's
/// name, so that machines spread over them.
fn servers(known: &ClusterCache, identity: &MachineIdentity) -> Vec<AskedServer> {
    let machines = known.endpoints.machines.iter();
    let mut members: Vec<_> = machines
        .filter(|(name, machine)| machine.etcd && **name != identity.node)
        .collect();
    let count = u64::try_from(members.len()).unwrap_or_default();
    if let Some(turn) = sha256_u64(identity.node.as_bytes()).checked_rem(count) {
        members.rotate_left(usize::try_from(turn).unwrap_or_default());
    }
    members.sort_by_key(|(name, _)| Some(*name) != known.leader_name.as_ref());
    let port = identity.cluster.spec.api_port;
    let asked = members.into_iter().map(|(name, machine)| AskedServer {
        name: name.clone(),
        endpoints: match (machine.api.is_empty(), machine.overlay) {
            (true, Some(overlay)) => vec![SocketAddr::from((overlay, port)).to_string()],
            _ => machine.api.clone(),
        },
        error: String::new(),
    });
    asked.collect()
}

/// Asks the machines, each with a head start before the next. The first answer of a machine that
/// reaches a leader counts, else any.
async fn ask_in_turn(source: &dyn OverviewSource) -> (Vec<AskedServer>, Option<ClusterOverview>) {
    let mut servers = source.servers();
    let names: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
    let calls = names
        .into_iter()
        .zip(0_u32..)
        .map(|(name, before)| async move {
            sleep(HEAD_START.saturating_mul(before)).await;
            let answer = source.ask(&name).await;
            (name, answer)
        });
    let mut calls: FuturesUnordered<_> = calls.collect();
    let mut silent: Vec<String> = servers.iter().map(|server| server.name.clone()).collect();
    let mut errors = Vec::new();
    let mut without_leader = None;
    let limit = sleep(LIMIT);
    let mut limit = std::pin::pin!(limit);
    loop {
        let answered = tokio::select! {
            biased;
            answered = calls.next() => answered,
            () = limit.as_mut() => None,
        };
        let Some((name, answer)) = answered else {
            break;
        };
        silent.retain(|one| *one != name);
        match answer {
            Ok(overview) if !overview.stale => return (servers, Some(overview)),
            Ok(overview) => without_leader = without_leader.or(Some(overview)),
            Err(error) => errors.push((name, error.chars().take(MAX_ERROR).collect())),
        }
    }
    let unheard = format!("no answer within {} s", LIMIT.as_secs());
    errors.extend(silent.into_iter().map(|name| (name, unheard.clone())));
    for server in &mut servers {
        let error = errors.iter().find(|(name, _)| *name == server.name);
        server.error = error.map(|(_, error)| error.clone()).unwrap_or_default();
    }
    (servers, without_leader)
}

/// Keeps the last overview, and reads it again when it is asked for, every 5 s at most.
pub(crate) struct OverviewReader {
    node: String,
    source: Arc<dyn OverviewSource>,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Since when no leader takes this machine's reports.
    silence: watch::Receiver<Option<LeaderSilence>>,
    /// What local users see.
    shown: Arc<LocalSnapshots>,
    kept: Mutex<ClusterOverview>,
    /// The end of the last read; one read at a time.
    turn: tokio::sync::Mutex<Option<Instant>>,
    followers: Arc<watch::Sender<usize>>,
}

impl OverviewReader {
    pub(crate) fn new(
        node: &str,
        source: Arc<dyn OverviewSource>,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
        silence: watch::Receiver<Option<LeaderSilence>>,
        shown: Arc<LocalSnapshots>,
    ) -> Arc<Self> {
        Arc::new(Self {
            node: node.to_owned(),
            source,
            clock,
            silence,
            shown,
            kept: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            followers: Arc::new(watch::Sender::new(0)),
        })
    }

    /// Reads the overview every 5 s while somebody follows it, until `cancel`.
    pub(crate) async fn run(self: Arc<Self>, cancel: CancellationToken) {
        let mut followers = self.followers.subscribe();
        let reading = async {
            while followers.wait_for(|count| *count > 0).await.is_ok() {
                self.read().await;
                sleep(INTERVAL).await;
            }
        };
        cancel.run_until_cancelled(reading).await;
        // This task only ends with the agent.
        cancel.cancelled().await;
    }

    /// The overview after a read.
    fn keep(
        &self,
        asked: Vec<AskedServer>,
        answer: Option<ClusterOverview>,
        now: Timestamp,
    ) -> ClusterOverview {
        let mut kept = self.kept.lock();
        let before = kept.relay.take().unwrap_or_default();
        let mut relay = OverviewRelayState {
            node: self.node.clone(),
            asked,
            ..before
        };
        match answer {
            Some(overview) => {
                *kept = overview;
                relay.as_of = Some(now.into());
                relay.silent_since = None;
            }
            None => {
                relay.silent_since = relay
                    .silent_since
                    .or_else(|| Some(self.first_silence(relay.as_of, now)));
            }
        }
        kept.relay = Some(relay);
        kept.clone()
    }

    /// When the silence began: this machine's reports may have found nobody before this read did.
    fn first_silence(&self, as_of: Option<ApiTime>, now: Timestamp) -> ApiTime {
        let silence = self.silence.borrow();
        let reported = silence
            .as_ref()
            .map_or(now, |silence| silence.since.min(now));
        let answered = as_of.and_then(ApiTime::get);
        answered
            .map_or(reported, |answered| reported.max(answered))
            .into()
    }
}

#[async_trait]
impl OverviewRelay for OverviewReader {
    async fn read(&self) -> ClusterOverview {
        let mut turn = self.turn.lock().await;
        if turn.is_some_and(|ended| ended.elapsed() < INTERVAL) {
            return self.kept.lock().clone();
        }
        // A caller that hangs up ends this read: the next one waits as if it had ended by itself.
        *turn = Some(Instant::now());
        let (asked, answer) = ask_in_turn(&*self.source).await;
        let overview = self.keep(asked, answer, (self.clock)());
        self.shown.show_overview(&overview);
        *turn = Some(Instant::now());
        overview
    }

    fn follow(&self) -> Box<dyn Send + Sync> {
        self.followers
            .send_modify(|count| *count = count.saturating_add(1));
        Box::new(Follower(Arc::clone(&self.followers)))
    }
}

/// Counts as a follower until it is dropped.
struct Follower(Arc<watch::Sender<usize>>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use kat_types::api::{MachineEndpoints, NodePhase, OverviewNode};

    /// Machines with their answers; one without an answer never gives one.
    #[derive(Default)]
    struct Scripted {
        answers: Mutex<BTreeMap<String, Result<ClusterOverview, String>>>,
        calls: Mutex<Vec<String>>,
    }

    impl Scripted {
        fn say(&self, name: &str, answer: Result<ClusterOverview, &str>) {
            let answer = answer.map_err(str::to_owned);
            self.answers.lock().insert(name.to_owned(), answer);
        }

        fn took(&self) -> usize {
            std::mem::take(&mut *self.calls.lock()).len()
        }
    }

    #[async_trait]
    impl OverviewSource for Scripted {
        fn servers(&self) -> Vec<AskedServer> {
            let server = |name: &str, endpoint: &str| AskedServer {
                name: name.to_owned(),
                endpoints: vec![endpoint.to_owned()],
                error: String::new(),
            };
            vec![
                server("n1", "192.0.2.1:9115"),
                server("n2", "192.0.2.2:9115"),
            ]
        }

        async fn ask(&self, server: &str) -> Result<ClusterOverview, String> {
            self.calls.lock().push(server.to_owned());
            let answer = self.answers.lock().get(server).cloned();
            match answer {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    }

    fn overview(stale: bool) -> ClusterOverview {
        let node = |name: &str| OverviewNode {
            name: name.to_owned(),
            phase: NodePhase::Ready,
            ..OverviewNode::default()
        };
        ClusterOverview {
            cluster: "home".to_owned(),
            leader: (!stale).then(|| "n1".to_owned()),
            stale,
            nodes: vec![node("n1"), node("n2"), node("n4")],
            ..ClusterOverview::default()
        }
    }

    struct Scene {
        source: Arc<Scripted>,
        reader: Arc<OverviewReader>,
        silence: watch::Sender<Option<LeaderSilence>>,
        time: Arc<Mutex<Timestamp>>,
    }

    fn scene() -> Scene {
        let source = Arc::new(Scripted::default());
        let (silence, silent) = watch::channel(None);
        let time = Arc::new(Mutex::new(at("2026-11-22T03:40:00Z")));
        let now = Arc::clone(&time);
        let identity = Arc::new(MachineIdentity::example("n4"));
        let (shown, _) = LocalSnapshots::of(&identity);
        let reader = OverviewReader::new(
            "n4",
            Arc::clone(&source) as Arc<dyn OverviewSource>,
            Arc::new(move || *now.lock()),
            silent,
            shown,
        );
        Scene {
            source,
            reader,
            silence,
            time,
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_overview_is_read_only_when_it_is_asked_for_and_every_five_seconds_at_most() {
        let scene = scene();
        scene.source.say("n1", Ok(overview(false)));
        let cancel = CancellationToken::new();
        let running = tokio::spawn(Arc::clone(&scene.reader).run(cancel.clone()));
        sleep(Duration::from_secs(600)).await;
        assert_eq!(scene.source.took(), 0, "nobody asked");
        for _ in 0..20 {
            let read = scene.reader.read().await;
            assert_eq!(read.nodes.len(), 3);
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(scene.source.took(), 1);
        sleep(Duration::from_secs(5)).await;
        scene.reader.read().await;
        assert_eq!(scene.source.took(), 1);
        // A watch keeps it read, and its end ends that.
        let followed = scene.reader.follow();
        sleep(Duration::from_secs(60)).await;
        let took = scene.source.took();
        assert!((10..=12).contains(&took), "{took}");
        drop(followed);
        sleep(Duration::from_secs(60)).await;
        assert!(scene.source.took() <= 1);
        cancel.cancel();
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_machine_is_asked_where_the_first_is_silent() {
        let scene = scene();
        scene.source.say("n2", Ok(overview(false)));
        let began = Instant::now();
        let read = scene.reader.read().await;
        assert_eq!(read.leader.as_deref(), Some("n1"));
        assert!(began.elapsed() < Duration::from_secs(1));
        // An answer without a leader counts only where no better one comes.
        scene.source.say("n1", Ok(overview(true)));
        sleep(INTERVAL).await;
        assert!(!scene.reader.read().await.stale);
        scene.source.say("n2", Err("connection refused"));
        sleep(INTERVAL).await;
        let read = scene.reader.read().await;
        assert!(read.stale);
        assert_eq!(read.relay.unwrap().silent_since, None);
    }

    #[tokio::test(start_paused = true)]
    async fn where_nobody_answers_the_last_overview_stays_with_its_time() {
        let scene = scene();
        scene.source.say("n1", Ok(overview(false)));
        scene.reader.read().await;
        scene.source.answers.lock().clear();
        scene.source.say("n2", Err("connection refused"));
        // The reports found nobody earlier than a user did.
        scene.silence.send_replace(Some(LeaderSilence {
            since: at("2026-11-22T03:45:00Z"),
            asked: Vec::new(),
        }));
        *scene.time.lock() = at("2026-11-22T04:00:00Z");
        sleep(INTERVAL).await;
        let began = Instant::now();
        let read = scene.reader.read().await;
        assert!(began.elapsed() <= LIMIT);
        assert_eq!(read.nodes.len(), 3);
        let relay = read.relay.unwrap();
        assert_eq!(relay.as_of, Some(at("2026-11-22T03:40:00Z").into()));
        assert_eq!(relay.silent_since, Some(at("2026-11-22T03:45:00Z").into()));
        let errors: Vec<&str> = relay.asked.iter().map(|one| one.error.as_str()).collect();
        assert_eq!(errors, ["no answer within 3 s", "connection refused"]);
        // The silence began when it began, however often somebody asks.
        *scene.time.lock() = at("2026-11-22T04:10:00Z");
        sleep(INTERVAL).await;
        let relay = scene.reader.read().await.relay.unwrap();
        assert_eq!(relay.silent_since, Some(at("2026-11-22T03:45:00Z").into()));
        scene.source.say("n1", Ok(overview(false)));
        sleep(INTERVAL).await;
        let relay = scene.reader.read().await.relay.unwrap();
        assert_eq!(relay.silent_since, None);
        assert_eq!(relay.as_of, Some(at("2026-11-22T04:10:00Z").into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_read_nothing_yet_says_so() {
        let scene = scene();
        let read = scene.reader.read().await;
        assert!(read.nodes.is_empty());
        let relay = read.relay.unwrap();
        assert_eq!(relay.as_of, None);
        assert_eq!(relay.silent_since, Some(at("2026-11-22T03:40:00Z").into()));
        assert_eq!(relay.asked.len(), 2);
    }

    #[test]
    fn the_leader_is_asked_first_and_other_machines_without_the_store_never() {
        let machine = |etcd, number: u8| MachineEndpoints {
            api: match number {
                3 => Vec::new(),
                number => vec![format!("192.0.2.{number}:9115")],
            },
            overlay: Some([10, 100, number, 1].into()),
            etcd,
            ..MachineEndpoints::default()
        };
        let mut known = ClusterCache {
            leader_name: Some("n2".to_owned()),
            ..ClusterCache::default()
        };
        known.endpoints.machines = [
            ("n1".to_owned(), machine(true, 1)),
            ("n2".to_owned(), machine(true, 2)),
            ("n3".to_owned(), machine(true, 3)),
            ("n4".to_owned(), machine(false, 4)),
            ("n5".to_owned(), machine(false, 5)),
        ]
        .into();
        let asked = servers(&known, &MachineIdentity::example("n4"));
        assert_eq!(asked[0].name, "n2");
        assert_eq!(asked[0].endpoints, ["192.0.2.2:9115"]);
        let mut names: Vec<&str> = asked.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["n1", "n2", "n3"]);
        let hidden = asked.iter().find(|one| one.name == "n3").unwrap();
        assert_eq!(hidden.endpoints, ["10.100.3.1:9115"]);
    }
}
