//! The short look at an instance that runs and needs nothing.

use kat_systemd::{ActiveState, UnitStatus};
use kat_types::{api::InstancePhase, assignment::Assignment};

use crate::worker::{
    WorkerError,
    context::UserContext,
    instance::Instance,
    unit_state::{instance_phase::InstanceVerdict, sidecars::InstanceSidecars},
};

/// What a pass found of an instance that runs and needs nothing.
#[derive(Debug)]
pub(super) struct RestingInstance {
    status: UnitStatus,
    verdict: InstanceVerdict,
    /// The states of its other units, by name.
    others: Vec<(String, ActiveState)>,
}

impl Instance {
    /// Remembers that the instance runs and needs nothing. What it has of secrets and of the
    /// machine's paths only a pass checks, so that an instance with these never rests.
    pub(super) fn record_rest(
        &mut self,
        assignment: &Assignment,
        status: UnitStatus,
        verdict: InstanceVerdict,
        beside: Option<InstanceSidecars>,
    ) {
        if verdict.phase != InstancePhase::Running
            || assignment.secrets.is_some()
            || !assignment.bound_paths().is_empty()
        {
            return;
        }
        let mut others = Vec::new();
        if let Some(beside) = beside {
            let sidecars = beside.others.into_iter();
            others.extend(sidecars.map(|one| (one.unit, one.status.active_state)));
            if let Some((status, _)) = beside.network {
                others.extend(
                    assignment
                        .network_unit()
                        .map(|unit| (unit, status.active_state)),
                );
            }
        }
        self.rest = Some(RestingInstance {
            status,
            verdict,
            others,
        });
    }

    /// Forgets that the instance rests: the next look is a pass.
    pub(crate) fn wake(&mut self) {
        self.rest = None;
    }

    pub(crate) fn is_resting(&self) -> bool {
        self.rest.is_some()
    }

    /// Reports a resting instance as it is now. False if its units are in another state than at the
    /// last pass.
    pub(crate) async fn look_at_rest(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
    ) -> Result<bool, WorkerError> {
        let Some(rest) = self.rest.take() else {
            return Ok(false);
        };
        let unit = assignment.unit();
        if context.manager.active_state(&unit).await? != rest.status.active_state {
            return Ok(false);
        }
        for (other, state) in &rest.others {
            if context.manager.active_state(other).await? != *state {
                return Ok(false);
            }
        }
        self.read_usage(context, &unit, &rest.status).await?;
        self.report_verdict(context, assignment, &rest.status, &rest.verdict);
        self.rest = Some(rest);
        Ok(true)
    }
}
