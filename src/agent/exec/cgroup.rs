//! Commands in containers beside the main program: probes, and commands of users.
//!
//! Each command runs in a control group of its own below its container's. So the container's limits
//! apply to it, and it ends completely: processes that ignore a signal and child processes end with
//! the group, while the container's own processes stay. The group belongs to the user, as the
//! container's does. It is made and removed by the command's unit in the user manager, whether an
//! agent runs or not.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use kat_host::files::open_plain;
use kat_systemd::{TransientUnit, UnitStatus};
use kat_types::{assignment::Assignment, encoding::frames::PassedSignal};

/// Digits of a container's id.
const ID_DIGITS: usize = 64;
/// Mount point of the control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Makes the group `$0` and runs the command in the remaining arguments.
const BEGIN: &str =
    r#"mkdir "$0" || { echo "its container is not there any more" >&2; exit 125; }; exec "$@""#;
/// Kills the processes in the group `$0` and removes it; retried, since killed processes take a
/// moment to exit. The group may have been removed with its container.
const END: &str = r#"until rmdir "$0" || ! [ -d "$0" ]; do echo 1 >"$0/cgroup.kill"; sleep 0.02; done 2>/dev/null"#;
/// Calls the program in the remaining arguments with process ids in the group `$0`: all of them if
/// `$1` is `all`, otherwise that of the first process. It waits for the first process, the command,
/// which may just be starting.
const SIGNAL: &str = r#"
n=0
until read -r pids <"$0/cgroup.procs"; do
    [ "$n" = 20 ] && exit 1
    n=$((n + 1))
    sleep 0.1
done 2>/dev/null
if [ "$1" = all ]; then
    pids=
    while read -r pid; do pids="$pids $pid"; done <"$0/cgroup.procs"
fi
shift
exec "$@" $pids
"#;

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningContainer {
    /// The user that runs the container.
    pub uid: u32,
    /// The container's unit without `.service`.
    pub stem: String,
    /// Main process of the unit, which runs in the user namespace of the container.
    pub main_pid: u32,
    /// Control group of the unit.
    pub control_group: String,
}

impl RunningContainer {
    /// The main container of an assignment; `status` is its unit's state.
    pub(crate) fn of(assignment: &Assignment, status: &UnitStatus) -> Self {
        Self::of_unit(assignment, &assignment.unit(), status)
    }

    /// The container with this unit; `status` is the unit's state.
    pub(crate) fn of_unit(assignment: &Assignment, unit: &str, status: &UnitStatus) -> Self {
        Self {
            uid: assignment.user.uid,
            stem: unit.strip_suffix(".service").unwrap_or(unit).to_owned(),
            main_pid: status.main_pid,
            control_group: status.control_group.clone(),
        }
    }

    /// The command prefix to run a program of the machine as root of the user's user namespace.
    fn entered(&self) -> [String; 5] {
        [
            "/usr/bin/nsenter",
            "--user",
            "--preserve-credentials",
            "--target",
            &self.main_pid.to_string(),
        ]
        .map(str::to_owned)
    }

    /// The control group for this unit in the container that runs now. Podman wrote the container's
    /// id below `root`, in a folder that belongs to the user, as the file may. So its content is
    /// untrusted; it is only used as a container id.
    ///
    /// # Errors
    /// The container's id can't be read.
    pub(crate) fn group(&self, root: &Path, unit: &str) -> io::Result<CommandCgroup> {
        let file = root.join(format!("run/user/{}/{}.cid", self.uid, self.stem));
        let mut id = String::new();
        let limit = u64::try_from(ID_DIGITS).unwrap_or(u64::MAX) + 2;
        open_plain(&file)?.take(limit).read_to_string(&mut id)?;
        let id = id.trim_ascii();
        if id.len() != ID_DIGITS || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(io::Error::other(format!(
                "{} does not hold the {ID_DIGITS} digits of an id",
                file.display()
            )));
        }
        let name = unit.strip_suffix(".service").unwrap_or(unit).to_owned();
        let own = self.control_group.trim_start_matches('/');
        Ok(CommandCgroup {
            path: Path::new(GROUPS)
                .join(own)
                .join(format!("libpod-payload-{id}"))
                .join(&name),
            name,
            container: id.to_owned(),
            inside: self.clone(),
        })
    }
}

/// The control group of one command, below its container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandCgroup {
    path: PathBuf,
    name: String,
    container: String,
    inside: RunningContainer,
}

impl CommandCgroup {
    #[cfg(test)]
    pub(crate) fn at(path: &Path, name: &str) -> Self {
        let inside = RunningContainer {
            uid: 20_000,
            stem: "kat-default-web-aaaaa".to_owned(),
            main_pid: 42,
            control_group: "/user.slice/kat-default-web-aaaaa.service".to_owned(),
        };
        Self {
            path: path.to_owned(),
            name: name.to_owned(),
            container: "0a1b".repeat(16),
            inside,
        }
    }

    fn script(&self, script: &str, words: impl IntoIterator<Item = String>) -> Vec<String> {
        let path = self.path.display().to_string();
        let shell = ["/bin/sh", "-c", script, &path].map(str::to_owned);
        shell.into_iter().chain(words).collect()
    }

    /// The command line that makes the group and runs a program of the machine in it.
    pub(crate) fn begin(&self, words: impl IntoIterator<Item = String>) -> Vec<String> {
        self.script(BEGIN, words)
    }

    /// The command line that kills the group's processes and removes the group.
    pub(crate) fn end(&self) -> Vec<String> {
        self.script(END, [])
    }

    /// The command line of a probe: crun runs the command in the container with the user, variables
    /// and capabilities that the container was made with.
    pub(crate) fn probe(&self, command: &[String]) -> Vec<String> {
        let crun = [
            "/usr/bin/crun",
            "--root",
            &format!("/run/user/{}/crun", self.inside.uid),
            "exec",
            "--no-new-privs",
            &format!("--cgroup=/{}", self.name),
            &self.container,
        ]
        .map(str::to_owned);
        let words = self.inside.entered().into_iter().chain(crun);
        self.begin(words.chain(command.iter().cloned()))
    }

    /// A unit that sends a signal to the command, or to all processes of the group for signals that
    /// a terminal sends for a key.
    pub(crate) fn signal(&self, signal: PassedSignal, number: u64) -> TransientUnit {
        let name = signal.name();
        let whom = match signal {
            PassedSignal::Terminate => "first",
            PassedSignal::Hangup | PassedSignal::Interrupt | PassedSignal::Quit => "all",
        };
        let kill = ["/usr/bin/kill", "-s", name].map(str::to_owned);
        let entered = self.inside.entered().into_iter().chain(kill);
        TransientUnit {
            name: format!("{}-signal-{number}.service", self.name),
            description: format!("SIG{name} for a command in {}", self.inside.stem),
            command: self.script(SIGNAL, [whom.to_owned()].into_iter().chain(entered)),
            ..TransientUnit::default()
        }
    }
}

#[cfg(test)]
mod tests;
