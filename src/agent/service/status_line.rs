//! The service's status line in `systemctl status kat-agent`, and its watchdog.

use std::time::Duration;

use jiff::Timestamp;
use sd_notify::NotifyState;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    desired_state::known_epochs::refused_epoch_text,
    network::kat_net_probe,
    reporter::{LeaderSilence, OUTSIDE},
};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::LeaderHandle;
use kat_types::encoding::plain::plain;

/// Most machines that the status line names as asked.
const ASKED_NAMED: usize = 4;

/// Sends the service's `STATUS=` line and its watchdog messages.
#[derive(Clone)]
pub(crate) struct ServiceStatus {
    words: watch::Sender<String>,
}

impl ServiceStatus {
    /// Reports readiness to systemd. The loop that is returned sends watchdog messages for as long as
    /// no loop of `pulses` hangs.
    pub(crate) fn start(pulses: &LoopPulses) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (words, said) = watch::channel("starting".to_owned());
        let period =
            sd_notify::watchdog_enabled().map_or(Duration::from_secs(10), |limit| limit / 3);
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        let watchdog = send_status_lines(said, pulses.clone(), period, |states| {
            let _ = sd_notify::notify(states);
        });
        (Self { words }, watchdog)
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
                tracing::error!("{name} hangs; the watchdog is no longer notified");
                notify(&[NotifyState::Status(&format!("{name} hangs"))]);
            }
        }
        tokio::select! {
            changed = said.changed() => if changed.is_err() { return },
            () = sleep(period) => {}
        }
    }
}

/// What the status line tells of.
pub(crate) struct StatusSources {
    /// On a machine without etcd it shows this machine alone.
    pub handle: LeaderHandle,
    /// What the reporter hears of the leader.
    pub silence: watch::Receiver<Option<LeaderSilence>>,
    /// A later epoch of the store that this machine refuses.
    pub refused_epoch: watch::Receiver<Option<u64>>,
    /// Whether the cluster does not know this machine any more.
    pub outside: watch::Receiver<bool>,
    /// Since when `kat-net` runs and does not answer.
    pub data_path_silent: watch::Receiver<Option<Timestamp>>,
    /// Why a changed `agent.yaml` was not taken.
    pub refused_settings: watch::Receiver<Option<String>>,
    /// Whether this machine holds etcd.
    pub member: bool,
}

/// Sets the status line until `cancel`.
pub(crate) async fn tell_status(
    status: ServiceStatus,
    sources: StatusSources,
    cancel: CancellationToken,
) {
    let StatusSources {
        handle,
        mut silence,
        mut refused_epoch,
        mut outside,
        mut data_path_silent,
        mut refused_settings,
        member,
    } = sources;
    let mut snapshots = handle.snapshot.clone();
    let mut leadership = handle.leadership.clone();
    loop {
        let leads = leadership.borrow_and_update().is_some();
        let role = match (leads, member) {
            (true, _) => ServiceRole::Leading,
            (false, true) => ServiceRole::Following,
            (false, false) => ServiceRole::Working,
        };
        let seen = snapshots
            .borrow_and_update()
            .as_ref()
            .map(|snapshot| SeenCluster {
                instances: snapshot.instances.len(),
                machines: snapshot.nodes.len(),
            });
        let silent = silence.borrow_and_update().clone();
        let is_outside = *outside.borrow_and_update();
        // What this machine says to its own callers must not sound like the cluster's state.
        handle.planning.set_outside(is_outside.then_some(OUTSIDE));
        let text = match *refused_epoch.borrow_and_update() {
            _ if is_outside => OUTSIDE.to_owned(),
            Some(epoch) if role != ServiceRole::Leading => {
                format!("{}; workloads run on", refused_epoch_text(epoch))
            }
            _ => status_text(role, seen, silent.as_ref()),
        };
        let text = match *data_path_silent.borrow_and_update() {
            Some(since) => format!("{}; {text}", kat_net_probe::silence_text(since)),
            None => text,
        };
        let text = match refused_settings.borrow_and_update().as_ref() {
            Some(refusal) => format!("{refusal}; {text}"),
            None => text,
        };
        status.say(&text);
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = leadership.changed() => if changed.is_err() { return },
            changed = silence.changed() => if changed.is_err() { return },
            changed = refused_epoch.changed() => if changed.is_err() { return },
            changed = outside.changed() => if changed.is_err() { return },
            changed = data_path_silent.changed() => if changed.is_err() { return },
            changed = refused_settings.changed() => if changed.is_err() { return },
        }
    }
}

