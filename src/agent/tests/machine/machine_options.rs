//! Machine resources that an instance asks for: each is checked before the start, and the user's
//! groups are set before its manager starts.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::network::files::instances;
use kat_host::files;
use kat_types::{
    machine::{isolation::MachineAccess, root::Root},
    resource::{GpuDriver, GpuRequest, HostPort, Port, Protocol},
};

fn with_groups(name: &str, groups: &[&str]) -> Assignment {
    let mut one = assignment(0, name);
    one.container.groups = groups.iter().map(|name| (*name).to_owned()).collect();
    one
}

impl Bench {
    fn groups(&self, assignment: &Assignment) -> Vec<String> {
        let groups = self.accounts.groups.lock();
        let of_user = groups
            .get(&assignment.user.uid)
            .cloned()
            .unwrap_or_default();
        of_user.into_iter().collect()
    }

    /// Calls to a user's manager that start or stop the workload's units, and restarts of the
    /// manager.
    fn turns(&self, assignment: &Assignment) -> Vec<String> {
        let mut calls = self.manager(assignment).calls();
        calls.retain(|call| call.contains("kat-default") || call.contains("user@"));
        calls
    }

    fn mark(&self, assignment: &Assignment) -> PathBuf {
        let uid = assignment.user.uid.to_string();
        self.root.path().join("run/kat/regroup").join(uid)
    }

