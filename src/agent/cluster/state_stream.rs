//! The state stream of a machine without the store: which server it reads from, and how it knows
//! that server.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, future::select_ok, stream};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    cluster_cache::{ClusterCache, ClusterCacheReceiver},
    identity::MachineIdentity,
    keys::{KeysError, MachineKeys},
};
use crate::{desired_state::known_epochs::KnownEpochs, service::blocking::may_block};
use kat_client::{Client, ClientError, ClientOptions, StateConnection};
use kat_pki as pki;
use kat_store::{PrefixStateSource, StateFrames, StateSource, StateSourceError};
use kat_types::{
    api::{MachineEndpoints, StoreServer},
    encoding::{digest::sha256_u64, state_frames::StatePosition},
    store::members::{ClusterEndpoints, ClusterMembers},
};

/// Head start of a server's overlay address before its other addresses are tried as well.
const HEAD_START: Duration = Duration::from_millis(300);
/// Time after which a machine that holds etcd tries its own feed again.
const OWN_AGAIN: Duration = Duration::from_secs(60);
/// Longest wait for any address of one server.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest wait for the head of the answer: a server may wait 2 s for a quorum and 2 s for its copy
/// of the store.
const ANSWER: Duration = Duration::from_secs(6);
/// Longest wait for the proof of a server whose key is not known.
const HEALTH: Duration = Duration::from_secs(3);

/// Reads the stream from the machines that hold the store, one after the other.
pub(crate) struct RemoteStateSource {
    identity: Arc<MachineIdentity>,
    keys: MachineKeys,
    known: ClusterCacheReceiver,
    epochs: Arc<KnownEpochs>,
    /// Number of streams that were opened or tried.
    attempts: AtomicUsize,
}

impl RemoteStateSource {
    /// Keys are read from the disk for each stream, since they are renewed.
    pub(crate) fn new(
        identity: &Arc<MachineIdentity>,
        keys: &MachineKeys,
        known: &ClusterCacheReceiver,
        epochs: &Arc<KnownEpochs>,
    ) -> Self {
        Self {
            identity: Arc::clone(identity),
            keys: keys.clone(),
            known: known.clone(),
            epochs: Arc::clone(epochs),
            attempts: AtomicUsize::new(0),
        }
    }

    async fn connect(
        &self,
        known: &ClusterCache,
        addresses: &[String],
        resume: Option<StatePosition>,
    ) -> Result<StateConnection, StateSourceError> {
        let endpoint = timeout(CONNECT, first_reachable(addresses)).await;
        let endpoint = endpoint
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|error| {
                StateSourceError::Unreachable(format!("{}: {error}", addresses.join(", ")))
            })?;
        let servers = known.servers();
        let client = self.client(&endpoint, pki::ApiServers::KnownOnly(servers.clone()))?;
        match client.state_stream(&self.identity.node, resume).await {
            Ok(opened) => Ok(opened),
            Err(error) if error.is_foreign() => {
                let server = self.server_of_later_epoch(&endpoint).await;
                let server = server.ok_or_else(|| refusal(&error))?;
                let servers = pki::ApiServers::KnownOnly(with_server(servers, &server));
                let opened = self.client(&endpoint, servers)?;
                let opened = opened.state_stream(&self.identity.node, resume).await;
                opened.map_err(|error| refusal(&error))
            }
            Err(error) => Err(refusal(&error)),
        }
    }

    fn client(&self, endpoint: &str, servers: pki::ApiServers) -> Result<Client, StateSourceError> {
        let config = config(&self.identity, &self.keys, servers)
            .map_err(|error| StateSourceError::Refused(error.to_string()))?;
        let options = ClientOptions {
            connect_timeout: CONNECT,
            request_timeout: ANSWER,
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..ClientOptions::default()
        };
        let name = pki::state_server_name(&self.identity.cluster_uid);
        let client = Client::of_state_server(endpoint, &name, config, options);
        client.map_err(|error| StateSourceError::Refused(error.to_string()))
    }

    /// The server at this address, which has a key that this machine does not know, if it proves
    /// that it has the store of a later epoch: after a restore on another machine. Its certificate
    /// is one of the cluster's authority for the API, and the key that it proves is the only one
    /// that is accepted then.
    async fn server_of_later_epoch(&self, endpoint: &str) -> Option<StoreServer> {
        if !self.epochs.can_check() {
            return None;
        }
        let by_name = pki::ApiServers::Named(pki::ServerMemory::new(true));
        let client = self.client(endpoint, by_name).ok()?;
        let health = timeout(HEALTH, client.healthz()).await.ok()?.ok()?;
        let (stated, server) = (health.store_epoch?, health.store_server?);
        if !self.epochs.is_server_of_later_epoch(&stated, &server) {
            return None;
        }
        tracing::info!(
            server = server.machine,
            epoch = stated.epoch,
            "a machine whose key was not known here proves that it has the store of a later epoch"
        );
        Some(server)
    }
}

