//! What `systemctl status kat-agent` shows, and the watchdog.

use std::time::Duration;

use tokio::{sync::watch, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::leader::LeaderHandle;

/// The STATUS= line of the service, and its watchdog.
#[derive(Clone)]
pub struct ServiceStatus {
    words: watch::Sender<String>,
}

impl ServiceStatus {
    /// Says Ready to systemd, and keeps the watchdog content until `cancel`.
    pub fn start(tasks: &mut JoinSet<()>, cancel: &CancellationToken) -> Self {
        let (words, mut said) = watch::channel("starting".to_owned());
        let cancel = cancel.clone();
        let watchdog =
            sd_notify::watchdog_enabled().map_or(Duration::from_secs(10), |limit| limit / 3);
        tasks.spawn(async move {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
            loop {
                let words = said.borrow_and_update().clone();
                let _ = sd_notify::notify(&[
                    sd_notify::NotifyState::Status(&words),
                    sd_notify::NotifyState::Watchdog,
                ]);
                tokio::select! {
                    () = cancel.cancelled() => return,
                    changed = said.changed() => if changed.is_err() { return },
                    () = sleep(watchdog) => {}
                }
            }
        });
        Self { words }
    }

    /// What it does or waits for now.
    pub fn say(&self, words: &str) {
        self.words.send_if_modified(|present| {
            let differs = present != words;
            words.clone_into(present);
            differs
        });
    }
}

/// Tells what the leader's handle shows, until `cancel`.
pub async fn tell_status(status: ServiceStatus, handle: LeaderHandle, cancel: CancellationToken) {
    let mut snapshots = handle.snapshot.clone();
    let mut leadership = handle.leadership.clone();
    loop {
        let leads = leadership.borrow_and_update().is_some();
        let words = match snapshots.borrow_and_update().as_ref() {
            None => "waiting for etcd; workloads run on".to_owned(),
            Some(snapshot) => {
                let role = if leads { "leading" } else { "following" };
                format!(
                    "{role}; {} instances, {} machines",
                    snapshot.instances.len(),
                    snapshot.nodes.len()
                )
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
