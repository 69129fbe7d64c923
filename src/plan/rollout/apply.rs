//! Third step of a rollout: writes what was decided into the draft, or returns what blocks it.

use super::{
    blocked::{Blocked, LeaveObstacle, NotPlaced},
    classify::StopReason,
    decide::{NextVersion, SlotAction, SlotStep, Waiting},
    slot::LiveInstance,
};
use crate::{instances::create::Preparation, service::WorkloadPlanner, status};
use kat_types::{reason::EventReason, store::snapshot::ParsedWorkload};

impl WorkloadPlanner<'_, '_, '_> {
    /// Applies one step. `data_moves` says how far the move of the workload's data is.
    pub(crate) fn apply(
        &mut self,
        parsed: &ParsedWorkload,
        step: SlotStep<'_, '_>,
        data_moves: Option<&str>,
    ) -> Result<(), Blocked> {
        let slot = step.slot;
        match step.action {
            SlotAction::Stop(live, reason) => self.stop(live, reason.words()),
            SlotAction::Create(version) => {
                self.make(parsed, slot, version)?;
            }
            SlotAction::Start(successor) => self.start_prepared(parsed, successor),
            SlotAction::Prepare(before) => match self.create_prepared(parsed, slot) {
                Ok(Preparation::Begun) => {}
                Ok(Preparation::NotKnown) => self.stop(before, replaced(before).words()),
                Err(cause) => return self.keep_without_successor(before, cause),
            },
            SlotAction::AwaitSuccessor(before, successor) => {
                if let Some(trouble) = status::instance_trouble([successor]) {
                    let obstacle = LeaveObstacle::NotPrepared(trouble.sentence());
                    return self.keep_on_machine(before, obstacle);
                }
            }
            SlotAction::UpdateInPlace(before) | SlotAction::MoveToSuccessor(before) => {
                match self.has_secrets(parsed) {
                    Ok(()) => self.stop(before, replaced(before).words()),
                    // Without the workload's secrets no successor could start, so the running
                    // instance is kept.
                    Err(cause) => return self.keep_without_successor(before, cause),
                }
            }
            SlotAction::UpdateBeside(before) => {
                if let Err(cause) = self.create(parsed, slot) {
                    return self.keep_without_successor(before, cause);
                }
            }
            SlotAction::MoveInPlace(before) => match self.fits(parsed, slot) {
                Ok(()) => self.stop(before, StopReason::MachineIsDrained.words()),
                Err(cause) => return self.keep_without_successor(before, cause),
            },
            SlotAction::MoveBeside(before, version) => {
                if let Err(cause) = self.make(parsed, slot, version) {
                    return self.keep_without_successor(before, cause);
                }
            }
            SlotAction::ForceOut(before, waiting) => match (self.fits(parsed, slot), waiting) {
                (Err(cause), _) => return self.keep_without_successor(before, cause),
                (Ok(()), Some(waiting)) => return self.keep_waiting(before, waiting, data_moves),
                (Ok(()), None) => {}
            },
            SlotAction::ReplaceLost(lost, version) => {
                self.replace_lost(parsed, slot, lost, version)?;
            }
            SlotAction::ReplaceEnded(ended, next) => {
                self.record.failures = self.record.failures.saturating_add(1);
                self.record.last_failure = Some(self.draft.now);
                self.stop(ended, StopReason::ProgramEnded.words());
                if let Some(version) = next {
                    self.make(parsed, slot, version)?;
                }
            }
            SlotAction::ReplaceEvicted(evicted, next) => {
                return self.replace_evicted(parsed, slot, evicted, next);
            }
            SlotAction::AwaitEnd(ending) => {
                return Err(Blocked::MayStillWrite {
                    instance: ending.id.to_owned(),
                    node: ending.node.to_owned(),
                });
            }
            SlotAction::CannotLeave(live, waiting) => {
                return self.keep_waiting(live, waiting, data_moves);
            }
            SlotAction::Wait(left) => self.draft.wake(left),
        }
        Ok(())
    }

    /// Places an instance of a version, and returns its id.
    fn make(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        version: NextVersion<'_>,
    ) -> Result<String, NotPlaced> {
        match (version, &self.entry.earlier) {
            (NextVersion::Like(like), _) => self.create_like(parsed, slot, like),
            (NextVersion::Earlier, Some(earlier)) => self.create_earlier(earlier, slot),
            (NextVersion::Wanted | NextVersion::Earlier, _) => self.create(parsed, slot),
        }
    }

    fn replace_lost(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        lost: &LiveInstance<'_>,
        version: NextVersion<'_>,
    ) -> Result<(), NotPlaced> {
        if lost.assignment.writes_data() {
            // The lost instance has ended by now, and must not start again when its machine
            // returns. Its successor is created once this stop is stored.
            self.fits(parsed, slot)?;
            self.stop(lost, StopReason::MachineIsLost.words());
            return Ok(());
        }
        let successor = self.make(parsed, slot, version)?;
        let node = lost.node;
        let message = format!("its machine {node} is lost; {successor} takes its place");
        self.instance_event(EventReason::Lost, lost.id, message);
        Ok(())
    }

    fn replace_evicted(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        evicted: &LiveInstance<'_>,
        next: Option<NextVersion<'_>>,
    ) -> Result<(), Blocked> {
        match self.fits(parsed, slot) {
            Ok(()) => {
                self.stop(evicted, StopReason::DiskIsShort.words());
                if let Some(version) = next {
                    self.make(parsed, slot, version)?;
                }
                Ok(())
            }
            Err(cause @ NotPlaced::Secrets(_)) => Err(cause.into()),
            // A lack of other machines is not a reason of its own for the workload's status.
            Err(_) => Ok(()),
        }
    }

    /// Nothing can replace `live`, which continues; on a machine that is drained by force it is
    /// stopped.
    fn keep_without_successor(
        &mut self,
        live: &LiveInstance<'_>,
        cause: NotPlaced,
    ) -> Result<(), Blocked> {
        if !live.leaves {
            return Err(cause.into());
        }
        let advice = self.how_it_moves(live);
        let obstacle = LeaveObstacle::NotPlaced { cause, advice };
        self.keep_on_machine(live, obstacle)
    }

    fn keep_waiting(
        &mut self,
        live: &LiveInstance<'_>,
        waiting: Waiting,
        data_moves: Option<&str>,
    ) -> Result<(), Blocked> {
        let obstacle = match waiting {
            Waiting::ServesForAnother => LeaveObstacle::ServesForAnother,
            Waiting::OthersBroken(others) => LeaveObstacle::OthersBroken(others),
            Waiting::DataMoves => LeaveObstacle::DataMoves(data_moves.unwrap_or_default().into()),
        };
        self.keep_on_machine(live, obstacle)
    }
}

/// Why an instance is stopped whose successor takes its place when it has ended.
fn replaced(before: &LiveInstance<'_>) -> StopReason {
    match before.current {
        true => StopReason::MachineIsDrained,
        false => StopReason::NewerVersion,
    }
}
