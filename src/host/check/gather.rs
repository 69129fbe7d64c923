//! Gathers the facts about the machine. Nothing is changed, and a fact that can't be read keeps its
//! most harmless value.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::timeout;
use zbus::OwnedVariant;

use super::{BootLoader, CheckFacts, CheckInput, ClockState, Family, UnitFileState, ports};
use crate::{
    commands::Invocation,
    facts::{ProgramVersion, disk, network, parse, runtime::container_runtime, version_of},
    users::{HOMES, Users},
};
use kat_systemd::{Connector, SystemBus};
use kat_types::assignment::INDEX_LIMIT;

/// Longest time for one query.
const LIMIT: Duration = Duration::from_secs(10);
/// Folders of programs that may be missing from an administrator's PATH.
const FOLDERS: &[&str] = &["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin"];

/// Folders of users' units (systemd.unit(5)).
const USER_UNITS: &[&str] = &[
    "/etc/systemd/user",
    "/usr/local/lib/systemd/user",
    "/usr/lib/systemd/user",
    "/lib/systemd/user",
];
/// The command line that the firmware of a Raspberry Pi gives to the kernel, newer place first.
const FIRMWARE: &[&str] = &["/boot/firmware/cmdline.txt", "/boot/cmdline.txt"];

/// Gathers all facts that [`super::evaluate`] judges.
pub async fn gather(input: &CheckInput) -> CheckFacts {
    let (systemd, podman, etcd, nft) = futures_util::join!(
        program_version("systemctl", "--version"),
        program_version("podman", "--version"),
        program_version("etcd", "--version"),
        program_version("nft", "--version"),
    );
    let (clock, etcd_unit, agent, resolved, delegated) = futures_util::join!(
        clock(),
        unit_state(None, "etcd.service"),
        unit_state(None, "kat-agent.service"),
        unit_state(None, "systemd-resolved.service"),
        delegated()
    );
    let ports: Vec<_> = ports::needed_ports(input)
        .into_iter()
        .map(|wanted| (wanted.protocol, wanted.port))
        .collect();
    let listeners = network::listeners(&ports);
    let routes = network::routes();
    let controllers = words("/sys/fs/cgroup/cgroup.controllers");
    let (taken_ids, accounts_error) =
        match Users::new().check_range(input.uid_base, INDEX_LIMIT, input.subordinate_base) {
            Ok(taken) => (taken, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
    let silent = [
        ("systemctl", systemd),
        ("podman", podman),
        ("etcd", etcd),
        ("nft", nft),
    ];
    let all = |programs: &[&str]| programs.iter().all(|program| find(program).is_some());
    CheckFacts {
        hostname: hostname(),
        family: Family::of(&os_release()),
        runs_systemd: Path::new("/run/systemd/system").is_dir(),
        systemd,
        podman,
        etcd,
        has_etcdutl: all(&["etcdutl"]),
        nft,
        silent: silent
            .into_iter()
            .filter(|(program, version)| version.is_none() && find(program).is_some())
            .map(|(program, _)| program)
            .collect(),
        has_newuidmap: all(&["newuidmap", "newgidmap"]),
        has_shadow: all(&["useradd", "usermod", "userdel", "groupadd"]),
        has_user_bus: USER_UNITS
            .iter()
            .any(|folder| Path::new(folder).join("dbus.socket").exists()),
        has_pam_systemd: has_pam_module("pam_systemd.so"),
        runtime: container_runtime(Path::new("/")),
        cgroup_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        controllers,
        delegated,
        boot_loader: boot_loader(),
        journal_kept: journal_kept(),
        clock,
        enabled: enabled(&listeners).await,
        listeners,
        etcd_unit,
        agent,
        resolved,
        default_link: default_link(&routes),
        addresses: network::addresses(),
        routes,
        selinux_enforcing: text("/sys/fs/selinux/enforce").trim() == "1",
        kernel_wireguard: kernel_has("wireguard"),
        has_tun: Path::new("/dev/net/tun").exists(),
        taken_ids,
        accounts_error,
        disk_available_bytes: disk(Path::new("/var/lib/kat")).map_or(0, |(_, free)| free),
        etcd_shares_disk: device(Path::new("/var/lib/kat/etcd")) == device(Path::new(HOMES)),
        memory_bytes: parse::meminfo(&text("/proc/meminfo"), "MemTotal").unwrap_or(0),
        is_root: rustix::process::geteuid().is_root(),
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn words(path: &str) -> Vec<String> {
    text(path).split_whitespace().map(str::to_owned).collect()
}

/// The content of os-release(5); the second file is read where the first is missing.
fn os_release() -> String {
    ["/etc/os-release", "/usr/lib/os-release"]
        .into_iter()
        .map(text)
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

fn hostname() -> String {
    let name = text("/proc/sys/kernel/hostname").trim().to_lowercase();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Finds a program along PATH and in [`FOLDERS`].
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

async fn program_version(program: &str, argument: &str) -> Option<ProgramVersion> {
    version_of(find(program)?.to_str()?, &[argument]).await
}

/// Whether a PAM module is installed. Some distributions put the modules below a library folder
/// with the architecture's name.
fn has_pam_module(name: &str) -> bool {
    ["/usr/lib", "/usr/lib64", "/lib", "/lib64"]
        .into_iter()
        .flat_map(|base| {
            let below = fs::read_dir(base).into_iter().flatten().flatten();
            below.map(|entry| entry.path()).chain([base.into()])
        })
        .any(|folder| folder.join("security").join(name).exists())
}

fn boot_loader() -> BootLoader {
    if let Some(file) = FIRMWARE.iter().find(|file| Path::new(file).exists()) {
        BootLoader::Firmware(file.into())
    } else if find("grubby").is_some() {
        BootLoader::Grubby
    } else if find("update-grub").is_some() {
        BootLoader::Grub
    } else {
        BootLoader::Unknown
    }
}

/// The device number of the file system at a path, or at its nearest existing parent.
fn device(path: &Path) -> Option<u64> {
    let there = path.ancestors().find_map(|one| std::fs::metadata(one).ok());
    there.map(|there| std::os::unix::fs::MetadataExt::dev(&there))
}

/// Reads `NTPSynchronized` and `CanNTP` of org.freedesktop.timedate1(5).
async fn clock() -> ClockState {
    let ask = async {
        let connection = SystemBus.connect().await.ok()?;
        let mut answers = Vec::new();
        for property in ["NTPSynchronized", "CanNTP"] {
            let reply = connection
                .call_method(
                    Some("org.freedesktop.timedate1"),
                    "/org/freedesktop/timedate1",
                    Some("org.freedesktop.DBus.Properties"),
                    "Get",
                    &("org.freedesktop.timedate1", property),
                )
                .await
                .ok()?;
            let value: OwnedVariant = reply.body().deserialize().ok()?;
            answers.push(bool::try_from(value).ok()?);
        }
        Some(match answers.as_slice() {
            [true, ..] => ClockState::Synchronised,
            [false, false] => ClockState::Unkept,
            _ => ClockState::Alone,
        })
    };
    let answer = timeout(LIMIT, ask).await;
    answer.ok().flatten().unwrap_or(ClockState::Unknown)
}

/// Properties of a unit of the system manager or of a user manager, as `KEY=VALUE` lines.
async fn show(manager: Option<u32>, unit: &str, properties: &str) -> String {
    let mut invocation = Invocation::new("systemctl");
    if let Some(uid) = manager {
        invocation = invocation
            .arg("--user")
            .arg(format!("--machine={uid}@.host"));
    }
    invocation
        .args(["show", "--property", properties, unit])
        .limit(LIMIT)
        .run()
        .await
        .map_or_else(|_| String::new(), |output| output.text())
}

fn value<'a>(text: &'a str, key: &str) -> &'a str {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .find(|(found, _)| *found == key)
        .map_or("", |(_, value)| value)
}

async fn unit_state(manager: Option<u32>, unit: &str) -> UnitFileState {
    let text = show(manager, unit, "LoadState,ActiveState,UnitFileState").await;
    UnitFileState {
        exists: value(&text, "LoadState") == "loaded",
        active: matches!(
            value(&text, "ActiveState"),
            "active" | "activating" | "reloading"
        ),
        enabled: value(&text, "UnitFileState").starts_with("enabled"),
    }
}

/// Units of listeners that start at boot, or with their user manager.
async fn enabled(listeners: &[network::Listener]) -> BTreeSet<String> {
    let units: BTreeSet<(Option<u32>, &str)> = listeners
        .iter()
        .filter_map(|listener| Some((listener.manager, listener.unit.as_deref()?)))
        .collect();
    let mut found = BTreeSet::new();
    for (manager, unit) in units {
        if unit_state(manager, unit).await.enabled {
            found.insert(unit.to_owned());
        }
    }
    found
}

/// The controllers that `user@.service` delegates; an instance with an unused uid shows the
/// template.
async fn delegated() -> Vec<String> {
    let text = show(
        None,
        "user@4294967294.service",
        "Delegate,DelegateControllers",
    )
    .await;
    if value(&text, "Delegate") != "yes" {
        return Vec::new();
    }
    value(&text, "DelegateControllers")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// Whether journald stores its files on the disk: by default it does if /var/log/journal exists
/// (journald.conf(5)).
fn journal_kept() -> bool {
    let mut storage = "auto".to_owned();
    let mut files = vec![PathBuf::from("/etc/systemd/journald.conf")];
    for folder in [
        "/usr/lib/systemd/journald.conf.d",
        "/run/systemd/journald.conf.d",
        "/etc/systemd/journald.conf.d",
    ] {
        let mut more: Vec<PathBuf> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "conf"))
            .collect();
        more.sort_unstable();
        files.extend(more);
    }
    for file in files {
        for line in fs::read_to_string(file).unwrap_or_default().lines() {
            if let Some(word) = line.trim().strip_prefix("Storage=") {
                storage = word.trim().to_lowercase();
            }
        }
    }
    match storage.as_str() {
        "volatile" | "none" => false,
        "persistent" => true,
        _ => Path::new("/var/log/journal").is_dir(),
    }
}

fn default_link(routes: &[network::KernelRoute]) -> Option<(String, u32)> {
    let route = routes
        .iter()
        .find(|route| route.destination.prefix_len() == 0)?;
    let mtu = text(&format!("/sys/class/net/{}/mtu", route.link))
        .trim()
        .parse()
        .ok()?;
    Some((route.link.clone(), mtu))
}

/// Whether a kernel module is loaded, built in, or loadable.
fn kernel_has(module: &str) -> bool {
    if Path::new("/sys/module").join(module).exists() {
        return true;
    }
    let release = text("/proc/sys/kernel/osrelease");
    let folder = Path::new("/lib/modules").join(release.trim());
    let file = format!("/{module}.ko");
    ["modules.dep", "modules.builtin"].iter().any(|list| {
        fs::read_to_string(folder.join(list))
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.split(':').next())
            .any(|path| path.contains(&file))
    })
}
