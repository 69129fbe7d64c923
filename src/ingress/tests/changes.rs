//! Changes under load: no request is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use super::*;

/// Sends requests on connections that are kept, until told to stop; returns their number. A
/// connection that says `Connection: close` is replaced.
async fn load(http: SocketAddr, stop: Arc<AtomicBool>, made: Arc<AtomicUsize>) {
    while !stop.load(Relaxed) {
        let stream = TcpStream::connect(http).await.expect("a connection");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        loop {
            let answer = sender.send_request(get("/")).await.expect("an answer");
            let closes = answer
                .headers()
                .get("connection")
                .is_some_and(|word| word == "close");
            assert_eq!(answer.status(), 200);
            assert_eq!(text(answer).await, "shop");
            made.fetch_add(1, Relaxed);
            if closes || stop.load(Relaxed) {
                break;
            }
            if sender.ready().await.is_err() {
                panic!("a connection was closed without notice");
            }
        }
    }
}

struct Load {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    tasks: tokio::task::JoinSet<()>,
}

impl Load {
    fn start(http: SocketAddr) -> Self {
        let (stop, made) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            tasks.spawn(load(http, Arc::clone(&stop), Arc::clone(&made)));
        }
        Self { stop, made, tasks }
    }

    /// Waits for this many further requests.
    async fn more(&self, count: usize) {
        let goal = self.made.load(Relaxed) + count;
        until(|| self.made.load(Relaxed) >= goal).await;
    }

    async fn end(mut self) {
        self.stop.store(true, Relaxed);
        while let Some(ended) = soon(self.tasks.join_next()).await {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_changes_of_the_files_lose_no_request() {
    let servers = [says("shop").await, says("shop").await];
    let mut files = Files::shop(&servers);
    // No limit on its requests.
    files.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    let proxy = Proxy::start(&files).await;
    let load = Load::start(proxy.http);
    load.more(10).await;
    for round in 0..100 {
        // One instance leaves, the other one comes; routes come and go.
        files.upstream("u", &servers[round % 2..=round % 2]);
        files.route(&format!("r{round}"), service(&format!("r{round}.example")));
        files
            .routes
            .routes
            .remove(&format!("r{}", round.wrapping_sub(3)));
        proxy.replace(&mut files).await;
        load.more(1).await;
    }
    load.end().await;
    assert_eq!(proxy.status().refused, []);
    proxy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_replaced_under_load() {
    let mut files = Files::shop(&[says("shop").await]);
    files.route("shop", with_tls(service("shop.example")));
    let first = files.certificate(&["shop.example"]);
    let proxy = Proxy::start(&files).await;
    let mut kept = proxy.http2::<Body>("shop.example", &first).await;
    let request = || {
        Request::builder()
            .uri("https://shop.example/")
            .body(body(""))
            .unwrap()
    };
    let mut old = first;
    for _ in 0..10 {
        let new = files.certificate(&["shop.example"]);
        proxy.replace(&mut files).await;
        // New connections get the new one and not the old one; the open one continues.
        assert!(proxy.tls("shop.example", &[&old], &["h2"]).await.is_err());
        let mut fresh = proxy.http2::<Body>("shop.example", &new).await;
        for client in [&mut kept, &mut fresh] {
            let answer = soon(client.send_request(request())).await.unwrap();
            assert_eq!(text(answer).await, "shop");
        }
        old = new;
    }
    // Instead of one that can't be used the last good one is served, and the bad one is named.
    let bad = files
        .certificates
        .certificates
        .get_mut("shop.example")
        .unwrap();
    bad.key = "rubbish".to_owned();
    proxy.replace(&mut files).await;
    let refused = proxy.status().refused;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0].file, CERTIFICATES_FILE);
    assert_eq!(refused[0].name, "shop.example");
    let mut fresh = proxy.http2::<Body>("shop.example", &old).await;
    for client in [&mut kept, &mut fresh] {
        let answer = soon(client.send_request(request())).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    drop(kept);
    drop(fresh);
    proxy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_instance_takes_over_and_no_request_is_lost() {
    let slow = server(async |request: Request<Incoming>| {
        if request.uri().path() == "/slow" {
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        Response::new(body("shop"))
    })
    .await;
    let mut files = Files::shop(&[slow]);
    files.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    let limits = IngressLimits {
        linger: Duration::from_secs(5),
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits.clone()).await;
    let load = Load::start(proxy.http);
    load.more(10).await;
    let mut client = proxy.client().await;
    let under_way = tokio::spawn(async move { client.send_request(get("/slow")).await });
    load.more(20).await;
    let (cancel, second) = Proxy::run(&proxy.sockets, proxy.folder.path(), "b", limits).await;
    load.more(20).await;
    proxy.cancel.cancel();
    until(|| {
        // Its file is gone at its end.
        let text = fs::read(proxy.folder.path().join(status_file("a"))).unwrap_or_default();
        serde_json::from_slice::<IngressStatus>(&text).map_or(true, |status| status.draining)
    })
    .await;
    assert_eq!(soon(under_way).await.unwrap().unwrap().status(), 200);
    soon(proxy.task).await.unwrap().unwrap();
    assert!(!proxy.folder.path().join(status_file("a")).exists());
    load.more(50).await;
    load.end().await;
    cancel.cancel();
    soon(second).await.unwrap().unwrap();
}

#[tokio::test]
async fn http2_connections_are_told_to_go_away_and_finish_what_they_have() {
    let (begun, mut begins) = tokio::sync::mpsc::channel::<()>(1);
    let slow = server(move |_| {
        let begun = begun.clone();
        async move {
            begun.send(()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            Response::new(body("shop"))
        }
    })
    .await;
    let mut files = Files::shop(&[slow]);
    let root = files.certificate(&["shop.example"]);
    files.route("shop", with_tls(service("shop.example")));
    let proxy = Proxy::start(&files).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let request = Request::builder()
        .uri("https://shop.example/")
        .body(body(""))
        .unwrap();
    let sending = client.send_request(request);
    let ending = async {
        begins.recv().await.unwrap();
        proxy.end().await;
    };
    let (answer, ()) = soon(async { tokio::join!(sending, ending) }).await;
    assert_eq!(text(answer.unwrap()).await, "shop");
    until(|| client.is_closed()).await;
}
