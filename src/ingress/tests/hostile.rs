//! Clients that mean harm, or are slow. Each limit has its test.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::*;

#[tokio::test]
async fn requests_that_could_be_read_in_two_ways_are_refused() {
    let mut files = Files::shop(&[mirror().await]);
    files.route(
        "admin",
        IngressRoute {
            path: "/admin".to_owned(),
            basic_auth: Some(Vec::new()),
            ..service("shop.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    let end = "Connection: close\r\n\r\n";
    for request in [
        // Two hosts, none, or a malformed one.
        format!("GET / HTTP/1.1\r\nHost: shop.example\r\nHost: other.example\r\n{end}"),
        format!("GET / HTTP/1.1\r\n{end}"),
        format!("GET / HTTP/1.1\r\nHost: shop.example, other.example\r\n{end}"),
        format!("GET http://other.example/ HTTP/1.1\r\nHost: shop.example\r\n{end}"),
        // Two lengths, one that is no number, and other encodings.
        format!(
            "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n{end}x"
        ),
        format!("POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: +1\r\n{end}x"),
        format!("POST / HTTP/1.1\r\nHost: shop.example\r\nTransfer-Encoding: gzip\r\n{end}x"),
        format!(
            "POST / HTTP/1.0\r\nHost: shop.example\r\nTransfer-Encoding: chunked\r\n{end}0\r\n\r\n"
        ),
        // A header that continues on the next line, a space before the colon, a bare line feed in a name.
        format!("GET / HTTP/1.1\r\nHost: shop.example\r\nX-A: b\r\n c\r\n{end}"),
        format!("GET / HTTP/1.1\r\nHost: shop.example\r\nContent-Length : 1\r\n{end}"),
        format!("GET / HTTP/1.1\r\nHost: shop.example\r\nX-\0A: b\r\n{end}"),
        // Paths.
        format!("GET /%2e%2e/admin HTTP/1.1\r\nHost: shop.example\r\n{end}"),
        format!("GET /x/../admin HTTP/1.1\r\nHost: shop.example\r\n{end}"),
        format!("GET /x%2f..%2fadmin HTTP/1.1\r\nHost: shop.example\r\n{end}"),
        format!("GET //admin HTTP/1.1\r\nHost: shop.example\r\n{end}"),
        format!("GET /%2561dmin HTTP/1.1\r\nHost: shop.example\r\n{end}"),
        format!("OPTIONS * HTTP/1.1\r\nHost: shop.example\r\n{end}"),
    ] {
        let answer = proxy.raw(&request).await;
        assert_eq!(status(&answer), 400, "{request}\n{answer}");
    }
    for path in ["/admin", "/admin/", "/%61dmin/x", "/admin;x/y"] {
        let answer = proxy.get(path).await;
        assert_eq!(status(&answer), 401, "{path}\n{answer}");
    }
    let connect = proxy
        .raw("CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n")
        .await;
    assert_eq!(status(&connect), 405);
    proxy.end().await;
}

#[tokio::test]
async fn what_follows_a_body_with_two_lengths_is_no_request() {
    let proxy = Proxy::start(&Files::shop(&[mirror().await])).await;
    for headers in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    ] {
        let request = format!(
            "POST /first HTTP/1.1\r\nHost: shop.example\r\n{headers}\r\n0\r\n\r\n\
             GET /smuggled HTTP/1.1\r\nHost: shop.example\r\n\r\n"
        );
        let answer = proxy.raw(&request).await;
        assert!(answer.contains("POST /first\n"), "{answer}");
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(!answer.contains("smuggled"), "{answer}");
        assert!(!answer.contains("content-length: 4\n"), "{answer}");
    }
    proxy.end().await;
}

#[tokio::test]
async fn a_switch_to_http2_is_not_passed_on() {
    let proxy = Proxy::start(&Files::shop(&[mirror().await])).await;
    let answer = proxy
        .raw(
            "GET / HTTP/1.1\r\nHost: shop.example\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\
             Connection: Upgrade, HTTP2-Settings, close\r\n\r\n",
        )
        .await;
    assert_eq!(status(&answer), 200);
    assert!(
        !answer.contains("upgrade:") && !answer.contains("http2-settings"),
        "{answer}"
    );
    proxy.end().await;
}

#[tokio::test]
async fn heads_are_bounded_in_bytes_and_in_lines() {
    let mut files = Files::shop(&[says("shop").await]);
    let root = files.certificate(&["tls.example"]);
    files.route("tls", with_tls(service("tls.example")));
    let proxy = Proxy::start(&files).await;
    let with = |headers: &str| {
        format!("GET / HTTP/1.1\r\nHost: shop.example\r\n{headers}Connection: close\r\n\r\n")
    };
    assert_eq!(
        status(&proxy.raw(&with(&"X-A: b\r\n".repeat(90))).await),
        200
    );
    assert_eq!(
        status(&proxy.raw(&with(&"X-A: b\r\n".repeat(120))).await),
        431
    );
    let long = format!("X-A: {}\r\n", "b".repeat(40 * 1024));
    assert_eq!(status(&proxy.raw(&with(&long)).await), 431);
    // In HTTP/2 a header of few bytes may stand for a long one from its table.
    let mut client = proxy.http2::<Body>("tls.example", &root).await;
    let request = |count: usize, length: usize| {
        let mut request = Request::builder().uri("https://tls.example/");
        for _ in 0..count {
            request = request.header("x-a", "b".repeat(length));
        }
        request.body(body("")).unwrap()
    };
    let many = soon(client.send_request(request(120, 1))).await.unwrap();
    assert_eq!(many.status(), 431);
    let bomb = soon(client.send_request(request(90, 4000))).await;
    assert!(bomb.is_err() || bomb.is_ok_and(|answer| answer.status() == 431));
    let mut client = proxy.http2::<Body>("tls.example", &root).await;
    let good = soon(client.send_request(request(1, 1))).await.unwrap();
    assert_eq!(good.status(), 200);
    proxy.end().await;
}

#[tokio::test]
async fn a_client_that_resets_its_streams_loses_its_connection() {
    let waits = server(async |_| std::future::pending().await).await;
    let mut files = Files::shop(&[waits]);
    let root = files.certificate(&["shop.example"]);
    files.route("shop", with_tls(service("shop.example")));
    let limits = IngressLimits {
        resets: 20,
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let mut sent = 0;
    soon(async {
        while !client.is_closed() {
            let request = Request::builder()
                .uri("https://shop.example/")
                .body(body(""))
                .unwrap();
            let sending = client.send_request(request);
            // Dropped before its answer: RST_STREAM.
            let _ = tokio::time::timeout(Duration::from_millis(5), sending).await;
            sent += 1;
        }
    })
    .await;
    assert!(sent > 20, "{sent}");
    // Others are served.
    let client = proxy.http2::<Body>("shop.example", &root).await;
    assert!(!client.is_closed());
    proxy.cancel.cancel();
    proxy.task.abort();
}

#[tokio::test]
async fn a_client_that_sends_its_head_or_handshake_slowly_is_cut_off() {
    let mut files = Files::shop(&[says("shop").await]);
    files.certificate(&["shop.example"]);
    files.settings.proxy_protocol_from = vec!["127.0.0.2/32".parse().unwrap()];
    let limits = IngressLimits {
        head: Duration::from_millis(300),
        handshake: Duration::from_millis(300),
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let address = async |from: &str, to: SocketAddr, bytes: &'static [u8]| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        let began = std::time::Instant::now();
        for byte in bytes {
            // It is closed meanwhile.
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
        (began.elapsed(), String::from_utf8_lossy(&rest).into_owned())
    };
    let slow = b"GET / HTTP/1.1\r\nHost: shop.example\r\n";
    let (took, answer) = address("127.0.0.1", proxy.http, slow).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    // Nothing at all, and a handshake and a PROXY header that never end.
    for (from, to, bytes) in [
        ("127.0.0.1", proxy.http, &b""[..]),
        ("127.0.0.1", proxy.https, b"\x16\x03\x01"),
        ("127.0.0.2", proxy.http, b"PROXY TCP4 1.2.3.4"),
    ] {
        let (took, answer) = address(from, to, bytes).await;
        assert!(!answer.contains("200 OK"), "{answer}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    // A connection that is kept for the next request, too.
    let mut stream = TcpStream::connect(proxy.http).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("shop"), "{answer}");
    proxy.end().await;
}

#[tokio::test]
async fn an_http2_connection_without_requests_is_closed() {
    let mut files = Files::shop(&[says("shop").await]);
    let root = files.certificate(&["shop.example"]);
    files.route("shop", with_tls(service("shop.example")));
    let limits = IngressLimits {
        idle: Duration::from_millis(300),
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let client = proxy.http2::<Body>("shop.example", &root).await;
    until(|| client.is_closed()).await;
    proxy.end().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_off() {
    let endless = server(async |_| {
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        let pieces = futures_util::stream::repeat_with(move || {
            Ok::<_, Infallible>(Frame::data(piece.clone()))
        });
        Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)))
    })
    .await;
    let limits = IngressLimits {
        write: Duration::from_millis(300),
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&Files::shop(&[endless]), limits).await;
    let mut stream = TcpStream::connect(proxy.http).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n")
        .await
        .unwrap();
    let mut answer = vec![0; 1024];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    // Longer than the limit, without reading: then the connection is gone.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let mut rest = Vec::new();
    let read = soon(stream.read_to_end(&mut rest)).await;
    // An endless body ends, cleanly or not.
    assert!(read.is_err() || !rest.is_empty());
    proxy.end().await;
}

/// Counts an answer until it is dropped.
struct CountedAnswer(Arc<AtomicUsize>);

impl CountedAnswer {
    fn new(under_way: &Arc<AtomicUsize>) -> Self {
        under_way.fetch_add(1, Relaxed);
        Self(Arc::clone(under_way))
    }
}

impl Drop for CountedAnswer {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A server with endless answers in pieces of 1 KiB, and the number of those under way.
async fn endless() -> (SocketAddr, Arc<AtomicUsize>) {
    let under_way = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&under_way);
    let address = server(move |_| {
        let answer = CountedAnswer::new(&counted);
        async move {
            let piece = Bytes::from(vec![b'x'; 1024]);
            let pieces = futures_util::stream::repeat_with(move || {
                let _under_way = &answer;
                Ok::<_, Infallible>(Frame::data(piece.clone()))
            });
            Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)))
        }
    })
    .await;
    (address, under_way)
}

#[tokio::test]
async fn streams_that_are_not_read_free_their_instance_and_leave_the_others_alone() {
    let (address, under_way) = endless().await;
    let mut files = Files::shop(&[address]);
    let root = files.certificate(&["shop.example"]);
    files.route("shop", with_tls(service("shop.example")));
    let slow = server(async |_| {
        tokio::time::sleep(Duration::from_secs(6)).await;
        Response::new(body("slow"))
    })
    .await;
    files.upstream("slow", &[slow]);
    let route = IngressRoute {
        path: "/slow".to_owned(),
        ..IngressRoute::new(
            "shop.example",
            RouteAction::Service {
                upstream: "slow".to_owned(),
            },
        )
    };
    files.route("slow", with_tls(route));
    let limits = IngressLimits {
        write: Duration::from_millis(500),
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let request = |path: &str| {
        Request::builder()
            .uri(format!("https://shop.example{path}"))
            .body(body(""))
            .unwrap()
    };
    let (mut patient, slow) = (client.clone(), request("/slow"));
    let other = tokio::spawn(async move { patient.send_request(slow).await });
    // Two fill their windows and not that of the connection.
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(soon(client.send_request(request("/"))).await.unwrap());
    }
    assert_eq!(under_way.load(Relaxed), 2);
    // Nobody reads; each has a second for the KiB of its last piece beside the limit.
    until(|| under_way.load(Relaxed) == 0).await;
    // Another request of the connection was not disturbed.
    let slow = soon(other).await.unwrap().unwrap();
    assert_eq!(text(slow).await, "slow");
    // Now it has nothing else.
    until(|| client.is_closed()).await;
    drop(answers);
    proxy.end().await;
}

#[tokio::test]
async fn one_address_has_so_many_requests_under_way() {
    let (address, _under_way) = endless().await;
    let mut files = Files::shop(&[address]);
    let root = files.certificate(&["shop.example"]);
    files.route("shop", with_tls(service("shop.example")));
    let limits = IngressLimits {
        requests_under_way: 3,
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&files, limits).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let request = || {
        Request::builder()
            .uri("https://shop.example/")
            .body(body(""))
            .unwrap()
    };
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = soon(client.send_request(request())).await.unwrap();
        assert_eq!(answer.status(), 200);
        answers.push(answer);
    }
    // Their heads are there, their bodies are not read.
    let refused = soon(client.send_request(request())).await.unwrap();
    assert_eq!(refused.status(), 429);
    drop(refused);
    answers.pop();
    soon(async {
        loop {
            let answer = client.send_request(request()).await.unwrap();
            if answer.status() == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop((answers, client));
    proxy.end().await;
}

#[tokio::test]
async fn one_address_gets_so_many_requests_and_connections() {
    let limits = IngressLimits {
        requests: NonZeroU32::MIN,
        request_burst: NonZeroU32::new(5).unwrap(),
        connections_of_address: 3,
        ..IngressLimits::default()
    };
    let mut files = Files::shop(&[says("shop").await]);
    let proxy = Proxy::with_limits(&files, limits).await;
    let mut codes = Vec::new();
    for _ in 0..10 {
        codes.push(status(&proxy.get("/").await));
    }
    let counts = count(codes);
    assert!(counts[&200] >= 5 && counts[&429] >= 3, "{counts:?}");
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(TcpStream::connect(proxy.http).await.unwrap());
    }
    assert_eq!(proxy.get("/").await, "");
    // A trusted proxy speaks for many.
    files.settings.trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    proxy.replace(&mut files).await;
    for _ in 0..10 {
        assert_eq!(status(&proxy.get("/").await), 200);
    }
    drop(held);
    proxy.end().await;
}

#[tokio::test]
async fn a_body_is_bounded_where_the_route_says_so() {
    let counts =
        server(
            async |request: Request<Incoming>| match request.into_body().collect().await {
                Ok(whole) => Response::new(body(whole.to_bytes().len().to_string())),
                Err(_) => Response::new(body("broken")),
            },
        )
        .await;
    let mut files = Files::shop(&[counts]);
    files.route(
        "shop",
        IngressRoute {
            max_body_bytes: 10,
            ..service("shop.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    let post = |headers: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nHost: shop.example\r\n{headers}Connection: close\r\n\r\n{body}")
    };
    let exact = proxy
        .raw(&post("Content-Length: 10\r\n", "0123456789"))
        .await;
    assert!(exact.ends_with("\r\n\r\n10"), "{exact}");
    let long = proxy
        .raw(&post("Content-Length: 11\r\n", "0123456789a"))
        .await;
    assert_eq!(status(&long), 413);
    let chunked = "Transfer-Encoding: chunked\r\n";
    let fits = proxy
        .raw(&post(chunked, "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"))
        .await;
    assert!(fits.ends_with("\r\n\r\n10"), "{fits}");
    let long = proxy
        .raw(&post(
            chunked,
            "8\r\n01234567\r\n8\r\n01234567\r\n0\r\n\r\n",
        ))
        .await;
    assert_eq!(status(&long), 413, "{long}");
    proxy.end().await;
}

#[tokio::test]
async fn a_route_that_is_refused_does_not_open_what_it_protects() {
    let mut files = Files::shop(&[mirror().await]);
    files.route(
        "admin",
        IngressRoute {
            path: "/admin".to_owned(),
            basic_auth: Some(Vec::new()),
            request_headers: kat_types::resource::HeaderChanges {
                remove: vec!["Proxy-Authorization".to_owned()],
                ..kat_types::resource::HeaderChanges::default()
            },
            ..service("shop.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    assert_eq!(status(&proxy.get("/").await), 200);
    for path in ["/admin", "/admin/x", "/%61dmin"] {
        let answer = proxy.get(path).await;
        assert_eq!(status(&answer), 503, "{path}\n{answer}");
    }
    let refused = proxy.status().refused;
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(refused[0].name, "admin");
    proxy.end().await;
}
