//! etcd's members come and go by themselves, and the leadership passes on: real etcds, each on a
//! loopback address of its own, which stands for the machine's address on the overlay.
//!
//! It needs an etcd (see `support/etcd.rs`) and no privileges.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests fail by panicking, and say how long things took"
)]

#[path = "support/etcd.rs"]
mod etcd;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kat::{
    leader::{
        EtcdMembers, LeaderConfig, LeaderHandle, MemberClients, MembersConfig, TakeoverConfig,
        keep_members, start, watch_over,
    },
    pki::{Authority, AuthorityKind, Identity, LeafKind},
    plan::{ClusterMembers, NodeRegistration},
    pulse::Pulses,
    store::{
        Committed, EtcdOptions, EtcdStore, EtcdTls, Operation, StateStore, StoreError, etcd_admin,
        keys,
    },
};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(60);

struct Cluster {
    folder: tempfile::TempDir,
    clients: Authority,
    peers: Authority,
    client_port: u16,
    peer_port: u16,
    api_port: u16,
}

/// One machine: its etcd, its API's port, and its candidate.
struct Machine {
    number: u8,
    etcd: Child,
    api: JoinHandle<()>,
    store: EtcdStore,
    handle: Option<LeaderHandle>,
    cancel: CancellationToken,
}

