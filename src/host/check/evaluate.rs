//! Judges what was seen. Pure.

use super::{CheckInput, ClockState, Facts, Finding, Stage, packages::Package};
use crate::{
    host::facts::{
        Version,
        network::{Listener, Protocol, overlaps},
    },
    resource::name::check_label,
};

/// Oldest systemd: the first with `RestartSteps=`.
const SYSTEMD: Version = Version::new(254, 0, 0);
/// Oldest Podman: the first with `.build` quadlets.
const PODMAN: Version = Version::new(5, 2, 0);
/// Oldest etcd.
const ETCD: Version = Version::new(3, 5, 0);
/// What WireGuard adds to a packet over IPv4; over IPv6 it is 80 bytes.
const TUNNEL_BYTES: u32 = 60;
/// The same over IPv6.
const TUNNEL_BYTES_V6: u32 = 80;
/// Free space under which images hardly fit.
const DISK_PROBLEM: u64 = 1 << 30;
/// Free space under which it gets tight soon.
const DISK_WARNING: u64 = 5 << 30;
/// Memory of a machine on which etcd, KAT and something else run.
const MEMORY_WARNING: u64 = 512 << 20;
/// Links that KAT makes.
const OUR_LINKS: &[&str] = &["kat0"];

/// Judges the machine, in the order in which a person would mend it.
pub fn evaluate(input: &CheckInput, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !facts.is_root {
        findings.push(
            Finding::warning("this is not root: who holds a port or an id may not show")
                .mended_by("sudo kat-agent check"),
        );
    }
    programs(facts, &mut findings);
    control_groups(facts, &mut findings);
    surroundings(input.stage, facts, &mut findings);
    etcd_unit(facts, &mut findings);
    ports(input, facts, &mut findings);
    network(input, facts, &mut findings);
    identities(input, facts, &mut findings);
    room(facts, &mut findings);
    findings.extend(input.obstacles.iter().cloned());
    findings
}

/// One program that must be there in a version.
fn program(
    findings: &mut Vec<Finding>,
    name: &str,
    found: Option<Version>,
    oldest: Version,
    mend: Option<String>,
) {
    let finding = match found {
        Some(version) if version >= oldest => Finding::ok(format!("{name} {version}")),
        Some(version) => {
            Finding::problem(format!("{name} {version} is too old, {oldest} is needed"))
        }
        None => {
            let missing = Finding::problem(format!("{name} is missing, {oldest} is needed"));
            match mend {
                Some(command) => missing.mended_by(command),
                None => missing,
            }
        }
    };
    findings.push(finding);
}

fn programs(facts: &Facts, findings: &mut Vec<Finding>) {
    let install = |package: Package| package.install(facts.family);
    program(findings, "systemd", facts.systemd, SYSTEMD, None);
    if facts.systemd.is_some() && !facts.runs_systemd {
        findings.push(Finding::problem(
            "systemd is installed but is not what this machine was booted with",
        ));
    }
    program(
        findings,
        "Podman",
        facts.podman,
        PODMAN,
        Some(install(Package::Podman)),
    );
    program(
        findings,
        "etcd",
        facts.etcd,
        ETCD,
        Some(install(Package::Etcd)),
    );
    program(
        findings,
        "nftables",
        facts.nft,
        Version::default(),
        Some(install(Package::Nftables)),
    );
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
    ] {
        let name = what.split(',').next().unwrap_or(what);
        findings.push(if there {
            Finding::ok(format!("{name} is there"))
        } else {
            Finding::problem(format!("{what} is missing")).mended_by(install(package))
        });
    }
    findings.push(match &facts.runtime {
        Some(name) => Finding::ok(format!("{name} runs the containers")),
        None => Finding::problem("no container runtime is there, crun or runc is needed")
            .mended_by(install(Package::Crun)),
    });
}

