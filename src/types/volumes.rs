//! Keys of volumes, and the stored objects of their moves and removals.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::store::revisions::WorkloadKey;

/// Key of a volume whose place is recorded: `NAMESPACE/WORKLOAD/VOLUME`.
///
/// `VOLUME` is the name in the file, followed by `.SLOT` if each replica has its own volume. For a
/// path of the machine that KAT creates it is `NAME@host.SLOT`. Names of volumes contain neither
/// `.` nor `@`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeKey {
    /// The workload of the volume, which may be deleted.
    pub workload: WorkloadKey,
    /// Last part of the key, see [`VolumeKey`].
    pub volume: String,
}

impl VolumeKey {
    /// Parses the form that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, rest) = text.split_once('/')?;
        let (workload, volume) = rest.split_once('/')?;
        let whole = !namespace.is_empty() && !workload.is_empty() && !volume.is_empty();
        (whole && !volume.contains('/')).then(|| Self {
            workload: WorkloadKey::new(namespace, workload),
            volume: volume.to_owned(),
        })
    }

    /// Name of the volume in `workload.kat`.
    pub fn name(&self) -> &str {
        let end = self.volume.find(['.', '@']);
        end.and_then(|end| self.volume.get(..end))
            .unwrap_or(&self.volume)
    }

    /// The slot, if each replica has its own volume.
    pub fn slot(&self) -> Option<u32> {
        self.volume.rsplit_once('.')?.1.parse().ok()
    }
}

impl fmt::Display for VolumeKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.workload, self.volume)
    }
}

/// A move of a volume to another machine, in the volume's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeMove {
    /// Id of the move, shared by all volumes that move together.
    pub id: String,
    /// Name of the machine that has the data.
    pub from: String,
    /// Name of the machine that receives the data.
    pub to: String,
    /// When the move was requested.
    pub asked: Timestamp,
    /// The copy is complete and is the data now; the receiving machine still has to put it in its
    /// place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub placing: bool,
    /// The kept copy that was on the receiving machine when this copy became the data: it lies in
    /// the volume's place until the new copy is put there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<KeptCopy>,
}

/// A copy of a volume that is kept for a while on a machine that had the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptCopy {
    /// Name of the machine with the copy.
    pub node: String,
    /// The copy is removed after this time.
    pub until: Timestamp,
    /// A move was given up that may or may not have put its copy there: anything else in that place
    /// is not KAT's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
}

/// `/kat/nodes/desired/{node}/moves/{ns}/{workload}/{volume}`: a volume that a machine has to send
/// or receive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MoveRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Id of the move, as in [`VolumeMove`].
    pub id: String,
    /// Name of the machine that sends the data, only to `to`.
    pub from: String,
    /// Name of the machine that receives the data.
    pub to: String,
    /// Index of the workload user that owns the data.
    pub index: u32,
    /// The copy is the data now: the receiving machine has to put it in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub place: bool,
    /// The volume's place holds a copy kept by an earlier move, which is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaces: bool,
}

/// `/kat/nodes/desired/{node}/removals/{ns}/{workload}/{volume}`: data that a machine has to
/// remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovalRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When the removal was requested; distinguishes it from an earlier removal with the same name.
    pub asked: Timestamp,
    /// Index of the workload user that owns the data: no other user's data is removed.
    pub index: u32,
    /// The data has existed: if it is not found, its disk may be missing.
    #[serde(default)]
    pub made: bool,
    /// The data is a kept copy: if the base path exists and the copy does not, it is removed
    /// already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copy: bool,
    /// Removed only if that machine has put the data there for a move, and nothing has run with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// A person has given the data up: where it is not found, the machine records that and the
    /// removal is done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
}

/// The form in which a machine confirms a removal.
pub fn removal_id(volume: &str, asked: Timestamp) -> String {
    format!("{volume} {asked}")
}
