//! The reasons of conditions, statuses and events that KAT writes, in one place.
//!
//! Stored and sent, a reason is a [`String`]: a newer version may write a word that this version does not know, and
//! that word has to survive. Code that writes a reason takes it from [`Reason`] or [`EventReason`].

/// Defines an enum whose variants are the words of reasons.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($word:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(#[doc = concat!("`", stringify!($word), "`")] $word,)*
        }

        impl $name {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$word,)*];

            /// The word as it is stored and sent.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)*
                }
            }

            /// The reason with this word; `None` if this version does not know the word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.word())
            }
        }

        impl From<$name> for String {
            fn from(reason: $name) -> Self {
                reason.word().to_owned()
            }
        }

        impl PartialEq<$name> for String {
            fn eq(&self, reason: &$name) -> bool {
                self == reason.word()
            }
        }
    };
}

words! {
    /// The reason of a status or a condition of a workload, an instance, a machine or a volume.
    ///
    /// `katcall why` explains each; the compiler asks for the explanation of a new one.
    Reason {
        // Workloads.
        AllHealthy,
        Progressing,
        Unschedulable,
        SecretMissing,
        SecretUnusable,
        SecretUnreadable,
        SecretNotWritten,
        NotWritable,
        Deleting,
        Unreadable,
        UnreadableFiles,
        DrainBlocked,
        DrainWaits,
        ProgressDeadlineExceeded,
        // Shown for `ProgressDeadlineExceeded` where no earlier version is good; never stored.
        FirstVersionStalled,
        Paused,
        Stopped,
        AutoRollback,
        NoneFree,
        WaitsForDependency,
        DependencyFailed,
        DependencyTimedOut,
        // Jobs and their runs.
        AwaitsSchedule,
        RunActive,
        RunWaits,
        RunSucceeded,
        RunCancelled,
        RunReplaced,
        RunOverlapped,
        RunMissed,
        BackoffLimitExceeded,
        NoMatchingMachine,
        MachineRemoved,
        DeadlineExceeded,
        JobSuspended,
        ScheduleUnreadable,
        Interrupted,
        // Routes.
        Served,
        CertificatePending,
        CertificateFailed,
        CertificateLimitReached,
        TlsNotReady,
        HostTaken,
        AuthNotReachable,
        IngressDisabled,
        RouteRefused,
        IngressFailed,
        NoIngressMachine,
        // Instances.
        WaitingForAgent,
        WaitsForItsData,
        NodeNotReady,
        ImagePullFailed,
        ImageNotFound,
        ImagePullUnauthorized,
        CredentialsUnreadable,
        CrashLoop,
        Restarting,
        RestartsExhausted,
        ProgramFailed,
        ProgramEnded,
        Failed,
        StartFailed,
        InitContainerRunning,
        InitContainerFailed,
        SidecarNotRunning,
        CannotStart,
        ImageLost,
        StartInterrupted,
        NetworkNotReady,
        NetworkLinkMissing,
        NetworkFilesMissing,
        UserNotReady,
        SystemdRefused,
        FilesNotWritten,
        NotRenderable,
        NotUnderstood,
        CutOff,
        HealthCheckPending,
        Unhealthy,
        ConnectionDraining,
        StopNotEnding,
        KilledAtStop,
        RestartedUnhealthy,
        VolumeMissing,
        VolumeNotRemoved,
        VolumeForeign,
        VolumeForgotten,
        ImageNotPinned,
        FilesFailed,
        VolumeFailed,
        DiskNotAnswering,
        VolumeMoving,
        VolumeMoveFailing,
        HostPathNotAllowed,
        HostPathMissing,
        HostPathIsLink,
        HostPathUnprotected,
        HostPathNotBound,
        HostPathNotCreated,
        HostPathUnexpected,
        HostPortInUse,
        IngressPortInUse,
        HostPortNotAllowed,
        MountsNotReachable,
        HostNetworkNotAllowed,
        SecurityNotAllowed,
        GroupNotAllowed,
        GroupMissing,
        GroupsChanged,
        DeviceMissing,
        DeviceNotAllowed,
        DeviceNotOpen,
        GpuMissing,
        GpuDriverMissing,
        MachineAccessNotAllowed,
        // Shown for `Unconfirmed` of an instance; never stored.
        UnconfirmedInstance,
        // Machines.
        NoHeartbeat,
        MostMachinesLost,
        Unconfirmed,
        Draining,
        Drained,
        DiskPressure,
        Evicted,
        ControllerMissing,
        CdiSpecUnusable,
        AddressTaken,
        OverlayDown,
        DataPathDown,
        AssignmentsNotApplied,
        IsolationNotEnforced,
        KatNetTooOld,
        VirtualAddressTaken,
        VirtualAddressRefused,
        NoAddressHolder,
        Votes,
        CatchesUp,
        NoAnswer,
        Starts,
        // The store, in the overview alone; never stored.
        StoreFull,
        StoreNearlyFull,
        StoreCorrupt,
        EtcdHasKnownHoles,
        // Shown by the API; never stored.
        ReaderTooOld,
        // Followed by the id of the member of etcd, as `crate::api::data_lost_reason` writes it.
        Member,
    }
}

