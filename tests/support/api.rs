//! A whole API over real sockets, with its state in memory. No leader plans.
#![allow(dead_code, reason = "each test program uses its part")]

mod doubles;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use kat_api::{
    ApiConfig, ApiLimits, ApiListeners, InstanceLogs, InstanceSessions, JoiningState, NodeUsers,
    OverviewRelay, SocketAccess, SocketListener, TlsListener, new_token, random_uid, serve,
};
use kat_bundle::{SourceFile, pack};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{AgentReports, LeaderHandle, PlanningHealth, SnapshotBuilder, StoreHealth};
use kat_pki::{
    ApiNames, Authorities, Authority, AuthorityKind, CertificateKeyPair, LeafKind, api_server_name,
    recovery_key::RecoveryKey, store_next_recovery_key, store_recovery_key, tls,
};
use kat_plan::SnapshotSealing;
use kat_registry::ImageSource;
use kat_store::{Leadership, Mirror, StateStore};
use kat_testing::MemoryStore;
use kat_types::{
    api::{MemberKeys, Scope},
    store::{
        keys,
        records::{NamespaceRecord, NodeRegistration},
        transaction::WriteOperation,
    },
};

pub(crate) use doubles::{Echo, SaidLogs, SeenUsers};

pub(crate) const CLUSTER_UID: &str = "3f0c9a52-7a7e-4a43-9a0b-0d5a7f6f4f11";
pub(crate) const NODE_UID: &str = "node-uid-1";

