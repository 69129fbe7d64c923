//! Which reasons wait for a person. `katcall status` exits with 1 for these.

use jiff::Timestamp;

use crate::commands::reading::why::reasons::reason_of;
use kat_types::{api::ApiTime, reason::Reason};

/// Age at which a situation that mostly ends by itself is a problem.
const LATE_SECONDS: i64 = 60;
/// The same for a deletion: programs may take long to end.
const LATE_DELETION_SECONDS: i64 = 600;
/// The same for a machine that has joined and not reported yet.
pub(super) const LATE_JOIN_SECONDS: i64 = 600;
/// The same for a member of etcd without a vote. The leader takes one out that has not started after five times
/// `nodeLossTimeoutSeconds`, and adds it again.
const LATE_MEMBER_SECONDS: i64 = 600;

/// Whether a situation needs a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Nobody has to act: a step that ends by itself, what a person has asked for, or a note.
    Calm,
    /// It mostly ends by itself, and is a problem from this age on, in seconds.
    Late(i64),
    /// A fault that may pass, since KAT keeps trying.
    Problem,
    /// A fault that only a person can end, mostly by a change of files or of a machine's settings:
    /// waiting for it is in vain.
    ForPerson,
}

impl Urgency {
    /// The urgency of a stored word; `unknown` for a word of a newer version.
    pub(crate) fn of_word(word: &str, unknown: Self) -> Self {
        reason_of(word).map_or(unknown, urgency)
    }

    /// Whether the situation, which began at `since`, is a problem by now. A situation of unknown
    /// age is late.
    pub(super) fn is_problem(self, since: ApiTime, now: Timestamp) -> bool {
        match self {
            Self::Calm => false,
            Self::Problem | Self::ForPerson => true,
            Self::Late(seconds) => is_older(since, seconds, now),
        }
    }
}

/// Whether `since` is at least `seconds` ago, or not known.
pub(super) fn is_older(since: ApiTime, seconds: i64, now: Timestamp) -> bool {
    since
        .get()
        .is_none_or(|since| now.duration_since(since).as_secs() >= seconds)
}

