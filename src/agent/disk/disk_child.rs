//! The child process that works on a file system that may hang ([`super::foreign_disks`]): it reads
//! one task from its standard input, which is a socket, and writes the answer there.

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};

use super::{
    foreign_disks::{DiskLane, DiskTask},
    pressure::{FreeSpace, measure_free_space},
};
use crate::{
    commands::recovery::BackupWork,
    volumes::{PreparedMounts, RemovalFailure, VolumeTrouble, Volumes},
};
use kat_daemon::logging;
use kat_host::bound_paths::PathBind;
use kat_types::{
    assignment::Assignment, encoding::json, machine::root::Root, reason::Reason,
    resource::AgentConfig, volumes::RemovalRecord,
};

/// The hidden command of `kat-agent` that runs a child.
pub(crate) const COMMAND: &str = "work-on-disk";
/// Largest task and largest answer, in bytes.
pub(crate) const LARGEST: u32 = 16 << 20;

/// Every task of a child.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AnyDiskTask {
    Prepare(PrepareVolumes),
    Remove(RemoveVolume),
    Measure(MeasureFreeSpace),
    Backup(BackupWork),
}

/// The volumes of a machine, as a child needs them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumePlaces {
    pub root: PathBuf,
    pub base: PathBuf,
    pub config: AgentConfig,
}

impl VolumePlaces {
    fn open(&self) -> Volumes {
        Volumes::of_child(&Root::new(&self.root), self)
    }
}

/// Prepares what an instance mounts of one file system.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PrepareVolumes {
    pub places: VolumePlaces,
    /// With the volumes of this file system only.
    pub assignment: Box<Assignment>,
    pub what: PreparedMounts,
}

/// The answer to [`PrepareVolumes`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PreparedVolumes {
    binds: Vec<PathBind>,
    /// Reason and message, where the instance can't have one of them.
    trouble: Option<(String, String)>,
    /// Volume folders to record as made and used.
    pub noted: BTreeSet<String>,
}

impl PreparedVolumes {
    pub(crate) fn into_binds(self) -> Result<Vec<PathBind>, VolumeTrouble> {
        match self.trouble {
            None => Ok(self.binds),
            Some((reason, message)) => Err(VolumeTrouble {
                // A child of the same version writes no unknown word.
                reason: Reason::from_word(&reason).unwrap_or(Reason::VolumeFailed),
                message,
            }),
        }
    }
}

impl From<PrepareVolumes> for AnyDiskTask {
    fn from(task: PrepareVolumes) -> Self {
        Self::Prepare(task)
    }
}

impl DiskTask for PrepareVolumes {
    const LANE: DiskLane = DiskLane::Prepare;
    type Answer = PreparedVolumes;

    fn run(self) -> PreparedVolumes {
        let volumes = self.places.open();
        let prepared = match self.what {
            PreparedMounts::All => volumes.prepare(&self.assignment),
            PreparedMounts::HostPaths => volumes.prepare_host_paths(&self.assignment),
            PreparedMounts::BesidePredecessor => volumes.prepare_beside(&self.assignment),
        };
        let (binds, trouble) = match prepared {
            Ok(binds) => (binds, None),
            Err(trouble) => (Vec::new(), Some((trouble.reason.into(), trouble.message))),
        };
        PreparedVolumes {
            binds,
            trouble,
            noted: volumes.noted(),
        }
    }
}

/// What of a removal a child does: the agent records in between that it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RemovalStep {
    /// Looks whether there is data to remove.
    Look,
    /// Removes it.
    Remove,
}

/// Removes the data of a volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RemoveVolume {
    pub places: VolumePlaces,
    pub folder: String,
    pub record: RemovalRecord,
    pub step: RemovalStep,
}

impl From<RemoveVolume> for AnyDiskTask {
    fn from(task: RemoveVolume) -> Self {
        Self::Remove(task)
    }
}

impl DiskTask for RemoveVolume {
    const LANE: DiskLane = DiskLane::Remove;
    /// Whether there was data to remove, as far as the step looks.
    type Answer = Result<bool, RemovalFailure>;

