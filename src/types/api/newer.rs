//! Words of a newer version: in stored and received objects, an unknown word is read as the known
//! one that does the least harm (ARCHITECTURE.md, invariant 10). Users' files are read strictly.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IntoDeserializer, value},
};

use super::{
    Health, IngressState, InstanceAction, InstancePhase, NodePhase, NodeRole, Taint, VolumePhase,
    WorkloadPhase,
};
use crate::{
    resource::{ReclaimPolicy, TaintEffect},
    store::jobs::{RunCause, RunPhase},
};

/// A set of words that may grow.
pub trait ExtensibleEnum: DeserializeOwned {
    /// The value of an unknown word.
    const NEWER: Self;
}

impl ExtensibleEnum for InstancePhase {
    const NEWER: Self = Self::Unknown;
}

/// An unknown policy keeps the data.
impl ExtensibleEnum for ReclaimPolicy {
    const NEWER: Self = Self::Retain;
}

/// Unknown health does not count as healthy, and is no reason to replace the instance.
impl ExtensibleEnum for Health {
    const NEWER: Self = Self::PendingCheck;
}

/// A machine of unknown phase receives no instances, and does not count as lost.
impl ExtensibleEnum for NodePhase {
    const NEWER: Self = Self::Joining;
}

impl ExtensibleEnum for WorkloadPhase {
    const NEWER: Self = Self::Progressing;
}

/// Nothing is started for a run of unknown phase.
impl ExtensibleEnum for RunPhase {
    const NEWER: Self = Self::Cancelled;
}

/// Nothing depends on why a run exists.
impl ExtensibleEnum for RunCause {
    const NEWER: Self = Self::Manual;
}

/// A volume of unknown phase may be in use.
impl ExtensibleEnum for VolumePhase {
    const NEWER: Self = Self::Bound;
}

/// A machine whose ingress is in an unknown state is not known to serve.
impl ExtensibleEnum for IngressState {
    const NEWER: Self = Self::Starting;
}

/// An unknown action changes the instance.
impl ExtensibleEnum for InstanceAction {
    const NEWER: Self = Self::Restart;
}

/// An unknown effect keeps workloads off.
impl ExtensibleEnum for TaintEffect {
    const NEWER: Self = Self::NoSchedule;
}

fn known<T: DeserializeOwned>(text: &str) -> Option<T> {
    let word: value::StrDeserializer<'_, value::Error> = text.into_deserializer();
    T::deserialize(word).ok()
}

/// For `deserialize_with`: one word.
///
/// # Errors
/// If the value is not a text.
pub fn word<'de, D: Deserializer<'de>, T: ExtensibleEnum>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(known(&text).unwrap_or(T::NEWER))
}

/// For `deserialize_with`: the phase of a run, where it is there.
///
/// # Errors
/// If the value is not a text.
pub fn known_phase<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RunPhase>, D::Error> {
    word(deserializer).map(Some)
}

/// For `with`: one word; the empty text for `None`. An unknown word is read as `None`.
pub mod word_or_empty {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

    /// Writes the word, or the empty text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Serialize, S: Serializer>(
        word: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match word {
            Some(word) => word.serialize(serializer),
            None => serializer.serialize_str(""),
        }
    }

    /// Reads the word.
    ///
    /// # Errors
    /// If the value is not a text.
    pub fn deserialize<'de, D: Deserializer<'de>, T: DeserializeOwned>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(super::known(&text))
    }
}

/// For `deserialize_with`: roles; unknown ones are left out.
///
/// # Errors
/// If the value is not a list of texts.
pub fn roles<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NodeRole>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    Ok(texts.iter().filter_map(|text| known(text)).collect())
}

/// For `deserialize_with`: stored taints.
///
/// # Errors
/// If the value is not a list of taints.
pub fn taints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Taint>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct StoredTaint {
        key: String,
        #[serde(default)]
        value: String,
        #[serde(deserialize_with = "word")]
        effect: TaintEffect,
    }
    let stored = Vec::<StoredTaint>::deserialize(deserializer)?;
    let taints = stored.into_iter().map(|one| Taint {
        key: one.key,
        value: one.value,
        effect: one.effect,
    });
    Ok(taints.collect())
}