/// The known servers, and this one with the key that it has proved.
fn with_server(mut servers: pki::KnownServers, server: &StoreServer) -> pki::KnownServers {
    let proved = pki::KnownServer {
        is_member: true,
        node_key: None,
        api_key: Some(server.key_hash.clone()),
    };
    servers.machines.insert(server.machine.clone(), proved);
    servers
}

/// Settings of a client that presents this machine's certificate, and accepts the machines that hold
/// the store by their keys.
pub(super) fn member_config(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> Result<rustls::ClientConfig, KeysError> {
    config(identity, keys, pki::ApiServers::KnownOnly(known.servers()))
}

/// Settings of a client that presents this machine's certificate, and accepts these servers.
pub(crate) fn config(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    servers: pki::ApiServers,
) -> Result<rustls::ClientConfig, KeysError> {
    let authority = keys.cluster_authority()?;
    let own = pki::tls::CurrentIdentity::new(&keys.leaf("node")?, &authority)?;
    let uid = &identity.cluster_uid;
    Ok(pki::tls::client_config(
        &authority,
        uid,
        Some(own),
        servers,
    )?)
}

#[async_trait]
impl StateSource for RemoteStateSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let known = self.known.borrow().clone();
        let port = self.identity.cluster.spec.api_port;
        let servers = StateServers::of(&known.endpoints, &known.members, &self.identity.node, port);
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let Some(addresses) = servers.of_attempt(attempt) else {
            let nobody = "no machine that holds the store is known here";
            return Err(StateSourceError::Unreachable(nobody.to_owned()));
        };
        let connection = may_block(self.connect(&known, addresses, resume)).await?;
        tracing::info!(
            server = connection.endpoint(),
            "the cluster's state is read"
        );
        let frames = stream::unfold(Some(connection), |connection| async move {
            let mut connection = connection?;
            match connection.next().await {
                Ok(Some(frame)) => Some((Ok(frame), Some(connection))),
                Ok(None) => None,
                Err(error) => Some((Err(StateSourceError::Broken(error.to_string())), None)),
            }
        });
        Ok(Box::pin(frames))
    }
}

/// The source of a machine without the store: the stream, and etcd as before where the servers are
/// of a version without the stream.
pub(crate) struct WorkerStateSource {
    pub stream: RemoteStateSource,
    /// `None` on a machine without a certificate for etcd.
    pub etcd: Option<PrefixStateSource>,
    /// Whether the last frames came from etcd, whose prefixes are not at one revision.
    pub was_etcd: AtomicBool,
    /// Whether the stream was opened last, and not etcd.
    pub is_read: Arc<AtomicBool>,
}

#[async_trait]
impl StateSource for WorkerStateSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let whole = resume.filter(|_| !self.was_etcd.load(Ordering::Relaxed));
        match (self.stream.open(whole).await, &self.etcd) {
            (Err(StateSourceError::NotOffered), Some(etcd)) => {
                tracing::info!("the leader's version has no state stream; etcd is read");
                self.was_etcd.store(true, Ordering::Relaxed);
                self.is_read.store(false, Ordering::Relaxed);
                etcd.open(resume).await
            }
            (Ok(frames), _) => {
                self.was_etcd.store(false, Ordering::Relaxed);
                self.is_read.store(true, Ordering::Relaxed);
                Ok(frames)
            }
            (opened, _) => opened,
        }
    }
}

/// The source of a machine that holds etcd: its own feed, and in turn the stream of another member.
/// A member that was replaced while it was away, or that reaches no quorum, learns by the stream
/// what it is now.
pub struct MemberStateSource {
    /// The machine's own feed.
    pub own: Arc<dyn StateSource>,
    /// The stream of the other members.
    pub stream: Arc<dyn StateSource>,
    /// Whether the next attempt is the stream.
    pub stream_next: AtomicBool,
}

#[async_trait]
impl StateSource for MemberStateSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        if !self.stream_next.fetch_xor(true, Ordering::Relaxed) {
            return self.own.open(resume).await;
        }
        let frames = self.stream.open(resume).await?;
        Ok(Box::pin(frames.take_until(sleep(OWN_AGAIN))))
    }
}

