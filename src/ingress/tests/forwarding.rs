//! Routes, headers, instances.

use std::time::Instant;

use base64::{Engine, prelude::BASE64_STANDARD};

use super::*;
use kat_types::{
    ingress::RouteForwardAuth,
    resource::{HeaderChanges, IngressTimeouts, PlainHttp, ProxyProtocol},
};

#[tokio::test]
async fn a_request_reaches_its_instance_with_the_headers_of_its_client() {
    let proxy = Proxy::start(&Files::shop(&[mirror().await])).await;
    let answer = proxy
        .raw(
            "GET /a%20b?q=1 HTTP/1.1\r\nHost: Shop.Example:80\r\nX-Forwarded-For: 10.9.9.9\r\n\
             X-Real-IP: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\nX-Own: kept\r\nX-Hop: gone\r\n\
             Keep-Alive: timeout=5\r\nProxy-Authorization: Basic x\r\n\
             Connection: close, X-Hop, X-Forwarded-For, X-Real-IP, Forwarded\r\n\r\n",
        )
        .await;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(
        body,
        "GET /a%20b?q=1\n\
         forwarded: for=127.0.0.1;host=\"Shop.Example:80\";proto=http\n\
         host: Shop.Example:80\n\
         x-forwarded-for: 127.0.0.1\n\
         x-forwarded-host: Shop.Example:80\n\
         x-forwarded-proto: http\n\
         x-own: kept\n\
         x-real-ip: 127.0.0.1\n"
    );
    proxy.end().await;
}

#[tokio::test]
async fn a_trusted_proxy_names_the_client() {
    let mut files = Files::shop(&[mirror().await]);
    files.settings.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let mut route = with_tls(service("shop.example"));
    route.allow_sources = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    files.route("shop", route);
    let proxy = Proxy::start(&files).await;
    let ask = async |client: &str| {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: {client}\r\n\
             X-Forwarded-Proto: https\r\nConnection: close\r\n\r\n"
        );
        proxy.raw(&request).await
    };
    // The proxy has ended TLS: no redirect.
    let answer = ask("192.0.2.7").await;
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(
        answer.contains("x-forwarded-for: 192.0.2.7, 127.0.0.1\n"),
        "{answer}"
    );
    assert!(answer.contains("x-real-ip: 192.0.2.7\n"), "{answer}");
    assert_eq!(status(&ask("198.51.100.1").await), 403);
    proxy.end().await;
}

