//! `systemctl reload kat-agent`: takes a changed `/etc/kat/agent.yaml`, which is checked first.
//!
//! systemd sends SIGHUP (`Type=notify-reload`). With a valid file that says something else the agent
//! ends, and systemd starts it anew, so that every setting holds at once and everywhere; workloads run
//! on. With a file that is not valid nothing changes: the agent would not start with it.

use anyhow::Context;
use sd_notify::NotifyState;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::{blocking::may_block, paths};
use crate::commands::setup::read_agent_config;
use kat_types::{encoding::plain::plain, resource::AgentConfig};

/// The requests of systemd. From its creation on, SIGHUP does not end the process.
pub(super) struct ReloadRequests(Signal);

/// What the requests led to, for other loops.
#[derive(Clone, Default)]
pub(super) struct ReloadOutcomes {
    /// Why the file was not taken, in one line; `None` where it was.
    pub(super) refused: watch::Sender<Option<String>>,
    /// Ends the agent, which systemd then starts with the new settings.
    pub(super) restart: CancellationToken,
}

/// What a reload does.
#[derive(Debug, PartialEq, Eq)]
enum ReloadDecision {
    Unchanged,
    Restart,
    Refused(String),
}

impl ReloadDecision {
    fn of(running: &AgentConfig, read: anyhow::Result<AgentConfig>) -> Self {
        match read {
            Ok(config) if config == *running => Self::Unchanged,
            Ok(_) => Self::Restart,
            Err(error) => Self::Refused(format!("{error:#}")),
        }
    }
}

impl ReloadRequests {
    /// To be called before systemd is told that the service is ready.
    pub(super) fn register() -> anyhow::Result<Self> {
        Ok(Self(signal(SignalKind::hangup()).context("SIGHUP")?))
    }

    /// Answers requests until `cancel`. `running` are the settings of this process.
    pub(super) async fn answer(
        mut self,
        running: AgentConfig,
        outcomes: ReloadOutcomes,
        cancel: CancellationToken,
    ) {
        while let Some(Some(())) = cancel.run_until_cancelled(self.0.recv()).await {
            let mut begin = vec![NotifyState::Reloading];
            begin.extend(NotifyState::monotonic_usec_now().ok());
            let _ = sd_notify::notify(&begin);
            let read = may_block(async { read_agent_config() }).await;
            let decision = ReloadDecision::of(&running, read);
            match &decision {
                ReloadDecision::Unchanged => {
                    tracing::info!("{} says what this agent runs with", paths::AGENT_CONFIG);
                }
                ReloadDecision::Restart => tracing::info!(
                    "{} is taken: systemd starts kat-agent anew; workloads run on",
                    paths::AGENT_CONFIG
                ),
                ReloadDecision::Refused(error) => tracing::error!(
                    "{} is not taken, and the earlier settings stay: {error}",
                    paths::AGENT_CONFIG
                ),
            }
            outcomes.refused.send_replace(match &decision {
                ReloadDecision::Refused(error) => Some(refusal_line(error)),
                _ => None,
            });
            let _ = sd_notify::notify(&[NotifyState::Ready]);
            if decision == ReloadDecision::Restart {
                outcomes.restart.cancel();
            }
        }
    }
}

/// For the service's status line: systemd takes a line break for the next message.
fn refusal_line(error: &str) -> String {
    let lines: Vec<_> = error.lines().map(str::trim).collect();
    let says = lines.iter().find(|line| line.starts_with("error"));
    let says = says.or(lines.first()).copied().unwrap_or_default();
    format!(
        "{} is not taken, and the earlier settings stay: {}",
        paths::AGENT_CONFIG,
        plain(says)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_valid_changes_nothing_and_the_status_says_why_in_one_line() {
        let running = AgentConfig::default();
        let wrong = "the configuration is not valid\nerror[unknown]: no such field\n --> /etc/kat/agent.yaml:1:1";
        let refused = ReloadDecision::of(&running, Err(anyhow::anyhow!(wrong)));
        assert_eq!(refused, ReloadDecision::Refused(wrong.to_owned()));
        assert_eq!(
            refusal_line(wrong),
            "/etc/kat/agent.yaml is not taken, and the earlier settings stay: error[unknown]: no such field"
        );
    }

    #[test]
    fn only_settings_that_differ_start_the_agent_anew() {
        let running = AgentConfig::default();
        let same = ReloadDecision::of(&running, Ok(AgentConfig::default()));
        assert_eq!(same, ReloadDecision::Unchanged);
        let other = AgentConfig {
            host_network_allow: true,
            ..AgentConfig::default()
        };
        let changed = ReloadDecision::of(&running, Ok(other));
        assert_eq!(changed, ReloadDecision::Restart);
    }

    #[test]
    fn systemd_sends_reloads_to_the_agent() {
        let unit = include_str!("../../../packaging/systemd/kat-agent.service");
        assert!(unit.lines().any(|line| line == "Type=notify-reload"));
    }
}
