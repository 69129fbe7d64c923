//! Volumes: what is shown, who may remove data, and when a removal is refused.

use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    WEB, files,
    support::{LinesOf, Server, assignment, put, read, web},
};
use kat_types::{
    resource::ReclaimPolicy,
    store::{
        keys,
        records::{VolumeRecord, WorkloadMeta},
        transaction::WriteOperation,
    },
};

const SHOP_VOLUMES: &str = "/v1alpha1/n/shop/volumes";
const DATA: &str = "/v1alpha1/n/shop/workloads/web/volumes/data";

pub(crate) fn record(node: Option<&str>) -> VolumeRecord {
    VolumeRecord {
        schema: 1,
        index: 0,
        node: node.map(str::to_owned),
        host_path: None,
        made: true,
        reclaim: ReclaimPolicy::Retain,
        deleting: false,
        created: Timestamp::UNIX_EPOCH,
        moving: None,
        kept: Vec::new(),
        forgotten: std::collections::BTreeMap::new(),
    }
}

pub(crate) async fn store(server: &Server, volume: &str, record: &VolumeRecord) {
    server.write(&[put(keys::volume(volume), record)]).await;
}

pub(crate) fn stored(server: &Server, volume: &str) -> VolumeRecord {
    let items = server.store.peek(&keys::volume(volume)).items;
    serde_json::from_slice(&items[0].value).unwrap()
}

pub(crate) fn meta(server: &Server, namespace: &str) -> WorkloadMeta {
    let items = server
        .store
        .peek(&keys::workload_meta(namespace, "web"))
        .items;
    serde_json::from_slice(&items[0].value).unwrap()
}

pub(crate) async fn apply(server: &Server, namespace: &str, name: &str) {
    let text = web(namespace, name, 1);
    let (status, body) = server.put(namespace, name, &files(&text)).await;
    assert!(status.is_success(), "{body}");
}

pub(crate) async fn delete(server: &Server, token: &str, path: &str) -> (u16, Value) {
    let (status, body) = read(server.call(token, Method::DELETE, path).await).await;
    (status.as_u16(), body)
}

/// An instance of `shop/web` with the volume `data`, as the leader would assign it.
pub(crate) fn user_of_data(template: &str) -> WriteOperation {
    let mut assignment = assignment();
    assignment["templateHash"] = json!(template);
    assignment["container"]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    assignment["volumes"] = json!([{"definition": {"name": "data", "simpleClusterStorage": {}},
        "folder": "shop/web/data"}]);
    put(keys::desired_instance("n1", "web-abcde"), &assignment)
}

pub(crate) async fn event_of(server: &Server, reason: &str) -> Vec<Value> {
    let path = "/v1alpha1/events?resourceName=web";
    let (_, events) = server.get(&server.admin, path).await;
    let events = events["items"].as_array().unwrap().iter();
    events
        .filter(|event| event["reason"] == reason)
        .cloned()
        .collect()
}

