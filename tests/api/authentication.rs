//! Authentication of callers, and what the log says about them.

use super::*;

#[tokio::test]
async fn tokens_are_shown_once_and_stored_hashed() {
    let server = Server::start().await;
    let request =
        json!({"scope": {"kind": "deploy", "namespace": "shop"}, "name": "ci", "ttlSeconds": 60});
    let (status, made) = server
        .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &request)
        .await;
    assert_eq!(status, 201, "{made}");
    let token = made["token"].as_str().unwrap();
    let secret = token.split('.').nth(2).unwrap();
    // Its namespace follows, for the client; the tokens without one have no more parts.
    assert!(token.ends_with(".shop"), "{token}");
    assert_eq!(server.read.split('.').count(), 3);
    assert_eq!(server.get(token, SHOP).await.0, 200);
    assert_eq!(
        server.get(token, "/v1alpha1/n/default/workloads").await.0,
        403
    );
    let stored = server.stored();
    assert!(
        !stored
            .iter()
            .any(|(_, value)| String::from_utf8_lossy(value).contains(secret))
    );
    let (_, list) = server.get(&server.admin, "/v1alpha1/tokens").await;
    let shown = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["name"] == "ci")
        .unwrap();
    assert_eq!(shown.get("token"), None);
    assert!(shown["expires"].is_string());
    for body in [
        json!({"scope": {"kind": "deploy", "namespace": "none"}}),
        json!({"scope": {"kind": "deploy", "namespace": "Shop"}}),
        json!({"scope": {"kind": "root"}}),
        json!({"scope": {"kind": "read"}, "ttlSeconds": 0}),
    ] {
        let (status, answer) = server
            .send_json(&server.admin, Method::POST, "/v1alpha1/tokens", &body)
            .await;
        assert!(status == 400 || status == 404, "{body}: {status} {answer}");
    }
    assert_eq!(server.stored(), stored);
}

#[tokio::test]
async fn a_new_token_comes_with_a_connection_that_works_and_has_its_namespace() {
    let server = Server::start().await;
    let make = async |scope: serde_json::Value| {
        let path = "/v1alpha1/tokens";
        let request = json!({"scope": scope});
        let answer = server.send_json(&server.admin, Method::POST, path, &request);
        let (status, made) = answer.await;
        assert_eq!(status, 201, "{made}");
        made
    };
    let made = make(json!({"kind": "deploy", "namespace": "shop"})).await;
    let mut connection: Connection = serde_json::from_value(made["connection"].clone()).unwrap();
    assert_eq!(connection.namespace.as_deref(), Some("shop"));
    assert_eq!(connection.token, made["token"].as_str().unwrap());
    assert_eq!(connection.ca, server.authority.certificate_pem());
    assert!(
        !connection.api_name_required,
        "no member has published a key"
    );
    // The test's server has another address than its cluster publishes.
    connection.endpoints = vec![format!("127.0.0.1:{}", server.port)];
    let client = Client::from_connection(&connection, ClientOptions::default()).unwrap();
    client.workloads(Some("shop")).await.unwrap();
    client.workloads(Some("default")).await.unwrap_err();

    let key = keys::registration("n1");
    let stored = server.store.peek(&key).items.remove(0).value;
    let mut member: kat_types::store::records::NodeRegistration =
        serde_json::from_slice(&stored).unwrap();
    member.advertise = vec![[192, 0, 2, 1].into()];
    server.write(&[put(key, &member)]).await;
    let read = make(json!({"kind": "read"})).await;
    assert_eq!(read["connection"].get("namespace"), None);
    assert_eq!(read["connection"]["apiNameRequired"], true);
    let (_, list) = server.get(&server.admin, "/v1alpha1/tokens").await;
    let items = list["items"].as_array().unwrap();
    assert!(items.iter().all(|item| item.get("connection").is_none()));
}

#[tokio::test]
async fn a_token_for_a_program_ends_after_90_days_unless_another_time_is_asked_for() {
    let server = Server::start().await;
    let days = async |scope: Value, ttl: Option<u64>| {
        let mut request = json!({"scope": scope});
        if let Some(ttl) = ttl {
            request["ttlSeconds"] = json!(ttl);
        }
        let path = "/v1alpha1/tokens";
        let (status, made) = server
            .send_json(&server.admin, Method::POST, path, &request)
            .await;
        assert_eq!(status, 201, "{made}");
        let at = |field: &str| Some(made[field].as_str()?.parse::<jiff::Timestamp>().unwrap());
        let lives = at("expires")?.duration_since(at("created").unwrap());
        Some(lives.as_hours() / 24)
    };
    assert_eq!(days(json!({"kind": "read"}), None).await, Some(90));
    let deploy = json!({"kind": "deploy", "namespace": "shop"});
    assert_eq!(days(deploy.clone(), None).await, Some(90));
    assert_eq!(days(deploy, Some(365 * 24 * 3600)).await, Some(365));
    assert_eq!(days(json!({"kind": "admin"}), None).await, None);
}

