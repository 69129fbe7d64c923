//! Machines on loopback addresses, each with an etcd, an API port and a leader candidate.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::etcd;
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{
    EtcdMembers, LeaderConfig, LeaderHandle, MemberClients, MembersConfig, TakeoverConfig,
    keep_members, start, watch_over,
};
use kat_pki::{Authority, AuthorityKind, CertificateKeyPair, LeafKind};
use kat_store::{
    EtcdOptions, EtcdStore, EtcdTls, StateStore, StoreError, TransactionResult, etcd_admin,
};
use kat_types::{
    api::{Condition, NodeReport},
    store::{keys, members::ClusterMembers, transaction::WriteOperation},
};

/// Time limit of every wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub folder: tempfile::TempDir,
    pub clients: Authority,
    pub peers: Authority,
    pub client_port: u16,
    pub peer_port: u16,
    pub api_port: u16,
    /// Number of registered machines.
    pub machines: u8,
    /// etcd's quota in bytes.
    pub quota: u64,
    /// Node loss timeout in seconds.
    pub loss_timeout: u32,
}

/// One machine: its etcd, its API port and its candidate.
pub(crate) struct Machine {
    pub number: u8,
    pub etcd: Child,
    pub api: JoinHandle<()>,
    pub store: EtcdStore,
    pub handle: Option<LeaderHandle>,
    pub cancel: CancellationToken,
}

pub(crate) fn name(number: u8) -> String {
    format!("n{number}")
}

pub(crate) fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, number, 1)
}

/// Ports of this process's own that the kernel gives to nobody: those that it gives may be in use again
/// before etcd starts, or starts anew.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % 2_000).expect("small") * 10;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(number < 1_000, "no port is free");
        let port = 10_000 + (own + number) % 20_000;
        if TcpListener::bind((address(1), port)).is_ok() {
            return port;
        }
    }
}

