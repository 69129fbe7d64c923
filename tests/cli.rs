//! The real katcall program against a fake API on a Unix socket, with snapshots of its exit code,
//! stdout and stderr.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "cli/support/fake_api.rs"]
mod fake_api;
#[path = "cli/support/fixtures.rs"]
mod fixtures;
#[path = "cli/support/run_katcall.rs"]
mod run_katcall;
#[path = "support/api.rs"]
mod support;

#[path = "cli/apply.rs"]
mod apply;
#[path = "cli/objects/authorities.rs"]
mod authorities;
#[path = "cli/reading/columns.rs"]
mod columns;
#[path = "cli/completion.rs"]
mod completion;
#[path = "cli/delete.rs"]
mod delete;
#[path = "cli/reading/describe.rs"]
mod describe;
#[path = "cli/documentation.rs"]
mod documentation;
#[path = "cli/explain_jsonpath_wait_for.rs"]
mod explain_jsonpath_wait_for;
#[path = "cli/reading/get.rs"]
mod get;
#[path = "cli/objects/logins.rs"]
mod logins;
#[path = "cli/reading/logs.rs"]
mod logs;
#[path = "cli/objects/namespaces_tokens_contexts.rs"]
mod namespaces_tokens_contexts;
#[path = "cli/objects/nodes.rs"]
mod nodes;
#[path = "cli/older_server.rs"]
mod older_server;
#[path = "cli/reading/plan.rs"]
mod plan;
#[path = "cli/real_api.rs"]
mod real_api;
#[path = "cli/references.rs"]
mod references;
#[path = "cli/objects/rollouts.rs"]
mod rollouts;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/screens.rs"]
mod screens;
#[path = "cli/objects/secrets.rs"]
mod secrets;
#[path = "cli/sessions.rs"]
mod sessions;
#[path = "cli/source.rs"]
mod source;
#[path = "cli/reading/status.rs"]
mod status;
#[path = "cli/reading/status_table.rs"]
mod status_table;
#[path = "cli/objects/volume_forget.rs"]
mod volume_forget;
#[path = "cli/objects/volume_move.rs"]
mod volume_move;
#[path = "cli/objects/volume_removal.rs"]
mod volume_removal;
#[path = "cli/objects/volumes.rs"]
mod volumes;
#[path = "cli/wait.rs"]
mod wait;
#[path = "cli/reading/why.rs"]
mod why;
#[path = "cli/reading/worker.rs"]
mod worker;
