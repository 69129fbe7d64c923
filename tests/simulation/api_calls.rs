//! API calls between machines and from people, through the real routes without sockets and TLS. The
//! caller's identity is set as TLS would have proved it.

use std::{collections::BTreeMap, future::pending, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{
    checks::monitor::Monitor,
    faults::{
        disabled_safeguards::Without,
        network_faults::Way,
        stream_faults::{StreamFates, StreamLine, line, serve, unreachable},
    },
    load::volume_data::Senders,
    machines::joining_machine::{self, JOIN},
};
use kat_api::{
    SocketAccess,
    access::authentication::{ConnectionPeer, ConnectionSource},
};
use kat_pki::{PeerCertificate, PeerIdentity};
use kat_store::{SURE_FOR, StateFeed, StateFrames, StateSourceError};
use kat_testing::state_stream::ServingStore;
use kat_types::{
    encoding::state_frames::{StateFrame, StatePosition},
    store::members::ClusterEndpoints,
};

/// Timeout of a call.
const CALL: Duration = Duration::from_secs(10);

/// A process' API, open until `closed` is cancelled.
#[derive(Clone)]
pub(crate) struct Door {
    pub router: Router,
    pub feed: StateFeed,
    pub closed: CancellationToken,
}

/// The way of a stream to its server.
pub(crate) struct StreamRoute {
    pub server: String,
    /// A machine that forwards the connection.
    pub through: Option<String>,
}

pub(crate) struct Net {
    doors: Mutex<BTreeMap<String, Door>>,
    pub ways: BTreeMap<String, Arc<Way>>,
    /// Where the machines are reached, as the store would publish it.
    pub endpoints: ClusterEndpoints,
    /// Processes that forward connections, open until their token is cancelled.
    forwarders: Mutex<BTreeMap<String, CancellationToken>>,
    /// The last server of each machine's stream.
    servers: Mutex<BTreeMap<String, String>>,
    fates: Mutex<StreamFates>,
    without: Without,
    monitor: Arc<Monitor>,
    pub senders: Senders,
    /// When the latest call of a person, which may carry an archive, was let in.
    archive: Mutex<Option<Instant>>,
    /// The old stores that members serve to other machines.
    old_stores: Mutex<BTreeMap<String, ServingStore>>,
}

/// The certificate of a machine, with the hash of the key by which the cluster knows it.
fn certificate(node: &str) -> PeerCertificate {
    PeerCertificate {
        identity: PeerIdentity::Node(node.to_owned()),
        key_hash: joining_machine::identity_key(node),
    }
}

impl Net {
    pub(crate) fn new(
        ways: BTreeMap<String, Arc<Way>>,
        endpoints: ClusterEndpoints,
        fates: StreamFates,
        without: Without,
        monitor: &Arc<Monitor>,
    ) -> Self {
        Self {
            doors: Mutex::default(),
            ways,
            endpoints,
            forwarders: Mutex::default(),
            servers: Mutex::default(),
            fates: Mutex::new(fates),
            without,
            monitor: Arc::clone(monitor),
            senders: Senders::default(),
            archive: Mutex::default(),
            old_stores: Mutex::default(),
        }
    }

    pub(crate) fn open(&self, machine: &str, door: Door) {
        self.doors.lock().insert(machine.to_owned(), door);
    }

    /// The process of a machine forwards connections until `closed`.
    pub(crate) fn forward(&self, machine: &str, closed: &CancellationToken) {
        let mut forwarders = self.forwarders.lock();
        forwarders.insert(machine.to_owned(), closed.clone());
    }

    pub(crate) fn refuses_reports(&self, machine: &str) -> bool {
        self.ways[machine].now().reports_refused
    }

    /// New streams and copies of volumes neither break nor stand still from now on.
    pub(crate) fn heal_streams(&self) {
        self.fates.lock().faulty = false;
        self.senders.heal();
    }

    /// A member serves an old store to other machines, or its own one again.
    pub(crate) fn serve_old(&self, member: &str, old: Option<ServingStore>) {
        let mut stores = self.old_stores.lock();
        let before = match old {
            Some(old) => stores.insert(member.to_owned(), old),
            None => stores.remove(member),
        };
        if let Some(before) = before {
            before.cancel.cancel();
        }
    }

    /// All members serve their own store again.
    pub(crate) fn end_old_stores(&self) {
        let stores = std::mem::take(&mut *self.old_stores.lock());
        stores.values().for_each(|old| old.cancel.cancel());
    }

    /// The server of the last stream that the machine opened.
    pub(crate) fn server_of(&self, machine: &str) -> Option<String> {
        self.servers.lock().get(machine).cloned()
    }

    /// The machine with this overlay address and port.
    pub(crate) fn machine_at(&self, address: &str) -> Option<String> {
        let host = address.split(':').next()?;
        let mut machines = self.endpoints.machines.iter();
        let found = machines.find(|(_, one)| one.overlay.is_some_and(|at| at.to_string() == host));
        found.map(|(name, _)| name.clone())
    }

    /// Opens the state stream of a machine on another machine.
    pub(crate) async fn open_stream(
        &self,
        from: &str,
        route: StreamRoute,
        resume: Option<StatePosition>,
    ) -> Result<StateFrames, StateSourceError> {
        let StreamRoute { server, through } = route;
        let own = &self.ways[from];
        if own.now().opens_no_stream {
            pending::<()>().await;
        }
        if let Some(through) = &through {
            self.travel(Some(from), through).await;
            let forwarder = self.forwarders.lock().get(through).cloned();
            if forwarder.is_none_or(|closed| closed.is_cancelled()) {
                return Err(unreachable("connection refused"));
            }
        }
        self.travel(through.as_deref().or(Some(from)), &server)
            .await;
        let door = self.doors.lock().get(&server).cloned();
        let door = door.filter(|door| !door.closed.is_cancelled());
        let door = door.ok_or_else(|| unreachable("connection refused"))?;
        let old = self
            .old_stores
            .lock()
            .get(&server)
            .map(|old| old.feed.clone());
        let is_old = old.is_some();
        let opened = old.unwrap_or(door.feed).open(from, resume);
        let frames = opened.map_err(|error| StateSourceError::Refused(error.to_string()))?;
        let machines = [Some(from), through.as_deref(), Some(&server)];
        let ways = machines.into_iter().flatten();
        let line_of = StreamLine {
            ways: ways
                .map(|machine| Arc::clone(&self.ways[machine]))
                .collect(),
            fate: self.fates.lock().next(),
            without: self.without,
        };
        let text = format!(
            "{from} reads from {server} after {resume:?}, {:?}",
            line_of.fate
        );
        self.monitor.note(&text);
        self.servers.lock().insert(from.to_owned(), server.clone());
        let (sender, served) = line();
        let (monitor, way) = (Arc::clone(&self.monitor), Arc::clone(&self.ways[&server]));
        let sees = move |frame: &StateFrame| {
            let cut_for = way.store_cut_for().unwrap_or_default();
            // An old store has a quorum of its own.
            if matches!(frame, StateFrame::Beat(_)) && cut_for > SURE_FOR && !is_old {
                monitor.violated(format!(
                    "{server} confirms what it serves, and reaches no store for {cut_for:?}"
                ));
            }
        };
        let serving = serve(frames, sender, sees);
        tokio::spawn(door.closed.run_until_cancelled_owned(serving));
        Ok(line_of.carry(served))
    }

    /// One call to a machine, from another machine or from a person at the called machine. `served`
    /// is called when the machine handled the request successfully, even if the answer is lost.
    pub(crate) async fn call(
        &self,
        from: Option<&str>,
        to: &str,
        request: Request<Body>,
        served: impl FnOnce() + Send,
    ) -> Result<StatusCode, String> {
        let answer = self.ask(from, to, request, served).await;
        answer.map(|answer| answer.status())
    }

    /// Like [`Self::call`], with the whole answer.
    pub(crate) async fn ask(
        &self,
        from: Option<&str>,
        to: &str,
        request: Request<Body>,
        served: impl FnOnce() + Send,
    ) -> Result<Response<Body>, String> {
        let answer = timeout(CALL, self.converse(from, to, request, served)).await;
        answer.unwrap_or_else(|_| Err("no answer in time".to_owned()))
    }

    async fn converse(
        &self,
        from: Option<&str>,
        to: &str,
        mut request: Request<Body>,
        served: impl FnOnce() + Send,
    ) -> Result<Response<Body>, String> {
        let network = ConnectionSource::Network(([192, 0, 2, 1], 40_000).into());
        let socket = ConnectionSource::Socket {
            uid: Some(0),
            access: SocketAccess::Admin,
        };
        let (source, certificate) = match from {
            _ if request.uri().path() == JOIN => (network, None),
            Some(node) => (network, Some(certificate(node))),
            None => (socket, None),
        };
        request.extensions_mut().insert(ConnectionPeer {
            source,
            certificate,
        });
        self.travel(from, to).await;
        let door = self.doors.lock().get(to).cloned();
        let door = door.filter(|door| !door.closed.is_cancelled());
        let Some(door) = door else {
            return Err("connection refused".to_owned());
        };
        if from.is_none() {
            self.alone().await;
        }
        let answer = tokio::select! {
            biased;
            () = door.closed.cancelled() => return Err("connection reset".to_owned()),
            answer = door.router.oneshot(request) => answer,
        };
        if answer
            .as_ref()
            .is_ok_and(|answer| answer.status().is_success())
        {
            served();
        }
        self.travel(from, to).await;
        answer.map_err(|error| error.to_string())
    }

    /// Takes the time of a call between two machines before it is answered.
    pub(crate) async fn reach(&self, from: &str, to: &str) -> Result<(), String> {
        let way = timeout(CALL, self.travel(Some(from), to)).await;
        way.map_err(|_| "no answer in time".to_owned())
    }

    /// Archives are unpacked on other threads. Only one is unpacked at a time, when no other task
    /// has work at this moment, so that no order of events depends on how long that takes.
    async fn alone(&self) {
        loop {
            let now = Instant::now();
            if self.archive.lock().replace(now) != Some(now) {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        for _ in 0..200 {
            yield_now().await;
        }
    }

    /// Waits the latency of both ends, until neither hangs, and forever if one is cut off. A
    /// machine's calls to itself are not cut.
    async fn travel(&self, from: Option<&str>, to: &str) {
        let ends = [from, (from != Some(to)).then_some(to)];
        for way in ends
            .into_iter()
            .flatten()
            .filter_map(|end| self.ways.get(end))
        {
            sleep(way.now().latency).await;
        }
        let cut = |end: Option<&str>| {
            let way = end.and_then(|end| self.ways.get(end));
            way.is_some_and(|way| way.now().machines_cut)
        };
        if from != Some(to) && (cut(from) || cut(Some(to))) {
            pending::<()>().await;
        }
        // Both ends handle nothing while they hang.
        for way in [from, Some(to)].into_iter().flatten() {
            if let Some(way) = self.ways.get(way) {
                way.awake().await;
            }
        }
    }
}
