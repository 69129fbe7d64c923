//! What every object of the store has: its key and the revision of its last write.

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
    /// Its namespace.
    pub namespace: String,
    /// Its name.
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
