//! A real etcd on loopback, with TLS from KAT's own authorities, for the duration of one test.
//!
//! The program is `$KAT_ETCD`, else the static one in the lab's root file system, else the one in
//! the PATH. Without any of them the test fails: it is never skipped.

#![allow(dead_code)]

use std::{
    ffi::OsString,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use kat_pki::{Authority, AuthorityKind, CertificateKeyPair, LeafKind};
use kat_store::{EtcdOptions, EtcdStore, EtcdTls};

/// A running etcd, which ends when this value is dropped.
pub(crate) struct EtcdServer {
    child: Option<Child>,
    folder: tempfile::TempDir,
    client_port: u16,
    peer_port: u16,
    pub clients: Authority,
    pub peers: Authority,
}

/// The etcd program to test against.
pub(crate) fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("KAT_ETCD") {
        return PathBuf::from(named);
    }
    let roots = fs::read_dir("/var/cache/kat-lab").into_iter().flatten();
    let mut found: Vec<PathBuf> = roots
        .flatten()
        .map(|root| root.path().join("usr/bin/etcd"))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin"));
    found.extend(
        std::env::split_paths(&path)
            .map(|folder| folder.join("etcd"))
            .filter(|path| path.is_file()),
    );
    found
        .into_iter()
        .next()
        .expect("no etcd: set KAT_ETCD, build the lab's root, or install etcd-server")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of loopback");
    listener.local_addr().expect("its address").port()
}

fn write_identity(folder: &Path, name: &str, identity: &CertificateKeyPair) {
    fs::write(
        folder.join(format!("{name}.crt")),
        &identity.certificate_pem,
    )
    .expect("written");
    fs::write(folder.join(format!("{name}.key")), &identity.key_pem).expect("written");
}

impl EtcdServer {
    /// Starts one member and waits until it serves.
    pub(crate) async fn start() -> Self {
        let now = Timestamp::now();
        let folder = tempfile::tempdir().expect("a folder");
        let authority = |kind| Authority::generate(kind, "test", now).expect("an authority");
        let clients = authority(AuthorityKind::EtcdClients);
        let peers = authority(AuthorityKind::EtcdPeers);
        let (name, addresses) = ("alpha".to_owned(), vec![IpAddr::from(Ipv4Addr::LOCALHOST)]);
        let server = LeafKind::EtcdServer {
            name: name.clone(),
            addresses: addresses.clone(),
        };
        let peer = LeafKind::EtcdPeer { name, addresses };
        let server = clients.issue(&server, now).expect("a certificate");
        write_identity(folder.path(), "server", &server);
        let peer = peers.issue(&peer, now).expect("a certificate");
        write_identity(folder.path(), "peer", &peer);
        for (name, authority) in [("clients", &clients), ("peers", &peers)] {
            let path = folder.path().join(format!("{name}.ca"));
            fs::write(path, authority.certificate_pem()).expect("written");
        }
        let mut server = Self {
            child: None,
            folder,
            client_port: 0,
            peer_port: 0,
            clients,
            peers,
        };
        let program = program();
        let version = Command::new(&program)
            .arg("--version")
            .output()
            .expect("etcd runs");
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let version = version.lines().next().unwrap_or_default();
        println!("using {} ({version})", program.display());
        // Another process may take the ports between the search and etcd's start.
        for _ in 0..5 {
            (server.client_port, server.peer_port) = (free_port(), free_port());
            server.spawn();
            if server.serves().await {
                return server;
            }
        }
        panic!("etcd did not start:\n{}", server.log());
    }

    fn spawn(&mut self) {
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let client = format!("https://127.0.0.1:{}", self.client_port);
        let peer = format!("https://127.0.0.1:{}", self.peer_port);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("a log");
        let child = Command::new(program())
            .args([
                "--name=alpha",
                "--client-cert-auth",
                "--peer-client-cert-auth",
            ])
            .args(["--enable-grpc-gateway=false", "--logger=zap"])
            .args(["--heartbeat-interval=20", "--election-timeout=200"])
            .arg(format!("--data-dir={}", path("data")))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=alpha={peer}"))
            .arg(format!("--trusted-ca-file={}", path("clients.ca")))
            .arg(format!("--cert-file={}", path("server.crt")))
            .arg(format!("--key-file={}", path("server.key")))
            .arg(format!("--peer-trusted-ca-file={}", path("peers.ca")))
            .arg(format!("--peer-cert-file={}", path("peer.crt")))
            .arg(format!("--peer-key-file={}", path("peer.key")))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.child = Some(child);
    }

    /// Waits until etcd answers; false if it exited.
    async fn serves(&mut self) -> bool {
        let store = self.leader("alpha").await;
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            let ended = self
                .child
                .as_mut()
                .is_some_and(|child| child.try_wait().expect("a child").is_some());
            if ended {
                return false;
            }
            // After a restart with authentication this certificate is root's; without
            // authentication every client is root.
            if store.health().await.is_ok() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("etcd does not serve:\n{}", self.log());
    }

    /// etcd's output.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Options for a client with this identity.
    pub(crate) fn options(&self, identity: &CertificateKeyPair) -> EtcdOptions {
        let tls = EtcdTls {
            authority: self.clients.certificate_pem().to_owned(),
            certificate: identity.certificate_pem.clone(),
            key: identity.key_pem.clone(),
        };
        EtcdOptions::new(vec![self.url()], Some(tls))
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.client_port)
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.client_port))
    }

    /// A new client with a certificate of this kind.
    pub(crate) async fn client(&self, kind: &LeafKind) -> EtcdStore {
        let identity = self
            .clients
            .issue(kind, Timestamp::now())
            .expect("a certificate");
        EtcdStore::connect(&self.options(&identity))
            .await
            .expect("a client")
    }

    /// A new client as the leader on a machine.
    pub(crate) async fn leader(&self, name: &str) -> EtcdStore {
        self.client(&LeafKind::Leader { name: name.into() }).await
    }

    /// A new client as a machine.
    pub(crate) async fn node(&self, name: &str) -> EtcdStore {
        self.client(&LeafKind::EtcdNode { name: name.into() }).await
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a running etcd");
        let process = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        kill(process, signal).expect("a signal");
    }

    /// Suspends the process: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes the process.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts etcd on the same ports and data.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.spawn();
        assert!(
            self.serves().await,
            "etcd did not start again:\n{}",
            self.log()
        );
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}