#[tokio::test]
async fn hosts_and_paths_lead_to_their_routes() {
    let mut files = Files::shop(&[says("shop").await]);
    files.upstream("api", &[mirror().await]);
    let upstream = "api".to_owned();
    let api = IngressRoute::new("shop.example", RouteAction::Service { upstream });
    files.route(
        "api",
        IngressRoute {
            path: "/api".to_owned(),
            strip_prefix: true,
            request_headers: HeaderChanges {
                set: [("X-Set".to_owned(), "1".to_owned())].into(),
                remove: vec!["X-Gone".to_owned()],
            },
            response_headers: HeaderChanges {
                set: [("X-Frame-Options".to_owned(), "DENY".to_owned())].into(),
                remove: vec!["date".to_owned()],
            },
            ..api
        },
    );
    let to = "https://new.example/base".to_owned();
    files.route(
        "moved",
        IngressRoute {
            path: "/old".to_owned(),
            ..IngressRoute::new("shop.example", RouteAction::Redirect { to })
        },
    );
    files.route(
        "down",
        IngressRoute::new("down.example", RouteAction::Maintenance {}),
    );
    files.route(
        "main",
        IngressRoute {
            redirect_from: vec!["www.main.example".to_owned()],
            ..with_tls(service("main.example"))
        },
    );
    let proxy = Proxy::start(&files).await;
    assert!(proxy.get("/x").await.ends_with("shop"));
    let api = proxy
        .raw("GET /api/v1?a HTTP/1.1\r\nHost: shop.example\r\nX-Gone: 1\r\nConnection: close\r\n\r\n")
        .await;
    assert!(api.contains("\r\n\r\nGET /v1?a\n"), "{api}");
    assert!(
        api.contains("x-forwarded-prefix: /api\n") && api.contains("x-set: 1\n"),
        "{api}"
    );
    assert!(!api.contains("x-gone"), "{api}");
    assert!(api.contains("x-frame-options: DENY\r\n"), "{api}");
    let location = async |host: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = proxy.raw(&request).await;
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix("location: "));
        (status(&answer), line.unwrap_or_default().to_owned())
    };
    let redirect = |to: &str| (308, to.to_owned());
    assert_eq!(
        location("shop.example", "/old/a?b=c").await,
        redirect("https://new.example/base/a?b=c")
    );
    assert_eq!(
        location("shop.example", "/old").await,
        redirect("https://new.example/base")
    );
    assert_eq!(
        location("main.example", "/a?b").await,
        redirect("https://main.example/a?b")
    );
    assert_eq!(
        location("www.main.example", "/a?b").await,
        redirect("https://main.example/a?b")
    );
    assert_eq!(location("down.example", "/").await.0, 503);
    assert_eq!(location("other.example", "/").await.0, 404);
    // The challenge of an ACME server is answered before any route.
    files.challenges.schema = 1;
    files.challenges.tokens = [("abc".to_owned(), "abc.xyz".to_owned())].into();
    proxy.replace(&mut files).await;
    let challenge = proxy
        .raw("GET /.well-known/acme-challenge/abc HTTP/1.1\r\nHost: main.example\r\nConnection: close\r\n\r\n")
        .await;
    assert!(challenge.ends_with("\r\n\r\nabc.xyz"), "{challenge}");
    assert_eq!(
        location("main.example", "/.well-known/acme-challenge/other")
            .await
            .0,
        308
    );
    proxy.end().await;
}

#[tokio::test]
async fn a_request_that_never_left_is_sent_to_another_instance() {
    // The first instance is this machine's, so that it is picked first.
    let files = Files::shop(&[nobody(), says("second").await]);
    for method in ["POST", "PUT"] {
        let proxy = Proxy::start(&files).await;
        let request = format!(
            "{method} / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
        );
        let answer = proxy.raw(&request).await;
        assert!(answer.ends_with("second"), "{answer}");
        // Now the first one pauses.
        assert!(proxy.raw(&request).await.ends_with("second"));
        proxy.end().await;
    }
    let proxy = Proxy::start(&Files::shop(&[nobody()])).await;
    let refused = proxy.get("/").await;
    assert_eq!(status(&refused), 502);
    assert!(
        refused.contains("the service behind it cannot be reached"),
        "{refused}"
    );
    for inner in ["inner-name", "127.0.0.1", "n1"] {
        assert!(!refused.contains(inner), "{refused}");
    }
    // All pause, so that the pauses do not count.
    assert_eq!(status(&proxy.get("/").await), 502);
    proxy.end().await;
}

