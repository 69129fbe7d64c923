//! The images that a machine keeps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/kat/nodes/desired/{node}/images`: for each workload that has a user on the machine, the images
/// that it may run next.
///
/// The record is independent of the list of assignments: without it a machine keeps the images that
/// its instances use, and removes the users of workloads that have left it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptImages {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// By index of the workload's user, without workloads that are being deleted.
    pub users: BTreeMap<u32, KeptUserImages>,
}

/// The images of one workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeptUserImages {
    /// Images of the present version, of the last good one, and of the last good one with other
    /// content, as assignments name them; sorted.
    pub images: Vec<String>,
    /// Not all images are known: no image of the workload may be removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}
