//! Renews this machine's certificates before they expire, and puts them into use at once.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;

use jiff::Timestamp;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    identity::MachineIdentity,
    keys::{KeysError, MachineKeys},
};
use crate::{
    cluster::cluster_cache::ClusterCacheReceiver, desired_state::store_watch::FollowedStore,
    etcd::authorities::AuthorityUses,
};
use kat_client::{Client, ClientOptions};
use kat_host::files::{self, FileAccess};
use kat_pki as pki;
use kat_pki::AuthorityKind;
use kat_types::{
    api::{Connection, RenewalRequest},
    encoding::json,
    store::authorities::ClusterAuthority,
};

/// Interval between two checks of the certificates.
const INTERVAL: Duration = Duration::from_secs(3600);
/// The same on a machine that holds etcd: its certificate of the API lives so short that a step of
/// the clock, or a suspended machine, makes it expire between two checks. And on one that waits for a
/// certificate of a new authority.
const OFTEN: Duration = Duration::from_secs(60);
/// Largest connection file in bytes.
const ADMIN_LIMIT: u64 = 256 << 10;
/// Pause after a failed renewal.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Pause after a failed renewal while a certificate has expired, with which the machine can't
/// connect, or while others wait for this machine to take part in the replacement of the authority.
const WHEN_URGENT: Duration = Duration::from_secs(3);

/// Another machine has to change its issuer first.
#[derive(Debug, thiserror::Error)]
#[error("the leader does not issue by the new authority yet: this machine asks again")]
struct NotYet;

/// The certificates of this machine's servers, as they are in use.
#[derive(Clone)]
pub(crate) struct ServerCertificates {
    /// The authorities whose certificates this machine's servers accept.
    pub trust: Arc<pki::tls::CurrentTrust>,
    /// Of the agent's port.
    pub agent: Arc<pki::tls::CurrentIdentity>,
    /// Of the API's port. A machine without the store has none: its port forwards connections, and
    /// who takes it for a server of the API is to refuse it.
    pub api: Option<Arc<pki::tls::CurrentIdentity>>,
}

impl ServerCertificates {
    /// Reads them from the disk.
    pub(crate) fn read(identity: &MachineIdentity, keys: &MachineKeys) -> Result<Self, KeysError> {
        let authority = keys.cluster_authority()?;
        let current = |name| {
            Ok::<_, KeysError>(pki::tls::CurrentIdentity::new(
                &keys.leaf(name)?,
                &authority,
            )?)
        };
        Ok(Self {
            trust: pki::tls::CurrentTrust::new(&authority)?,
            agent: current("node")?,
            api: match identity.etcd {
                true => Some(current("api")?),
                false => None,
            },
        })
    }

    /// Puts renewed ones into use, and the authorities that are trusted now.
    fn replace(&self, keys: &MachineKeys) -> Result<(), KeysError> {
        let authority = keys.cluster_authority()?;
        self.trust.replace(&authority)?;
        self.agent.replace(&keys.leaf("node")?, &authority)?;
        if let Some(api) = &self.api {
            api.replace(&keys.leaf("api")?, &authority)?;
        }
        Ok(())
    }

    /// What the API's port presents.
    pub(crate) fn of_api(&self) -> &Arc<pki::tls::CurrentIdentity> {
        self.api.as_ref().unwrap_or(&self.agent)
    }
}

/// Keeps this machine's certificates valid.
pub(crate) struct CertificateRenewal {
    pub identity: Arc<MachineIdentity>,
    pub keys: MachineKeys,
    /// The certificates that this machine's servers present.
    pub certificates: ServerCertificates,
    /// The connection to etcd.
    pub store: FollowedStore,
    pub known: ClusterCacheReceiver,
    /// Somebody else has changed certificates or authorities: they are put into use.
    pub changed: Arc<Notify>,
    /// Shows how this machine uses the cluster's authority, where it does not hold etcd.
    pub uses: AuthorityUses,
    /// The administrator's connection file.
    pub admin_connection: PathBuf,
}

