//! Sends the same bad input to the API: its answer has the parser's errors, and nothing is stored.

use serde_json::Value;

use crate::support::{Server, read};
use kat_bundle::Diagnostic;

const PATH: &str = "/v1alpha1/n/default/workloads/web";

/// Sends an archive that has the errors `found`.
#[track_caller]
pub(crate) fn refused(archive: Vec<u8>, found: &[Diagnostic]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (status, body) = runtime.block_on(async {
        let server = Server::start().await;
        let before = server.stored();
        let request = server
            .client(None)
            .put(server.url(PATH))
            .bearer_auth(&server.admin)
            .header("content-type", "application/gzip")
            .body(archive);
        let answer = read(request.send().await.unwrap()).await;
        assert!(!before.is_empty());
        assert_eq!(server.stored(), before);
        server.stop().await;
        answer
    });
    assert!(matches!(status.as_u16(), 400 | 413), "{status} {body}");
    assert!(!found.is_empty());
    if status == 413 && body["details"].is_null() {
        // The body was too large, so none of it was read.
        let message = body["message"].as_str().unwrap_or_default();
        assert!(message.contains("1048576"), "{body}");
        return;
    }
    assert_eq!(body["details"], serde_json::to_value(found).unwrap());
    let message = body["message"].as_str().unwrap_or_default();
    assert!(message.contains(&found[0].message), "{message}");
    assert!(body["error"].as_str().is_some(), "{body}");
    assert!(matches!(body["details"][0]["class"], Value::String(_)));
}
