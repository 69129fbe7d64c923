//! Routes: who gets a host, what callers see of others' hosts, and the certificates that are refused.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, web};
use kat_pki::ingress::{create_ingress_authority, issue_ingress_certificate};

/// A load balancer with these routes to its port.
fn balancer(routes: &str) -> String {
    format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n  ports: [{{name: web, containerPort: 8080}}]\n  ingress: [{routes}]\n"
    )
}

async fn apply(server: &Server, namespace: &str, name: &str, routes: &str) -> (u16, Value) {
    let (main, balancer) = (web(namespace, name, 1), balancer(routes));
    let files = [
        ("workload.kat", main.as_str()),
        ("VirtualLoadBalancer.kat", balancer.as_str()),
    ];
    let (status, body) = server.put(namespace, name, &files).await;
    (status.as_u16(), body)
}

async fn routes_of(server: &Server, token: &str, path: &str) -> Vec<Value> {
    let (status, list) = server.get(token, path).await;
    assert_eq!(status, 200, "{list}");
    list["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn of_applies_at_once_that_overlap_one_gets_the_host() {
    let server = Server::start().await;
    let namespaces: Vec<String> = (0..4).map(|number| format!("team-{number}")).collect();
    for name in &namespaces {
        let body = json!({"apiVersion": "kat.dws.rip/v1alpha1", "kind": "Namespace", "metadata": {"name": name}});
        server
            .send_json(&server.admin, Method::POST, "/v1alpha1/namespaces", &body)
            .await;
    }
    // Half of them claim a name, the others the wildcard that covers it.
    let applies = namespaces.iter().enumerate().map(|(index, namespace)| {
        let host = if index % 2 == 0 {
            "a.shop.lan"
        } else {
            "\"*.shop.lan\""
        };
        let route = format!("{{host: {host}, servicePort: 8080}}");
        let server = &server;
        async move { apply(server, namespace, "web", &route).await }
    });
    let answers = futures_util::future::join_all(applies).await;
    let created = answers.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(created, 1, "{answers:?}");
    for (status, body) in &answers {
        assert!([201, 409].contains(status), "{status} {body}");
    }
    let all = routes_of(&server, &server.admin, "/v1alpha1/routes").await;
    assert_eq!(all.len(), 1, "{all:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_host_is_given_up_with_its_workload_and_with_its_route() {
    let server = Server::start().await;
    let route = "{host: a.lan, path: /x, servicePort: 8080}";
    assert_eq!(apply(&server, "shop", "web", route).await.0, 201);
    // The same namespace has further paths of the host, and nobody else any.
    let other = "{host: a.lan, path: /y, servicePort: 8080}";
    assert_eq!(apply(&server, "shop", "other", other).await.0, 201);
    let (status, refused) = apply(
        &server,
        "shop",
        "third",
        "{host: a.lan, path: /x/, servicePort: 8080}",
    )
    .await;
    assert_eq!(status, 409, "{refused}");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("route of workload web"),
        "{refused}"
    );
    let elsewhere = "{host: a.lan, path: /z, servicePort: 8080}";
    let (status, refused) = apply(&server, "default", "web", elsewhere).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("a.lan belongs to workload shop/"),
        "{message}"
    );
    // A route less, and the path is free for the third.
    assert_eq!(apply(&server, "shop", "web", "").await.0, 200);
    let again = apply(&server, "shop", "third", route).await;
    assert_eq!(again.0, 201, "{again:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_namespaces_routes_are_seen_by_those_who_may_read_it() {
    let server = Server::start().await;
    let route = "{host: a.lan, servicePort: 8080, tls: true}";
    assert_eq!(apply(&server, "default", "web", route).await.0, 201);
    let own = "{host: b.lan, servicePort: 8080}";
    assert_eq!(apply(&server, "shop", "web", own).await.0, 201);
    let hosts = |items: Vec<Value>| -> Vec<String> {
        let hosts = items
            .iter()
            .map(|item| item["spec"]["host"].as_str().unwrap().to_owned());
        hosts.collect()
    };
    let seen = routes_of(&server, &server.deploy, "/v1alpha1/n/shop/routes").await;
    assert_eq!(hosts(seen), ["b.lan"]);
    for path in ["/v1alpha1/routes", "/v1alpha1/n/default/routes"] {
        let (status, _) = server.get(&server.deploy, path).await;
        assert_eq!(status, 403, "{path}");
    }
    let all = routes_of(&server, &server.read, "/v1alpha1/routes").await;
    assert_eq!(all[0]["spec"]["issuer"], "internal");
    assert_eq!(all[0]["kind"], "Route");
    assert_eq!(hosts(all), ["a.lan", "b.lan"]);
    // What a browser has to trust is no secret.
    let (status, authority) = server
        .get(&server.deploy, "/v1alpha1/ingress/authority")
        .await;
    assert_eq!(status, 200, "{authority}");
    assert!(!authority.to_string().contains("PRIVATE"));
    server.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_name_or_key_is_refused_and_an_expired_one_is_warned_of() {
    let server = Server::start().await;
    let now = jiff::Timestamp::now();
    let domains = ["lan".to_owned()];
    let authority = create_ingress_authority("test", &domains, now).unwrap();
    let long_ago = now - jiff::SignedDuration::from_hours(24 * 200);
    let leaf = |at| issue_ingress_certificate(&authority, "a.lan", at).unwrap();
    let (good, other, old) = (leaf(now), leaf(now), leaf(long_ago));
    let write = async |name: &str, values: Value| {
        let path = format!("/v1alpha1/n/shop/secrets/{name}");
        let body = json!({"values": values});
        let (status, body) = server
            .send_json(&server.deploy, Method::PUT, &path, &body)
            .await;
        (status.as_u16(), body.to_string())
    };
    let pair = |certificate: &str, key: &str| {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        json!({"tls.crt": encoded(certificate), "tls.key": encoded(key)})
    };
    let set = async |name: &str, certificate: &str, key: &str| {
        let (status, body) = write(name, pair(certificate, key)).await;
        assert!([200, 201].contains(&status), "{body}");
    };
    let route_with = |host: &str, secret: &str| {
        format!("{{host: {host}, servicePort: 8080, tls: {{secret: {secret}}}}}")
    };
    let route = |host: &str| route_with(host, "own");
    // Without the secret the route waits, with a warning.
    let (status, body) = apply(&server, "shop", "web", &route("a.lan")).await;
    assert_eq!(status, 201, "{body}");
    assert!(
        body["warnings"].to_string().contains("no secret own"),
        "{body}"
    );
    // No route uses this one yet.
    set("bad", &good.certificate_pem, &other.key_pem).await;
    let (status, body) = apply(&server, "shop", "two", &route_with("b.lan", "bad")).await;
    assert_eq!(status, 400, "{body}");
    assert!(
        body.to_string()
            .contains("does not belong to the certificate"),
        "{body}"
    );
    set("own", &good.certificate_pem, &good.key_pem).await;
    // What its route could not serve is refused, and the good one stays.
    let elsewhere = issue_ingress_certificate(&authority, "c.lan", now).unwrap();
    let alone = json!({"tls.crt": BASE64_STANDARD.encode(&good.certificate_pem)});
    for (values, said) in [
        (
            pair(&good.certificate_pem, &other.key_pem),
            "does not belong to the certificate",
        ),
        (alone, "has no key tls.key"),
        (
            pair(&elsewhere.certificate_pem, &elsewhere.key_pem),
            "is for c.lan, not for a.lan",
        ),
    ] {
        let (status, body) = write("own", values).await;
        assert_eq!(status, 400, "{body}");
        assert!(
            body.contains(said) && body.contains("workload web"),
            "{body}"
        );
        assert!(!body.contains("PRIVATE KEY"));
    }
    let (status, body) = apply(&server, "shop", "two", &route("b.lan")).await;
    assert_eq!(status, 400, "{body}");
    assert!(
        body.to_string().contains("is for a.lan, not for b.lan"),
        "{body}"
    );
    set("own", &old.certificate_pem, &old.key_pem).await;
    let (_, body) = apply(&server, "shop", "web", &route("a.lan")).await;
    assert!(
        body["warnings"].to_string().contains("is valid from"),
        "{body}"
    );
    assert!(!body.to_string().contains("PRIVATE KEY"));
    // The route uses the secret.
    let delete = server
        .call(
            &server.deploy,
            Method::DELETE,
            "/v1alpha1/n/shop/secrets/own",
        )
        .await;
    assert_eq!(delete.status(), 409);
    server.stop().await;
}

#[tokio::test]
async fn routes_and_host_ports_80_and_443_exclude_each_other() {
    let server = Server::start().await;
    let main = web("shop", "port", 1);
    let port = "apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n  ports: [{containerPort: 8080, hostPort: 443}]\n";
    let files = [
        ("workload.kat", main.as_str()),
        ("VirtualLoadBalancer.kat", port),
    ];
    let (status, body) = server.put("shop", "port", &files).await;
    assert_eq!(status, 201, "{body}");
    let route = "{host: a.lan, servicePort: 8080}";
    let (status, refused) = apply(&server, "default", "web", route).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("port 443") && message.contains("shop/port"),
        "{message}"
    );
    let path = "/v1alpha1/n/shop/workloads/port";
    let plain = port.replace(", hostPort: 443", "");
    let files = [
        ("workload.kat", main.as_str()),
        ("VirtualLoadBalancer.kat", plain.as_str()),
    ];
    let (status, body) = server.put("shop", "port", &files).await;
    assert_eq!(status, 200, "{path} {body}");
    assert_eq!(apply(&server, "default", "web", route).await.0, 201);
    let files = [
        ("workload.kat", main.as_str()),
        ("VirtualLoadBalancer.kat", port),
    ];
    let (status, refused) = server.put("shop", "port", &files).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("serves routes, such as a.lan"),
        "{message}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_namespace_claims_the_hosts_alone_that_its_administrator_allows() {
    let server = Server::start().await;
    let limit = async |hosts: Value| {
        let body = json!({"metadata": {"name": "shop"}, "spec": {"ingressHosts": hosts}});
        let path = "/v1alpha1/namespaces";
        let admin = &server.admin;
        let (status, body) = server.send_json(admin, Method::POST, path, &body).await;
        (status.as_u16(), body)
    };
    let wrong = limit(json!(["a b"])).await;
    assert_eq!(wrong.0, 400, "{wrong:?}");
    let set = limit(json!(["*.shop.lan", "shop.lan"])).await;
    assert_eq!(set.0, 200, "{set:?}");
    let (_, shown) = server
        .get(&server.deploy, "/v1alpha1/namespaces/shop")
        .await;
    assert_eq!(
        shown["spec"]["ingressHosts"],
        json!(["*.shop.lan", "shop.lan"])
    );
    for host in ["other.lan", "a.b.shop.lan", "\"*.lan\""] {
        let route = format!("{{host: {host}, servicePort: 8080}}");
        let (status, refused) = apply(&server, "shop", "web", &route).await;
        assert_eq!(status, 409, "{host}: {refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("*.shop.lan, shop.lan alone"), "{message}");
    }
    let from = "{host: a.shop.lan, servicePort: 8080, redirectFrom: [www.lan]}";
    assert_eq!(apply(&server, "shop", "web", from).await.0, 409);
    let own = "{host: \"*.shop.lan\", servicePort: 8080}";
    assert_eq!(apply(&server, "shop", "web", own).await.0, 201);
    // A limit that a stored route exceeds is refused, and names the route.
    let (status, refused) = limit(json!(["shop.lan"])).await;
    assert_eq!(status, 409, "{refused}");
    assert!(
        refused["message"].as_str().unwrap().contains("*.shop.lan"),
        "{refused}"
    );
    // Other settings leave the hosts as they are.
    let labels = json!({"metadata": {"name": "shop", "labels": {"a": "b"}}});
    let admin = &server.admin;
    server
        .send_json(admin, Method::POST, "/v1alpha1/namespaces", &labels)
        .await;
    let other = "{host: other.lan, servicePort: 8080}";
    assert_eq!(apply(&server, "shop", "two", other).await.0, 409);
    let free = json!({"metadata": {"name": "shop"}, "spec": {}});
    let (status, body) = server
        .send_json(admin, Method::POST, "/v1alpha1/namespaces", &free)
        .await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(apply(&server, "shop", "two", other).await.0, 201);
    server.stop().await;
}

#[tokio::test]
async fn administrators_alone_write_routes_to_something_outside() {
    let server = Server::start().await;
    let path = "/v1alpha1/routes";
    let route = |host: &str, to: &str| {
        json!({"apiVersion": "kat.dws.rip/v1alpha1", "kind": "Route",
            "spec": {"host": host, "path": "/x/", "to": to, "tls": true}})
    };
    let write = async |token: &str, body: Value| {
        let (status, body) = server.send_json(token, Method::PUT, path, &body).await;
        (status.as_u16(), body)
    };
    let good = route("nas.lan", "http://192.0.2.5:5000");
    for token in [&server.deploy, &server.read] {
        assert_eq!(write(token, good.clone()).await.0, 403);
    }
    let admin = &server.admin;
    for (body, said) in [
        (route("nas.lan", "http://127.0.0.1"), "machine itself"),
        (
            route("nas.lan", "http://10.200.0.1:80"),
            "service addresses",
        ),
        (route("a b", "http://192.0.2.5"), "is not a host name"),
        (json!({"kind": "Route"}), "spec"),
        (
            json!({"apiVersion": "kat.dws.rip/v1alpha1", "kind": "Namespace", "metadata": {"name": "crew"}}),
            "no document of kind Route",
        ),
        (
            json!({"apiVersion": "kat.dws.rip/v1alpha1", "kind": "Route", "spec": {"host": "nas.lan", "to": "http://192.0.2.5", "tls": {"issuer": "internal", "x": 1}}}),
            "unknown field",
        ),
    ] {
        let (status, body) = write(admin, body).await;
        assert_eq!(status, 400, "{said}: {body}");
        assert!(body.to_string().contains(said), "{said}: {body}");
    }
    let (status, created) = write(admin, good.clone()).await;
    assert_eq!(status, 201, "{created}");
    assert_eq!(created["metadata"]["name"], "nas.lan/x");
    let (status, again) = write(admin, good).await;
    assert_eq!((status, &again["outcome"]), (200, &json!("unchanged")));
    let (status, changed) = write(admin, route("nas.lan", "http://192.0.2.6")).await;
    assert_eq!((status, &changed["outcome"]), (200, &json!("updated")));
    let all = routes_of(&server, &server.read, path).await;
    assert_eq!(all[0]["spec"]["to"], "http://192.0.2.6");
    assert_eq!(all[0]["spec"]["workload"], "");
    assert_eq!(all[0]["metadata"]["namespace"], "kat-core");
    // The host is owned, in both directions.
    let taken = "{host: nas.lan, path: /y, servicePort: 8080}";
    let (status, refused) = apply(&server, "shop", "web", taken).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("belongs to Route nas.lan/x"), "{message}");
    assert_eq!(
        apply(&server, "shop", "web", "{host: tv.lan, servicePort: 8080}")
            .await
            .0,
        201
    );
    let (status, refused) = write(admin, route("tv.lan", "http://192.0.2.5")).await;
    assert_eq!(status, 409, "{refused}");
    assert!(
        refused["message"].as_str().unwrap().contains("shop/web"),
        "{refused}"
    );
    let delete = async |token: &str, query: &str| {
        let path = format!("{path}?{query}");
        let answer = server.call(token, Method::DELETE, &path).await;
        answer.status().as_u16()
    };
    assert_eq!(delete(&server.deploy, "host=nas.lan&path=/x").await, 403);
    assert_eq!(delete(admin, "host=nas.lan").await, 404);
    assert_eq!(delete(admin, "host=nas.lan&path=/x&dryRun=true").await, 200);
    assert_eq!(delete(admin, "host=nas.lan&path=/x").await, 200);
    assert_eq!(delete(admin, "host=nas.lan&path=/x").await, 404);
    assert_eq!(apply(&server, "shop", "two", taken).await.0, 201);
    server.stop().await;
}

#[tokio::test]
async fn forward_auth_of_another_namespace_is_refused_unless_it_may_be_reached() {
    let server = Server::start().await;
    let asking = |workload: &str, port: &str| {
        format!(
            "{{host: a.lan, servicePort: 8080, forwardAuth: {{workload: {workload}, port: {port}}}}}"
        )
    };
    // Of the same namespace one may come later.
    let (status, body) = apply(&server, "shop", "web", &asking("auth", "8080")).await;
    assert_eq!(status, 201, "{body}");
    assert!(
        body["warnings"].to_string().contains("admits nobody"),
        "{body}"
    );
    let (status, refused) = apply(&server, "shop", "web", &asking("default/auth", "8080")).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("that namespace shop may reach"),
        "{message}"
    );
    assert_eq!(apply(&server, "shop", "auth", "").await.0, 201);
    let (status, refused) = apply(&server, "shop", "web", &asking("auth", "other")).await;
    assert_eq!(status, 409, "{refused}");
    assert!(
        refused.to_string().contains("no TCP port other"),
        "{refused}"
    );
    let (status, body) = apply(&server, "shop", "web", &asking("auth", "web")).await;
    assert_eq!(status, 200, "{body}");
    assert!(body["warnings"].is_null(), "{body}");
    server.stop().await;
}