impl CertificateRenewal {
    /// Checks the certificates at once and every hour, until `cancel`.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        self.show_uses();
        let mut unused = false;
        let mut said = String::new();
        let mut known = self.known.clone();
        self.keep_admin_connection();
        loop {
            let before = known.borrow_and_update().authority.clone();
            let pause = match self.renew().await {
                Ok(false) if !unused => self.interval(),
                Ok(_) => {
                    let used = self.apply().await;
                    unused = used.is_err();
                    match used {
                        Ok(()) => self.interval(),
                        Err(error) => {
                            tracing::error!("renewed certificates can't be used yet: {error:#}");
                            AFTER_FAILURE
                        }
                    }
                }
                Err(error) => {
                    // What was done before the failure is put into use with the next success.
                    unused = true;
                    let expired = self.keys.machine_expired(Timestamp::now());
                    let urgent = expired || self.known.borrow().authority.replacement.is_some();
                    let news = format!("certificates can't be renewed: {error:#}");
                    if error.is::<NotYet>() {
                        tracing::info!("{error}");
                    } else if news != said {
                        tracing::error!(expired, "{news}");
                        said = news;
                    }
                    match urgent {
                        true => WHEN_URGENT,
                        false => AFTER_FAILURE,
                    }
                }
            };
            let due = async {
                tokio::select! {
                    () = sleep(pause) => false,
                    () = self.others_due(&mut known, &before) => false,
                    () = self.changed.notified() => true,
                }
            };
            match cancel.run_until_cancelled(due).await {
                None => return,
                Some(changed) => unused |= changed,
            }
        }
    }

    fn interval(&self) -> Duration {
        let often = self.identity.etcd || self.keys.holds_next().unwrap_or(true);
        match often {
            true => OFTEN,
            false => INTERVAL,
        }
    }

    /// Ends when a change of the cluster has this machine's certificate of the API lack a name, or
    /// replaces the authority by which this machine's certificate is issued.
    async fn others_due(&self, known: &mut ClusterCacheReceiver, before: &ClusterAuthority) {
        while known.changed().await.is_ok() {
            let now = known.borrow_and_update().clone();
            let due = match self.identity.etcd {
                true => self.keys.lacks_api_name(&self.identity, &now),
                false => now.authority != *before,
            };
            if due {
                return;
            }
        }
        std::future::pending().await
    }

    /// Renews what is due; true when something was renewed.
    async fn renew(&self) -> anyhow::Result<bool> {
        let now = Timestamp::now();
        if self.identity.etcd {
            let known = self.known.borrow().clone();
            let renewed = self.keys.renew(&self.identity, &known, now)?;
            if !renewed.is_empty() {
                tracing::info!(?renewed, "certificates were renewed");
            }
            return Ok(!renewed.is_empty());
        }
        let known = self.known.borrow().clone();
        let uid = &self.identity.cluster_uid;
        let followed = self.keys.follow_cluster_authority(&known.authority, uid)?;
        let trusts = followed
            || !self
                .certificates
                .trust
                .is_of(&self.keys.cluster_authority()?);
        if followed {
            tracing::info!("the authorities that this machine trusts have changed");
        }
        let to_change = self.keys.is_to_change_issuer(&known.authority)?;
        // A machine that was cut off does not hear when the new authority begins to sign: it asks.
        let (due, waits) = (self.keys.machine_due(now), self.keys.holds_next()?);
        if !waits && !due {
            return Ok(trusts);
        }
        if trusts {
            // Before anything else can fail: others wait for it.
            self.certificates.replace(&self.keys)?;
            self.show_uses();
        }
        // The request is made without a client certificate, since that may have expired: it proves
        // possession of the machine's key by its signature.
        let client = Client::of_machine(
            &known.api(self.identity.cluster.spec.api_port),
            &self.identity.cluster_uid,
            &self.keys.cluster_authority()?,
            None,
            &pki::ApiServers::KnownOnly(known.servers()),
            ClientOptions::default(),
        )?;
        let request = RenewalRequest {
            certificate_request: self.keys.machine_request(&self.identity.node)?,
            state_stream: true,
        };
        let signed = client
            .renew_certificates(&self.identity.node, &request)
            .await?;
        let signer = pki::fingerprint_of(&signed.cluster_authority)?;
        let same = self.keys.is_present_authority(&signer)?;
        if same && to_change {
            return Err(NotYet.into());
        }
        if same && !due {
            return Ok(trusts);
        }
        self.keys.store_machine(&signed)?;
        tracing::info!("certificates were renewed by the leader");
        Ok(true)
    }

    fn show_uses(&self) {
        if self.identity.etcd {
            return;
        }
        match self.keys.authority_report(AuthorityKind::Cluster) {
            Ok(mut report) => {
                report.accepted = self.certificates.trust.fingerprints();
                self.uses.show(vec![report]);
            }
            Err(error) => tracing::error!("this machine's certificate can't be read: {error:#}"),
        }
    }

    async fn apply(&self) -> anyhow::Result<()> {
        let (identity, keys) = (&self.identity, &self.keys);
        let known = self.known.borrow().clone();
        self.certificates.replace(keys)?;
        self.show_uses();
        self.keep_admin_connection();
        self.store.reconnect(identity, keys, &known).await
    }

    /// A connection file that can't be read or written stops nothing else.
    fn keep_admin_connection(&self) {
        let kept = self.keys.cluster_authority().map_err(Into::into);
        let kept = kept.and_then(|authorities| {
            let uid = &self.identity.cluster_uid;
            keep_admin_authorities(&self.admin_connection, uid, &authorities)
        });
        if let Err(error) = kept {
            tracing::error!("the administrator's connection file is not up to date: {error:#}");
        }
    }
}

/// Keeps the authorities that this machine trusts in the administrator's connection file, where the
/// machine has one.
fn keep_admin_authorities(path: &Path, uid: &str, authorities: &str) -> anyhow::Result<()> {
    let text = match files::read_text(path, ADMIN_LIMIT) {
        Err(error) if error.is_not_found() => return Ok(()),
        read => read?,
    };
    let mut connection: Connection =
        serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let same = pki::tls::same_certificates(&connection.ca, authorities);
    if same || connection.cluster_uid != uid {
        return Ok(());
    }
    authorities.clone_into(&mut connection.ca);
    let text = json::pretty(&path.display().to_string(), &connection)?;
    files::write_atomic(path, &text, FileAccess::mode(0o600))?;
    Ok(())
}
