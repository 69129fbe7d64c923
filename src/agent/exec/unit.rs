//! The unit of one command.

use std::{
    sync::{LazyLock, atomic::Ordering},
    time::Duration,
};

use tokio::time::timeout;

use super::{LONGEST, LocalSessions};
use crate::exec::cgroup::{CommandCgroup, RunningContainer};
use kat_api::SessionError;
use kat_systemd::{TransientUnit, UnitManager};
use kat_types::{api::ExecRequest, assignment::Assignment};

/// Prefix of the units' names.
pub(crate) const PREFIX: &str = "kat-exec-";
/// Prefix of the units' names of this process of the agent.
static OWN_PREFIX: LazyLock<String> =
    LazyLock::new(|| format!("{PREFIX}{:08x}-", rand::random::<u32>()));
/// Podman settings under which Podman calls crun through KAT's own program, which puts the command
/// into its control group.
const PODMAN_CONF: &str = "/usr/share/kat/podman-exec.conf";
/// Longest wait for a unit's state from the user manager.
const STATUS: Duration = Duration::from_secs(5);

impl LocalSessions {
    /// The unit for a command in this container, and the command's control group.
    pub(super) async fn unit(
        &self,
        manager: &dyn UnitManager,
        assignment: &Assignment,
        request: &ExecRequest,
    ) -> Result<(TransientUnit, CommandCgroup), SessionError> {
        let instance = &assignment.instance;
        let container = unit_of(assignment, request)?;
        let status = timeout(STATUS, manager.status(&container)).await;
        let status = status
            .map_err(|_| "the manager of its user does not answer".to_owned())
            .and_then(|status| status.map_err(|error| error.to_string()))
            .map_err(|error| {
                SessionError::Unavailable(format!("`{instance}` can't be entered: {error}"))
            })?;
        if status.main_pid == 0 {
            let state = &status.active_state;
            let message = format!("`{instance}` does not run: its unit is {state}");
            return Err(SessionError::Conflict(message));
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number:08x}.service", *OWN_PREFIX);
        let inside = RunningContainer::of_unit(assignment, &container, &status);
        let group = inside.group(&self.root, &name).map_err(|error| {
            let message = format!("cannot find the container of `{instance}`: {error}");
            SessionError::Unavailable(message)
        })?;
        let unit = TransientUnit {
            name,
            // The command may contain confidential data, so no description has it.
            description: format!("a command of katcall exec in {instance}"),
            environment: vec![format!("CONTAINERS_CONF_OVERRIDE={PODMAN_CONF}")],
            command: group.begin(command(&container, request)),
            afterwards: group.end(),
            limit: LONGEST,
            confinement: None,
        };
        Ok((unit, group))
    }
}

/// The unit of the requested container.
fn unit_of(assignment: &Assignment, request: &ExecRequest) -> Result<String, SessionError> {
    let Some(name) = &request.container else {
        return Ok(assignment.unit());
    };
    assignment.unit_of(name).ok_or_else(|| {
        let instance = &assignment.instance;
        let names = assignment.container_names().join(", ");
        SessionError::Conflict(format!(
            "`{instance}` has no container `{name}`; its containers are {names}"
        ))
    })
}

/// The command line for the container of this unit.
pub(super) fn command(unit: &str, request: &ExecRequest) -> Vec<String> {
    let container = unit.strip_suffix(".service").unwrap_or(unit);
    let mut words = vec![
        "/usr/bin/podman".to_owned(),
        "exec".to_owned(),
        // Otherwise Podman would not pass Ctrl-P and Ctrl-Q on to the program.
        "--detach-keys=".to_owned(),
    ];
    if request.stdin {
        words.push("--interactive".to_owned());
    }
    if request.terminal.is_some() {
        words.push("--tty".to_owned());
        if !request.term.is_empty() {
            words.push(format!("--env=TERM={}", request.term));
        }
    }
    words.push(container.to_owned());
    words.extend(request.command.iter().cloned());
    words
}

/// The units among these that an earlier process of the agent started. Their callers are gone.
pub(crate) fn without_caller(units: Vec<String>) -> impl Iterator<Item = String> {
    let own = |unit: &String| unit.starts_with(OWN_PREFIX.as_str());
    units.into_iter().filter(move |unit| !own(unit))
}