/// The addresses of every machine through which a machine can read the state stream.
pub struct StateServers {
    /// Machines that hold the store, the first one by a hash of the reader's name, so that readers
    /// spread over them. Those without a vote come last: they serve no stream before they have one.
    members: Vec<Vec<String>>,
    /// Machines that forward the connection to one of those.
    others: Vec<Vec<String>>,
}

impl StateServers {
    /// The servers for the machine `own`, with this port of their overlay addresses. Members that
    /// are not in the list of members count as voting ones.
    pub fn of(known: &ClusterEndpoints, members: &ClusterMembers, own: &str, port: u16) -> Self {
        let machines = known.machines.iter();
        let (holders, others): (Vec<_>, Vec<_>) = machines
            .filter(|(name, _)| *name != own)
            .partition(|(_, machine)| machine.etcd);
        let votes = |name: &String| {
            let member = members.members.get(name);
            member.is_none_or(|member| member.voting)
        };
        let (mut members, learners): (Vec<_>, Vec<_>) =
            holders.into_iter().partition(|(name, _)| votes(name));
        let count = u64::try_from(members.len()).unwrap_or_default();
        if let Some(turn) = sha256_u64(own.as_bytes()).checked_rem(count) {
            members.rotate_left(usize::try_from(turn).unwrap_or_default());
        }
        members.extend(learners);
        let all = |machines: Vec<(&String, &MachineEndpoints)>| {
            let machines = machines.into_iter();
            machines
                .map(|(_, machine)| addresses(machine, port))
                .collect()
        };
        Self {
            members: all(members),
            others: all(others),
        }
    }

    /// Each member in turn, then one other machine, another one in each round.
    pub fn of_attempt(&self, attempt: usize) -> Option<&[String]> {
        let turns = self.members.len() + usize::from(!self.others.is_empty());
        let (round, turn) = (attempt.checked_div(turns)?, attempt.checked_rem(turns)?);
        let server = self.members.get(turn).or_else(|| {
            let index = round.checked_rem(self.others.len())?;
            self.others.get(index)
        });
        server.map(Vec::as_slice)
    }
}

