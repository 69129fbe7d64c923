//! Drains, labels and taints of machines.

use reqwest::Method;
use serde_json::{Value, json};

use super::support::{NODE_UID, Server, put, read, registration};
use kat_client::{Client, ClientOptions};
use kat_store::StateStore;
use kat_types::{
    api::{NodeLabels, NodeTaints, Taint, WriteOutcome},
    resource::TaintEffect,
    store::{keys, records::NodeRegistration, transaction::WriteOperation},
};

const NODE: &str = "/v1alpha1/nodes/n1";

fn stored(server: &Server) -> NodeRegistration {
    let mut found = server.store.peek(&keys::registration("n1")).items;
    serde_json::from_slice(&found.remove(0).value).unwrap()
}

async fn reasons(server: &Server) -> Vec<Value> {
    let (_, events) = server
        .get(&server.read, "/v1alpha1/events?resourceName=n1")
        .await;
    let events = events["items"].as_array().unwrap().iter();
    events.map(|event| event["reason"].clone()).collect()
}

#[tokio::test]
async fn a_drain_and_its_end_may_be_asked_for_twice() {
    let server = Server::start().await;
    let drain = format!("{NODE}/drain");
    let ask = async |method: Method| read(server.call(&server.admin, method, &drain).await).await;
    let (status, body) = ask(Method::PUT).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    assert_eq!(
        (&body["kind"], &body["metadata"]["uid"]),
        (&json!("Node"), &json!(NODE_UID))
    );
    assert!(stored(&server).draining);
    let (_, item) = server.get(&server.read, NODE).await;
    assert_eq!(item["spec"]["draining"], true);
    assert_eq!(
        item["metadata"]["resourceVersion"],
        body["metadata"]["resourceVersion"]
    );
    let before = server.stored();
    let (status, body) = ask(Method::PUT).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("unchanged"))
    );
    assert_eq!(server.stored(), before);
    assert!(item["spec"].get("drainForced").is_none());
    let forced = format!("{drain}?force=true");
    let (_, body) = read(server.call(&server.admin, Method::PUT, &forced).await).await;
    assert_eq!(body["outcome"], "updated", "{body}");
    assert!(stored(&server).drain_forced);
    let (_, item) = server.get(&server.read, NODE).await;
    assert_eq!(item["spec"]["drainForced"], true);
    // A drain without `force` clears the flag.
    let (_, body) = ask(Method::PUT).await;
    assert_eq!(body["outcome"], "updated");
    let node = stored(&server);
    assert_eq!((node.draining, node.drain_forced), (true, false));
    let (_, body) = read(server.call(&server.admin, Method::PUT, &forced).await).await;
    assert_eq!(body["outcome"], "updated", "{body}");
    let (status, body) = ask(Method::DELETE).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    let (_, body) = ask(Method::DELETE).await;
    assert_eq!(body["outcome"], "unchanged");
    let node = stored(&server);
    assert_eq!((node.draining, node.drain_forced), (false, false));
    let mut reasons = reasons(&server).await;
    reasons.dedup();
    assert_eq!(reasons, [json!("DrainAsked"), json!("Uncordoned")]);
    let (status, _) = read(
        server
            .call(&server.admin, Method::PUT, "/v1alpha1/nodes/n9/drain")
            .await,
    )
    .await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn labels_are_set_whole_but_for_those_that_say_what_the_machine_is() {
    let server = Server::start().await;
    let mut registration = registration();
    let own = [("kat.dws.rip/arch".to_owned(), "amd64".to_owned())];
    registration.labels = own.into();
    server
        .write(&[put(keys::registration("n1"), &registration)])
        .await;
    let path = format!("{NODE}/labels");
    let set = async |labels: Value| {
        let body = json!({"labels": labels});
        server
            .send_json(&server.admin, Method::PUT, &path, &body)
            .await
    };
    let wanted = json!({"kat.dws.rip/arch": "amd64", "disk": "ssd", "zone": ""});
    let (status, body) = set(wanted.clone()).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    let (_, item) = server.get(&server.read, NODE).await;
    assert_eq!(item["metadata"]["labels"], wanted);
    let before = server.stored();
    assert_eq!(set(wanted).await.1["outcome"], "unchanged");
    for wrong in [
        json!({"disk": "ssd"}),
        json!({"kat.dws.rip/arch": "arm64"}),
        json!({"kat.dws.rip/arch": "amd64", "kat.dws.rip/os": "plan9"}),
        json!({"kat.dws.rip/arch": "amd64", "kat.dws.rip/etcd": "no"}),
        json!({"kat.dws.rip/arch": "amd64", "a b": "c"}),
        json!({"kat.dws.rip/arch": "amd64", "a": "b\nc"}),
        json!(["disk"]),
    ] {
        let (status, body) = set(wrong.clone()).await;
        assert_eq!(status, 400, "{wrong}: {body}");
    }
    let many: serde_json::Map<_, _> = (0..65).map(|one| (format!("l{one}"), json!(""))).collect();
    assert_eq!(set(Value::Object(many)).await.0, 400);
    assert_eq!(server.stored(), before);
    assert_eq!(reasons(&server).await, [json!("LabelsChanged")]);
}