#[tokio::test]
async fn a_volume_says_where_its_data_is_and_who_has_it() {
    let server = Server::start().await;
    apply(&server, "shop", "web").await;
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    let slot = VolumeRecord {
        made: false,
        reclaim: ReclaimPolicy::Delete,
        ..record(None)
    };
    store(&server, "shop/web/logs.2", &slot).await;
    let host = VolumeRecord {
        host_path: Some("/srv/conf".to_owned()),
        deleting: true,
        ..record(Some("n1"))
    };
    store(&server, "shop/web/conf@host.1", &host).await;
    // The volume's workload has been deleted.
    store(&server, "shop/old/data", &record(Some("n9"))).await;
    server.write(&[user_of_data("h")]).await;

    let (status, item) = server.get(&server.deploy, DATA).await;
    assert_eq!(status, 200, "{item}");
    assert_eq!(item["kind"], "Volume");
    assert_eq!(item["metadata"]["name"], "data");
    assert_eq!(item["metadata"]["namespace"], "shop");
    assert_eq!(
        item["metadata"]["creationTimestamp"],
        "1970-01-01T00:00:00Z"
    );
    let spec = json!({"workload": "web", "volume": "data", "reclaim": "Retain"});
    assert_eq!(item["spec"], spec);
    let status = json!({"phase": "Bound", "node": "n1", "shared": false,
        "path": "/var/lib/kat/volumes/shop/web/data", "usedBy": ["web-abcde"]});
    assert_eq!(item["status"], status);

    let (_, item) = server
        .get(&server.read, &format!("{WEB}/volumes/logs.2"))
        .await;
    let spec = json!({"workload": "web", "volume": "logs", "slot": 2, "reclaim": "Delete"});
    assert_eq!(item["spec"], spec);
    let status = json!({"phase": "Pending", "shared": true,
        "path": "/var/lib/kat/volumes/shop/web/logs.2", "usedBy": []});
    assert_eq!(item["status"], status);

    let path = format!("{WEB}/volumes/conf%40host.1");
    let (_, item) = server.get(&server.read, &path).await;
    assert_eq!(item["metadata"]["name"], "conf@host.1");
    assert_eq!(item["spec"]["slot"], 1);
    assert_eq!(item["spec"]["hostPath"], "/srv/conf");
    assert_eq!(item["status"]["path"], "/srv/conf");
    assert_eq!(item["status"]["phase"], "Removing");

    let path = "/v1alpha1/n/shop/workloads/old/volumes/data";
    let (_, item) = server.get(&server.read, path).await;
    assert_eq!(item["status"]["phase"], "Released");
    assert_eq!(item["status"]["node"], "n9");

    let none = format!("{WEB}/volumes/none");
    let (status, body) = server.get(&server.read, &none).await;
    assert_eq!(status, 404);
    assert_eq!(body["message"], "volume `shop/web/none` does not exist");
}

#[tokio::test]
async fn storage_that_machines_share_has_no_machine() {
    let server = Server::start().await;
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    let host = VolumeRecord {
        host_path: Some("/srv/conf".to_owned()),
        ..record(Some("n1"))
    };
    store(&server, "shop/web/conf@host.0", &host).await;
    let status = json!({"schema": 1, "phase": "Ready", "volumeShared": true});
    server.write(&[put(keys::node_status("n1"), &status)]).await;
    let (_, item) = server.get(&server.admin, DATA).await;
    assert_eq!(item["status"]["shared"], true);
    assert_eq!(item["status"].get("node"), None);
    // A host path is not shared.
    let path = format!("{WEB}/volumes/conf@host.0");
    let (_, item) = server.get(&server.admin, &path).await;
    assert_eq!(item["status"]["shared"], false);
    assert_eq!(item["status"]["node"], "n1");
}

#[tokio::test]
async fn lists_and_watches_tell_volumes_of_one_name_apart() {
    let server = Server::start().await;
    for volume in ["shop/db/data", "shop/web/data", "gone/db/data"] {
        store(&server, volume, &record(Some("n1"))).await;
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|item| {
                let part = |value: &Value| value.as_str().unwrap().to_owned();
                let namespace = part(&item["metadata"]["namespace"]);
                let workload = part(&item["spec"]["workload"]);
                format!("{namespace}/{workload}")
            })
            .collect()
    };
    let (_, all) = server.get(&server.read, "/v1alpha1/volumes").await;
    assert_eq!(names(&all), ["gone/db", "shop/db", "shop/web"]);
    let (_, shop) = server.get(&server.deploy, SHOP_VOLUMES).await;
    assert_eq!(names(&shop), ["shop/db", "shop/web"]);
    // A kept volume outlives its namespace, and its namespace can still be listed.
    let (_, gone) = server.get(&server.read, "/v1alpha1/n/gone/volumes").await;
    assert_eq!(names(&gone), ["gone/db"]);
    let (status, body) = server
        .get(&server.read, "/v1alpha1/n/nowhere/volumes")
        .await;
    assert_eq!(status, 404, "{body}");

    let version = shop["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{SHOP_VOLUMES}?watch=true&resourceVersion={version}");
    let mut lines = LinesOf::new(server.call(&server.read, Method::GET, &path).await);
    // A new user of a volume is a change of the volume.
    server.write(&[user_of_data("h")]).await;
    let line = lines.next().await.unwrap();
    assert_eq!(line["type"], "MODIFIED");
    assert_eq!(line["object"]["spec"]["workload"], "web");
    server
        .write(&[WriteOperation::Delete(keys::volume("shop/db/data"))])
        .await;
    let line = lines.next().await.unwrap();
    assert_eq!(line["type"], "DELETED");
    assert_eq!(line["object"]["spec"]["workload"], "db");
}

