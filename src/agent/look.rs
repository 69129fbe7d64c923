//! `kat-agent check`, and the look at the machine that `init` begins with.

use std::{path::Path, process::ExitCode};

use anyhow::bail;

use super::{paths, setup::Say};
use crate::{
    host::check::{self, CheckInput, Finding, Level, Stage},
    network::obstacles,
    resource::{AgentConfig, ClusterConfiguration},
};

/// Looks at the machine before anything is changed.
pub async fn check_machine(
    cluster: &ClusterConfiguration,
    config: &AgentConfig,
    stage: Stage,
    say: Say<'_>,
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

async fn find(cluster: &ClusterConfiguration, config: &AgentConfig, stage: Stage) -> Vec<Finding> {
    let mut input = CheckInput::new(cluster.spec.clone(), config.clone(), stage);
    let port = config.wireguard_port.unwrap_or(cluster.spec.wireguard_port);
    if let Ok(obstacles) = obstacles::foreign_obstacles(cluster.spec.cluster_cidr, port).await {
        let findings = obstacles
            .into_iter()
            .map(|one| Finding::problem(one.what).mended_by(one.command));
        input.obstacles = findings.collect();
    }
    check::run(&input).await
}

/// `kat-agent check`: prints the findings; fails when there is a problem.
pub async fn print_findings(cluster: &ClusterConfiguration, config: &AgentConfig) -> ExitCode {
    let stage = if Path::new(paths::IDENTITY).exists() {
        Stage::Running
    } else {
        Stage::BeforeInit
    };
    let findings = find(cluster, config, stage).await;
    anstream::print!("{}", check::render(&findings, true));
    if check::worst(&findings) == Level::Problem {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
