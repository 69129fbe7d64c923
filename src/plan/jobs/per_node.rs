//! Runs with one instance on each machine (`completions: PerNode`): which machines a run has, and when
//! each of them has done its part. Pure.
//!
//! The machines are chosen and written into the run's record when the run begins; a machine that joins
//! later is not part of it. Each machine has failures and pauses of its own, and the run is over when
//! every machine has succeeded or will not: a machine with too many failures does not keep the others
//! from their part.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::attempts::{last_failure_in_words, pause_until};
use crate::{
    Snapshot,
    scheduling::schedule::{has_labels, is_tolerated},
};
use kat_types::{
    api::{NodePhase, Taint},
    reason::Reason,
    resource::WorkloadSpec,
    store::{
        jobs::{JobRunRecord, RunMachine, RunPhase},
        records::NodeStatusRecord,
        snapshot::NodeEntry,
    },
};

/// Most machines that a message names.
const MOST_NAMED: usize = 5;

/// A machine of a run as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MachineState {
    /// It answers, and may get an instance.
    Open,
    /// It has an instance of another run, which has to end first.
    Occupied,
    /// It has a taint that the Job does not tolerate, and gets no new instance: it is cordoned.
    Tainted,
    /// It does not answer.
    Away,
    /// It is no machine of the cluster.
    Removed,
}

/// The machines that a run begins on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RunMachines {
    /// Those that match and take work, in the order of their names.
    Known {
        machines: Vec<RunMachine>,
        /// Those that match and take no work now.
        left_out: Vec<String>,
    },
    /// Machines match, and none of them takes work now; the text says so.
    NoneYet(String),
    /// No machine matches.
    NoMatch,
}

/// The machines of a run that begins now.
pub(super) fn machines_at_start(
    snapshot: &Snapshot,
    statuses: &BTreeMap<String, NodeStatusRecord>,
    spec: &WorkloadSpec,
) -> RunMachines {
    let matching = matching_machines(snapshot, spec);
    let mut machines = Vec::new();
    let mut left_out = Vec::new();
    for (name, node) in matching {
        let answers = statuses
            .get(name)
            .is_some_and(|status| status.phase == NodePhase::Ready);
        let registration = &node.registration.value;
        let cordoned = !is_tolerated(spec, &registration.taints);
        match answers && !cordoned && !registration.draining && !registration.deleting {
            true => machines.push(RunMachine::new(name)),
            false => left_out.push(name.clone()),
        }
    }
    match (machines.is_empty(), left_out.is_empty()) {
        (true, true) => RunMachines::NoMatch,
        (true, false) => {
            let names = left_out.iter().map(String::as_str);
            RunMachines::NoneYet(format!(
                "no machine that matches takes work now: {}",
                named(names)
            ))
        }
        (false, _) => RunMachines::Known { machines, left_out },
    }
}

/// The machines that match a Job.
pub(super) fn matching_machines<'s>(
    snapshot: &'s Snapshot,
    spec: &WorkloadSpec,
) -> impl Iterator<Item = (&'s String, &'s NodeEntry)> {
    // A cordon ends, as a drain does: it keeps a machine from a run, and does not unmatch it.
    snapshot.nodes.iter().filter(move |(_, node)| {
        let registration = &node.registration.value;
        let mut lasting = registration.taints.clone();
        lasting.retain(|taint| taint.key != Taint::CORDON_KEY);
        has_labels(spec, &registration.labels) && is_tolerated(spec, &lasting)
    })
}

/// Notes the machines that left the cluster before an instance had succeeded there.
pub(super) fn note_removed(record: &mut JobRunRecord, states: &[MachineState]) {
    let JobRunRecord {
        machines,
        succeeded,
        ..
    } = record;
    let machines = machines.iter_mut().flatten();
    for ((index, machine), state) in (0_u32..).zip(machines).zip(states) {
        if *state == MachineState::Removed && !succeeded.contains(&index) {
            machine.removed = true;
        }
    }
}

/// Counts a failure for the machine with this index.
pub(super) fn note_failure(record: &mut JobRunRecord, index: u32, at: Timestamp) {
    let machines = record.machines.iter_mut().flatten();
    let found = (0_u32..).zip(machines).find(|(own, _)| *own == index);
    if let Some((_, machine)) = found {
        machine.failures = machine.failures.saturating_add(1);
        machine.last_failure = Some(at);
    }
}

