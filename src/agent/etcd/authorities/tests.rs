//! Replacements of authorities on one machine, with a real etcd and the leader's own loop. The
//! cluster's other state is in memory.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use serde_json::json;

use super::*;
use crate::cluster::cluster_cache::ClusterCache;
use kat_leader::{
    LeaderConfig, LeaderHandle, RotationConfig, keep_authorities, start as start_leader,
};
use kat_pki::epoch_proof::{EpochVerifiers, LearnedVerifiers};
use kat_store::{StateStore, TransactionResult};
use kat_testing::MemoryStore;
use kat_types::{
    api::{NodeReport, StoreEpoch},
    resource::secret::SecretValues,
    secrets::{SecretKey, SecretRecord},
    store::{authorities::RotationReason, keys, transaction::WriteOperation},
};

/// Time limit of every wait.
const LIMIT: Duration = Duration::from_secs(90);
const UID: &str = "test";

/// The etcd of these tests: `$KAT_ETCD`, else the one in the lab's root, else the one in the PATH.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("KAT_ETCD") {
        return PathBuf::from(named);
    }
    let roots = fs::read_dir("/var/cache/kat-lab").into_iter().flatten();
    let mut found = roots
        .flatten()
        .map(|root| root.path().join("usr/bin/etcd"))
        .chain(["/usr/bin/etcd".into(), "/usr/local/bin/etcd".into()]);
    found
        .find(|path| path.is_file())
        .expect("no etcd: set KAT_ETCD, build the lab's root, or install etcd-server")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

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

/// An etcd that runs as `kat-etcd.service` would.
struct RealEtcd {
    folder: PathBuf,
    identity: Arc<MachineIdentity>,
    child: Mutex<Option<Child>>,
    restarts: AtomicUsize,
}

