//! One leader with many simulated machines; `contrib/bench/scale` says what is measured.

#![allow(
    clippy::disallowed_methods,
    reason = "a value without JSON ends the run"
)]

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use futures_util::stream;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use kat_api::{
    ApiConfig, ApiLimits, ApiListeners, InputFrames, InstanceLogs, InstanceSessions, LogStream,
    LoggedWorkload, LogsError, OutputFrames, SessionError, SessionRequest, TlsListener, new_token,
    random_uid, serve,
};
use kat_bundle::{SourceFile, pack};
use kat_client::{Client, ClientError, ClientOptions, StateConnection};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{LeaderConfig, MemberClients, MembersConfig, keep_members, start};
use kat_pki::{
    ApiNames, ApiServers, Authority, AuthorityKind, CertificateKeyPair, LeafKind, PkiError,
    ServerMemory, create_key, create_request_for_key, key_hash, load_recovery_keys,
    recovery_key::RecoveryKey, state_server_name, store_recovery_key, tls,
};
use kat_store::{
    EtcdOptions, EtcdStore, EtcdTls, Mirror, StateFrames, StateSource, StateSourceError,
    StateStore, StoreError, TransactionResult, etcd_admin, follow_source,
};
use kat_types::{
    api::{
        Connection, GoneInstances, Health, InstancePhase, InstanceReport, LogQuery,
        MainContainerState, NodeReport, NodeResources, NodeUsage, Scope,
    },
    assignment::{Assignment, DesiredMeta},
    encoding::state_frames::StatePosition,
    resource::{Bytes, MilliCpu, ResourceList},
    store::{
        keys,
        records::{NamespaceRecord, NodeRegistration},
        snapshot::InstanceEntry,
        transaction::WriteOperation,
    },
};

const MACHINES: usize = 100;
const WORKLOADS: usize = 100;
const REPLICAS: usize = 100;
/// Number of reports that are timed from sending to the stored status.
const REPORTS: usize = 50;
const TICK: Duration = Duration::from_secs(15);
const NAMESPACE: &str = "default";
const CLUSTER_UID: &str = "3f0c9a52-7a7e-4a43-9a0b-0d5a7f6f4f11";
/// In place of the leading machine's overlay address.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 79, 0, 1);
/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(300);

fn machine(number: usize) -> String {
    format!("m{number:03}")
}

fn say(text: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match std::env::var_os("KAT_BENCH_LEADER") {
        Some(folder) => runtime.block_on(lead(&Place::read(Path::new(&folder))?)),
        None => runtime.block_on(measure()),
    }
}

/// State shared by the leader and the agents.
struct Place {
    folder: PathBuf,
    client_port: u16,
    peer_port: u16,
    api_port: u16,
    metrics_port: u16,
}

impl Place {
    fn new(folder: &Path) -> anyhow::Result<Self> {
        let recovery = RecoveryKey::generate()?;
        store_recovery_key(folder, &recovery)?;
        for kind in [
            AuthorityKind::Cluster,
            AuthorityKind::EtcdClients,
            AuthorityKind::EtcdPeers,
        ] {
            Authority::generate(kind, CLUSTER_UID, Timestamp::now())?.store(folder, &recovery)?;
        }
        let mut ports = [0_u16; 4];
        for port in &mut ports {
            *port = std::net::TcpListener::bind((ADDRESS, 0))?
                .local_addr()?
                .port();
        }
        fs::write(folder.join("ports"), serde_json::to_vec(&ports)?)?;
        Self::read(folder)
    }

    fn read(folder: &Path) -> anyhow::Result<Self> {
        let ports: [u16; 4] = serde_json::from_slice(&fs::read(folder.join("ports"))?)?;
        let [client_port, peer_port, api_port, metrics_port] = ports;
        Ok(Self {
            folder: folder.to_owned(),
            client_port,
            peer_port,
            api_port,
            metrics_port,
        })
    }

    fn authority(&self, kind: AuthorityKind) -> anyhow::Result<Authority> {
        let recovery = load_recovery_keys(&self.folder)?;
        Ok(Authority::load(&self.folder, kind, &recovery)?)
    }

