//! Files of the workload's folder: stored and archived with the rest, shown by name, and part of
//! the template.

use reqwest::Method;
use serde_json::json;

use super::{
    WEB,
    preview::{cluster, settle},
    support::{Server, read, web},
};
use kat_bundle::{CARRIED, read_archive, unpack_carried};
use kat_types::{
    assignment::Assignment,
    store::{keys, records::WorkloadMeta},
};

/// `web` with the folder `conf/` mounted.
fn mounting() -> String {
    web("shop", "web", 1)
        + "    volumeMounts: [{name: conf, mountPath: /etc/web}]\n  volumes: [{name: conf, files: conf/}]\n"
}

async fn apply(server: &Server, conf: &[(&str, &str)]) -> u64 {
    let text = mounting();
    let files = [&[("workload.kat", text.as_str())], conf].concat();
    let (status, body) = server.put("shop", "web", &files).await;
    assert!(status.is_success(), "{body}");
    body["metadata"]["generation"].as_u64().unwrap()
}

fn meta(server: &Server) -> WorkloadMeta {
    let items = server.store.peek(&keys::workload_meta("shop", "web")).items;
    serde_json::from_slice(&items[0].value).unwrap()
}

/// Every stored file with its contents.
fn stored(server: &Server) -> Vec<(String, String)> {
    let items = server
        .store
        .peek(&keys::manifest("shop", "web", CARRIED))
        .items;
    let Some(packed) = items.first() else {
        return Vec::new();
    };
    let text = std::str::from_utf8(&packed.value).unwrap();
    let files = unpack_carried(text).unwrap().into_iter();
    files
        .map(|file| (file.path, String::from_utf8(file.bytes).unwrap()))
        .collect()
}

fn pairs(files: &[(&str, &str)]) -> Vec<(String, String)> {
    let files = files.iter();
    files
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect()
}

#[tokio::test]
async fn a_changed_file_is_another_version_and_a_rollback_brings_it_back() {
    let server = Server::start().await;
    let first = [("conf/a", "one\n"), ("conf/in/b", "two\n")];
    assert_eq!(apply(&server, &first).await, 1);
    assert_eq!(stored(&server), pairs(&first));
    let template = meta(&server).template_hash;
    assert_eq!(apply(&server, &first).await, 1, "the same files again");
    assert_eq!(apply(&server, &[("conf/a", "three\n")]).await, 2);
    assert_eq!(stored(&server), pairs(&[("conf/a", "three\n")]));
    assert_ne!(meta(&server).template_hash, template);

    let path = format!("{WEB}/rollback");
    let body = json!({"to": 1});
    let (status, body) = server
        .send_json(&server.deploy, Method::POST, &path, &body)
        .await;
    assert!(status.is_success(), "{body}");
    assert_eq!(stored(&server), pairs(&first));
    assert_eq!(meta(&server).template_hash, template);

    // An apply without files removes them.
    let text = web("shop", "web", 1);
    let (status, body) = server
        .put("shop", "web", &[("workload.kat", text.as_str())])
        .await;
    assert!(status.is_success(), "{body}");
    assert_eq!(stored(&server), []);
}

#[tokio::test]
async fn the_files_of_a_workload_are_read_by_their_paths() {
    let server = Server::start().await;
    apply(&server, &[("conf/a", "one\n"), ("conf/in/b", "two\n")]).await;
    let (status, list) = server.get(&server.admin, &format!("{WEB}/files")).await;
    assert_eq!(status, 200);
    assert_eq!(
        list["items"],
        json!(["workload.kat", "conf/a", "conf/in/b"])
    );
    let path = format!("{WEB}/files/conf%2Fin%2Fb");
    let response = server.call(&server.admin, Method::GET, &path).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.headers()["content-type"],
        "application/octet-stream"
    );
    assert_eq!(response.text().await.unwrap(), "two\n");
    for missing in ["conf%2Fc", "conf", CARRIED] {
        let path = format!("{WEB}/files/{missing}");
        let (status, _) = server.get(&server.admin, &path).await;
        assert_eq!(status, 404, "{missing}");
    }
}

/// Names and texts in the archive that `path` answers with, and its `ETag`.
async fn source(server: &Server, token: &str, path: &str) -> (Vec<(String, String)>, String) {
    let response = server.call(token, Method::GET, path).await;
    assert_eq!(response.status(), 200, "{path}");
    assert_eq!(response.headers()["content-type"], "application/gzip");
    let etag = response.headers()["etag"].to_str().unwrap().to_owned();
    let files = read_archive(&response.bytes().await.unwrap()).unwrap();
    let files = files.into_iter().map(|file| (file.name, file.text));
    (files.collect(), etag)
}

