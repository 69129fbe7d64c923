//! The words of every field that is limited to certain words.

use kat_types::resource::{
    ConcurrencyPolicy, EnsureType, GpuDriver, ImagePullPolicy, OnNodeLoss, OnPartition, Protocol,
    ReclaimPolicy, RestartCondition, TaintEffect, TolerationOperator, UpdateStrategyType,
    WorkloadType,
};

/// A type with a word for each of its values.
pub(crate) trait EnumWord: Copy + 'static {
    /// The words and what they mean.
    const WORDS: &'static [(&'static str, Self)];
}

macro_rules! words {
    ($($type:ident { $($word:literal => $variant:ident),+ $(,)? })+) => {
        $(impl EnumWord for $type {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        })+
    };
}

words! {
    WorkloadType { "Service" => Service, "Job" => Job, "DaemonService" => DaemonService }
    UpdateStrategyType { "Rolling" => Rolling, "Simultaneous" => Simultaneous }
    RestartCondition { "Never" => Never, "MaxCount" => MaxCount, "Always" => Always }
    OnNodeLoss { "move" => Move, "keep" => Keep }
    OnPartition { "keep" => Keep, "stop" => Stop }
    TolerationOperator { "Exists" => Exists, "Equal" => Equal }
    TaintEffect { "NoSchedule" => NoSchedule, "PreferNoSchedule" => PreferNoSchedule }
    ImagePullPolicy { "IfNotPresent" => IfNotPresent, "Always" => Always, "Never" => Never }
    GpuDriver { "any" => Any, "nvidia" => Nvidia, "amd" => Amd }
    EnsureType {
        "DirectoryOrCreate" => DirectoryOrCreate,
        "Directory" => Directory,
        "FileOrCreate" => FileOrCreate,
        "File" => File,
        "Socket" => Socket,
    }
    ReclaimPolicy { "Retain" => Retain, "Delete" => Delete }
    Protocol { "TCP" => Tcp, "UDP" => Udp }
    ConcurrencyPolicy { "Forbid" => Forbid, "Allow" => Allow, "Replace" => Replace }
}
