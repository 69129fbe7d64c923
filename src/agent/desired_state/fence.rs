//! The fence of `onPartition: stop`: on a machine that reaches no leader, it stops these instances
//! before the leader may replace them. After a boot, it also holds back instances that write data or keep
//! a schedule until the store has confirmed the list, since they may be assigned to another machine by now.
//! While this machine reports, the leader does not move such an instance before the machine
//! confirms that it has stopped.
//!
//! A leader replaces instances of a machine that has not reported for `nodeLossTimeoutSeconds`,
//! counted from the last report or from the start of its leadership. This machine's own count
//! starts before both, so that it stops the instances in time ([`fence_after`] has the arithmetic).
//! A stopped instance starts again when a leader has accepted a new report and the list is of a read
//! from a quorum of the store after that. A restarted agent continues from the saved time of the last
//! accepted report.
//!
//! The same contact decides until when instances of Jobs may be started (`job_starts.rs`).
//!
//! An agent that is dead or stopped by a signal stops nothing. So it writes beforehand until when
//! each instance may run, and `kat-net` kills what runs longer ([`kill_after`]). The deadline is
//! written before the list is passed on: an instance that `kat-net` knows always has one.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    job_starts::JobStarts,
    settings::{FollowedSettings, MachineSettings},
};
use crate::service::supervisor::DesiredList;
use kat_host::files::{self, FileAccess};
use kat_store::{SILENCE, SURE_FOR};
use kat_types::{
    assignment::Assignment,
    machine::fence::{
        BootClock, BootTime, JOB_START_CONTACT, RunDeadlines, fence_after, kill_after,
    },
    resource::OnPartition,
};

/// Largest file with a contact, in bytes.
const LIMIT: u64 = 64;
/// Largest file with the deadlines, in bytes.
const DEADLINES_LIMIT: u64 = 16 << 20;
/// Sleep if nothing is scheduled.
const LONG: Duration = Duration::from_secs(3600);
/// Sleep after deadlines could not be written.
const UNWRITTEN: Duration = Duration::from_secs(1);
/// Maximum time for which a list that seems current may be outdated: from a server's read from a
/// quorum over the last beat of the stream, and a second for slow machines.
pub const LIST_AGE: Duration = SILENCE
    .saturating_add(SURE_FOR)
    .saturating_add(Duration::from_secs(1));

/// Saves when a leader was last reached, until when the instances may run, and that the list was
/// confirmed, across restarts of the agent but not across a boot.
pub struct FenceMemory {
    /// File with the time when a leader was last reached; the files `contact` and `confirmed` lie
    /// beside it. It holds the time alone: to an agent of an earlier version anything else means that
    /// no leader was reached, and it stops every instance with `onPartition: stop`.
    pub path: PathBuf,
    /// File with the [`RunDeadlines`], for `kat-net`.
    pub deadlines: PathBuf,
}

impl FenceMemory {
    /// When a leader was last reached; `None` if none was since the boot.
    pub fn recall(&self, now: BootTime) -> Option<BootTime> {
        self.recall_contact(now).map(|contact| contact.reached)
    }

    fn recall_contact(&self, now: BootTime) -> Option<KeptContact> {
        let text = files::read_text(&self.path, LIMIT).ok()?;
        let reached = BootTime(text.trim().parse().ok()?);
        // A later contact than the one of the first file was written just before that file was to
        // follow, and a leader knows of it. An earlier one is of before an agent of another version.
        let timed = self.recall_timed_contact();
        let timeout = timed.filter(|(contact, _)| *contact >= reached);
        let timeout = timeout.map(|(_, timeout)| timeout);
        Some(KeptContact { reached, timeout }).filter(|contact| contact.reached <= now)
    }

    /// A contact, and the time for which it counts.
    fn recall_timed_contact(&self) -> Option<(BootTime, Duration)> {
        let text = files::read_text(&self.contact(), LIMIT).ok()?;
        let (contact, microseconds) = text.trim().split_once(' ')?;
        let timeout = Duration::from_micros(microseconds.parse().ok()?);
        Some((BootTime(contact.parse().ok()?), timeout))
    }