#[tokio::test]
async fn a_request_that_may_have_been_read_is_sent_again_if_that_changes_nothing() {
    let breaks = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = breaks.local_addr().unwrap();
    let accepted = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counting = Arc::clone(&accepted);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = breaks.accept().await {
            counting.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let proxy = Proxy::start(&Files::shop(&[address])).await;
    for (method, times) in [("POST", 1), ("GET", 2)] {
        let request = format!(
            "{method} / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(status(&proxy.raw(&request).await), 502);
        let count = accepted.swap(0, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(count, times, "{method}");
    }
    proxy.end().await;
}

#[tokio::test]
async fn a_page_tells_a_service_without_instances_from_one_that_is_not_ready() {
    let mut files = Files::shop(&[]);
    let proxy = Proxy::start(&files).await;
    let page = proxy.get("/").await;
    assert_eq!(status(&page), 503);
    assert!(page.contains("is not running"), "{page}");
    files.upstream("u", &[nobody()]);
    let upstream = files.upstreams.upstreams.get_mut("u").unwrap();
    upstream.instances.get_mut("inner-name-0").unwrap().state = BackendState::Held;
    proxy.replace(&mut files).await;
    let page = proxy.get("/").await;
    assert_eq!(status(&page), 503);
    assert!(page.contains("is not ready"), "{page}");
    files.upstreams.upstreams.clear();
    proxy.replace(&mut files).await;
    assert_eq!(status(&proxy.get("/").await), 503);
    proxy.end().await;
}

#[tokio::test]
async fn an_instance_that_does_not_answer_in_time_is_a_504_and_one_that_breaks_off_a_502() {
    let silent = server(async |_| std::future::pending().await).await;
    let mut files = Files::shop(&[silent]);
    files.route(
        "shop",
        IngressRoute {
            timeouts: IngressTimeouts {
                response_seconds: 1,
                ..IngressTimeouts::default()
            },
            ..service("shop.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    let began = Instant::now();
    assert_eq!(status(&proxy.get("/").await), 504);
    assert!(began.elapsed() >= Duration::from_secs(1));
    proxy.end().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let proxy = Proxy::start(&Files::shop(&[address])).await;
    assert_eq!(status(&proxy.get("/").await), 502);
    proxy.end().await;
}

#[tokio::test]
async fn a_client_keeps_its_instance_by_a_cookie() {
    let mut files = Files::shop(&[says("one").await, says("two").await]);
    files.settings.node = String::new();
    files.route(
        "shop",
        IngressRoute {
            sticky: true,
            ..service("shop.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    let first = proxy.get("/").await;
    let line = first
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "))
        .unwrap();
    let (cookie, attributes) = line.split_once(';').unwrap();
    assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax");
    let (_, word) = first.split_once("\r\n\r\n").unwrap();
    for _ in 0..10 {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: shop.example\r\nCookie: a=b; {cookie}\r\nConnection: close\r\n\r\n"
        );
        let answer = proxy.raw(&request).await;
        assert!(
            answer.ends_with(word) && !answer.contains("set-cookie"),
            "{answer}"
        );
    }
    let answers: Vec<String> =
        futures_util::future::join_all((0..40).map(|_| proxy.get("/"))).await;
    let words = count(
        answers
            .iter()
            .map(|answer| answer.rsplit('\n').next().unwrap().to_owned()),
    );
    assert_eq!(words.len(), 2, "{words:?}");
    proxy.end().await;
}

#[tokio::test]
async fn users_sign_in_and_another_workload_decides() {
    let hash = bcrypt::hash("right", 4).unwrap();
    let decides = server(async |request: Request<Incoming>| {
        let header = |name: &str| {
            let value = request.headers().get(name);
            value.map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(request.uri().path(), "/verify");
        assert_eq!(header("x-forwarded-method").as_deref(), Some("GET"));
        let response = Response::builder().header("remote-user", "ann");
        match header("x-forwarded-uri").as_deref() {
            Some("/yes") => response.body(body("")).unwrap(),
            _ => response
                .status(302)
                .header("location", "https://login.example/")
                .body(body("log in"))
                .unwrap(),
        }
    })
    .await;
    let mut files = Files::shop(&[mirror().await]);
    files.upstream("auth", &[decides]);
    files.route(
        "shop",
        IngressRoute {
            forward_auth: Some(RouteForwardAuth {
                upstream: "auth".to_owned(),
                path: "/verify".to_owned(),
                response_headers: vec!["Remote-User".to_owned()],
            }),
            ..service("shop.example")
        },
    );
    files.route(
        "basic",
        IngressRoute {
            basic_auth: Some(vec![format!("ann:{hash}")]),
            ..service("basic.example")
        },
    );
    files.route(
        "nobody",
        IngressRoute {
            basic_auth: Some(Vec::new()),
            ..service("nobody.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    let ask = async |host: &str, path: &str, header: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{header}Connection: close\r\n\r\n");
        proxy.raw(&request).await
    };
    // What the client claims to be is removed.
    let yes = ask("shop.example", "/yes", "Remote-User: root\r\n").await;
    assert!(
        yes.contains("remote-user: ann\n") && !yes.contains("root"),
        "{yes}"
    );
    let no = ask("shop.example", "/no", "").await;
    assert_eq!(status(&no), 302);
    assert!(
        no.contains("location: https://login.example/\r\n") && no.ends_with("log in"),
        "{no}"
    );
    let basic = |password: &str| {
        let encoded = BASE64_STANDARD.encode(format!("ann:{password}"));
        format!("Authorization: Basic {encoded}\r\n")
    };
    let asks = ask("basic.example", "/", "").await;
    assert_eq!(status(&asks), 401);
    assert!(asks.contains("www-authenticate: Basic "), "{asks}");
    assert_eq!(
        status(&ask("basic.example", "/", &basic("wrong")).await),
        401
    );
    assert_eq!(
        status(&ask("basic.example", "/", &basic("right")).await),
        200
    );
    assert_eq!(
        status(&ask("nobody.example", "/", &basic("right")).await),
        401
    );
    proxy.end().await;
}

#[tokio::test]
async fn a_proxy_header_is_required_from_its_senders_and_refused_from_others() {
    let mut files = Files::shop(&[mirror().await]);
    let request = "GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n";
    let with_header = format!("PROXY TCP4 192.0.2.7 198.51.100.1 4000 80\r\n{request}");
    let proxy = Proxy::start(&files).await;
    assert_eq!(status(&proxy.raw(&with_header).await), 400);
    files.settings.proxy_protocol_from = vec!["127.0.0.1/32".parse().unwrap()];
    proxy.replace(&mut files).await;
    let answer = proxy.raw(&with_header).await;
    assert!(answer.contains("x-forwarded-for: 192.0.2.7\n"), "{answer}");
    let unknown = proxy.raw(&format!("PROXY UNKNOWN\r\n{request}")).await;
    assert!(
        unknown.contains("x-forwarded-for: 127.0.0.1\n"),
        "{unknown}"
    );
    assert_eq!(proxy.raw(request).await, "");
    let source = "192.0.2.8:1".parse().unwrap();
    let header = crate::proxy_header::encode(ProxyProtocol::V2, source, source);
    let mut stream = TcpStream::connect(proxy.http).await.unwrap();
    stream
        .write_all(&[&header, request.as_bytes()].concat())
        .await
        .unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("x-forwarded-for: 192.0.2.8\n"), "{answer}");
    proxy.end().await;
}

#[tokio::test]
async fn an_instance_gets_the_proxy_header_that_its_route_asks_for() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut files = Files::shop(&[listener.local_addr().unwrap()]);
    files.route(
        "shop",
        IngressRoute {
            proxy_protocol: ProxyProtocol::V1,
            ..service("shop.example")
        },
    );
    let proxy = Proxy::start(&files).await;
    let asking = proxy.get("/");
    let answering = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut read).await.unwrap();
        }
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await
            .unwrap();
        String::from_utf8(read).unwrap()
    };
    let (answer, read) = soon(async { tokio::join!(asking, answering) }).await;
    assert!(answer.ends_with("ok"), "{answer}");
    assert!(
        read.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "),
        "{read}"
    );
    assert!(read.contains("\r\nGET / HTTP/1.1\r\n"), "{read}");
    proxy.end().await;
}

#[tokio::test]
async fn a_route_may_be_served_without_tls_too() {
    let mut files = Files::shop(&[says("shop").await]);
    files.route(
        "shop",
        IngressRoute {
            plain_http: PlainHttp::Serve,
            ..with_tls(service("shop.example"))
        },
    );
    let proxy = Proxy::start(&files).await;
    assert!(proxy.get("/").await.ends_with("shop"));
    proxy.end().await;
}
