//! Connections without TLS, slow connections, and too many of them.

use super::*;

#[tokio::test]
async fn no_tls_is_answered_in_plain_words() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    stream
        .write_all(b"GET /version HTTP/1.1\r\nHost: kat\r\n\r\n")
        .await
        .unwrap();
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("TlsRequired"), "{answer}");
}

#[tokio::test]
async fn an_older_tls_is_refused() {
    let server = Server::start().await;
    let mut roots = rustls::RootCertStore::empty();
    let pem = server.authority.certificate_pem();
    use rustls::pki_types::pem::PemObject;
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    let name = ServerName::try_from(server_name()).unwrap();
    let error = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let server = Server::start().await;
    let now = Timestamp::now();
    let other = Authority::generate(AuthorityKind::Cluster, CLUSTER_UID, now).unwrap();
    // A client that trusts another authority refuses the server's certificate.
    let servers = ApiServers::Named(ServerMemory::new(true));
    let trusting = tls::client_config(other.certificate_pem(), CLUSTER_UID, None, servers).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    let name = ServerName::try_from(server_name()).unwrap();
    assert!(
        TlsConnector::from(Arc::new(trusting))
            .connect(name, stream)
            .await
            .is_err()
    );
    // The server accepts no certificate of another authority, whatever its name.
    let forged = issue_node(&other, "n1", now);
    let client = server.client(Some(&forged));
    let body = json!({"nodeName": "n1", "nodeUID": NODE_UID});
    let sent = client.post(server.url(STATUS)).json(&body).send().await;
    assert!(sent.is_err(), "{sent:?}");
    assert!(
        server
            .handle
            .reports
            .observed(Duration::MAX)
            .reports
            .is_empty()
    );
    // A certificate that the same cluster issued for another purpose is refused.
    let etcd = Authority::generate(AuthorityKind::EtcdClients, CLUSTER_UID, now).unwrap();
    let kind = kat_pki::LeafKind::EtcdNode {
        name: "n1".to_owned(),
    };
    let leaf = etcd.issue(&kind, now).unwrap();
    let sent = server
        .client(Some(&leaf))
        .get(server.url("/version"))
        .send()
        .await;
    assert!(sent.is_err(), "{sent:?}");
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_is_dropped() {
    let server = Server::start_with(impatient()).await;
    let started = Instant::now();
    let mut silent = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    assert_eq!(rest(&mut silent).await, "");
    let mut half = TcpStream::connect(("127.0.0.1", server.port))
        .await
        .unwrap();
    half.write_all(&[22, 3, 1]).await.unwrap();
    assert_eq!(rest(&mut half).await, "");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn slow_headers_are_not_waited_for() {
    let server = Server::start_with(impatient()).await;
    let heads: [&[u8]; 5] = [
        b"",
        b"G",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: kat\r\nX-Slow: ",
    ];
    let waits = heads.map(async |head| {
        let mut stream = tls_stream(&server).await;
        stream.write_all(head).await.unwrap();
        stream.flush().await.unwrap();
        let started = Instant::now();
        let answer = rest(&mut stream).await;
        assert!(!answer.contains("200"), "{answer}");
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(10), "{head:?}: {waited:?}");
    });
    futures_util::future::join_all(waits).await;
    // Sending one byte at a time does not extend the time limit.
    let mut stream = tls_stream(&server).await;
    let started = Instant::now();
    let drip = async {
        loop {
            if stream.write_all(b"G").await.is_err() || stream.flush().await.is_err() {
                return;
            }
            let mut byte = [0u8; 256];
            if let Ok(Ok(0) | Err(_)) =
                timeout(Duration::from_millis(50), stream.read(&mut byte)).await
            {
                return;
            }
        }
    };
    assert!(
        timeout(Duration::from_secs(10), drip).await.is_ok(),
        "{:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn slow_bodies_are_not_waited_for() {
    let server = Server::start_with(impatient()).await;
    let before = server.stored();
    let head = format!(
        "POST {NAMESPACES} HTTP/1.1\r\nHost: kat\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n{{\"meta",
        server.admin
    );
    let started = Instant::now();
    let answer = raw(&server, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"Timeout\""), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn half_closed_bodies_store_nothing() {
    let server = Server::start_with(impatient()).await;
    let before = server.stored();
    let body = "{\"metadata\":{\"name\":\"half\"}}";
    for (length, kind) in [(body.len() + 1, "content-length"), (0, "chunked")] {
        let mut stream = tls_stream(&server).await;
        let size = match kind {
            "chunked" => format!(
                "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n",
                body.len()
            ),
            _ => format!("Content-Length: {length}\r\n\r\n{body}"),
        };
        let request = format!(
            "POST {NAMESPACES} HTTP/1.1\r\nHost: kat\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n{size}",
            server.admin
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{kind}: {answer}"
        );
        assert_eq!(server.stored(), before, "{kind}");
    }
}

/// Asserts that the server closes this connection without an answer.
async fn is_closed(stream: &mut TcpStream) {
    assert_eq!(rest(stream).await, "");
}

async fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).await.unwrap()
}

#[tokio::test]
async fn an_address_that_proves_nothing_keeps_no_handshake_out() {
    let server = Server::start_with(ApiLimits {
        handshake_timeout: Duration::from_secs(20),
        unproved: ConnectionLimits { each: 4, all: 8 },
        ..impatient()
    })
    .await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(connect(server.port).await);
    }
    // A call with a token gets the place of the oldest connection.
    assert_eq!(server.get(&server.read, NAMESPACES).await.0, 200);
    is_closed(held.first_mut().unwrap()).await;
    // That connection now counts for the token, so the other three are still open.
    for stream in held.iter_mut().skip(1) {
        let mut byte = [0u8; 1];
        let read = timeout(Duration::from_millis(50), stream.read(&mut byte)).await;
        assert!(read.is_err(), "{read:?}");
    }
}

