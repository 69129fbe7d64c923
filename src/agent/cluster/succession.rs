//! The new authority of the cluster on a machine without the store that was off while it was
//! replaced: it takes it when a majority of the machines with the store that it knew have signed for
//! it. Otherwise a person tells it, with `kat-agent trust`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    cluster_cache::{ClusterCache, ClusterCacheReceiver},
    identity::MachineIdentity,
    keys::MachineKeys,
};
use kat_client::{Client, ClientOptions};
use kat_pki as pki;
use kat_pki::{AuthorityKind, SuccessionError};
use kat_store::Mirror;
use kat_types::api::RenewalRequest;

/// Time between two looks while no server of the state stream is accepted.
const INTERVAL: Duration = Duration::from_secs(20);
/// Longest wait for one server.
const ANSWER: Duration = Duration::from_secs(3);
/// How many servers are asked at most in one look.
const MOST_SERVERS: usize = 16;

/// Takes the authority whose certificate has this SHA-256, and a certificate of it for this machine,
/// from a server that has it. What the server says about itself is not believed.
pub(crate) async fn take_authority(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    endpoint: &str,
    hash: &str,
) -> anyhow::Result<()> {
    let request = RenewalRequest {
        certificate_request: keys.machine_request(&identity.node)?,
        state_stream: true,
    };
    let options = ClientOptions {
        retry_for: Duration::ZERO,
        unreachable_for: Duration::ZERO,
        ..ClientOptions::default()
    };
    let client = Client::of_authority(endpoint, hash, options)?;
    let signed = client.renew_certificates(&identity.node, &request).await?;
    let uid = pki::cluster_uid_of_authority(&signed.cluster_authority)?;
    if uid != identity.cluster_uid || pki::fingerprint_of(&signed.cluster_authority)? != hash {
        anyhow::bail!("it issues certificates of another authority");
    }
    keys.trust_next(&signed.cluster_authority)?;
    keys.store_machine(&signed)?;
    Ok(())
}

/// Looks for the new authority while this machine does not reach the cluster.
pub(crate) struct SuccessionWatch {
    pub identity: Arc<MachineIdentity>,
    pub keys: MachineKeys,
    pub known: ClusterCacheReceiver,
    /// This machine's copy of the cluster's state.
    pub state: Mirror,
    /// Wakes the renewal of certificates.
    pub changed: Arc<Notify>,
}

impl SuccessionWatch {
    /// Runs until `cancel`. Does nothing on a machine that holds the store.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        if !self.identity.etcd {
            cancel.run_until_cancelled(self.watch()).await;
        }
        // The task waits here for the agent's stop: the end of a task would stop the agent.
        cancel.cancelled().await;
    }

    async fn watch(&self) {
        let mut said = String::new();
        loop {
            sleep(INTERVAL).await;
            if self.state.snapshot().confirmed {
                said.clear();
                continue;
            }
            match self.look().await {
                Ok(Some(endpoint)) => {
                    tracing::info!(
                        endpoint,
                        "the cluster's authority was replaced while this machine was off, and a majority of the machines with the store have signed for the new one: it is trusted"
                    );
                    self.changed.notify_one();
                }
                Ok(None) => {}
                Err(error) => {
                    let news = format!(
                        "the machines that answer have certificates of another authority: {error:#}; `sudo kat-agent trust HASH` tells this machine the new one"
                    );
                    if news != said {
                        tracing::error!("{news}");
                        said = news;
                    }
                }
            }
        }
    }

    /// Takes the new authority from the first server that has it, and returns that server; `None`
    /// where no server has a certificate of another authority.
    async fn look(&self) -> anyhow::Result<Option<String>> {
        let known = ClusterCache::clone(&self.known.borrow()).of_others(&self.identity);
        let uid = &self.identity.cluster_uid;
        let authority = self.keys.cluster_authority()?;
        let present = pki::fingerprint_of(&self.keys.certificate(AuthorityKind::Cluster.name())?)?;
        let servers = known.servers();
        let members: BTreeMap<String, String> = servers
            .machines
            .iter()
            .filter(|(_, machine)| machine.is_member)
            .filter_map(|(name, machine)| Some((name.clone(), machine.node_key.clone()?)))
            .collect();
        let servers = pki::ApiServers::Known(servers);
        let options = ClientOptions {
            connect_timeout: ANSWER,
            request_timeout: ANSWER,
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..ClientOptions::default()
        };
        let endpoints = known.api(self.identity.cluster.spec.api_port);
        let mut failed: Option<SuccessionError> = None;
        for endpoint in endpoints.into_iter().take(MOST_SERVERS) {
            let one = [endpoint.clone()];
            let client = Client::of_machine(&one, uid, &authority, None, &servers, options)?;
            match client.version().await {
                Err(error) if error.is_foreign() => {}
                _ => continue,
            }
            let client = Client::unverified(&endpoint, options)?;
            let Ok(answer) = client.authority_successions().await else {
                continue;
            };
            let found = pki::accepted_successor(uid, &present, &answer.successions, &members);
            match found {
                Ok(certificate) => {
                    let hash = pki::fingerprint_of(certificate)?;
                    take_authority(&self.identity, &self.keys, &endpoint, &hash).await?;
                    return Ok(Some(endpoint));
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(None),
        }
    }
}
