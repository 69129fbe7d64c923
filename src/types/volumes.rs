//! Whose data a volume is, and what is stored of its place, its way to another machine and its removal.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::stored::WorkloadKey;

/// A volume whose place is known: `NAMESPACE/WORKLOAD/VOLUME`.
///
/// `VOLUME` is the name in the file, with `.SLOT` where each replica has its own, and for a path of the machine
/// that KAT makes there `NAME@host.SLOT`. No name of a volume has these characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeKey {
    /// Whose it is; that workload may be gone.
    pub workload: WorkloadKey,
    /// Which one of it.
    pub volume: String,
}

impl VolumeKey {
    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (workload, volume) = rest.split_once('/')?;
        let whole = !namespace.is_empty() && !workload.is_empty() && !volume.is_empty();
        (whole && !volume.contains('/')).then(|| Self {
            workload: WorkloadKey::new(namespace, workload),
            volume: volume.to_owned(),
        })
    }

    /// Its name in `workload.kat`.
    pub fn name(&self) -> &str {
        let end = self.volume.find(['.', '@']);
        end.and_then(|end| self.volume.get(..end))
            .unwrap_or(&self.volume)
    }

    /// The slot, where each replica has its own.
    pub fn slot(&self) -> Option<u32> {
        self.volume.rsplit_once('.')?.1.parse().ok()
    }
}

impl fmt::Display for VolumeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.workload, self.volume)
    }
}

/// A volume's way to another machine, in its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMove {
    /// The same for all volumes that move together, and for no other move.
    pub id: String,
    /// The machine that has the data.
    pub from: String,
    /// The machine that is to have it.
    pub to: String,
    /// When it was asked for.
    pub asked: Timestamp,
    /// The copy is whole and is the data now; its machine still has to put it in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub placing: bool,
    /// What was known of an earlier copy there when this one became the data: it lies there until that is placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<KeptCopy>,
}

/// A copy that is left where the data was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptCopy {
    /// The machine.
    pub node: String,
    /// It goes after this.
    pub until: Timestamp,
    /// A move was broken off there, which may have put its copy there or not: whatever else lies there is not KAT's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
}

/// `/kat/nodes/desired/{node}/moves/{ns}/{workload}/{volume}`: data that a machine is to send, or to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Identity of the move.
    pub id: String,
    /// The machine that sends it, to nobody but `to`.
    pub from: String,
    /// The machine that takes it.
    pub to: String,
    /// Index of the workload user whose data it is.
    pub index: u32,
    /// The copy is the data now: it is to be put in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub place: bool,
    /// What lies in that place is a copy that was kept after an earlier move, and goes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaces: bool,
}

/// `/kat/nodes/desired/{node}/removals/{ns}/{workload}/{volume}`: data that a machine is to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovalRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When it was asked for: tells one removal from an earlier one of the same name.
    pub asked: Timestamp,
    /// Index of the workload user whose data it is: nobody else's is removed.
    pub index: u32,
    /// It has been there: where it is not found, its disk may be missing.
    #[serde(default)]
    pub made: bool,
    /// It is a copy that was kept: where the base path is there and it is not, it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copy: bool,
    /// It goes only where that machine has put it there for a move, and nothing has run with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
}

/// A removal as a machine confirms it.
pub fn removal_id(volume: &str, asked: Timestamp) -> String {
    format!("{volume} {asked}")
}
