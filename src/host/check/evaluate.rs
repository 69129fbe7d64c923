//! Judges the gathered facts. Pure.

use super::{
    CheckFacts, CheckInput, CheckStage, ClockState, Finding, networks, packages::Package, ports,
};
use crate::{facts::ProgramVersion, users::AccountConflict};
use kat_types::{
    assignment::INDEX_LIMIT,
    machine::program_version::{etcd_has_known_holes, etcd_mended_versions},
    resource::name::check_label,
};

/// Oldest supported systemd: the first with `RestartSteps=`.
const SYSTEMD: ProgramVersion = ProgramVersion::new(254, 0, 0);
/// Oldest supported Podman: the first with `.build` quadlets.
const PODMAN: ProgramVersion = ProgramVersion::new(5, 2, 0);
/// Oldest supported etcd.
const ETCD: ProgramVersion = ProgramVersion::new(3, 5, 0);
/// Free space in bytes below which there is hardly room for images.
const DISK_PROBLEM: u64 = 1 << 30;
/// Free space in bytes below which a warning is given.
const DISK_WARNING: u64 = 5 << 30;
/// Memory in bytes that etcd, KAT and other programs need together.
const MEMORY_WARNING: u64 = 512 << 20;

/// Judges the machine; the findings are in the order in which to fix them.
pub fn evaluate(input: &CheckInput, facts: &CheckFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !facts.is_root {
        findings.push(
            Finding::warning("this is not root: the owner of a port or an id may not be visible")
                .mended_by("sudo kat-agent check"),
        );
    }
    programs(facts, &mut findings);
    control_groups(facts, &mut findings);
    surroundings(input.stage, facts, &mut findings);
    etcd_unit(facts, &mut findings);
    if input.stage == CheckStage::Running {
        findings.push(agent(facts));
    }
    ports::add_port_findings(input, facts, &mut findings);
    networks::add_network_findings(input, facts, &mut findings);
    identities(input, facts, &mut findings);
    room(facts, &mut findings);
    findings.extend(input.obstacles.iter().cloned());
    findings
}

/// Checks that a program is installed in a supported version; `install` is the command that
/// installs it.
fn program(
    (name, program, oldest): (&str, &str, ProgramVersion),
    found: Option<ProgramVersion>,
    facts: &CheckFacts,
    install: String,
) -> Finding {
    match found {
        Some(version) if version >= oldest => Finding::ok(format!("{name} {version}")),
        Some(version) => Finding::problem(
            format!("{name} {version} is too old, {oldest} is needed"),
            newer(name, oldest),
        ),
        None if !facts.silent.contains(&program) => {
            Finding::problem(format!("{name} is missing, {oldest} is needed"), install)
        }
        // Podman, for example, gives no version to a user without a home.
        None if !facts.is_root => Finding::warning(format!(
            "{name} is there and does not tell this user its version, {oldest} is needed"
        ))
        .mended_by("sudo kat-agent check"),
        None => Finding::problem(
            format!("{name} is there and does not tell its version, {oldest} is needed"),
            format!("mend what {program} --version complains about"),
        ),
    }
}

/// The hint where the distribution's release has no package that is new enough.
fn newer(name: &str, oldest: ProgramVersion) -> String {
    format!(
        "upgrade this machine to a release of its distribution with {name} {oldest} or newer, such as Debian 13"
    )
}

fn programs(facts: &CheckFacts, findings: &mut Vec<Finding>) {
    let install = |package: Package| package.install(facts.family);
    findings.push(program(
        ("systemd", "systemctl", SYSTEMD),
        facts.systemd,
        facts,
        newer("systemd", SYSTEMD),
    ));
    if facts.systemd.is_some() && !facts.runs_systemd {
        findings.push(Finding::problem(
            "systemd is installed but is not what this machine was booted with",
            "make systemd this machine's init (on Debian: sudo apt install systemd-sysv), and boot again",
        ));
    }
    for (wanted, found, package) in [
        (("Podman", "podman", PODMAN), facts.podman, Package::Podman),
        (("etcd", "etcd", ETCD), facts.etcd, Package::Etcd),
        (
            ("nftables", "nft", ProgramVersion::default()),
            facts.nft,
            Package::Nftables,
        ),
    ] {
        findings.push(program(wanted, found, facts, install(package)));
    }
    // An etcd below the minimum version is already reported above.
    let supported = facts.etcd.filter(|etcd| *etcd >= ETCD);
    if let Some(version) = supported.filter(|etcd| etcd_has_known_holes(*etcd)) {
        findings.push(
            Finding::warning(format!(
                "etcd {version} has known holes in its users' rights (CVE-2026-33343): root of any machine with a certificate for etcd can read and write the whole store"
            ))
            .mended_by(format!(
                "upgrade etcd to {} or newer when the distribution has it; in a new cluster, only machines that hold the store have such a certificate",
                etcd_mended_versions()
            )),
        );
    }
    for (there, what, package) in [
        (
            facts.has_etcdutl,
            "etcdutl, which restores backups,",
            Package::EtcdTools,
        ),
        (
            facts.has_newuidmap,
            "newuidmap, without which no container runs as its own user,",
            Package::IdMaps,
        ),
        (
            facts.has_shadow,
            "useradd, which makes the workloads' users,",
            Package::Accounts,
        ),
        (
            facts.has_user_bus,
            "the users' message bus, over which KAT starts containers,",
            Package::UserBus,
        ),
        (
            facts.has_pam_systemd,
            "pam_systemd, without which no user's manager starts,",
            Package::PamSystemd,
        ),
    ] {
        let name = what.split(',').next().unwrap_or(what);
        findings.push(if there {
            Finding::ok(format!("{name} is there"))
        } else {
            Finding::problem(format!("{what} is missing"), install(package))
        });
    }
    findings.push(match &facts.runtime {
        Some(name) if name == "crun" => Finding::ok("crun runs the containers"),
        Some(name) => Finding::warning(format!(
            "{name} runs the containers: no workload with groups or with a health check by a command comes to this machine, and commands of katcall exec may outlive their sessions"
        ))
        .mended_by(format!(
            "install crun ({}), and name no other `runtime` in containers.conf(5)",
            install(Package::Crun)
        )),
        None => Finding::problem(
            "no container runtime is there, crun or runc is needed",
            install(Package::Crun),
        ),
    });
}

