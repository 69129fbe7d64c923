use super::*;
use crate::worker::unit_state::instance_phase::{JudgementInput, judge_instance};
use kat_systemd::{LoadState, ServiceResult};

fn status(active: &str, sub: &str) -> UnitStatus {
    UnitStatus {
        load_state: LoadState::Loaded,
        active_state: ActiveState::from_word(active),
        sub_state: sub.into(),
        result: ServiceResult::Success,
        ..UnitStatus::default()
    }
}

fn failed(active: &str, sub: &str, code: i32) -> UnitStatus {
    UnitStatus {
        result: ServiceResult::ExitCode,
        exec_main_code: 1,
        exec_main_status: code,
        ..status(active, sub)
    }
}

fn other(kind: OtherKind, name: &str, status: UnitStatus) -> SidecarContainer {
    SidecarContainer {
        kind,
        name: name.to_owned(),
        image: "example/web:1".to_owned(),
        unit: format!("kat-default-web-ab12c_{}-{name}.service", kind.word()),
        status,
        words: String::new(),
        not_started: false,
    }
}

fn assignment(condition: &str) -> Assignment {
    let text = include_str!("../../../../../tests/render/other-containers/assignment.json");
    let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
    value["restartPolicy"]["condition"] = condition.into();
    serde_json::from_value(value).unwrap()
}

fn verdict(condition: &str, main: &UnitStatus, beside: &InstanceSidecars) -> InstanceVerdict {
    let assignment = assignment(condition);
    let now = 60_000_000;
    let circumstances = JudgementInput {
        now,
        ..JudgementInput::default()
    };
    let verdict = judge_instance(&assignment, main, circumstances);
    beside.adjust_verdict(&assignment, main, verdict, now)
}

fn of(verdict: &InstanceVerdict) -> (InstancePhase, Option<Reason>, StartAction) {
    (verdict.phase, verdict.reason, verdict.action)
}

#[test]
fn an_instance_waits_for_its_init_containers() {
    let waiting = status("inactive", "dead");
    let ended = other(OtherKind::Init, "first", status("active", "exited"));
    let runs = other(OtherKind::Init, "second", status("activating", "start"));
    let beside = InstanceSidecars {
        others: vec![ended.clone(), runs],
        network: None,
    };
    let found = verdict("Always", &waiting, &beside);
    assert_eq!(
        of(&found),
        (
            InstancePhase::Starting,
            Some(Reason::InitContainerRunning),
            StartAction::Start
        )
    );
    assert!(found.message.contains("second"), "{}", found.message);
    // All init containers have ended, so the main container is next.
    let beside = InstanceSidecars {
        others: vec![ended],
        network: None,
    };
    let found = verdict("Always", &waiting, &beside);
    assert_eq!(
        of(&found),
        (InstancePhase::Starting, None, StartAction::Start)
    );
}

#[test]
fn a_failed_init_container_is_named_with_its_exit_code() {
    let waiting = status("inactive", "dead");
    let with = |status| InstanceSidecars {
        others: vec![other(OtherKind::Init, "migrate", status)],
        network: None,
    };
    let again = with(failed("activating", "auto-restart", 3));
    let found = verdict("Always", &waiting, &again);
    assert_eq!(found.phase, InstancePhase::Restarting);
    assert_eq!(
        (found.reason, found.exit_code),
        (Some(Reason::InitContainerFailed), Some(3))
    );
    assert!(
        found.message.contains("init container migrate") && found.message.contains("exit code 3"),
        "{}",
        found.message
    );
    let over = with(failed("failed", "failed", 3));
    for (condition, action) in [
        ("Never", StartAction::Leave),
        ("MaxCount", StartAction::Leave),
        ("Always", StartAction::StartUncounted),
    ] {
        let found = verdict(condition, &waiting, &over);
        assert_eq!(
            of(&found),
            (
                InstancePhase::Failed,
                Some(Reason::InitContainerFailed),
                action
            )
        );
    }
    // An earlier init container that was stopped does not hide the failure; it would otherwise run
    // again and again.
    let mut after = over.clone();
    after.others.insert(
        0,
        other(OtherKind::Init, "first", status("inactive", "dead")),
    );
    let found = verdict("Never", &waiting, &after);
    assert_eq!(
        of(&found),
        (
            InstancePhase::Failed,
            Some(Reason::InitContainerFailed),
            StartAction::Leave
        )
    );
    assert!(found.message.contains("migrate"), "{}", found.message);
    // A main container that has run is judged by its own state.
    let main = failed("activating", "auto-restart", 1);
    assert_eq!(
        verdict("Always", &main, &over).reason,
        Some(Reason::CrashLoop)
    );
}