#[tokio::test]
async fn an_admin_certificate_is_as_good_as_an_admin_token() {
    let server = Server::start().await;
    let name = "n1".to_owned();
    let admin = server.client(Some(&server.leaf(&LeafKind::Admin { name })));
    let response = admin
        .get(server.url("/v1alpha1/tokens"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let name = "n1".to_owned();
    let leader = server.client(Some(&server.leaf(&LeafKind::Leader { name })));
    let response = leader
        .get(server.url("/v1alpha1/tokens"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 403);
}

/// A machine's certificate and key, copied by someone, are useless once another machine has its
/// name.
#[tokio::test]
async fn a_certificate_for_a_key_that_is_not_registered_opens_nothing() {
    let server = Server::start().await;
    let now = jiff::Timestamp::now();
    let name = || "n1".to_owned();
    let copied = [
        super::support::issue_node(&server.authority, "n1", now),
        server
            .authority
            .issue(&LeafKind::Leader { name: name() }, now)
            .unwrap(),
        server
            .authority
            .issue(&LeafKind::Admin { name: name() }, now)
            .unwrap(),
    ];
    for leaf in &copied {
        let client = server.client(Some(leaf));
        for (method, path) in [
            (Method::GET, "/v1alpha1/nodes/n1/membership"),
            (Method::GET, "/v1alpha1/nodes/n1"),
            (Method::GET, "/v1alpha1/tokens"),
            (Method::GET, "/openapi.json"),
            (Method::DELETE, "/v1alpha1/nodes/n1"),
            (Method::POST, "/v1alpha1/nodes/n1/status"),
        ] {
            let call = client.request(method, server.url(path)).json(&json!({}));
            let (status, body) = read(call.send().await.unwrap()).await;
            assert_eq!(status, 401, "{path} {body}");
            assert!(body["message"].as_str().unwrap().contains("key"), "{body}");
        }
        // Anonymous requests still work.
        let health = client.get(server.url("/healthz")).send().await.unwrap();
        assert_eq!(health.status(), 200);
    }
    // The control: the machine's own certificate.
    let own = server.client(Some(&server.node_leaf("n1")));
    let about = own
        .get(server.url("/v1alpha1/nodes/n1"))
        .send()
        .await
        .unwrap();
    assert_eq!(about.status(), 200);
}

#[tokio::test]
async fn a_machine_that_is_taken_out_loses_its_access_and_its_streams() {
    let server = Server::start().await;
    let name = "n1".to_owned();
    let admin = server.client(Some(&server.leaf(&LeafKind::Admin { name })));
    let watch = server.url("/v1alpha1/nodes?watch=true");
    let mut watch = admin.get(watch).send().await.unwrap();
    assert_eq!(watch.status(), 200);
    assert!(
        watch.chunk().await.unwrap().is_some(),
        "it begins with what is there"
    );
    server
        .write(&[WriteOperation::Delete(keys::registration("n1"))])
        .await;
    let ends = async {
        let mut said = Vec::new();
        while let Some(piece) = watch.chunk().await.unwrap() {
            said.extend_from_slice(&piece);
        }
        String::from_utf8(said).unwrap()
    };
    let said = tokio::time::timeout(Duration::from_secs(1), ends)
        .await
        .unwrap();
    assert!(said.contains("admin:n1"), "{said}");
    let again = admin
        .get(server.url("/v1alpha1/nodes"))
        .send()
        .await
        .unwrap();
    assert_eq!(again.status(), 401);
}

#[tokio::test]
async fn local_sockets_need_no_token() {
    let server = Server::start().await;
    with_instance(&server).await;
    let client = |name: &str| {
        reqwest::Client::builder()
            .unix_socket(server.socket(name))
            .build()
            .unwrap()
    };
    let get = async |client: &reqwest::Client, path: &str| {
        read(
            client
                .get(format!("http://localhost{path}"))
                .send()
                .await
                .unwrap(),
        )
        .await
    };
    let admin = client("admin.sock");
    assert_eq!(get(&admin, "/v1alpha1/tokens").await.0, 200);
    let machine = client("machine.sock");
    for (path, status) in [
        ("/v1alpha1/tokens", 403),
        ("/v1alpha1/workloads", 403),
        ("/v1alpha1/nodes/n2", 404),
        ("/v1alpha1/nodes/n1", 200),
        ("/version", 200),
    ] {
        assert_eq!(get(&machine, path).await.0, status, "{path}");
    }
    let (_, instances) = get(&machine, "/v1alpha1/instances").await;
    assert_eq!(instances["items"].as_array().unwrap().len(), 1);
    let other = server
        .store
        .peek(&keys::desired_instance("n1", "web-abcde"))
        .items
        .remove(0)
        .value;
    server
        .write(&[WriteOperation::Delete(keys::desired_instance(
            "n1",
            "web-abcde",
        ))])
        .await;
    server
        .write(&[WriteOperation::Put(
            keys::desired_instance("n2", "web-abcde"),
            other,
        )])
        .await;
    let (_, instances) = get(&machine, "/v1alpha1/instances").await;
    assert_eq!(
        instances["items"],
        json!([]),
        "another machine's instances are not shown"
    );
}

#[derive(Clone, Default)]
pub(super) struct Written(pub(super) Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_call_leaves_one_line_without_secrets() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    // A test's runtime has one thread, so this subscriber also receives the server's lines.
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::start().await;
    server
        .put("shop", "web", &files(&web("shop", "web", 1)))
        .await;
    server
        .get(&server.read, "/v1alpha1/tokens?watch=true")
        .await;
    server
        .get("kat1.0123456789ab.wrong", "/v1alpha1/nowhere")
        .await;
    let text = String::from_utf8(written.0.lock().clone()).unwrap();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| line.contains(" audit: "))
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    let id = |token: &str| {
        format!(
            "by token:{} from 127.0.0.1:",
            token.split('.').nth(1).unwrap()
        )
    };
    for (line, parts) in lines.iter().zip([
        [format!("PUT {WEB} 201 "), id(&server.admin)],
        ["GET /v1alpha1/tokens 403 ".to_owned(), id(&server.read)],
        [
            "GET /v1alpha1/nowhere 404 ".to_owned(),
            "by anonymous from 127.0.0.1:".to_owned(),
        ],
    ]) {
        for part in parts {
            assert!(line.contains(&part), "{part} is missing in {line}");
        }
        assert!(line.ends_with(" ms"), "{line}");
    }
    for secret in [
        server.admin.rsplit('.').next().unwrap(),
        "wrong",
        "correct-horse",
    ] {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}

#[tokio::test]
async fn http_2_and_http_1_both_work_and_a_renewed_leaf_is_used() {
    let server = Server::start().await;
    let response = server.call("", Method::GET, "/version").await;
    assert_eq!(response.version(), reqwest::Version::HTTP_2);
    let authority =
        reqwest::Certificate::from_pem(server.authority.certificate_pem().as_bytes()).unwrap();
    let old = reqwest::Client::builder()
        .tls_certs_only([authority])
        .http1_only()
        .build()
        .unwrap();
    let response = old.get(server.url("/version")).send().await.unwrap();
    assert_eq!(response.version(), reqwest::Version::HTTP_11);
    assert_eq!(response.headers()["cache-control"], "no-store");
    let renewed = super::support::issue_node(&server.authority, "n1", jiff::Timestamp::now());
    server
        .identity
        .replace(&renewed, server.authority.certificate_pem())
        .unwrap();
    assert_eq!(server.get("", "/version").await.0, 200);
}

#[tokio::test]
async fn a_caller_that_asks_too_often_is_slowed_down() {
    let one = std::num::NonZeroU32::new(1).unwrap();
    let limits = ApiLimits {
        calls_per_second: one,
        call_burst: std::num::NonZeroU32::new(3).unwrap(),
        ..ApiLimits::default()
    };
    let server = Server::start_with(limits).await;
    let client = server.client(None);
    let mut statuses = Vec::new();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let request = client.get(server.url(SHOP)).bearer_auth(&server.read);
        let response = request.send().await.unwrap();
        statuses.push(response.status().as_u16());
        waits.extend(response.headers().get("retry-after").cloned());
    }
    assert_eq!(statuses.first(), Some(&200));
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(
        waits
            .iter()
            .all(|wait| wait.to_str().unwrap().parse::<u64>().unwrap() >= 1)
    );
    assert_eq!(
        server.get(&server.admin, SHOP).await.0,
        200,
        "others are not"
    );
}
