//! What a caller selects of a log or of the events.

use jiff::Timestamp;

/// The selected part of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Keep the stream open and send new lines.
    pub follow: bool,
    /// No lines older than this.
    pub since: Option<Timestamp>,
    /// At most this many of the last lines, before new ones.
    pub tail: Option<u64>,
    /// Only the program's run before the present one.
    pub previous: bool,
    /// Name of the container; the main one by default.
    pub container: Option<String>,
    /// The machine that an instance was on that is gone; ignored for one that is there.
    pub node: Option<String>,
    /// Only as one that is gone, of the workload with this uid: what the leader asks a machine for.
    pub gone_of: Option<String>,
}

/// The selected events; an absent field does not filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Kind of the object, such as `Workload`; case is ignored.
    pub kind: Option<String>,
    /// Name of the object.
    pub name: Option<String>,
    /// Namespace of the object. A namespace's own events belong to it too.
    pub namespace: Option<String>,
}
