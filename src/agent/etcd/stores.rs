//! Connections to etcd, as the leader's user and as the machine's own.

use async_trait::async_trait;

use crate::cluster::{
    cluster_cache::Known,
    identity::Identity,
    keys::{Keys, KeysError},
};
use kat_api::NodeUsers;
use kat_store::{EtcdOptions, EtcdStore, EtcdTls, StoreError, etcd_admin};

/// What could not be connected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoresError {
    /// Keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// etcd's address or keys can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// As the leader's user, which is etcd's superuser.
pub(crate) async fn leader(
    identity: &Identity,
    keys: &Keys,
    known: &Known,
) -> Result<EtcdStore, StoresError> {
    Ok(EtcdStore::connect(&options(identity, keys, known, "leader-etcd")?).await?)
}

/// As this machine's user, which reads its own list and the network.
pub(crate) async fn node(
    identity: &Identity,
    keys: &Keys,
    known: &Known,
) -> Result<EtcdStore, StoresError> {
    Ok(EtcdStore::connect(&options(identity, keys, known, "node-etcd")?).await?)
}

/// The machines' users are etcd's, one for each certificate's name.
pub(crate) struct EtcdUsers(pub EtcdStore);

#[async_trait]
impl NodeUsers for EtcdUsers {
    async fn admit(&self, node: &str) -> Result<(), StoreError> {
        etcd_admin::add_node_user(&self.0, node).await
    }

    async fn remove(&self, node: &str) -> Result<(), StoreError> {
        etcd_admin::remove_node_user(&self.0, node).await
    }
}

/// How this machine reaches etcd with one of its leaves.
pub(crate) fn options(
    identity: &Identity,
    keys: &Keys,
    known: &Known,
    leaf: &str,
) -> Result<EtcdOptions, KeysError> {
    let options = at(keys, known.etcd(identity), leaf)?;
    Ok(EtcdOptions {
        prefer_first: identity.etcd,
        ..options
    })
}

/// How etcd is reached at these URLs with one of this machine's leaves.
pub(crate) fn at(keys: &Keys, urls: Vec<String>, leaf: &str) -> Result<EtcdOptions, KeysError> {
    let client = keys.leaf(leaf)?;
    let tls = EtcdTls {
        authority: keys.etcd_authority()?,
        certificate: client.certificate_pem,
        key: client.key_pem,
    };
    Ok(EtcdOptions::new(urls, Some(tls)))
}
