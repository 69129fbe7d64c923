//! Bodies that take their time: websockets, gRPC, server-sent events, large bodies, 100-continue.

use futures_util::StreamExt;
use http_body_util::BodyStream;
use hyper::HeaderMap;

use super::*;
use kat_types::resource::UpstreamProtocol;

#[tokio::test]
async fn a_websocket_passes_bytes_both_ways() {
    let echo = server(async |mut request: Request<Incoming>| {
        assert_eq!(request.headers()["upgrade"], "websocket");
        assert_eq!(request.headers()["sec-websocket-key"], "abc");
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut buffer = [0; 64];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                stream.write_all(&buffer[..length]).await.unwrap();
            }
        });
        Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", "xyz")
            .body(body(""))
            .unwrap()
    })
    .await;
    let limits = IngressLimits {
        linger: Duration::from_millis(100),
        drain: Duration::from_millis(500),
        ..IngressLimits::default()
    };
    let proxy = Proxy::with_limits(&Files::shop(&[echo]), limits).await;
    let mut client = proxy.client().await;
    let mut request = get("/");
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "abc"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let mut answer = soon(client.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.headers()["sec-websocket-accept"], "xyz");
    let mut stream = TokioIo::new(hyper::upgrade::on(&mut answer).await.unwrap());
    for text in ["one", "three"] {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut read = vec![0; text.len()];
        soon(stream.read_exact(&mut read)).await.unwrap();
        assert_eq!(read, text.as_bytes());
    }
    // The drain has a bound.
    proxy.end().await;
    let closed = soon(stream.read(&mut [0; 1])).await;
    assert!(closed.is_err() || closed.is_ok_and(|length| length == 0));
}

#[tokio::test]
async fn an_instance_that_switches_protocols_unasked_is_broken() {
    let switches = server(async |_| {
        Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .body(body(""))
            .unwrap()
    })
    .await;
    let proxy = Proxy::start(&Files::shop(&[switches])).await;
    assert_eq!(status(&proxy.get("/").await), 502);
    proxy.end().await;
}

#[tokio::test]
async fn grpc_streams_both_ways_and_its_trailers_arrive() {
    let echo = server_http2(async |request: Request<Incoming>| {
        assert_eq!(request.version(), hyper::Version::HTTP_2);
        assert_eq!(request.uri().authority().unwrap(), "shop.example");
        assert_eq!(request.headers()["te"], "trailers");
        let (sender, answer) = channel();
        tokio::spawn(async move {
            let mut frames = BodyStream::new(request.into_body());
            while let Some(Ok(frame)) = frames.next().await {
                if frame.is_data() {
                    sender.send(frame).await.unwrap();
                }
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            sender.send(Frame::trailers(trailers)).await.unwrap();
        });
        Response::builder()
            .header("content-type", "application/grpc")
            .body(answer)
            .unwrap()
    })
    .await;
    let mut files = Files::shop(&[echo]);
    let root = files.certificate(&["shop.example"]);
    files.route(
        "shop",
        IngressRoute {
            protocol: UpstreamProtocol::H2c,
            ..with_tls(service("shop.example"))
        },
    );
    let proxy = Proxy::start(&files).await;
    let (sender, sending) = channel();
    let mut client = proxy.http2("shop.example", &root).await;
    let request = Request::builder()
        .method("POST")
        .uri("https://shop.example/echo.Echo/Both")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(sending)
        .unwrap();
    let answer = soon(client.send_request(request)).await.unwrap();
    let mut frames = BodyStream::new(answer.into_body());
    for message in ["\0\0\0\0\x03one", "\0\0\0\0\x03two"] {
        sender
            .send(Frame::data(Bytes::from(message)))
            .await
            .unwrap();
        // Each comes back before the next one is sent.
        let frame = soon(frames.next()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), message);
    }
    drop(sender);
    let frame = soon(frames.next()).await.unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap()["grpc-status"], "0");
    proxy.end().await;
}

#[tokio::test]
async fn a_caller_of_grpc_gets_its_own_kind_of_failure() {
    let mut files = Files::shop(&[nobody()]);
    let root = files.certificate(&["shop.example"]);
    files.route(
        "shop",
        IngressRoute {
            protocol: UpstreamProtocol::H2c,
            ..with_tls(service("shop.example"))
        },
    );
    let proxy = Proxy::start(&files).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let request = Request::builder()
        .method("POST")
        .uri("https://shop.example/a.B/C")
        .header("content-type", "application/grpc")
        .body(body(""))
        .unwrap();
    let answer = soon(client.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["grpc-status"], "14");
    proxy.end().await;
}