#[tokio::test]
async fn data_that_an_instance_has_is_not_removed() {
    let server = Server::start().await;
    apply(&server, "shop", "web").await;
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    server.write(&[user_of_data("h")]).await;
    let before = server.stored();
    let (status, body) = delete(&server, &server.admin, DATA).await;
    assert_eq!((status, &body["error"]), (409, &json!("Conflict")));
    assert_eq!(
        body["message"],
        "volume `shop/web/data` is in use by web-abcde"
    );
    let hint = body["hint"].as_str().unwrap();
    assert!(
        hint.contains("katcall scale shop/web --replicas 0"),
        "{hint}"
    );
    assert_eq!(server.stored(), before);
}

#[tokio::test]
async fn a_removal_is_marked_once_and_told_of_its_workload() {
    let server = Server::start().await;
    apply(&server, "shop", "web").await;
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    let before = server.stored();
    let tried = delete(&server, &server.deploy, &format!("{DATA}?dryRun=true")).await;
    assert_eq!(
        (tried.0, &tried.1["outcome"]),
        (200, &json!("deleting")),
        "{tried:?}"
    );
    assert_eq!(server.stored(), before);
    let other = "/v1alpha1/n/default/workloads/web/volumes/data";
    assert_eq!(delete(&server, &server.deploy, other).await.0, 403);
    assert_eq!(delete(&server, &server.read, DATA).await.0, 403);
    assert!(!stored(&server, "shop/web/data").deleting);

    for _ in 0..2 {
        let (status, body) = delete(&server, &server.deploy, DATA).await;
        assert_eq!((status, &body["outcome"]), (200, &json!("deleting")));
        assert_eq!(body["kind"], "Volume");
    }
    assert!(stored(&server, "shop/web/data").deleting);
    let (_, item) = server.get(&server.read, DATA).await;
    assert_eq!(item["status"]["phase"], "Removing");
    let events = event_of(&server, "VolumeDeleting").await;
    assert_eq!(events.len(), 1, "{events:?}");
    let message = events[0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("removal of the data of volume data on n1 was asked for by "),
        "{message}"
    );
    let none = format!("{WEB}/volumes/none");
    assert_eq!(delete(&server, &server.admin, &none).await.0, 404);
}

#[tokio::test]
async fn what_is_only_forgotten_is_called_so() {
    let server = Server::start().await;
    let host = VolumeRecord {
        host_path: Some("/srv/conf".to_owned()),
        ..record(Some("n1"))
    };
    store(&server, "shop/web/conf@host.0", &host).await;
    store(&server, "shop/web/data", &record(Some("n9"))).await;
    for (path, said) in [
        (
            format!("{WEB}/volumes/conf@host.0"),
            "the files at /srv/conf on n1 stay",
        ),
        (DATA.to_owned(), "n9, which is no machine of the cluster"),
    ] {
        let (status, body) = delete(&server, &server.admin, &path).await;
        assert_eq!((status, &body["outcome"]), (200, &json!("forgetting")));
        let events = event_of(&server, "VolumeDeleting").await;
        let told = |event: &Value| event["message"].as_str().unwrap().contains(said);
        assert!(events.iter().any(told), "{events:?}");
    }
}

