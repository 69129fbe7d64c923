//! Certificates by ACME: while this machine leads, it carries out what [`kat_plan::AcmeOrders`] says.
//!
//! One question is asked at a time. Every wait for a machine or for the server's check is a state of the
//! order in the store, so that a slow name delays no other one by more than a question takes.

mod dns;
mod name_check;
mod server;

/// Answers of strangers, for the fuzz targets.
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use super::{
        dns::fuzz::read_dns_answer,
        server::fuzz::{QUESTIONS, ask_server},
    };
}

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{LeaderHandle, members::say_once};
use kat_daemon::watchdog::{LoopPulse, LoopPulses};
use kat_plan::{
    AcmeFailure, AcmeFailureKind, AcmeOrders, AcmeQuestion, AcmeReply, AcmeRequest, AcmeStep,
    CertificateStep, Snapshot, uses_acme,
};
use kat_store::{Leadership, fenced};
use kat_types::store::snapshot::ObservedReports;

pub use dns::{DnsHooks, HookChange, HookFailure, LONGEST_HOOK};
pub use server::InstantAcme;

/// Longest question.
const LONGEST_QUESTION: Duration = Duration::from_secs(60);
/// Longest and shortest pause between two rounds.
const IDLE: Duration = Duration::from_secs(5);
const SHORTEST: Duration = Duration::from_millis(200);
/// Pause after something failed that is no matter of a server.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// Longest wait for the snapshot to show what was written.
const SHOWN_LIMIT: Duration = Duration::from_secs(5);

/// A server for certificates, and the names that lead to this cluster.
#[async_trait]
pub trait AcmeServer: Send + Sync {
    /// Carries out one question. Failures are answers. The caller ends it after a minute.
    async fn ask(&self, question: &AcmeQuestion) -> AcmeReply;
}

/// Settings of the loop on this machine.
#[derive(Clone)]
pub struct OrderedCertificatesConfig {
    /// The wall clock.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Who is asked.
    pub server: Arc<dyn AcmeServer>,
    /// Reports the loop to the watchdog.
    pub pulses: LoopPulses,
}

/// Orders certificates until `cancel`, whenever this machine leads.
pub async fn keep_certificates(
    handle: LeaderHandle,
    config: OrderedCertificatesConfig,
    cancel: CancellationToken,
) {
    let pulse = config.pulses.watch("ordered certificates");
    let work = async {
        let mut leadership = handle.leadership.clone();
        let mut snapshots = handle.snapshot.clone();
        let mut tenure: Option<OrdersTenure> = None;
        let mut said = String::new();
        loop {
            pulse.beat();
            let now = leadership.borrow_and_update().clone();
            let now = now.filter(|now| !now.lost.is_cancelled());
            let mut pause = IDLE;
            match now {
                None => tenure = None,
                Some(now) => {
                    let present = tenure.take().filter(|one| one.leadership.key == now.key);
                    let present = tenure.insert(present.unwrap_or_else(|| OrdersTenure::new(now)));
                    let snapshot = snapshots.borrow_and_update().clone();
                    let shown = snapshot.filter(|one| one.revision >= present.floor);
                    match present.round(&handle, &config, shown, &pulse).await {
                        Ok(after) => {
                            said.clear();
                            pause = after;
                        }
                        Err(error) => {
                            say_once(&mut said, format!("certificates by ACME: {error}"));
                            pause = AFTER_FAILURE;
                        }
                    }
                }
            }
            let changed = async {
                sleep(SHORTEST).await;
                snapshots.changed().await
            };
            let next = async {
                tokio::select! {
                    biased;
                    changed = leadership.changed() => changed.is_ok(),
                    () = sleep(pause.max(SHORTEST)) => true,
                    changed = changed => changed.is_ok(),
                }
            };
            if !pulse.wait(next).await {
                return;
            }
        }
    };
    cancel.run_until_cancelled(work).await;
}

/// One leadership.
struct OrdersTenure {
    leadership: Leadership,
    since: Instant,
    /// Lowest revision of a snapshot to decide from.
    floor: i64,
    orders: Arc<Mutex<AcmeOrders>>,
}

/// Why a round failed, in words.
type RoundError = Box<dyn std::error::Error + Send + Sync>;

impl OrdersTenure {
    fn new(leadership: Leadership) -> Self {
        Self {
            // A copy without the last writes of the leader before may have an order whose record was
            // removed: asked for again, the record would be removed by nobody.
            floor: leadership.won_revision,
            leadership,
            since: Instant::now(),
            orders: Arc::default(),
        }
    }

