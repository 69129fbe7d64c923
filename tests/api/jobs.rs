//! Runs of Jobs through the API.

use reqwest::Method;
use serde_json::{Value, json};

use super::support::{Server, read};

const JOB: &str = "/v1alpha1/n/shop/workloads/dump";

fn workload() -> &'static str {
    "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: dump, namespace: shop}\nspec:\n  type: Job\n  source: {image: registry.example/dump:1}\n"
}

async fn apply(server: &Server, spec: &str) -> (u16, Value) {
    let job = format!("apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: {spec}\n");
    let files = [("workload.kat", workload()), ("job.kat", job.as_str())];
    let (status, body) = server.put("shop", "dump", &files).await;
    (status.as_u16(), body)
}

async fn run(server: &Server, token: &str, body: &Value) -> (u16, Value) {
    let path = format!("{JOB}/runs");
    let (status, body) = server.send_json(token, Method::POST, &path, body).await;
    (status.as_u16(), body)
}

async fn runs(server: &Server) -> Value {
    let (status, body) = server.get(&server.read, "/v1alpha1/n/shop/runs").await;
    assert_eq!(status.as_u16(), 200, "{body}");
    body["items"].clone()
}

#[tokio::test]
async fn a_run_by_hand_needs_the_right_to_deploy_and_is_one_at_a_time_under_forbid() {
    let server = Server::start().await;
    let (status, body) = apply(&server, "{schedule: '@daily'}").await;
    assert_eq!(status, 201, "{body}");
    let (status, _) = run(&server, &server.read, &json!({})).await;
    assert_eq!(status, 403);
    let (status, made) = run(&server, &server.deploy, &json!({"args": ["--full"]})).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["metadata"]["name"], "dump-1");
    assert_eq!(made["spec"]["cause"], "Manual");
    assert!(made["spec"]["by"].as_str().unwrap().starts_with("token:"));
    let (status, refused) = run(&server, &server.deploy, &json!({})).await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        refused["message"],
        "run `dump-1` is active, and concurrencyPolicy is Forbid"
    );
    // Values of arguments may be passwords: no list shows them.
    assert!(!runs(&server).await.to_string().contains("--full"));
    assert_eq!(runs(&server).await.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn arguments_that_no_program_can_have_and_unknown_fields_are_refused() {
    let server = Server::start().await;
    apply(&server, "{}").await;
    for (body, expected) in [
        (json!({"args": ["a\0b"]}), 400),
        (json!({"args": vec!["a"; 1001]}), 400),
        (json!({"args": ["a".repeat(65 << 10)]}), 413),
        (json!({"args": "one"}), 400),
        (json!({"image": "registry.example/other:1"}), 400),
    ] {
        let (status, answer) = run(&server, &server.deploy, &body).await;
        assert_eq!(status, expected, "{answer}");
    }
    assert_eq!(runs(&server).await, json!([]));
}

#[tokio::test]
async fn a_run_is_cancelled_once_and_its_end_is_the_leaders() {
    let server = Server::start().await;
    apply(&server, "{}").await;
    run(&server, &server.deploy, &json!({})).await;
    for outcome in ["updated", "unchanged"] {
        let path = format!("{JOB}/runs/1");
        let answer = server.call(&server.deploy, Method::DELETE, &path).await;
        let (status, body) = read(answer).await;
        assert_eq!((status.as_u16(), &body["outcome"]), (200, &json!(outcome)));
    }
    for (path, expected) in [("runs/2", 404), ("runs/first", 400)] {
        let path = format!("{JOB}/{path}");
        let answer = server.call(&server.deploy, Method::DELETE, &path).await;
        assert_eq!(read(answer).await.0.as_u16(), expected, "{path}");
    }
}

#[tokio::test]
async fn a_stop_of_a_job_suspends_it_and_changes_no_file() {
    let server = Server::start().await;
    apply(&server, "{schedule: '@daily'}").await;
    let path = format!("{JOB}/stop");
    for (method, outcome) in [
        (Method::PUT, "updated"),
        (Method::PUT, "unchanged"),
        (Method::DELETE, "updated"),
        (Method::DELETE, "unchanged"),
    ] {
        let answer = server.call(&server.deploy, method, &path).await;
        let (status, body) = read(answer).await;
        assert_eq!((status.as_u16(), &body["outcome"]), (200, &json!(outcome)));
        assert_eq!(body["metadata"]["generation"], 1, "{body}");
    }
    apply(&server, "{schedule: '@daily', suspend: true}").await;
    let answer = server.call(&server.deploy, Method::DELETE, &path).await;
    let (status, body) = read(answer).await;
    assert_eq!(status.as_u16(), 409, "{body}");
}

#[tokio::test]
async fn a_schedule_that_never_comes_and_an_unknown_time_zone_are_refused_at_the_apply() {
    let server = Server::start().await;
    for spec in [
        "{schedule: '0 0 30 2 *'}",
        "{schedule: '@daily', timeZone: Europe/Atlantis}",
        "{completions: PerMachine}",
        "{concurrencyPolicy: Overlap}",
    ] {
        let (status, body) = apply(&server, spec).await;
        assert_eq!(status, 400, "{spec}: {body}");
    }
}

#[tokio::test]
async fn runs_by_hand_overlap_under_allow_up_to_the_most() {
    let server = Server::start().await;
    let (status, body) = apply(&server, "{schedule: '@daily', concurrencyPolicy: Allow}").await;
    assert_eq!(status, 201, "{body}");
    for number in 1..=20 {
        let (status, made) = run(&server, &server.deploy, &json!({})).await;
        assert_eq!(status, 200, "{made}");
        assert_eq!(made["spec"]["number"], number);
    }
    let (status, refused) = run(&server, &server.deploy, &json!({})).await;
    assert_eq!(status, 409, "{refused}");
    assert_eq!(
        refused["message"],
        "`shop/dump` has 20 active runs, which is the most"
    );
}

#[tokio::test]
async fn a_run_by_hand_with_one_instance_on_each_machine_has_its_machines_when_it_begins() {
    let server = Server::start().await;
    let (status, body) = apply(&server, "{schedule: '@daily', completions: PerNode}").await;
    assert_eq!(status, 201, "{body}");
    let (status, made) = run(&server, &server.deploy, &json!({})).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["spec"]["completions"], 0);
    assert_eq!(made["status"]["phase"], "Active");
}

#[tokio::test]
async fn a_service_has_no_runs() {
    let server = Server::start().await;
    let text = super::support::web("shop", "dump", 1);
    server.put("shop", "dump", &super::files(&text)).await;
    let (status, body) = run(&server, &server.deploy, &json!({})).await;
    assert_eq!(status, 409, "{body}");
}
