//! `kat-agent check`, and the check of the machine that `init` begins with.

use std::{path::Path, process::ExitCode};

use anyhow::bail;

use super::setup::{StepPrinter, read_joined};
use crate::{service::paths, volumes::earlier_grants};
use kat_host::check::{self, CheckInput, CheckStage, Finding, Level};
use kat_network::nftables::{
    firewall::FirewallError,
    other_firewalls::{self as obstacles, BlockedTraffic, FirewallObstacle, RequiredTraffic},
};
use kat_types::{
    machine::root::Root,
    resource::{AgentConfig, ClusterConfiguration},
};

/// Checks the machine before anything is changed.
pub(crate) async fn check_machine(
    cluster: &ClusterConfiguration,
    config: &AgentConfig,
    stage: CheckStage,
    say: StepPrinter<'_>,
) -> anyhow::Result<()> {
    let findings = find(cluster, config, stage).await;
    let worse: Vec<Finding> = findings
        .into_iter()
        .filter(|finding| finding.level != Level::Ok)
        .collect();
    if worse.is_empty() {
        return Ok(());
    }
    say(check::render(&worse, false).trim_end());
    let problems = worse
        .iter()
        .filter(|finding| finding.level == Level::Problem)
        .count();
    if problems > 0 {
        bail!(
            "{problems} of these must be mended first; nothing was changed, and `kat-agent check` looks again"
        );
    }
    Ok(())
}

async fn find(
    cluster: &ClusterConfiguration,
    config: &AgentConfig,
    stage: CheckStage,
) -> Vec<Finding> {
    let mut input = CheckInput::new(cluster.spec.clone(), config.clone(), stage);
    let needs = RequiredTraffic {
        cluster: cluster.spec.cluster_cidr,
        wireguard_port: config.wireguard_port.unwrap_or(cluster.spec.wireguard_port),
        api_port: cluster.spec.api_port,
    };
    let is_root = rustix::process::geteuid().is_root();
    input.obstacles = firewalls(obstacles::foreign_obstacles(needs).await, is_root);
    if stage == CheckStage::Running {
        let kept = earlier_grants::findings(&Root::new("/"), config);
        input.obstacles.extend(kept);
    }
    check::run(&input).await
}

/// The findings about other firewalls, also where they could not be read.
fn firewalls(found: Result<Vec<FirewallObstacle>, FirewallError>, is_root: bool) -> Vec<Finding> {
    match found {
        Ok(obstacles) if obstacles.is_empty() => {
            vec![Finding::ok("no other firewall is in the way")]
        }
        Ok(obstacles) => obstacles
            .into_iter()
            .map(|one| match one.hinders {
                BlockedTraffic::Overlay => Finding::problem(one.what, one.command),
                BlockedTraffic::HostPorts => Finding::warning(one.what).mended_by(one.command),
            })
            .collect(),
        Err(error) => {
            let unseen = Finding::warning(format!("could not look at firewalls: {error}"));
            vec![if is_root {
                unseen
            } else {
                unseen.mended_by("sudo kat-agent check")
            }]
        }
    }
}

/// `kat-agent check`: prints the findings; fails when there is a problem. A machine in a cluster is
/// checked with that cluster's settings, unless `given` has others.
pub(crate) async fn print_findings(
    given: Option<ClusterConfiguration>,
    config: &AgentConfig,
) -> ExitCode {
    let joined = [paths::IDENTITY, paths::JOINING]
        .iter()
        .any(|path| Path::new(path).exists());
    let stage = if joined {
        CheckStage::Running
    } else {
        CheckStage::BeforeInit
    };
    let of_machine = || read_joined().map(|identity| identity.cluster);
    let cluster = given.or_else(of_machine).unwrap_or_default();
    let mut findings = find(&cluster, config, stage).await;
    if joined {
        findings.insert(0, membership().await);
    }
    anstream::print!("{}", check::render(&findings, true));
    if check::worst(&findings) == Level::Problem {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Which cluster the machine is in, and whether its agent runs.
async fn membership() -> Finding {
    let what = match read_joined() {
        Some(identity) => format!(
            "this machine is `{}` of the cluster `{}`",
            identity.node, identity.cluster.metadata.name
        ),
        None => "this machine is in a cluster whose settings can't be read here".to_owned(),
    };
    let mut asking = tokio::process::Command::new("systemctl");
    asking.args(["--quiet", "is-active", "kat-agent.service"]);
    match asking.kill_on_drop(true).status().await {
        Ok(status) if status.success() => Finding::ok(what),
        Ok(_) => Finding::warning(format!("{what}, and kat-agent does not run"))
            .mended_by("sudo systemctl start kat-agent"),
        Err(error) => Finding::warning(format!(
            "{what}; whether kat-agent runs is not known: {error}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_at_firewalls_that_failed_is_told() {
        for (is_root, mend) in [(false, Some("sudo kat-agent check")), (true, None)] {
            let refused = FirewallError::Refused("Operation not permitted".to_owned());
            let found = firewalls(Err(refused), is_root);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].level, Level::Warning);
            assert_eq!(
                found[0].what,
                "could not look at firewalls: nft: Operation not permitted"
            );
            assert_eq!(found[0].mend.as_deref(), mend);
        }
        assert_eq!(check::worst(&firewalls(Ok(Vec::new()), true)), Level::Ok);
        let obstacle = FirewallObstacle {
            what: "ufw is enabled".to_owned(),
            command: "sudo ufw allow 1/udp".to_owned(),
            hinders: BlockedTraffic::Overlay,
        };
        let strict = FirewallObstacle {
            what: "it is strict".to_owned(),
            command: "sudo be-lenient".to_owned(),
            hinders: BlockedTraffic::HostPorts,
        };
        assert_eq!(
            firewalls(Ok(vec![obstacle, strict]), true),
            [
                Finding::problem("ufw is enabled", "sudo ufw allow 1/udp"),
                Finding::warning("it is strict").mended_by("sudo be-lenient"),
            ]
        );
    }
}
