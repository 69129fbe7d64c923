//! Commands for the loss of machines (RFC001-KAT 5.4, 5.5): the recovery key, backups, and creating
//! the store anew on a remaining machine or on a bare one.

mod archive;
mod backup;
mod epoch;
mod prompt;
mod rebuild;
mod recover;
mod replaced;
mod restore;
mod running_machine;

use std::{path::Path, sync::Arc};

use anyhow::{Context, bail};

use self::rebuild::RecoveryMarker;
use super::setup::read_identity;
use crate::{
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys},
    service::paths,
};

pub use self::epoch::prove as prove_epoch;
pub(crate) use self::{
    backup::{BackupWork, ScheduledBackups, run as backup},
    epoch::{EpochCheck, EpochQuestion, LOOKOUT_INTERVAL, StoreStanding, store_standing},
    recover::run as recover,
    replaced::{is_marked_replaced, is_replaced, mark_replaced, replaced_text},
    restore::{RestoreOptions, forget_unpacked, run as restore},
};

/// The recovery key in its printed form.
pub(crate) fn key() -> anyhow::Result<String> {
    member()?;
    let key = MachineKeys::new(None)
        .recovery_key()
        .with_context(no_key_hint)?;
    Ok(key.reveal())
}

fn no_key_hint() -> String {
    format!(
        "this machine has no readable recovery key; write the text that `init` printed into {}, mode 0600",
        kat_pki::recovery_key_file(Path::new(paths::PKI)).display()
    )
}

/// Fails while a recover or restore is unfinished: the agent would take the incomplete store for
/// the cluster's state.
pub(crate) fn refuse_unfinished() -> anyhow::Result<()> {
    if let Some(marker) = RecoveryMarker::read()? {
        bail!(
            "a `kat-agent {command}` was interrupted; run the same command again. Workloads continue to run meanwhile",
            command = marker.command
        );
    }
    Ok(())
}

/// Checks that the user is root and that the machine holds the cluster's store.
fn member() -> anyhow::Result<Arc<MachineIdentity>> {
    need_root()?;
    let identity = read_identity()?;
    if !identity.etcd {
        let known = ClusterCache::stored();
        let machines = known.endpoints.machines.iter();
        let members: Vec<&str> = machines
            .filter(|(_, machine)| machine.etcd)
            .map(|(name, _)| name.as_str())
            .collect();
        bail!(
            "this machine does not hold the cluster's store; run it on one that does: {}",
            members.join(", ")
        );
    }
    Ok(identity)
}

fn need_root() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: run it with sudo");
    }
    Ok(())
}