    /// Creates a device that every user may open.
    fn plug(&self, name: &str) {
        let path = Root::new(self.root.path()).below(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink("/dev/null", path).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_user_is_in_its_groups_before_its_manager_starts() {
    let bench = Bench::new();
    let stick = with_groups("stick", &["dialout", "video"]);
    bench.list(true, std::slice::from_ref(&stick));
    bench.soon().await;
    assert_eq!(bench.said(&stick.instance).0, InstancePhase::Running);
    assert_eq!(bench.groups(&stick), ["dialout", "video"]);
    assert_eq!(
        bench.turns(&stick),
        ["start kat-default-stick-aaaaa.service"],
        "its manager need not start twice"
    );
    // A new agent process changes nothing.
    let mut bench = bench;
    bench.restart().await;
    bench.soon().await;
    assert_eq!(bench.turns(&stick).len(), 1);
    assert!(!bench.mark(&stick).exists());
}

#[tokio::test(start_paused = true)]
async fn a_version_with_other_groups_gets_a_manager_that_has_them() {
    let bench = Bench::new();
    let versions = [&[][..], &["dialout"], &["dialout", "video"], &[]];
    for (number, groups) in versions.into_iter().enumerate() {
        let mut version = with_groups("stick", groups);
        version.instance = format!("stick-aaaa{number}");
        bench.list(true, std::slice::from_ref(&version));
        bench.later(Duration::from_secs(2)).await;
        assert_eq!(bench.said(&version.instance).0, InstancePhase::Running);
        assert_eq!(bench.groups(&version), groups);
        assert!(!bench.mark(&version).exists());
        let turns = bench.turns(&version);
        let unit = version.unit();
        let expected = match number {
            0 => vec![format!("start {unit}")],
            _ => vec!["restart user@".to_owned(), format!("start {unit}")],
        };
        assert_eq!(turns, expected, "{number}");
        bench.list(true, &[stopped(&version)]);
        bench.later(Duration::from_secs(20)).await;
        assert_eq!(
            bench.groups(&version),
            groups,
            "until another version says so"
        );
        bench.manager(&version).clear_calls();
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_group_restarts_the_users_manager_and_all_its_instances() {
    let bench = Bench::new();
    let plain = assignment(0, "stick");
    let mut other = with_groups("stick", &["dialout"]);
    other.instance = "stick-bbbbb".to_owned();
    bench.list(true, std::slice::from_ref(&plain));
    bench.soon().await;
    bench.manager(&plain).clear_calls();
    bench.list(true, &[plain.clone(), other.clone()]);
    bench.later(Duration::from_secs(5)).await;
    for one in [&plain, &other] {
        assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    }
    let turns = bench.turns(&plain);
    assert_eq!(
        turns[..2],
        [format!("stop {}", plain.unit()), "restart user@".to_owned()]
    );
    assert_eq!(turns.len(), 4, "{turns:?}");
    // A group is removed only when no instance of the user runs.
    bench.manager(&plain).clear_calls();
    bench.list(true, &[plain.clone(), stopped(&other)]);
    bench.later(Duration::from_secs(20)).await;
    bench.list(true, std::slice::from_ref(&plain));
    bench.later(Duration::from_secs(60)).await;
    assert!(bench.groups(&plain).is_empty());
    assert_eq!(bench.turns(&plain), [format!("stop {}", other.unit())]);
    assert!(bench.mark(&plain).exists());
    bench.list(true, &[stopped(&plain)]);
    bench.later(Duration::from_secs(20)).await;
    assert!(bench.turns(&plain).contains(&"restart user@".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_cut_short_is_brought_to_its_end() {
    let mut bench = Bench::new();
    let stick = with_groups("stick", &["dialout"]);
    let plain = assignment(0, "stick");
    bench.list(true, std::slice::from_ref(&plain));
    bench.soon().await;
    bench.list(true, &[stopped(&plain)]);
    bench.later(Duration::from_secs(20)).await;
    bench.manager(&stick).clear_calls();
    // The agent was killed after the user got its groups and before its manager was restarted.
    let groups = ["dialout".to_owned()].into();
    bench
        .accounts
        .set_groups(&stick.user, &groups)
        .await
        .unwrap();
    let mark = bench.mark(&stick);
    std::fs::create_dir_all(mark.parent().unwrap()).unwrap();
    std::fs::write(&mark, "").unwrap();
    bench.kill().await;
    let mut next = stick.clone();
    next.instance = "stick-bbbbb".to_owned();
    bench.list(true, std::slice::from_ref(&next));
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.said(&next.instance).0, InstancePhase::Running);
    let expected = ["restart user@".to_owned(), format!("start {}", next.unit())];
    assert_eq!(bench.turns(&stick), expected);
    assert!(!mark.exists());
}

/// The owner allows a group while an instance waits for it: the agent starts anew, and has the list of the
/// disk first.
#[tokio::test(start_paused = true)]
async fn what_needs_a_new_group_does_not_start_without_it_by_a_list_of_the_disk() {
    for runs_beside in [false, true] {
        let bench = Bench::new();
        let plain = assignment(0, "stick");
        let mut next = with_groups("stick", &["spi"]);
        next.instance = "stick-bbbbb".to_owned();
        let all = match runs_beside {
            true => vec![plain.clone(), next.clone()],
            false => vec![next.clone()],
        };
        bench.list(true, &all);
        bench.later(Duration::from_secs(20)).await;
        assert_eq!(bench.said(&next.instance).1, "GroupMissing");
        bench.manager(&next).clear_calls();
        bench.list(false, &all);
        bench.accounts.known.lock().insert("spi".to_owned(), 999);
        bench.later(Duration::from_secs(20)).await;
        assert_eq!(bench.groups(&next), ["spi"]);
        let restarted = ["restart user@".to_owned(), format!("start {}", next.unit())];
        if runs_beside {
            // What runs may belong here though the list lacks it, so that nothing is stopped by this list.
            assert_eq!(bench.turns(&next), Vec::<String>::new());
            bench.list(true, &all);
            bench.later(Duration::from_secs(20)).await;
            let turns = bench.turns(&next);
            assert_eq!(
                turns[..2],
                [format!("stop {}", plain.unit()), restarted[0].clone()]
            );
            assert!(turns.contains(&restarted[1]), "{turns:?}");
        } else {
            assert_eq!(bench.turns(&next), restarted);
        }
        assert_eq!(bench.said(&next.instance).0, InstancePhase::Running);
        assert!(!bench.mark(&next).exists());
    }
}

#[tokio::test(start_paused = true)]
async fn no_group_is_joined_that_is_not_allowed_and_none_is_left_by_a_list_of_the_disk() {
    let bench = Bench::new();
    for (groups, reason, word) in [
        (
            ["sudo"],
            "GroupNotAllowed",
            "groupsAllow in /etc/kat/agent.yaml",
        ),
        (["spi"], "GroupMissing", "group spi"),
    ] {
        let stick = with_groups("stick", &groups);
        bench.list(true, std::slice::from_ref(&stick));
        bench.later(Duration::from_secs(20)).await;
        let (phase, said, message) = bench.said(&stick.instance);
        assert_eq!((phase, said.as_str()), (InstancePhase::Starting, reason));
        assert!(message.contains(word), "{message}");
        assert!(bench.groups(&stick).is_empty());
        assert_eq!(bench.calls(&stick, "start kat-default"), 0);
    }
    // The group is created on the machine.
    let stick = with_groups("stick", &["spi"]);
    bench.accounts.known.lock().insert("spi".to_owned(), 999);
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(bench.said(&stick.instance).0, InstancePhase::Running);
    assert_eq!(bench.groups(&stick), ["spi"]);
    let plain = assignment(0, "stick");
    bench.list(false, std::slice::from_ref(&plain));
    bench.later(Duration::from_secs(10)).await;
    assert_eq!(bench.groups(&stick), ["spi"]);
    bench.list(true, std::slice::from_ref(&plain));
    bench.later(Duration::from_secs(10)).await;
    assert!(bench.groups(&stick).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_device_is_waited_for() {
    let bench = Bench::new();
    let mut stick = assignment(0, "stick");
    stick.container.devices = vec!["/dev/serial/by-id/stick:/dev/ttyUSB0".to_owned()];
    bench.list(true, std::slice::from_ref(&stick));
    bench.later(Duration::from_secs(60)).await;
    let (phase, reason, message) = bench.said(&stick.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "DeviceMissing")
    );
    assert_eq!(
        message,
        "device /dev/serial/by-id/stick: this machine has no such device"
    );
    assert_eq!(bench.calls(&stick, "start kat-default"), 0);
    bench.plug("/dev/serial/by-id/stick");
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&stick.instance).0, InstancePhase::Running);
    assert_eq!(bench.report(&stick.instance).unwrap().restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn the_machines_network_is_its_owners_to_give() {
    let bench = Bench::new();
    let mut edge = assignment(0, "edge");
    edge.container.host_network = true;
    bench.list(true, &[edge.clone(), assignment(1, "web")]);
    bench.later(Duration::from_secs(20)).await;
    let (phase, reason, message) = bench.said(&edge.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "HostNetworkNotAllowed")
    );
    assert!(
        message.contains("hostNetworkAllow in /etc/kat/agent.yaml"),
        "{message}"
    );
    assert_eq!(bench.calls(&edge, "start kat-default"), 0);
    // The hook's list does not contain the instance.
    let listed = instances(&bench.lists.borrow().desired, &bench.tools.options);
    assert_eq!(listed.instances.keys().collect::<Vec<_>>(), ["web-aaaaa"]);
}

#[tokio::test(start_paused = true)]
async fn the_api_and_the_metadata_are_its_owners_to_give() {
    let bench = Bench::new();
    let mut sync = assignment(0, "sync");
    sync.machine_access = vec!["api".to_owned(), "metadata".to_owned()];
    bench.list(true, &[sync.clone(), assignment(1, "web")]);
    bench.later(Duration::from_secs(20)).await;
    let (phase, reason, message) = bench.said(&sync.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "MachineAccessNotAllowed")
    );
    assert!(
        message.starts_with("machineAccess api: ") && message.contains("/etc/kat/agent.yaml"),
        "{message}"
    );
    assert_eq!(bench.calls(&sync, "start kat-default"), 0);

    // `kat-net` opens what is asked for and allowed, and nothing else.
    let desired = bench.lists.borrow().desired.clone();
    let opened = |allowed: &[&str]| {
        let config = AgentConfig {
            machine_access_allow: allowed.iter().map(|word| (*word).to_owned()).collect(),
            ..AgentConfig::default()
        };
        let options = MachineOptions::new(&bench.tools.root, &config);
        let instances = instances(&desired, &options).instances;
        let web = &instances["web-aaaaa"].machine_access;
        assert!(web.is_empty(), "{web:?}");
        instances[&sync.instance].machine_access.clone()
    };
    assert!(opened(&[]).is_empty());
    assert_eq!(opened(&["metadata"]), [MachineAccess::Metadata].into());
    let both = [MachineAccess::Api, MachineAccess::Metadata];
    assert_eq!(opened(&["metadata", "api"]), both.into());
}

#[test]
fn only_what_the_owner_allows_and_is_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for part in ["dev/dri", "dev/shm", "etc"] {
        std::fs::create_dir_all(root.join(part)).unwrap();
    }
    symlink("/dev/null", root.join("dev/ttyUSB0")).unwrap();
    symlink("/dev/null", root.join("dev/dri/card0")).unwrap();
    std::fs::write(root.join("dev/file"), "").unwrap();
    std::fs::write(root.join("etc/passwd"), "").unwrap();
    symlink("../etc/passwd", root.join("dev/link")).unwrap();
    let said = |device: &str, allow: &[&str]| {
        let config = AgentConfig {
            devices_allow: Some(allow.iter().map(|path| (*path).to_owned()).collect()),
            ..AgentConfig::default()
        };
        let mut one = assignment(0, "stick");
        one.container.devices = vec![device.to_owned()];
        let options = MachineOptions::new(&Root::new(root), &config);
        let checked = options.check(&one, &MachineGroups::default());
        checked.map_err(|trouble| trouble.reason.word())
    };
    assert_eq!(said("/dev/ttyUSB0", &["/dev"]), Ok(()));
    assert_eq!(said("/dev/ttyUSB0", &["/dev/ttyUSB0"]), Ok(()));
    for (device, allow, reason) in [
        ("/dev/ttyUSB0", &[][..], "DeviceNotAllowed"),
        (
            "/dev/ttyUSB0",
            &["/dev/ttyUSB1", "/dev/dri"],
            "DeviceNotAllowed",
        ),
        ("/dev/ttyUSB1", &["/dev"], "DeviceMissing"),
        ("/dev/file", &["/dev"], "DeviceMissing"),
        ("/dev/link", &["/dev"], "DeviceMissing"),
        ("/dev/dri", &["/dev"], "DeviceMissing"),
    ] {
        assert_eq!(said(device, allow), Err(reason), "{device} {allow:?}");
    }
    assert!(files::remove(&root.join("dev/file")).unwrap());
}

#[test]
fn a_gpu_is_had_where_a_spec_names_it_and_its_nodes_are_there_and_open() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("etc/cdi")).unwrap();
    std::fs::create_dir_all(root.join("dev")).unwrap();
    let mut one = assignment(0, "model");
    one.container.resources.gpu = Some(GpuRequest {
        driver: GpuDriver::Any,
        min_vram_mb: None,
    });
    one.gpu = Some("amd.com/gpu=0".to_owned());
    let said = |one: &Assignment| {
        // No field of agent.yaml is needed: root of the machine wrote the spec.
        let options = MachineOptions::new(&Root::new(root), &AgentConfig::default());
        let checked = options.check(one, &MachineGroups::default());
        checked.map_err(|trouble| (trouble.reason.word(), trouble.message))
    };
    let spec = r#"{"kind": "amd.com/gpu", "devices": [{"name": "0", "containerEdits":
        {"deviceNodes": [{"path": "/dev/kfd"}]}}]}"#;
    std::fs::write(root.join("etc/cdi/broken.json"), "{").unwrap();
    let (reason, message) = said(&one).unwrap_err();
    assert_eq!(reason, "GpuMissing");
    assert!(message.contains("/etc/cdi/broken.json"), "{message}");

