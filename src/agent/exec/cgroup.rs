//! Commands in containers, beside the program: probes, and what people run.
//!
//! Each runs in a control group of its own below its container's, so that the container's limits hold for
//! it, and so that its end is whole: what ignores a signal and what the command has started end with it,
//! and nothing of the container's own does. The group is the user's, as the container's is. It is made and
//! ended by the unit of the user's manager that the command belongs to, whether an agent runs or not.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use kat_host::files::open_plain;
use kat_systemd::{TransientUnit, UnitStatus};
use kat_types::assignment::Assignment;
use kat_types::frames::PassedSignal;

/// Digits of a container's id.
const ID_DIGITS: usize = 64;
/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// `$0` is the group, the rest the command.
const BEGIN: &str =
    r#"mkdir "$0" || { echo "its container is not there any more" >&2; exit 125; }; exec "$@""#;
/// The group may be gone with its container. What is killed takes a moment to go.
const END: &str = r#"until rmdir "$0" || ! [ -d "$0" ]; do echo 1 >"$0/cgroup.kill"; sleep 0.02; done 2>/dev/null"#;
/// `$0` is the group, `$1` whether its first process alone is meant, the rest what takes their numbers. The
/// command, which is the first, may just begin.
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

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The user that runs it.
    pub uid: u32,
    /// Its unit, without `.service`.
    pub stem: String,
    /// Main process of the unit, which lives in the user namespace of the container.
    pub main_pid: u32,
    /// Control group of the unit.
    pub control_group: String,
}

impl Inside {
    /// The container of this assignment, whose unit has this status.
    pub fn of(assignment: &Assignment, status: &UnitStatus) -> Self {
        Self::of_unit(assignment, &assignment.unit(), status)
    }

    /// One of its containers, by its unit, which has this status.
    pub fn of_unit(assignment: &Assignment, unit: &str, status: &UnitStatus) -> Self {
        Self {
            uid: assignment.user.uid,
            stem: unit.strip_suffix(".service").unwrap_or(unit).to_owned(),
            main_pid: status.main_pid,
            control_group: status.control_group.clone(),
        }
    }

    /// Runs a program of the machine as root of the user namespace that Podman made for the user.
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

    /// The group that is named as this unit, in the container that runs now. Podman wrote the container's
    /// id below `root`. The folder is the user's own, and so may the file be: it names a container, and
    /// nothing else of it goes anywhere.
    ///
    /// # Errors
    /// The container can't be told.
    pub fn group(&self, root: &Path, unit: &str) -> io::Result<Group> {
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
        Ok(Group {
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

/// A control group of one command below its container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    path: PathBuf,
    name: String,
    container: String,
    inside: Inside,
}

impl Group {
    /// One that lies elsewhere.
    #[cfg(test)]
    pub fn at(path: &Path, name: &str) -> Self {
        let inside = Inside {
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

    /// Makes the group, and runs a program of the machine that enters it.
    pub fn begin(&self, words: impl IntoIterator<Item = String>) -> Vec<String> {
        self.script(BEGIN, words)
    }

    /// Ends all that is in the group, and the group.
    pub fn end(&self) -> Vec<String> {
        self.script(END, [])
    }

    /// The command, entered by crun itself, with the user, variables and capabilities that the container
    /// was made with.
    pub fn probe(&self, command: &[String]) -> Vec<String> {
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

    /// A unit that sends a signal to the command, or to all in the group: as a terminal does with a key's.
    pub fn signal(&self, signal: PassedSignal, number: u64) -> TransientUnit {
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