fn control_groups(facts: &Facts, findings: &mut Vec<Finding>) {
    if !facts.cgroup_v2 {
        findings.push(
            Finding::problem("control groups are not version 2 alone (the unified hierarchy)")
                .mended_by(
                    "add systemd.unified_cgroup_hierarchy=1 to the kernel's command line and boot again",
                ),
        );
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
            if name == "memory" {
                finding.mended_by("add cgroup_enable=memory to the kernel's command line and boot again")
            } else {
                finding
            }
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

fn surroundings(stage: Stage, facts: &Facts, findings: &mut Vec<Finding>) {
    findings.push(if facts.journal_kept {
        Finding::ok("the journal is kept over a reboot")
    } else if stage == Stage::BeforeInit {
        Finding::ok("the journal will be kept over a reboot: kat-agent init sees to it")
    } else {
        Finding::warning("the journal is lost at each reboot, and with it the workloads' logs")
            .mended_by(
                "sudo mkdir -p /etc/systemd/journald.conf.d && \
                 printf '[Journal]\\nStorage=persistent\\n' | \
                 sudo tee /etc/systemd/journald.conf.d/50-kept.conf && \
                 sudo systemctl restart systemd-journald && sudo journalctl --flush",
            )
    });
    findings.push(match facts.clock {
        ClockState::Synchronised => Finding::ok("the clock follows a time server"),
        ClockState::Alone => Finding::warning(
            "the clock follows no time server: certificates and leases need the machines to agree",
        )
        .mended_by("sudo timedatectl set-ntp true"),
        ClockState::Unknown => {
            Finding::warning("nobody can say whether the clock is right").mended_by("timedatectl")
        }
    });
    if facts.selinux_enforcing {
        findings.push(Finding::warning(
            "SELinux enforces: KAT was never tested with it, containers may be refused their files",
        ));
    }
    findings.push(if facts.kernel_wireguard {
        Finding::ok("the kernel has WireGuard")
    } else if facts.has_tun {
        Finding::warning(
            "the kernel has no WireGuard: KAT's own, in a program, stands in for it, and is slower",
        )
    } else {
        Finding::problem("there is neither WireGuard in the kernel nor /dev/net/tun")
            .mended_by("sudo modprobe wireguard || sudo modprobe tun")
    });
}

fn etcd_unit(facts: &Facts, findings: &mut Vec<Finding>) {
    let unit = &facts.etcd_unit;
    if !unit.active && !unit.enabled {
        return;
    }
    let does = match (unit.active, unit.enabled) {
        (true, true) => "runs and starts at boot",
        (true, false) => "runs",
        (false, _) => "starts at boot",
    };
    findings.push(
        Finding::problem(format!(
            "the distribution's own etcd.service {does}: it listens without TLS on the ports of KAT's etcd"
        ))
        .mended_by("sudo systemctl disable --now etcd.service"),
    );
}

/// Ports that KAT listens on, with what for.
pub(super) fn wanted_ports(input: &CheckInput) -> Vec<(Protocol, u16, &'static str)> {
    let cluster = &input.cluster;
    let wireguard = input.agent.wireguard_port.unwrap_or(cluster.wireguard_port);
    vec![
        (Protocol::Tcp, cluster.api_port, "the API"),
        (Protocol::Tcp, cluster.agent_port, "the agent"),
        (Protocol::Tcp, cluster.etcd_client_port, "etcd's clients"),
        (Protocol::Tcp, cluster.etcd_peer_port, "etcd's peers"),
        (Protocol::Udp, wireguard, "WireGuard"),
    ]
}

fn ports(input: &CheckInput, facts: &Facts, findings: &mut Vec<Finding>) {
    for (protocol, port, purpose) in wanted_ports(input) {
        let word = match protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        };
        let mut others: Vec<String> = facts
            .listeners
            .iter()
            .filter(|listener| listener.protocol == protocol && listener.port == port)
            .filter(|listener| input.stage == Stage::BeforeInit || !is_ours(listener))
            .map(who)
            .collect();
        others.sort_unstable();
        others.dedup();
        if others.is_empty() {
            continue;
        }
        findings.push(
            Finding::problem(format!(
                "{word} port {port}, for {purpose}, is taken by {}",
                others.join(" and ")
            ))
            .mended_by(format!(
                "sudo ss -lp{} 'sport = :{port}'",
                if protocol == Protocol::Tcp { "t" } else { "u" }
            )),
        );
    }
}

fn is_ours(listener: &Listener) -> bool {
    let by_unit = listener
        .unit
        .as_deref()
        .is_some_and(|unit| unit.starts_with("kat-"));
    // The kernel's WireGuard listens without a process.
    by_unit || (listener.protocol == Protocol::Udp && listener.process.is_none())
}

fn who(listener: &Listener) -> String {
    match (&listener.process, &listener.unit) {
        (Some(process), Some(unit)) => format!("{process} ({unit})"),
        (Some(process), None) => process.clone(),
        (None, _) => "something without a process, or of another user".to_owned(),
    }
}

fn network(input: &CheckInput, facts: &Facts, findings: &mut Vec<Finding>) {
    for (name, network) in [
        ("clusterCIDR", input.cluster.cluster_cidr),
        ("serviceCIDR", input.cluster.service_cidr),
    ] {
        let ours: &[&str] = match input.stage {
            Stage::BeforeInit => &[],
            Stage::Running => OUR_LINKS,
        };
        let mut found = overlaps(network, &facts.routes, &facts.addresses, ours);
        // Routes to instances lie on veths of KAT's own, and what is left of the machine's subnet is
        // unreachable, on no link.
        found.retain(|text| {
            input.stage == Stage::BeforeInit
                || !(text.contains(" on kat") || text.ends_with(" on *"))
        });
        if found.is_empty() {
            findings.push(Finding::ok(format!("{network} ({name}) is free")));
        } else {
            findings.push(
                Finding::problem(format!(
                    "{network} ({name}) overlaps {}",
                    found.join(" and ")
                ))
                .mended_by(format!(
                    "choose another {name} in cluster.kat and give it with kat-agent init --config cluster.kat"
                )),
            );
        }
    }
    match &facts.default_link {
        None => findings.push(Finding::warning(
            "there is no default route: images can't be pulled from elsewhere",
        )),
        Some((link, mtu)) => {
            let wanted = input.cluster.mtu;
            let fits = mtu.saturating_sub(TUNNEL_BYTES_V6);
            findings.push(if wanted + TUNNEL_BYTES_V6 <= *mtu {
                Finding::ok(format!("{link} takes the overlay's MTU of {wanted}"))
            } else if wanted + TUNNEL_BYTES <= *mtu {
                Finding::warning(format!(
                    "{link} has an MTU of {mtu}: the overlay's {wanted} fits over IPv4 only"
                ))
                .mended_by(format!("set mtu: {fits} in cluster.kat"))
            } else {
                Finding::problem(format!(
                    "{link} has an MTU of {mtu}, too small for the overlay's {wanted} and WireGuard's {TUNNEL_BYTES_V6}"
                ))
                .mended_by(format!("set mtu: {fits} in cluster.kat"))
            });
        }
    }
}

fn identities(input: &CheckInput, facts: &Facts, findings: &mut Vec<Finding>) {
    findings.push(match check_label(&facts.hostname) {
        Ok(()) => Finding::ok(format!("{} is a valid node name", facts.hostname)),
        Err(error) => Finding::warning(format!("the host's name is no valid node name: {error}"))
            .mended_by("kat-agent init --node-name NAME, or sudo hostnamectl hostname NAME"),
    });
    if let Some(error) = &facts.accounts_error {
        findings.push(Finding::problem(format!(
            "the machine's users can't be read: {error}"
        )));
        return;
    }
    if facts.taken_ids.is_empty() {
        findings.push(Finding::ok(format!(
            "uids from {} and subordinate ids from {} on are free",
            input.uid_base, input.subordinate_base
        )));
    }
    findings.extend(facts.taken_ids.iter().map(|taken| {
        Finding::problem(format!("the ids of workloads' users are not free: {taken}"))
    }));
}

fn room(facts: &Facts, findings: &mut Vec<Finding>) {
    let free = facts.disk_available_bytes;
    let text = format!("{} MiB are free below /var/lib", free >> 20);
    findings.push(if free < DISK_PROBLEM {
        Finding::problem(format!("only {text}, images need more than 1024"))
    } else if free < DISK_WARNING {
        Finding::warning(format!("{text}, images need some"))
    } else {
        Finding::ok(text)
    });
    let memory = facts.memory_bytes;
    let text = format!("the machine has {} MiB of memory", memory >> 20);
    findings.push(if memory < MEMORY_WARNING {
        Finding::warning(format!("{text}: etcd and KAT leave little of it"))
    } else {
        Finding::ok(text)
    });
}