const fn urgency(reason: Reason) -> Urgency {
    use Urgency::{Calm, ForPerson, Late, Problem};
    match reason {
        // The normal course of a workload.
        Reason::AllHealthy
        | Reason::Served
        | Reason::IngressDisabled
        | Reason::Progressing
        | Reason::WaitsForDependency
        | Reason::InitContainerRunning
        | Reason::CertificatePending
        | Reason::HealthCheckPending
        | Reason::ConnectionDraining
        | Reason::ProgramEnded
        | Reason::GroupsChanged => Calm,
        // The normal course of a Job; what failed is told of its run.
        Reason::AwaitsSchedule
        | Reason::RunActive
        | Reason::RunWaits
        | Reason::RunSucceeded
        | Reason::RunCancelled
        | Reason::RunReplaced
        | Reason::RunOverlapped
        | Reason::RunMissed
        | Reason::JobSuspended
        | Reason::Interrupted => Calm,
        // A person has asked for it.
        Reason::Paused
        | Reason::Stopped
        | Reason::VolumeMoving
        | Reason::Draining
        | Reason::Drained => Calm,
        // Notes: the workload or the machine works. Members of etcd are judged by themselves.
        Reason::AutoRollback
        | Reason::ImageNotPinned
        | Reason::ControllerMissing
        | Reason::CdiSpecUnusable
        | Reason::KilledAtStop
        | Reason::EtcdHasKnownHoles
        | Reason::ReaderTooOld
        | Reason::Votes
        | Reason::Member => Calm,
        // A place may come free, a machine may come back, and the agent mends some faults.
        Reason::Unschedulable
        | Reason::DrainBlocked
        | Reason::DrainWaits
        | Reason::WaitingForAgent
        | Reason::ImageLost
        | Reason::StartInterrupted
        | Reason::NetworkFilesMissing => Late(LATE_SECONDS),
        Reason::Deleting => Late(LATE_DELETION_SECONDS),
        Reason::CatchesUp | Reason::Starts => Late(LATE_MEMBER_SECONDS),
        // Only other files, or other settings of the cluster or a machine, end it.
        Reason::SecretMissing
        | Reason::DependencyFailed
        | Reason::HostTaken
        | Reason::AuthNotReachable
        | Reason::RouteRefused
        | Reason::IngressPortInUse
        | Reason::SecretUnusable
        | Reason::NotWritable
        | Reason::UnreadableFiles
        | Reason::ProgressDeadlineExceeded
        | Reason::FirstVersionStalled
        | Reason::ImageNotFound
        | Reason::ImagePullUnauthorized
        | Reason::CannotStart
        | Reason::NotRenderable
        | Reason::NotUnderstood
        | Reason::VolumeMissing
        | Reason::VolumeForeign
        | Reason::VolumeForgotten
        | Reason::HostPathNotAllowed
        | Reason::HostPathMissing
        | Reason::HostPathIsLink
        | Reason::HostPathUnprotected
        | Reason::HostPortNotAllowed
        | Reason::HostNetworkNotAllowed
        | Reason::SecurityNotAllowed
        | Reason::GroupNotAllowed
        | Reason::GroupMissing
        | Reason::DeviceMissing
        | Reason::DeviceNotAllowed
        | Reason::GpuMissing
        | Reason::GpuDriverMissing
        | Reason::MachineAccessNotAllowed
        | Reason::BackoffLimitExceeded
        | Reason::NoMatchingMachine
        | Reason::MachineRemoved
        | Reason::DeadlineExceeded
        | Reason::ScheduleUnreadable => ForPerson,
        Reason::SecretUnreadable
        | Reason::DependencyTimedOut
        | Reason::SecretNotWritten
        | Reason::Unreadable
        | Reason::NoneFree
        | Reason::CertificateFailed
        | Reason::CertificateLimitReached
        | Reason::TlsNotReady
        | Reason::IngressFailed
        | Reason::NoIngressMachine
        | Reason::WaitsForItsData
        | Reason::NodeNotReady
        | Reason::ImagePullFailed
        | Reason::CredentialsUnreadable
        | Reason::CrashLoop
        | Reason::Restarting
        | Reason::RestartsExhausted
        | Reason::ProgramFailed
        | Reason::Failed
        | Reason::StartFailed
        | Reason::InitContainerFailed
        | Reason::SidecarNotRunning
        | Reason::NetworkNotReady
        | Reason::NetworkLinkMissing
        | Reason::UserNotReady
        | Reason::SystemdRefused
        | Reason::FilesNotWritten
        | Reason::CutOff
        | Reason::Unhealthy
        | Reason::RestartedUnhealthy
        | Reason::StopNotEnding
        | Reason::VolumeNotRemoved
        | Reason::FilesFailed
        | Reason::VolumeFailed
        | Reason::VolumeMoveFailing
        | Reason::HostPathNotBound
        | Reason::HostPathNotCreated
        | Reason::HostPathUnexpected
        | Reason::HostPortInUse
        | Reason::MountsNotReachable
        | Reason::DeviceNotOpen
        | Reason::UnconfirmedInstance
        | Reason::NoHeartbeat
        | Reason::MostMachinesLost
        | Reason::Unconfirmed
        | Reason::OverlayDown
        | Reason::DataPathDown
        | Reason::AssignmentsNotApplied
        | Reason::IsolationNotEnforced
        | Reason::KatNetTooOld
        | Reason::VirtualAddressTaken
        | Reason::VirtualAddressRefused
        | Reason::NoAddressHolder
        | Reason::DiskNotAnswering
        | Reason::DiskPressure
        | Reason::Evicted
        | Reason::AddressTaken
        | Reason::NoAnswer
        | Reason::StoreFull
        | Reason::StoreNearlyFull
        | Reason::StoreCorrupt => Problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_situation_that_mostly_ends_by_itself_is_a_problem_when_it_is_late() {
        let now: Timestamp = "2026-11-22T04:00:00Z".parse().unwrap();
        let unschedulable = Urgency::of_word("Unschedulable", Urgency::Calm);
        let after = |since| unschedulable.is_problem(ApiTime::parse(since), now);
        assert!(!after("2026-11-22T03:59:01Z"));
        assert!(after("2026-11-22T03:59:00Z"));
        assert!(unschedulable.is_problem(ApiTime::UNKNOWN, now));
    }

    #[test]
    fn what_only_a_person_can_end_is_a_problem_at_once() {
        let now: Timestamp = "2026-11-22T04:00:00Z".parse().unwrap();
        for word in ["SecretMissing", "ImageNotFound", "HostPathNotAllowed"] {
            let urgency = Urgency::of_word(word, Urgency::Calm);
            assert_eq!(urgency, Urgency::ForPerson, "{word}");
            assert!(urgency.is_problem(now.into(), now), "{word}");
        }
        // KAT tries these again.
        for word in ["ImagePullFailed", "CrashLoop", "Unhealthy"] {
            assert_eq!(
                Urgency::of_word(word, Urgency::Calm),
                Urgency::Problem,
                "{word}"
            );
        }
    }

    #[test]
    fn a_word_of_a_newer_version_has_the_urgency_that_the_caller_chooses() {
        let newer = |unknown| Urgency::of_word("OfANewerVersion", unknown);
        assert_eq!(newer(Urgency::Problem), Urgency::Problem);
        assert_eq!(newer(Urgency::Calm), Urgency::Calm);
        let lost = kat_types::api::data_lost_reason("8e9e05c52164694d");
        assert_eq!(Urgency::of_word(&lost, Urgency::Problem), Urgency::Calm);
    }
}