    /// The deadlines that were last written; none where the file can't be read.
    fn recall_deadlines(&self) -> BTreeMap<String, BootTime> {
        let text = files::read_bounded(&self.deadlines, DEADLINES_LIMIT).ok();
        let read = text.and_then(|text| serde_json::from_slice::<RunDeadlines>(&text).ok());
        read.map_or_else(BTreeMap::new, |read| read.deadlines)
    }

    /// Returns false where they can't be written, which is logged: the instances end at the deadlines
    /// of before, unless it succeeds later.
    fn save_deadlines(&self, deadlines: &BTreeMap<String, BootTime>) -> bool {
        let deadlines = RunDeadlines {
            schema: 1,
            deadlines: deadlines.clone(),
        };
        let written = files::json_of(&self.deadlines, &deadlines)
            .and_then(|text| files::write_atomic(&self.deadlines, &text, FileAccess::mode(0o600)));
        if let Err(error) = &written {
            tracing::warn!(
                "kat-net will kill the instances with onPartition: stop, because it is not told that they may run: {error:#}"
            );
        }
        written.is_ok()
    }

    /// Whether the store has confirmed the list since the boot.
    fn is_confirmed(&self) -> bool {
        self.confirmed().exists()
    }

    fn keep_confirmed(&self) {
        if let Err(error) = files::write_atomic(&self.confirmed(), b"", FileAccess::mode(0o600)) {
            tracing::warn!(
                "that the list is confirmed is not kept over a restart of the agent: {error:#}"
            );
        }
    }

    fn confirmed(&self) -> PathBuf {
        self.path.with_file_name("confirmed")
    }

    fn contact(&self) -> PathBuf {
        self.path.with_file_name("contact")
    }

    /// Returns false where it can't be written, which is logged.
    fn save_contact(&self, reached: BootTime, timeout: Duration) -> bool {
        let write = |path: &Path, text: String| {
            files::write_atomic(path, text.as_bytes(), FileAccess::mode(0o600))
        };
        // The time is never missing for a contact: the one on the disk may be longer.
        let timed = format!("{} {}", reached.0, timeout.as_micros());
        let written =
            write(&self.contact(), timed).and_then(|()| write(&self.path, reached.0.to_string()));
        if let Err(error) = &written {
            tracing::warn!(
                "when the leader was reached is not kept over a restart of the agent: {error:#}"
            );
        }
        written.is_ok()
    }
}

/// A contact that an earlier process of the agent has kept.
struct KeptContact {
    reached: BootTime,
    /// The time for which it counts; `None` from a version in which the time never changed: that of
    /// the disk.
    timeout: Option<Duration>,
}

/// Passes the desired list on with the instances that must not run now.
pub struct PartitionFence {
    /// `nodeLossTimeoutSeconds`: after this silence the leader may replace this machine's
    /// instances.
    pub settings: FollowedSettings,
    /// [`LIST_AGE`].
    pub list_age: Duration,
    pub lists: watch::Receiver<DesiredList>,
    pub clock: BootClock,
    /// When this machine last counted as present for a leader, see [`fence_after`].
    pub reached: watch::Receiver<Option<BootTime>>,
    /// The list with the fenced instances.
    pub fenced: watch::Sender<DesiredList>,
    /// Saves `reached` across restarts of the agent.
    pub memory: Option<FenceMemory>,
    /// Where instances of Jobs are allowed to start.
    pub job_starts: JobStarts,
}

/// The state of the fence between two looks at the list.
struct FenceState {
    /// The instances that must not run.
    stopped: BTreeSet<String>,
    /// When a leader started to accept reports again.
    back: Option<Instant>,
    /// Since when no leader can have taken this machine for lost.
    heard: Option<Instant>,
    /// Whether the store has confirmed the list since the boot.
    confirmed: bool,
    /// The deadlines that `kat-net` knows.
    deadlines: BTreeMap<String, BootTime>,
    reached: Option<BootTime>,
    /// Of the last contact. It does not change with the settings: they hold for reports that were
    /// sent after the machine had read them (`settings.rs`). That of a process before this one is
    /// not longer than that of the disk, which a leader may have gone by meanwhile.
    timeout: Duration,
}

