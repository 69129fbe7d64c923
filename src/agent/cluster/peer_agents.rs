//! The leader's connections to the agents of other machines, at port `agentPort` of their overlay
//! addresses. They serve only reads and streams that a user requested.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{
    identity::MachineIdentity,
    keys::{KeysError, MachineKeys},
};
use crate::{cluster::cluster_cache::ClusterCacheReceiver, service::blocking::may_block};
use kat_client::{Client, ClientError, ClientOptions};
use kat_pki as pki;

/// Longest time to connect; a reachable machine connects sooner, also over a slow line.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest time to connect while a volume is copied: the line's buffers are full.
const PATIENT: Duration = Duration::from_secs(10);
/// Longest wait for the head of a response.
const ANSWER: Duration = Duration::from_secs(25);

/// Makes clients of other machines' agents. Keys are read from the disk for each client, since they
/// are renewed.
#[derive(Clone)]
pub(crate) struct PeerAgents {
    identity: Arc<MachineIdentity>,
    keys: MachineKeys,
    known: ClusterCacheReceiver,
}

impl PeerAgents {
    /// Calls use this machine's leader certificate, which only machines that hold etcd have.
    pub(crate) fn new(
        identity: &Arc<MachineIdentity>,
        keys: &MachineKeys,
        known: &ClusterCacheReceiver,
    ) -> Self {
        Self {
            identity: Arc::clone(identity),
            keys: keys.clone(),
            known: known.clone(),
        }
    }

    /// A client of one machine's agent; it is not connected yet.
    ///
    /// # Errors
    /// A sentence for users.
    pub(crate) async fn client(&self, node: &str) -> Result<Client, String> {
        let cannot = |reason: String| format!("the machine `{node}` can't be asked: {reason}");
        if !self.identity.etcd {
            return Err(cannot("this machine can't lead".to_owned()));
        }
        may_block(async { self.client_with(node, "leader", CONNECT) }).await
    }

    /// Like [`Self::client`], with this machine's own certificate, for copies of volumes from
    /// another machine.
    ///
    /// # Errors
    /// A sentence for users.
    pub(crate) async fn client_of_a_machine(&self, node: &str) -> Result<Client, String> {
        may_block(async { self.client_with(node, "node", PATIENT) }).await
    }

    fn client_with(&self, node: &str, leaf: &str, connect: Duration) -> Result<Client, String> {
        let cannot = |reason: String| format!("the machine `{node}` can't be asked: {reason}");
        let machines = self.known.borrow();
        let machine = machines.endpoints.machines.get(node);
        let overlay = machine.and_then(|machine| machine.overlay);
        let key_hash = machine.map(|machine| machine.node_key.clone());
        let machine = pki::tls::KnownMachine {
            name: node.to_owned(),
            key_hash: key_hash.filter(|hash| !hash.is_empty()),
        };
        drop(machines);
        let overlay = overlay.ok_or_else(|| cannot("its address is not known".to_owned()))?;
        let port = self.identity.cluster.spec.agent_port;
        let config = self
            .config(machine, leaf)
            .map_err(|error| cannot(error.to_string()))?;
        let options = ClientOptions {
            connect_timeout: connect,
            request_timeout: ANSWER,
            retry_for: Duration::ZERO,
            unreachable_for: Duration::ZERO,
            ..ClientOptions::default()
        };
        Client::of_agent(
            &SocketAddr::from((overlay, port)).to_string(),
            config,
            options,
        )
        .map_err(|error| cannot(error.to_string()))
    }

    fn config(
        &self,
        machine: pki::tls::KnownMachine,
        leaf: &str,
    ) -> Result<rustls::ClientConfig, KeysError> {
        let authority = self.keys.cluster_authority()?;
        let leader = pki::tls::CurrentIdentity::new(&self.keys.leaf(leaf)?, &authority)?;
        Ok(pki::tls::agent_client_config(&authority, leader, machine)?)
    }
}

/// The message for users about a machine that could not be reached.
pub(crate) fn away(node: &str, error: &ClientError) -> String {
    match error {
        ClientError::Unreachable { attempts } => {
            let reasons: Vec<&str> = attempts.iter().map(|(_, reason)| reason.as_str()).collect();
            format!(
                "the machine `{node}` can't be reached: {}",
                reasons.join("; ")
            )
        }
        error => format!("the machine `{node}` is not there any more: {error}"),
    }
}