    fn leaf(
        &self,
        authority: AuthorityKind,
        kind: &LeafKind,
    ) -> anyhow::Result<CertificateKeyPair> {
        let authority = self.authority(authority)?;
        Ok(authority.issue(kind, Timestamp::now())?)
    }

    fn etcd_options(&self, kind: &LeafKind) -> anyhow::Result<EtcdOptions> {
        let identity = self.leaf(AuthorityKind::EtcdClients, kind)?;
        let authority = self.authority(AuthorityKind::EtcdClients)?;
        let tls = EtcdTls {
            authority: authority.certificate_pem().to_owned(),
            certificate: identity.certificate_pem,
            key: identity.key_pem,
        };
        let url = format!("https://{ADDRESS}:{}", self.client_port);
        Ok(EtcdOptions::new(vec![url], Some(tls)))
    }

    async fn leader_store(&self) -> anyhow::Result<EtcdStore> {
        let kind = LeafKind::Leader { name: machine(0) };
        Ok(EtcdStore::connect(&self.etcd_options(&kind)?).await?)
    }

    fn api(&self) -> SocketAddr {
        SocketAddr::from((ADDRESS, self.api_port))
    }

    /// Starts etcd like `kat-etcd.service`.
    fn start_etcd(&self) -> anyhow::Result<Process> {
        let addresses = vec![IpAddr::V4(ADDRESS), IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let name = machine(0);
        let server = LeafKind::EtcdServer {
            name: name.clone(),
            addresses: addresses.clone(),
        };
        let peer = LeafKind::EtcdPeer { name, addresses };
        for (file, authority, kind) in [
            ("server", AuthorityKind::EtcdClients, server),
            ("peer", AuthorityKind::EtcdPeers, peer),
        ] {
            let identity = self.leaf(authority, &kind)?;
            fs::write(
                self.folder.join(format!("{file}.crt")),
                &identity.certificate_pem,
            )?;
            fs::write(self.folder.join(format!("{file}.key")), &identity.key_pem)?;
        }
        let path = |file: &str| self.folder.join(file).display().to_string();
        let client_url = format!("https://{ADDRESS}:{}", self.client_port);
        let peer_url = format!("https://{ADDRESS}:{}", self.peer_port);
        let child = Command::new(etcd_program()?)
            .args(["--client-cert-auth", "--peer-client-cert-auth"])
            .args(["--heartbeat-interval=100", "--election-timeout=1000"])
            .args([
                "--auto-compaction-mode=periodic",
                "--auto-compaction-retention=10m",
            ])
            .args(["--enable-grpc-gateway=false", "--log-level=warn"])
            .arg(format!("--name={}", machine(0)))
            .arg(format!("--data-dir={}", path("data")))
            .arg(format!("--listen-client-urls={client_url}"))
            .arg(format!("--advertise-client-urls={client_url}"))
            .arg(format!("--listen-peer-urls={peer_url}"))
            .arg(format!("--initial-advertise-peer-urls={peer_url}"))
            .arg(format!("--initial-cluster={}={peer_url}", machine(0)))
            .arg(format!(
                "--listen-metrics-urls=http://{ADDRESS}:{}",
                self.metrics_port
            ))
            .arg(format!("--trusted-ca-file={}", path("etcd-client-ca.crt")))
            .arg(format!("--cert-file={}", path("server.crt")))
            .arg(format!("--key-file={}", path("server.key")))
            .arg(format!(
                "--peer-trusted-ca-file={}",
                path("etcd-peer-ca.crt")
            ))
            .arg(format!("--peer-cert-file={}", path("peer.crt")))
            .arg(format!("--peer-key-file={}", path("peer.key")))
            .env("ETCD_QUOTA_BACKEND_BYTES", "2147483648")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.folder.join("etcd.log"))?)
            .spawn()
            .context("etcd does not start")?;
        Ok(Process(child))
    }

    /// The number of watches that etcd has open.
    fn watches(&self) -> anyhow::Result<u64> {
        let mut connection = TcpStream::connect((ADDRESS, self.metrics_port))?;
        write!(connection, "GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        connection.read_to_string(&mut page)?;
        let count = page
            .lines()
            .find_map(|line| line.strip_prefix("etcd_debugging_mvcc_watcher_total "));
        Ok(count.context("etcd does not count its watches")?.parse()?)
    }

    /// Starts the leader in a process of its own.
    fn start_leader(&self) -> anyhow::Result<Process> {
        let child = Command::new(std::env::current_exe()?)
            .env("KAT_BENCH_LEADER", &self.folder)
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Process(child))
    }
}

