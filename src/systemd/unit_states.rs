//! States of units as systemd names them on D-Bus (org.freedesktop.systemd1(5)).
//!
//! A word of a newer systemd is kept as it is: [`LoadState::Other`], [`SubState::Other`] and
//! [`ServiceResult::Other`] hold it.

use std::fmt;

/// A unit's `ActiveState` (org.freedesktop.systemd1(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ActiveState {
    /// `active`.
    Active,
    /// `reloading`: it runs and reads its configuration again.
    Reloading,
    /// `refreshing`: it runs and gets newer extension images (systemd 257).
    Refreshing,
    /// `activating`: it starts, or waits for its automatic restart.
    Activating,
    /// `deactivating`.
    Deactivating,
    /// `inactive`.
    Inactive,
    /// `failed`.
    Failed,
    /// `maintenance`.
    Maintenance,
    /// A word of a newer systemd, or none.
    #[default]
    Unknown,
}

impl ActiveState {
    /// The state that systemd's word stands for.
    pub fn from_word(word: &str) -> Self {
        match word {
            "active" => Self::Active,
            "reloading" => Self::Reloading,
            "refreshing" => Self::Refreshing,
            "activating" => Self::Activating,
            "deactivating" => Self::Deactivating,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            "maintenance" => Self::Maintenance,
            _ => Self::Unknown,
        }
    }

    /// The unit has started: its main process runs, or has ended as a oneshot unit's may.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Active | Self::Reloading | Self::Refreshing)
    }

    /// Nothing of the unit runs, and systemd does not start it again by itself.
    pub fn is_down(self) -> bool {
        matches!(self, Self::Inactive | Self::Failed)
    }
}

impl fmt::Display for ActiveState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Active => "active",
            Self::Reloading => "reloading",
            Self::Refreshing => "refreshing",
            Self::Activating => "activating",
            Self::Deactivating => "deactivating",
            Self::Inactive => "inactive",
            Self::Failed => "failed",
            Self::Maintenance => "maintenance",
            Self::Unknown => "in a state that KAT does not know",
        })
    }
}

/// An enum of systemd's words that keeps unknown ones.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// Another word; empty where nothing was read.
            Other(String),
        }

        impl $name {
            /// systemd's word.
            pub fn word(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    _ => Self::Other(word.to_owned()),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::Other(String::new())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.word())
            }
        }
    };
}

words! {
    /// A unit's `LoadState`.
    LoadState {
        /// `loaded`.
        Loaded = "loaded",
        /// `not-found`: the unit does not exist.
        NotFound = "not-found",
        /// `masked`.
        Masked = "masked",
        /// `error`: systemd can't load the file.
        Error = "error",
    }
}

words! {
    /// A unit's `SubState`; only the words that KAT decides by.
    SubState {
        /// `running`.
        Running = "running",
        /// `exited`: the main process of a oneshot unit has ended.
        Exited = "exited",
        /// `auto-restart`: the program has ended and is restarted after a delay.
        AutoRestart = "auto-restart",
        /// `start`: the service starts.
        Start = "start",
        /// `start-pre`: its commands before the start run.
        StartPre = "start-pre",
        /// `auto-restart-queued`: its restart is queued.
        AutoRestartQueued = "auto-restart-queued",
        /// `dead`.
        Dead = "dead",
    }
}

words! {
    /// A service's `Result`: how its last run ended.
    ServiceResult {
        /// `success`.
        Success = "success",
        /// `exit-code`: the program ended with an exit code other than 0.
        ExitCode = "exit-code",
        /// `signal`: a signal ended the program.
        Signal = "signal",
        /// `timeout`: a time limit was over.
        Timeout = "timeout",
        /// `watchdog`: the unit's watchdog ended it.
        Watchdog = "watchdog",
        /// `oom-kill`: the kernel ended it for its memory.
        OomKill = "oom-kill",
        /// `resources`: the machine lacked resources to start it.
        Resources = "resources",
        /// `protocol`: the first process of a start ended successfully before it reported readiness
        /// (systemd.exec(5)). Podman sends the readiness message itself, so no program in a
        /// container can cause this result.
        Protocol = "protocol",
        /// `exec-condition`: the unit's own `ExecCondition=` refused the start (systemd.exec(5)).
        ExecCondition = "exec-condition",
    }
}
