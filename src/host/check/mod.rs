//! `kat-agent check`: finds what is missing on this machine or in conflict with KAT, in sentences
//! with the command that fixes it.
//!
//! [`gather`] reads the facts, [`evaluate`] only judges them, and [`render`] prints the findings.

mod boot;
mod evaluate;
mod facts;
mod gather;
mod networks;
mod packages;
mod ports;
mod render;

use kat_types::resource::{AgentConfig, ClusterSpec};

pub use self::{
    boot::BootLoader,
    evaluate::evaluate,
    facts::{CheckFacts, ClockState, UnitFileState},
    gather::gather,
    packages::Family,
    render::render,
};

/// When the check runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckStage {
    /// The machine belongs to no cluster yet: ports and ranges must be free.
    BeforeInit,
    /// Like `BeforeInit`, but the cluster's settings are already fixed.
    BeforeJoin,
    /// KAT runs on the machine and may use its own ports and ranges.
    Running,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    /// KAT works, but not completely or not reliably.
    Warning,
    /// KAT does not work.
    Problem,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    /// The finding as a sentence without its full stop.
    pub what: String,
    /// The command that fixes it, which begins with `sudo`; a sentence where no command can.
    pub mend: Option<String>,
}

impl Finding {
    /// A finding without a problem.
    pub fn ok(what: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            what: what.into(),
            mend: None,
        }
    }

    /// A finding with a warning.
    pub fn warning(what: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            ..Self::ok(what)
        }
    }

    /// A finding with a problem, and the command that fixes it.
    pub fn problem(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            level: Level::Problem,
            ..Self::ok(what).mended_by(mend)
        }
    }

    /// Adds the command that fixes a finding; a problem already has one.
    pub fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

/// Parameters of a check.
#[derive(Debug, Clone)]
pub struct CheckInput {
    /// The settings of the present or planned cluster.
    pub cluster: ClusterSpec,
    pub agent: AgentConfig,
    pub stage: CheckStage,
    /// First uid of workloads' users.
    pub(crate) uid_base: u32,
    /// First subordinate id of workloads' users.
    pub(crate) subordinate_base: u32,
    /// Findings from elsewhere, such as those about other firewalls.
    pub obstacles: Vec<Finding>,
}

impl CheckInput {
    /// Uses the default ids and no obstacles.
    pub fn new(cluster: ClusterSpec, agent: AgentConfig, stage: CheckStage) -> Self {
        Self {
            cluster,
            agent,
            stage,
            uid_base: kat_types::assignment::USER_BASE,
            subordinate_base: kat_types::assignment::SUBORDINATE_BASE,
            obstacles: Vec::new(),
        }
    }
}

/// Gathers the facts and judges them.
pub async fn run(input: &CheckInput) -> Vec<Finding> {
    evaluate(input, &gather(input).await)
}

/// The highest severity.
pub fn worst(findings: &[Finding]) -> Level {
    findings
        .iter()
        .map(|finding| finding.level)
        .max()
        .unwrap_or(Level::Ok)
}

#[cfg(test)]
mod tests;
