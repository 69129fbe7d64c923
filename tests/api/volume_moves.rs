//! Moves of volumes through the API: permissions, refusals and their reasons, and what is stored.

use super::{
    volumes::{apply, delete, event_of, meta, record, store, stored, user_of_data},
    *,
};
use kat_types::{
    store::records::{NodeRegistration, VolumeRecord},
    volumes::{KeptCopy, VolumeMove},
};

const MOVE: &str = "/v1alpha1/n/shop/workloads/web/volumes/data/move";

fn machine(name: &str, change: impl FnOnce(&mut Value)) -> [WriteOperation; 2] {
    let registration = NodeRegistration::new(name, jiff::Timestamp::UNIX_EPOCH);
    let mut status = json!({"schema": 1, "phase": "Ready", "assignmentSchema": 5,
        "allocatable": {"cpu": "4", "memory": "8Gi"}});
    change(&mut status);
    [
        put(keys::registration(name), &registration),
        put(keys::node_status(name), &status),
    ]
}

/// Machines n1 to n3, and volumes of a deleted workload on n1.
async fn cluster() -> Server {
    let server = Server::start().await;
    for name in ["n1", "n2", "n3"] {
        server.write(&machine(name, |_| {})).await;
    }
    store(&server, "shop/web/data", &record(Some("n1"))).await;
    server
}

async fn ask(server: &Server, token: &str, path: &str, to: &str) -> (u16, Value) {
    let body = json!({ "to": to });
    let call = server.send_json(token, Method::PUT, path, &body);
    let (status, body) = call.await;
    (status.as_u16(), body)
}

#[tokio::test]
async fn a_move_is_written_once_with_all_that_goes_along() {
    let server = cluster().await;
    store(&server, "shop/web/logs", &record(Some("n1"))).await;
    store(&server, "shop/web/far", &record(Some("n2"))).await;
    let (status, body) = ask(&server, &server.read, MOVE, "n2").await;
    assert_eq!(status, 403, "{body}");
    let (status, body) = ask(&server, &server.deploy, MOVE, "n3").await;
    assert_eq!(
        (status, &body["outcome"]),
        (200, &json!("moving")),
        "{body}"
    );
    let moving = stored(&server, "shop/web/data").moving.unwrap();
    assert_eq!((moving.from.as_str(), moving.to.as_str()), ("n1", "n3"));
    assert_eq!(
        stored(&server, "shop/web/logs").moving,
        Some(moving.clone())
    );
    assert_eq!(stored(&server, "shop/web/far").moving, None);
    let (_, item) = server
        .get(&server.read, "/v1alpha1/n/shop/workloads/web/volumes/data")
        .await;
    assert_eq!(item["status"]["phase"], "Moving");
    assert_eq!(item["status"]["move"]["to"], "n3");
    assert_eq!(item["status"]["move"]["id"], moving.id.as_str());
    assert_eq!(item["status"]["node"], "n1");
    // The same move again is the same request. A move elsewhere conflicts, and so does a removal.
    let (status, body) = ask(&server, &server.admin, MOVE, "n3").await;
    assert_eq!((status, &body["outcome"]), (200, &json!("unchanged")));
    assert_eq!(stored(&server, "shop/web/data").moving, Some(moving));
    let (status, body) = ask(&server, &server.admin, MOVE, "n2").await;
    assert_eq!(
        (status, &body["message"]),
        (409, &json!("volume `shop/web/data` is on its way to n3"))
    );
    let path = MOVE.trim_end_matches("/move");
    let (status, body) = delete(&server, &server.admin, path).await;
    assert_eq!(status, 409, "{body}");
    assert_eq!(event_of(&server, "VolumeMoveStarted").await.len(), 1);

    let (status, _) = delete(&server, &server.read, MOVE).await;
    assert_eq!(status, 403);
    let (status, body) = delete(&server, &server.deploy, MOVE).await;
    assert_eq!(
        (status, &body["outcome"]),
        (200, &json!("cancelled")),
        "{body}"
    );
    for volume in ["shop/web/data", "shop/web/logs"] {
        assert_eq!(stored(&server, volume), record(Some("n1")));
    }
    let (status, body) = delete(&server, &server.deploy, MOVE).await;
    assert_eq!((status, &body["outcome"]), (200, &json!("unchanged")));
}

