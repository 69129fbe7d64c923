//! The real katcall program against a fake API on a Unix socket, with snapshots of its exit code,
//! stdout and stderr.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

#[path = "cli/fake.rs"]
mod fake;
#[path = "cli/fixtures.rs"]
mod fixtures;
#[path = "cli/program.rs"]
mod program;
#[path = "support/api.rs"]
mod support;

#[path = "cli/apply.rs"]
mod apply;
#[path = "cli/delete.rs"]
mod delete;
#[path = "cli/describe.rs"]
mod describe;
#[path = "cli/get.rs"]
mod get;
#[path = "cli/joy.rs"]
mod joy;
#[path = "cli/logins.rs"]
mod logins;
#[path = "cli/logs.rs"]
mod logs;
#[path = "cli/moves.rs"]
mod moves;
#[path = "cli/nodes.rs"]
mod nodes;
#[path = "cli/others.rs"]
mod others;
#[path = "cli/plan.rs"]
mod plan;
#[path = "cli/real.rs"]
mod real;
#[path = "cli/removals.rs"]
mod removals;
#[path = "cli/rollouts.rs"]
mod rollouts;
#[path = "cli/secrets.rs"]
mod secrets;
#[path = "cli/sessions.rs"]
mod sessions;
#[path = "cli/status.rs"]
mod status;
#[path = "cli/volumes.rs"]
mod volumes;
#[path = "cli/wait.rs"]
mod wait;
#[path = "cli/why.rs"]
mod why;
