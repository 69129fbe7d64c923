//! Each finding of the check, from facts of a sound machine with one change.

mod networks;
mod ports;

use std::process::Command;

use super::*;
use crate::{facts::ProgramVersion, users::AccountConflict};

fn input(stage: CheckStage) -> CheckInput {
    CheckInput::new(ClusterSpec::default(), AgentConfig::default(), stage)
}

/// The facts of a machine without any finding.
fn sound() -> CheckFacts {
    let three = || ["cpu", "memory", "pids"].map(str::to_owned).to_vec();
    let running = UnitFileState {
        exists: true,
        active: true,
        enabled: true,
    };
    CheckFacts {
        hostname: "n1".to_owned(),
        family: Some(Family::Debian),
        runs_systemd: true,
        systemd: Some(ProgramVersion::new(257, 0, 0)),
        podman: Some(ProgramVersion::new(5, 4, 2)),
        etcd: Some(ProgramVersion::new(3, 5, 33)),
        has_etcdutl: true,
        nft: Some(ProgramVersion::new(1, 1, 3)),
        has_newuidmap: true,
        has_shadow: true,
        has_user_bus: true,
        has_pam_systemd: true,
        runtime: Some("crun".to_owned()),
        cgroup_v2: true,
        controllers: three(),
        delegated: three(),
        journal_kept: true,
        clock: ClockState::Synchronised,
        agent: running.clone(),
        resolved: running,
        default_link: Some(("eth0".to_owned(), 1500)),
        kernel_wireguard: true,
        has_tun: true,
        disk_available_bytes: 20 << 30,
        memory_bytes: 2 << 30,
        is_root: true,
        ..CheckFacts::default()
    }
}

fn findings_of(stage: CheckStage, change: impl FnOnce(&mut CheckFacts)) -> Vec<Finding> {
    let mut facts = sound();
    change(&mut facts);
    evaluate(&input(stage), &facts)
        .into_iter()
        .filter(|finding| finding.level != Level::Ok)
        .collect()
}

#[test]
fn a_sound_machine_is_ready() {
    for stage in [CheckStage::BeforeInit, CheckStage::Running] {
        assert_eq!(findings_of(stage, |_| {}), []);
    }
    let all = evaluate(&input(CheckStage::BeforeInit), &sound());
    assert_eq!(worst(&all), Level::Ok);
    assert!(render(&all, false).ends_with("This machine is ready.\n"));
}

#[test]
fn the_end_of_fenced_instances_without_the_agent_is_said() {
    let all = evaluate(&input(CheckStage::Running), &sound());
    let said = |finding: &&Finding| finding.what.contains("onPartition: stop");
    assert_eq!(all.iter().find(said).unwrap().level, Level::Ok);
    let masked = findings_of(CheckStage::Running, |facts| facts.agent.active = false);
    let [finding] = masked.try_into().unwrap();
    assert_eq!(finding.level, Level::Warning);
    assert!(
        finding.what.contains("nodeLossTimeoutSeconds"),
        "{}",
        finding.what
    );
    let before = findings_of(CheckStage::BeforeInit, |facts| facts.agent.active = false);
    assert_eq!(before, []);
}

#[test]
fn an_etcd_whose_rights_can_be_passed_by_is_named() {
    let found = |version: (u32, u32, u32)| {
        let (major, minor, patch) = version;
        findings_of(CheckStage::Running, |facts| {
            facts.etcd = Some(ProgramVersion::new(major, minor, patch));
        })
    };
    for version in [(3, 5, 16), (3, 5, 32), (3, 6, 13), (3, 7, 0)] {
        let [finding] = found(version).try_into().unwrap();
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.what.contains("CVE-2026-33343"), "{}", finding.what);
    }
    for version in [(3, 5, 33), (3, 6, 14), (3, 7, 1), (3, 8, 0), (4, 0, 0)] {
        assert_eq!(found(version), []);
    }
}