impl PartitionFence {
    /// Runs until `cancel`.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut followed = self.settings.subscribe();
        let mut state = self.recall(&followed);
        loop {
            let settings = followed.borrow_and_update().clone();
            let listed = self.lists.borrow_and_update().clone();
            let before = state.reached;
            let mut verdict = self.judge(&mut state, &listed, &settings);
            let again = self.judge_job_starts(&mut state, &listed, before);
            verdict.again = verdict.again.min(again);
            self.keep(&mut state, &listed, &settings, &mut verdict);
            self.pass_on(&mut state, listed, &verdict);
            let changed = tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                changed = self.lists.changed() => changed,
                changed = self.reached.changed() => changed,
                changed = followed.changed() => changed,
                () = sleep(verdict.again) => Ok(()),
            };
            if changed.is_err() {
                return;
            }
        }
    }

    /// The state that an earlier process of the agent has left.
    fn recall(&self, followed: &watch::Receiver<MachineSettings>) -> FenceState {
        let confirmed = self.memory.as_ref().is_some_and(FenceMemory::is_confirmed);
        let memory = self.memory.as_ref();
        let deadlines = memory.map_or_else(BTreeMap::new, FenceMemory::recall_deadlines);
        // By the memory, since a report may have been accepted already.
        let kept = memory.and_then(|memory| memory.recall_contact((self.clock)()));
        let reached = match memory {
            Some(_) => kept.as_ref().map(|contact| contact.reached),
            None => *self.reached.borrow(),
        };
        let kept_timeout = kept.and_then(|contact| contact.timeout);
        let timeout = followed.borrow().loss_timeout;
        FenceState {
            stopped: BTreeSet::new(),
            back: None,
            heard: None,
            confirmed,
            deadlines,
            reached,
            timeout: kept_timeout.map_or(timeout, |kept| kept.min(timeout)),
        }
    }

    /// Judges which instances must not run, and takes up the last contact.
    fn judge(
        &mut self,
        state: &mut FenceState,
        listed: &DesiredList,
        settings: &MachineSettings,
    ) -> FenceVerdict {
        // By the contact of before: after a signal that stopped the agent, or a suspension of
        // the machine, a leader may be reached again before the end of the time was noticed.
        let missed = PartitionedInstances::of(listed, state.reached, state.timeout, (self.clock)());
        if !missed.over.is_empty() {
            state.back = None;
        }
        let waiting = &state.stopped | &missed.over;
        state.reached = *self.reached.borrow_and_update();
        if state
            .reached
            .is_none_or(|reached| reached >= settings.since)
        {
            state.timeout = settings.loss_timeout;
        }
        if !state.confirmed && listed.confirmed && listed.current {
            state.confirmed = true;
            if let Some(memory) = &self.memory {
                memory.keep_confirmed();
            }
        }
        let silence =
            PartitionedInstances::of(listed, state.reached, state.timeout, (self.clock)());
        state.back = match silence.over.is_empty() {
            true => state.back.or_else(|| Some(Instant::now())),
            false => None,
        };
        let told = self.until_told(state.back, listed);
        silence.into_verdict(&waiting, told)
    }

    /// After this time the list has all that a leader decided before `back`.
    fn until_told(&self, back: Option<Instant>, listed: &DesiredList) -> Duration {
        let told = back.filter(|_| listed.current).map(|back| {
            // A list that arrives after the report may still be older.
            match listed.read_at >= Some(back) {
                true => Duration::ZERO,
                false => (back + self.list_age).saturating_duration_since(Instant::now()),
            }
        });
        told.unwrap_or(LONG)
    }

    /// Allows starts of instances of Jobs for a time after the last contact, if the list has all that a
    /// leader decided while it could take this machine for lost. `before` is the contact before this
    /// look. Returns when to judge anew.
    fn judge_job_starts(
        &self,
        state: &mut FenceState,
        listed: &DesiredList,
        before: Option<BootTime>,
    ) -> Duration {
        let now = (self.clock)();
        // No leader takes the machine for lost before, nor a run of it for over.
        let least = state.timeout.max(JOB_START_CONTACT);
        let is_heard = |contact: &BootTime| now.since(*contact) < least;
        // The end of the time may not have been noticed.
        let unbroken = state
            .heard
            .filter(|_| before.as_ref().is_some_and(is_heard));
        state.heard = match state.reached.as_ref().is_some_and(is_heard) {
            true => unbroken.or_else(|| Some(Instant::now())),
            false => None,
        };
        let told = self.until_told(state.heard, listed);
        match state.reached {
            Some(reached) if told.is_zero() && state.confirmed => {
                let end = reached.after(JOB_START_CONTACT);
                self.job_starts.allow_until(end, &self.clock);
            }
            Some(_) | None => self.job_starts.forbid(),
        }
        match told.is_zero() {
            true => LONG,
            false => told,
        }
    }

    /// Saves the contact for the next process of the agent, and the deadlines for `kat-net`, and
    /// confirms the settings by which both count.
    fn keep(
        &self,
        state: &mut FenceState,
        listed: &DesiredList,
        settings: &MachineSettings,
        verdict: &mut FenceVerdict,
    ) {
        // While an instance waits for the list, the saved time stays old, so that the instance
        // also waits in the next process of the agent.
        let runs = verdict.any && verdict.stopped.is_empty();
        let mut is_kept = true;
        if let (Some(memory), Some(reached), true) = (&self.memory, state.reached, runs) {
            is_kept = memory.save_contact(reached, state.timeout);
        }
        if listed.known {
            let kill_after = kill_after(state.timeout);
            let end = state.reached.map(|reached| reached.after(kill_after));
            let told = self.renew_deadlines(&mut state.deadlines, listed, end, verdict);
            if !told {
                verdict.again = verdict.again.min(UNWRITTEN);
            }
            // The leader may go by a lower time only once nothing here goes by a higher one.
            if told && is_kept && state.timeout == settings.loss_timeout {
                self.settings.confirm(settings);
            }
        }
    }

    /// Passes the list on with the instances that must not run.
    fn pass_on(&self, state: &mut FenceState, listed: DesiredList, verdict: &FenceVerdict) {
        let mut held = verdict.stopped.clone();
        if !state.confirmed {
            let listed = listed.desired.assignments.iter();
            // One with a schedule starts its timer: its times may have been given to the leader since.
            let unsure = listed.filter(|(_, one)| one.writes_data() || one.bound.is_some());
            held.extend(unsure.map(|(id, _)| id.clone()));
        }
        if verdict.stopped != state.stopped {
            tracing::warn!(
                instances = ?verdict.stopped,
                "these must not run while no leader is reached"
            );
            state.stopped.clone_from(&verdict.stopped);
        }
        let next = DesiredList {
            fenced: Arc::new(held),
            ..listed
        };
        self.fenced.send_if_modified(|present| {
            let differs = *present != next;
            *present = next;
            differs
        });
    }

    /// Tells `kat-net` until when the instances may run: until `end`. A stopped one keeps an earlier
    /// deadline that it had, also while the agent can't stop it. Returns false where `kat-net` could not be told.
    fn renew_deadlines(
        &self,
        deadlines: &mut BTreeMap<String, BootTime>,
        listed: &DesiredList,
        end: Option<BootTime>,
        verdict: &FenceVerdict,
    ) -> bool {
        let next = fenced_instances(listed).filter_map(|(id, _)| {
            let deadline = match verdict.stopped.contains(id) {
                true => deadlines
                    .get(id)
                    .map(|own| end.map_or(*own, |end| end.min(*own))),
                false => end,
            };
            Some((id.clone(), deadline?))
        });
        let next = next.collect();
        if *deadlines == next {
            return true;
        }
        if let Some(memory) = &self.memory
            && !memory.save_deadlines(&next)
        {
            return false;
        }
        *deadlines = next;
        true
    }
}