#[test]
fn a_sidecar_that_does_not_start_is_named_before_the_main_one_runs() {
    let starting = status("activating", "start");
    for (state, reason) in [
        (
            failed("activating", "auto-restart", 127),
            Some(Reason::SidecarNotRunning),
        ),
        (
            failed("failed", "failed", 127),
            Some(Reason::SidecarNotRunning),
        ),
        (status("activating", "start"), None),
        (status("inactive", "dead"), None),
    ] {
        let beside = InstanceSidecars {
            others: vec![other(OtherKind::Sidecar, "proxy", state)],
            network: None,
        };
        let found = verdict("Always", &starting, &beside);
        assert_eq!(
            (found.phase, found.reason),
            (InstancePhase::Starting, reason)
        );
    }
}

#[test]
fn an_instance_is_whole_when_its_sidecars_run() {
    let main = status("active", "running");
    let with = |status| InstanceSidecars {
        others: vec![
            other(OtherKind::Init, "migrate", self::status("active", "exited")),
            other(OtherKind::Sidecar, "proxy", status),
        ],
        network: None,
    };
    let found = verdict("Always", &main, &with(status("active", "running")));
    assert_eq!((found.phase, found.beside), (InstancePhase::Running, None));
    for state in [
        failed("activating", "auto-restart", 1),
        status("activating", "start"),
        status("inactive", "dead"),
        failed("failed", "failed", 1),
    ] {
        let found = verdict("Always", &main, &with(state));
        assert_eq!(found.phase, InstancePhase::Running);
        assert_eq!(
            (found.beside, found.action),
            (Some(Reason::SidecarNotRunning), StartAction::Leave)
        );
        assert!(found.message.contains("sidecar proxy"), "{}", found.message);
    }
    // A sidecar with several failures counts as running only after a while.
    let often = |began| UnitStatus {
        restarts: 4,
        exec_main_start_monotonic: began,
        ..status("active", "running")
    };
    let found = verdict("Always", &main, &with(often(59_000_000)));
    assert_eq!(found.beside, Some(Reason::SidecarNotRunning));
    assert_eq!(found.again, Some(Duration::from_secs(9)));
    let found = verdict("Always", &main, &with(often(40_000_000)));
    assert_eq!(found.beside, None);
}

#[test]
fn a_network_that_is_not_held_is_told() {
    let waiting = status("inactive", "dead");
    let with = |status, words: &str| InstanceSidecars {
        others: vec![other(
            OtherKind::Sidecar,
            "proxy",
            self::status("inactive", "dead"),
        )],
        network: Some((status, words.to_owned())),
    };
    let refused = with(
        failed("activating", "auto-restart", 126),
        "no such instance",
    );
    let found = verdict("Always", &waiting, &refused);
    assert_eq!(
        (found.reason, found.message.as_str()),
        (Some(Reason::NetworkNotReady), "no such instance")
    );
    let starts = with(status("activating", "start"), "");
    assert_eq!(verdict("Always", &waiting, &starts).reason, None);
    let skipped = UnitStatus {
        result: ServiceResult::ExecCondition,
        ..status("inactive", "dead")
    };
    let found = verdict("Always", &waiting, &with(skipped, ""));
    assert_eq!(found.reason, Some(Reason::NetworkFilesMissing));
}

#[test]
fn a_sidecar_that_failed_once_counts_when_it_has_run_for_a_moment() {
    let main = status("active", "running");
    let now = 60_000_000;
    for (restarts, up, well) in [
        (0, 0, true),
        (1, 1_000_000, false),
        (1, 4_000_000, true),
        (4, 4_000_000, false),
        (4, 11_000_000, true),
    ] {
        let beside = InstanceSidecars {
            others: vec![other(
                OtherKind::Sidecar,
                "proxy",
                UnitStatus {
                    restarts,
                    exec_main_start_monotonic: now - up,
                    ..status("active", "running")
                },
            )],
            network: None,
        };
        let found = verdict("Always", &main, &beside);
        assert_eq!(found.beside.is_none(), well, "{restarts} {up}");
        assert_eq!(found.again.is_some(), !well, "{restarts} {up}");
    }
}
