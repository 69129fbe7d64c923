//! The meaning of each reason of an event, and what to try next.

use super::reasons::{Explanation, LOGS, explained, explanation};
use kat_types::reason::{EventReason, Reason};

const LEADER_AGENT: &str = "on the machine in the message, as root: df -h and ls -l of backupPath, and journalctl -u kat-agent -e; katcall status shows the last backup";
const STORE_ROOM: &str = "delete what is not needed, or raise ETCD_QUOTA_BACKEND_BYTES of kat-etcd.service on each machine that holds the store; katcall status says when the store is nearly full";

/// An event that reports the same situation as a status or a condition, with the same next step.
const fn with_next_of(means: &'static str, reason: Reason) -> Explanation {
    explained(means, explanation(reason).next)
}

/// The explanation of an event's reason. `katcall why` fills the placeholders with the names of the
/// event's object, so a text has those alone that an object with this event has.
#[rustfmt::skip]
pub(crate) const fn event_explanation(reason: EventReason) -> Explanation {
    match reason {
        // Instances.
        EventReason::Scheduled => explained("the leader placed the instance on a machine and gave it an address", ""),
        EventReason::Lost => explained("the machine of the instance does not report to the leader; a new instance takes its place on another machine",
            "katcall why node {node}"),
        EventReason::Started => explained("the instance runs; it becomes Healthy later if a health check or a sidecar is not ready yet", ""),
        EventReason::Healthy => explained("the health check of the instance succeeds, or its sidecars run; the instance can receive traffic", ""),
        EventReason::Unhealthy => explained("the instance runs, but its health check fails or one of its sidecars does not run; it receives no traffic", LOGS),
        EventReason::Stopping => explained("the leader stops the instance for the reason in the message; an instance on a machine that does not report stops when the machine is back", ""),
        EventReason::Stopped => explained("the machine stopped the instance", ""),
        EventReason::Succeeded => explained("the program of the instance ended with success, and restartPolicy does not start it again; another instance replaces it after a growing pause", ""),
        // Workloads.
        EventReason::Created => explained("a user created the workload or the namespace", ""),
        EventReason::Updated => explained("a user applied the workload with other content, as a new generation, or changed the namespace", ""),
        EventReason::RolledBack => with_next_of("the workload has the files of an earlier generation again, as a new generation: a user asked for it, or autoRollback gave up a generation that made no progress",
            Reason::AutoRollback),
        EventReason::Scaled => explained("a user changed the number of replicas of the workload", ""),
        EventReason::ImageSet => explained("a user changed the image of the workload", ""),
        EventReason::Restarted => explained("a user asked for new instances of the workload with the same files", ""),
        EventReason::WorkloadStopped => with_next_of("a user stopped the workload: its instances end, and everything else of it stays", Reason::Stopped),
        EventReason::WorkloadStarted => explained("a user started the stopped workload with as many replicas as before", ""),
        EventReason::RolloutPaused => with_next_of("a user paused the rollouts of the workload; no instance of a new version replaces another", Reason::Paused),
        EventReason::RolloutResumed => explained("a user resumed the rollouts of the workload", ""),
        EventReason::RolloutStarted => explained("instances of a new generation start to replace instances of another version",
            "katcall rollout status {namespace}/{workload}"),
        EventReason::RolloutCompleted => explained("all instances of the workload are healthy and of the new generation, and none of another version is left", ""),
        EventReason::Stalled => with_next_of("the rollout of the workload made no progress for progressDeadlineSeconds", Reason::FirstVersionStalled),
        EventReason::DependencyTimedOut => explained("a workload of its startAfter was not there within timeoutSeconds, and it started without it, as `onTimeout: start` says",
            "katcall why workload {namespace}/NAME for the workload that was not there"),
        EventReason::SecretChanged => explained("a secret that the workload uses has another value; a new generation with the same files replaces its instances", ""),
        EventReason::NotWritable => with_next_of("the leader cannot write a change of the workload or machine to the store, because the change is too large or cannot be encoded; the leader changes nothing of it",
            Reason::NotWritable),
        EventReason::Deleting => with_next_of("a user asked for the deletion of the workload or namespace; the deletion ends when the machines confirm that nothing of it is left", Reason::Deleting),
        EventReason::Deleted => explained("the workload is deleted, and no machine runs anything of it; data of volumes that is kept stays", ""),
        // Jobs.
        EventReason::RunCreated => explained("a run of the Job was made: its scheduled time came, its files were applied, or a user asked for it", "katcall get runs -n {namespace}"),
        EventReason::RunSucceeded => explained("a run of the Job succeeded", ""),
        EventReason::RunFailed => explained("a run of the Job failed, for the reason in the message", "katcall get runs -n {namespace}, and katcall logs run/NAME-N -n {namespace} for its output"),
        EventReason::RunCancelled => explained("a run of the Job was ended: a user cancelled it, or a later run took its place", ""),
        EventReason::RunSkipped => with_next_of("a scheduled time of the Job had no run, because another run was active", Reason::RunOverlapped),
        EventReason::RunMissed => explained("scheduled times of the Job had no run, for the reason in the message", ""),
        EventReason::JobSuspended => explained("a user suspended the Job: no run starts by its schedule", "katcall job resume {namespace}/{workload}"),
        EventReason::JobResumed => explained("a user resumed the Job; times while it was suspended are not made up for", ""),
        EventReason::CertificateIssued => explained("KAT's own authority for ingress issued a certificate for a host of the workload's routes", "katcall describe route HOST shows when it expires"),
        // Namespaces.
        EventReason::QuotaSet => explained("a user set the quotas of the namespace", "katcall describe namespace {namespace} shows the quotas and their use"),
        EventReason::NamespaceAccessSet => explained("a user set which other namespaces may reach the workloads of the namespace", "katcall describe namespace {namespace} shows which"),
        // Registries.
        EventReason::RegistryLogin => explained("a user stored credentials for a registry; pulls of the namespace use them", ""),
        EventReason::RegistryLogout => explained("a user removed the credentials for a registry; what runs continues, and later pulls of the namespace have no credentials",
            "katcall registry login HOST -n {namespace} stores credentials"),
        // Secrets.
        EventReason::SecretWritten => explained("a user stored a new version of the secret; workloads that use the secret replace their instances", ""),
        EventReason::SecretDeleted => explained("a user deleted the secret; no workload used it", ""),
        EventReason::RecoveryKeyReplaced => explained("the recovery key was replaced, and everything in the store is sealed anew", "write down the new one (`sudo kat-agent recovery-key` on a machine that holds the store), make a new backup, and see `katcall ca exposed`"),
        EventReason::ReplacementStarted => explained("a new authority or recovery key replaces the present one step by step; the message says which one and why", "katcall ca list shows how far the replacement is, and what it waits for"),
        EventReason::AuthorityReplaced => explained("the authority was replaced, and no certificate of the earlier one is in use", ""),
        EventReason::SealingKeyRotated => explained("a user had a new key made that seals secrets and credentials for registries; what is stored is sealed again with it", ""),
        // Volumes.
        EventReason::VolumeMoveStarted => with_next_of("a user asked for a move of the workload's data to another machine; instances that use the data stop until it is there",
            Reason::VolumeMoving),
        EventReason::VolumeMoveCancelled => explained("a user cancelled the move of the workload's data; the data stays on the machine in the message", ""),
        EventReason::VolumeMoveFailed => explained("a try to move the workload's data failed, and is retried if the message says so; otherwise the move has ended",
            "katcall get volumes -n {namespace} -o wide says where the data is and whether it still moves; on the machine that is to receive it, as root: journalctl -u kat-agent -e"),
        EventReason::VolumeMoved => explained("the workload's data has moved to another machine; the old copy is kept for a day", ""),
        EventReason::VolumeDeleting => explained("a user deleted a volume: its machine removes the data; files of a hostPath stay, and data on a machine that has left the cluster is given up", ""),
        EventReason::VolumeDeleted => explained("a machine removed the data of the deleted volume", ""),
        EventReason::VolumeForgotten => explained("a user gave up data of a volume that its machine does not find: the cluster forgets it, and the files stay on their disk", ""),
        // Machines.
        EventReason::NodeJoined => explained("the machine joined the cluster, for the first time or again", ""),
        EventReason::NodeLeft => explained("the machine was deleted from the cluster; its instances are placed on other machines",
            "if {node} still runs, on {node}: sudo kat-agent reset"),
        EventReason::NodeReady => explained("the machine reports to the leader and takes work", ""),
        EventReason::NodeNotReady => with_next_of("the machine has not reported to the leader for nodeLossTimeoutSeconds; its instances are placed on other machines, unless onNodeLoss or their data ties them to it",
            Reason::NoHeartbeat),
        EventReason::MostMachinesLost => with_next_of("the machine does not report to the leader, and more than half of the machines stopped reporting at once; nothing is moved, since the cause may be the network",
            Reason::MostMachinesLost),
        EventReason::DrainAsked => with_next_of("a user asked for the drain of the machine; its instances move to other machines, and no new ones are placed on it", Reason::Draining),
        EventReason::NodeDrained => with_next_of("no instance is left on the drained machine", Reason::Drained),
        EventReason::Uncordoned => explained("a user ended the drain of the machine; it takes work again", ""),
        EventReason::LabelsChanged => explained("a user changed the labels of the machine", ""),
        EventReason::TaintsChanged => explained("a user changed the taints of the machine", ""),
        EventReason::EndpointsChanged => explained("other machines reach the machine at other addresses than before, those in the message", ""),
        EventReason::RoutesNotServed => explained("the machine does not serve the routes that it was given: a program of the machine holds port 80 or 443, or kat-ingress does not run",
            "katcall describe node NODE shows why; other ingress machines serve the routes meanwhile"),
        EventReason::RoutesServed => explained("the machine serves its routes again", ""),
        EventReason::AddressTaken => with_next_of("the machine reports an address that another machine registered first; other machines continue to use that address for the other machine",
            Reason::AddressTaken),
        EventReason::OverlayDown => with_next_of("the leader's machine and more than half of the others get no answer from the machine over the overlay; new connections go to other machines where any serves", Reason::OverlayDown),
        EventReason::OverlayUp => explained("the machine answers over the overlay again, and is sent new connections", ""),
        EventReason::IsolationNotEnforced => with_next_of("the cluster isolates namespaces, and kat-net of the machine does not", Reason::IsolationNotEnforced),
        EventReason::IsolationEnforced => explained("kat-net of the machine isolates namespaces again, or the cluster does not ask for it any more", ""),
        EventReason::VirtualAddressMoved => explained("another machine is to hold a virtual address", ""),
        EventReason::VirtualAddressNotHeld => with_next_of("the machine is to hold a virtual address, and does not get it", Reason::VirtualAddressTaken),
        EventReason::VirtualAddressHeld => explained("nothing is in the way of the machine's virtual addresses any more", ""),
        EventReason::DiskPressure => with_next_of("a file system of the machine is short of free space or inodes; no new instances are placed on it where another machine can take them", Reason::DiskPressure),
        EventReason::DiskPressureEnded => explained("the machine has enough free disk space again", ""),
        EventReason::ImagesRemoved => explained("the machine removed images that nothing used", ""),
        // Members of etcd.
        EventReason::MemberAdded => explained("the machine becomes a member of etcd, to hold a copy of the store", ""),
        EventReason::MemberVotes => explained("the etcd member of the machine has caught up and has a vote", ""),
        EventReason::MemberHealthy => explained("the etcd member of the machine answers again", ""),
        EventReason::MemberUnhealthy => with_next_of("the etcd member of the machine does not answer; the store takes writes while more than half of the members answer", Reason::NoAnswer),
        EventReason::MemberRemoved => explained("the machine is no longer a member of etcd", ""),
        // The cluster's store.
        EventReason::StoreBegunAnew => explained("kat-agent recover or kat-agent restore started a new store with the machine as its only member",
            "katcall get nodes, and katcall delete node NODE for each machine that is gone for good; after a restore, apply again what changed since the backup"),
        EventReason::StoreDefragmented => explained("the etcd file of the machine was made smaller", ""),
        EventReason::StoreNearlyFull => explained("the data in the store takes at least four fifths of what etcd allows; a full store takes no writes", STORE_ROOM),
        EventReason::StoreWasFull => explained("the store was full and took no writes; KAT cut its history and made its files smaller, and it takes writes again", STORE_ROOM),
        EventReason::ConfigurationChanged => explained("a user changed settings of the cluster", "`katcall config history` lists the changes, and `katcall config rollback` takes one back"),
        EventReason::ConfigurationFollowed => explained("every machine goes by the lower nodeLossTimeoutSeconds, so leaders do too", ""),
        EventReason::BackupMade => explained("a backup was made, for the first time since backups had failed", ""),
        EventReason::BackupFailed => explained("the machine that leads could not make a backup; it tries again", LEADER_AGENT),
        EventReason::OldBackupStays => explained("the machine that leads could not remove a backup beyond backupRetention, which continues to take disk space", LEADER_AGENT),
    }
}