#[tokio::test]
async fn an_anonymous_connection_that_only_answers_pings_ends() {
    let server = Server::start_with(ApiLimits {
        anonymous_idle: Duration::from_millis(500),
        ..impatient()
    })
    .await;
    let token = format!("Bearer {}", server.read);
    let mut open = Vec::new();
    for authorization in ["", token.as_str()] {
        let stream = hyper_util::rt::TokioIo::new(tls_stream(&server).await);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut calls, connection) = hyper::client::conn::http2::handshake(executor, stream)
            .await
            .unwrap();
        // The client answers pings while its connection task runs.
        let connection = tokio::spawn(connection);
        let mut request = hyper::Request::get("https://kat/healthz");
        if !authorization.is_empty() {
            request = request.header("authorization", authorization);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = calls.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{authorization}");
        open.push((calls, connection));
    }
    let (_proved_calls, proved) = open.pop().unwrap();
    let (_calls, anonymous) = open.pop().unwrap();
    let ended = timeout(DEADLINE, anonymous).await;
    assert!(ended.is_ok(), "the anonymous connection stays open");
    assert!(!proved.is_finished(), "the token's connection ended too");
}

#[tokio::test]
async fn callers_are_limited_where_they_are_passed_on() {
    let server = Server::start_with(ApiLimits {
        passed_on: ConnectionLimits { each: 2, all: 8 },
        header_timeout: Duration::from_secs(20),
        handshake_timeout: Duration::from_secs(20),
        ..ApiLimits::default()
    })
    .await;
    let mut held = [
        connect(server.passing_port).await,
        connect(server.passing_port).await,
    ];
    is_closed(&mut connect(server.passing_port).await).await;
    // The leader's own port still has free places, and so has the Unix socket.
    assert_eq!(server.get(&server.read, NAMESPACES).await.0, 200);
    let path = server.socket("admin.sock");
    let client = reqwest::Client::builder()
        .unix_socket(path)
        .build()
        .unwrap();
    let answer = client.get("http://kat/version").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    for stream in &mut held {
        let mut byte = [0u8; 1];
        let read = timeout(Duration::from_millis(50), stream.read(&mut byte)).await;
        assert!(read.is_err(), "{read:?}");
    }
}