#[tokio::test]
async fn the_source_of_a_workload_is_what_was_applied_and_only_for_those_who_may_deploy() {
    let server = Server::start().await;
    let path = format!("{WEB}/source");
    let first = [("conf/a", "one\n"), ("conf/in/b", "two\n")];
    apply(&server, &first).await;
    let (files, _) = source(&server, &server.deploy, &path).await;
    let [(_, packed), (name, text)] = &files[..] else {
        panic!("{files:?}");
    };
    assert_eq!(
        (name.as_str(), text.as_str()),
        ("workload.kat", mounting().as_str())
    );
    assert!(
        text.contains("correct-horse"),
        "values are as they were written"
    );
    let unpacked = unpack_carried(packed).unwrap();
    assert_eq!(unpacked.len(), 2);

    apply(&server, &[("conf/a", "three\n")]).await;
    let earlier = source(&server, &server.admin, &format!("{path}?generation=1")).await;
    assert_eq!(earlier.0, files);
    let (present, etag) = source(&server, &server.admin, &path).await;
    assert_ne!(present, files);
    assert_eq!(earlier.1, etag, "it is the version of the workload");

    // The scope `read` and tokens of other namespaces get neither the files nor whether there are any.
    let (status, body) = server.get(&server.read, &path).await;
    assert_eq!(status, 403, "{body}");
    assert!(!body.to_string().contains("correct-horse"), "{body}");
    let elsewhere = "/v1alpha1/n/default/workloads/web/source";
    for path in [elsewhere, &format!("{elsewhere}?generation=1")] {
        let (status, body) = server.get(&server.deploy, path).await;
        assert_eq!(status, 403, "{body}");
    }
    for (query, expected) in [
        ("?generation=9", 404),
        ("?generation=x", 400),
        ("?other=1", 400),
    ] {
        let (status, body) = server.get(&server.admin, &format!("{path}{query}")).await;
        assert_eq!(status, expected, "{query}: {body}");
    }
    let missing = "/v1alpha1/n/shop/workloads/none/source";
    let (status, body) = server.get(&server.admin, missing).await;
    assert_eq!(status, 404, "{body}");

    // The ETag is good for an apply until somebody else has written.
    let text = mounting();
    let files = |value| [("workload.kat", text.as_str()), ("conf/a", value)];
    let matching = [("if-match", etag.as_str())];
    for (value, expected) in [("four\n", 200), ("five\n", 412)] {
        let response = server
            .send(&server.admin, Method::PUT, WEB, &files(value), &matching)
            .await;
        let (status, body) = read(response).await;
        assert_eq!(status, expected, "{body}");
    }
}

#[tokio::test]
async fn what_nothing_mounts_and_what_is_missing_is_refused() {
    let server = Server::start().await;
    let text = mounting();
    for (files, words) in [
        (
            vec![("conf/a", "1"), ("notes", "2")],
            "notes: no volume mounts it",
        ),
        (vec![], "no file lies in `conf/`"),
    ] {
        let files = [vec![("workload.kat", text.as_str())], files].concat();
        let (status, body) = server.put("shop", "web", &files).await;
        assert_eq!(status, 400, "{body}");
        assert!(body["message"].as_str().unwrap().contains(words), "{body}");
    }
}

#[tokio::test]
async fn a_plan_shows_how_they_change_and_an_instance_has_them() {
    let server = cluster().await;
    apply(&server, &[("conf/a", "one\ntwo\n")]).await;
    settle(&server).await;
    let assignments = server.store.peek(keys::NODE_DESIRED).items;
    let assignments = assignments
        .iter()
        .filter(|item| item.key.contains("/instances/"));
    let assignments: Vec<Assignment> = assignments
        .map(|item| serde_json::from_slice(&item.value).unwrap())
        .collect();
    let [assignment] = &assignments[..] else {
        panic!("{assignments:?}");
    };
    let carried = unpack_carried(assignment.carried.as_ref().unwrap()).unwrap();
    assert_eq!(carried[0].bytes, b"one\ntwo\n");
    assert_eq!(assignment.schema, 5);

    let text = mounting();
    let files = [
        ("workload.kat", text.as_str()),
        ("conf/a", "one\nthree\n"),
        ("conf/b", "new\n"),
    ];
    let path = format!("{WEB}?dryRun=true");
    let response = server
        .send(&server.admin, Method::PUT, &path, &files, &[])
        .await;
    let (status, body) = read(response).await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["preview"]["templateChanged"], true);
    let expected = json!([
        {"path": "conf/a", "diff": "--- conf/a\n+++ conf/a\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"},
        {"path": "conf/b", "diff": "--- /dev/null\n+++ conf/b\n@@ -0,0 +1 @@\n+new\n"},
    ]);
    assert_eq!(body["preview"]["files"], expected);
    let replaced = &body["preview"]["instances"][0]["reason"];
    assert_eq!(replaced, "what it is made of changes");
}