#[tokio::test]
async fn each_event_arrives_when_it_is_sent() {
    let (events, stream) = channel();
    let stream = Arc::new(std::sync::Mutex::new(Some(stream)));
    let streams = server(move |_| {
        let stream = stream.lock().unwrap().take().unwrap();
        async move {
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(stream)
                .unwrap()
        }
    })
    .await;
    let proxy = Proxy::start(&Files::shop(&[streams])).await;
    let mut client = proxy.client().await;
    let answer = soon(client.send_request(get("/"))).await.unwrap();
    let mut frames = BodyStream::new(answer.into_body());
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        events.send(Frame::data(Bytes::from(event))).await.unwrap();
        let frame = soon(frames.next()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    drop(events);
    assert!(soon(frames.next()).await.is_none());
    proxy.end().await;
}

/// Memory of this process in KiB.
fn memory(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_gibibyte_passes_in_constant_memory() {
    const PIECES: u64 = 8192;
    const PIECE: usize = 64 * 1024;
    let counts = server(async |request: Request<Incoming>| {
        let mut frames = BodyStream::new(request.into_body());
        let mut received: u64 = 0;
        while let Some(frame) = frames.next().await {
            received += u64::try_from(frame.unwrap().into_data().unwrap().len()).unwrap();
        }
        Response::new(body(received.to_string()))
    })
    .await;
    let proxy = Proxy::start(&Files::shop(&[counts])).await;
    let before = memory("VmRSS:");
    let piece = Bytes::from(vec![7; PIECE]);
    let pieces = futures_util::stream::iter(0..PIECES);
    let pieces = pieces.map(move |_| Ok::<_, Infallible>(Frame::data(piece.clone())));
    let request = Request::builder()
        .method("POST")
        .uri("/")
        .header("host", "shop.example")
        .body(BodyExt::boxed_unsync(StreamBody::new(pieces)))
        .unwrap();
    let mut client = proxy.client().await;
    let sending = tokio::spawn(async move { client.send_request(request).await.unwrap() });
    let mut most = before;
    let answer = tokio::time::timeout(Duration::from_secs(300), async {
        while !sending.is_finished() {
            most = most.max(memory("VmRSS:"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        sending.await.unwrap()
    });
    let answer = text(answer.await.unwrap()).await;
    assert_eq!(answer, (PIECES * u64::try_from(PIECE).unwrap()).to_string());
    // Other tests of the process need some, too.
    assert!(
        most < before + 128 * 1024,
        "{before} KiB before, {most} KiB at most"
    );
    proxy.end().await;
}

#[tokio::test]
async fn a_body_that_waits_for_100_continue_is_asked_for_by_the_instance() {
    // One that refuses without reading.
    let refuses = server(async |_| {
        Response::builder()
            .status(413)
            .body(body("too large"))
            .unwrap()
    })
    .await;
    let proxy = Proxy::start(&Files::shop(&[refuses])).await;
    let head = "POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    let answer = proxy.raw(head).await;
    assert_eq!(status(&answer), 413, "{answer}");
    assert!(!answer.contains("100 Continue"), "{answer}");
    proxy.end().await;
    // One that reads.
    let reads = server(async |request: Request<Incoming>| {
        assert_eq!(request.headers()["expect"], "100-continue");
        let read = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(body(read))
    })
    .await;
    let proxy = Proxy::start(&Files::shop(&[reads])).await;
    let mut stream = TcpStream::connect(proxy.http).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut told = [0; 25];
    soon(stream.read_exact(&mut told)).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let mut answer = Vec::new();
    soon(async {
        while !answer.ends_with(b"hello") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
        }
    })
    .await;
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    proxy.end().await;
}

#[tokio::test]
async fn a_connection_to_an_instance_is_used_again() {
    let accepted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let counting = Arc::clone(&accepted);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counting.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(body("kept"))));
            tokio::spawn(server1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let proxy = Proxy::start(&Files::shop(&[address])).await;
    let mut client = proxy.client().await;
    for _ in 0..20 {
        client.ready().await.unwrap();
        let answer = soon(client.send_request(get("/"))).await.unwrap();
        assert_eq!(text(answer).await, "kept");
    }
    let accepted = accepted.load(std::sync::atomic::Ordering::Relaxed);
    assert!(accepted <= 5, "{accepted} connections for 20 requests");
    proxy.end().await;
}