    std::fs::write(root.join("etc/cdi/amd.json"), spec).unwrap();
    let (reason, message) = said(&one).unwrap_err();
    assert_eq!(reason, "GpuDriverMissing");
    assert!(message.contains("/dev/kfd"), "{message}");

    symlink("/dev/null", root.join("dev/kfd")).unwrap();
    assert_eq!(said(&one), Ok(()));

    files::remove(&root.join("dev/kfd")).unwrap();
    std::fs::write(root.join("dev/kfd"), "").unwrap();
    let closed = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(root.join("dev/kfd"), closed).unwrap();
    let (reason, message) = said(&one).unwrap_err();
    assert_eq!(reason, "DeviceNotOpen");
    assert!(message.contains("groups: ["), "{message}");
}

/// An assignment whose container asks for less confinement.
fn loose(name: &str, key: &str, value: &str) -> Assignment {
    let mut one = assignment(0, name);
    one.container.quadlet = [(key.to_owned(), value.to_owned())].into();
    one
}

#[tokio::test(start_paused = true)]
async fn less_confinement_is_the_owners_to_give_and_waits_for_it() {
    let bench = Bench::new();
    let seccomp = loose("loose", "SeccompProfile", "unconfined");
    let unmask = loose("loose", "Unmask", "ALL");
    let privileges = loose("loose", "NoNewPrivileges", "false");
    let selinux = loose("loose", "SecurityLabelDisable", "true");
    let profile = loose("loose", "SeccompProfile", "/srv/profile.json");
    let mut capability = assignment(0, "loose");
    capability.container.cap_add = vec!["NET_RAW".to_owned(), "SYS_ADMIN".to_owned()];
    // The same check applies to a sidecar.
    let mut beside = assignment(0, "loose");
    beside.sidecars = vec![unmask.container.clone()];
    beside.sidecars[0].name = Some("side".to_owned());
    for (one, words) in [
        (seccomp, "does not have seccomp"),
        (unmask, "does not have unmask"),
        (privileges, "does not have newPrivileges"),
        (selinux, "does not have selinux"),
        (profile, "/srv/profile.json"),
        (capability, "capability SYS_ADMIN"),
        (beside, "does not have unmask"),
    ] {
        bench.list(true, std::slice::from_ref(&one));
        bench.later(Duration::from_secs(20)).await;
        let (phase, reason, message) = bench.said(&one.instance);
        assert_eq!(
            (phase, reason.as_str()),
            (InstancePhase::Starting, "SecurityNotAllowed"),
            "{words}"
        );
        assert!(message.contains(words), "{message}");
        assert!(message.contains("/etc/kat/agent.yaml"), "{message}");
        assert_eq!(bench.calls(&one, "start kat-default"), 0);
        // systemd does not start the instance without the agent either.
        let unit = bench.units(&one).join("kat-default-loose-aaaaa.container");
        let text = std::fs::read_to_string(unit).unwrap();
        assert!(!text.contains("[Install]"), "{words}: {text}");
    }
    let mut plain = assignment(0, "loose");
    plain.container.cap_add = vec!["NET_RAW".to_owned()];
    bench.list(true, std::slice::from_ref(&plain));
    bench.later(Duration::from_secs(20)).await;
    assert_eq!(bench.said(&plain.instance).0, InstancePhase::Running);
}

