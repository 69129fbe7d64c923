//! Why a step could not be applied. What a plan was blocked by is returned and becomes the reason
//! and the conditions of the workload's status.

use std::{collections::BTreeSet, fmt};

use super::slot::LiveInstance;
use crate::{
    Unschedulable, jobs::summary::JobSummary, scheduling::host_ports::none_free,
    secrets::SecretTrouble, start_order::StartWait,
};
use kat_types::reason::Reason;

/// A step that was not applied, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// An instance cannot be placed.
    NotPlaced(NotPlaced),
    /// An instance that is being stopped may still write to data that its successor needs.
    MayStillWrite { instance: String, node: String },
    /// An instance cannot leave its drained machine.
    CannotLeave {
        instance: String,
        node: String,
        obstacle: Box<LeaveObstacle>,
    },
}

/// Why no instance can be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotPlaced {
    /// No machine fits.
    NoMachine {
        reason: Box<Unschedulable>,
        /// The machine that has the data of its volumes.
        data_on: Option<String>,
        /// What the replacement of lost machines waits for.
        waiting: Option<String>,
    },
    /// The state of its volumes allows no machine.
    Volumes(String),
    Secrets(SecretTrouble),
    /// No number is free for a host port `auto`.
    NoHostPort,
    /// The subnet of this machine is full.
    NoAddress {
        node: String,
        /// What its addresses wait for.
        waiting: Option<String>,
    },
    /// A machine that the instance is for takes no work now; the text says so.
    MachineNotReady(String),
    NoImage,
    /// The workload's index has no user.
    NoUser(u32),
}

/// Why an instance cannot leave its drained machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaveObstacle {
    /// Nothing can take its place. `advice` says how a person moves it; it may be empty.
    NotPlaced { cause: NotPlaced, advice: String },
    /// With in-place replacement: the machine of its successor cannot prepare that; the text has the
    /// successor and the reason.
    NotPrepared(String),
    /// With in-place replacement: this many other replicas do not work.
    OthersBroken(usize),
    /// It serves in the place of an instance that does not.
    ServesForAnother,
    /// It is an instance of a Job, which runs to its end.
    RunsToItsEnd,
    /// It is an instance of a DaemonService, which leaves when nothing else runs there.
    LeavesLast,
    /// The data of the workload is being moved; the text says how far the move is.
    DataMoves(String),
}

impl Blocked {
    pub(crate) fn cannot_leave(live: &LiveInstance<'_>, obstacle: LeaveObstacle) -> Self {
        Self::CannotLeave {
            instance: live.id.to_owned(),
            node: live.node.to_owned(),
            obstacle: Box::new(obstacle),
        }
    }

    fn not_placed(&self) -> Option<(Reason, String)> {
        let cause = match self {
            Self::NotPlaced(cause) => cause,
            Self::MayStillWrite { instance, node } => {
                let why = format!(
                    "{instance} may still write to its data on {node}, which does not answer"
                );
                return Some((Reason::Unschedulable, why));
            }
            Self::CannotLeave { obstacle, .. } => match &**obstacle {
                LeaveObstacle::NotPlaced { cause, .. } => cause,
                _ => return None,
            },
        };
        Some((cause.reason(), cause.to_string()))
    }

    fn drain_blocked(&self) -> Option<(Reason, String)> {
        let Self::CannotLeave {
            instance,
            node,
            obstacle,
        } = self
        else {
            return None;
        };
        let (reason, yet) = match obstacle.ends_by_itself() {
            true => (Reason::DrainWaits, " yet"),
            false => (Reason::Unschedulable, ""),
        };
        let message = format!("{instance} can't leave {node}{yet}: {obstacle}");
        Some((reason, message))
    }
}

impl LeaveObstacle {
    /// Whether it ends without a person: a replica becomes healthy, or data arrives.
    fn ends_by_itself(&self) -> bool {
        match self {
            Self::NotPlaced { .. } => false,
            Self::NotPrepared(_)
            | Self::OthersBroken(_)
            | Self::ServesForAnother
            | Self::RunsToItsEnd
            | Self::LeavesLast
            | Self::DataMoves(_) => true,
        }
    }
}

impl From<NotPlaced> for Blocked {
    fn from(cause: NotPlaced) -> Self {
        Self::NotPlaced(cause)
    }
}

