//! `kat-agent trust`: a machine that was off while the cluster's authority was replaced is told the
//! new one by a person. It trusts nothing that those who answer say about themselves.

use std::time::Duration;

use anyhow::bail;

use super::setup::{StepPrinter, read_identity};
use crate::cluster::{
    cluster_cache::ClusterCache, identity::MachineIdentity, keys::MachineKeys,
    succession::take_authority,
};
use kat_pki as pki;
use kat_pki::AuthorityKind;
use kat_systemd::{JobResult, ManagerSource, Managers};

/// Longest restart of the agent.
const RESTART_LIMIT: Duration = Duration::from_secs(60);

/// Takes the authority whose certificate has this SHA-256, and a certificate of it for this machine,
/// from a machine of the cluster that has it.
pub(crate) async fn run(hash: &str, say: StepPrinter<'_>) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: run it with sudo");
    }
    let hash = hash.trim().to_ascii_lowercase();
    if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!(
            "`{hash}` is not the hash of an authority: expected 64 hexadecimal digits, as `katcall ca list -o wide` shows them"
        );
    }
    let identity = read_identity()?;
    if identity.etcd {
        bail!(
            "this machine holds the cluster's store, and its authority is replaced with that of the others. Where it was taken out of the store meanwhile: `sudo kat-agent reset`, then join again"
        );
    }
    let keys = MachineKeys::new(None);
    let current = pki::fingerprint_of(&keys.certificate(AuthorityKind::Cluster.name())?)?;
    let authority = keys.certificate(AuthorityKind::Cluster.name())?;
    if current == hash && pki::is_issued_by(&keys.certificate("node")?, &authority)? {
        say("this machine trusts that authority already, and has a certificate of it");
        return Ok(());
    }
    let endpoint = take(&identity, &keys, &hash).await?;
    say(&format!(
        "{endpoint} has that authority, and gave this machine a certificate of it; kat-agent restarts, and instances continue to run"
    ));
    let managers = Managers::new();
    let restarted = managers
        .system()
        .restart("kat-agent.service", RESTART_LIMIT)
        .await?;
    if restarted != JobResult::Done {
        bail!("kat-agent did not start: `systemctl status kat-agent` says why");
    }
    Ok(())
}

/// Asks every known address; returns the first that has the authority and issued a certificate.
async fn take(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    hash: &str,
) -> anyhow::Result<String> {
    let known = ClusterCache::stored().of_others(identity);
    let mut failures = Vec::new();
    for endpoint in known.api(identity.cluster.spec.api_port) {
        match take_authority(identity, keys, &endpoint, hash).await {
            Ok(()) => return Ok(endpoint),
            Err(error) => failures.push(format!("\n  {endpoint}: {error:#}")),
        }
    }
    if failures.is_empty() {
        bail!("this machine knows no other machine of its cluster");
    }
    bail!(
        "no machine that is known here has an authority with that hash:{}",
        failures.concat()
    )
}