/// What this machine does in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServiceRole {
    Leading,
    /// It holds etcd, and another machine leads.
    Following,
    /// It does not hold etcd, and sees itself alone.
    Working,
}

/// How much a machine sees.
#[derive(Debug, Clone, Copy)]
struct SeenCluster {
    instances: usize,
    machines: usize,
}

/// The status line; `seen` is `None` until the store was read.
fn status_text(
    role: ServiceRole,
    seen: Option<SeenCluster>,
    silence: Option<&LeaderSilence>,
) -> String {
    let instances = |seen: SeenCluster| counted(seen.instances, "instance");
    let here = |seen: SeenCluster| format!("{} on this machine", instances(seen));
    if let Some(silence) = silence.filter(|_| role != ServiceRole::Leading) {
        let silent = silence_text(silence);
        return match (role, seen) {
            (ServiceRole::Working, Some(seen)) => {
                format!("{silent}; workloads run on; {}", here(seen))
            }
            (_, Some(_)) => format!("{silent}; workloads run on"),
            (_, None) => format!("{silent}; waiting for etcd; workloads run on"),
        };
    }
    let Some(seen) = seen else {
        return "waiting for etcd; workloads run on".to_owned();
    };
    let cluster = || {
        let machines = counted(seen.machines, "machine");
        format!("{}, {machines}", instances(seen))
    };
    match role {
        ServiceRole::Leading => format!("leading; {}", cluster()),
        ServiceRole::Following => format!("following; {}", cluster()),
        ServiceRole::Working => format!("working; {}", here(seen)),
    }
}

