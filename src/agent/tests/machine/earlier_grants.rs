//! Permissions that an upgrade removes by a smaller default are kept for workloads that had them
//! before the upgrade.

use super::*;
use crate::volumes::{
    earlier_grants,
    earlier_grants::{EarlierGrants, OwnersSetting},
};
use kat_host::check::Level;
use kat_types::resource::{HostPort, Port, Protocol};

const DESIRED: &str = "var/lib/kat/desired.json";

fn with_unmasked(index: u32, name: &str) -> Assignment {
    let mut one = assignment(index, name);
    one.workload_uid = format!("uid-of-{name}");
    let key = ("Unmask".to_owned(), "ALL".to_owned());
    one.container.quadlet = [key].into();
    one.container.cap_add = vec!["SYS_ADMIN".to_owned()];
    one
}

fn list(assignments: &[&Assignment]) -> DesiredState {
    let assignments = assignments.iter().copied().cloned();
    DesiredState {
        schema: 1,
        revision: 1,
        assignments: assignments.map(|one| (one.instance.clone(), one)).collect(),
        ..DesiredState::default()
    }
}

/// Writes a quadlet of the instance on the machine.
fn with_unit(root: &Root, assignment: &Assignment) {
    let folder = root.below(format!("var/lib/kat/units/{}", assignment.user.uid));
    std::fs::create_dir_all(&folder).unwrap();
    let stem = assignment.unit().replace(".service", ".container");
    std::fs::write(folder.join(stem), "").unwrap();
}

fn may(root: &Root, config: &AgentConfig, assignment: &Assignment) -> Result<(), &'static str> {
    let options = MachineOptions::new(root, config);
    let checked = options.check(assignment, &MachineGroups::default());
    checked.map_err(|trouble| trouble.reason.word())
}

#[test]
fn the_workloads_of_before_an_upgrade_keep_what_they_had_and_later_ones_ask_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    let (root, config) = (&Root::new(folder.path()), AgentConfig::default());
    let (old, never_written) = (with_unmasked(0, "old"), with_unmasked(1, "never"));
    with_unit(root, &old);
    let before = list(&[&old, &never_written]);
    earlier_grants::record(root, &config, &before).unwrap();
    let refused = Err("SecurityNotAllowed");
    assert_eq!(may(root, &config, &old), Ok(()));
    assert_eq!(may(root, &config, &never_written), refused);
    // A new version of the workload may ask for the same or for less, but not for more.
    let mut next = old.clone();
    next.instance = "old-bbbbb".to_owned();
    next.container.quadlet.clear();
    assert_eq!(may(root, &config, &next), Ok(()));
    next.container.cap_add.push("SYS_TIME".to_owned());
    assert_eq!(may(root, &config, &next), refused);
    // A workload of the same name that was created after the first one was deleted has no earlier
    // grants.
    let mut again = old.clone();
    again.workload_uid = "another".to_owned();
    assert_eq!(may(root, &config, &again), refused);
    // A later start of the agent does not record workloads that arrived after the upgrade.
    with_unit(root, &again);
    earlier_grants::record(root, &config, &list(&[&old, &again])).unwrap();
    assert_eq!(may(root, &config, &again), refused);
    assert_eq!(may(root, &config, &old), Ok(()));
}

#[test]
fn a_new_machine_records_nothing_ever() {
    let folder = tempfile::tempdir().unwrap();
    let (root, config) = (&Root::new(folder.path()), AgentConfig::default());
    std::fs::create_dir_all(root.below("var/lib/kat")).unwrap();
    earlier_grants::record(root, &config, &DesiredState::default()).unwrap();
    let one = with_unmasked(0, "one");
    with_unit(root, &one);
    earlier_grants::record(root, &config, &list(&[&one])).unwrap();
    assert_eq!(may(root, &config, &one), Err("SecurityNotAllowed"));
}

#[test]
fn what_agent_yaml_says_counts_alone() {
    let folder = tempfile::tempdir().unwrap();
    let root = &Root::new(folder.path());
    let old = with_unmasked(0, "old");
    with_unit(root, &old);
    earlier_grants::record(root, &AgentConfig::default(), &list(&[&old])).unwrap();
    let allowing = |words: &[&str]| AgentConfig {
        security_allow: Some(words.iter().map(|word| (*word).to_owned()).collect()),
        ..AgentConfig::default()
    };
    for (words, expected) in [
        (&[][..], Err("SecurityNotAllowed")),
        (&["unmask"], Err("SecurityNotAllowed")),
        (&["unmask", "SYS_ADMIN"], Ok(())),
        (&["unmask", "capabilities"], Ok(())),
        (
            &["seccomp", "selinux", "capabilities"],
            Err("SecurityNotAllowed"),
        ),
    ] {
        assert_eq!(may(root, &allowing(words), &old), expected, "{words:?}");
    }
    // The owner had already set `securityAllow` when the upgrade came.
    let folder = tempfile::tempdir().unwrap();
    let other = &Root::new(folder.path());
    with_unit(other, &old);
    earlier_grants::record(other, &allowing(&[]), &list(&[&old])).unwrap();
    let config = AgentConfig::default();
    assert_eq!(may(other, &config, &old), Err("SecurityNotAllowed"));
}

