//! The fake passes the suite that the real systemd passes (`tests/systemd_real.rs`).

use std::path::Path;

use super::{conformance, fake::FakeManager};

#[tokio::test(start_paused = true)]
async fn the_fake_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let manager = FakeManager::with_folder("the system", folder.path());
    conformance::run(&manager, folder.path()).await.unwrap();
}

#[tokio::test]
async fn the_fake_runs_commands() {
    let manager = FakeManager::new("the system");
    conformance::run_commands(&manager).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_suite_notices_a_manager_that_differs() {
    // The manager reads its units from another folder, so it does not see the units that the suite
    // writes.
    let folder = tempfile::tempdir().unwrap();
    let manager = FakeManager::with_folder("the system", Path::new("/nonexistent"));
    conformance::run(&manager, folder.path()).await.unwrap_err();
}
