//! Virtual addresses in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ApiTime, newer};
use crate::virtual_addresses::AddressStateWord;

/// A virtual address, as the cluster's settings have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualAddressView {
    /// The address with the prefix of its network.
    pub address: String,
    /// The machines' interface, or `auto`.
    pub interface: String,
    /// What the holder does while it reaches no leader: `keep` or `release`.
    pub on_leader_loss: String,
}

/// Observed state of a virtual address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualAddressStatus {
    /// Name of the machine that is to hold it; absent if none can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Since when that machine is to hold it.
    pub since: ApiTime,
    /// Whether that machine says that it holds it.
    pub held: bool,
    /// Why it is not held, one word for programs; empty if it is held or about to be.
    pub reason: String,
    /// Why it is not held, in a sentence.
    pub message: String,
    /// The machines that may hold it.
    pub machines: Vec<VirtualAddressMachine>,
}

/// A machine that may hold a virtual address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VirtualAddressMachine {
    /// Name of the machine.
    pub node: String,
    /// What it does with the address. In an object of a newer version, an unknown word is read as
    /// `Unknown`.
    #[serde(deserialize_with = "newer::word")]
    pub state: AddressStateWord,
    /// Its interface for the address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// More about it, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}