fn name(number: u8) -> String {
    format!("n{number}")
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 77, number, 1)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((address(1), 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}

/// Waits until `what` gives something.
async fn until<T, F: Future<Output = Option<T>>>(sentence: &str, mut what: impl FnMut() -> F) -> T {
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
    fn new() -> Self {
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
        }
    }

    fn url(&self, number: u8) -> String {
        format!("https://{}:{}", address(number), self.client_port)
    }

    fn identity(&self, authority: &Authority, kind: &LeafKind) -> Identity {
        authority
            .issue(kind, Timestamp::now())
            .expect("a certificate")
    }

    fn options(&self, leader: &str, urls: Vec<String>) -> EtcdOptions {
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

    /// Starts etcd as `kat-etcd.service` does, among these machines.
    fn etcd(&self, number: u8, members: &[u8], state: &str) -> Child {
        let own = name(number);
        let folder = self.folder.path().join(&own);
        fs::create_dir_all(&folder).expect("a folder");
        // Connections from one address of loopback to another come from the first of all.
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
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts")
    }

    /// A machine with its etcd and its API's port; it does not campaign yet.
    async fn machine(&self, number: u8, members: &[u8], state: &str) -> Machine {
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

    /// Lets it campaign, as a machine that holds etcd does.
    fn campaign(&self, machine: &mut Machine) {
        let node = name(machine.number);
        let clock: Arc<dyn Fn() -> Timestamp + Send + Sync> = Arc::new(Timestamp::now);
        let handle = start(
            Arc::new(machine.store.clone()),
            LeaderConfig {
                candidate: node.clone(),
                lease: Duration::from_secs(5),
                endpoint: SocketAddr::from((address(machine.number), self.api_port)).to_string(),
                clock: Arc::clone(&clock),
                pulses: Pulses::default(),
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
        let etcd: Arc<dyn EtcdMembers> =
            Arc::new(MemberClients::new(&machine.store, Arc::new(options)));
        let members = MembersConfig {
            node: node.clone(),
            client_port: self.client_port,
            peer_port: self.peer_port,
            clock,
            etcd: Arc::clone(&etcd),
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

    /// The first machine, with three of them written down as Ready.
    async fn first(&self) -> Machine {
        let mut machine = self.machine(1, &[1], "new").await;
        until("the first etcd serves", async || {
            machine.store.health().await.ok()
        })
        .await;
        let mut operations = vec![json(
            keys::CLUSTER.to_owned(),
            &json!({"metadata": {"name": "kat"}, "spec": {"nodeLossTimeoutSeconds": 600}}),
        )];
        for number in 1..=3 {
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
                Operation::Put(
                    keys::network_node(&name(number), "subnet"),
                    subnet.into_bytes(),
                ),
            ]);
        }
        let written = machine.store.transact(&[], &operations).await;
        assert!(matches!(written, Ok(Committed::Yes(_))), "{written:?}");
        etcd_admin::bootstrap_auth(&machine.store, "n1", &["n1"])
            .await
            .expect("users");
        self.campaign(&mut machine);
        machine
    }

    /// Three machines, each of which started etcd when it found itself among the members.
    async fn three(&self) -> Vec<Machine> {
        let begun = Instant::now();
        let mut machines = vec![self.first().await];
        while machines.len() < 3 {
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
        until("all three vote and are well", async || {
            let members = members(&store).await?;
            let well = members
                .members
                .values()
                .filter(|one| one.voting && one.healthy);
            (well.count() == 3).then_some(())
        })
        .await;
        println!("three members after {:?}", begun.elapsed());
        for machine in machines.iter_mut().skip(1) {
            until("it reads by itself", async || {
                let list = machine.store.list(keys::CONFIG).await.ok()?;
                (!list.items.is_empty()).then_some(())
            })
            .await;
            self.campaign(machine);
        }
        until("all three stand for election", async || {
            let list = store.list(keys::ELECTION).await.ok()?;
            (list.items.len() == 3).then_some(())
        })
        .await;
        machines
    }

    async fn at(&self, number: u8) -> EtcdStore {
        let options = self.options("n1", vec![self.url(number)]);
        EtcdStore::connect(&options).await.expect("a client")
    }
}

impl Machine {
    fn handle(&self) -> &LeaderHandle {
        self.handle.as_ref().expect("it campaigns")
    }

    fn leads(&self) -> bool {
        self.handle().leadership.borrow().is_some()
    }

    /// Pulls its plug.
    fn kill(&mut self) {
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

fn json<T: serde::Serialize>(key: String, value: &T) -> Operation {
    Operation::Put(key, serde_json::to_vec(value).expect("plain data"))
}

fn number(name: &str) -> u8 {
    name.trim_start_matches('n').parse().expect("a number")
}

async fn members(store: &EtcdStore) -> Option<ClusterMembers> {
    let key = store.get(keys::MEMBERS).await.ok()??;
    serde_json::from_slice(&key.value).ok()
}

/// Pulls the plug of the first machine; gives back how long it took until another wrote.
async fn take_over(machines: &mut [Machine]) -> Duration {
    assert!(machines[0].leads());
    let old = machines[0].handle().leadership.borrow().clone().unwrap();
    let pulled = Instant::now();
    machines[0].kill();
    let (index, took) = until("another leads and writes", async || {
        let index = (1..3).find(|index| machines[*index].leads())?;
        let leadership = machines[index].handle().leadership.borrow().clone()?;
        let write = [Operation::Put("/kat/test".to_owned(), b"1".to_vec())];
        let store = &machines[index].store;
        match store.transact(&[leadership.fence()], &write).await {
            Ok(Committed::Yes(_)) => Some((index, pulled.elapsed())),
            _ => None,
        }
    })
    .await;
    println!("n{} wrote {took:?} after the plug was pulled", index + 1);
    // Whatever the old leader still has under way changes nothing.
    let write = [Operation::Put("/kat/test".to_owned(), b"2".to_vec())];
    let late = machines[index].store.transact(&[old.fence()], &write).await;
    assert!(matches!(late, Ok(Committed::No)), "{late:?}");
    until("the old leader knows", async || {
        old.lost.is_cancelled().then_some(())
    })
    .await;
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_come_by_themselves_and_another_leads_when_the_leader_is_gone() {
    let cluster = Cluster::new();
    let mut machines = cluster.three().await;
    let store = machines[0].store.clone();
    let raft = until("raft is led elsewhere than KAT", async || {
        let status = etcd_admin::status(&store).await.ok()?;
        let listed = etcd_admin::member_list(&store).await.ok()?;
        let leads = listed.into_iter().find(|one| one.id == status.leader)?;
        (leads.name != "n1").then_some(leads.name)
    })
    .await;
    println!("{raft} leads raft, n1 leads KAT");
    for number in 1..=3 {
        let key = keys::registration(&name(number));
        let entry = store.get(&key).await.expect("read").expect("there");
        let registration: NodeRegistration = serde_json::from_slice(&entry.value).expect("read");
        assert!(registration.etcd, "{registration:?}");
    }
    let took = take_over(&mut machines).await;
    // A lease of 5 s alone would take longer.
    assert!(took < Duration::from_millis(3500), "{took:?}");
    // The next leader sees that a member is away.
    let store = machines[1].store.clone();
    until("the member that is gone is seen", async || {
        let members = members(&store).await?;
        (!members.members.get("n1")?.healthy).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_leads_when_the_machine_is_gone_that_led_raft_too() {
    let cluster = Cluster::new();
    let mut machines = cluster.three().await;
    let store = machines[0].store.clone();
    let own = until("n1 leads raft", async || {
        let listed = etcd_admin::member_list(&store).await.ok()?;
        let own = listed.iter().find(|one| one.name == "n1")?.id;
        let status = etcd_admin::status(&store).await.ok()?;
        if status.leader != own {
            let leads = listed.iter().find(|one| one.id == status.leader)?;
            let at = cluster.at(number(&leads.name)).await;
            etcd_admin::move_raft_leader(&at, own).await.ok()?;
        }
        (etcd_admin::status(&store).await.ok()?.leader == own).then_some(own)
    })
    .await;
    println!("{own:x} leads raft and KAT");
    let took = take_over(&mut machines).await;
    assert!(took < Duration::from_millis(4500), "{took:?}");
}
