//! What an instance mounts: prepared before its start, and bound again while it runs.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    service::blocking::may_block,
    volumes::{PreparedMounts, VolumeTrouble, carried_files as carried, host_binds},
    worker::{
        context::UserContext,
        instance::{Instance, starting::LOOK_AGAIN},
        running::{
            jobs::{InstanceOutcome, JobKey},
            preparation::FinishedPreparation,
            start_backoff::RetryDelay,
        },
    },
};
use kat_host::bound_paths::PathBind;
use kat_systemd::UnitStatus;
use kat_types::{assignment::Assignment, reason::Reason};

impl Instance {
    /// Makes the volumes of an instance ready, and returns the paths to bind; `None` where one is
    /// not ready.
    pub(super) fn volumes_ready(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
        what: PreparedMounts,
    ) -> Option<Vec<PathBind>> {
        let carried =
            carried::prepare(&context.tools.root, assignment).map_err(|error| VolumeTrouble {
                reason: Reason::FilesFailed,
                message: format!("the files of its workload's folder can't be laid out: {error}"),
            });
        let ready = match carried {
            Ok(()) => self.mounts_ready(context, assignment, what),
            Err(trouble) => Some(Err(trouble)),
        };
        match ready {
            Some(Ok(binds)) => return Some(binds),
            Some(Err(trouble)) => {
                let (reason, message) = (trouble.reason, trouble.message);
                self.report_waiting(context, assignment, status, reason, message);
            }
            None => {
                let silence = context.tools.volumes.silence(assignment);
                // Most file systems answer at once: until one does not, the last report stays.
                if silence.is_some() || !self.reported {
                    let reason = silence.as_ref().map(|_| Reason::DiskNotAnswering);
                    let message = silence.unwrap_or_default();
                    self.report_waiting(context, assignment, status, reason, message);
                }
            }
        }
        context.wake_within(LOOK_AGAIN);
        None
    }

    /// Prepares what an instance mounts: at once where that lies on KAT's own disks, otherwise in a
    /// job, whose result the next pass gets. `None` until then.
    fn mounts_ready(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        what: PreparedMounts,
    ) -> Option<Result<Vec<PathBind>, VolumeTrouble>> {
        let volumes = &context.tools.volumes;
        if !volumes.are_foreign(assignment) {
            return Some(match what {
                PreparedMounts::All => volumes.prepare(assignment),
                PreparedMounts::HostPaths => volumes.prepare_host_paths(assignment),
                PreparedMounts::BesidePredecessor => volumes.prepare_beside(assignment),
            });
        }
        let result = self.preparation.take_result(assignment, what);
        let key = JobKey::Prepare(assignment.instance.clone());
        if result.is_none() && !context.jobs.is_running(&key) {
            self.begin_preparation(context, assignment, what);
        }
        result
    }

    fn begin_preparation(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        what: PreparedMounts,
    ) {
        let volumes = Arc::clone(&context.tools.volumes);
        let until = CancellationToken::new();
        self.preparation.begun(until.clone().drop_guard());
        let of = assignment.clone();
        let prepare = async move {
            let prepared = may_block(volumes.prepare_apart(&of, what));
            let result = until.run_until_cancelled(prepared).await?;
            Some(FinishedPreparation::new(of, what, result))
        };
        context
            .jobs
            .begin_preparation(&assignment.instance, prepare);
    }

    /// Records the end of a preparation; `None` where it was ended early.
    pub(crate) fn record_preparation(&mut self, finished: Option<Box<FinishedPreparation>>) {
        self.preparation.ended(finished);
    }

    /// Binds the host paths of a running instance where nothing is bound, as an earlier version did
    /// not bind them, or where something else now lies at a path. The next start by systemd then
    /// uses the new binds.
    pub(super) fn renew_binds(
        &mut self,
        context: &mut UserContext,
        assignment: &Assignment,
        status: &UnitStatus,
    ) {
        let bound = assignment.bound_paths();
        if bound.is_empty() {
            return;
        }
        let is_bound = host_binds::is_bound(&context.tools.root, assignment);
        if is_bound && !status.is_between_runs() {
            self.binds = RetryDelay::default();
            return;
        }
        if let Some(wait) = self.binds.remaining(Instant::now()) {
            context.wake_within(wait);
            return;
        }
        // A path that the instance may no longer have is reported at its next start by the agent.
        let prepared = self.mounts_ready(context, assignment, PreparedMounts::HostPaths);
        let Some(Ok(binds)) = prepared else {
            return;
        };
        let root = &context.tools.root;
        if host_binds::is_bound(root, assignment) && !host_binds::differs(root, assignment, &binds)
        {
            return;
        }
        self.binds.failed(Instant::now());
        match host_binds::write(root, assignment, binds) {
            Ok(Some(binding)) => begin_bind(context, assignment, binding),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(
                    instance = assignment.instance,
                    "host paths can't be bound: {error:#}"
                );
            }
        }
    }
}

/// Begins to bind the host paths that an instance mounts; its next start uses them.
fn begin_bind(context: &mut UserContext, assignment: &Assignment, binding: String) {
    let system = context.tools.managers.system();
    let bind =
        async move { InstanceOutcome::Bound(host_binds::bind(system.as_ref(), &binding).await) };
    context.jobs.begin_for_instance(&assignment.instance, bind);
}