/// What a machine still has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MachinePart {
    Succeeded,
    Failed,
    Removed,
    Open,
}

/// The machines of a run with their parts, by index.
fn parts(record: &JobRunRecord) -> impl Iterator<Item = (u32, &RunMachine, MachinePart)> {
    let machines = record.machines.iter().flatten();
    (0_u32..).zip(machines).map(move |(index, machine)| {
        let part = if record.succeeded.contains(&index) {
            MachinePart::Succeeded
        } else if machine.removed {
            MachinePart::Removed
        } else {
            let is_failed = match machine.phase {
                None => machine.failures > record.backoff_limit,
                Some(phase) => phase != RunPhase::Active,
            };
            match is_failed {
                true => MachinePart::Failed,
                false => MachinePart::Open,
            }
        };
        (index, machine, part)
    })
}

fn nodes_with(record: &JobRunRecord, wanted: MachinePart) -> Vec<&str> {
    parts(record)
        .filter(|(_, _, part)| *part == wanted)
        .map(|(_, machine, _)| machine.node.as_str())
        .collect()
}

/// Why the run has failed: every machine has done its part or will not, and some will not.
pub(super) fn failure(record: &JobRunRecord) -> Option<(Reason, String)> {
    let failed = nodes_with(record, MachinePart::Failed);
    let removed = nodes_with(record, MachinePart::Removed);
    let is_over = parts(record).all(|(_, _, part)| part != MachinePart::Open);
    if !is_over || (failed.is_empty() && removed.is_empty()) {
        return None;
    }
    let reason = match failed.is_empty() {
        true => Reason::MachineRemoved,
        false => Reason::BackoffLimitExceeded,
    };
    let mut message = format!(
        "{} of {} machines succeeded",
        record.succeeded.len(),
        record.completions
    );
    if !failed.is_empty() {
        message.push_str(&format!(
            "; more instances failed than backoffLimit ({}) allows on {}",
            record.backoff_limit,
            named(failed.iter().copied())
        ));
        message.push_str(&last_failure_in_words(record));
    }
    if !removed.is_empty() {
        message.push_str(&format!(
            "; {} left the cluster before that",
            named(removed.iter().copied())
        ));
    }
    Some((reason, message))
}

/// Such as `3 machines succeeded; left out, because they took no work when the run began: n4`.
pub(super) fn success_in_words(record: &JobRunRecord) -> String {
    let machines = match record.completions {
        1 => "one machine".to_owned(),
        count => format!("{count} machines"),
    };
    format!("{machines} succeeded{}", left_out_in_words(record))
}

fn left_out_in_words(record: &JobRunRecord) -> String {
    if record.left_out.is_empty() {
        return String::new();
    }
    let names = record.left_out.iter().map(String::as_str);
    format!(
        "; left out, because they took no work when the run began: {}",
        named(names)
    )
}

/// Such as `run 3: 1 of 4 machines succeeded; now on n2; still to come: n4; failed: n3`.
pub(super) fn active_in_words(record: &JobRunRecord) -> String {
    if record.lacks_machines() {
        return format!(
            "run {} waits until the run before it has ended",
            record.number
        );
    }
    let open = record.attempts.iter().filter(|one| one.end.is_none());
    let running: BTreeSet<&str> = open.map(|one| one.node.as_str()).collect();
    let mut text = format!(
        "run {}: {} of {} machines succeeded",
        record.number,
        record.succeeded.len(),
        record.completions
    );
    let mut list = |what: &str, nodes: &[&str]| {
        if !nodes.is_empty() {
            text.push_str(&format!("; {what} {}", named(nodes.iter().copied())));
        }
    };
    let mut waiting = nodes_with(record, MachinePart::Open);
    waiting.retain(|node| !running.contains(node));
    list("now on", &running.iter().copied().collect::<Vec<_>>());
    list("still to come:", &waiting);
    list("failed:", &nodes_with(record, MachinePart::Failed));
    list(
        "left the cluster:",
        &nodes_with(record, MachinePart::Removed),
    );
    text.push_str(&left_out_in_words(record));
    text
}

/// The machines that may get an instance now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NextMachines {
    /// Their indexes.
    pub(super) indexes: Vec<u32>,
    /// Number of machines that have an instance and answer. One that does not answer takes up no place:
    /// the others do their part meanwhile.
    pub(super) held: usize,
    /// When the first pause after a failure ends.
    pub(super) pause: Option<Timestamp>,
}