/// Time limit of every wait.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A running API.
pub(crate) struct Server {
    pub port: u16,
    pub store: MemoryStore,
    /// The API's own client of the store.
    pub written_through: MemoryStore,
    pub handle: LeaderHandle,
    pub leaderships: watch::Sender<Option<Leadership>>,
    /// While true, the API's copy of the store is not updated.
    pub still: watch::Sender<bool>,
    pub logs: Arc<SaidLogs>,
    pub echo: Arc<Echo>,
    pub users: Arc<SeenUsers>,
    /// A port that passes connections on to the first one, like a machine that is not the leader.
    pub passing_port: u16,
    pub etcd_authority: Authority,
    pub authority: Authority,
    /// What the API's ports present.
    pub identity: Arc<tls::CurrentIdentity>,
    /// What the port of n1's agent presents.
    pub agent_identity: Arc<tls::CurrentIdentity>,
    pub folder: tempfile::TempDir,
    pub admin: String,
    pub read: String,
    pub deploy: String,
    pub cancel: CancellationToken,
    pub running: JoinHandle<()>,
    /// Certificates with their keys, by common name.
    leaves: Mutex<BTreeMap<String, CertificateKeyPair>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(ApiLimits::default()).await
    }

    pub(crate) async fn start_with(limits: ApiLimits) -> Self {
        Self::start_knowing(limits, None).await
    }

    /// Starts the server with a source of images, which resolves tags.
    pub(crate) async fn start_knowing(
        limits: ApiLimits,
        images: Option<Arc<dyn ImageSource>>,
    ) -> Self {
        Self::start_whole(limits, images, None).await
    }

    /// Starts the server with a relay of the overview, for the callers of `machine.sock`.
    pub(crate) async fn start_relaying(relay: Arc<dyn OverviewRelay>) -> Self {
        Self::start_whole(ApiLimits::default(), None, Some(relay)).await
    }

    async fn start_whole(
        limits: ApiLimits,
        images: Option<Arc<dyn ImageSource>>,
        relay: Option<Arc<dyn OverviewRelay>>,
    ) -> Self {
        let now = Timestamp::now();
        let authority = Authority::generate(AuthorityKind::Cluster, CLUSTER_UID, now).unwrap();
        let leaf = issue_node(&authority, "n1", now);
        let api_leaf = authority.issue(&api_kind("n1"), now).unwrap();
        let name = || "n1".to_owned();
        let leader = authority.issue(&LeafKind::Leader { name: name() }, now);
        let root = authority.issue(&LeafKind::Admin { name: name() }, now);
        let leaves: BTreeMap<_, _> = [
            ("node:n1".to_owned(), leaf.clone()),
            ("api:n1".to_owned(), api_leaf.clone()),
            ("leader:n1".to_owned(), leader.unwrap()),
            ("admin:n1".to_owned(), root.unwrap()),
        ]
        .into();
        let hash = |name: &str| key_hash(&leaves[name]);
        let known = NodeRegistration {
            identity_key: hash("node:n1"),
            member_keys: MemberKeys {
                leader: hash("leader:n1"),
                admin: hash("admin:n1"),
                api: hash("api:n1"),
            },
            ..registration()
        };
        let current = |leaf| tls::CurrentIdentity::new(leaf, authority.certificate_pem()).unwrap();
        let (identity, agent_identity) = (current(&api_leaf), current(&leaf));
        let etcd_authority =
            Authority::generate(AuthorityKind::EtcdClients, CLUSTER_UID, now).unwrap();
        let pki = tempfile::tempdir().unwrap();
        let recovery = RecoveryKey::generate().unwrap();
        store_recovery_key(pki.path(), &recovery).unwrap();
        // As while the recovery key is replaced.
        store_next_recovery_key(pki.path(), &RecoveryKey::generate().unwrap()).unwrap();
        authority.store(pki.path(), &recovery).unwrap();
        etcd_authority.store(pki.path(), &recovery).unwrap();
        let peers = Authority::generate(AuthorityKind::EtcdPeers, CLUSTER_UID, now).unwrap();
        peers.store(pki.path(), &recovery).unwrap();
        let users = Arc::new(SeenUsers::default());
        let joining = JoiningState {
            authorities: watch::Sender::new(Arc::new(Authorities::load(pki.path()).unwrap()))
                .subscribe(),
            users: Arc::clone(&users) as Arc<dyn NodeUsers>,
        };
        let trust = tls::CurrentTrust::new(authority.certificate_pem()).unwrap();
        let config = tls::server_config(Arc::clone(&identity), Arc::clone(&trust)).unwrap();
        let store = MemoryStore::new();
        let token = |scope| new_token(scope, "test", now, None).unwrap();
        let deploy = Scope::Deploy {
            namespace: "shop".to_owned(),
        };
        let tokens = [token(Scope::Admin), token(Scope::Read), token(deploy)];
        let mut seed = vec![
            WriteOperation::Put(keys::CLUSTER_UID.to_owned(), CLUSTER_UID.into()),
            WriteOperation::Put(keys::LEADER_ENDPOINT.to_owned(), "192.0.2.1:9115".into()),
            put(keys::registration("n1"), &known),
        ];
        for name in ["default", "kat-core", "shop"] {
            seed.push(put(keys::namespace(name), &namespace(now)));
        }
        for token in &tokens {
            seed.push(put(keys::token(&token.id), &token.record));
        }
        store.write_now(&seed);
        let cancel = CancellationToken::new();
        let (leaderships, leadership) = watch::channel(None);
        let (snapshots, snapshot) = watch::channel(None);
        let written_through = store.client();
        let handle = LeaderHandle {
            store: Arc::new(written_through.clone()),
            snapshot,
            shown: None,
            leadership,
            reports: AgentReports::default(),
            store_health: StoreHealth::default(),
            planning: PlanningHealth::default(),
            feed: None,
        };
        let mut mirror = Mirror::start(Arc::new(store.client()), keys::ROOT, cancel.clone());
        let (still, mut stands_still) = watch::channel(false);
        tokio::spawn(async move {
            let sealing = SnapshotSealing::with(recovery);
            let mut builder = SnapshotBuilder::with_sealing(sealing);
            while let Ok(state) = mirror.changed().await {
                if stands_still.wait_for(|still| !still).await.is_err() {
                    return;
                }
                let snapshot = builder.build(&state.entries, state.revision);
                snapshots.send_replace(Some(Arc::new(snapshot)));
            }
        });
        let won = store.campaign("n1", Duration::from_secs(10)).await.unwrap();
        leaderships.send_replace(Some(won));
        let logs = Arc::new(SaidLogs::default());
        let echo = Arc::new(Echo::default());
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let passing = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let passing_port = passing.local_addr().unwrap().port();
        let opened = Arc::clone(&config);
        let socket = |name: &str| UnixListener::bind(folder.path().join(name)).unwrap();
        let listeners = ApiListeners {
            tls: vec![
                TlsListener {
                    listener,
                    config: Arc::new(move || Arc::clone(&config)),
                    leader: Arc::new(Vec::<String>::new()),
                    stands_in: false,
                    state_route: None,
                    own_route: None,
                },
                TlsListener {
                    listener: passing,
                    config: Arc::new(move || Arc::clone(&opened)),
                    leader: Arc::new(vec![format!("127.0.0.1:{port}")]),
                    stands_in: false,
                    state_route: None,
                    own_route: None,
                },
            ],
            sockets: vec![
                SocketListener {
                    listener: socket("admin.sock"),
                    access: SocketAccess::Admin,
                    leader: None,
                },
                SocketListener {
                    listener: socket("machine.sock"),
                    access: SocketAccess::ThisMachine,
                    leader: None,
                },
            ],
        };
        let api = ApiConfig {
            handle: handle.clone(),
            logs: Arc::clone(&logs) as Arc<dyn InstanceLogs>,
            sessions: Arc::clone(&echo) as Arc<dyn InstanceSessions>,
            clock: Arc::new(Timestamp::now),
            new_uid: Arc::new(random_uid),
            node_name: "n1".to_owned(),
            limits,
            pulses: LoopPulses::default(),
            joining: Some(joining),
            images,
            relay,
        };
        let running = tokio::spawn(serve(api, listeners, cancel.clone()));
        let revision = store.revision();
        assert!(handle.wait_for_revision(revision, DEADLINE).await);
        let [admin, read, deploy] = tokens.map(|token| token.token);
        Self {
            port,
            store,
            written_through,
            handle,
            leaderships,
            still,
            logs,
            echo,
            users,
            passing_port,
            etcd_authority,
            authority,
            identity,
            agent_identity,
            folder,
            admin,
            read,
            deploy,
            cancel,
            running,
            leaves: Mutex::new(leaves),
        }
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    /// A client that trusts the cluster and, if given, shows this certificate.
    pub(crate) fn client(&self, identity: Option<&CertificateKeyPair>) -> Client {
        let authority = reqwest::Certificate::from_pem(self.authority.certificate_pem().as_bytes());
        let mut builder = Client::builder()
            .tls_certs_only([authority.unwrap()])
            .timeout(DEADLINE)
            .no_proxy();
        if let Some(identity) = identity {
            let pem = format!("{}{}", identity.certificate_pem, identity.key_pem);
            builder = builder.identity(reqwest::Identity::from_pem(pem.as_bytes()).unwrap());
        }
        builder.build().unwrap()
    }

    /// A certificate of this kind. The same name always gets the same one, and the cluster knows
    /// those of n1.
    pub(crate) fn leaf(&self, kind: &LeafKind) -> CertificateKeyPair {
        let mut leaves = self.leaves.lock();
        let issue = || self.authority.issue(kind, Timestamp::now()).unwrap();
        leaves
            .entry(kind.common_name())
            .or_insert_with(issue)
            .clone()
    }

    pub(crate) fn node_leaf(&self, name: &str) -> CertificateKeyPair {
        self.leaf(&node_kind(name))
    }

    /// The hash of the key by which n1 serves the API.
    pub(crate) fn api_key(&self) -> String {
        key_hash(&self.leaf(&api_kind("n1")))
    }

    /// One call with a token, or without one if it is empty.
    pub(crate) async fn call(&self, token: &str, method: Method, path: &str) -> Response {
        let request = self.client(None).request(method, self.url(path));
        let request = if token.is_empty() {
            request
        } else {
            request.bearer_auth(token)
        };
        request.send().await.unwrap()
    }

    pub(crate) async fn get(&self, token: &str, path: &str) -> (StatusCode, Value) {
        read(self.call(token, Method::GET, path).await).await
    }

    /// Applies files as an administrator.
    pub(crate) async fn put(
        &self,
        namespace: &str,
        name: &str,
        files: &[(&str, &str)],
    ) -> (StatusCode, Value) {
        let path = format!("/v1alpha1/n/{namespace}/workloads/{name}");
        read(self.send(&self.admin, Method::PUT, &path, files, &[]).await).await
    }

    pub(crate) async fn send(
        &self,
        token: &str,
        method: Method,
        path: &str,
        files: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> Response {
        let mut request = self
            .client(None)
            .request(method, self.url(path))
            .bearer_auth(token)
            .header("content-type", "application/gzip")
            .body(archive(files));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    }

    pub(crate) async fn send_json(
        &self,
        token: &str,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (StatusCode, Value) {
        let request = self
            .client(None)
            .request(method, self.url(path))
            .bearer_auth(token);
        read(request.json(body).send().await.unwrap()).await
    }

    /// All stored keys with their values, except for the election.
    pub(crate) fn stored(&self) -> Vec<(String, Vec<u8>)> {
        let items = self.store.peek(keys::ROOT).items.into_iter();
        items
            .filter(|item| !item.key.starts_with(keys::ELECTION))
            .map(|item| (item.key, item.value))
            .collect()
    }

    /// Writes like a leader's plan, and waits until the API's copy has it.
    pub(crate) async fn write(&self, operations: &[WriteOperation]) {
        self.store.write_now(operations);
        assert!(
            self.handle
                .wait_for_revision(self.store.revision(), DEADLINE)
                .await
        );
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        tokio::time::timeout(DEADLINE, self.running)
            .await
            .unwrap()
            .unwrap();
    }
}

pub(crate) async fn read(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (status, value)
}

pub(crate) fn issue_node(authority: &Authority, name: &str, now: Timestamp) -> CertificateKeyPair {
    authority.issue(&node_kind(name), now).unwrap()
}

pub(crate) fn node_kind(name: &str) -> LeafKind {
    LeafKind::Node {
        name: name.to_owned(),
        cluster_uid: None,
        addresses: vec!["127.0.0.1".parse().unwrap()],
    }
}

pub(crate) fn api_kind(name: &str) -> LeafKind {
    LeafKind::Api {
        name: name.to_owned(),
        cluster_uid: CLUSTER_UID.to_owned(),
        names: ApiNames::Both,
        addresses: vec!["127.0.0.1".parse().unwrap()],
    }
}

/// The hash by which the cluster knows a certificate's key.
pub(crate) fn key_hash(leaf: &CertificateKeyPair) -> String {
    tls::public_key_hash(&leaf.certificate_pem).unwrap()
}

pub(crate) fn server_name() -> String {
    api_server_name(CLUSTER_UID)
}

pub(crate) fn put<T: serde::Serialize>(key: String, value: &T) -> WriteOperation {
    let value = kat_types::encoding::json::bytes(&key, value).unwrap();
    WriteOperation::Put(key, value)
}

pub(crate) fn namespace(now: Timestamp) -> NamespaceRecord {
    NamespaceRecord {
        schema: 1,
        uid: "namespace-uid".to_owned(),
        labels: Default::default(),
        created: now,
        deleting: false,
        quota: Default::default(),
        access: Default::default(),
        ingress_hosts: None,
        defaults: Default::default(),
    }
}

pub(crate) fn registration() -> NodeRegistration {
    serde_json::from_value(json!({
        "schema": 1, "uid": NODE_UID, "identityKey": "", "architecture": "amd64", "etcd": true,
        "created": "2026-01-01T00:00:00Z"
    }))
    .unwrap()
}

pub(crate) fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let files: Vec<_> = files
        .iter()
        .map(|(name, text)| SourceFile {
            name: (*name).to_owned(),
            text: (*text).to_owned(),
        })
        .collect();
    pack(&files).unwrap()
}

/// `workload.kat` of a Service.
pub(crate) fn web(namespace: &str, name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata:
  name: {name}
  namespace: {namespace}
  labels: {{team: shop}}
spec:
  type: Service
  source:
    image: registry.lab:5000/web:1
  replicas: {replicas}
  restartPolicy:
    condition: Always
  container:
    env:
      - {{name: PASSWORD, value: correct-horse}}
"
    )
}

