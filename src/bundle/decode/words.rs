//! The words of every field that is limited to certain words.

use kat_types::resource::{
    CatchUp, ConcurrencyPolicy, EnsureType, GpuDriver, HostPortOn, ImagePullPolicy, Isolation,
    NamespaceIsolation, OnLeaderLoss, OnNodeLoss, OnPartition, OnStartTimeout, PlainHttp, Protocol,
    ProxyProtocol, ReclaimPolicy, RestartCondition, StartCondition, TaintEffect, TlsIssuer,
    TolerationOperator, UpdateStrategyType, UpstreamProtocol, WorkloadType,
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
    HostPortOn { "instances" => Instances, "ingress" => Ingress }
    StartCondition { "Started" => Started, "Healthy" => Healthy, "Completed" => Completed }
    OnStartTimeout { "wait" => Wait, "start" => Start }
    TlsIssuer { "acme" => Acme, "internal" => Internal }
    PlainHttp { "redirect" => Redirect, "serve" => Serve }
    UpstreamProtocol { "http" => Http, "h2c" => H2c }
    ProxyProtocol { "none" => None, "v1" => V1, "v2" => V2 }
    CatchUp { "None" => None, "Last" => Last, "All" => All }
    NamespaceIsolation { "Private" => Private, "Shared" => Shared }
    Isolation { "None" => None, "Audit" => Audit, "Namespaces" => Namespaces }
    OnLeaderLoss { "keep" => Keep, "release" => Release }
    ConcurrencyPolicy { "Forbid" => Forbid, "Allow" => Allow, "Replace" => Replace }
}
