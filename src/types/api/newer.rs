//! Words of a newer version: readers of what is stored and sent take one that they do not know for
//! the one that does the least harm (ARCHITECTURE.md, invariant 10). What users write stays strict.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IntoDeserializer, value},
};

use super::{
    Health, InstanceAction, InstancePhase, NodePhase, NodeRole, Taint, VolumePhase, WorkloadPhase,
};
use crate::resource::{ReclaimPolicy, TaintEffect};

/// A set of words that may grow.
pub trait Words: DeserializeOwned {
    /// What a word that is not known is taken for.
    const NEWER: Self;
}

impl Words for InstancePhase {
    const NEWER: Self = Self::Unknown;
}

/// The data is kept.
impl Words for ReclaimPolicy {
    const NEWER: Self = Self::Retain;
}

/// It does not count as healthy, and is no reason to replace the instance.
impl Words for Health {
    const NEWER: Self = Self::PendingCheck;
}

/// Nothing is placed there, and it does not count as lost.
impl Words for NodePhase {
    const NEWER: Self = Self::Joining;
}

impl Words for WorkloadPhase {
    const NEWER: Self = Self::Progressing;
}

/// Somebody may need it.
impl Words for VolumePhase {
    const NEWER: Self = Self::Bound;
}

/// Something becomes of it.
impl Words for InstanceAction {
    const NEWER: Self = Self::Restart;
}

/// A taint keeps something away, whatever else it does.
impl Words for TaintEffect {
    const NEWER: Self = Self::NoSchedule;
}

fn known<T: DeserializeOwned>(text: &str) -> Option<T> {
    let word: value::StrDeserializer<'_, value::Error> = text.into_deserializer();
    T::deserialize(word).ok()
}

/// For `deserialize_with`: one word.
///
/// # Errors
/// For what is no text.
pub fn word<'de, D: Deserializer<'de>, T: Words>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(known(&text).unwrap_or(T::NEWER))
}

/// For `deserialize_with`: roles; those that are not known are left out.
///
/// # Errors
/// For what is no list of texts.
pub fn roles<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<NodeRole>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    Ok(texts.iter().filter_map(|text| known(text)).collect())
}

/// For `deserialize_with`: stored taints.
///
/// # Errors
/// For what are no taints.
pub fn taints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Taint>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Stored {
        key: String,
        #[serde(default)]
        value: String,
        #[serde(deserialize_with = "word")]
        effect: TaintEffect,
    }
    let stored = Vec::<Stored>::deserialize(deserializer)?;
    let taints = stored.into_iter().map(|one| Taint {
        key: one.key,
        value: one.value,
        effect: one.effect,
    });
    Ok(taints.collect())
}