fn etcd_program() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("KAT_ETCD") {
        return Ok(named.into());
    }
    let roots = fs::read_dir("/var/cache/kat-lab")
        .into_iter()
        .flatten()
        .flatten();
    let of_labs = roots.map(|root| root.path().join("usr/bin/etcd"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path: Vec<PathBuf> = std::env::split_paths(&path)
        .map(|folder| folder.join("etcd"))
        .collect();
    let mut all = of_labs.chain(of_path);
    all.find(|path| path.is_file())
        .context("no etcd: set KAT_ETCD, build the lab's root, or install etcd-server")
}

/// A child process that is killed when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process has used so far, and its current memory.
#[derive(Clone, Copy)]
struct Usage {
    /// Seconds of processor time.
    processor: f64,
    /// Proportional set size in KiB.
    memory: u64,
    /// Bytes written to the disk.
    written: u64,
}

impl Process {
    fn usage(&self) -> anyhow::Result<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.0.id()));
        let stat = fs::read_to_string(folder.join("stat"))?;
        let (_, after) = stat.rsplit_once(") ").context("stat")?;
        let fields: Vec<&str> = after.split(' ').collect();
        let ticks = |index: usize| -> anyhow::Result<f64> {
            Ok(fields.get(index).context("stat")?.parse::<f64>()?)
        };
        let number = |file: &str, name: &str| -> anyhow::Result<u64> {
            let text = fs::read_to_string(folder.join(file))?;
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            Ok(word
                .with_context(|| format!("{file} has no {name}"))?
                .parse()?)
        };
        Ok(Usage {
            // `/proc/PID/stat` counts in hundredths of a second.
            processor: (ticks(11)? + ticks(12)?) / 100.0,
            memory: number("smaps_rollup", "Pss:")?,
            written: number("io", "write_bytes:")?,
        })
    }
}

struct NoLogs;

#[async_trait]
impl InstanceLogs for NoLogs {
    async fn open(&self, _: &InstanceEntry, _: LogQuery) -> Result<LogStream, LogsError> {
        Ok(Box::pin(stream::empty()))
    }

    async fn gone(&self, _: &LoggedWorkload, _: &[String]) -> GoneInstances {
        GoneInstances::default()
    }

    async fn open_gone(
        &self,
        _: &LoggedWorkload,
        _: &str,
        _: &str,
        _: LogQuery,
    ) -> Result<Option<LogStream>, LogsError> {
        Ok(None)
    }
}

#[async_trait]
impl InstanceSessions for NoLogs {
    async fn begin(
        &self,
        _: Option<&str>,
        _: &InstanceEntry,
        _: SessionRequest,
        _: InputFrames,
    ) -> Result<OutputFrames, SessionError> {
        Err(SessionError::Unavailable(
            "there are no sessions".to_owned(),
        ))
    }

    async fn usage(&self, _: &str, _: &[InstanceEntry]) -> Result<NodeUsage, SessionError> {
        Ok(NodeUsage::default())
    }
}