/// Waits until `what` returns a value.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    sentence: &str,
    mut what: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = what().await {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "{sentence}: not within {LIMIT:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let _ = tracing_subscriber::fmt()
            .with_env_filter("kat=info")
            .with_test_writer()
            .try_init();
        let authority =
            |kind| Authority::generate(kind, "test", Timestamp::now()).expect("an authority");
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clients: authority(AuthorityKind::EtcdClients),
            peers: authority(AuthorityKind::EtcdPeers),
            client_port: free_port(),
            peer_port: free_port(),
            api_port: free_port(),
            machines: 3,
            quota: 2 << 30,
            loss_timeout: 600,
        }
    }

    pub(crate) fn url(&self, number: u8) -> String {
        format!("https://{}:{}", address(number), self.client_port)
    }

    pub(crate) fn identity(&self, authority: &Authority, kind: &LeafKind) -> CertificateKeyPair {
        authority
            .issue(kind, Timestamp::now())
            .expect("a certificate")
    }

    pub(crate) fn options(&self, leader: &str, urls: Vec<String>) -> EtcdOptions {
        let kind = LeafKind::Leader {
            name: leader.to_owned(),
        };
        let identity = self.identity(&self.clients, &kind);
        let tls = EtcdTls {
            authority: self.clients.certificate_pem().to_owned(),
            certificate: identity.certificate_pem,
            key: identity.key_pem,
        };
        EtcdOptions {
            prefer_first: true,
            ..EtcdOptions::new(urls, Some(tls))
        }
    }

    /// What a machine's etcd has logged.
    fn log(&self, number: u8) -> String {
        let log = self.folder.path().join(name(number)).join("log");
        fs::read_to_string(log).unwrap_or_default()
    }

    /// Starts etcd like `kat-etcd.service`, with these members.
    pub(crate) fn etcd(&self, number: u8, members: &[u8], state: &str) -> Child {
        let own = name(number);
        let folder = self.folder.path().join(&own);
        fs::create_dir_all(&folder).expect("a folder");
        // Connections between loopback addresses have the first one, 127.0.0.1, as their source.
        let addresses = vec![IpAddr::V4(address(number)), IpAddr::V4(Ipv4Addr::LOCALHOST)];
        let server = LeafKind::EtcdServer {
            name: own.clone(),
            addresses: addresses.clone(),
        };
        let peer = LeafKind::EtcdPeer {
            name: own.clone(),
            addresses,
        };
        for (file, authority, kind) in [
            ("server", &self.clients, &server),
            ("peer", &self.peers, &peer),
        ] {
            let identity = self.identity(authority, kind);
            for (ending, text) in [
                ("ca", authority.certificate_pem()),
                ("crt", &identity.certificate_pem),
                ("key", &identity.key_pem),
            ] {
                fs::write(folder.join(format!("{file}.{ending}")), text).expect("written");
            }
        }
        let path = |file: &str| folder.join(file).display().to_string();
        let peer_url = |n: u8| format!("https://{}:{}", address(n), self.peer_port);
        let cluster: Vec<_> = members
            .iter()
            .map(|n| format!("{}={}", name(*n), peer_url(*n)))
            .collect();
        let log = fs::File::create(folder.join("log")).expect("a log");
        Command::new(etcd::program())
            .args(["--client-cert-auth", "--peer-client-cert-auth"])
            .args(["--heartbeat-interval=100", "--election-timeout=1000"])
            .arg(format!("--name={own}"))
            .arg(format!("--data-dir={}", path("data")))
            .arg(format!("--listen-client-urls={}", self.url(number)))
            .arg(format!("--advertise-client-urls={}", self.url(number)))
            .arg(format!("--listen-peer-urls={}", peer_url(number)))
            .arg(format!(
                "--initial-advertise-peer-urls={}",
                peer_url(number)
            ))
            .arg(format!("--initial-cluster={}", cluster.join(",")))
            .arg(format!("--initial-cluster-state={state}"))
            .arg(format!("--trusted-ca-file={}", path("server.ca")))
            .arg(format!("--cert-file={}", path("server.crt")))
            .arg(format!("--key-file={}", path("server.key")))
            .arg(format!("--peer-trusted-ca-file={}", path("peer.ca")))
            .arg(format!("--peer-cert-file={}", path("peer.crt")))
            .arg(format!("--peer-key-file={}", path("peer.key")))
            .env("ETCD_QUOTA_BACKEND_BYTES", self.quota.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts")
    }

    /// A machine with its etcd and API port. It does not campaign yet.
    pub(crate) async fn machine(&self, number: u8, members: &[u8], state: &str) -> Machine {
        let etcd = self.etcd(number, members, state);
        let mut urls = vec![self.url(number)];
        urls.extend(
            members
                .iter()
                .filter(|n| **n != number)
                .map(|n| self.url(*n)),
        );
        let options = self.options(&name(number), urls);
        let store = EtcdStore::connect(&options).await.expect("a client");
        let listener = tokio::net::TcpListener::bind((address(number), self.api_port))
            .await
            .expect("a port");
        let api = tokio::spawn(async move {
            loop {
                let _ = listener.accept().await;
            }
        });
        Machine {
            number,
            etcd,
            api,
            store,
            handle: None,
            cancel: CancellationToken::new(),
        }
    }

    /// Starts the machine's candidate, as on every member of etcd.
    pub(crate) fn campaign(&self, machine: &mut Machine) {
        let node = name(machine.number);
        let clock: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(Timestamp::now);
        let handle = start(
            Arc::new(machine.store.clone()),
            LeaderConfig {
                candidate: node.clone(),
                lease: Duration::from_secs(5),
                endpoint: {
                    let api = SocketAddr::from((address(machine.number), self.api_port));
                    Arc::new(move || api.to_string())
                },
                clock: Arc::clone(&clock),
                pulses: LoopPulses::default(),
                sealing: tokio::sync::watch::Sender::new(kat_plan::SnapshotSealing::None)
                    .subscribe(),
            },
            machine.cancel.clone(),
        );
        let template = self.options(&node, Vec::new());
        let options = move |url: &str| {
            Ok::<_, StoreError>(EtcdOptions {
                endpoints: vec![url.to_owned()],
                ..template.clone()
            })
        };
        let clients = Arc::new(MemberClients::new(&machine.store, Arc::new(options)));
        let etcd: Arc<dyn EtcdMembers> = Arc::clone(&clients) as _;
        let members = MembersConfig {
            node: node.clone(),
            client_port: self.client_port,
            peer_port: self.peer_port,
            clock,
            etcd: Arc::clone(&etcd),
            upkeep: clients,
            quota: self.quota,
            retry: Duration::from_secs(2),
            pulses: LoopPulses::default(),
        };
        tokio::spawn(keep_members(
            handle.clone(),
            members,
            machine.cancel.clone(),
        ));
        let takeover = TakeoverConfig {
            node,
            api_port: self.api_port,
            own_url: self.url(machine.number),
            etcd,
        };
        tokio::spawn(watch_over(handle.clone(), takeover, machine.cancel.clone()));
        machine.handle = Some(handle);
    }

    /// The first machine, with all machines stored as Ready.
    pub(crate) async fn first(&self) -> Machine {
        let mut machine = self.seeded().await;
        self.campaign(&mut machine);
        machine
    }

    /// Like [`Self::first`], before the machine campaigns.
    pub(crate) async fn seeded(&self) -> Machine {
        let mut machine = self.machine(1, &[1], "new").await;
        let Machine { etcd, store, .. } = &mut machine;
        until("the first etcd serves", || {
            if let Ok(Some(ended)) = etcd.try_wait() {
                panic!("etcd ended: {ended}\n{}", self.log(1));
            }
            let store = store.clone();
            async move { store.health().await.ok() }
        })
        .await;
        let mut operations = vec![json(
            keys::CLUSTER.to_owned(),
            &json!({"metadata": {"name": "kat"}, "spec": {"nodeLossTimeoutSeconds": self.loss_timeout}}),
        )];
        for number in 1..=self.machines {
            let registration = json!({
                "schema": 1, "uid": name(number), "identityKey": name(number),
                "architecture": "amd64", "etcd": number == 1,
                "created": format!("2026-01-0{number}T00:00:00Z"),
            });
            let subnet = format!("127.77.{number}.0/24");
            let status = json!({"schema": 1, "phase": "Ready", "since": "2026-01-05T00:00:00Z"});
            operations.extend([
                json(keys::registration(&name(number)), &registration),
                json(keys::node_status(&name(number)), &status),
                WriteOperation::Put(
                    keys::network_node(&name(number), "subnet"),
                    subnet.into_bytes(),
                ),
            ]);
        }
        let written = machine.store.transact(&[], &operations).await;
        assert!(
            matches!(written, Ok(TransactionResult::Yes(_))),
            "{written:?}"
        );
        etcd_admin::bootstrap_auth(&machine.store, "n1", &["n1"])
            .await
            .expect("users");
        machine
    }

    pub(crate) async fn three(&self) -> Vec<Machine> {
        self.grow(3).await
    }

    /// This many machines. Each starts etcd once it is listed as a member.
    pub(crate) async fn grow(&self, count: usize) -> Vec<Machine> {
        let mut machines = vec![self.first().await];
        self.join(&mut machines, count).await;
        machines
    }

    /// The other machines become members, until there are `count`.
    pub(crate) async fn join(&self, machines: &mut Vec<Machine>, count: usize) {
        let begun = Instant::now();
        while machines.len() < count {
            let known: Vec<u8> = machines.iter().map(|machine| machine.number).collect();
            let store = machines[0].store.clone();
            let members = until("the next member is written down", async || {
                let members = members(&store).await?;
                let numbers: Vec<u8> = members.members.keys().map(|n| number(n)).collect();
                (numbers.len() > known.len()).then_some(numbers)
            })
            .await;
            let new = *members
                .iter()
                .find(|n| !known.contains(n))
                .expect("a new one");
            machines.push(self.machine(new, &members, "existing").await);
        }
        let store = machines[0].store.clone();
        until("all of them vote and are well", async || {
            (well(&store).await? == count).then_some(())
        })
        .await;
        println!("{count} members after {:?}", begun.elapsed());
        for machine in machines.iter_mut().skip(1) {
            until("it reads by itself", async || {
                let list = machine.store.list(keys::CONFIG).await.ok()?;
                (!list.items.is_empty()).then_some(())
            })
            .await;
            self.campaign(machine);
        }
        until("all of them stand for election", async || {
            let list = store.list(keys::ELECTION).await.ok()?;
            (list.items.len() == count).then_some(())
        })
        .await;
    }

    pub(crate) async fn at(&self, number: u8) -> EtcdStore {
        let options = self.options("n1", vec![self.url(number)]);
        EtcdStore::connect(&options).await.expect("a client")
    }
}

