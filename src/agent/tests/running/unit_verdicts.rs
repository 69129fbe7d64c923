//! The verdict on each state of a unit, by the workload's restart policy.

use super::*;
use crate::worker::unit_state::instance_phase::{
    JudgementInput, RunEnd, RunFault, StartAction, judge_instance,
};
use kat_systemd::{ActiveState, LoadState, ServiceResult, UnitStatus};
use kat_types::reason::Reason;

fn status(active: &str, sub: &str, result: &str, restarts: u32) -> UnitStatus {
    UnitStatus {
        load_state: LoadState::Loaded,
        active_state: ActiveState::from_word(active),
        sub_state: sub.into(),
        result: result.into(),
        restarts,
        exec_main_code: 1,
        exec_main_status: 7,
        exec_main_start_monotonic: 1_000_000,
        exec_main_exit_monotonic: 2_000_000,
        ..UnitStatus::default()
    }
}

#[test]
fn every_state_by_every_policy() {
    use InstancePhase::{Failed, Restarting, Running, Starting, Succeeded};
    use RestartCondition::{Always, MaxCount, Never};
    use StartAction::{Leave, Start, StartUncounted};
    let (usual, ended) = ((None, false), (None, true));
    let ours = (Some(RunFault::Hook), false);
    let lost = (Some(RunFault::LostStart), false);
    let table = [
        // Columns: active state, sub state, result, restarts, (fault, ended), policy, phase,
        // reason, action.
        (
            "active", "running", "success", 0, usual, Always, Running, "", Leave,
        ),
        (
            "active", "running", "success", 9, usual, Never, Running, "", Leave,
        ),
        (
            "reloading",
            "reload",
            "success",
            0,
            usual,
            Never,
            Running,
            "",
            Leave,
        ),
        (
            "activating",
            "start",
            "success",
            0,
            usual,
            Always,
            Starting,
            "",
            Leave,
        ),
        (
            "activating",
            "start",
            "success",
            2,
            usual,
            Always,
            Restarting,
            "CrashLoop",
            Leave,
        ),
        (
            "activating",
            "auto-restart",
            "exit-code",
            1,
            usual,
            Always,
            Restarting,
            "CrashLoop",
            Leave,
        ),
        (
            "activating",
            "auto-restart-queued",
            "exit-code",
            1,
            usual,
            MaxCount,
            Restarting,
            "CrashLoop",
            Leave,
        ),
        (
            "activating",
            "auto-restart",
            "exit-code",
            1,
            ours,
            MaxCount,
            Starting,
            "NetworkNotReady",
            Leave,
        ),
        (
            "activating",
            "start",
            "exit-code",
            1,
            ours,
            Always,
            Starting,
            "NetworkNotReady",
            Leave,
        ),
        (
            "activating",
            "auto-restart",
            "protocol",
            1,
            lost,
            Always,
            Starting,
            "StartInterrupted",
            Leave,
        ),
        (
            "failed",
            "failed",
            "protocol",
            1,
            lost,
            Never,
            Starting,
            "StartInterrupted",
            StartUncounted,
        ),
        (
            "deactivating",
            "stop-sigterm",
            "success",
            0,
            usual,
            Always,
            Restarting,
            "",
            Leave,
        ),
        (
            "failed",
            "failed",
            "exit-code",
            5,
            usual,
            MaxCount,
            Failed,
            "RestartsExhausted",
            Leave,
        ),
        (
            "failed",
            "failed",
            "exit-code",
            0,
            usual,
            Never,
            Failed,
            "ProgramFailed",
            Leave,
        ),
        (
            "failed",
            "failed",
            "exit-code",
            0,
            usual,
            Always,
            Failed,
            "Failed",
            StartUncounted,
        ),
        (
            "failed",
            "failed",
            "exit-code",
            5,
            ours,
            MaxCount,
            Starting,
            "NetworkNotReady",
            StartUncounted,
        ),
        (
            "failed",
            "failed",
            "exit-code",
            0,
            ours,
            Never,
            Starting,
            "NetworkNotReady",
            StartUncounted,
        ),
        (
            "inactive", "dead", "success", 0, usual, Never, Starting, "", Start,
        ),
        (
            "inactive", "dead", "success", 0, usual, Always, Starting, "", Start,
        ),
        (
            "inactive",
            "dead",
            "success",
            0,
            ended,
            Never,
            Succeeded,
            "ProgramEnded",
            Leave,
        ),
        (
            "inactive",
            "dead",
            "success",
            0,
            ended,
            MaxCount,
            Succeeded,
            "ProgramEnded",
            Leave,
        ),
        (
            "inactive", "dead", "success", 0, ended, Always, Starting, "", Start,
        ),
        (
            "something",
            "newer",
            "success",
            0,
            usual,
            Always,
            Starting,
            "",
            Start,
        ),
    ];
    for (active, sub, result, restarts, (fault, ended), policy, phase, reason, action) in table {
        let verdict = judge_instance(
            &with_policy(assignment(0, "web"), policy),
            &status(active, sub, result, restarts),
            JudgementInput {
                fault,
                end: None,
                ended,
                restarts,
                begun: false,
                now: 60_000_000,
            },
        );
        assert_eq!(
            (
                verdict.phase,
                Reason::word_or_empty(verdict.reason),
                verdict.action
            ),
            (phase, reason, action),
            "{active} {sub} {policy:?}"
        );
    }
}

