//! A stored object with the revision of its last write, and the key of a workload.

/// An object and the revision at which it was last written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<T> {
    /// Revision of its last write; 0 means that it is not stored yet.
    pub revision: i64,
    /// The object.
    pub value: T,
}

/// Namespace and name of a workload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkloadKey {
    /// Name of the namespace.
    pub namespace: String,
    /// Name of the workload, unique in its namespace.
    pub name: String,
}

impl WorkloadKey {
    /// Joins both.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl std::fmt::Display for WorkloadKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}
