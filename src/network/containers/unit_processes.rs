//! Finds the containers of a user's unit in the control groups.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::verify::{known, own_prefix};

/// Where the kernel shows control groups (cgroups(7)).
const CGROUPS: &str = "/sys/fs/cgroup";
/// Most control groups that are read; a user may make many in a unit.
const MOST_FOLDERS: usize = 512;
/// Most processes that are read.
const MOST_PROCESSES: usize = 4096;

/// Returns the first processes of the containers in a unit of a user manager: each is the first
/// process of a pid namespace that is a child of the machine's own. Empty where the unit does not
/// run.
pub type UnitProcesses = Arc<dyn Fn(u32, &str) -> io::Result<Vec<i32>> + Send + Sync>;

/// Reads the processes from the machine's control groups and `/proc`.
pub(crate) fn machine_processes() -> UnitProcesses {
    let prefix = own_prefix();
    Arc::new(move |uid, unit| {
        let root = PathBuf::from(format!("{CGROUPS}{}", known(&prefix)?));
        let mut pids = in_unit(&root, uid, unit)?;
        pids.retain(|pid| {
            fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| is_first(&text))
        });
        Ok(pids)
    })
}

/// The processes in a unit's control group and below it.
fn in_unit(root: &Path, uid: u32, unit: &str) -> io::Result<Vec<i32>> {
    let manager = root.join(format!("user.slice/user-{uid}.slice/user@{uid}.service"));
    let mut slices = vec![manager];
    let mut looked = 0;
    // Only slices may be between the manager and the unit, as in `verify`.
    while let Some(slice) = slices.pop() {
        let found = slice.join(unit);
        if found.is_dir() {
            return all_below(found);
        }
        looked += 1;
        if looked < MOST_FOLDERS {
            let inner = folders(&slice)?;
            slices.extend(inner.into_iter().filter(|path| is_slice(path)));
        }
    }
    Ok(Vec::new())
}

fn all_below(unit: PathBuf) -> io::Result<Vec<i32>> {
    let mut pids = Vec::new();
    let mut groups = std::collections::VecDeque::from([unit]);
    let mut looked = 0;
    // Breadth first, so that the runtime's own groups come before those that the program has made.
    while let Some(group) = groups.pop_front() {
        let text = match fs::read_to_string(group.join("cgroup.procs")) {
            Err(error) if is_gone(&error) => continue,
            read => read?,
        };
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        pids.truncate(MOST_PROCESSES);
        looked += 1;
        if looked < MOST_FOLDERS && pids.len() < MOST_PROCESSES {
            groups.extend(folders(&group)?);
        }
    }
    Ok(pids)
}

fn folders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        read => read?,
    };
    let folders = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders
        .take(MOST_FOLDERS)
        .map(|entry| entry.path())
        .collect())
}

fn is_slice(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "slice")
}

/// A group that is removed while it is read gives ENODEV, and threaded groups list no processes.
fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error();
    error.kind() == io::ErrorKind::NotFound
        || [Errno::NODEV, Errno::OPNOTSUPP]
            .iter()
            .any(|errno| number == Some(errno.raw_os_error()))
}

/// Whether a process is the first of a pid namespace directly below this one (`NSpid` in
/// proc_pid_status(5)).
fn is_first(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let numbers: Vec<&str> = numbers.unwrap_or_default().split_whitespace().collect();
    matches!(numbers.as_slice(), [_, "1"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_of_a_container_is_known_by_its_numbers() {
        assert!(is_first("Name:\tweb\nNSpid:\t4711\t1\nVmPeak: 1\n"));
        for other in [
            "NSpid:\t1\n",
            "NSpid:\t4711\n",
            "NSpid:\t4711\t2\n",
            "NSpid:\t4711\t7\t1\n",
            "Name:\tNSpid: 3 1\n",
        ] {
            assert!(!is_first(other), "{other}");
        }
    }

    #[test]
    fn processes_are_found_below_slices_and_in_no_unit_with_a_like_name() {
        let root = tempfile::tempdir().unwrap();
        let manager = "user.slice/user-20001.slice/user@20001.service";
        let unit = "kat-default-web-ab12c.service";
        let mut number = 100;
        let mut group = |path: String| {
            let folder = root.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            number += 1;
            fs::write(folder.join("cgroup.procs"), format!("{number}\n")).unwrap();
        };
        group(format!("{manager}/app.slice/evil.service/{unit}"));
        group(format!("{manager}/app.slice/{unit}x"));
        group(format!("{manager}/app.slice/app-kat.slice/{unit}"));
        group(format!(
            "{manager}/app.slice/app-kat.slice/{unit}/libpod-payload-0"
        ));
        assert_eq!(in_unit(root.path(), 20001, unit).unwrap(), [103, 104]);
        assert_eq!(
            in_unit(root.path(), 20002, unit).unwrap(),
            Vec::<i32>::new()
        );
        let other = "kat-default-web-zzzzz.service";
        assert_eq!(
            in_unit(root.path(), 20001, other).unwrap(),
            Vec::<i32>::new()
        );
    }
}
