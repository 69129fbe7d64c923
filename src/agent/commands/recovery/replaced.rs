//! The mark of a machine whose place another one has taken: a restore made that one from a backup,
//! under the same name and with the same keys.
//!
//! Whatever this machine did in its name would concern the other one. So it is marked, and from the
//! agent's next start on nothing of the cluster runs here until `kat-agent reset`. Its store's old
//! data stays until then: it may have what the backup has not.

use std::path::Path;

use serde::Serialize;

use super::epoch::{EpochQuestion, StoreStanding, store_standing};
use crate::{
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys},
    service::paths,
};
use kat_host::files::{self, FileAccess};
use kat_types::encoding::json;

/// The content of `/var/lib/kat/replaced.json`. That the file exists is what counts.
#[derive(Serialize)]
struct ReplacedMark {
    /// Version of this object's schema, now 1.
    schema: u32,
}

/// What a machine says whose place another one has taken.
pub(crate) fn replaced_text(node: &str) -> String {
    format!(
        "another machine has taken the place of {node} in the cluster, where it was restored from a backup; the instances here are stopped; to use this machine again: `sudo kat-agent reset`, then `kat-agent join` with a name of its own (`--node-name NAME`)"
    )
}

/// Marks that another machine has taken this one's place.
pub(crate) fn mark_replaced() -> anyhow::Result<()> {
    let text = json::bytes(paths::REPLACED, &ReplacedMark { schema: 1 })?;
    files::write_atomic(Path::new(paths::REPLACED), &text, FileAccess::mode(0o600))?;
    Ok(())
}

/// Whether this machine is marked.
///
/// # Errors
/// The mark can't be looked for.
pub(crate) fn is_marked_replaced() -> anyhow::Result<bool> {
    Ok(Path::new(paths::REPLACED).try_exists()?)
}

/// Whether another machine has taken this one's place: by the mark, or as other machines prove now.
pub(crate) async fn is_replaced(identity: &MachineIdentity) -> bool {
    // A mark that can't be read does not hold up a reset.
    if is_marked_replaced().is_ok_and(|marked| marked) {
        return true;
    }
    let (keys, known) = (MachineKeys::new(None), ClusterCache::stored());
    let standing = store_standing(identity, &keys, &known, EpochQuestion::Patient).await;
    standing == StoreStanding::Replaced
}
