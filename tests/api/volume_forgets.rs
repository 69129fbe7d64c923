//! Requests to give up data whose disk is missing: permissions, refusals with the ordinary way, and
//! what is stored.

use super::{
    volumes::{apply, event_of, record, store, stored},
    *,
};
use kat_types::{
    store::records::{NodeRegistration, VolumeRecord},
    volumes::{KeptCopy, RemovalRecord, removal_id},
};

const DATA: &str = "/v1alpha1/n/shop/workloads/web/volumes/data";
const FORGET: &str = "/v1alpha1/n/shop/workloads/web/volumes/data/forget";
const VOLUME: &str = "shop/web/data";

fn asked() -> jiff::Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// A machine's stored objects, with what it reports of the removal.
fn machine(name: &str, reports: &str, change: impl FnOnce(&mut Value)) -> [WriteOperation; 2] {
    let registration = NodeRegistration::new(name, jiff::Timestamp::UNIX_EPOCH);
    let mut status = json!({"schema": 1, "phase": "Ready", "assignmentSchema": 5});
    if !reports.is_empty() {
        status[reports] = json!([removal_id(VOLUME, asked())]);
    }
    change(&mut status);
    [
        put(keys::registration(name), &registration),
        put(keys::node_status(name), &status),
    ]
}

fn removal(node: &str) -> WriteOperation {
    let record = RemovalRecord {
        schema: 1,
        asked: asked(),
        index: 0,
        made: true,
        copy: false,
        unsure: false,
        forget: false,
    };
    put(keys::desired_removal(node, VOLUME), &record)
}

/// A volume on `n1` that is being deleted, and whose data `n1` does not find.
async fn waiting() -> Server {
    let server = Server::start().await;
    apply(&server, "shop", "web").await;
    let deleting = VolumeRecord {
        deleting: true,
        ..record(Some("n1"))
    };
    store(&server, VOLUME, &deleting).await;
    server.write(&[removal("n1")]).await;
    server.write(&machine("n1", "missingVolumes", |_| {})).await;
    server
}

async fn ask(server: &Server, token: &str, path: &str, node: &str) -> (u16, Value) {
    let body = json!({ "node": node });
    let (status, body) = server.send_json(token, Method::PUT, path, &body).await;
    (status.as_u16(), body)
}

#[tokio::test]
async fn data_that_a_machine_does_not_find_is_given_up_once_and_recorded() {
    let server = waiting().await;
    let (_, item) = server.get(&server.deploy, DATA).await;
    let removals = &item["status"]["removals"];
    assert_eq!(removals[0]["node"], "n1", "{item}");
    assert_eq!(removals[0]["state"], "Missing");
    let message = removals[0]["message"].as_str().unwrap();
    assert!(
        message.contains("`katcall volume forget shop/web/data --on n1`"),
        "{message}"
    );
    let before = server.stored();
    let (status, body) = ask(
        &server,
        &server.deploy,
        &format!("{FORGET}?dryRun=true"),
        "n1",
    )
    .await;
    assert_eq!(
        (status, &body["outcome"]),
        (200, &json!("forgetting")),
        "{body}"
    );
    assert_eq!(server.stored(), before);

    for _ in 0..2 {
        let (status, body) = ask(&server, &server.deploy, FORGET, "n1").await;
        assert_eq!(
            (status, &body["outcome"]),
            (200, &json!("forgetting")),
            "{body}"
        );
    }
    let after = stored(&server, VOLUME);
    assert_eq!(after.forgotten.get("n1"), Some(&asked()));
    // The leader alone writes what machines are to do.
    let items = server
        .store
        .peek(&keys::desired_removal("n1", VOLUME))
        .items;
    let desired: RemovalRecord = serde_json::from_slice(&items[0].value).unwrap();
    assert!(!desired.forget);
    let events = event_of(&server, "VolumeForgotten").await;
    assert_eq!(events.len(), 1, "{events:?}");
    let message = events[0]["message"].as_str().unwrap();
    assert!(
        message.contains("gave up the data of volume data on n1, whose disk is missing"),
        "{message}"
    );
    let (_, item) = server.get(&server.read, DATA).await;
    assert_eq!(item["status"]["removals"][0]["state"], "Forgetting");
}

#[tokio::test]
async fn a_token_gives_up_no_data_of_another_namespace() {
    let server = waiting().await;
    let before = server.stored();
    assert_eq!(ask(&server, &server.read, FORGET, "n1").await.0, 403);
    for path in [
        "/v1alpha1/n/default/workloads/web/volumes/data/forget",
        "/v1alpha1/n/crew/workloads/web/volumes/data/forget",
    ] {
        let (status, body) = ask(&server, &server.deploy, path, "n1").await;
        assert_eq!(status, 403, "{path}: {body}");
    }
    // A name with a path in it is the name of no volume.
    for volume in ["..%2F..%2Fother%2Fweb%2Fdata", "data%2Fforget", ".."] {
        let path = format!("/v1alpha1/n/shop/workloads/web/volumes/{volume}/forget");
        let (status, body) = ask(&server, &server.deploy, &path, "n1").await;
        assert!((400..500).contains(&status), "{path}: {status} {body}");
    }
    // The same removal of another tenant's volume, whose name differs in the namespace alone.
    let other = VolumeRecord {
        deleting: true,
        ..record(Some("n1"))
    };
    store(&server, "default/web/data", &other).await;
    let path = FORGET.replace("/shop/", "/default/");
    assert_eq!(ask(&server, &server.deploy, &path, "n1").await.0, 403);
    assert!(stored(&server, "default/web/data").forgotten.is_empty());
    assert_eq!(stored(&server, VOLUME).forgotten.len(), 0);
    assert!(before.len() <= server.stored().len());
}