/// The instances with `onPartition: stop`.
fn fenced_instances(listed: &DesiredList) -> impl Iterator<Item = (&String, &Assignment)> {
    let all = listed.desired.assignments.iter();
    all.filter(|(_, one)| one.on_partition == OnPartition::Stop)
}

/// The instances with `onPartition: stop`, by whether their time without a leader has passed.
struct PartitionedInstances {
    over: BTreeSet<String>,
    /// Remaining time of each instance.
    running: BTreeMap<String, Duration>,
}

impl PartitionedInstances {
    /// `reached` is when a leader was last reached; `None` if none was since the boot.
    fn of(
        listed: &DesiredList,
        reached: Option<BootTime>,
        timeout: Duration,
        now: BootTime,
    ) -> Self {
        let mut silence = Self {
            over: BTreeSet::new(),
            running: BTreeMap::new(),
        };
        for (id, assignment) in fenced_instances(listed) {
            let grace = assignment.stop_seconds();
            // `None` only for a grace that is too long, which apply rejects.
            let after = fence_after(timeout, grace).unwrap_or(timeout / 2);
            let left = reached.and_then(|reached| after.checked_sub(now.since(reached)));
            match left.filter(|left| !left.is_zero()) {
                Some(left) => drop(silence.running.insert(id.clone(), left)),
                None => drop(silence.over.insert(id.clone())),
            }
        }
        silence
    }

