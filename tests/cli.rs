//! The real katcall program against a fake API on a Unix socket, with snapshots of its exit code,
//! stdout and stderr.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "cli/fake_api.rs"]
mod fake_api;
#[path = "cli/fixtures.rs"]
mod fixtures;
#[path = "cli/run_katcall.rs"]
mod run_katcall;
#[path = "support/api.rs"]
mod support;

#[path = "cli/apply.rs"]
mod apply;
#[path = "cli/delete.rs"]
mod delete;
#[path = "cli/describe.rs"]
mod describe;
#[path = "cli/explain_jsonpath_wait_for.rs"]
mod explain_jsonpath_wait_for;
#[path = "cli/get.rs"]
mod get;
#[path = "cli/logins.rs"]
mod logins;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/namespaces_tokens_contexts.rs"]
mod namespaces_tokens_contexts;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/plan.rs"]
mod plan;
#[path = "cli/real_api.rs"]
mod real_api;
#[path = "cli/rollouts.rs"]
mod rollouts;
#[path = "cli/secrets.rs"]
mod secrets;
#[path = "cli/sessions.rs"]
mod sessions;
#[path = "cli/status.rs"]
mod status;
#[path = "cli/volume_move.rs"]
mod volume_move;
#[path = "cli/volume_removal.rs"]
mod volume_removal;
#[path = "cli/volumes.rs"]
mod volumes;
#[path = "cli/wait.rs"]
mod wait;
#[path = "cli/why.rs"]
mod why;
