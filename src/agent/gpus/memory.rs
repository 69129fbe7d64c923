//! The memory of GPUs: NVIDIA's by `nvidia-smi`, AMD's by the kernel's sysfs.

use std::{
    collections::BTreeMap,
    io::Read,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{MachineGpus, ReportedGpus};
use kat_types::{
    encoding::plain::last_words,
    machine::gpu::{CdiName, GpuDevice},
    resource::{Bytes, GpuDriver},
};

/// NVIDIA's program, below the root.
const NVIDIA_SMI: &str = "usr/bin/nvidia-smi";
/// Longest run of that program: it may wake a GPU.
const LIMIT: Duration = Duration::from_secs(10);
/// Interval of the checks whether it has ended.
const CHECKED: Duration = Duration::from_millis(50);
/// The program is asked again after this time, whether it answered or failed, as a driver may have been
/// loaded or replaced.
const ASKED_AGAIN: Duration = Duration::from_secs(600);
/// Bytes of each of its output streams that are read.
const OUTPUT_LIMIT: u64 = 64 * 1024;
/// Largest file of sysfs, in bytes.
const SYSFS_LIMIT: u64 = 64;

/// What is known of the memory of GPUs, so that no program runs for each report.
#[derive(Debug, Default)]
pub(crate) struct GpuMemory {
    nvidia: Arc<Mutex<NvidiaMemory>>,
}

/// The answers of NVIDIA's program.
#[derive(Debug, Default)]
struct NvidiaMemory {
    /// The devices that the rest is for.
    devices: Vec<String>,
    /// When the program was last asked.
    asked: Option<Instant>,
    /// The last answer: bytes by index and by UUID.
    bytes: BTreeMap<String, u64>,
    /// Why the program did not answer the last time.
    trouble: Option<String>,
    /// A process of the program exists.
    is_running: bool,
}

impl GpuMemory {
    /// The GPUs below `root` with their memory, as far as it is known now. Begins to ask for more.
    pub(crate) fn reported(&mut self, root: &Path) -> ReportedGpus {
        let MachineGpus {
            gpus, mut troubles, ..
        } = MachineGpus::read(root);
        let is_by =
            |name: &str, driver| CdiName::of_gpu(name).is_some_and(|name| name.is_by(driver));
        let of_nvidia: Vec<String> = gpus
            .iter()
            .filter(|gpu| is_by(&gpu.name, GpuDriver::Nvidia))
            .map(|gpu| gpu.name.clone())
            .collect();
        let (nvidia, trouble) = self.of_nvidia(root, of_nvidia);
        troubles.extend(trouble);
        let devices = gpus.into_iter().map(|gpu| {
            let device = CdiName::of_gpu(&gpu.name).map_or("", |name| name.device);
            let memory = if is_by(&gpu.name, GpuDriver::Nvidia) {
                nvidia.get(device).copied()
            } else if is_by(&gpu.name, GpuDriver::Amd) {
                gpu.nodes.iter().find_map(|node| amd_memory(root, node))
            } else {
                None
            };
            GpuDevice {
                memory: memory.map(Bytes),
                name: gpu.name,
            }
        });
        ReportedGpus {
            devices: devices.collect(),
            troubles,
        }
    }

    /// The last answer of NVIDIA's program for these devices, and why there is no newer one. Asks
    /// again, on a thread of its own, if the answer is not known or old.
    fn of_nvidia(
        &self,
        root: &Path,
        devices: Vec<String>,
    ) -> (BTreeMap<String, u64>, Option<String>) {
        let mut known = self.nvidia.lock();
        let program = root.join(NVIDIA_SMI);
        let can_answer = !devices.is_empty() && program.exists();
        if known.devices != devices || !can_answer {
            *known = NvidiaMemory {
                devices: devices.clone(),
                is_running: known.is_running,
                ..NvidiaMemory::default()
            };
        }
        let is_due = known.asked.is_none_or(|at| at.elapsed() >= ASKED_AGAIN);
        if can_answer && is_due && !known.is_running {
            known.asked = Some(Instant::now());
            known.is_running = true;
            let answers = Arc::clone(&self.nvidia);
            let thread = std::thread::Builder::new().name("nvidia-smi".to_owned());
            let started = thread.spawn(move || ask(&program, &devices, &answers));
            if let Err(error) = started {
                known.is_running = false;
                tracing::warn!("a thread that runs nvidia-smi can't be started: {error:#}");
            }
        }
        (known.bytes.clone(), known.trouble.clone())
    }
}

/// Runs the program and notes its answer. Returns when its process is gone: one that waits for its
/// device cannot be killed, and another one would wait beside it.
fn ask(program: &Path, devices: &[String], answers: &Mutex<NvidiaMemory>) {
    let note = |answer: Result<String, String>| {
        let mut known = answers.lock();
        if known.devices != devices {
            return;
        }
        match answer {
            Ok(text) => {
                known.bytes = parse(&text);
                known.trouble = None;
            }
            Err(error) => {
                tracing::warn!("the memory of NVIDIA's GPUs cannot be read: nvidia-smi {error}");
                known.trouble = Some(format!(
                    "/{NVIDIA_SMI}, which is asked for the memory of GPUs, {error}"
                ));
            }
        }
    };
    let started = Command::new(program)
        .args([
            "--query-gpu=index,uuid,memory.total",
            "--format=csv,noheader,nounits",
        ])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    match started {
        Ok(mut child) => {
            note(answer_of(&mut child));
            // It has ended as a rule, and then this does nothing.
            let _ = child.kill();
            let _ = child.wait();
        }
        Err(error) => note(Err(format!("cannot be started: {error}"))),
    }
    answers.lock().is_running = false;
}

/// What the program wrote; an error continues a sentence about it.
fn answer_of(child: &mut Child) -> Result<String, String> {
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() >= LIMIT => {
                return Err(format!("did not end within {} s", LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(CHECKED),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    };
    let output = read_some(child.stdout.take());
    if status.success() {
        return Ok(String::from_utf8_lossy(&output).into_owned());
    }
    // It writes most of its errors as output.
    let errors = read_some(child.stderr.take());
    let words = last_words(if errors.is_empty() { &output } else { &errors });
    Err(format!("failed ({status}): {words}"))
}

/// The beginning of what a program that has ended wrote.
fn read_some(stream: Option<impl Read>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error is kept.
        let _ = stream.take(OUTPUT_LIMIT).read_to_end(&mut kept);
    }
    kept
}

/// Bytes by index and by UUID, from lines such as `0, GPU-5b1f, 24576`; the last is in mebibytes.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.split(',').map(str::trim);
        let (Some(index), Some(uuid), Some(memory)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        // Such as `[N/A]` for a GPU that shares the machine's memory.
        let Some(bytes) = memory
            .parse::<u64>()
            .ok()
            .and_then(|amount| amount.checked_mul(1 << 20))
        else {
            continue;
        };
        found.insert(index.to_owned(), bytes);
        found.insert(uuid.to_owned(), bytes);
    }
    found
}

/// Bytes of the memory of the GPU that a device node of DRM belongs to, such as
/// `/dev/dri/renderD128`.
fn amd_memory(root: &Path, node: &Path) -> Option<u64> {
    let name = node.strip_prefix("/dev/dri").ok()?.file_name()?;
    let file = root.join("sys/class/drm").join(name);
    let file = file.join("device/mem_info_vram_total");
    let text = kat_host::files::read_text(&file, SYSFS_LIMIT).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn put(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn spec(kind: &str, device: &str, node: &str) -> String {
        let edits = serde_json::json!({"deviceNodes": [{"path": node}]});
        let device = serde_json::json!({"name": device, "containerEdits": edits});
        serde_json::json!({"kind": kind, "devices": [device]}).to_string()
    }

    fn memory(gpus: &ReportedGpus) -> Vec<(&str, Option<u64>)> {
        let all = gpus.devices.iter();
        all.map(|gpu| (&*gpu.name, gpu.memory.map(|memory| memory.0 >> 20)))
            .collect()
    }

    #[test]
    fn lines_of_nvidia_smi_give_memory_by_index_and_uuid() {
        let found = parse("0, GPU-5b1f, 24576\n1, GPU-77aa, [N/A]\nNo devices were found\n");
        let bytes: u64 = 24_576 << 20;
        let expected = [("0".to_owned(), bytes), ("GPU-5b1f".to_owned(), bytes)];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn the_memory_of_amds_gpus_is_that_of_the_kernel() {
        let root = tempfile::tempdir().unwrap();
        let text = spec("amd.com/gpu", "0", "/dev/dri/renderD128");
        put(root.path(), "etc/cdi/amd.json", &text);
        let mut known = GpuMemory::default();
        let none = known.reported(root.path());
        assert_eq!(memory(&none), [("amd.com/gpu=0", None)]);
        let file = "sys/class/drm/renderD128/device/mem_info_vram_total";
        put(root.path(), file, "8573157376\n");
        let found = known.reported(root.path());
        assert_eq!(memory(&found), [("amd.com/gpu=0", Some(8176))]);
    }

    /// What is reported when NVIDIA's program, if it is asked, has answered.
    fn answered(known: &mut GpuMemory, root: &Path) -> ReportedGpus {
        known.reported(root);
        let deadline = Instant::now() + Duration::from_secs(20);
        while known.nvidia.lock().is_running {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
        known.reported(root)
    }

    /// Puts a program that writes a line into `calls` at each start.
    fn put_program(root: &Path, rest: &str) {
        let calls = root.join("calls");
        let script = format!("#!/bin/sh\necho call >>{}\n{rest}\n", calls.display());
        put(root, NVIDIA_SMI, &script);
        let program = root.join(NVIDIA_SMI);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls(root: &Path) -> usize {
        let calls = std::fs::read_to_string(root.join("calls"));
        calls.unwrap_or_default().lines().count()
    }

    #[test]
    fn nvidias_program_is_asked_once_for_the_same_devices() {
        let root = tempfile::tempdir().unwrap();
        let text = spec("nvidia.com/gpu", "0", "/dev/nvidia0");
        put(root.path(), "etc/cdi/nvidia.json", &text);
        let mut known = GpuMemory::default();
        let without = answered(&mut known, root.path());
        assert_eq!(memory(&without), [("nvidia.com/gpu=0", None)]);

        put_program(root.path(), "echo '0, GPU-5b1f, 8192'");
        for _ in 0..3 {
            let found = answered(&mut known, root.path());
            assert_eq!(memory(&found), [("nvidia.com/gpu=0", Some(8192))]);
            assert_eq!(found.troubles, Vec::<String>::new());
        }
        assert_eq!(calls(root.path()), 1);
        let text = spec("nvidia.com/gpu", "GPU-5b1f", "/dev/nvidia0");
        put(root.path(), "etc/cdi/nvidia.json", &text);
        let found = answered(&mut known, root.path());
        assert_eq!(memory(&found), [("nvidia.com/gpu=GPU-5b1f", Some(8192))]);
        assert_eq!(calls(root.path()), 2);
    }

    #[test]
    fn a_gpu_is_reported_before_nvidias_program_answers() {
        let root = tempfile::tempdir().unwrap();
        let text = spec("nvidia.com/gpu", "0", "/dev/nvidia0");
        put(root.path(), "etc/cdi/nvidia.json", &text);
        // It ends when the test lets it.
        let go = root.path().join("go");
        let waits = format!(
            "until [ -e {} ]; do sleep 0.01; done\necho '0, GPU-5b1f, 8192'",
            go.display()
        );
        put_program(root.path(), &waits);
        let mut known = GpuMemory::default();
        let early = known.reported(root.path());
        assert_eq!(memory(&early), [("nvidia.com/gpu=0", None)]);
        put(root.path(), "go", "");
        let late = answered(&mut known, root.path());
        assert_eq!(memory(&late), [("nvidia.com/gpu=0", Some(8192))]);
    }

    #[test]
    fn a_failure_of_nvidias_program_is_reported_and_keeps_its_last_answer() {
        let root = tempfile::tempdir().unwrap();
        let text = spec("nvidia.com/gpu", "0", "/dev/nvidia0");
        put(root.path(), "etc/cdi/nvidia.json", &text);
        put_program(root.path(), "echo '0, GPU-5b1f, 8192'");
        let mut known = GpuMemory::default();
        answered(&mut known, root.path());
        put_program(root.path(), "echo 'no driver'; exit 9");
        known.nvidia.lock().asked = None;
        for _ in 0..3 {
            let failed = answered(&mut known, root.path());
            assert_eq!(memory(&failed), [("nvidia.com/gpu=0", Some(8192))]);
            assert_eq!(
                failed.troubles,
                [
                    "/usr/bin/nvidia-smi, which is asked for the memory of GPUs, failed (exit status: 9): no driver"
                ]
            );
        }
        assert_eq!(calls(root.path()), 2, "it is not asked again at once");
        // The answer was for other devices.
        let text = spec("nvidia.com/gpu", "1", "/dev/nvidia1");
        put(root.path(), "etc/cdi/nvidia.json", &text);
        let other = answered(&mut known, root.path());
        assert_eq!(memory(&other), [("nvidia.com/gpu=1", None)]);
        assert_eq!(calls(root.path()), 3);
    }

    #[test]
    fn nvidias_program_is_not_started_while_its_last_process_exists() {
        let root = tempfile::tempdir().unwrap();
        let text = spec("nvidia.com/gpu", "0", "/dev/nvidia0");
        put(root.path(), "etc/cdi/nvidia.json", &text);
        put_program(root.path(), "echo '0, GPU-5b1f, 8192'");
        let mut known = GpuMemory::default();
        known.nvidia.lock().is_running = true;
        let found = known.reported(root.path());
        assert_eq!(memory(&found), [("nvidia.com/gpu=0", None)]);
        assert_eq!(calls(root.path()), 0);
        known.nvidia.lock().is_running = false;
        let found = answered(&mut known, root.path());
        assert_eq!(memory(&found), [("nvidia.com/gpu=0", Some(8192))]);
        assert_eq!(calls(root.path()), 1);
    }
}