    /// Takes the next steps until there is none. Returns for how long there is none.
    async fn round(
        &mut self,
        handle: &LeaderHandle,
        config: &OrderedCertificatesConfig,
        snapshot: Option<Arc<Snapshot>>,
        pulse: &LoopPulse,
    ) -> Result<Duration, RoundError> {
        let Some(mut snapshot) = snapshot else {
            return Ok(SHORTEST);
        };
        loop {
            pulse.beat();
            if !uses_acme(&snapshot) || self.leadership.lost.is_cancelled() {
                return Ok(IDLE);
            }
            let observed = handle.reports.observed(self.since.elapsed());
            let now = (config.clock)();
            let step = match self.next(&snapshot, observed, now).await? {
                AcmeStep::Wait(until) => {
                    let wait = Duration::try_from(until.duration_since(now)).unwrap_or_default();
                    return Ok(wait.min(IDLE));
                }
                AcmeStep::Write(step) => Some(step),
                AcmeStep::Ask(question) => {
                    // A record that this leader adds too late would be removed by nobody.
                    let reply = asked(config.server.as_ref(), &question);
                    let reply = self.leadership.lost.run_until_cancelled(reply);
                    let Some(reply) = pulse.wait(reply).await else {
                        return Ok(IDLE);
                    };
                    tracing::debug!(host = question.host, ?question.request, ?reply, "ACME");
                    if let (AcmeRequest::Contact { .. }, AcmeReply::Failed(failure)) =
                        (&question.request, &reply)
                    {
                        let why = &failure.message;
                        tracing::warn!("acme.email has not reached the server: {why}");
                    }
                    // The order may have changed meanwhile: its revision is compared.
                    let newest = handle.snapshot.borrow().clone();
                    snapshot = newest.unwrap_or(snapshot);
                    self.answered(&snapshot, question, reply, (config.clock)())
                        .await?
                }
            };
            let Some(step) = step else { continue };
            if !self.write(handle, step).await? {
                return Ok(SHORTEST);
            }
            let mut snapshots = handle.snapshot.clone();
            let floor = self.floor;
            let shown = async {
                let shown = snapshots
                    .wait_for(|one| one.as_ref().is_some_and(|one| one.revision >= floor))
                    .await;
                shown.ok().and_then(|shown| shown.clone())
            };
            match pulse.wait(timeout(SHOWN_LIMIT, shown)).await {
                Ok(Some(newer)) => snapshot = newer,
                Ok(None) | Err(_) => return Ok(SHORTEST),
            }
        }
    }

    /// Keys and signatures take milliseconds, so that this runs beside the runtime.
    async fn next(
        &self,
        snapshot: &Arc<Snapshot>,
        observed: ObservedReports,
        now: Timestamp,
    ) -> Result<AcmeStep, RoundError> {
        let (orders, snapshot) = (Arc::clone(&self.orders), Arc::clone(snapshot));
        let decided =
            tokio::task::spawn_blocking(move || orders.lock().next(&snapshot, &observed, now));
        Ok(decided.await??)
    }

    async fn answered(
        &self,
        snapshot: &Arc<Snapshot>,
        question: AcmeQuestion,
        reply: AcmeReply,
        now: Timestamp,
    ) -> Result<Option<CertificateStep>, RoundError> {
        let (orders, snapshot) = (Arc::clone(&self.orders), Arc::clone(snapshot));
        let decided = tokio::task::spawn_blocking(move || {
            orders.lock().answered(&snapshot, &question, reply, now)
        });
        Ok(decided.await??)
    }

    /// Returns false if another write came first.
    async fn write(
        &mut self,
        handle: &LeaderHandle,
        step: CertificateStep,
    ) -> Result<bool, RoundError> {
        let group = fenced::WriteGroup {
            conditions: step.conditions,
            operations: step.operations,
        };
        let fence = self.leadership.fence();
        match fenced::commit(handle.store.as_ref(), &fence, &[group]).await? {
            fenced::CommitOutcome::Done(revision) => {
                tracing::info!("{} written", step.what);
                self.floor = self.floor.max(revision);
                Ok(true)
            }
            fenced::CommitOutcome::Refused { .. } => Ok(false),
        }
    }
}

async fn asked(server: &dyn AcmeServer, question: &AcmeQuestion) -> AcmeReply {
    let answered = timeout(LONGEST_QUESTION, server.ask(question)).await;
    answered.unwrap_or_else(|_| {
        AcmeReply::Failed(AcmeFailure {
            kind: AcmeFailureKind::Unreachable,
            message: "no answer within a minute".to_owned(),
            retry_after: None,
        })
    })
}