impl RealEtcd {
    fn spawn(&self) -> Child {
        let spec = &self.identity.cluster.spec;
        let pki = |name: &str| {
            self.folder
                .join("etcd-pki")
                .join(name)
                .display()
                .to_string()
        };
        let client = format!("https://127.0.0.1:{}", spec.etcd_client_port);
        let overlay = self.identity.overlay_address();
        let peer = format!("https://{overlay}:{}", spec.etcd_peer_port);
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("etcd.log"))
            .unwrap();
        Command::new(program())
            .args(["--client-cert-auth", "--peer-client-cert-auth"])
            .args(["--tls-min-version=TLS1.3", "--enable-grpc-gateway=false"])
            .args(["--heartbeat-interval=20", "--election-timeout=200"])
            .arg(format!("--name={}", self.identity.node))
            .arg(format!("--data-dir={}", self.folder.join("data").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster={}={peer}", self.identity.node))
            .arg(format!("--trusted-ca-file={}", pki("etcd-client-ca.crt")))
            .arg(format!("--cert-file={}", pki("etcd-server.crt")))
            .arg(format!("--key-file={}", pki("etcd-server.key")))
            .arg(format!(
                "--peer-trusted-ca-file={}",
                pki("etcd-peer-ca.crt")
            ))
            .arg(format!("--peer-cert-file={}", pki("etcd-peer.crt")))
            .arg(format!("--peer-key-file={}", pki("etcd-peer.key")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    async fn start(&self) {
        *self.child.lock() = Some(self.spawn());
        let port = self.identity.cluster.spec.etcd_client_port;
        until("etcd listens", async || {
            tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
                .await
                .ok()
        })
        .await;
    }

    fn stop(&self) {
        if let Some(mut child) = self.child.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[async_trait]
impl EtcdUnit for RealEtcd {
    async fn restart(&self) -> anyhow::Result<()> {
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.stop();
        self.start().await;
        Ok(())
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One machine with etcd, which leads.
struct LeadingMachine {
    folder: tempfile::TempDir,
    identity: Arc<MachineIdentity>,
    keys: MachineKeys,
    etcd: Arc<RealEtcd>,
    store: MemoryStore,
    signing: Arc<SigningAuthorities>,
    handle: LeaderHandle,
    uses: AuthorityUses,
    cancel: CancellationToken,
}

impl Drop for LeadingMachine {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn put(key: String, value: &serde_json::Value) -> WriteOperation {
    WriteOperation::Put(key, value.to_string().into_bytes())
}

impl LeadingMachine {
    /// `subnet` is one of loopback, so that tests beside each other have addresses of their own.
    async fn start(subnet: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut identity = MachineIdentity {
            etcd: true,
            subnet: subnet.parse().unwrap(),
            cluster_uid: UID.to_owned(),
            ..MachineIdentity::example("n1")
        };
        identity.cluster.spec.etcd_client_port = free_port();
        identity.cluster.spec.etcd_peer_port = free_port();
        let identity = Arc::new(identity);
        let keys = MachineKeys::below(folder.path());
        keys.ensure_authorities(UID, Timestamp::now()).unwrap();
        let known = ClusterCache::default();
        keys.renew(&identity, &known, Timestamp::now()).unwrap();
        let etcd = Arc::new(RealEtcd {
            folder: folder.path().to_owned(),
            identity: Arc::clone(&identity),
            child: Mutex::default(),
            restarts: AtomicUsize::new(0),
        });
        etcd.start().await;
        let signing = Arc::new(SigningAuthorities::load(folder.path().join("pki")).unwrap());
        let store = MemoryStore::new();
        let cancel = CancellationToken::new();
        Self::seed(&store, &keys).await;
        let handle = start_leader(
            Arc::new(store.clone()),
            LeaderConfig {
                candidate: "n1".to_owned(),
                lease: Duration::from_secs(60),
                endpoint: Arc::new(|| "192.0.2.1:9115".to_owned()),
                clock: Arc::new(Timestamp::now),
                pulses: LoopPulses::default(),
                sealing: signing.sealing(),
            },
            cancel.clone(),
        );
        Self {
            folder,
            identity,
            keys,
            etcd,
            store,
            signing,
            handle,
            uses: AuthorityUses::default(),
            cancel,
        }
    }

    async fn seed(store: &MemoryStore, keys: &MachineKeys) {
        let mut operations = vec![
            WriteOperation::Put(keys::CLUSTER_UID.to_owned(), UID.into()),
            put(
                keys::CLUSTER.to_owned(),
                &json!({"metadata": {"name": "kat"}, "spec": {}}),
            ),
            put(
                keys::registration("n1"),
                &json!({
                    "schema": 1, "uid": "uid-n1", "identityKey": "", "architecture": "amd64",
                    "etcd": true, "created": "2026-01-01T00:00:00Z",
                }),
            ),
            put(
                keys::MEMBERS.to_owned(),
                &json!({"schema": 1, "members": {"n1": {"id": "a", "voting": true, "healthy": true}}}),
            ),
        ];
        for (kind, hash) in keys.present_keys().unwrap() {
            let record = json!({"schema": 1, "current": hash, "holders": {"n1": "uid-n1"}});
            operations.push(put(keys::authority(kind.name()), &record));
        }
        let written = store.transact(&[], &operations).await.unwrap();
        assert!(matches!(written, TransactionResult::Yes(_)));
    }

    /// Starts the loops of leader and machine.
    fn run(&self) {
        let signing = Arc::clone(&self.signing);
        let maker = NextAuthorities {
            keys: self.keys.clone(),
            cluster_uid: UID.to_owned(),
            signing: Arc::clone(&signing),
        };
        let config = RotationConfig {
            node: "n1".to_owned(),
            clock: Arc::new(Timestamp::now),
            maker: Arc::new(maker),
            pulses: LoopPulses::default(),
        };
        let (handle, cancel) = (self.handle.clone(), self.cancel.clone());
        tokio::spawn(keep_authorities(handle, config, cancel));
        let (_, known) = watch::channel(Arc::default());
        let keeper = AuthorityKeeper {
            identity: Arc::clone(&self.identity),
            keys: self.keys.clone(),
            known,
            snapshot: self.handle.snapshot.clone(),
            etcd: Arc::clone(&self.etcd) as _,
            signing,
            uses: self.uses.clone(),
            trust: pki::tls::CurrentTrust::new(&self.keys.cluster_authority().unwrap()).unwrap(),
            restarted: Mutex::default(),
            tried: Mutex::default(),
            signed: Mutex::default(),
            changed: Arc::default(),
            pulses: LoopPulses::default(),
        };
        tokio::spawn(keeper.run(self.cancel.clone()));
        let (reports, uses) = (self.handle.reports.clone(), self.uses.clone());
        let cancel = self.cancel.clone();
        tokio::spawn(async move {
            while !cancel.is_cancelled() {
                let report = NodeReport {
                    node_name: "n1".to_owned(),
                    authorities: uses.shown(),
                    ..NodeReport::default()
                };
                reports.accept("n1", report, Duration::from_secs(15));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }

    async fn record(&self, kind: impl Into<ReplaceableKey>) -> AuthorityRecord {
        let kind = kind.into();
        let stored = self.store.get(&keys::authority(kind.name())).await.unwrap();
        serde_json::from_slice(&stored.unwrap().value).unwrap()
    }

    /// Reason and message of each event, in their order.
    fn events(&self) -> Vec<String> {
        let stored = self.store.peek(keys::EVENTS).items;
        let mut events: Vec<kat_types::api::Event> = stored
            .iter()
            .map(|entry| serde_json::from_slice(&entry.value).unwrap())
            .collect();
        events.sort_by(|one, other| one.id.cmp(&other.id));
        let text = |event: &kat_types::api::Event| format!("{}: {}", event.reason, event.message);
        events.iter().map(text).collect()
    }

    async fn ask(&self, kind: impl Into<ReplaceableKey>) {
        let kind = kind.into();
        let record = AuthorityRecord {
            due: Some(RotationReason::Requested),
            ..self.record(kind).await
        };
        let value = serde_json::to_value(&record).unwrap();
        let operation = put(keys::authority(kind.name()), &value);
        self.store.transact(&[], &[operation]).await.unwrap();
    }

    async fn try_leaf(&self, kind: AuthorityKind, leaf: &pki::CertificateKeyPair) -> Trial {
        let trusted = self.keys.trusted_certificates(kind).unwrap();
        let config = trial_client_config(&trusted, leaf).unwrap();
        let spec = &self.identity.cluster.spec;
        let address: SocketAddr = match kind {
            AuthorityKind::EtcdPeers => {
                (self.identity.overlay_address(), spec.etcd_peer_port).into()
            }
            _ => (Ipv4Addr::LOCALHOST, spec.etcd_client_port).into(),
        };
        try_certificate(address, "n1", config).await
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

async fn an_authority_is_replaced(kind: AuthorityKind, subnet: &str) {
    let machine = LeadingMachine::start(subnet).await;
    let before = machine.record(kind).await;
    let files = names_in(&machine.folder.path().join("pki"));
    let current = AuthorityEdition::Current;
    let old = machine
        .keys
        .trial(kind, current, &machine.identity, Timestamp::now());
    let old = old.unwrap();
    // The control: this very certificate opens etcd before.
    until("etcd takes the certificate of now", async || {
        (machine.try_leaf(kind, &old).await == Trial::Accepted).then_some(())
    })
    .await;
    machine.run();
    machine.ask(kind).await;
    let after = until("the authority is replaced", async || {
        let record = machine.record(kind).await;
        (record.current != before.current && record.rotation.is_none()).then_some(record)
    })
    .await;
    assert_eq!(after.due, None);
    assert!(after.since.is_some() && after.holders == before.holders);
    let name = kind.name();
    assert_eq!(
        machine.events(),
        [
            format!(
                "ReplacementStarted: the replacement of {name} has begun: somebody asked for it"
            ),
            format!(
                "AuthorityReplaced: {name} was replaced: no certificate of the earlier one is valid"
            ),
        ]
    );
    assert_eq!(machine.try_leaf(kind, &old).await, Trial::Refused);
    let new = machine
        .keys
        .trial(kind, current, &machine.identity, Timestamp::now());
    assert_eq!(machine.try_leaf(kind, &new.unwrap()).await, Trial::Accepted);
    let (leaf, authority) = match kind {
        AuthorityKind::EtcdPeers => ("etcd-peer", "etcd-peer-ca"),
        _ => ("leader-etcd", "etcd-client-ca"),
    };
    let leaf = machine.keys.leaf(leaf).unwrap();
    let authority = machine.keys.certificate(authority).unwrap();
    assert!(pki::is_issued_by(&leaf.certificate_pem, &authority).unwrap());
    // etcd compares a peer's certificate with its address, which is 127.0.0.1 in this test.
    if kind != AuthorityKind::EtcdPeers {
        assert_eq!(machine.try_leaf(kind, &leaf).await, Trial::Accepted);
    }
    // Once to trust both, once to trust the new one alone.
    assert_eq!(machine.etcd.restarts.load(Ordering::Relaxed), 2);
    until("nothing is left of the old authority", async || {
        (names_in(&machine.folder.path().join("pki")) == files).then_some(())
    })
    .await;
    let hash = machine.keys.edition_hash(kind, current).unwrap();
    assert_eq!(hash, after.current);
    let hashes = machine.keys.authority_hashes().unwrap();
    let others = hashes.iter().filter(|(other, _)| **other != kind);
    for (other, hash) in others {
        assert_eq!(machine.record(*other).await.current, *hash, "{other:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_the_replaced_authority_of_clients_open_etcd_no_more() {
    an_authority_is_replaced(AuthorityKind::EtcdClients, "127.78.21.0/24").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_the_replaced_authority_of_peers_open_etcd_no_more() {
    an_authority_is_replaced(AuthorityKind::EtcdPeers, "127.78.22.0/24").await;
}

/// The values of the secrets as the leader's present snapshot opens them.
fn opened(machine: &LeadingMachine) -> Option<Vec<Vec<u8>>> {
    let snapshot = machine.handle.snapshot.borrow().clone()?;
    let opened = snapshot.secrets.iter().map(|(place, stored)| {
        let mut values = snapshot
            .sealing
            .open(&snapshot, place, &stored.value)
            .ok()?;
        values.0.remove("A")
    });
    opened.collect()
}

/// The machine's files, the leader's loop and the running snapshots, with secrets in the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recovery_key_is_replaced_without_a_restart_and_no_secret_is_lost() {
    let machine = LeadingMachine::start("127.78.23.0/24").await;
    let kind = ReplaceableKey::Recovery;
    let before = machine.record(kind).await;
    let folder = machine.folder.path().join("pki");
    let files = names_in(&folder);
    let old = machine.keys.recovery_key().unwrap();
    assert_eq!(before.current, old.fingerprint());
    let snapshot = until("the leader has a snapshot", async || {
        machine.handle.snapshot.borrow().clone()
    })
    .await;
    let now = Timestamp::now();
    let key = snapshot.sealing.new_key(1, now).unwrap();
    let mut operations = vec![put(
        keys::sealing_key(1),
        &serde_json::to_value(&key).unwrap(),
    )];
    let secrets = 40_u8;
    for number in 0..secrets {
        let place = SecretKey::new("default", &format!("s{number:02}"));
        let record = SecretRecord {
            schema: 1,
            uid: "u".to_owned(),
            version: 1,
            created: now,
            updated: now,
            keys: BTreeMap::new(),
            key_id: 1,
            sealed: String::new(),
        };
        let values = SecretValues([("A".to_owned(), vec![number])].into());
        let sealed = snapshot.sealing.seal((1, &key), &place, &values, record);
        let value = serde_json::to_value(sealed.unwrap()).unwrap();
        operations.push(put(keys::secret(&place.to_string()), &value));
    }
    machine.store.transact(&[], &operations).await.unwrap();
    let expected: Vec<_> = (0..secrets).map(|number| vec![number]).collect();
    until("the secrets are shown", async || {
        (opened(&machine)? == expected).then_some(())
    })
    .await;
    machine.run();
    let epoch = async || -> Option<StoreEpoch> {
        let stored = machine.store.get(keys::STORE_EPOCH).await.ok()??;
        serde_json::from_slice(&stored.value).ok()
    };
    let first = until("the record of the epoch has the verifier", &epoch).await;
    let uid = snapshot.cluster_uid.as_str();
    let knows = |key| EpochVerifiers::of_keys(uid, [key]).unwrap();
    assert_eq!((first.epoch, first.endorsements.len()), (0, 0));
    assert_eq!(first.verifiers, knows(&old).known());
    machine.ask(kind).await;
    let after = until("the recovery key is replaced", async || {
        // At every moment each secret can be read.
        assert_eq!(opened(&machine), Some(expected.clone()));
        let record = machine.record(kind).await;
        (record.current != before.current && record.rotation.is_none()).then_some(record)
    })
    .await;
    assert_eq!((after.due, &after.holders), (None, &before.holders));
    assert!(after.since.is_some() && after.sealed_since.is_some_and(|since| since > now));
    until("nothing is left of the old key", async || {
        (names_in(&folder) == files).then_some(())
    })
    .await;
    let new = machine.keys.recovery_key().unwrap();
    assert_eq!(new.fingerprint(), after.current);
    assert_eq!(opened(&machine), Some(expected));
    assert_eq!(machine.store.peek(keys::SEALING).items.len(), 1);
    for kind in AuthorityKind::ALL {
        pki::Authority::load(&folder, kind, &new.clone().into()).unwrap();
        pki::Authority::load(&folder, kind, &old.clone().into()).unwrap_err();
    }
    // What the API hands over to members.
    let held = machine.signing.recovery_keys().unwrap();
    assert_eq!(held.fingerprints(), [after.current]);
    assert_eq!(machine.etcd.restarts.load(Ordering::Relaxed), 0);
    assert_eq!(
        machine.events(),
        [
            "ReplacementStarted: the replacement of recovery-key has begun: somebody asked for it",
            "RecoveryKeyReplaced: the recovery key was replaced: earlier backups open with the \
             earlier one only",
        ]
    );
    // A machine that saw the old key alone follows the record to the new one.
    let new = knows(&new);
    let last = until("the record names the new key alone", async || {
        epoch().await.filter(|last| last.verifiers == new.known())
    })
    .await;
    let learned = knows(&old).learn(&last);
    assert_eq!(learned, LearnedVerifiers::Changed(new));
}
