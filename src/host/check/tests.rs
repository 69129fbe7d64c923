//! Each finding, from facts that are sound but for one.

use super::*;
use crate::host::{
    facts::{
        Version,
        network::{Address, Listener, Protocol, Route},
    },
    users::Taken,
};

fn input(stage: Stage) -> CheckInput {
    CheckInput::new(ClusterSpec::default(), AgentConfig::default(), stage)
}

/// A machine on which everything is as it should be.
fn sound() -> Facts {
    let three = || ["cpu", "memory", "pids"].map(str::to_owned).to_vec();
    Facts {
        hostname: "n1".to_owned(),
        family: Some(Family::Debian),
        runs_systemd: true,
        systemd: Some(Version::new(257, 0, 0)),
        podman: Some(Version::new(5, 4, 2)),
        etcd: Some(Version::new(3, 5, 16)),
        has_etcdutl: true,
        nft: Some(Version::new(1, 1, 3)),
        has_newuidmap: true,
        has_shadow: true,
        runtime: Some("crun".to_owned()),
        cgroup_v2: true,
        controllers: three(),
        delegated: three(),
        journal_kept: true,
        clock: ClockState::Synchronised,
        default_link: Some(("eth0".to_owned(), 1500)),
        kernel_wireguard: true,
        has_tun: true,
        disk_available_bytes: 20 << 30,
        memory_bytes: 2 << 30,
        is_root: true,
        ..Facts::default()
    }
}

fn findings_of(stage: Stage, change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = sound();
    change(&mut facts);
    evaluate(&input(stage), &facts)
        .into_iter()
        .filter(|finding| finding.level != Level::Ok)
        .collect()
}

fn listener(protocol: Protocol, port: u16, process: Option<&str>, unit: Option<&str>) -> Listener {
    Listener {
        protocol,
        address: [0, 0, 0, 0].into(),
        port,
        process: process.map(str::to_owned),
        unit: unit.map(str::to_owned),
    }
}

#[test]
fn a_sound_machine_is_ready() {
    for stage in [Stage::BeforeInit, Stage::Running] {
        assert_eq!(findings_of(stage, |_| {}), []);
    }
    let all = evaluate(&input(Stage::BeforeInit), &sound());
    assert_eq!(worst(&all), Level::Ok);
    assert!(render(&all, false).ends_with("This machine is ready.\n"));
}

#[test]
fn what_installs_a_program_is_said_in_the_distributions_words() {
    for (family, command) in [
        (Some(Family::Fedora), "sudo dnf install podman"),
        (None, "install the package podman"),
    ] {
        let found = findings_of(Stage::BeforeInit, |facts| {
            facts.podman = None;
            facts.family = family;
        });
        assert_eq!(found[0].mend.as_deref(), Some(command));
    }
}

#[test]
fn each_thing_that_is_wrong_is_found_alone() {
    use Level::{Problem, Warning};
    type Change = fn(&mut Facts);
    let cases: &[(Change, Level, &str, &str)] = &[
        (
            |f| f.systemd = Some(Version::new(252, 0, 0)),
            Problem,
            "systemd 252 is too old, 254 is needed",
            "",
        ),
        (
            |f| f.runs_systemd = false,
            Problem,
            "not what this machine was booted with",
            "",
        ),
        (
            |f| f.podman = Some(Version::new(4, 9, 3)),
            Problem,
            "Podman 4.9.3 is too old, 5.2.0",
            "",
        ),
        (
            |f| f.podman = None,
            Problem,
            "Podman is missing",
            "sudo apt install podman",
        ),
        (
            |f| f.etcd = Some(Version::new(3, 4, 23)),
            Problem,
            "etcd 3.4.23 is too old",
            "",
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
            |f| f.runtime = None,
            Problem,
            "crun or runc",
            "sudo apt install crun",
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
            |f| f.clock = ClockState::Unknown,
            Warning,
            "nobody can say",
            "timedatectl",
        ),
        (
            |f| f.selinux_enforcing = true,
            Warning,
            "SELinux enforces: KAT was never tested",
            "",
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
        (|f| f.default_link = None, Warning, "no default route", ""),
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
                f.taken_ids = vec![Taken::Uid {
                    uid: 20_001,
                    by: "bob".into(),
                }]
            },
            Problem,
            "uid 20001 is taken by the user bob",
            "",
        ),
        (
            |f| f.accounts_error = Some("/etc/passwd: no".into()),
            Problem,
            "can't be read: /etc/passwd",
            "",
        ),
        (
            |f| f.disk_available_bytes = 500 << 20,
            Problem,
            "only 500 MiB",
            "",
        ),
        (
            |f| f.disk_available_bytes = 3 << 30,
            Warning,
            "3072 MiB",
            "",
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
    ];
    for (change, level, what, mend) in cases {
        let found = findings_of(Stage::BeforeInit, change);
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert_eq!(found[0].level, *level, "{found:?}");
        assert!(found[0].what.contains(what), "{what}: {found:?}");
        let command = found[0].mend.clone().unwrap_or_default();
        assert!(
            command.contains(mend) && mend.is_empty() == command.is_empty(),
            "{found:?}"
        );
    }
}

