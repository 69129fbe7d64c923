//! Behaviour that only a real etcd has: servers that die or freeze, certificates and users.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::StreamExt;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    etcd::EtcdServer,
    suite::{names, put, soon, write},
};
use kat_pki::{Authority, AuthorityKind, LeafKind};
use kat_store::{EtcdStore, Mirror, StateStore, StoreError, TransactionResult, etcd, etcd_admin};
use kat_types::store::keys;

/// Compacts through a separate client.
pub(crate) async fn compact(server: &EtcdServer, revision: i64) {
    let kind = LeafKind::Leader {
        name: "alpha".into(),
    };
    let identity = server
        .clients
        .issue(&kind, Timestamp::now())
        .expect("a certificate");
    let tls = etcd_client::TlsOptions::new()
        .ca_certificate(etcd_client::Certificate::from_pem(
            server.clients.certificate_pem(),
        ))
        .identity(etcd_client::Identity::from_pem(
            identity.certificate_pem,
            identity.key_pem,
        ));
    let options = etcd_client::ConnectOptions::new().with_tls(tls);
    let mut client = etcd_client::Client::connect([server.url()], Some(options))
        .await
        .expect("a client");
    client.compact(revision, None).await.expect("compacted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_ends_watches_and_comes_back() {
    let mut server = EtcdServer::start().await;
    let store = server.leader("alpha").await;
    let revision = write(&store, &[put("/t/a", "1")]).await;
    let mut changes = store.watch("/t/", revision + 1).await.expect("watched");
    let cancel = CancellationToken::new();
    let mirror = Mirror::start(Arc::new(store.clone()), "/t/", cancel);
    mirror
        .wait_confirmed(Duration::from_secs(10))
        .await
        .expect("confirmed");

    server.kill();
    let error = soon("the end of the watch", changes.next()).await;
    let error = error.expect("an item").expect_err("the server is dead");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(changes.next().await.is_none());
    let started = Instant::now();
    let error = store.get("/t/a").await.expect_err("the server is dead");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(
        error.to_string().to_lowercase().contains("refused"),
        "{error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );
    let error = store
        .transact(&[], &[put("/t/b", "")])
        .await
        .expect_err("dead");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let mut stale = mirror.clone();
    soon("a stale copy", async {
        while stale.snapshot().confirmed {
            stale.changed().await.expect("running");
        }
    })
    .await;
    assert_eq!(mirror.snapshot().entries.len(), 1, "what was known is kept");

    // The same client works again without any help.
    server.restart().await;
    let listing = soon("the list", async {
        loop {
            if let Ok(listing) = store.list("/t/").await {
                return listing;
            }
        }
    })
    .await;
    assert_eq!(listing.items.len(), 1);
    let mut changes = store
        .watch("/t/", listing.revision + 1)
        .await
        .expect("watched");
    let revision = write(&store, &[put("/t/c", "2")]).await;
    let batch = soon("a change", changes.next())
        .await
        .expect("an item")
        .expect("a batch");
    assert_eq!(batch.revision, revision);
    let state = mirror
        .wait_for_revision(revision, Duration::from_secs(20))
        .await;
    assert_eq!(state.expect("caught up").entries.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_costs_the_leadership_before_the_lease_ends() {
    let server = EtcdServer::start().await;
    let store = server.leader("alpha").await;
    let lease = Duration::from_secs(3);
    let leadership = soon("the election", store.campaign("alpha", lease))
        .await
        .expect("elected");
    // The leadership lasts well beyond its first lease.
    let alive = tokio::time::timeout(2 * lease, leadership.lost.cancelled()).await;
    assert!(alive.is_err(), "lost with a healthy server");
    let revision = write(&store, &[put("/t/a", "1")]).await;
    let mut changes = store.watch("/t/", revision + 1).await.expect("watched");

    let frozen = Instant::now();
    server.freeze();
    let ended = tokio::time::timeout(Duration::from_secs(10), changes.next());
    let (lost, ended) = tokio::join!(
        async {
            leadership.lost.cancelled().await;
            frozen.elapsed()
        },
        ended
    );
    // `lost` is measured from the freeze; the last renewal was sent before it.
    assert!(
        lost < lease,
        "lost after {lost:?}, the lease of {lease:?} was over"
    );
    let error = ended
        .expect("a silent watch ends")
        .expect("an item")
        .expect_err("frozen");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let started = Instant::now();
    assert!(matches!(
        store.get("/t/a").await,
        Err(StoreError::Unavailable(_))
    ));
    assert!(
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );

    server.thaw();
    let next = soon("the next election", store.campaign("beta", lease))
        .await
        .expect("elected");
    assert!(next.create_revision > leadership.create_revision);
    let deposed = store
        .transact(&[leadership.fence()], &[put("/t/a", "2")])
        .await;
    assert_eq!(deposed.expect("answered"), TransactionResult::No);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_not_renewed_runs_out() {
    let server = EtcdServer::start().await;
    let (store, other) = (server.leader("alpha").await, server.leader("beta").await);
    let lease = Duration::from_secs(2);
    // The renewals run in a runtime of their own, which ends like a crashed process.
    let dying = store.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        // The client's connections belong to the outer runtime, so only the renewal ends.
        let leadership = runtime
            .block_on(dying.campaign("alpha", lease))
            .expect("elected");
        runtime.shutdown_background();
        leadership
    });
    let first = thread.join().expect("elected");
    let started = Instant::now();
    let second = soon("the takeover", other.campaign("beta", lease))
        .await
        .expect("elected");
    assert!(
        started.elapsed() > Duration::from_millis(500),
        "the lease was not waited for"
    );
    assert!(second.create_revision > first.create_revision);
}

async fn refused(store: &EtcdStore, key: &str) {
    let prefix = key;
    let error = store.get(key).await.expect_err(key);
    assert!(
        matches!(error, StoreError::Denied(_)),
        "get {key}: {error:?}"
    );
    let error = store.list(prefix).await.expect_err(key);
    assert!(
        matches!(error, StoreError::Denied(_)),
        "list {key}: {error:?}"
    );
    match store.watch(prefix, 1).await {
        Err(StoreError::Denied(_)) => {}
        Err(error) => panic!("watch {key}: {error:?}"),
        Ok(_) => panic!("watch {key} is allowed"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_reads_its_own_prefixes_and_nothing_else() {
    let mut server = EtcdServer::start().await;
    let leader = server.leader("alpha").await;
    for _ in 0..2 {
        etcd_admin::bootstrap_auth(&leader, "alpha", &["alpha", "beta"])
            .await
            .expect("users");
    }
    // A leader's certificate without an etcd user is not root.
    let stranger = server.leader("gamma").await;
    let error = stranger
        .get("/kat/config/cluster_uid")
        .await
        .expect_err("a stranger");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    etcd_admin::add_leader_user(&leader, "gamma")
        .await
        .expect("added");
    stranger.health().await.expect("known now");

    let own = keys::desired_instance("beta", "web-abcde");
    let others = keys::desired_instance("alpha", "web-fghij");
    let revision = write(
        &leader,
        &[
            put(&own, "1"),
            put(&others, "1"),
            put(keys::CLUSTER_UID, "u"),
        ],
    )
    .await;
    let beta = server.node("beta").await;
    beta.health().await.expect("a node may ask for health");
    assert_eq!(
        beta.get(&own).await.expect("allowed").expect("found").value,
        b"1"
    );
    assert_eq!(
        beta.list(&keys::node_desired("beta"))
            .await
            .expect("allowed")
            .items
            .len(),
        1
    );
    for prefix in [keys::NETWORK, keys::DNS, keys::CONFIG] {
        beta.list(prefix).await.expect(prefix);
    }
    let mut changes = beta
        .watch(&keys::node_desired("beta"), revision)
        .await
        .expect("allowed");
    soon("a change", changes.next())
        .await
        .expect("an item")
        .expect("a batch");
    for key in [
        others.as_str(),
        &keys::node_desired("alpha"),
        "/kat/nodes/desired/beta",
        keys::WORKLOADS,
        keys::TOKENS,
        keys::SECRETS,
        keys::LOGINS,
        keys::SEALING,
        keys::ROOT,
    ] {
        refused(&beta, key).await;
    }
    for key in [own.as_str(), keys::CLUSTER_UID, keys::ELECTION] {
        let error = beta.transact(&[], &[put(key, "x")]).await.expect_err(key);
        assert!(
            matches!(error, StoreError::Denied(_)),
            "put {key}: {error:?}"
        );
    }
    let error = beta
        .campaign("beta", Duration::from_secs(5))
        .await
        .expect_err("a node");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    let error = etcd_admin::add_node_user(&beta, "mine")
        .await
        .expect_err("a node");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");

    // The leader can campaign before and after a restart.
    let leadership = soon(
        "the election",
        leader.campaign("alpha", Duration::from_secs(5)),
    )
    .await;
    leader
        .resign(&leadership.expect("elected"))
        .await
        .expect("resigned");
    server.restart().await;
    leader.health().await.expect("healthy");
    etcd_admin::remove_node_user(&leader, "beta")
        .await
        .expect("removed");
    etcd_admin::remove_node_user(&leader, "beta")
        .await
        .expect("removed already");
    let error = server
        .node("beta")
        .await
        .get(&own)
        .await
        .expect_err("removed");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");

    // At the end of the migration from version 0.1.0 no machine's reader is left; the leader's user
    // is.
    for again in [false, true] {
        etcd_admin::remove_node_readers(&leader)
            .await
            .unwrap_or_else(|error| panic!("{again}: {error}"));
    }
    let error = server
        .node("alpha")
        .await
        .get(&own)
        .await
        .expect_err("removed");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    leader.health().await.expect("healthy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_change_while_the_leader_writes() {
    let server = EtcdServer::start().await;
    let leader = server.leader("alpha").await;
    etcd_admin::bootstrap_auth(&leader, "alpha", &["alpha"])
        .await
        .expect("users");
    let writer = leader.clone();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let writing = tokio::spawn(async move {
        let mut count = 0;
        while !stopped.is_cancelled() {
            write(&writer, &[put("/t/a", "x")]).await;
            writer.list("/t/").await.expect("listed");
            count += 1;
        }
        count
    });
    for n in 0..10 {
        etcd_admin::add_node_user(&leader, &format!("node{n}"))
            .await
            .expect("added");
    }
    stop.cancel();
    assert!(writing.await.expect("no write was refused") > 0);
}

/// etcd renews a lease without asking for rights, so who may lead no more has to give up its place
/// by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_without_its_user_gives_up_its_place() {
    let server = EtcdServer::start().await;
    let leader = server.leader("alpha").await;
    etcd_admin::bootstrap_auth(&leader, "alpha", &[])
        .await
        .expect("users");
    etcd_admin::add_leader_user(&leader, "gamma")
        .await
        .expect("added");
    let lease = Duration::from_secs(5);
    let leadership = soon("the election", leader.campaign("alpha", lease))
        .await
        .expect("elected");
    let removed = server.leader("gamma").await;
    let candidate = removed.clone();
    let standing = tokio::spawn(async move {
        // As an agent does, which stands again after each error.
        for _ in 0..1000 {
            let _ = candidate.campaign("gamma", lease).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let candidates = async |count: usize| {
        while names(&leader, keys::ELECTION).await.len() != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the second candidate", candidates(2)).await;
    // etcd 3.5 goes on with a user that was added and removed within one of its commits (100 ms).
    soon("the removal", async {
        loop {
            etcd_admin::remove_leader_user(&leader, "gamma")
                .await
                .expect("removed");
            if let Err(StoreError::Denied(_)) = removed.get("/t/a").await {
                return;
            }
            etcd_admin::add_leader_user(&leader, "gamma")
                .await
                .expect("added");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    soon("the end of its lease", candidates(1)).await;
    assert!(!leadership.lost.is_cancelled());
    standing.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_status() {
    let server = EtcdServer::start().await;
    let leader = server.leader("alpha").await;
    etcd_admin::bootstrap_auth(&leader, "alpha", &[])
        .await
        .expect("users");
    let members = etcd_admin::member_list(&leader).await.expect("members");
    assert_eq!(members.len(), 1);
    assert_eq!(
        (members[0].name.as_str(), members[0].is_learner),
        ("alpha", false)
    );
    assert_eq!(members[0].client_urls, [server.url()]);
    let status = etcd_admin::status(&leader).await.expect("status");
    assert_eq!(
        (status.leader, status.member),
        (members[0].id, members[0].id)
    );
    assert!(status.version.starts_with("3."), "{status:?}");
    assert!(
        status.db_size > 0 && status.db_size_in_use > 0,
        "{status:?}"
    );
    let wrong = etcd_admin::add_node_user(&leader, "Not A Name")
        .await
        .expect_err("a wrong name");
    assert!(matches!(wrong, StoreError::Invalid(_)), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_other_authorities_open_nothing() {
    let server = EtcdServer::start().await;
    let now = Timestamp::now();
    let kind = LeafKind::Leader {
        name: "alpha".into(),
    };
    let cluster = Authority::generate(AuthorityKind::Cluster, "test", now).expect("an authority");
    let foreign = cluster.issue(&kind, now).expect("a certificate");
    let store = EtcdStore::connect(&server.options(&foreign))
        .await
        .expect("a client");
    let error = store.get("/t/a").await.expect_err("a foreign certificate");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    // etcd's own server certificate is not valid for a client.
    let kind = LeafKind::EtcdServer {
        name: "alpha".into(),
        addresses: Vec::new(),
    };
    let own = server.client(&kind).await;
    own.get("/t/a").await.expect_err("a server's certificate");

    // With a certificate of the right authority the same store works.
    let kind = LeafKind::Leader {
        name: "alpha".into(),
    };
    let identity = server.clients.issue(&kind, now).expect("a certificate");
    store
        .reconnect(&server.options(&identity))
        .await
        .expect("reconnected");
    store.health().await.expect("healthy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_comes_whole_and_to_the_superuser_alone() {
    let server = EtcdServer::start().await;
    let store = server.leader("alpha").await;
    etcd_admin::bootstrap_auth(&store, "alpha", &["one"])
        .await
        .expect("users");
    for number in 0..100 {
        let value = format!("value {number} {}", "x".repeat(4096));
        write(&store, &[put(&format!("/t/{number}"), &value)]).await;
    }
    let node = server.node("one").await;
    let (sender, mut pieces) = mpsc::channel(2);
    let copied = tokio::spawn(async move {
        let refused = etcd::snapshot(&node, &sender).await;
        (refused, etcd::snapshot(&store, &sender).await)
    });
    let mut copy = Vec::new();
    while let Some(piece) = pieces.recv().await {
        copy.extend(piece);
    }
    let (refused, copied) = copied.await.expect("copied");
    let refused = refused.expect_err("it may read all values");
    assert!(matches!(refused, StoreError::Denied(_)), "{refused:?}");
    assert_eq!(copied.expect("whole"), copy.len() as u64);
    assert!(copy.len() > 100 * 4096 && copy.len() % 512 == 32);
    assert!(copy.windows(8).any(|part| part == b"value 99"));

    // The snapshot also ends if nothing receives its pieces.
    let (sender, pieces) = mpsc::channel(1);
    drop(pieces);
    let store = server.leader("alpha").await;
    etcd::snapshot(&store, &sender).await.expect_err("nobody");
}