#[test]
fn a_record_that_cannot_be_read_is_not_written_anew_and_grants_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (root, config) = (&Root::new(folder.path()), AgentConfig::default());
    let old = with_unmasked(0, "old");
    with_unit(root, &old);
    std::fs::create_dir_all(root.below("var/lib/kat")).unwrap();
    std::fs::write(root.below("var/lib/kat/granted.json"), "{").unwrap();
    earlier_grants::record(root, &config, &list(&[&old])).unwrap();
    let record = std::fs::read_to_string(root.below("var/lib/kat/granted.json")).unwrap();
    assert_eq!(record, "{");
    let grants = EarlierGrants::read(root, &config);
    assert!(!grants.has(OwnersSetting::Security, &old, "unmask"));
    assert_eq!(
        earlier_grants::findings(root, &config)[0].level,
        Level::Warning
    );
}

#[test]
fn check_prints_the_line_for_agent_yaml() {
    let folder = tempfile::tempdir().unwrap();
    let (root, config) = (&Root::new(folder.path()), AgentConfig::default());
    let old = with_unmasked(0, "old");
    with_unit(root, &old);
    assert!(earlier_grants::findings(root, &config).is_empty());
    earlier_grants::record(root, &config, &list(&[&old])).unwrap();
    list(&[&old]).store(&root.below(DESIRED)).unwrap();
    let found = earlier_grants::findings(root, &config);
    assert_eq!(found.len(), 1);
    assert!(
        found[0]
            .what
            .ends_with(": default/old has SYS_ADMIN, unmask"),
        "{}",
        found[0].what
    );
    let line = found[0].mend.as_deref().unwrap();
    let (_, line) = line.split_once('`').unwrap();
    let (line, _) = line.split_once('`').unwrap();
    assert_eq!(line, r#"securityAllow: ["SYS_ADMIN","unmask"]"#);
    let written = kat_bundle::parse_agent_config(line, "agent.yaml").unwrap();
    assert_eq!(may(root, &written, &old), Ok(()));
    assert!(earlier_grants::findings(root, &written).is_empty());
    // Workloads that have left the machine are not reported.
    list(&[]).store(&root.below(DESIRED)).unwrap();
    assert!(earlier_grants::findings(root, &config).is_empty());
}

#[test]
fn host_ports_of_before_an_upgrade_go_on_leading_where_they_led() {
    let folder = tempfile::tempdir().unwrap();
    let (root, config) = (&Root::new(folder.path()), AgentConfig::default());
    let with_port = |index: u32, name: &str, number: u16| {
        let mut one = assignment(index, name);
        one.workload_uid = format!("uid-of-{name}");
        one.ports = vec![Port {
            name: Some("mail".to_owned()),
            container_port: 2525,
            protocol: Protocol::Tcp,
            host_port: Some(HostPort::Number(number)),
            ..Port::default()
        }];
        one
    };
    let (mail, late) = (with_port(0, "mail", 25), with_port(1, "late", 8025));
    with_unit(root, &mail);
    earlier_grants::record(root, &config, &list(&[&mail])).unwrap();
    assert_eq!(may(root, &config, &mail), Ok(()));
    assert_eq!(
        may(root, &config, &with_port(1, "late", 25)),
        Err("HostPortNotAllowed")
    );
    let options = MachineOptions::new(root, &config);
    assert!(options.allows_loopback(&mail, 25));
    assert!(!options.allows_loopback(&late, 8025));
    list(&[&mail]).store(&root.below(DESIRED)).unwrap();
    let found = earlier_grants::findings(root, &config);
    let lines: Vec<&str> = found
        .iter()
        .filter_map(|one| one.mend.as_deref()?.split('`').nth(1))
        .collect();
    assert_eq!(
        lines,
        [
            r#"hostPortsAllow: ["80","443","1024-65535","25"]"#,
            "hostPortLoopback: true"
        ]
    );
    let written = kat_bundle::parse_agent_config(&lines.join("\n"), "agent.yaml").unwrap();
    assert_eq!(may(root, &written, &mail), Ok(()));
}

#[test]
fn groups_and_devices_of_before_an_upgrade_stay_and_nobody_else_gets_any() {
    let folder = tempfile::tempdir().unwrap();
    let (root, config) = (&Root::new(folder.path()), AgentConfig::default());
    std::fs::create_dir_all(root.below("dev")).unwrap();
    std::os::unix::fs::symlink("/dev/null", root.below("dev/ttyUSB0")).unwrap();
    let asking = |index: u32, name: &str, groups: &[&str]| {
        let mut one = assignment(index, name);
        one.workload_uid = format!("uid-of-{name}");
        one.container.devices = vec!["/dev/ttyUSB0".to_owned()];
        one.container.groups = groups.iter().map(|name| (*name).to_owned()).collect();
        one
    };
    let all = [("dialout", 20), ("video", 44), ("sudo", 27)];
    let groups = MachineGroups {
        all: all.map(|(name, gid)| (name.to_owned(), gid)).into(),
        ..MachineGroups::default()
    };
    // Group `sudo` was refused before the upgrade too, so no workload had it.
    let (old, late) = (
        asking(0, "old", &["dialout", "sudo"]),
        asking(1, "late", &["dialout"]),
    );
    with_unit(root, &old);
    earlier_grants::record(root, &config, &list(&[&old])).unwrap();
    let options = MachineOptions::new(root, &config);
    let said = |one: &Assignment| {
        options
            .check(one, &groups)
            .map_err(|trouble| trouble.reason.word())
    };
    assert_eq!(said(&asking(0, "old", &["dialout"])), Ok(()));
    assert_eq!(said(&old), Err("GroupNotAllowed"), "sudo");
    assert_eq!(said(&late), Err("GroupNotAllowed"));
    assert_eq!(said(&asking(1, "late", &[])), Err("DeviceNotAllowed"));
    let joined = |one: &Assignment| options.groups_of(std::iter::once(one), &groups);
    assert_eq!(joined(&old), ["dialout".to_owned()].into());
    assert!(joined(&late).is_empty());
}
