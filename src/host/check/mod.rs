//! `kat-agent check`: what is missing on this machine or in the way, in sentences, with the
//! command that mends it.
//!
//! [`gather`] looks at the machine, [`evaluate`] judges what it saw and does nothing else, and
//! [`render`] writes it for people.

mod boot;
mod evaluate;
mod facts;
mod gather;
mod networks;
mod packages;
mod ports;
mod render;

pub use self::{
    boot::BootLoader,
    evaluate::evaluate,
    facts::{ClockState, Facts, UnitFileState},
    gather::gather,
    packages::Family,
    render::render,
};
use kat_types::resource::{AgentConfig, ClusterSpec};

/// When the check runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The machine belongs to no cluster yet: ports and ranges must be free.
    BeforeInit,
    /// The same, and the cluster's settings stand already.
    BeforeJoin,
    /// The machine runs KAT, which may hold what is KAT's.
    Running,
}

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// It is as it should be.
    Ok,
    /// It works, but not all of it, or not for sure.
    Warning,
    /// It will not work.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What was found, a sentence without its stop.
    pub what: String,
    /// The command that mends it, which begins with `sudo`; a sentence where no command can.
    pub mend: Option<String>,
}

impl Finding {
    /// It is as it should be.
    pub fn ok(what: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            what: what.into(),
            mend: None,
        }
    }

    /// It works, but.
    pub fn warning(what: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            ..Self::ok(what)
        }
    }

    /// It will not work, and this mends it.
    pub fn problem(what: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            level: Level::Problem,
            ..Self::ok(what).mended_by(mend)
        }
    }

    /// What mends it; a problem has that from the beginning.
    pub fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

/// What is checked for.
#[derive(Debug, Clone)]
pub struct CheckInput {
    /// The cluster's settings, or those it is to have.
    pub cluster: ClusterSpec,
    /// This machine's settings.
    pub agent: AgentConfig,
    /// When.
    pub stage: Stage,
    /// First uid of workloads' users.
    pub uid_base: u32,
    /// First subordinate id of workloads' users.
    pub subordinate_base: u32,
    /// What others found in the way, such as another firewall.
    pub obstacles: Vec<Finding>,
}

impl CheckInput {
    /// With the default ids and no obstacles.
    pub fn new(cluster: ClusterSpec, agent: AgentConfig, stage: Stage) -> Self {
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

/// Looks at the machine and judges it.
pub async fn run(input: &CheckInput) -> Vec<Finding> {
    evaluate(input, &gather(input).await)
}

/// The gravest level.
pub fn worst(findings: &[Finding]) -> Level {
    findings
        .iter()
        .map(|finding| finding.level)
        .max()
        .unwrap_or(Level::Ok)
}

#[cfg(test)]
mod tests;