#[tokio::test]
async fn what_can_not_move_is_refused_in_words() {
    let server = cluster().await;
    let shared = machine("n4", |status| status["volumeShared"] = json!(true));
    server.write(&shared).await;
    let old = machine("n5", |status| status["assignmentSchema"] = json!(4));
    server.write(&old).await;
    let lost = machine("n6", |status| status["phase"] = json!("NotReady"));
    server.write(&lost).await;
    let mut drained = NodeRegistration::new("n7", jiff::Timestamp::UNIX_EPOCH);
    drained.draining = true;
    server.write(&machine("n7", |_| {})).await;
    server
        .write(&[put(keys::registration("n7"), &drained)])
        .await;
    let (status, body) = ask(&server, &server.admin, MOVE, "n1").await;
    assert_eq!((status, &body["outcome"]), (200, &json!("unchanged")));
    for (to, status, word) in [
        ("n9", 404, "node `n9` does not exist"),
        ("n4", 409, "storage that machines share"),
        (
            "n5",
            409,
            "n5 runs a version of KAT that does not move volumes",
        ),
        ("n6", 409, "n6 is not ready"),
        ("n7", 409, "n7 is being drained"),
    ] {
        let (found, body) = ask(&server, &server.admin, MOVE, to).await;
        assert_eq!(found, status, "{to}: {body}");
        assert!(
            body["message"].as_str().unwrap().contains(word),
            "{to}: {body}"
        );
    }
    let host = VolumeRecord {
        host_path: Some("/srv/x".to_owned()),
        ..record(Some("n1"))
    };
    let cases = [
        ("shared", record(None), "there is nothing to move"),
        (
            "new",
            VolumeRecord {
                made: false,
                ..record(Some("n1"))
            },
            "nothing has run with volume",
        ),
        (
            "gone",
            VolumeRecord {
                deleting: true,
                ..record(Some("n1"))
            },
            "is being removed",
        ),
        (
            "lost",
            record(Some("n6")),
            "lies on n6, which does not answer",
        ),
        (
            "path@host.0",
            host,
            "is the path /srv/x of n1, which KAT does not move",
        ),
    ];
    for (number, (name, record, word)) in cases.into_iter().enumerate() {
        let workload = format!("w{number}");
        store(&server, &format!("shop/{workload}/{name}"), &record).await;
        let path = format!("/v1alpha1/n/shop/workloads/{workload}/volumes/{name}/move");
        let (status, body) = ask(&server, &server.admin, &path, "n2").await;
        assert_eq!(status, 409, "{name}: {body}");
        assert!(
            body["message"].as_str().unwrap().contains(word),
            "{name}: {body}"
        );
    }
    assert_eq!(stored(&server, "shop/web/data"), record(Some("n1")));
    let (status, _) = ask(&server, &server.admin, &MOVE.replace("data", "none"), "n2").await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn a_cancelled_move_that_is_already_placing_keeps_the_copy() {
    let server = cluster().await;
    let placing = VolumeRecord {
        moving: Some(VolumeMove {
            id: "one".to_owned(),
            from: "n1".to_owned(),
            to: "n2".to_owned(),
            asked: jiff::Timestamp::UNIX_EPOCH,
            placing: true,
            replaced: None,
        }),
        kept: vec![KeptCopy {
            node: "n1".to_owned(),
            until: jiff::Timestamp::UNIX_EPOCH,
            unsure: false,
        }],
        ..record(Some("n2"))
    };
    let says = |phase: &str| {
        let report = json!([{"volume": "shop/web/data", "id": "one", "phase": phase}]);
        machine("n2", |status| status["volumeMoves"] = report)
    };
    for placed in [true, false] {
        let phase = if placed { "Placed" } else { "Copied" };
        server.write(&says(phase)).await;
        store(&server, "shop/web/data", &placing).await;
        let (status, body) = delete(&server, &server.admin, MOVE).await;
        assert_eq!(status, 200, "{body}");
        let now = stored(&server, "shop/web/data");
        assert_eq!((now.node.as_deref(), now.moving), (Some("n1"), None));
        let kept: Vec<_> = now
            .kept
            .iter()
            .map(|copy| (copy.node.as_str(), copy.unsure))
            .collect();
        // A kept copy that may not exist is stored as unsure and is not shown.
        assert_eq!(kept, [("n2", !placed)]);
        let path = MOVE.trim_end_matches("/move");
        let (_, item) = server.get(&server.read, path).await;
        let shown = item["status"]["kept"].as_array().map_or(0, Vec::len);
        assert_eq!(shown, usize::from(placed), "{item}");
    }
    // The machine with the original data has left the cluster. The move can only be cancelled once
    // the copy is lost.
    let mut stuck = placing.clone();
    stuck.moving.as_mut().unwrap().from = "n9".to_owned();
    store(&server, "shop/web/data", &stuck).await;
    let (status, body) = delete(&server, &server.admin, MOVE).await;
    assert_eq!(status, 409, "{body}");
    server.write(&says("Lost")).await;
    let (status, body) = delete(&server, &server.admin, MOVE).await;
    assert_eq!(status, 200, "{body}");
    let now = stored(&server, "shop/web/data");
    assert_eq!((now.node.as_deref(), now.moving), (Some("n2"), None));
}

#[tokio::test]
async fn what_would_not_come_back_as_it_was_stays() {
    let server = cluster().await;
    apply(&server, "shop", "web").await;
    let present = meta(&server, "shop").template_hash;
    let refused = |body: &Value, word: &str, hint: &str| {
        assert!(body["message"].as_str().unwrap().contains(word), "{body}");
        assert!(body["hint"].as_str().unwrap().contains(hint), "{body}");
    };
    server.write(&[user_of_data("earlier")]).await;
    let (status, body) = ask(&server, &server.admin, MOVE, "n2").await;
    assert_eq!(status, 409, "{body}");
    refused(
        &body,
        "web-abcde is of another version",
        "finish the rollout or roll back first",
    );
    let env = "      - {name: A, valueFrom: {secret: {name: db, key: A}}}\n";
    let text = super::support::web("shop", "web", 1) + env;
    let (status, body) = server.put("shop", "web", &files(&text)).await;
    assert!(status.is_success(), "{body}");
    let lacking = meta(&server, "shop").template_hash;
    server.write(&[user_of_data(&lacking)]).await;
    let (status, body) = ask(&server, &server.admin, MOVE, "n2").await;
    assert_eq!(status, 409, "{body}");
    refused(&body, "there is no secret db", "roll back first");
    assert_eq!(stored(&server, "shop/web/data"), record(Some("n1")));
    apply(&server, "shop", "web").await;
    server.write(&[user_of_data(&present)]).await;
    // The instance could come back with this template, but these machines have no overlay.
    let (status, body) = ask(&server, &server.admin, MOVE, "n2").await;
    assert_eq!(status, 409, "{body}");
    refused(&body, "1 without a free address", "make room on n2");
}

#[tokio::test]
async fn one_that_an_older_leader_has_started_is_not_taken_from_where_it_runs() {
    let server = cluster().await;
    apply(&server, "shop", "web").await;
    let moving = |placing| VolumeRecord {
        moving: Some(VolumeMove {
            id: "one".to_owned(),
            from: if placing { "n2" } else { "n1" }.to_owned(),
            to: if placing { "n1" } else { "n2" }.to_owned(),
            asked: jiff::Timestamp::UNIX_EPOCH,
            placing,
            replaced: None,
        }),
        ..record(Some("n1"))
    };
    server.write(&[user_of_data("h")]).await;
    let wish = |to: &str, place| {
        let wish = json!({"schema": 1, "id": "one", "from": "n1", "to": to, "index": 0,
            "place": place});
        put(keys::desired_move(to, "shop/web/data"), &wish)
    };
    server.write(&[wish("n2", false)]).await;
    store(&server, "shop/web/data", &moving(false)).await;
    let (status, body) = delete(&server, &server.admin, MOVE).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(stored(&server, "shop/web/data"), record(Some("n1")));
    // The copy is already the data, so the move cannot be cancelled before the copy is in its
    // place.
    server.write(&[wish("n1", true)]).await;
    store(&server, "shop/web/data", &moving(true)).await;
    let (status, body) = delete(&server, &server.admin, MOVE).await;
    assert_eq!(status, 409, "{body}");
    let report = json!([{"volume": "shop/web/data", "id": "one", "phase": "Placed"}]);
    let placed = machine("n1", |status| status["volumeMoves"] = report);
    server.write(&placed).await;
    let (status, body) = delete(&server, &server.admin, MOVE).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(stored(&server, "shop/web/data"), record(Some("n1")));
}