#[test]
fn a_port_is_anybodys_before_init_and_kats_afterwards() {
    let cases = [
        (
            listener(Protocol::Tcp, 2379, Some("etcd"), Some("etcd.service")),
            true,
            true,
            "TCP port 2379, for etcd's clients, is taken by etcd (etcd.service)",
        ),
        (
            listener(
                Protocol::Tcp,
                9115,
                Some("kat-agent"),
                Some("kat-agent.service"),
            ),
            true,
            false,
            "TCP port 9115, for the API, is taken by kat-agent",
        ),
        (
            listener(Protocol::Tcp, 9116, Some("python3"), None),
            true,
            true,
            "TCP port 9116, for the agent, is taken by python3",
        ),
        (
            listener(Protocol::Udp, 51820, None, None),
            true,
            false,
            "UDP port 51820, for WireGuard, is taken by something",
        ),
        (
            listener(Protocol::Udp, 2380, Some("x"), None),
            false,
            false,
            "",
        ),
        (
            listener(Protocol::Tcp, 443, Some("nginx"), None),
            false,
            false,
            "",
        ),
    ];
    for (listener, before, running, what) in cases {
        for (stage, expected) in [(Stage::BeforeInit, before), (Stage::Running, running)] {
            let found = findings_of(stage, |facts| facts.listeners = vec![listener.clone()]);
            assert_eq!(found.len(), usize::from(expected), "{stage:?} {found:?}");
            assert!(
                found.iter().all(|finding| finding.what.starts_with(what)),
                "{found:?}"
            );
        }
    }
}

#[test]
fn the_machines_own_wireguard_port_counts() {
    let mut input = input(Stage::BeforeInit);
    input.agent.wireguard_port = Some(50_000);
    let mut facts = sound();
    facts.listeners = vec![listener(Protocol::Udp, 51820, Some("wg"), None)];
    assert_eq!(worst(&evaluate(&input, &facts)), Level::Ok);
    facts.listeners = vec![listener(Protocol::Udp, 50_000, Some("wg"), None)];
    assert_eq!(worst(&evaluate(&input, &facts)), Level::Problem);
}

#[test]
fn init_sees_to_the_journal_and_later_its_loss_is_told() {
    let lost = |facts: &mut Facts| facts.journal_kept = false;
    let before = findings_of(Stage::BeforeInit, lost);
    assert!(before.is_empty(), "{before:?}");
    let running = findings_of(Stage::Running, lost);
    let told = running.first().unwrap();
    assert_eq!(told.level, Level::Warning);
    assert!(told.what.contains("lost at each reboot"), "{told:?}");
    assert!(told.mend.as_ref().unwrap().contains("Storage=persistent"));
}

#[test]
fn networks_of_others_are_in_the_way_and_kats_own_are_not() {
    let route = |to: &str, link: &str| Route {
        destination: to.parse().unwrap(),
        link: link.to_owned(),
    };
    let found = findings_of(Stage::BeforeInit, |facts| {
        facts.routes = vec![
            route("0.0.0.0/0", "eth0"),
            route("10.100.7.0/24", "docker0"),
            route("10.0.0.0/8", "vpn"),
        ];
        facts.addresses = vec![Address {
            address: [10, 100, 7, 1].into(),
            prefix: 24,
            link: "docker0".to_owned(),
        }];
    });
    let texts: Vec<&str> = found.iter().map(|finding| finding.what.as_str()).collect();
    assert_eq!(
        texts,
        [
            "10.100.0.0/16 (clusterCIDR) overlaps the route to 10.100.7.0/24 on docker0 and the route to 10.0.0.0/8 on vpn",
            "10.200.0.0/16 (serviceCIDR) overlaps the route to 10.0.0.0/8 on vpn",
        ]
    );
    let found = findings_of(Stage::Running, |facts| {
        facts.routes = vec![
            route("10.100.0.0/16", "kat0"),
            route("10.100.0.5/32", "kat1a2b3c"),
            route("10.100.0.0/23", "*"),
        ];
    });
    assert_eq!(found, []);
}

#[test]
fn obstacles_of_others_are_told_too() {
    let mut input = input(Stage::BeforeInit);
    input.obstacles = vec![Finding::problem("Docker drops what is forwarded").mended_by("x")];
    let all = evaluate(&input, &sound());
    assert_eq!(worst(&all), Level::Problem);
    let text = render(&all, false);
    assert!(
        text.contains("problem  Docker drops what is forwarded\n         x\n"),
        "{text}"
    );
    assert!(
        text.ends_with("This machine is not ready, problems: 1, warnings: 0.\n"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    assert!(render(&all, true).contains('\u{1b}'));
}

#[tokio::test]
async fn looking_at_any_machine_ends_and_says_something() {
    let all = run(&input(Stage::BeforeInit)).await;
    assert!(all.len() > 15, "{all:?}");
}