/// Such as `no leader answers since 2026-11-22 03:40 UTC (asked 192.0.2.1, 192.0.2.2)`.
fn silence_text(silence: &LeaderSilence) -> String {
    let mut hosts: Vec<&str> = Vec::new();
    for endpoint in &silence.asked {
        let host = endpoint
            .rsplit_once(':')
            .map_or(endpoint.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    let more = hosts.len().saturating_sub(ASKED_NAMED);
    hosts.truncate(ASKED_NAMED);
    // The names come from other machines, and a line break would begin another message to systemd.
    let named = plain(&hosts.join(", "));
    let asked = match (hosts.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" (asked {named})"),
        (false, more) => format!(" (asked {named} and {more} more)"),
    };
    let since = silence.since.strftime("%Y-%m-%d %H:%M UTC");
    format!("no leader answers since {since}{asked}")
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

    const SEEN: SeenCluster = SeenCluster {
        instances: 3,
        machines: 1,
    };

    fn silence(asked: &[&str]) -> LeaderSilence {
        LeaderSilence {
            since: "2026-11-22T03:40:12Z".parse().unwrap(),
            asked: asked.iter().map(|one| (*one).to_owned()).collect(),
        }
    }

    #[test]
    fn a_machine_with_a_leader_says_what_it_does() {
        for (role, seen, expected) in [
            (
                ServiceRole::Leading,
                Some(SEEN),
                "leading; 3 instances, 1 machine",
            ),
            (
                ServiceRole::Following,
                Some(SEEN),
                "following; 3 instances, 1 machine",
            ),
            (
                ServiceRole::Working,
                Some(SEEN),
                "working; 3 instances on this machine",
            ),
            (
                ServiceRole::Following,
                None,
                "waiting for etcd; workloads run on",
            ),
        ] {
            assert_eq!(status_text(role, seen, None), expected);
        }
    }

    #[test]
    fn a_machine_without_a_leader_says_since_when_and_whom_it_asked() {
        let silence = silence(&[
            "192.168.77.11:9115",
            "192.168.77.12:9115",
            "[2001:db8::1]:9115",
            "192.168.77.11:443",
        ]);
        let silent = "no leader answers since 2026-11-22 03:40 UTC (asked 192.168.77.11, 192.168.77.12, 2001:db8::1)";
        for (role, seen, rest) in [
            (
                ServiceRole::Working,
                Some(SEEN),
                "; workloads run on; 3 instances on this machine",
            ),
            (ServiceRole::Following, Some(SEEN), "; workloads run on"),
            (
                ServiceRole::Following,
                None,
                "; waiting for etcd; workloads run on",
            ),
        ] {
            let expected = format!("{silent}{rest}");
            assert_eq!(status_text(role, seen, Some(&silence)), expected);
        }
        // A leader's own report may fail once.
        let leads = status_text(ServiceRole::Leading, Some(SEEN), Some(&silence));
        assert_eq!(leads, "leading; 3 instances, 1 machine");
    }

    #[test]
    fn many_asked_machines_are_counted_and_their_names_are_one_line() {
        let asked = ["a:1", "b:1", "c\nWATCHDOG=1:1", "d:1", "e:1", "f:1"];
        let text = silence_text(&silence(&asked));
        assert!(text.ends_with(", d and 2 more)"), "{text}");
        assert!(!text.contains('\n'), "{text}");
        let nobody = silence_text(&silence(&[]));
        assert_eq!(nobody, "no leader answers since 2026-11-22 03:40 UTC");
    }

    /// A member that was deleted while it was cut off said that it follows.
    #[tokio::test(start_paused = true)]
    async fn a_machine_that_the_cluster_does_not_know_or_whose_kat_net_hangs_says_so() {
        let (_snapshots, snapshot) = watch::channel(None);
        let (_leaderships, leadership) = watch::channel(None);
        let handle = LeaderHandle {
            store: Arc::new(kat_testing::MemoryStore::default()),
            snapshot,
            shown: None,
            leadership,
            reports: kat_leader::AgentReports::default(),
            store_health: kat_leader::StoreHealth::default(),
            planning: kat_leader::PlanningHealth::default(),
            feed: None,
        };
        let planning = handle.planning.clone();
        let (words, said) = watch::channel(String::new());
        let (outside_now, outside) = watch::channel(false);
        let (_silence_now, silence) = watch::channel(None);
        let (_refused_now, refused_epoch) = watch::channel(None);
        let (hangs_now, data_path_silent) = watch::channel(None);
        let (refused_settings_now, refused_settings) = watch::channel(None);
        let sources = StatusSources {
            handle,
            silence,
            refused_epoch,
            outside,
            data_path_silent,
            refused_settings,
            member: true,
        };
        let cancel = CancellationToken::new();
        let task = tokio::spawn(tell_status(
            ServiceStatus { words },
            sources,
            cancel.clone(),
        ));
        let after = async |is_outside: bool| {
            outside_now.send_replace(is_outside);
            sleep(Duration::from_secs(1)).await;
            let outside = planning.report().and_then(|report| report.outside);
            (said.borrow().clone(), outside)
        };
        let (line, outside) = after(true).await;
        assert!(line.contains("no member of the cluster any more"), "{line}");
        assert!(line.contains("sudo kat-agent reset"), "{line}");
        assert_eq!(
            outside.as_deref(),
            Some(line.as_str()),
            "its own callers hear it"
        );
        let (line, outside) = after(false).await;
        assert_eq!(line, "waiting for etcd; workloads run on");
        assert_eq!(outside, None);
        hangs_now.send_replace(Some("2026-11-22T03:40:12Z".parse().unwrap()));
        let (line, _) = after(false).await;
        let hangs = "kat-net.service runs and has not answered since 2026-11-22 03:40:12 UTC";
        assert_eq!(line, format!("{hangs}; waiting for etcd; workloads run on"));
        hangs_now.send_replace(None);
        refused_settings_now.send_replace(Some("agent.yaml is not taken".to_owned()));
        let (line, _) = after(false).await;
        let refused = "agent.yaml is not taken; waiting for etcd; workloads run on";
        assert_eq!(line, refused);
        cancel.cancel();
        task.await.unwrap();
    }

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