/// Runs the leader's part of `kat-agent run`.
async fn lead(place: &Place) -> anyhow::Result<()> {
    let store = place.leader_store().await?;
    let clock: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(Timestamp::now);
    let cancel = CancellationToken::new();
    let pulses = LoopPulses::default();
    let handle = start(
        Arc::new(store.clone()),
        LeaderConfig {
            candidate: machine(0),
            lease: Duration::from_secs(5),
            endpoint: Arc::new({
                let endpoint = place.api().to_string();
                move || endpoint.clone()
            }),
            clock: Arc::clone(&clock),
            pulses: pulses.clone(),
            sealing: watch::Sender::new(kat_plan::SnapshotSealing::None).subscribe(),
        },
        cancel.clone(),
    );
    let template = place.etcd_options(&LeafKind::Leader { name: machine(0) })?;
    let options = move |url: &str| {
        Ok::<_, StoreError>(EtcdOptions {
            endpoints: vec![url.to_owned()],
            ..template.clone()
        })
    };
    let clients = Arc::new(MemberClients::new(&store, Arc::new(options)));
    let members = MembersConfig {
        node: machine(0),
        client_port: place.client_port,
        peer_port: place.peer_port,
        clock: Arc::clone(&clock),
        etcd: Arc::clone(&clients) as _,
        upkeep: clients,
        quota: 2 << 30,
        retry: Duration::from_secs(60),
        pulses: pulses.clone(),
    };
    tokio::spawn(keep_members(handle.clone(), members, cancel.clone()));
    let kind = LeafKind::Api {
        name: machine(0),
        cluster_uid: CLUSTER_UID.to_owned(),
        names: ApiNames::Both,
        addresses: vec![IpAddr::V4(ADDRESS)],
    };
    let leaf = place.leaf(AuthorityKind::Cluster, &kind)?;
    let authority = place.authority(AuthorityKind::Cluster)?;
    let authority = authority.certificate_pem();
    let identity = tls::CurrentIdentity::new(&leaf, authority)?;
    let config = tls::server_config(identity, tls::CurrentTrust::new(authority)?)?;
    let listeners = ApiListeners {
        tls: vec![TlsListener {
            listener: tokio::net::TcpListener::bind(place.api()).await?,
            config: Arc::new(move || Arc::clone(&config)),
            leader: Arc::new(Vec::<String>::new()),
            stands_in: false,
            state_route: None,
            own_route: None,
        }],
        sockets: Vec::new(),
    };
    let api = ApiConfig {
        images: None,
        handle,
        logs: Arc::new(NoLogs),
        sessions: Arc::new(NoLogs),
        clock,
        new_uid: Arc::new(random_uid),
        node_name: machine(0),
        limits: ApiLimits::default(),
        pulses,
        joining: None,
        relay: None,
    };
    serve(api, listeners, cancel).await;
    bail!("the API ended")
}

/// An agent's report about the instances on its list.
fn report_of(node: &str, list: &[Assignment], revision: u64, restarts: u32) -> NodeReport {
    let instances = list
        .iter()
        .enumerate()
        .map(|(number, assignment)| InstanceReport {
            workload_name: assignment.workload.clone(),
            namespace: assignment.namespace.clone(),
            instance_id: assignment.instance.clone(),
            state: MainContainerState::Running,
            phase: InstancePhase::Running,
            health_status: Health::NotApplicable,
            // The instance that `latencies` restarts.
            restarts: if number == 0 { restarts } else { 0 },
            template_hash: assignment.template_hash.clone(),
            memory: Some(20 << 20),
            // Grows with each report, as that of real programs.
            cpu: u64::try_from(Timestamp::now().as_millisecond()).ok(),
            ..InstanceReport::default()
        });
    let all = ResourceList {
        cpu: Some(MilliCpu(16_000)),
        memory: Some(Bytes(64 << 30)),
        storage: None,
    };
    NodeReport {
        node_name: node.to_owned(),
        node_uid: node.to_owned(),
        timestamp: Timestamp::now().as_second(),
        resources: NodeResources {
            capacity: all,
            allocatable: all,
        },
        workload_instances: instances.collect(),
        version: kat_types::VERSION.to_owned(),
        architecture: "amd64".to_owned(),
        desired_revision: revision,
        ..NodeReport::default()
    }
}

/// The state stream of the leader's API, as a machine without the store reads it.
struct LeaderStream {
    place: Arc<Place>,
    node: String,
    identity: Arc<tls::CurrentIdentity>,
    authority: String,
}