/// `host:port` of a machine's API on each of its addresses, on the overlay first.
pub(crate) fn addresses(machine: &MachineEndpoints, port: u16) -> Vec<String> {
    let overlay = machine
        .overlay
        .map(|address| SocketAddr::from((address, port)).to_string());
    let mut addresses: Vec<String> = overlay.into_iter().collect();
    for address in &machine.api {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    addresses
}

/// The first address that takes a connection; each has a head start before the next.
pub(super) async fn first_reachable(addresses: &[String]) -> std::io::Result<String> {
    if addresses.is_empty() {
        return Err(std::io::ErrorKind::AddrNotAvailable.into());
    }
    let connecting = addresses.iter().zip(0..).map(|(address, before)| {
        Box::pin(async move {
            sleep(HEAD_START.saturating_mul(before)).await;
            TcpStream::connect(address).await?;
            std::io::Result::Ok(address.clone())
        })
    });
    let (address, _) = select_ok(connecting).await?;
    Ok(address)
}

fn refusal(error: &ClientError) -> StateSourceError {
    if error.is_not_found() {
        return StateSourceError::NotOffered;
    }
    match error.status() {
        // The server serves nobody at present, such as one without a vote.
        Some(503) => StateSourceError::Unreachable(error.to_string()),
        Some(_) => StateSourceError::Refused(error.to_string()),
        None => StateSourceError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::{Request, Response, body::Incoming, service::service_fn};
    use hyper_util::{
        rt::{TokioExecutor, TokioIo},
        server::conn::auto::Builder,
    };
    use kat_pki::{
        epoch_proof::{epoch_verifier, sign_epoch, sign_server},
        recovery_key::RecoveryKey,
    };
    use kat_store::{LocalStateSource, StateStore, follow_source};
    use kat_testing::{
        MemoryStore,
        state_stream::{ServingStore, wait_for},
    };
    use kat_types::{
        api::{HealthView, StoreEpoch},
        encoding::state_frames::{StateBegin, StateFrame},
        store::{keys, members::MemberRecord, transaction::WriteOperation},
    };

    fn known(members: usize, others: usize) -> ClusterCache {
        let machine = |number: usize, etcd| {
            let machine = MachineEndpoints {
                api: vec![format!("192.0.2.{number}:9115")],
                overlay: Some([10, 100, u8::try_from(number).unwrap(), 1].into()),
                etcd,
                ..MachineEndpoints::default()
            };
            (format!("n{number}"), machine)
        };
        let members = (0..members).map(|number| machine(number, true));
        let others = (100..100 + others).map(|number| machine(number, false));
        let mut known = ClusterCache::default();
        known.endpoints.machines = members.chain(others).collect();
        known
    }

    fn tried(known: &ClusterCache, own: &str, attempts: usize) -> Vec<String> {
        let servers = StateServers::of(&known.endpoints, &known.members, own, 9115);
        let tried = (0..attempts).filter_map(|attempt| servers.of_attempt(attempt));
        tried.map(|addresses| addresses.join(" ")).collect()
    }

    #[test]
    fn members_are_tried_in_turn_and_another_machine_after_each_round() {
        let known = known(2, 2);
        let tried = tried(&known, "n101", 6);
        let member = |text: &String| {
            text.starts_with("10.100.0.1:9115 192.0.2.0:9115")
                || text.starts_with("10.100.1.1:9115 192.0.2.1:9115")
        };
        assert!(
            tried[..2].iter().all(member) && tried[0] != tried[1],
            "{tried:?}"
        );
        assert_eq!(tried[2], "10.100.100.1:9115 192.0.2.100:9115");
        assert_eq!(tried[3..5], tried[..2]);
        // The machine itself is never tried.
        assert_eq!(tried[5], tried[2]);
    }

    #[test]
    fn readers_spread_over_the_members() {
        let known = known(3, 60);
        let mut first = std::collections::BTreeMap::<String, usize>::new();
        for number in 100..160 {
            let tried = tried(&known, &format!("n{number}"), 1);
            *first.entry(tried[0].clone()).or_default() += 1;
        }
        assert_eq!(first.len(), 3);
        assert!(first.values().all(|count| *count >= 8), "{first:?}");
    }

    #[test]
    fn members_without_a_vote_are_tried_last() {
        let mut known = known(4, 1);
        for name in ["n0", "n1", "n2"] {
            let member = MemberRecord {
                voting: name == "n1",
                ..MemberRecord::default()
            };
            known.members.members.insert(name.to_owned(), member);
        }
        for reader in (100..120).map(|number| format!("n{number}x")) {
            let tried = tried(&known, &reader, 5);
            let place = |number: usize| {
                let address = format!("192.0.2.{number}:9115");
                tried.iter().position(|one| one.ends_with(&address))
            };
            // Nothing is known of n3's vote.
            assert!(place(1) < Some(2) && place(3) < Some(2), "{tried:?}");
            assert!(place(0) >= Some(2) && place(2) >= Some(2), "{tried:?}");
            assert_eq!(place(100), Some(4));
        }
    }

    /// A boot while nobody is known by another address.
    #[tokio::test]
    async fn a_server_is_reached_by_its_host_name() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let named = format!("localhost:{port}");
        let addresses = ["not-a-name.invalid:9115".to_owned(), named.clone()];
        assert_eq!(first_reachable(&addresses).await.unwrap(), named);
        drop(listener);
        assert!(first_reachable(&addresses).await.is_err());
    }

    #[test]
    fn a_machine_that_knows_nobody_tries_nobody() {
        assert!(tried(&ClusterCache::default(), "n1", 3).is_empty());
        // Only the machine itself is known.
        assert!(tried(&known(1, 0), "n0", 3).is_empty());
        assert_eq!(tried(&known(0, 1), "n9", 2).len(), 2);
    }

    /// A member whose right in etcd is gone: its own feed never gets an answer.
    #[tokio::test(start_paused = true)]
    async fn a_member_whose_own_store_refuses_it_reads_another_members_stream() {
        let store = MemoryStore::new();
        let member = WriteOperation::Put(keys::MEMBERS.to_owned(), b"{}".to_vec());
        store.transact(&[], &[member]).await.unwrap();
        let (own, other) = (ServingStore::start(&store), ServingStore::start(&store));
        own.server.restrict(&[]);
        let source = |serving: &ServingStore| -> Arc<dyn StateSource> {
            Arc::new(LocalStateSource::new(serving.feed.clone(), "n1"))
        };
        let both = MemberStateSource {
            own: source(&own),
            stream: source(&other),
            stream_next: AtomicBool::new(false),
        };
        let mirror = follow_source(Arc::new(both), own.cancel.clone());
        wait_for(&mirror, |state| state.confirmed).await;
        let list = WriteOperation::Put(keys::desired_meta("n1"), b"{}".to_vec());
        store.transact(&[], &[list]).await.unwrap();
        // The copy stays with the other member when its own feed was tried again in between.
        for _ in 0..5 {
            sleep(OWN_AGAIN).await;
            wait_for(&mirror, |state| {
                state.confirmed && state.get(&keys::desired_meta("n1")).is_some()
            })
            .await;
        }
        own.cancel.cancel();
        other.cancel.cancel();
    }

    /// A server of the stream with the certificate `api:n1` of these keys. It answers with this health
    /// and the begin of a list.
    async fn serve(keys: &MachineKeys, health: HealthView) -> String {
        let authority = keys.cluster_authority().unwrap();
        let own = pki::tls::CurrentIdentity::new(&keys.leaf("api").unwrap(), &authority).unwrap();
        let trust = pki::tls::CurrentTrust::new(&authority).unwrap();
        let config = pki::tls::server_config(own, trust).unwrap();
        let mut config = rustls::ServerConfig::clone(&config);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let begin = StateFrame::Begin(StateBegin {
            epoch: 9,
            revision: 7,
            schema: 1,
            keys: 0,
        });
        let frames = begin.encode().unwrap();
        let health = Bytes::from(serde_json::to_vec(&health).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let (frames, health) = (frames.clone(), health.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = match request.uri().path() {
                        "/healthz" => health.clone(),
                        _ => frames.clone(),
                    };
                    async { Ok::<_, std::convert::Infallible>(Response::new(Full::new(answer))) }
                });
                let builder = Builder::new(TokioExecutor::new());
                tokio::spawn(async move {
                    let _ = builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        address
    }

    /// A machine that knows `n1` by another key, and has seen epoch 5.
    #[tokio::test]
    async fn a_server_with_an_unknown_key_is_accepted_with_a_signed_key_at_a_later_epoch_alone() {
        let folder = tempfile::tempdir().unwrap();
        let keys = MachineKeys::below(folder.path());
        let identity = Arc::new(MachineIdentity {
            etcd: true,
            ..MachineIdentity::example("n1")
        });
        let (uid, now) = (identity.cluster_uid.clone(), jiff::Timestamp::now());
        let recovery = keys.ensure_authorities(&uid, now).unwrap();
        keys.renew(&identity, &ClusterCache::default(), now)
            .unwrap();
        let hostile = RecoveryKey::generate().unwrap();
        let own = keys.member_keys().unwrap().api;

        let mut known = ClusterCache::default();
        let machine = MachineEndpoints {
            etcd: true,
            node_key: "cd".repeat(32),
            api_key: "cd".repeat(32),
            ..MachineEndpoints::default()
        };
        known.endpoints.machines.insert("n1".to_owned(), machine);
        let (_known_now, receiver) = tokio::sync::watch::channel(Arc::new(known.clone()));
        let verifiers = vec![epoch_verifier(&recovery).unwrap()];

        let stated = |key, epoch| StoreEpoch {
            schema: 1,
            epoch,
            signature: sign_epoch(key, &uid, epoch).unwrap(),
            ..StoreEpoch::default()
        };
        let server = |key, epoch, hash: &str| sign_server(key, &uid, epoch, ("n1", hash)).ok();
        let other = "ab".repeat(32);
        let cases = [
            (
                &verifiers,
                stated(&recovery, 9),
                server(&recovery, 9, &own),
                true,
            ),
            // The machine knows no verifier.
            (
                &Vec::new(),
                stated(&recovery, 9),
                server(&recovery, 9, &own),
                false,
            ),
            // The machine has seen this epoch.
            (
                &verifiers,
                stated(&recovery, 5),
                server(&recovery, 5, &own),
                false,
            ),
            // Signed by another key, or for another server's key.
            (
                &verifiers,
                stated(&hostile, 9),
                server(&hostile, 9, &own),
                false,
            ),
            (
                &verifiers,
                stated(&recovery, 9),
                server(&hostile, 9, &own),
                false,
            ),
            (
                &verifiers,
                stated(&recovery, 9),
                server(&recovery, 9, &other),
                false,
            ),
            (&verifiers, stated(&recovery, 9), None, false),
        ];
        for (number, (verifiers, store_epoch, store_server, accepted)) in
            cases.into_iter().enumerate()
        {
            let health = HealthView {
                status: "ok".to_owned(),
                leader: true,
                stale: false,
                backup: None,
                store_epoch: Some(store_epoch),
                store_server,
                trouble: None,
                planning: Vec::new(),
                store: None,
            };
            let address = serve(&keys, health).await;
            let epochs = Arc::new(KnownEpochs::new(&uid, verifiers.clone(), Some(5)));
            let source = RemoteStateSource::new(&identity, &keys, &receiver, &epochs);
            match source.connect(&known, &[address], None).await {
                Ok(mut opened) => {
                    assert!(accepted, "case {number} is accepted");
                    let first = opened.next().await.unwrap();
                    assert!(matches!(first, Some(StateFrame::Begin(_))), "{first:?}");
                }
                Err(error) => assert!(!accepted, "case {number}: {error}"),
            }
        }
    }
}
