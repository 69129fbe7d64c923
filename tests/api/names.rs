//! Aliases of workloads, and host ports that are for some addresses: what is refused, and by whom.

use serde_json::{Value, json};

use super::support::{Server, put, web, with_instance};
use kat_plan::SOURCES_DATA_PATH;
use kat_types::store::{keys, records::NodeStatusRecord};

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

fn message(body: &Value) -> &str {
    body["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_name_that_another_workload_has_is_refused_with_its_owner_and_place() {
    let server = Server::start().await;
    let first = apply(&server, "shop", "db", "{aliases: [mysql, sql]}").await;
    assert_eq!(first.0, 201, "{first:?}");
    let (status, refused) = apply(&server, "shop", "web", "{aliases: [cache, sql]}").await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        message(&refused),
        "VirtualLoadBalancer.kat: spec.aliases[1]: `sql` is an alias of workload shop/db (its spec.aliases[1])"
    );
    let (status, refused) = apply(&server, "shop", "web", "{aliases: [db]}").await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        message(&refused),
        "VirtualLoadBalancer.kat: spec.aliases[0]: `db` is the name of workload shop/db"
    );
    let (status, refused) = apply(&server, "shop", "mysql", "{headless: true}").await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        message(&refused),
        "workload.kat: metadata.name: `mysql` is an alias of workload shop/db (its spec.aliases[0])"
    );
    // Another namespace has names of its own.
    let elsewhere = apply(&server, "default", "mysql", "{aliases: [sql]}").await;
    assert_eq!(elsewhere.0, 201, "{elsewhere:?}");
    // The workload keeps its aliases when it changes, and gives one up.
    let kept = apply(&server, "shop", "db", "{aliases: [mysql]}").await;
    assert_eq!(kept.0, 200, "{kept:?}");
    let taken = apply(&server, "shop", "web", "{aliases: [cache, sql]}").await;
    assert_eq!(taken.0, 201, "{taken:?}");
    server.stop().await;
}

#[tokio::test]
async fn of_applies_at_once_with_the_same_alias_one_succeeds() {
    let server = Server::start().await;
    let names: Vec<String> = (0..4).map(|number| format!("db-{number}")).collect();
    let applies = names.iter().map(|name| {
        let server = &server;
        async move { apply(server, "shop", name, "{aliases: [mysql]}").await }
    });
    let answers = futures_util::future::join_all(applies).await;
    let created = answers.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(created, 1, "{answers:?}");
    for (status, body) in &answers {
        assert!([201, 409].contains(status), "{status} {body}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_host_port_is_not_kept_to_addresses_while_an_instance_is_on_a_machine_that_opens_it_to_all()
 {
    let server = Server::start().await;
    let known = |data_path: u32| {
        let status = NodeStatusRecord {
            schema: 1,
            data_path,
            ..NodeStatusRecord::default()
        };
        put(keys::node_status("n1"), &status)
    };
    with_instance(&server).await;
    server.write(&[known(SOURCES_DATA_PATH - 1)]).await;
    let closed = "{ports: [{containerPort: 80, hostPort: 80, allowSources: [192.0.2.0/24]}]}";
    let (status, refused) = apply(&server, "shop", "web", closed).await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        message(&refused),
        "VirtualLoadBalancer.kat: allowSources of spec.ports is kept by kat-net of a later version than the instances of `shop/web` have on n1"
    );
    assert_eq!(
        refused["hint"],
        json!("upgrade kat on n1 first, or leave allowSources out")
    );
    // A workload without an instance there is placed elsewhere, or waits with a reason.
    assert_eq!(apply(&server, "shop", "other", closed).await.0, 201);
    let open = "{ports: [{containerPort: 80, hostPort: 80}]}";
    assert_eq!(apply(&server, "shop", "web", open).await.0, 200);
    server.write(&[known(SOURCES_DATA_PATH)]).await;
    let (status, body) = apply(&server, "shop", "web", closed).await;
    assert_eq!(status, 200, "{body}");
    // What is stored is no reason to refuse another change.
    server.write(&[known(SOURCES_DATA_PATH - 1)]).await;
    let more = closed.replace("192.0.2.0/24", "192.0.2.0/24, 198.51.100.1");
    let (status, body) = apply(&server, "shop", "web", &more).await;
    assert_eq!(status, 200, "{body}");
    server.stop().await;
}