fn control_groups(facts: &CheckFacts, findings: &mut Vec<Finding>) {
    if !facts.cgroup_v2 {
        findings.push(Finding::problem(
            "control groups are not version 2 alone (the unified hierarchy)",
            facts
                .boot_loader
                .with_word("systemd.unified_cgroup_hierarchy=1"),
        ));
        return;
    }
    for (name, consequence) in [
        ("memory", "memory limits"),
        ("cpu", "processor limits"),
        ("pids", "limits of processes"),
    ] {
        let has = |list: &[String]| list.iter().any(|controller| controller == name);
        findings.push(if !has(&facts.controllers) {
            let finding = Finding::warning(format!(
                "the kernel's {name} controller is off: {consequence} will not be enforced"
            ));
            finding.mended_by(if name == "memory" {
                facts.boot_loader.with_word("cgroup_enable=memory")
            } else {
                format!(
                    "boot a kernel that has it, without cgroup_disable={name} on its command line"
                )
            })
        } else if has(&facts.delegated) {
            Finding::ok(format!("users' managers get the {name} controller"))
        } else {
            Finding::warning(format!(
                "users' managers do not get the {name} controller: {consequence} will not be enforced"
            ))
            .mended_by(
                "sudo mkdir -p /etc/systemd/system/user@.service.d && \
                 printf '[Service]\\nDelegate=pids memory cpu\\n' | \
                 sudo tee /etc/systemd/system/user@.service.d/50-delegate.conf && \
                 sudo systemctl daemon-reload",
            )
        });
    }
}

fn surroundings(stage: CheckStage, facts: &CheckFacts, findings: &mut Vec<Finding>) {
    findings.push(if facts.journal_kept {
        Finding::ok("the journal is kept over a reboot")
    } else if stage != CheckStage::Running {
        Finding::ok("the journal will be kept over a reboot: kat-agent init and join see to it")
    } else {
        Finding::warning("the journal is lost at each reboot, and with it the workloads' logs")
            .mended_by(
                "sudo mkdir -p /etc/systemd/journald.conf.d && \
                 printf '[Journal]\\nStorage=persistent\\n' | \
                 sudo tee /etc/systemd/journald.conf.d/50-kept.conf && \
                 sudo systemctl restart systemd-journald && sudo journalctl --flush && \
                 sudo systemd-tmpfiles --create --prefix /var/log/journal",
            )
    });
    let mut set_clock = "sudo timedatectl set-ntp true".to_owned();
    if facts.clock == ClockState::Unkept {
        let install = Package::TimeServer.install(facts.family);
        set_clock = format!("{install} && {set_clock}");
    }
    findings.push(match facts.clock {
        ClockState::Synchronised => Finding::ok("the clock follows a time server"),
        ClockState::Alone | ClockState::Unkept => Finding::warning(
            "the clock follows no time server: certificates and leases need the machines to agree",
        )
        .mended_by(set_clock),
        ClockState::Unknown => {
            Finding::warning("nobody can say whether the clock is right").mended_by(set_clock)
        }
    });
    if facts.selinux_enforcing {
        findings.push(
            Finding::warning(
                "SELinux enforces: with Debian's policy alone no container starts, and other policies were not tried",
            )
            .mended_by(
                "two files that give up the confinement of kat-agent and of the containers let them start: see SELinux in /usr/share/doc/kat/docs/guide/devices.md",
            ),
        );
    }
    findings.push(if facts.kernel_wireguard {
        Finding::ok("the kernel has WireGuard")
    } else if facts.has_tun {
        Finding::warning(
            "the kernel has no WireGuard: KAT's own, in a program, stands in for it, and is slower",
        )
    } else {
        Finding::problem(
            "there is neither WireGuard in the kernel nor /dev/net/tun",
            "sudo modprobe wireguard || sudo modprobe tun",
        )
    });
}

