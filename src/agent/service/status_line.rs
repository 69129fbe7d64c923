//! The service's status line in `systemctl status kat-agent`, and its watchdog.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::{sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use kat_daemon::watchdog::LoopPulses;
use kat_leader::LeaderHandle;

/// Sends the service's `STATUS=` line and its watchdog messages.
#[derive(Clone)]
pub(crate) struct ServiceStatus {
    words: watch::Sender<String>,
}

impl ServiceStatus {
    /// Reports readiness to systemd, and sends watchdog messages until `cancel`, for as long as no
    /// loop of `pulses` hangs.
    pub(crate) fn start(
        tasks: &mut JoinSet<()>,
        pulses: &LoopPulses,
        cancel: &CancellationToken,
    ) -> Self {
        let (words, said) = watch::channel("starting".to_owned());
        let period =
            sd_notify::watchdog_enabled().map_or(Duration::from_secs(10), |limit| limit / 3);
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let told = send_status_lines(said, pulses.clone(), period, |states| {
            let _ = sd_notify::notify(states);
        });
        let cancel = cancel.clone();
        tasks.spawn(async move {
            cancel.run_until_cancelled(told).await;
        });
        Self { words }
    }

    /// Sets the status line.
    pub(crate) fn say(&self, words: &str) {
        self.words.send_if_modified(|present| {
            let differs = present != words;
            words.clone_into(present);
            differs
        });
    }
}

/// Sends changed status lines, and a watchdog message every `period` unless a loop hangs: then
/// systemd restarts the service.
async fn send_status_lines(
    mut said: watch::Receiver<String>,
    pulses: LoopPulses,
    period: Duration,
    notify: impl Fn(&[NotifyState<'_>]),
) {
    loop {
        let words = said.borrow_and_update().clone();
        match pulses.stalled() {
            None => notify(&[NotifyState::Status(&words), NotifyState::Watchdog]),
            Some(name) => {
                tracing::error!("{name} hangs; the watchdog is told no more");
                notify(&[NotifyState::Status(&format!("{name} hangs"))]);
            }
        }
        tokio::select! {
            changed = said.changed() => if changed.is_err() { return },
            () = sleep(period) => {}
        }
    }
}

/// Sets the status line from the leader's handle, until `cancel`. On a machine without etcd the
/// handle shows this machine alone.
pub(crate) async fn tell_status(
    status: ServiceStatus,
    handle: LeaderHandle,
    member: bool,
    cancel: CancellationToken,
) {
    let mut snapshots = handle.snapshot.clone();
    let mut leadership = handle.leadership.clone();
    loop {
        let leads = leadership.borrow_and_update().is_some();
        let words = match snapshots.borrow_and_update().as_ref() {
            None => "waiting for etcd; workloads run on".to_owned(),
            Some(snapshot) => {
                let role = match (leads, member) {
                    (true, _) => "leading",
                    (false, true) => "following",
                    (false, false) => "working",
                };
                let instances = snapshot.instances.len();
                if member {
                    let machines = counted(snapshot.nodes.len(), "machine");
                    format!("{role}; {}, {machines}", counted(instances, "instance"))
                } else {
                    format!("{role}; {} on this machine", counted(instances, "instance"))
                }
            }
        };
        status.say(&words);
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = leadership.changed() => if changed.is_err() { return },
        }
    }
}

fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_fed_until_a_loop_hangs() {
        let pulses = LoopPulses::default();
        let (words, said) = watch::channel("leading".to_owned());
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = Arc::clone(&told);
        let period = Duration::from_secs(10);
        tokio::spawn(send_status_lines(
            said,
            pulses.clone(),
            period,
            move |states| {
                let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
                heard.lock().push(lines.join(" "));
            },
        ));
        let told_in = async |time: u64| {
            told.lock().clear();
            sleep(Duration::from_secs(time)).await;
            std::mem::take(&mut *told.lock())
        };
        let waits = pulses.watch("the loop that waits");
        tokio::spawn(async move { waits.wait(std::future::pending::<()>()).await });
        let fed = told_in(601).await;
        assert!(fed.len() >= 60, "{fed:?}");
        assert!(
            fed.iter().all(|line| line == "STATUS=leading WATCHDOG=1"),
            "{fed:?}"
        );
        let hangs = pulses.watch("the loop that hangs");
        told_in(kat_daemon::watchdog::STALLED.as_secs()).await;
        // Other status messages do not feed the watchdog.
        words.send_replace("following".to_owned());
        let starved = told_in(600).await;
        assert!(starved.len() >= 60, "{starved:?}");
        assert!(
            starved
                .iter()
                .all(|line| line == "STATUS=the loop that hangs hangs"),
            "{starved:?}"
        );
        hangs.beat();
        let fed = told_in(100).await;
        assert!(
            fed.iter().all(|line| line == "STATUS=following WATCHDOG=1"),
            "{fed:?}"
        );
    }
}