/// Reads a stream of JSON lines.
pub(crate) struct LinesOf {
    response: Response,
    buffer: Vec<u8>,
}

impl LinesOf {
    pub(crate) fn new(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        Self {
            response,
            buffer: Vec::new(),
        }
    }

    /// The next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk()).await;
            let chunk = chunk.expect("the stream says nothing").ok()??;
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

/// An instance of `shop/web` on n1.
pub(crate) fn assignment() -> Value {
    json!({
        "schema": 1, "instance": "web-abcde", "namespace": "shop", "workload": "web",
        "workloadUid": "u", "workloadType": "Service", "slot": 0, "generation": 1,
        "templateHash": "h", "address": "10.100.0.5", "image": "web:1",
        "user": {"index": 0, "name": "kat-shop-web", "uid": 20000, "subordinateStart": 1879048192, "subordinateCount": 65536},
        "container": {"env": [{"name": "PASSWORD", "value": "correct-horse"}]},
        "restartPolicy": {"condition": "Always"}
    })
}

/// Stores the instance of [`assignment`] and its workload.
pub(crate) async fn with_instance(server: &Server) {
    let meta = json!({"schema": 1, "revision": 1, "count": 1});
    server
        .put("shop", "web", &[("workload.kat", &web("shop", "web", 1))])
        .await;
    server
        .write(&[
            put(keys::desired_instance("n1", "web-abcde"), &assignment()),
            put(keys::desired_meta("n1"), &meta),
        ])
        .await;
}
