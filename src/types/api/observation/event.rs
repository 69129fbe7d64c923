//! Events.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::api::{ApiTime, newer};

/// Severity of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EventKind {
    /// Something expected.
    #[default]
    Normal,
    /// Something that a person may want to look at.
    Warning,
}

impl EventKind {
    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl newer::ExtensibleEnum for EventKind {
    const NEWER: Self = Self::Normal;
}

/// An event (RFC001-KAT 9.3). Repetitions are counted in one event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Event {
    /// Unique identifier; identifiers sort by time.
    pub id: String,
    /// When the event last occurred; RFC 3339, UTC.
    pub timestamp: ApiTime,
    /// Severity of the event. In an object of a newer version, an unknown severity is read as
    /// `Normal`.
    #[serde(rename = "type", deserialize_with = "newer::word")]
    pub kind: EventKind,
    /// Reason of the event, one word for programs.
    pub reason: String,
    /// The object concerned.
    pub involved_object: ObjectReference,
    /// The same for users, in a sentence.
    pub message: String,
    /// Number of occurrences.
    pub count: u32,
    /// When the event first occurred; RFC 3339, UTC.
    pub first_timestamp: ApiTime,
}

impl Event {
    /// The JSON form that is stored. Strings and numbers can always be encoded, so this cannot
    /// fail.
    pub fn to_json(&self) -> Vec<u8> {
        let Self {
            id,
            timestamp,
            kind,
            reason,
            involved_object,
            message,
            count,
            first_timestamp,
        } = self;
        let ObjectReference {
            kind: of_kind,
            name,
            namespace,
            uid,
        } = involved_object;
        let object = |fields: &[(&str, &String)]| -> Map<String, Value> {
            let fields = fields.iter();
            fields
                .map(|(name, text)| ((*name).to_owned(), Value::String((*text).clone())))
                .collect()
        };
        let mut fields = object(&[
            ("id", id),
            ("timestamp", &timestamp.to_string()),
            ("type", &kind.word().to_owned()),
            ("reason", reason),
            ("message", message),
            ("firstTimestamp", &first_timestamp.to_string()),
        ]);
        fields.insert("count".to_owned(), Value::from(*count));
        let involved = object(&[
            ("kind", &of_kind.word().to_owned()),
            ("name", name),
            ("namespace", namespace),
            ("uid", uid),
        ]);
        fields.insert("involvedObject".to_owned(), Value::Object(involved));
        Value::Object(fields).to_string().into_bytes()
    }
}

/// Defines the kinds of objects with their words.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// Kind of an object that events concern.
        ///
        /// Stored events may be of a newer version, and a repeated event is written again, so a
        /// word that this version does not know is kept.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ObjectKind {
            $($(#[$doc])* $kind,)*
            /// Another word; empty if none was read.
            Other(String),
        }

        impl ObjectKind {
            /// The word in JSON.
            pub fn word(&self) -> &str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for ObjectKind {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $(stringify!($kind) => Self::$kind,)*
                    _ => Self::Other(word),
                }
            }
        }
    };
}

kinds! {
    /// The whole cluster.
    Cluster,
    /// An instance of a workload.
    Instance,
    /// A namespace.
    Namespace,
    /// A machine.
    Node,
    /// The credentials for a registry.
    Registry,
    /// A secret.
    Secret,
    /// A workload.
    Workload,
}

impl Default for ObjectKind {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.word())
    }
}

impl Serialize for ObjectKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for ObjectKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// The object that an event concerns.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// Kind of the object: `Workload`, `Instance`, `Node`, `Namespace`, `Secret`, `Registry` or
    /// `Cluster`, or a word of a newer version.
    #[schemars(with = "String")]
    pub kind: ObjectKind,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object; empty if it has none.
    pub namespace: String,
    /// Uid of the object.
    pub uid: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_stored_as_its_type_says() {
        let text = |text: &str| format!("{text} \"\u{1}\u{fffd}\n");
        let event = Event {
            id: text("id"),
            timestamp: ApiTime::parse("2026-01-01T00:00:00.25Z"),
            kind: EventKind::Warning,
            reason: text("reason"),
            involved_object: ObjectReference {
                kind: ObjectKind::Other(text("of kind")),
                name: text("name"),
                namespace: text("namespace"),
                uid: text("uid"),
            },
            message: text("message"),
            count: u32::MAX,
            first_timestamp: ApiTime::UNKNOWN,
        };
        let stored: Value = serde_json::from_slice(&event.to_json()).unwrap();
        assert_eq!(stored, serde_json::to_value(&event).unwrap());
    }

    #[test]
    fn a_kind_is_written_as_its_word_and_an_unknown_one_is_kept() {
        let read = |word: &str| -> ObjectReference {
            serde_json::from_value(json!({"kind": word})).unwrap()
        };
        for (kind, word) in [
            (ObjectKind::Cluster, "Cluster"),
            (ObjectKind::Instance, "Instance"),
            (ObjectKind::Namespace, "Namespace"),
            (ObjectKind::Node, "Node"),
            (ObjectKind::Registry, "Registry"),
            (ObjectKind::Secret, "Secret"),
            (ObjectKind::Workload, "Workload"),
            (ObjectKind::Other("Galaxy".to_owned()), "Galaxy"),
            (ObjectKind::default(), ""),
        ] {
            assert_eq!(read(word).kind, kind);
            assert_eq!(json!(kind), json!(word));
            assert_eq!(kind.to_string(), word);
        }
        let absent: ObjectReference = serde_json::from_value(json!({})).unwrap();
        assert_eq!(absent.kind, ObjectKind::default());
    }
}
