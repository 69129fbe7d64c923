//! Probes that are commands in the container.
//!
//! Each is a transient unit of the workload's user, in which crun enters the container with the user,
//! variables and capabilities that the container was made with. crun has to run in the user namespace
//! that Podman made for the user, where the unit's main process lives; `podman exec` would do the same
//! for four times the processor time (ARCHITECTURE.md, Health).

use std::{
    io::{self, Read},
    path::Path,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    host::files::open_plain,
    systemd::{JobResult, SystemdError, TransientEnd, TransientUnit, UnitManager},
};

/// From the end of a command's time to the end of the agent's patience.
const MARGIN: Duration = Duration::from_secs(5);
/// Digits of a container's id.
const ID_DIGITS: usize = 64;

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The user that runs it.
    pub uid: u32,
    /// Its unit, without `.service`.
    pub stem: String,
    /// Main process of the unit, which lives in the user namespace of the container.
    pub main_pid: u32,
}

impl Inside {
    /// The command that runs `command` in the container of this id.
    fn command(&self, container: &str, command: &[String]) -> Vec<String> {
        let own = [
            "/usr/bin/nsenter",
            "--user",
            "--preserve-credentials",
            "--target",
            &self.main_pid.to_string(),
            "/usr/bin/crun",
            "--root",
            &format!("/run/user/{}/crun", self.uid),
            "exec",
            "--no-new-privs",
            container,
        ]
        .map(str::to_owned);
        own.into_iter().chain(command.iter().cloned()).collect()
    }

    /// Runs the command; a sentence unless it ended with 0 in its time.
    pub async fn run(
        &self,
        manager: &dyn UnitManager,
        root: &Path,
        command: &[String],
        (number, limit): (u64, Duration),
    ) -> Result<(), String> {
        let file = root.join(format!("run/user/{}/{}.cid", self.uid, self.stem));
        let container =
            container(&file).map_err(|error| format!("its container can't be told: {error}"))?;
        let unit = TransientUnit {
            name: format!("health-{}-{number}.service", self.stem),
            description: format!("Health check of {}", self.stem),
            command: self.command(&container, command),
            limit,
        };
        let began = Instant::now();
        let ended = manager.run_transient(&unit, limit + MARGIN).await;
        judge(ended, began.elapsed() >= limit, limit)
    }
}

/// The id that Podman wrote. The folder is the user's own, and so may the file be: it names a container,
/// and nothing else of it goes anywhere.
fn container(file: &Path) -> io::Result<String> {
    let mut id = String::new();
    let limit = u64::try_from(ID_DIGITS).unwrap_or(u64::MAX) + 2;
    open_plain(file)?.take(limit).read_to_string(&mut id)?;
    let id = id.trim_ascii();
    if id.len() != ID_DIGITS || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(io::Error::other(format!(
            "{} does not hold the {ID_DIGITS} digits of an id",
            file.display()
        )));
    }
    Ok(id.to_owned())
}

fn judge(
    ended: Result<TransientEnd, SystemdError>,
    took_all: bool,
    limit: Duration,
) -> Result<(), String> {
    match ended {
        Ok(TransientEnd {
            result: JobResult::Done,
            ..
        }) => Ok(()),
        Ok(TransientEnd {
            exit_status: Some(status),
            ..
        }) if !took_all => Err(format!("exit code {status}")),
        Ok(_) | Err(SystemdError::JobTimeout { .. }) if took_all => Err(super::timed_out(limit)),
        Ok(_) => Err("the command was ended by a signal".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_enters_the_container_and_gains_nothing() {
        let inside = Inside {
            uid: 20_007,
            stem: "kat-default-web-aaaaa".to_owned(),
            main_pid: 42,
        };
        let command = ["/bin/check".to_owned(), "a b".to_owned()];
        let expected = [
            "/usr/bin/nsenter --user --preserve-credentials --target 42",
            "/usr/bin/crun --root /run/user/20007/crun exec --no-new-privs 0a1b /bin/check a b",
        ];
        let found = inside.command("0a1b", &command);
        assert_eq!(found.join(" "), expected.join(" "));
        assert_eq!(found.last().map(String::as_str), Some("a b"));
    }

    #[test]
    fn its_end_is_told_in_words() {
        let limit = Duration::from_secs(2);
        let ended = |result, exit_status| {
            Ok(TransientEnd {
                result,
                exit_status,
            })
        };
        for (end, took_all, expected) in [
            (ended(JobResult::Done, None), false, Ok(())),
            (ended(JobResult::Failed, Some(3)), false, Err("exit code 3")),
            (
                ended(JobResult::Failed, None),
                false,
                Err("the command was ended by a signal"),
            ),
            // crun passes the signal on, and ends as the command did.
            (
                ended(JobResult::Failed, Some(143)),
                true,
                Err("timeout after 2 s"),
            ),
            (
                ended(JobResult::Failed, None),
                true,
                Err("timeout after 2 s"),
            ),
            (
                Err(SystemdError::JobTimeout {
                    unit: "u".to_owned(),
                    limit,
                }),
                true,
                Err("timeout after 2 s"),
            ),
        ] {
            let words = expected.map_err(str::to_owned);
            assert_eq!(judge(end, took_all, limit), words);
        }
    }
}
