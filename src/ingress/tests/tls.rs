//! Certificates and server names.

use super::*;

#[tokio::test]
async fn a_host_is_served_with_its_certificate_over_both_protocols() {
    let mut files = Files::shop(&[mirror().await]);
    let root = files.certificate(&["shop.example"]);
    let wild = files.certificate(&["*.wild.example"]);
    let mut route = with_tls(service("shop.example"));
    route.tls = Some(RouteTls {
        hsts_seconds: 100,
        ..RouteTls::default()
    });
    files.route("shop", route);
    files.route("wild", with_tls(service("*.wild.example")));
    let proxy = Proxy::start(&files).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let request = |host: &str| {
        Request::builder()
            .uri(format!("https://{host}/a"))
            .body(body(""))
            .unwrap()
    };
    let answer = soon(client.send_request(request("shop.example")))
        .await
        .unwrap();
    assert_eq!(answer.headers()["strict-transport-security"], "max-age=100");
    let answer = text(answer).await;
    assert!(answer.starts_with("GET /a\n"), "{answer}");
    assert!(answer.contains("x-forwarded-proto: https\n"), "{answer}");
    // The connection was made for another host.
    let other = soon(client.send_request(request("a.wild.example")))
        .await
        .unwrap();
    assert_eq!(other.status(), 421);
    let mut stream = proxy
        .tls("a.wild.example", &[&wild], &["http/1.1"])
        .await
        .unwrap();
    let http1 = "GET / HTTP/1.1\r\nHost: a.wild.example\r\nConnection: close\r\n\r\n";
    stream.write_all(http1.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(status(&answer), 200);
    // No certificate, no handshake.
    assert!(proxy.tls("other.example", &[&root], &[]).await.is_err());
    assert!(proxy.tls("a.b.wild.example", &[&wild], &[]).await.is_err());
    proxy.end().await;
}

#[tokio::test]
async fn while_a_certificate_is_outstanding_the_host_says_what_it_waits_for() {
    let mut files = Files::shop(&[says("shop").await]);
    let root = files.certificate(&["shop.example"]);
    let mut route = with_tls(service("shop.example"));
    let sentence = "The certificate of shop.example is being ordered.".to_owned();
    route.tls = Some(RouteTls {
        waits_for: Some(sentence.clone()),
        hsts_seconds: 0,
    });
    files.route("shop", route);
    let proxy = Proxy::start(&files).await;
    let ask = async || {
        let mut stream = proxy.tls("shop.example", &[&root], &[]).await.unwrap();
        let request = "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.unwrap();
        answer
    };
    for answer in [ask().await, proxy.get("/").await] {
        assert_eq!(status(&answer), 503);
        assert!(answer.contains(&sentence), "{answer}");
    }
    files.route("shop", with_tls(service("shop.example")));
    proxy.replace(&mut files).await;
    assert!(ask().await.ends_with("shop"));
    assert_eq!(status(&proxy.get("/").await), 308);
    proxy.end().await;
}

#[tokio::test]
async fn a_route_without_tls_is_not_served_on_the_tls_port() {
    let mut files = Files::shop(&[says("shop").await]);
    let root = files.certificate(&["shop.example"]);
    let proxy = Proxy::start(&files).await;
    let mut client = proxy.http2::<Body>("shop.example", &root).await;
    let request = Request::builder()
        .uri("https://shop.example/")
        .body(body(""))
        .unwrap();
    let answer = soon(client.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), 404);
    proxy.end().await;
}

#[tokio::test]
async fn a_passed_through_connection_keeps_its_own_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut files = Files::shop(&[listener.local_addr().unwrap()]);
    files.route(
        "shop",
        IngressRoute {
            passthrough: true,
            ..service("shop.example")
        },
    );
    let made = rcgen::generate_simple_self_signed(vec!["shop.example".to_owned()]).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(
        made.signing_key.serialize_pem().as_bytes(),
    );
    let config = config
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.unwrap())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.unwrap();
        let mut read = [0; 4];
        stream.read_exact(&mut read).await.unwrap();
        stream.write_all(&read).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let proxy = Proxy::start(&files).await;
    let mut stream = proxy
        .tls("shop.example", &[&made.cert.pem()], &[])
        .await
        .unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut read = Vec::new();
    soon(stream.read_to_end(&mut read)).await.unwrap();
    assert_eq!(read, b"ping");
    drop(stream);
    // Not on the plain port.
    assert_eq!(status(&proxy.get("/").await), 404);
    proxy.end().await;
}