#[test]
fn an_instance_of_a_job_runs_once_and_what_ended_it_is_told_apart() {
    let mut job = with_policy(assignment(0, "dump"), RestartCondition::Never);
    job.workload_type = kat_types::resource::WorkloadType::Job;
    let of = |active, sub, result, code, begun, fault| {
        let last = UnitStatus {
            exec_main_status: code,
            ..status(active, sub, result, 0)
        };
        let circumstances = JudgementInput {
            begun,
            fault,
            // A clean stop looks like this to an instance of a Service.
            ended: active == "inactive",
            now: 60_000_000,
            ..JudgementInput::default()
        };
        let verdict = judge_instance(&job, &last, circumstances);
        let reason = Reason::word_or_empty(verdict.reason);
        (verdict.phase, reason, verdict.action, verdict.exit_code)
    };
    use InstancePhase::{Failed, Running, Starting, Succeeded};
    use StartAction::{Leave, Start, StartUncounted};
    assert_eq!(of("active", "running", "success", 0, true, None).0, Running);
    assert_eq!(
        of("active", "exited", "success", 0, true, None),
        (Succeeded, "ProgramEnded", Leave, Some(0))
    );
    assert_eq!(
        of("failed", "failed", "exit-code", 3, true, None),
        (Failed, "ProgramFailed", Leave, Some(3))
    );
    assert_eq!(
        of("failed", "failed", "timeout", 143, true, None).1,
        "DeadlineExceeded"
    );
    // After a power cut, or a stop by hand.
    assert_eq!(
        of("inactive", "dead", "success", 0, true, None).1,
        "Interrupted"
    );
    let cut = judge_instance(
        &job,
        &status("inactive", "dead", "success", 0),
        JudgementInput {
            begun: true,
            ..JudgementInput::default()
        },
    );
    // Whether another instance takes its place is the leader's: backoffLimit decides about that.
    assert_eq!(
        cut.message,
        "it was stopped before its program ended, as by a power cut; this instance is not started again"
    );
    assert_eq!(
        of(
            "failed",
            "failed",
            "exit-code",
            1,
            true,
            Some(RunFault::Fenced)
        )
        .1,
        "Interrupted"
    );
    // Before its first start, and where the network could not be made for it.
    let (phase, _, action, _) = of("inactive", "dead", "success", 0, false, None);
    assert_eq!((phase, action), (Starting, Start));
    let (phase, _, action, _) = of(
        "failed",
        "failed",
        "exit-code",
        1,
        true,
        Some(RunFault::Hook),
    );
    assert_eq!((phase, action), (Starting, StartUncounted));
}

#[test]
fn a_program_that_crashed_often_runs_after_ten_quiet_seconds() {
    let web = assignment(0, "web");
    let at = |restarts, seconds: u64| {
        let circumstances = JudgementInput {
            restarts,
            now: 1_000_000 + seconds * 1_000_000,
            ..JudgementInput::default()
        };
        judge_instance(
            &web,
            &status("active", "running", "success", restarts),
            circumstances,
        )
    };
    assert_eq!(at(2, 0).phase, InstancePhase::Running);
    let early = at(3, 4);
    assert_eq!(
        (early.phase, early.again),
        (InstancePhase::Restarting, Some(Duration::from_secs(6)))
    );
    assert_eq!(at(3, 10).phase, InstancePhase::Running);
}

#[test]
fn the_refused_start_is_not_counted_and_a_signal_is_named() {
    let web = with_policy(assignment(0, "web"), RestartCondition::MaxCount);
    let mut last = status("failed", "failed", "exit-code", 6);
    let circumstances = JudgementInput {
        restarts: 6,
        ..JudgementInput::default()
    };
    let verdict = judge_instance(&web, &last, circumstances);
    assert_eq!((verdict.restarts, verdict.exit_code), (5, Some(7)));
    (last.exec_main_code, last.exec_main_status) = (2, 9);
    let verdict = judge_instance(&web, &last, JudgementInput::default());
    assert_eq!(verdict.exit_code, Some(137));
    assert_eq!(verdict.message, "the program was ended by signal 9");
    last.result = ServiceResult::OomKill;
    let verdict = judge_instance(&web, &last, JudgementInput::default());
    assert!(verdict.message.contains("more memory than its limit"));
}

#[test]
fn while_a_program_starts_again_the_verdict_says_how_it_ended() {
    let web = assignment(0, "web");
    // systemd forgets result and exit code as the next start begins.
    let mut starts = status("activating", "start", "success", 2);
    (starts.exec_main_code, starts.exec_main_status) = (0, 0);
    let end = RunEnd::of(&status("activating", "auto-restart", "exit-code", 1));
    let seen = JudgementInput {
        end: Some(&end),
        ..JudgementInput::default()
    };
    let verdict = judge_instance(&web, &starts, seen);
    assert_eq!(
        (verdict.phase, verdict.reason, verdict.exit_code),
        (InstancePhase::Restarting, Some(Reason::CrashLoop), Some(7))
    );
    assert_eq!(verdict.message, "the program ended with exit code 7");
    let verdict = judge_instance(&web, &starts, JudgementInput::default());
    assert_eq!(verdict.exit_code, None);
    assert_eq!(
        verdict.message,
        "it starts again; how it ended was not seen"
    );
    // The end that systemd knows counts.
    let waits = status("activating", "auto-restart", "signal", 2);
    assert_eq!(judge_instance(&web, &waits, seen).exit_code, Some(7));
    let killed = UnitStatus {
        exec_main_code: 2,
        exec_main_status: 9,
        ..waits
    };
    assert_eq!(judge_instance(&web, &killed, seen).exit_code, Some(137));
}
