//! Files that init writes outside of KAT's own folders. Every start of the agent renews them, so
//! that they follow an upgrade and are restored after a removal.

use crate::cluster::{cluster_cache::ClusterCache, identity::MachineIdentity, keys::ETCD_PKI};
use kat_host::files::{self, FileAccess, FileError};
use kat_render::{EtcdUnit, HostFile, RenderError, RenderSettings, Renderer};
use kat_systemd::{LoadState, SystemdError, UnitManager};

/// The unit of the cluster's store.
pub(crate) const ETCD: &str = "kat-etcd.service";

/// All files that this machine needs.
pub(crate) fn needed_files(
    renderer: &Renderer,
    settings: &RenderSettings,
    identity: &MachineIdentity,
    known: &ClusterCache,
) -> Result<Vec<HostFile>, RenderError> {
    let mut files = renderer.host_files(settings)?;
    if identity.etcd {
        files.push(etcd(renderer, identity, known)?);
    }
    Ok(files)
}

/// The unit of the store. A member's first start needs the names of all other members; later starts
/// use its data.
pub(crate) fn etcd(
    renderer: &Renderer,
    identity: &MachineIdentity,
    known: &ClusterCache,
) -> Result<HostFile, RenderError> {
    let spec = &identity.cluster.spec;
    let mut unit = EtcdUnit::new(
        &identity.node,
        identity.overlay_address(),
        spec.etcd_client_port,
        spec.etcd_peer_port,
        ETCD_PKI,
    );
    unit.keeps_data = known.member(identity).is_some_and(|member| member.voting);
    if let Some(cluster) = known.initial_cluster(identity) {
        unit.initial_cluster = cluster;
        "existing".clone_into(&mut unit.initial_cluster_state);
    }
    renderer.etcd(&unit)
}

/// Writes files that differ. systemd reads a changed unit, which takes effect at its next start; no
/// unit is restarted.
pub(crate) async fn renew(files: &[HostFile], system: &dyn UnitManager) -> Result<(), FileError> {
    for file in files {
        if files::write_if_changed(
            &file.path,
            file.text.as_bytes(),
            FileAccess::mode(file.mode),
        )? {
            tracing::info!(path = %file.path.display(), "a file of this machine was renewed");
        }
    }
    if let Err(error) = reload_if_needed(system).await {
        tracing::warn!("systemd has not read the units anew: {error:#}");
    }
    Ok(())
}

/// Reloads systemd if it needs that, so that a failed reload is repeated the next time.
async fn reload_if_needed(system: &dyn UnitManager) -> Result<(), SystemdError> {
    match needs_reload(system).await {
        Ok(true) => system.reload().await,
        Ok(false) | Err(SystemdError::NoSuchUnit(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn needs_reload(system: &dyn UnitManager) -> Result<bool, SystemdError> {
    let status = system.status(ETCD).await?;
    let is_outdated = system.needs_reload(ETCD).await?;
    Ok(is_to_reload(&status.load_state, is_outdated))
}

/// systemd 257 fails to load the new file of a failed unit whose file was missing at the last reload
/// (`EBUSY`), and does not say then that a reload is needed.
fn is_to_reload(load_state: &LoadState, is_outdated: bool) -> bool {
    is_outdated || *load_state == LoadState::Error
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use kat_testing::systemd::fake::FakeManager;

    fn store(folder: &std::path::Path, program: &str) -> HostFile {
        HostFile {
            path: folder.join(ETCD),
            text: format!("[Service]\nExecStart=/usr/bin/sleep {program}\n"),
            mode: 0o644,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_unit_is_read_anew_and_not_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let old = store(folder.path(), "1");
        std::fs::write(&old.path, &old.text).unwrap();
        let system = FakeManager::with_folder("the system", folder.path());
        system.reload().await.unwrap();
        system.start(ETCD, Duration::from_secs(1)).await.unwrap();
        let before = system.status(ETCD).await.unwrap();
        system.clear_calls();

        renew(std::slice::from_ref(&old), &system).await.unwrap();
        assert!(system.calls().is_empty(), "nothing differs");

        let new = store(folder.path(), "2");
        renew(std::slice::from_ref(&new), &system).await.unwrap();
        assert_eq!(std::fs::read_to_string(&new.path).unwrap(), new.text);
        assert_eq!(system.calls(), ["reload"]);
        let after = system.status(ETCD).await.unwrap();
        assert_eq!(after.main_pid, before.main_pid);

        std::fs::write(&new.path, "[Service]\nExecStart=/usr/bin/sleep 3\n").unwrap();
        system.fail_next("reload", SystemdError::NoSuchUnit(String::new()));
        renew(std::slice::from_ref(&new), &system).await.unwrap();
        renew(std::slice::from_ref(&new), &system).await.unwrap();
        assert!(!system.needs_reload(ETCD).await.unwrap());
    }

    #[test]
    fn a_unit_that_systemd_could_not_load_is_read_anew() {
        for (load_state, is_outdated, expected) in [
            (LoadState::Loaded, false, false),
            (LoadState::NotFound, false, false),
            (LoadState::Loaded, true, true),
            (LoadState::Error, false, true),
        ] {
            let is_to = is_to_reload(&load_state, is_outdated);
            assert_eq!(is_to, expected, "{load_state:?}");
        }
    }
}