#[test]
fn what_installs_a_program_is_said_in_the_distributions_words() {
    for (family, command) in [
        (Some(Family::Fedora), "sudo dnf install podman"),
        (None, "install the package podman"),
    ] {
        let found = findings_of(CheckStage::BeforeInit, |facts| {
            facts.podman = None;
            facts.family = family;
        });
        assert_eq!(found[0].mend.as_deref(), Some(command));
    }
}

/// The change to the sound facts, the level of the finding, and parts of its text and of its
/// remedy.
type Case = (fn(&mut CheckFacts), Level, &'static str, &'static str);

fn cases() -> Vec<Case> {
    use Level::{Problem, Warning};
    vec![
        (
            |f| f.systemd = Some(ProgramVersion::new(252, 0, 0)),
            Problem,
            "systemd 252 is too old, 254 is needed",
            "upgrade this machine to a release of its distribution with systemd 254 or newer",
        ),
        (
            |f| f.runs_systemd = false,
            Problem,
            "not what this machine was booted with",
            "sudo apt install systemd-sysv), and boot again",
        ),
        (
            |f| f.podman = Some(ProgramVersion::new(4, 9, 3)),
            Problem,
            "Podman 4.9.3 is too old, 5.2.0",
            "with Podman 5.2.0 or newer, such as Debian 13",
        ),
        (
            |f| f.podman = None,
            Problem,
            "Podman is missing",
            "sudo apt install podman",
        ),
        (
            |f| (f.podman, f.silent) = (None, vec!["podman"]),
            Problem,
            "Podman is there and does not tell its version, 5.2.0",
            "mend what podman --version complains about",
        ),
        (
            |f| f.etcd = Some(ProgramVersion::new(3, 4, 23)),
            Problem,
            "etcd 3.4.23 is too old",
            "with etcd 3.5.0 or newer, such as Debian 13",
        ),
        (
            |f| f.etcd = None,
            Problem,
            "etcd is missing",
            "sudo apt install etcd-server",
        ),
        (
            |f| f.has_etcdutl = false,
            Problem,
            "etcdutl",
            "sudo apt install etcd-client",
        ),
        (
            |f| f.nft = None,
            Problem,
            "nftables is missing",
            "sudo apt install nftables",
        ),
        (
            |f| f.has_newuidmap = false,
            Problem,
            "newuidmap",
            "sudo apt install uidmap",
        ),
        (
            |f| f.has_shadow = false,
            Problem,
            "useradd",
            "sudo apt install passwd",
        ),
        (
            |f| f.has_user_bus = false,
            Problem,
            "the users' message bus",
            "sudo apt install dbus-user-session",
        ),
        (
            |f| f.has_pam_systemd = false,
            Problem,
            "pam_systemd",
            "sudo apt install libpam-systemd",
        ),
        (
            |f| f.runtime = None,
            Problem,
            "crun or runc",
            "sudo apt install crun",
        ),
        (
            |f| f.runtime = Some("runc".to_owned()),
            Warning,
            "runc runs the containers: no workload with groups",
            "install crun (sudo apt install crun), and name no other `runtime`",
        ),
        (
            |f| f.cgroup_v2 = false,
            Problem,
            "version 2",
            "systemd.unified_cgroup_hierarchy=1",
        ),
        (
            |f| f.controllers.retain(|c| c != "memory"),
            Warning,
            "the kernel's memory controller is off",
            "cgroup_enable=memory",
        ),
        (
            |f| f.controllers.retain(|c| c != "pids"),
            Warning,
            "the kernel's pids controller is off",
            "without cgroup_disable=pids on its command line",
        ),
        (
            |f| f.delegated.retain(|c| c != "memory"),
            Warning,
            "users' managers do not get the memory controller",
            "Delegate=pids memory cpu",
        ),
        (
            |f| f.clock = ClockState::Alone,
            Warning,
            "no time server",
            "sudo timedatectl set-ntp true",
        ),
        (
            |f| f.clock = ClockState::Unkept,
            Warning,
            "no time server",
            "sudo apt install systemd-timesyncd && sudo timedatectl set-ntp true",
        ),
        (
            |f| f.clock = ClockState::Unknown,
            Warning,
            "nobody can say",
            "sudo timedatectl set-ntp true",
        ),
        (
            |f| f.selinux_enforcing = true,
            Warning,
            "SELinux enforces: with Debian's policy alone no container starts",
            "docs/guide/devices.md",
        ),
        (|f| f.kernel_wireguard = false, Warning, "in a program", ""),
        (
            |f| (f.kernel_wireguard, f.has_tun) = (false, false),
            Problem,
            "neither WireGuard",
            "modprobe",
        ),
        (
            |f| {
                f.etcd_unit = UnitFileState {
                    exists: true,
                    active: true,
                    enabled: true,
                }
            },
            Problem,
            "etcd.service runs and starts at boot",
            "sudo systemctl disable --now etcd.service",
        ),
        (
            |f| {
                f.etcd_unit = UnitFileState {
                    exists: true,
                    active: false,
                    enabled: true,
                }
            },
            Problem,
            "etcd.service starts at boot",
            "disable --now etcd.service",
        ),
        (
            |f| f.default_link = None,
            Warning,
            "no default route",
            "sudo ip route add default via",
        ),
        (
            |f| f.resolved.active = false,
            Warning,
            "systemd-resolved does not run",
            "sudo systemctl enable --now systemd-resolved.service",
        ),
        (
            |f| f.resolved = UnitFileState::default(),
            Warning,
            "systemd-resolved does not run",
            "sudo apt install systemd-resolved && sudo systemctl enable --now",
        ),
        (
            |f| f.default_link = Some(("eth0".into(), 1480)),
            Warning,
            "fits over IPv4 only",
            "set mtu: 1400 in cluster.kat",
        ),
        (
            |f| f.default_link = Some(("eth0".into(), 1400)),
            Problem,
            "too small for the overlay's 1420",
            "set mtu: 1320 in cluster.kat",
        ),
        (
            |f| f.hostname = "my_host".into(),
            Warning,
            "`my_host`",
            "--node-name",
        ),
        (
            |f| {
                f.taken_ids = vec![AccountConflict::Uid {
                    uid: 20_001,
                    by: "bob".into(),
                }]
            },
            Problem,
            "uid 20001 is taken by the user bob",
            "outside of 20000 to 24093: sudo usermod --uid UID bob",
        ),
        (
            |f| {
                f.taken_ids = vec![AccountConflict::Gid {
                    gid: 20_001,
                    by: "bob".into(),
                }]
            },
            Problem,
            "gid 20001 is taken by the group bob",
            "sudo groupmod --gid GID bob",
        ),
        (
            |f| {
                f.taken_ids = vec![AccountConflict::Subordinate {
                    first: 1_879_048_192,
                    last: 1_879_113_727,
                    by: "bob".into(),
                }]
            },
            Problem,
            "subordinate ids 1879048192 to 1879113727",
            "sudo usermod --del-subuids 1879048192-1879113727 --del-subgids 1879048192-1879113727",
        ),
        (
            |f| f.accounts_error = Some("/etc/passwd: no".into()),
            Problem,
            "can't be read: /etc/passwd",
            "sudo pwck --read-only",
        ),
        (
            |f| f.disk_available_bytes = 500 << 20,
            Problem,
            "only 500 MiB",
            "mount a larger file system at /var/lib/kat",
        ),
        (
            |f| f.disk_available_bytes = 3 << 30,
            Warning,
            "3072 MiB",
            "",
        ),
        (
            |f| f.etcd_shares_disk = true,
            Warning,
            "etcd shares its file system",
            "mount a file system of its own",
        ),
        (
            |f| f.memory_bytes = 256 << 20,
            Warning,
            "256 MiB of memory",
            "",
        ),
        (
            |f| f.is_root = false,
            Warning,
            "this is not root",
            "sudo kat-agent check",
        ),
    ]
}