impl From<SecretTrouble> for NotPlaced {
    fn from(trouble: SecretTrouble) -> Self {
        Self::Secrets(trouble)
    }
}

impl NotPlaced {
    fn reason(&self) -> Reason {
        match self {
            Self::Secrets(trouble) => trouble.reason,
            _ => Reason::Unschedulable,
        }
    }
}

impl fmt::Display for NotPlaced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMachine {
                reason,
                data_on,
                waiting,
            } => {
                write!(formatter, "{reason}")?;
                if let Some(node) = data_on {
                    write!(formatter, "; the data of its volumes lies on {node}")?;
                }
                match waiting {
                    Some(why) => write!(formatter, "; {why}"),
                    None => Ok(()),
                }
            }
            Self::Volumes(why) | Self::MachineNotReady(why) => formatter.write_str(why),
            Self::Secrets(trouble) => formatter.write_str(&trouble.message),
            Self::NoHostPort => formatter.write_str(&none_free()),
            Self::NoAddress { node, waiting } => {
                write!(formatter, "{node} has no free address")?;
                match waiting {
                    Some(why) => write!(formatter, "; {why}"),
                    None => Ok(()),
                }
            }
            Self::NoImage => formatter.write_str("its files name no image"),
            Self::NoUser(index) => write!(formatter, "index {index} has no user"),
        }
    }
}

impl fmt::Display for LeaveObstacle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPlaced { cause, advice } => write!(formatter, "{cause}{advice}"),
            Self::NotPrepared(why) => {
                write!(formatter, "its successor cannot start: {why}")
            }
            Self::OthersBroken(others) => {
                let others = match others {
                    1 => "another replica does".to_owned(),
                    count => format!("{count} other replicas do"),
                };
                write!(
                    formatter,
                    "replicas are replaced in place, one after the other, and {others} not work"
                )
            }
            Self::ServesForAnother => {
                formatter.write_str("it serves in the place of one that does not")
            }
            Self::RunsToItsEnd => formatter.write_str("a Job runs to its end"),
            Self::LeavesLast => formatter.write_str(
                "an instance of a DaemonService leaves last, when nothing else runs there",
            ),
            Self::DataMoves(far) => formatter.write_str(far),
        }
    }
}

/// A move of a workload's data to another machine.
#[derive(Debug, Clone)]
pub(crate) struct DataMove {
    /// How far it is, in a sentence.
    pub(crate) far: String,
    /// The last try failed, and is repeated.
    pub(crate) fails: bool,
}

impl DataMove {
    pub(crate) fn reason(&self) -> Reason {
        match self.fails {
            true => Reason::VolumeMoveFailing,
            false => Reason::VolumeMoving,
        }
    }
}

/// What the steps of a plan of one workload leave to be said in its status.
#[derive(Debug, Default)]
pub(crate) struct WorkloadOutcome<'b> {
    /// In the order of the steps.
    pub(crate) blocked: Vec<Blocked>,
    /// The move of the workload's data to another machine.
    pub(crate) data_moves: Option<DataMove>,
    /// What of other workloads its start waits for.
    pub(crate) start_wait: Option<StartWait>,
    /// Slots of a DaemonService whose machines have no room for the present version, or cannot run it.
    pub(crate) without_place: BTreeSet<u32>,
    /// The state of a Job.
    pub(crate) job: Option<JobSummary>,
    /// Machines that may have something of a deleted workload's user.
    pub(crate) has_user: Vec<&'b str>,
    /// Lost machines that have an instance of a DaemonService.
    pub(crate) lost: Vec<String>,
    /// Why a stalled generation is not rolled back by itself.
    pub(crate) not_rolled_back: Option<String>,
}

impl WorkloadOutcome<'_> {
    /// Why an instance is not placed: the last trouble with secrets, or else the last other cause.
    pub(crate) fn not_placed(&self) -> Option<(Reason, String)> {
        let all = self.blocked.iter().filter_map(Blocked::not_placed);
        all.max_by_key(|(reason, _)| *reason != Reason::Unschedulable)
    }

    /// Why an instance can't leave a drained machine: the last obstacle that ends by itself, or else
    /// the last other one. So a drain is waited for while any instance may still leave.
    pub(crate) fn drain_blocked(&self) -> Option<(Reason, String)> {
        let all = self.blocked.iter().filter_map(Blocked::drain_blocked);
        all.max_by_key(|(reason, _)| *reason == Reason::DrainWaits)
    }
}