#[tokio::test]
async fn taints_are_set_whole_and_once_for_each_effect() {
    let server = Server::start().await;
    let path = format!("{NODE}/taints");
    let set = async |taints: Value| {
        let body = json!({"taints": taints});
        server
            .send_json(&server.admin, Method::PUT, &path, &body)
            .await
    };
    let wanted = json!([
        {"key": "dedicated", "value": "db", "effect": "NoSchedule"},
        {"key": "dedicated", "value": "", "effect": "PreferNoSchedule"},
    ]);
    let (status, body) = set(wanted.clone()).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("updated")),
        "{body}"
    );
    let (_, item) = server.get(&server.read, NODE).await;
    assert_eq!(item["spec"]["taints"], wanted);
    for wrong in [
        json!([wanted[0], wanted[0]]),
        json!([{"key": "a", "effect": "NoExecute"}]),
        json!([{"key": "", "effect": "NoSchedule"}]),
        json!([{"key": "a", "value": "b c", "effect": "NoSchedule"}]),
    ] {
        let (status, body) = set(wrong.clone()).await;
        assert_eq!(status, 400, "{wrong}: {body}");
    }
    let (status, body) = set(json!([])).await;
    assert_eq!(
        (status.as_u16(), &body["outcome"]),
        (200, &json!("updated"))
    );
    assert!(stored(&server).taints.is_empty());
}

#[tokio::test]
async fn a_change_meant_for_another_state_of_the_machine_is_refused() {
    let server = Server::start().await;
    let socket = server.socket("admin.sock");
    let client = Client::from_unix_socket(&socket, ClientOptions::default()).unwrap();
    let version = client.node("n1").await.unwrap().metadata.resource_version;
    let labels = NodeLabels {
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
    };
    let taint = Taint {
        key: "dedicated".to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    };
    let taints = NodeTaints {
        taints: vec![taint],
    };
    let done = client
        .set_node_labels("n1", &labels, &version)
        .await
        .unwrap();
    assert_eq!(done.outcome, WriteOutcome::Updated);
    let late = client
        .set_node_taints("n1", &taints, &version)
        .await
        .unwrap_err();
    assert_eq!(late.status(), Some(412), "{late}");
    let version = done.metadata.resource_version;
    client
        .set_node_taints("n1", &taints, &version)
        .await
        .unwrap();
    assert_eq!(
        client.drain_node("n1", false).await.unwrap().outcome,
        WriteOutcome::Updated
    );
    assert_eq!(
        client.uncordon_node("n1").await.unwrap().outcome,
        WriteOutcome::Updated
    );
    let node = stored(&server);
    assert_eq!((node.labels, node.taints), (labels.labels, taints.taints));
}

/// A drain acknowledged by the previous leader is not yet in this leader's copy of the store.
#[tokio::test]
async fn an_old_copy_of_the_store_answers_nothing() {
    let server = Server::start().await;
    server.still.send_replace(true);
    let mut drained = stored(&server);
    drained.draining = true;
    let registration = serde_json::to_vec(&drained).unwrap();
    let key = keys::registration("n1");
    let operations = [WriteOperation::Put(key, registration)];
    server.store.transact(&[], &operations).await.unwrap();
    let drain = format!("{NODE}/drain");
    let ask = async || read(server.call(&server.admin, Method::DELETE, &drain).await).await;
    let (status, body) = ask().await;
    assert_eq!(status.as_u16(), 503, "{body}");
    let missing = "/v1alpha1/nodes/n9/drain";
    let (status, body) = read(server.call(&server.admin, Method::PUT, missing).await).await;
    assert_eq!(status.as_u16(), 503, "{body}");
    server.still.send_replace(false);
    let (status, body) = ask().await;
    let answer = (status.as_u16(), &body["outcome"]);
    assert_eq!(answer, (200, &json!("updated")), "{body}");
    assert!(!stored(&server).draining);
}

#[tokio::test]
async fn only_administrators_decide_about_machines() {
    let server = Server::start().await;
    let before = server.stored();
    for token in [&server.read, &server.deploy] {
        for path in ["drain", "labels", "taints"] {
            let body = json!({"labels": {}, "taints": []});
            let path = format!("{NODE}/{path}");
            let (status, body) = server.send_json(token, Method::PUT, &path, &body).await;
            assert_eq!(status, 403, "{path}: {body}");
        }
    }
    assert_eq!(server.stored(), before);
}