    /// Instances in `before` are stopped already. They stay stopped until the list is confirmed
    /// again, after the time `told`.
    fn into_verdict(self, before: &BTreeSet<String>, told: Duration) -> FenceVerdict {
        let mut verdict = FenceVerdict {
            any: !self.over.is_empty() || !self.running.is_empty(),
            stopped: self.over,
            again: LONG,
        };
        for (id, left) in self.running {
            verdict.again = verdict.again.min(left);
            if before.contains(&id) && !told.is_zero() {
                verdict.again = verdict.again.min(told);
                verdict.stopped.insert(id);
            }
        }
        verdict
    }
}

struct FenceVerdict {
    stopped: BTreeSet<String>,
    /// Whether there are instances with `onPartition: stop`.
    any: bool,
    again: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_counts_with_its_time_and_earlier_versions_read_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let memory = FenceMemory {
            path: folder.path().join("reached"),
            deadlines: folder.path().join("deadlines.json"),
        };
        let kept = |memory: &FenceMemory| {
            let contact = memory.recall_contact(BootTime(1_000));
            contact.map(|contact| (contact.reached.0, contact.timeout))
        };
        assert_eq!(kept(&memory), None);
        let seconds = Duration::from_secs;
        assert!(memory.save_contact(BootTime(50), seconds(20)));
        assert_eq!(kept(&memory), Some((50, Some(seconds(20)))));
        let read = std::fs::read_to_string(&memory.path).unwrap();
        assert_eq!(
            read.trim().parse(),
            Ok(50_u64),
            "as earlier versions read it"
        );
        // The agent ended between the two files.
        std::fs::write(memory.contact(), "60 30000000").unwrap();
        assert_eq!(kept(&memory), Some((50, Some(seconds(30)))));
        // An agent of an earlier version has run since, or wrote the only file.
        std::fs::write(&memory.path, "70").unwrap();
        assert_eq!(kept(&memory), Some((70, None)));
        std::fs::remove_file(memory.contact()).unwrap();
        assert_eq!(kept(&memory), Some((70, None)));
        assert!(memory.save_contact(BootTime(2_000), seconds(20)));
        assert_eq!(kept(&memory), None, "of another boot");
    }
}