impl Machine {
    pub(crate) fn handle(&self) -> &LeaderHandle {
        self.handle.as_ref().expect("it campaigns")
    }

    pub(crate) fn leads(&self) -> bool {
        self.handle().leadership.borrow().is_some()
    }

    /// The machine's disk is lost or replaced: etcd ends and its data is deleted.
    pub(crate) fn lose_data(&mut self, cluster: &Cluster) {
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
        let data = cluster.folder.path().join(name(self.number)).join("data");
        fs::remove_dir_all(data).expect("there was data");
    }

    /// Cuts the machine's power.
    pub(crate) fn kill(&mut self) {
        self.api.abort();
        let _ = self.etcd.kill();
        let _ = self.etcd.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.kill();
    }
}

pub(crate) fn json<T: serde::Serialize>(key: String, value: &T) -> WriteOperation {
    WriteOperation::Put(key, serde_json::to_vec(value).expect("plain data"))
}

pub(crate) fn number(name: &str) -> u8 {
    name.trim_start_matches('n').parse().expect("a number")
}

pub(crate) async fn members(store: &EtcdStore) -> Option<ClusterMembers> {
    let key = store.get(keys::MEMBERS).await.ok()??;
    serde_json::from_slice(&key.value).ok()
}

/// The number of voting members that answer.
pub(crate) async fn well(store: &EtcdStore) -> Option<usize> {
    let members = members(store).await?;
    let well = members.members.values();
    Some(well.filter(|one| one.voting && one.healthy).count())
}