    fn run(self) -> Self::Answer {
        let volumes = self.places.open();
        let done = match self.step {
            RemovalStep::Look => volumes.has_data_to_remove(&self.folder, self.record),
            RemovalStep::Remove => volumes.remove(&self.folder, self.record).map(|()| false),
        };
        done.map_err(|error| RemovalFailure::from(&error))
    }
}

/// Measures the free space of the file system that contains a path.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MeasureFreeSpace {
    pub path: PathBuf,
}

impl From<MeasureFreeSpace> for AnyDiskTask {
    fn from(task: MeasureFreeSpace) -> Self {
        Self::Measure(task)
    }
}

impl DiskTask for MeasureFreeSpace {
    const LANE: DiskLane = DiskLane::Measure;
    /// `None` where the path does not exist.
    type Answer = Result<Option<FreeSpace>, String>;

    fn run(self) -> Self::Answer {
        match measure_free_space(&self.path) {
            Ok(room) => Ok(Some(room)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The body of the child: one task. It logs as the agent does, and ends early when the agent's end of
/// the socket is closed.
///
/// # Errors
/// The standard input is no socket, or has no task.
pub(crate) fn serve() -> io::Result<()> {
    logging::start();
    let input = rustix::io::dup(io::stdin())?;
    let mut socket = UnixStream::from(input);
    let task = receive(&mut socket)?;
    let task: AnyDiskTask = serde_json::from_slice(&task)?;
    let mut ended = socket.try_clone()?;
    let watch = std::thread::Builder::new().name("agent".to_owned());
    watch.spawn(move || {
        // The agent sends nothing after the task.
        let _ = ended.read(&mut [0]);
        std::process::exit(1);
    })?;
    let answer = match task {
        AnyDiskTask::Prepare(task) => encode(&task.run()),
        AnyDiskTask::Remove(task) => encode(&task.run()),
        AnyDiskTask::Measure(task) => encode(&task.run()),
        AnyDiskTask::Backup(task) => encode(&task.run()),
    }?;
    let length = u32::try_from(answer.len()).map_err(io::Error::other)?;
    socket.write_all(&length.to_be_bytes())?;
    socket.write_all(&answer)
}

fn encode<T: Serialize>(answer: &T) -> io::Result<Vec<u8>> {
    json::bytes("an answer of a disk", answer).map_err(io::Error::other)
}

fn receive(socket: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > LARGEST {
        return Err(io::Error::other("the task is too long"));
    }
    let mut task = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    socket.read_exact(&mut task)?;
    Ok(task)
}

#[cfg(test)]
mod tests {
    use std::{
        os::fd::OwnedFd,
        process::{Command, Stdio},
    };

    use super::*;
    use crate::tests::hung_disk::child_command;

    #[test]
    fn a_child_logs_as_the_agent_does() {
        let root = tempfile::tempdir().unwrap();
        let list = root.path().join("var/lib/kat/volumes.json");
        std::fs::create_dir_all(list.parent().unwrap()).unwrap();
        std::fs::write(&list, "damaged").unwrap();
        let task = AnyDiskTask::from(RemoveVolume {
            places: VolumePlaces {
                root: root.path().to_owned(),
                base: "/var/lib/kat/volumes".into(),
                config: AgentConfig::default(),
            },
            folder: "default/db/data".to_owned(),
            record: RemovalRecord {
                schema: 1,
                asked: jiff::Timestamp::UNIX_EPOCH,
                index: 0,
                made: false,
                copy: false,
                unsure: false,
                forget: false,
            },
            step: RemovalStep::Look,
        });
        let task = encode(&task).unwrap();
        let (mut own, childs) = UnixStream::pair().unwrap();
        let command = child_command();
        let child = Command::new(&command.program)
            .args(&command.arguments)
            .envs(command.variables)
            .env_remove("JOURNAL_STREAM")
            .stdin(Stdio::from(OwnedFd::from(childs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let length = u32::try_from(task.len()).unwrap();
        own.write_all(&length.to_be_bytes()).unwrap();
        own.write_all(&task).unwrap();
        let answer = receive(&mut own).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), r#"{"Ok":false}"#);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("the list of volumes can't be read"), "{said}");
    }
}
