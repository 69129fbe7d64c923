//! Connections to etcd as the leader's user and as the machine's own user.

use async_trait::async_trait;

use crate::cluster::{
    cluster_cache::ClusterCache,
    identity::MachineIdentity,
    keys::{KeysError, MachineKeys},
};
use kat_api::NodeUsers;
use kat_store::{
    EtcdOptions, EtcdStore, EtcdTls, StoreError, election::dismiss_candidates, etcd_admin,
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoresError {
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// etcd's URLs or keys can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Connects as the leader's user, which is etcd's superuser.
pub(crate) async fn leader(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> Result<EtcdStore, StoresError> {
    Ok(EtcdStore::connect(&options(identity, keys, known, "leader-etcd")?).await?)
}

/// Connects as this machine's user, which may read the machine's own list and the network.
pub(crate) async fn node(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> Result<EtcdStore, StoresError> {
    Ok(EtcdStore::connect(&options(identity, keys, known, "node-etcd")?).await?)
}

/// Manages the machines' users in etcd, one for each certificate name.
pub(crate) struct EtcdUsers(pub EtcdStore);

#[async_trait]
impl NodeUsers for EtcdUsers {
    async fn remove_reader(&self, node: &str) -> Result<(), StoreError> {
        etcd_admin::remove_node_reader(&self.0, node).await
    }

    async fn remove(&self, node: &str) -> Result<(), StoreError> {
        etcd_admin::remove_node_user(&self.0, node).await?;
        dismiss_candidates(&self.0).await
    }
}

/// The options of a connection to etcd with one of this machine's certificates.
pub(crate) fn options(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
    leaf: &str,
) -> Result<EtcdOptions, KeysError> {
    let options = at(keys, known.etcd(identity), leaf)?;
    Ok(EtcdOptions {
        prefer_first: identity.etcd,
        ..options
    })
}

/// The options of a connection to these etcd URLs with one of this machine's certificates.
pub(crate) fn at(
    keys: &MachineKeys,
    urls: Vec<String>,
    leaf: &str,
) -> Result<EtcdOptions, KeysError> {
    let client = keys.leaf(leaf)?;
    let tls = EtcdTls {
        authority: keys.etcd_authority()?,
        certificate: client.certificate_pem,
        key: client.key_pem,
    };
    Ok(EtcdOptions::new(urls, Some(tls)))
}