fn etcd_unit(facts: &CheckFacts, findings: &mut Vec<Finding>) {
    let unit = &facts.etcd_unit;
    if !unit.active && !unit.enabled {
        return;
    }
    let does = match (unit.active, unit.enabled) {
        (true, true) => "runs and starts at boot",
        (true, false) => "runs",
        (false, _) => "starts at boot",
    };
    findings.push(Finding::problem(
        format!(
            "the distribution's own etcd.service {does}: it listens without TLS on the ports of KAT's etcd"
        ),
        "sudo systemctl disable --now etcd.service",
    ));
}

/// What `kat-net` does without the agent.
fn agent(facts: &CheckFacts) -> Finding {
    if facts.agent.active {
        return Finding::ok(
            "kat-agent runs; if it is stopped or masked for longer than nodeLossTimeoutSeconds, kat-net ends the instances with onPartition: stop",
        );
    }
    Finding::warning(
        "kat-agent does not run: other workloads continue to run, but kat-net ends the instances with onPartition: stop when nodeLossTimeoutSeconds have passed, because a leader may replace them",
    )
    .mended_by("sudo systemctl unmask kat-agent.service && sudo systemctl start kat-agent.service")
}

fn identities(input: &CheckInput, facts: &CheckFacts, findings: &mut Vec<Finding>) {
    findings.push(match check_label(&facts.hostname) {
        Ok(()) => Finding::ok(format!("{} is a valid node name", facts.hostname)),
        Err(error) => Finding::warning(format!("the host's name is no valid node name: {error}"))
            .mended_by("kat-agent init --node-name NAME, or sudo hostnamectl hostname NAME"),
    });
    if let Some(error) = &facts.accounts_error {
        findings.push(Finding::problem(
            format!("the machine's users can't be read: {error}"),
            "mend the file that it names; sudo pwck --read-only and sudo grpck -r say what else is wrong",
        ));
        return;
    }
    if facts.taken_ids.is_empty() {
        findings.push(Finding::ok(format!(
            "uids from {} and subordinate ids from {} on are free",
            input.uid_base, input.subordinate_base
        )));
    }
    findings.extend(facts.taken_ids.iter().map(|taken| {
        Finding::problem(
            format!("the ids of workloads' users are not free: {taken}"),
            other_ids(input, taken),
        )
    }));
}

/// The hint on how to change the ids. Which ids to choose, and which files to change, is the
/// administrator's decision.
fn other_ids(input: &CheckInput, taken: &AccountConflict) -> String {
    let (first, below) = (input.uid_base, input.subordinate_base);
    let last = first.saturating_add(INDEX_LIMIT).saturating_sub(1);
    match taken {
        AccountConflict::Uid { by, .. } => format!(
            "give {by} an uid outside of {first} to {last}: sudo usermod --uid UID {by}; its files outside of its home need chown"
        ),
        AccountConflict::Gid { by, .. } => format!(
            "give the group {by} a gid outside of {first} to {last}: sudo groupmod --gid GID {by}; its files need chgrp"
        ),
        AccountConflict::Subordinate {
            first, last, by, ..
        } => format!(
            "give {by} ids below {below}: sudo usermod --del-subuids {first}-{last} --del-subgids {first}-{last} \
             --add-subuids FIRST-LAST --add-subgids FIRST-LAST {by}; then podman system migrate as {by}"
        ),
        AccountConflict::Name { name, .. } => {
            format!("call that user otherwise: sudo usermod --login NAME {name}")
        }
        AccountConflict::Group { name, .. } => {
            format!("call that group otherwise: sudo groupmod --new-name NAME {name}")
        }
        AccountConflict::Reserved { .. } => "choose ids that nothing is kept for".to_owned(),
    }
}

fn room(facts: &CheckFacts, findings: &mut Vec<Finding>) {
    let free = facts.disk_available_bytes;
    let text = format!("{} MiB are free below /var/lib", free >> 20);
    findings.push(if free < DISK_PROBLEM {
        Finding::problem(
            format!("only {text}, images need more than 1024"),
            "make room (sudo journalctl --vacuum-size=200M and the package manager's cache are quick to go), \
             or mount a larger file system at /var/lib/kat",
        )
    } else if free < DISK_WARNING {
        Finding::warning(format!("{text}, images need some"))
    } else {
        Finding::ok(text)
    });
    if facts.etcd_shares_disk {
        findings.push(
            Finding::warning(
                "etcd shares its file system with the workloads: one that fills it stops every change of the cluster",
            )
            .mended_by("where what runs is not trusted, mount a file system of its own, of 8 GiB, at /var/lib/kat/etcd before kat-agent init or join"),
        );
    }
    let memory = facts.memory_bytes;
    let text = format!("the machine has {} MiB of memory", memory >> 20);
    findings.push(if memory < MEMORY_WARNING {
        Finding::warning(format!("{text}: etcd and KAT leave little of it"))
    } else {
        Finding::ok(text)
    });
}