/// Whether a later event with the reason `later` about the same object ends what the warning with
/// the reason `warning` reported.
pub(crate) fn ends_warning(warning: &str, later: &str) -> bool {
    let Some(later) = EventReason::from_word(later) else {
        return false;
    };
    let Some(warning) = EventReason::from_word(warning) else {
        // A reason that a machine reported of an instance.
        return matches!(
            later,
            EventReason::Started
                | EventReason::Healthy
                | EventReason::Succeeded
                | EventReason::Stopped
        );
    };
    match warning {
        EventReason::Unhealthy => matches!(later, EventReason::Healthy | EventReason::Stopped),
        EventReason::Lost => matches!(later, EventReason::Started | EventReason::Stopped),
        EventReason::Stalled => matches!(
            later,
            EventReason::RolloutCompleted
                | EventReason::RolledBack
                | EventReason::Updated
                | EventReason::WorkloadStopped
        ),
        EventReason::VolumeMoveFailed => {
            matches!(
                later,
                EventReason::VolumeMoved | EventReason::VolumeMoveCancelled
            )
        }
        EventReason::NodeNotReady | EventReason::MostMachinesLost => {
            matches!(later, EventReason::NodeReady | EventReason::NodeLeft)
        }
        EventReason::DiskPressure => later == EventReason::DiskPressureEnded,
        EventReason::OverlayDown => later == EventReason::OverlayUp,
        EventReason::IsolationNotEnforced => later == EventReason::IsolationEnforced,
        EventReason::VirtualAddressNotHeld => later == EventReason::VirtualAddressHeld,
        EventReason::MemberUnhealthy => {
            matches!(
                later,
                EventReason::MemberHealthy | EventReason::MemberRemoved
            )
        }
        EventReason::DrainAsked => later == EventReason::Uncordoned,
        EventReason::BackupFailed => later == EventReason::BackupMade,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_ends_with_the_event_that_reports_its_end() {
        for (warning, later, ends) in [
            ("CrashLoop", "Started", true),
            ("CrashLoop", "Scheduled", false),
            ("Unhealthy", "Healthy", true),
            ("Unhealthy", "Started", false),
            ("NodeNotReady", "NodeReady", true),
            ("DiskPressure", "DiskPressureEnded", true),
            ("DrainAsked", "Uncordoned", true),
            ("BackupFailed", "BackupMade", true),
            ("NotWritable", "Updated", false),
            ("CrashLoop", "OfANewerVersion", false),
        ] {
            assert_eq!(ends_warning(warning, later), ends, "{warning} {later}");
        }
    }
}
