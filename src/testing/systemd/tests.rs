//! The fake passes the suite that the real systemd passes (`tests/systemd_real.rs`).

use std::path::Path;

use super::{
    conformance,
    fake::{FakeManager, UnitBehaviour},
};
use kat_systemd::{ActiveState, UnitManager};

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

#[tokio::test(start_paused = true)]
async fn a_unit_is_live_until_its_program_has_ended() {
    let manager = FakeManager::new("the system");
    let unit = "kat-a.service";
    let behaviour = UnitBehaviour {
        remains: true,
        ..UnitBehaviour::default()
    };
    let limit = std::time::Duration::from_secs(1);
    manager.define(unit, behaviour);
    manager.start(unit, limit).await.unwrap();
    assert_eq!(manager.live(), [unit]);
    manager.exits(unit, 0);
    let state = manager.status(unit).await.unwrap().active_state;
    assert_eq!((state, manager.live().len()), (ActiveState::Active, 0));
    manager.stop(unit, limit).await.unwrap();
    manager.start(unit, limit).await.unwrap();
    manager.exceeds_runtime(unit);
    let status = manager.status(unit).await.unwrap();
    assert_eq!(status.active_state, ActiveState::Failed);
    assert_eq!(status.result.word(), "timeout");
}