/// Sends the reports of all machines until the task is aborted. `condition` is added to one
/// machine's reports.
pub(crate) fn reports(
    handle: &LeaderHandle,
    machines: u8,
    condition: Option<(u8, Condition)>,
) -> JoinHandle<()> {
    reports_with(handle, machines, condition, None)
}

/// Machines whose etcd waits for its membership.
pub(crate) type Waiting = Arc<parking_lot::Mutex<BTreeSet<u8>>>;

/// Like [`reports`], of machines that can prepare to become members.
pub(crate) fn reports_of_preparing(
    handle: &LeaderHandle,
    machines: u8,
    waiting: &Waiting,
) -> JoinHandle<()> {
    reports_with(handle, machines, None, Some(Arc::clone(waiting)))
}

fn reports_with(
    handle: &LeaderHandle,
    machines: u8,
    condition: Option<(u8, Condition)>,
    waiting: Option<Waiting>,
) -> JoinHandle<()> {
    let reports = handle.reports.clone();
    tokio::spawn(async move {
        loop {
            for number in 1..=machines {
                let etcd_waits = waiting.as_ref().map(|one| one.lock().contains(&number));
                let said = condition.iter().filter(|(by, _)| *by == number);
                let report = NodeReport {
                    node_name: name(number),
                    node_uid: name(number),
                    desired_revision: 1,
                    conditions: said.map(|(_, condition)| condition.clone()).collect(),
                    etcd_waits,
                    ..NodeReport::default()
                };
                reports.accept(&name(number), report, Duration::from_secs(15));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}
