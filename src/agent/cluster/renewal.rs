//! Renews this machine's certificates before they expire, and puts them into use at once.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{identity::MachineIdentity, keys::MachineKeys};
use crate::{
    cluster::cluster_cache::ClusterCacheReceiver, desired_state::store_watch::FollowedStore,
    etcd::authorities::AuthorityUses,
};
use kat_client::{Client, ClientOptions};
use kat_pki as pki;
use kat_pki::AuthorityKind;
use kat_types::api::{Connection, RenewalRequest};

/// Interval between two checks of the certificates.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Pause after a failed renewal.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Pause after a failed renewal while a certificate has expired: the machine can't connect with it.
const WHILE_EXPIRED: Duration = Duration::from_secs(3);

/// Keeps this machine's certificates valid.
pub(crate) struct CertificateRenewal {
    pub identity: Arc<MachineIdentity>,
    pub keys: MachineKeys,
    /// The certificate that this machine's API presents.
    pub certificate: Arc<pki::tls::CurrentIdentity>,
    /// The connection to etcd.
    pub store: FollowedStore,
    pub known: ClusterCacheReceiver,
    /// Somebody else has changed certificates or authorities: they are put into use.
    pub changed: Arc<Notify>,
    /// Shows when the certificates expire, on a machine that does not hold etcd.
    pub uses: AuthorityUses,
}

impl CertificateRenewal {
    /// Checks the certificates at once and every hour, until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        self.show_uses();
        let mut unused = false;
        let mut said = String::new();
        loop {
            let pause = match self.renew().await {
                Ok(false) if !unused => INTERVAL,
                Ok(_) => {
                    let used = self.apply().await;
                    unused = used.is_err();
                    match used {
                        Ok(()) => INTERVAL,
                        Err(error) => {
                            tracing::error!("renewed certificates can't be used yet: {error:#}");
                            AFTER_FAILURE
                        }
                    }
                }
                Err(error) => {
                    let expired = self.keys.machine_expired(Timestamp::now());
                    let news = format!("certificates can't be renewed: {error:#}");
                    if news != said {
                        tracing::error!(expired, "{news}");
                        said = news;
                    }
                    if expired {
                        WHILE_EXPIRED
                    } else {
                        AFTER_FAILURE
                    }
                }
            };
            let wait = tokio::time::timeout(pause, self.changed.notified());
            match cancel.run_until_cancelled(wait).await {
                None => return,
                Some(changed) => unused |= changed.is_ok(),
            }
        }
    }

    /// Renews what is due; true when something was renewed.
    async fn renew(&self) -> anyhow::Result<bool> {
        let now = Timestamp::now();
        if self.identity.etcd {
            let renewed = self.keys.renew(&self.identity, now)?;
            if !renewed.is_empty() {
                tracing::info!(?renewed, "certificates were renewed");
            }
            return Ok(!renewed.is_empty());
        }
        if !self.keys.machine_due(now) {
            return Ok(false);
        }
        // The request is made without a client certificate, since that may have expired: it proves
        // possession of the machine's key by its signature.
        let connection = Connection {
            cluster: self.identity.cluster.metadata.name.clone(),
            cluster_uid: self.identity.cluster_uid.clone(),
            endpoints: self.known.borrow().api(self.identity.cluster.spec.api_port),
            ca: self.keys.cluster_authority()?,
            token: String::new(),
            namespace: None,
        };
        let client = Client::from_connection(&connection, ClientOptions::default())?;
        let request = RenewalRequest {
            certificate_request: self.keys.machine_request(&self.identity.node)?,
            state_stream: true,
        };
        let signed = client
            .renew_certificates(&self.identity.node, &request)
            .await?;
        self.keys.store_machine(&signed)?;
        tracing::info!("certificates were renewed by the leader");
        Ok(true)
    }

    fn show_uses(&self) {
        if self.identity.etcd {
            return;
        }
        match self.keys.authority_report(AuthorityKind::Cluster) {
            Ok(report) => self.uses.show(vec![report]),
            Err(error) => tracing::error!("this machine's certificate can't be read: {error:#}"),
        }
    }

    async fn apply(&self) -> anyhow::Result<()> {
        self.show_uses();
        let (identity, keys) = (&self.identity, &self.keys);
        let known = self.known.borrow().clone();
        self.certificate.replace(&keys.leaf("node")?)?;
        self.store.reconnect(identity, keys, &known).await
    }
}
