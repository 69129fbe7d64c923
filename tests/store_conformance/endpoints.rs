//! Several endpoints of etcd, of which not all work.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_util::sync::CancellationToken;

use crate::{
    etcd::EtcdServer,
    suite::{put, soon, write},
};
use kat_pki::LeafKind;
use kat_store::{EtcdStore, StateStore, TransactionResult};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_endpoints_beside_a_live_one_do_not_matter() {
    let server = EtcdServer::start().await;
    let kind = LeafKind::Leader {
        name: "alpha".into(),
    };
    let identity = server
        .clients
        .issue(&kind, Timestamp::now())
        .expect("a certificate");
    let mut options = server.options(&identity);
    // Nothing listens on port 1. The second endpoint accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address");
    options.endpoints.insert(0, "https://127.0.0.1:1".into());
    options.endpoints.insert(1, format!("https://{address}"));
    let store = EtcdStore::connect(&options).await.expect("a client");
    let started = Instant::now();
    store.get("/t/a").await.expect("answered by the third");
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    let mut slowest = Duration::ZERO;
    for n in 0..200 {
        let started = Instant::now();
        write(&store, &[put("/t/a", &n.to_string())]).await;
        store.get("/t/a").await.expect("answered").expect("found");
        slowest = slowest.max(started.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_keeps_its_lease_through_an_endpoint_that_freezes() {
    let server = EtcdServer::start().await;
    let proxy = Proxy::start(server.address()).await;
    let kind = LeafKind::Leader {
        name: "alpha".into(),
    };
    let identity = server
        .clients
        .issue(&kind, Timestamp::now())
        .expect("a certificate");
    let mut options = server.options(&identity);
    options
        .endpoints
        .insert(0, format!("https://127.0.0.1:{}", proxy.port));
    let store = EtcdStore::connect(&options).await.expect("a client");
    let lease = Duration::from_secs(5);
    let leadership = soon("the election", store.campaign("alpha", lease))
        .await
        .expect("elected");
    assert!(proxy.carried() > 0, "the first endpoint is used first");
    proxy.freeze();
    let lost = tokio::time::timeout(3 * lease, leadership.lost.cancelled()).await;
    assert!(lost.is_err(), "the other endpoint was not used in time");
    let fenced = store
        .transact(&[leadership.fence()], &[put("/t/a", "1")])
        .await;
    assert!(
        matches!(fenced, Ok(TransactionResult::Yes(_))),
        "{fenced:?}"
    );
}

/// Forwards bytes to etcd until it is frozen; then it accepts bytes and forwards none.
struct Proxy {
    port: u16,
    frozen: CancellationToken,
    carried: Arc<AtomicU64>,
}

impl Proxy {
    async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Self {
            port: listener.local_addr().expect("its address").port(),
            frozen: CancellationToken::new(),
            carried: Arc::default(),
        };
        let (frozen, carried) = (proxy.frozen.clone(), proxy.carried.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(target).await.expect("etcd");
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                for (from, to) in [(near_in, far_out), (far_in, near_out)] {
                    tokio::spawn(carry(from, to, frozen.clone(), carried.clone()));
                }
            }
        });
        proxy
    }

    fn freeze(&self) {
        self.frozen.cancel();
    }

    fn carried(&self) -> u64 {
        self.carried.load(Ordering::Relaxed)
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    frozen: CancellationToken,
    carried: Arc<AtomicU64>,
) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if !frozen.is_cancelled() {
            carried.fetch_add(count as u64, Ordering::Relaxed);
            if to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    }
    if frozen.is_cancelled() {
        // The connection stays open, so that the other side sees no end.
        std::future::pending::<()>().await;
    }
}