#[test]
fn each_thing_that_is_wrong_is_found_alone() {
    for (change, level, what, mend) in cases() {
        let found = findings_of(CheckStage::BeforeInit, change);
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert_eq!(found[0].level, level, "{found:?}");
        assert!(found[0].what.contains(what), "{what}: {found:?}");
        let command = found[0].mend.clone().unwrap_or_default();
        assert!(
            command.contains(mend) && mend.is_empty() == command.is_empty(),
            "{found:?}"
        );
    }
}

/// Whether the text is a command that a shell can parse. A remedy without `sudo` is a sentence.
fn is_command(mend: &str) -> bool {
    let read = Command::new("sh").args(["-nc", mend]).output().unwrap();
    mend.starts_with("sudo ") && read.status.success()
}

#[test]
fn no_problem_is_without_a_mend_on_any_machine() {
    let families = [Family::Debian, Family::Fedora, Family::Suse, Family::Arch].map(Some);
    for family in families.into_iter().chain([None]) {
        for stage in [
            CheckStage::BeforeInit,
            CheckStage::BeforeJoin,
            CheckStage::Running,
        ] {
            for (change, level, what, _) in cases() {
                let found = findings_of(stage, |facts| {
                    facts.family = family;
                    change(facts);
                });
                assert_eq!(found.len(), 1, "{what}: {found:?}");
                let mend = found[0].mend.clone().unwrap_or_default();
                assert!(level < Level::Problem || !mend.is_empty(), "{found:?}");
                assert!(!mend.starts_with("sudo ") || is_command(&mend), "{mend}");
            }
        }
    }
}

