//! The words for kinds of objects on a command line, such as `workload`, `workloads` and `wl`.
//!
//! A word before a slash is a kind: `volume/shop/db/data` is a volume of namespace `shop`. So no new
//! namespace may have such a name.

/// A kind of object that a command line can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamedKind {
    /// A workload of a namespace.
    Workload,
    /// An instance of a workload.
    Instance,
    /// A machine.
    Node,
    /// A namespace.
    Namespace,
    /// The data of a workload's volume; its name is `WORKLOAD/VOLUME`.
    Volume,
    /// A route of a workload; its name is `HOST/PATH`.
    Route,
    /// A workload of type Job.
    Job,
    /// A run of a Job; its name is `JOB-NUMBER`.
    Run,
    /// A virtual address.
    Address,
    /// A secret of a namespace.
    Secret,
    /// An event; its name is its id.
    Event,
    /// A token; its name is its id.
    Token,
}

struct KindNames {
    singular: &'static str,
    plural: &'static str,
    short: Option<&'static str>,
}

impl NamedKind {
    /// All kinds, in the order of lists.
    pub const ALL: [Self; 12] = [
        Self::Workload,
        Self::Instance,
        Self::Node,
        Self::Namespace,
        Self::Volume,
        Self::Route,
        Self::Job,
        Self::Run,
        Self::Address,
        Self::Secret,
        Self::Event,
        Self::Token,
    ];

    fn names(self) -> KindNames {
        let names = |singular, plural, short| KindNames {
            singular,
            plural,
            short,
        };
        match self {
            Self::Workload => names("workload", "workloads", Some("wl")),
            Self::Instance => names("instance", "instances", Some("inst")),
            Self::Node => names("node", "nodes", None),
            Self::Namespace => names("namespace", "namespaces", Some("ns")),
            Self::Volume => names("volume", "volumes", Some("vol")),
            Self::Route => names("route", "routes", None),
            Self::Job => names("job", "jobs", None),
            Self::Run => names("run", "runs", None),
            Self::Address => names("address", "addresses", None),
            Self::Secret => names("secret", "secrets", None),
            Self::Event => names("event", "events", Some("ev")),
            Self::Token => names("token", "tokens", None),
        }
    }

    /// The plural, the singular, and a short word if there is one.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let KindNames {
            singular,
            plural,
            short,
        } = self.names();
        [plural, singular].into_iter().chain(short)
    }

    /// The word for one object, such as `workload`.
    pub fn singular(self) -> &'static str {
        self.names().singular
    }

    /// The word for several objects, such as `workloads`.
    pub fn plural(self) -> &'static str {
        self.names().plural
    }

    /// Whether its objects are in namespaces.
    pub fn is_namespaced(self) -> bool {
        match self {
            Self::Workload
            | Self::Instance
            | Self::Volume
            | Self::Route
            | Self::Job
            | Self::Run
            | Self::Secret
            | Self::Event => true,
            Self::Node | Self::Namespace | Self::Address | Self::Token => false,
        }
    }

    /// The kind that a word means.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.words().any(|one| one == word))
    }
}

/// Whether no new namespace may have this name, because it is a word for a kind.
pub fn is_word_of_kind(name: &str) -> bool {
    NamedKind::of_word(name).is_some()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_word_means_one_kind() {
        let mut words = BTreeSet::new();
        for kind in NamedKind::ALL {
            for word in kind.words() {
                assert!(words.insert(word), "{word}");
                assert_eq!(NamedKind::of_word(word), Some(kind), "{word}");
                assert!(is_word_of_kind(word), "{word}");
            }
        }
        assert!(!is_word_of_kind("shop") && NamedKind::of_word("Workload").is_none());
    }
}