#[tokio::test]
async fn a_version_that_was_read_earlier_is_not_removed() {
    let server = Server::start().await;
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    let (_, item) = server.get(&server.admin, DATA).await;
    let version = item["metadata"]["resourceVersion"].as_str().unwrap();
    store(&server, "shop/web/data", &record(Some("n2"))).await;
    let request = server.client(None).delete(server.url(DATA));
    let request = request
        .bearer_auth(&server.admin)
        .header("if-match", version);
    assert_eq!(request.send().await.unwrap().status(), 412);
    assert!(!stored(&server, "shop/web/data").deleting);
}

#[tokio::test]
async fn a_plan_from_before_a_removal_is_refused() {
    let server = Server::start().await;
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    let turn = [WriteOperation::Put(keys::PLANNED.to_owned(), Vec::new())];
    server.write(&turn).await;
    let planned = || server.store.peek(keys::PLANNED).items[0].mod_revision;
    let before = planned();
    assert_eq!(delete(&server, &server.admin, DATA).await.0, 200);
    assert_eq!(planned(), server.store.revision());
    assert!(planned() > before);
}

#[tokio::test]
async fn a_workload_takes_its_data_with_it_where_that_is_asked_for() {
    let server = Server::start().await;
    apply(&server, "shop", "web").await;
    assert_eq!(delete(&server, &server.deploy, WEB).await.0, 200);
    assert!(!meta(&server, "shop").deletes_volumes);
    // The request for the data can also come later, while the workload is being deleted.
    let with_data = format!("{WEB}?volumes=true");
    let before = server.stored();
    let tried = format!("{with_data}&dryRun=true");
    assert_eq!(delete(&server, &server.deploy, &tried).await.0, 200);
    assert_eq!(server.stored(), before);
    for _ in 0..2 {
        let (status, body) = delete(&server, &server.deploy, &with_data).await;
        assert_eq!((status, &body["outcome"]), (200, &json!("deleting")));
    }
    assert!(meta(&server, "shop").deletes_volumes);
    // A later deletion without `volumes` does not undo the request for the data.
    assert_eq!(delete(&server, &server.deploy, WEB).await.0, 200);
    assert!(meta(&server, "shop").deletes_volumes);
    let events = event_of(&server, "Deleting").await;
    let message = events[1]["message"].as_str().unwrap();
    assert!(
        message.starts_with("deletion, with the data of its volumes, was asked for by "),
        "{events:?}"
    );
    assert_eq!(events.len(), 2, "{events:?}");
}

#[tokio::test]
async fn a_namespace_keeps_data_unless_that_is_asked_for() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "crew"}});
    let path = "/v1alpha1/namespaces";
    server
        .send_json(&server.admin, Method::POST, path, &body)
        .await;
    apply(&server, "crew", "web").await;
    for volume in ["crew/web/data", "crew/old/data", "shop/old/data"] {
        store(&server, volume, &record(Some("n1"))).await;
    }
    let crew = "/v1alpha1/namespaces/crew";
    let cascade = format!("{crew}?cascade=true");
    assert_eq!(delete(&server, &server.admin, &cascade).await.0, 200);
    let web = meta(&server, "crew");
    assert!(web.deleting && !web.deletes_volumes);
    assert!(!stored(&server, "crew/old/data").deleting);

    let with_data = format!("{cascade}&volumes=true");
    assert_eq!(delete(&server, &server.admin, &with_data).await.0, 200);
    assert!(meta(&server, "crew").deletes_volumes);
    assert!(stored(&server, "crew/old/data").deleting);
    // The leader marks this volume once the workload's instances have stopped.
    assert!(!stored(&server, "crew/web/data").deleting);
    assert!(!stored(&server, "shop/old/data").deleting);
}