/// Chooses the machines that may get an instance; `busy` are the indexes of those that have one.
pub(super) fn next(
    record: &JobRunRecord,
    busy: &BTreeSet<u32>,
    states: &[MachineState],
    now: Timestamp,
) -> NextMachines {
    let mut next = NextMachines::default();
    for ((index, machine, part), state) in parts(record).zip(states) {
        if busy.contains(&index) {
            next.held += usize::from(*state != MachineState::Away);
            continue;
        }
        if part != MachinePart::Open || *state != MachineState::Open {
            continue;
        }
        match pause_until(machine.failures, machine.last_failure, now) {
            Some(until) => {
                next.pause = Some(next.pause.map_or(until, |first| first.min(until)));
            }
            None => next.indexes.push(index),
        }
    }
    next
}

/// Why machines without an instance get none yet, if their state does not end by itself.
pub(super) fn obstacle(record: &JobRunRecord, states: &[MachineState]) -> Option<String> {
    let open = record.attempts.iter().filter(|one| one.end.is_none());
    let running: BTreeSet<&str> = open.map(|one| one.node.as_str()).collect();
    let waiting = parts(record).zip(states).filter(|((_, machine, part), _)| {
        *part == MachinePart::Open && !running.contains(machine.node.as_str())
    });
    let waiting: Vec<(&str, MachineState)> = waiting
        .map(|((_, machine, _), state)| (machine.node.as_str(), *state))
        .collect();
    let with = |wanted: MachineState| -> Vec<&str> {
        let found = waiting.iter().filter(|(_, state)| *state == wanted);
        found.map(|(node, _)| *node).collect()
    };
    let away = with(MachineState::Away);
    let tainted = with(MachineState::Tainted);
    let mut reasons = Vec::new();
    if !away.is_empty() {
        let nodes = named(away.into_iter());
        reasons.push(format!("the run waits for an answer of {nodes}"));
    }
    if !tainted.is_empty() {
        let nodes = named(tainted.into_iter());
        reasons.push(format!(
            "the run waits for the end of a taint, which it does not tolerate, on {nodes}"
        ));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Such as `n1, n2, n3, n4, n5 and 3 more`.
pub(super) fn named<'n>(nodes: impl Iterator<Item = &'n str>) -> String {
    let all: Vec<&str> = nodes.collect();
    let first: Vec<&str> = all.iter().take(MOST_NAMED).copied().collect();
    let first = first.join(", ");
    match all.len().saturating_sub(MOST_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::attempts::{
        AttemptState, LiveAttempt, RunStep, RunSurroundings, step,
        tests::{at, ended, live},
    };
    use super::*;
    use kat_types::store::jobs::RunPhase;

    fn run(nodes: &[&str], parallelism: u32, backoff_limit: u32) -> JobRunRecord {
        JobRunRecord {
            schema: 1,
            number: 1,
            completions: u32::try_from(nodes.len()).unwrap(),
            parallelism,
            backoff_limit,
            phase: RunPhase::Active,
            started: Some(at(0)),
            machines: Some(nodes.iter().map(|node| RunMachine::new(node)).collect()),
            ..JobRunRecord::default()
        }
    }

    fn take(
        record: &JobRunRecord,
        live: &[LiveAttempt],
        machines: &[MachineState],
        now: Timestamp,
    ) -> RunStep {
        let surroundings = RunSurroundings {
            now,
            may_begin: true,
            alone: false,
            any_instance: !live.is_empty(),
            machines,
        };
        step(record, live, surroundings)
    }

    #[test]
    fn a_machine_that_fails_too_often_lets_the_others_finish_and_then_the_run_fails() {
        let open = [MachineState::Open; 2];
        let begun = run(&["n1", "n2"], 1, 0);
        let first = take(&begun, &[], &open, at(0));
        assert_eq!((first.create.as_slice(), first.places), (&[0, 1][..], 1));
        let failed = take(&begun, &[live("a", 0, ended(at(1), 3))], &open, at(1));
        assert!(failed.record.is_active());
        let second = take(&failed.record, &[], &open, at(1));
        // No pause of the first machine holds the second one back.
        assert_eq!(second.create, [1]);
        let over = take(
            &second.record,
            &[live("b", 1, ended(at(2), 0))],
            &open,
            at(2),
        );
        assert_eq!(over.record.phase, RunPhase::Failed);
        assert_eq!(over.record.reason, "BackoffLimitExceeded");
        assert_eq!(
            over.record.message,
            "1 of 2 machines succeeded; more instances failed than backoffLimit (0) allows on n1; the last: the program ended with exit code 3"
        );
    }

    #[test]
    fn each_machine_has_failures_and_pauses_of_its_own() {
        let open = [MachineState::Open; 2];
        let begun = run(&["n1", "n2"], 2, 1);
        let both = [live("a", 0, ended(at(0), 1)), live("b", 1, ended(at(5), 1))];
        let failed = take(&begun, &both[..1], &open, at(0));
        let failed = take(&failed.record, &both[1..], &open, at(5));
        // Two failures in all are more than one machine may have, and no machine has more than one.
        assert_eq!(
            (failed.record.failures, failed.record.phase),
            (2, RunPhase::Active)
        );
        let early = take(&failed.record, &[], &open, at(9));
        assert_eq!(
            (early.create.len(), early.wake),
            (0, Some(Duration::from_secs(1)))
        );
        assert_eq!(take(&failed.record, &[], &open, at(10)).create, [0]);
        assert_eq!(take(&failed.record, &[], &open, at(15)).create, [0, 1]);
    }

    #[test]
    fn a_machine_that_does_not_answer_takes_up_no_place_and_keeps_the_run_active() {
        let states = [MachineState::Away, MachineState::Open];
        let begun = run(&["n1", "n2"], 1, 0);
        let going = [live("a", 0, AttemptState::Going)];
        let others = take(&begun, &going, &states, at(0));
        assert_eq!((others.create.as_slice(), others.places), (&[1][..], 1));
        let both = [going[0].clone(), live("b", 1, ended(at(1), 0))];
        let waits = take(&others.record, &both, &states, at(1));
        assert!(waits.record.is_active() && waits.create.is_empty());
    }

    #[test]
    fn a_machine_that_leaves_the_cluster_has_failed_and_is_replaced_nowhere() {
        let begun = run(&["n1", "n2"], 1, 3);
        let states = [MachineState::Removed, MachineState::Open];
        let done = [live("b", 1, ended(at(1), 0))];
        let over = take(&begun, &done, &states, at(1));
        assert_eq!(over.record.phase, RunPhase::Failed);
        assert_eq!(over.record.reason, "MachineRemoved");
        assert_eq!(
            over.record.message,
            "1 of 2 machines succeeded; n1 left the cluster before that"
        );
        // One that leaves after its part is done has done it.
        let later = [MachineState::Open, MachineState::Removed];
        let first = take(&begun, &done, &[MachineState::Open; 2], at(1));
        let last = [live("a", 0, ended(at(2), 0))];
        let over = take(&first.record, &last, &later, at(2));
        assert_eq!(over.record.phase, RunPhase::Succeeded);
        assert_eq!(over.record.message, "2 machines succeeded");
    }

    #[test]
    fn a_machine_with_an_instance_of_another_run_gets_none() {
        let states = [MachineState::Occupied, MachineState::Open];
        let step = take(&run(&["n1", "n2"], 2, 0), &[], &states, at(0));
        assert_eq!(step.create, [1]);
    }

    #[test]
    fn a_run_that_has_not_begun_has_not_succeeded() {
        let waiting = JobRunRecord {
            started: None,
            ..run(&[], 1, 0)
        };
        let surroundings = RunSurroundings {
            now: at(0),
            may_begin: false,
            alone: false,
            any_instance: false,
            machines: &[],
        };
        assert!(step(&waiting, &[], surroundings).record.is_active());
    }

    #[test]
    fn a_message_of_an_active_run_says_which_machine_is_where() {
        let open = [MachineState::Open; 4];
        let mut begun = run(&["n1", "n2", "n3", "n4"], 2, 0);
        begun.left_out = vec!["n5".to_owned()];
        let first = [live("a", 0, ended(at(1), 0)), live("b", 1, ended(at(1), 1))];
        let second = take(&begun, &first, &open, at(1));
        let third = take(
            &second.record,
            &[live("c", 2, AttemptState::Going)],
            &open,
            at(1),
        );
        assert_eq!(
            active_in_words(&third.record),
            "run 1: 1 of 4 machines succeeded; now on n3; still to come: n4; failed: n2; left out, because they took no work when the run began: n5"
        );
    }
}
