//! Host ports of the machines that serve routes: who has one is named, and no other workload gets it.

use serde_json::Value;

use super::support::{Server, web};

async fn apply(server: &Server, namespace: &str, name: &str, spec: &str) -> (u16, Value) {
    let main = web(namespace, name, 1);
    let balancer =
        format!("apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec: {spec}\n");
    let files = [
        ("workload.kat", main.as_str()),
        ("VirtualLoadBalancer.kat", balancer.as_str()),
    ];
    let (status, body) = server.put(namespace, name, &files).await;
    (status.as_u16(), body)
}

fn on_ingress(container_port: u16, host_port: &str) -> String {
    format!(
        "{{ports: [{{containerPort: {container_port}, hostPort: {host_port}, hostPortOn: ingress}}]}}"
    )
}

#[tokio::test]
async fn a_port_that_another_workload_has_is_refused_with_its_owner() {
    let server = Server::start().await;
    let first = apply(&server, "shop", "db", &on_ingress(5432, "15432")).await;
    assert_eq!(first.0, 201, "{first:?}");
    let (status, refused) = apply(&server, "shop", "other", &on_ingress(80, "15432")).await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        refused["message"],
        "VirtualLoadBalancer.kat: workload db has port 15432/TCP of the machines that serve routes as a host port"
    );
    // Another transport is another port, and `auto` takes a free one.
    let udp = "{ports: [{containerPort: 53, protocol: UDP, hostPort: 15432, hostPortOn: ingress}]}";
    assert_eq!(apply(&server, "shop", "dns", udp).await.0, 201);
    let auto = on_ingress(80, "auto");
    assert_eq!(apply(&server, "shop", "auto", &auto).await.0, 201);
    // The owner keeps its port when it changes, and gives it up.
    let kept = apply(&server, "shop", "db", &on_ingress(5433, "15432")).await;
    assert_eq!(kept.0, 200, "{kept:?}");
    let moved = apply(&server, "shop", "db", &on_ingress(5433, "15433")).await;
    assert_eq!(moved.0, 200, "{moved:?}");
    let taken = apply(&server, "shop", "other", &on_ingress(80, "15432")).await;
    assert_eq!(taken.0, 201, "{taken:?}");
    server.stop().await;
}

#[tokio::test]
async fn ports_of_routes_and_of_kat_are_no_host_ports_of_the_machines_that_serve_routes() {
    let server = Server::start().await;
    let (status, refused) = apply(&server, "shop", "db", &on_ingress(80, "9115")).await;
    assert_eq!(status, 400, "{refused}");
    let routed = "{ports: [{containerPort: 80}], ingress: [{host: shop.lan, servicePort: 80}]}";
    assert_eq!(apply(&server, "shop", "web", routed).await.0, 201);
    let (status, refused) = apply(&server, "shop", "proxy", &on_ingress(8080, "443")).await;
    assert_eq!(status, 409, "{refused}");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("port 443 of machines serves routes"),
        "{message}"
    );
    server.stop().await;
}

#[tokio::test]
async fn of_applies_at_once_with_the_same_port_one_succeeds() {
    let server = Server::start().await;
    let names: Vec<String> = (0..4).map(|number| format!("db-{number}")).collect();
    let spec = on_ingress(5432, "15432");
    let applies = names.iter().map(|name| {
        let (server, spec) = (&server, spec.as_str());
        async move { apply(server, "shop", name, spec).await }
    });
    let answers = futures_util::future::join_all(applies).await;
    let created = answers.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(created, 1, "{answers:?}");
    for (status, body) in &answers {
        assert!([201, 409].contains(status), "{status} {body}");
    }
    server.stop().await;
}