impl Reason {
    /// The word as it is stored and sent, where a status without a reason has an empty text.
    pub const fn word_or_empty(reason: Option<Self>) -> &'static str {
        match reason {
            Some(reason) => reason.word(),
            None => "",
        }
    }
}

words! {
    /// The reason of an event.
    ///
    /// An event that repeats the reason which a machine reported of an instance has that word instead.
    ///
    /// `katcall explain` explains each; the compiler asks for the explanation of a new one.
    EventReason {
        // Instances.
        Scheduled,
        Lost,
        Started,
        Healthy,
        Unhealthy,
        Stopping,
        Stopped,
        Succeeded,
        // Workloads.
        Created,
        Updated,
        RolledBack,
        Scaled,
        ImageSet,
        Restarted,
        WorkloadStopped,
        WorkloadStarted,
        RolloutPaused,
        RolloutResumed,
        RolloutStarted,
        RolloutCompleted,
        Stalled,
        DependencyTimedOut,
        SecretChanged,
        NotWritable,
        Deleting,
        Deleted,
        // Jobs.
        RunCreated,
        RunSucceeded,
        RunFailed,
        RunCancelled,
        RunSkipped,
        RunMissed,
        JobSuspended,
        JobResumed,
        CertificateIssued,
        // Namespaces.
        QuotaSet,
        NamespaceAccessSet,
        // Registries.
        RegistryLogin,
        RegistryLogout,
        // Secrets.
        SecretWritten,
        SecretDeleted,
        SealingKeyRotated,
        RecoveryKeyReplaced,
        // Authorities.
        ReplacementStarted,
        AuthorityReplaced,
        // Volumes.
        VolumeMoveStarted,
        VolumeMoveCancelled,
        VolumeMoveFailed,
        VolumeMoved,
        VolumeDeleting,
        VolumeDeleted,
        VolumeForgotten,
        // Machines.
        NodeJoined,
        NodeLeft,
        NodeReady,
        NodeNotReady,
        MostMachinesLost,
        DrainAsked,
        NodeDrained,
        Uncordoned,
        LabelsChanged,
        TaintsChanged,
        EndpointsChanged,
        AddressTaken,
        RoutesNotServed,
        RoutesServed,
        OverlayDown,
        OverlayUp,
        IsolationNotEnforced,
        IsolationEnforced,
        VirtualAddressMoved,
        VirtualAddressNotHeld,
        VirtualAddressHeld,
        DiskPressure,
        DiskPressureEnded,
        ImagesRemoved,
        // Members of etcd.
        MemberAdded,
        MemberVotes,
        MemberHealthy,
        MemberUnhealthy,
        MemberRemoved,
        // The cluster's store.
        StoreBegunAnew,
        StoreDefragmented,
        StoreNearlyFull,
        StoreWasFull,
        BackupMade,
        ConfigurationChanged,
        ConfigurationFollowed,
        BackupFailed,
        OldBackupStays,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_parses_back_to_its_reason() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_word(reason.word()), Some(*reason));
        }
        for reason in EventReason::ALL {
            assert_eq!(EventReason::from_word(reason.word()), Some(*reason));
        }
    }

    #[test]
    fn a_word_of_a_newer_version_is_no_reason_of_this_one() {
        assert_eq!(Reason::from_word("OfANewerVersion"), None);
        assert_eq!(Reason::from_word(""), None);
        assert_eq!(EventReason::from_word("OfANewerVersion"), None);
    }

    #[test]
    fn a_status_without_a_reason_has_an_empty_text() {
        assert_eq!(Reason::word_or_empty(None), "");
        assert_eq!(Reason::word_or_empty(Some(Reason::CrashLoop)), "CrashLoop");
    }
}
