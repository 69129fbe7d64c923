//! The images that a machine keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/kat/nodes/desired/{node}/images`: for each workload that has a user on the machine, what it may run next.
///
/// It takes nothing from a list of assignments and adds nothing to it: without it a machine keeps what its
/// instances use, and removes the users of workloads that have left it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptImages {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By index of the workload's user. Workloads that are being deleted are not among them.
    pub users: BTreeMap<u32, KeptOfUser>,
}

/// The images of one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptOfUser {
    /// Those of the present version, of the last good one, and of the last good one of another content, as
    /// assignments name them; sorted.
    pub images: Vec<String>,
    /// Not all of them are known: none of the workload's images is to go.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}
