//! File systems that are not KAT's own: one that hangs, FUSE without a program that answers, and one that answers.

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::disk::foreign_disks::ChildCommand;

/// The first request of the kernel, which asks for the version of the protocol (fuse(4)).
const INIT: u32 = 26;
/// The kernel's notice that a caller has got a signal.
const INTERRUPT: u32 = 36;

/// A mounted file system whose calls hang until it is dropped. Then they fail, and it is unmounted.
pub(crate) struct HungDisk {
    point: PathBuf,
    asked: Arc<AtomicUsize>,
    silent: Option<JoinHandle<()>>,
}

impl HungDisk {
    /// Mounts it; needs root.
    pub(crate) fn mount(point: &Path) -> Self {
        std::fs::create_dir_all(point).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("hung", point, "fuse", flags, options.as_c_str()).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let silent = std::thread::spawn(move || read_in_silence(device, &counted));
        Self {
            point: point.to_owned(),
            asked,
            silent: Some(silent),
        }
    }

    /// Number of calls that hang.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        // MNT_FORCE ends the requests that wait.
        unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
        self.silent.take().unwrap().join().unwrap();
    }
}

/// Answers the first request only, so that each later one waits for a program that has read it.
fn read_in_silence(mut device: File, asked: &AtomicUsize) {
    let mut request = vec![0; 1 << 17];
    while let Ok(length) = device.read(&mut request) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        if length < 40 || number(4) != INIT {
            asked.fetch_add(usize::from(number(4) != INTERRUPT), Ordering::Relaxed);
            continue;
        }
        // The header: length, error, and the request's number.
        let mut answer = vec![0; 80];
        answer[0..4].copy_from_slice(&80_u32.to_ne_bytes());
        answer[8..16].copy_from_slice(&request[8..16]);
        // Version 7.31, and the longest write.
        answer[16..20].copy_from_slice(&7_u32.to_ne_bytes());
        answer[20..24].copy_from_slice(&31_u32.to_ne_bytes());
        answer[36..40].copy_from_slice(&4096_u32.to_ne_bytes());
        device.write_all(&answer).unwrap();
    }
}

/// A file system of its own that answers: an overlay in memory.
pub(crate) struct OwnDisk {
    point: PathBuf,
    memory: PathBuf,
}

impl OwnDisk {
    /// Mounts it; needs root.
    pub(crate) fn mount(point: &Path, memory: &Path) -> Self {
        for folder in [point, memory] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let disk = Self {
            point: point.to_owned(),
            memory: memory.to_owned(),
        };
        let mounted = |kind: &str, at: &Path, options: &str| {
            let options = CString::new(options).unwrap();
            mount("own", at, kind, MountFlags::empty(), options.as_c_str()).unwrap();
        };
        mounted("tmpfs", memory, "");
        let parts = ["lower", "upper", "work"].map(|part| memory.join(part));
        for folder in &parts {
            std::fs::create_dir(folder).unwrap();
        }
        let [lower, upper, work] = parts.each_ref().map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        mounted("overlay", point, &options);
        disk
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        for point in [&self.point, &self.memory] {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
    }
}

/// The test program as the child of the agent: it runs [`the_child_of_other_tests`].
pub(crate) fn child_command() -> ChildCommand {
    let name = "tests::hung_disk::the_child_of_other_tests";
    let arguments = ["--exact", "--ignored", "--nocapture", name];
    ChildCommand {
        program: std::env::current_exe().unwrap(),
        arguments: arguments.map(Into::into).into(),
        variables: vec![("KAT_DISK_CHILD".into(), "1".into())],
    }
}

#[test]
#[ignore = "it is the child process of other tests"]
fn the_child_of_other_tests() {
    if std::env::var_os("KAT_DISK_CHILD").is_some() {
        crate::disk::disk_child::serve().unwrap();
    }
}