#[test]
fn a_program_that_says_nothing_to_this_user_is_not_taken_for_missing() {
    let found = findings_of(CheckStage::BeforeInit, |facts| {
        (facts.podman, facts.silent, facts.is_root) = (None, vec!["podman"], false);
    });
    assert_eq!(worst(&found), Level::Warning, "{found:?}");
    assert!(found[1].what.starts_with("Podman is there"), "{found:?}");
}

#[test]
fn init_sees_to_the_journal_and_later_its_loss_is_told() {
    let lost = |facts: &mut CheckFacts| facts.journal_kept = false;
    for stage in [CheckStage::BeforeInit, CheckStage::BeforeJoin] {
        let before = findings_of(stage, lost);
        assert!(before.is_empty(), "{before:?}");
    }
    let running = findings_of(CheckStage::Running, lost);
    let told = running.first().unwrap();
    assert_eq!(told.level, Level::Warning);
    assert!(told.what.contains("lost at each reboot"), "{told:?}");
    let mend = told.mend.as_ref().unwrap();
    assert!(mend.contains("Storage=persistent"));
    assert!(mend.ends_with("systemd-tmpfiles --create --prefix /var/log/journal"));
}

#[test]
fn obstacles_of_others_are_told_too() {
    let mut input = input(CheckStage::BeforeInit);
    input.obstacles = vec![Finding::problem("Docker drops what is forwarded", "x")];
    let all = evaluate(&input, &sound());
    assert_eq!(worst(&all), Level::Problem);
    let text = render(&all, false);
    assert!(
        text.contains("problem  Docker drops what is forwarded\n         x\n"),
        "{text}"
    );
    assert!(
        text.ends_with("This machine is not ready: 1 problem.\n"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    assert!(render(&all, true).contains('\u{1b}'));
}

#[test]
fn problems_stand_last_before_the_counts() {
    let all = [
        Finding::problem("a port is taken", "x"),
        Finding::ok("systemd 257"),
        Finding::warning("the clock is off"),
        Finding::ok("Podman 5.4.2"),
    ];
    assert_eq!(
        render(&all, false),
        "ok       systemd 257\nok       Podman 5.4.2\nwarning  the clock is off\nproblem  a port is taken\n         x\nThis machine is not ready: 1 problem, 1 warning.\n"
    );
}

#[tokio::test]
async fn looking_at_any_machine_ends_and_says_something() {
    let all = run(&input(CheckStage::BeforeInit)).await;
    assert!(all.len() > 15, "{all:?}");
}
