//! What runs only on machines that hold etcd: the store, and the candidate for leadership.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{host_files, identity::Identity, keys::Keys, paths, stores};
use crate::{
    api::Joining,
    host::users::Users,
    leader::{self, LeaderConfig, LeaderHandle},
    pki,
    pulse::Pulses,
    store::EtcdStore,
    systemd::{JobResult, UnitManager},
};

/// Time to live of a leadership without a renewal.
const LEASE: Duration = Duration::from_secs(5);
/// Longest start of etcd.
const ETCD_LIMIT: Duration = Duration::from_secs(90);

/// What a machine has that holds etcd.
pub struct Member {
    /// The store, as the leader's user.
    pub store: EtcdStore,
    /// What it shows, and whether it leads.
    pub handle: LeaderHandle,
    /// What lets other machines join.
    pub joining: Joining,
}

impl Member {
    /// Starts etcd, and campaigns.
    pub async fn start(
        identity: &Arc<Identity>,
        keys: &Keys,
        system: &dyn UnitManager,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
        pulses: &Pulses,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let renewed = keys.renew(identity, Timestamp::now())?;
        if !renewed.is_empty() {
            tracing::info!(?renewed, "certificates were renewed");
        }
        let started = system.start(host_files::ETCD, ETCD_LIMIT).await;
        if !matches!(started, Ok(JobResult::Done)) {
            tracing::error!(
                ?started,
                "etcd did not start; workloads run on, nothing can be changed"
            );
        }
        let store = stores::leader(identity, keys).await?;
        let address = identity.advertise.first();
        let address = address.context("the machine has no address")?;
        let handle = leader::start(
            Arc::new(store.clone()),
            LeaderConfig {
                candidate: identity.node.clone(),
                lease: LEASE,
                endpoint: SocketAddr::new(*address, identity.cluster.spec.api_port).to_string(),
                clock,
                pulses: pulses.clone(),
            },
            cancel.clone(),
        );
        let joining = Joining {
            authorities: Arc::new(pki::Authorities::load(Path::new(paths::PKI))?),
            users: Arc::new(store.clone()),
        };
        Ok(Self {
            store,
            handle,
            joining,
        })
    }
}

/// The group of etcd's user, on a machine that holds etcd.
pub fn etcd_group(identity: &Identity) -> anyhow::Result<Option<u32>> {
    let accounts = Users::new().accounts()?;
    let group = accounts.group(crate::render::ETCD_USER);
    Ok(group.filter(|_| identity.etcd).map(|group| group.gid))
}