#[test]
fn a_profile_of_a_path_of_the_machine_is_not_allowed_by_any_word() {
    let folder = tempfile::tempdir().unwrap();
    let config = AgentConfig {
        security_allow: Some(vec!["seccomp".to_owned(), "capabilities".to_owned()]),
        ..AgentConfig::default()
    };
    let options = MachineOptions::new(&Root::new(folder.path()), &config);
    let said = |profile: &str| {
        let one = loose("loose", "SeccompProfile", profile);
        let checked = options.check(&one, &MachineGroups::default());
        checked.map_err(|trouble| trouble.reason.word())
    };
    assert_eq!(said("unconfined"), Ok(()));
    assert_eq!(said("/usr/share/containers/own.json"), Ok(()));
    assert_eq!(said("/etc/shadow"), Err("SecurityNotAllowed"));
}

fn with_host_port(name: &str, number: u16) -> Assignment {
    let mut one = assignment(0, name);
    one.ports = vec![Port {
        name: Some("web".to_owned()),
        container_port: 8080,
        protocol: Protocol::Tcp,
        host_port: Some(HostPort::Number(number)),
        ..Port::default()
    }];
    one
}

#[tokio::test(start_paused = true)]
async fn ports_of_the_machine_below_1024_but_the_webs_are_its_owners_to_give() {
    let bench = Bench::new();
    let sshd = with_host_port("web", 22);
    bench.list(true, std::slice::from_ref(&sshd));
    bench.later(Duration::from_secs(20)).await;
    let (phase, reason, message) = bench.said(&sshd.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "HostPortNotAllowed")
    );
    assert_eq!(
        message,
        "host port 22/TCP: this machine forwards only ports 80, 443, 1024-65535 to workloads; hostPortsAllow in /etc/kat/agent.yaml says which"
    );
    assert_eq!(bench.calls(&sshd, "start kat-default"), 0);
    // `kat-net` forwards nothing to this port in any case.
    let listed = instances(&bench.lists.borrow().desired, &bench.tools.options);
    assert!(listed.instances["web-aaaaa"].host_ports.is_empty());
    let web = with_host_port("web", 80);
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(20)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    let listed = instances(&bench.lists.borrow().desired, &bench.tools.options);
    let ports = &listed.instances["web-aaaaa"].host_ports;
    assert_eq!((ports[0].port, ports[0].loopback), (80, false));
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_kept_for_a_program_that_ended_is_waited_for() {
    let bench = Bench::new();
    let web = with_host_port("web", 80);
    bench.others.1.lock().push((Protocol::Tcp, 80));
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(20)).await;
    let (_, reason, message) = bench.said(&web.instance);
    assert_eq!(reason, "HostPortInUse");
    assert!(message.contains("in the last ten minutes"), "{message}");
    assert_eq!(bench.calls(&web, "start kat-default"), 0);
    bench.others.1.lock().clear();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

#[test]
fn the_owner_says_which_ports_lead_to_workloads_and_for_whom() {
    let folder = tempfile::tempdir().unwrap();
    let text = "hostPortsAllow: [22, 8000-8010]\nhostPortLoopback: true\n";
    let config = kat_bundle::parse_agent_config(text, "agent.yaml").unwrap();
    let options = MachineOptions::new(&Root::new(folder.path()), &config);
    let said = |number| {
        let checked = options.check(&with_host_port("web", number), &MachineGroups::default());
        checked.map_err(|trouble| trouble.reason.word())
    };
    for (number, expected) in [
        (22, Ok(())),
        (8000, Ok(())),
        (8010, Ok(())),
        (80, Err("HostPortNotAllowed")),
        (8011, Err("HostPortNotAllowed")),
    ] {
        assert_eq!(said(number), expected, "{number}");
    }
    assert!(options.allows_loopback(&with_host_port("web", 22), 22));
}