impl LeaderStream {
    async fn connect(
        &self,
        resume: Option<StatePosition>,
    ) -> Result<StateConnection, StateSourceError> {
        let unreachable = |error: ClientError| StateSourceError::Unreachable(error.to_string());
        let refused = |error: PkiError| StateSourceError::Refused(error.to_string());
        let servers = ApiServers::Named(ServerMemory::new(true));
        let identity = Some(Arc::clone(&self.identity));
        let config = tls::client_config(&self.authority, CLUSTER_UID, identity, servers);
        let client = Client::of_state_server(
            &self.place.api().to_string(),
            &state_server_name(CLUSTER_UID),
            config.map_err(refused)?,
            ClientOptions::default(),
        );
        let client = client.map_err(unreachable)?;
        let opened = client.state_stream(&self.node, resume).await;
        opened.map_err(unreachable)
    }
}

#[async_trait]
impl StateSource for LeaderStream {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let connection = self.connect(resume).await?;
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

/// One simulated agent. It follows its list and reports at every tick and when the list or
/// `restarts` changes.
async fn agent(
    place: Arc<Place>,
    key: String,
    number: usize,
    mut restarts: watch::Receiver<u32>,
) -> anyhow::Result<()> {
    let node = machine(number);
    let kind = LeafKind::Node {
        name: node.clone(),
        cluster_uid: None,
        addresses: vec![IpAddr::V4(ADDRESS)],
    };
    let authority = place.authority(AuthorityKind::Cluster)?;
    let request = create_request_for_key(&kind.common_name(), &key)?;
    let certificate = authority.sign_request(&request, &kind, Timestamp::now())?;
    let authority = authority.certificate_pem();
    let client = Client::of_machine(
        &[place.api().to_string()],
        CLUSTER_UID,
        authority,
        Some(&format!("{certificate}{key}")),
        &ApiServers::Named(ServerMemory::new(true)),
        ClientOptions::default(),
    )?;
    let leaf = CertificateKeyPair {
        certificate_pem: certificate,
        key_pem: key,
    };
    let source = LeaderStream {
        place: Arc::clone(&place),
        node: node.clone(),
        identity: tls::CurrentIdentity::new(&leaf, authority)?,
        authority: authority.to_owned(),
    };
    let cancel = CancellationToken::new();
    let mut mirror = follow_source(Arc::new(source), cancel);
    let (mut list, mut revision) = (Vec::new(), 0);
    // Spreads the agents' reports over the interval.
    let mut next_report = Instant::now() + TICK.mul_f64(number as f64 / MACHINES as f64);
    loop {
        tokio::select! {
            state = mirror.changed() => {
                let state = state?;
                let meta = state.get(&keys::desired_meta(&node));
                let meta = meta.and_then(|meta| serde_json::from_slice::<DesiredMeta>(&meta.value).ok());
                let instances = keys::desired_instances(&node);
                let read: Vec<Assignment> = state
                    .below(&instances)
                    .filter_map(|entry| serde_json::from_slice(&entry.value).ok())
                    .collect();
                let Some(meta) = meta.filter(|meta| meta.count == read.len()) else {
                    continue;
                };
                // The stream tells of names and the network too; these are nothing to report.
                if meta.revision == revision && read == list {
                    continue;
                }
                (list, revision) = (read, meta.revision);
            }
            changed = restarts.changed() => changed?,
            () = tokio::time::sleep_until(next_report.into()) => {}
        }
        let report = report_of(&node, &list, revision, *restarts.borrow_and_update());
        if let Err(error) = client.report(&node, &report).await {
            writeln!(std::io::stderr(), "{node}: {error}")?;
        }
        next_report = Instant::now() + TICK;
    }
}

async fn until<T, F: Future<Output = anyhow::Result<Option<T>>>>(
    sentence: &str,
    mut look: impl FnMut() -> F,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        ensure!(
            Instant::now() < deadline,
            "{sentence}: not within {LIMIT:?}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Stores what `init` and the joins would store; returns an administrator's token.
async fn seed(store: &EtcdStore, machine_keys: &[String]) -> anyhow::Result<String> {
    fn put<T: serde::Serialize>(key: String, value: &T) -> anyhow::Result<WriteOperation> {
        Ok(WriteOperation::Put(key, serde_json::to_vec(value)?))
    }
    let now = Timestamp::now();
    let token = new_token(Scope::Admin, "bench", now, None)?;
    let namespace = NamespaceRecord {
        schema: 1,
        uid: "namespace".to_owned(),
        labels: Default::default(),
        created: now,
        deleting: false,
        quota: Default::default(),
        access: Default::default(),
        ingress_hosts: None,
        defaults: Default::default(),
    };
    let mut operations = vec![
        WriteOperation::Put(keys::CLUSTER_UID.to_owned(), CLUSTER_UID.into()),
        put(
            keys::CLUSTER.to_owned(),
            &json!({"metadata": {"name": "bench"}, "spec": {}}),
        )?,
        put(keys::namespace(NAMESPACE), &namespace)?,
        put(keys::token(&token.id), &token.record)?,
    ];
    for (number, key) in machine_keys.iter().enumerate() {
        let name = machine(number);
        let registration: NodeRegistration = serde_json::from_value(json!({
            "schema": 1, "uid": name, "identityKey": key_hash(key)?, "architecture": "amd64",
            "etcd": number == 0, "noEtcd": number != 0, "created": now,
        }))?;
        let list = DesiredMeta {
            schema: 1,
            revision: 1,
            count: 0,
            ..DesiredMeta::default()
        };
        let subnet = match number {
            0 => format!("{ADDRESS}/23"),
            _ => format!("10.100.{}.0/23", 2 * number),
        };
        let subnet: ipnet::Ipv4Net = subnet.parse()?;
        operations.extend([
            put(keys::registration(&name), &registration)?,
            put(keys::desired_meta(&name), &list)?,
            WriteOperation::Put(
                keys::network_node(&name, "subnet"),
                subnet.trunc().to_string().into_bytes(),
            ),
        ]);
    }
    for part in operations.chunks(100) {
        let written = store.transact(&[], part).await?;
        ensure!(
            matches!(written, TransactionResult::Yes(_)),
            "the store is not empty"
        );
    }
    etcd_admin::bootstrap_auth(store, &machine(0), &[]).await?;
    Ok(token.token)
}

async fn apply_all(client: &Client) -> anyhow::Result<()> {
    for number in 0..WORKLOADS {
        let name = format!("web-{number}");
        let file = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": name},
            "spec": {
                "type": "Service",
                "source": {"image": "registry.example/web:1"},
                "replicas": REPLICAS,
                "restartPolicy": {"condition": "Always"},
                "container": {"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
            },
        });
        let file = SourceFile {
            name: "workload.kat".to_owned(),
            text: file.to_string(),
        };
        let archive = pack(&[file])?.into();
        client.apply(NAMESPACE, &name, archive, false, None).await?;
    }
    Ok(())
}

fn seconds(name: &str, default: u64) -> anyhow::Result<Duration> {
    let seconds = match std::env::var(name) {
        Ok(text) => text
            .parse()
            .with_context(|| format!("{name} is no number"))?,
        Err(_) => default,
    };
    Ok(Duration::from_secs(seconds))
}

async fn measure() -> anyhow::Result<()> {
    let (settle, window) = (seconds("SETTLE", 20)?, seconds("WINDOW", 60)?);
    let folder = tempfile::tempdir()?;
    let place = Arc::new(Place::new(folder.path())?);
    let etcd = place.start_etcd()?;
    let store = place.leader_store().await?;
    until("etcd serves", async || Ok(store.health().await.ok())).await?;
    let machine_keys = (0..MACHINES).map(|_| create_key());
    let machine_keys = machine_keys.collect::<Result<Vec<_>, _>>()?;
    let token = seed(&store, &machine_keys).await?;
    let leader = place.start_leader()?;
    let mut agents = tokio::task::JoinSet::new();
    let mut restarts = Vec::new();
    for (number, key) in machine_keys.into_iter().enumerate() {
        let (sender, receiver) = watch::channel(0);
        restarts.push(sender);
        agents.spawn(agent(Arc::clone(&place), key, number, receiver));
    }
    let authority = place.authority(AuthorityKind::Cluster)?;
    let connection = Connection {
        cluster: "bench".to_owned(),
        cluster_uid: CLUSTER_UID.to_owned(),
        endpoints: vec![place.api().to_string()],
        ca: authority.certificate_pem().to_owned(),
        token,
        namespace: None,
        api_name_required: true,
    };
    let client = Client::from_connection(&connection, ClientOptions::default())?;
    let ready = async || {
        let nodes = client
            .nodes()
            .await
            .map(|list| list.items)
            .unwrap_or_default();
        let ready = nodes
            .iter()
            .filter(|node| node.status.phase == kat_types::api::NodePhase::Ready);
        Ok((ready.count() == MACHINES).then_some(()))
    };
    until("every machine is Ready", ready).await?;
    let begun = Instant::now();
    apply_all(&client).await?;
    let applied = begun.elapsed();
    let whole = async || {
        let list = client.workloads(None).await?;
        let ready: u32 = list.items.iter().map(|item| item.status.ready).sum();
        Ok((usize::try_from(ready)? == WORKLOADS * REPLICAS).then_some(()))
    };
    until("every instance is ready", whole).await?;
    say(&format!(
        "{MACHINES} machines, {} instances: applied in {:.1} s, all ready after {:.1} s",
        WORKLOADS * REPLICAS,
        applied.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    ))?;

    tokio::time::sleep(settle).await;
    let before = (
        leader.usage()?,
        etcd.usage()?,
        etcd_admin::status(&store).await?,
    );
    let begun = Instant::now();
    tokio::time::sleep(window).await;
    let took = begun.elapsed().as_secs_f64();
    let after = (
        leader.usage()?,
        etcd.usage()?,
        etcd_admin::status(&store).await?,
    );
    say(&format!(
        "at rest for {took:.0} s        % of a core   PSS MiB"
    ))?;
    for (name, before, after) in [("leader", before.0, after.0), ("etcd", before.1, after.1)] {
        say(&format!(
            "  {name:<20} {:>13.2} {:>9.1}",
            100.0 * (after.processor - before.processor) / took,
            after.memory as f64 / 1024.0
        ))?;
    }
    say(&format!("  watches in etcd      {:>13}", place.watches()?))?;
    let hour = 3600.0 / took;
    let mib = |bytes: f64| bytes / 1024.0 / 1024.0;
    say(&format!(
        "  an hour of that: {:.0} revisions, {:.1} MiB written to the disk by etcd; {:.1} MiB in use, file {:.1} MiB",
        (after.2.revision - before.2.revision) as f64 * hour,
        mib((after.1.written - before.1.written) as f64 * hour),
        mib(after.2.db_size_in_use as f64),
        mib(after.2.db_size as f64),
    ))?;
    latencies(&store, &restarts).await?;
    agents.abort_all();
    Ok(())
}

/// Measures the time from a machine's report of a restart to its stored status, one machine after
/// another.
async fn latencies(store: &EtcdStore, restarts: &[watch::Sender<u32>]) -> anyhow::Result<()> {
    let store: Arc<dyn StateStore> = Arc::new(store.clone());
    let mut mirror = Mirror::start(store, keys::NODE_STATUS, CancellationToken::new());
    let mut state = mirror.changed().await?;
    let mut times = Vec::new();
    for (number, sender) in restarts.iter().enumerate().take(REPORTS) {
        let key = keys::node_status(&machine(number));
        let known = state.get(&key).map_or(0, |entry| entry.mod_revision);
        let begun = Instant::now();
        sender.send_modify(|restarts| *restarts += 1);
        loop {
            state = tokio::time::timeout(LIMIT, mirror.changed()).await??;
            if state
                .get(&key)
                .is_some_and(|entry| entry.mod_revision > known)
            {
                break;
            }
        }
        times.push(begun.elapsed());
    }
    times.sort();
    let milliseconds = |part: usize| {
        let time = times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    say(&format!(
        "report to status, {} reports: median {:.1} ms, 99 of 100 within {:.1} ms",
        times.len(),
        milliseconds(50),
        milliseconds(99)
    ))
}
