//! Machines with other versions.

use super::*;

/// Agents of the version before and of the one after report to the same leader.
#[tokio::test]
async fn reports_of_other_versions_are_taken() {
    let server = server().await;
    let leaf = server.node_leaf("n1");
    let instance = json!({
        "workloadName": "web", "namespace": "default", "instanceID": "web-aaaaa",
        "phase": "Running", "healthStatus": "healthy", "state": "running",
    });
    let older =
        json!({"nodeName": "n1", "nodeUID": support::NODE_UID, "workloadInstances": [instance]});
    let mut newer = older.clone();
    newer["fromLater"] = json!({"a": [1, "b"]});
    newer["conditions"] = json!([{"type": "Mood", "status": true, "colour": "blue"}]);
    newer["workloadInstances"][0]["phase"] = json!("Hibernating");
    newer["workloadInstances"][0]["healthStatus"] = json!("sleepy");
    newer["workloadInstances"][0]["temperature"] = json!(36.6);
    newer["assignmentSchema"] = json!(7);
    for report in [older, newer] {
        let url = server.url("/v1alpha1/nodes/n1/status");
        let client = server.client(Some(&leaf));
        let response = client.post(url).json(&report).send().await.unwrap();
        let (status, answer) = read(response).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{answer}");
    }
    // What is no word at all is still refused.
    let broken = json!({"nodeName": "n1", "nodeUID": support::NODE_UID, "workloadInstances": [{"phase": 7}]});
    let url = server.url("/v1alpha1/nodes/n1/status");
    let client = server.client(Some(&leaf));
    let response = client.post(url).json(&broken).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}