#[tokio::test]
async fn data_that_is_not_known_to_be_missing_is_refused_with_the_ordinary_way() {
    let server = waiting().await;
    let refused = async |node: &str| -> (String, String) {
        let (status, body) = ask(&server, &server.admin, FORGET, node).await;
        assert_eq!(
            (status, &body["error"]),
            (409, &json!("Conflict")),
            "{body}"
        );
        let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
        (text("message"), text("hint"))
    };
    // The disk is there: the machine removes the data, or has removed it.
    for reports in ["", "removedVolumes"] {
        server.write(&machine("n1", reports, |_| {})).await;
        let (message, hint) = refused("n1").await;
        assert!(
            message
                .contains("n1 does not report that the data of volume `shop/web/data` is missing"),
            "{message}"
        );
        assert!(hint.contains("katcall why node n1"), "{hint}");
    }
    // A report about an earlier removal does not count.
    let earlier = machine("n1", "", |status| {
        status["missingVolumes"] = json!([removal_id(VOLUME, jiff::Timestamp::UNIX_EPOCH)]);
    });
    server.write(&earlier).await;
    refused("n1").await;
    // The machine does not answer: whether its disk is missing is not known.
    let lost = machine("n1", "missingVolumes", |status| {
        status["phase"] = json!("NotReady");
    });
    server.write(&lost).await;
    let (message, hint) = refused("n1").await;
    assert!(message.contains("n1 does not answer"), "{message}");
    assert!(hint.contains("`katcall delete node n1`"), "{hint}");
    let (_, item) = server.get(&server.read, DATA).await;
    assert_eq!(item["status"]["removals"][0]["state"], "Requested");
    assert_eq!(
        item["status"]["removals"][0]["message"],
        "n1 does not answer"
    );
    let shared = machine("n1", "missingVolumes", |status| {
        status["volumeShared"] = json!(true);
    });
    server.write(&shared).await;
    assert!(
        refused("n1")
            .await
            .0
            .contains("storage that machines share")
    );

    server.write(&machine("n1", "missingVolumes", |_| {})).await;
    server.write(&machine("n2", "", |_| {})).await;
    let (message, _) = refused("n2").await;
    assert!(message.contains("n2 has no data of volume"), "{message}");
    let (_, hint) = refused("n9").await;
    assert!(
        hint.contains("katcall delete volume shop/web/data"),
        "{hint}"
    );
    assert!(stored(&server, VOLUME).forgotten.is_empty());
    let none = "/v1alpha1/n/shop/workloads/web/volumes/none/forget";
    assert_eq!(ask(&server, &server.admin, none, "n1").await.0, 404);
}

#[tokio::test]
async fn data_in_use_is_not_given_up_and_an_old_copy_is_when_its_time_is_over() {
    let server = waiting().await;
    // The volume is live: a missing disk does not end it.
    store(&server, VOLUME, &record(Some("n1"))).await;
    let removed = WriteOperation::Delete(keys::desired_removal("n1", VOLUME));
    server.write(&[removed]).await;
    let (status, body) = ask(&server, &server.deploy, FORGET, "n1").await;
    assert_eq!(status, 409, "{body}");
    let hint = body["hint"].as_str().unwrap();
    assert!(
        hint.contains("`katcall delete volume shop/web/data`"),
        "{hint}"
    );
    // The volume lives on n2, and n1 has an old copy.
    let until = "2026-01-02T00:00:00Z".parse().unwrap();
    let moved = VolumeRecord {
        kept: vec![KeptCopy {
            node: "n1".to_owned(),
            until,
            unsure: false,
        }],
        ..record(Some("n2"))
    };
    store(&server, VOLUME, &moved).await;
    let (status, body) = ask(&server, &server.deploy, FORGET, "n1").await;
    assert_eq!(status, 409, "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(
        message.contains("is kept until 2026-01-02T00:00:00Z"),
        "{message}"
    );
    server.write(&[removal("n1")]).await;
    assert_eq!(ask(&server, &server.deploy, FORGET, "n1").await.0, 200);
    let after = stored(&server, VOLUME);
    assert_eq!(
        (after.node.as_deref(), after.deleting, after.kept.len()),
        (Some("n2"), false, 1)
    );
    assert_eq!(after.forgotten.get("n1"), Some(&asked()));
}

#[tokio::test]
async fn a_version_that_was_read_earlier_is_not_given_up() {
    let server = waiting().await;
    let (_, item) = server.get(&server.admin, DATA).await;
    let version = item["metadata"]["resourceVersion"].as_str().unwrap();
    let deleting = VolumeRecord {
        deleting: true,
        ..record(Some("n2"))
    };
    store(&server, VOLUME, &deleting).await;
    let request = server.client(None).put(server.url(FORGET));
    let request = request
        .bearer_auth(&server.admin)
        .header("if-match", version)
        .json(&json!({"node": "n1"}));
    assert_eq!(request.send().await.unwrap().status(), 412);
    assert!(stored(&server, VOLUME).forgotten.is_empty());
}
