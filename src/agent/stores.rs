//! Connections to etcd, as the leader's user and as the machine's own.

use super::{
    identity::Identity,
    keys::{Keys, KeysError},
};
use crate::store::{EtcdOptions, EtcdStore, EtcdTls, StoreError};

/// What could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum StoresError {
    /// Keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// etcd's address or keys can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// As the leader's user, which is etcd's superuser.
pub async fn leader(identity: &Identity, keys: &Keys) -> Result<EtcdStore, StoresError> {
    Ok(EtcdStore::connect(&options(identity, keys, "leader-etcd")?).await?)
}

/// As this machine's user, which reads its own list and the network.
pub async fn node(identity: &Identity, keys: &Keys) -> Result<EtcdStore, StoresError> {
    Ok(EtcdStore::connect(&options(identity, keys, "node-etcd")?).await?)
}

/// How this machine reaches etcd with one of its leaves.
pub fn options(identity: &Identity, keys: &Keys, leaf: &str) -> Result<EtcdOptions, KeysError> {
    let client = keys.leaf(leaf)?;
    let tls = EtcdTls {
        authority: keys.etcd_authority()?,
        certificate: client.certificate_pem,
        key: client.key_pem,
    };
    let endpoint = format!(
        "https://127.0.0.1:{}",
        identity.cluster.spec.etcd_client_port
    );
    Ok(EtcdOptions::new(vec![endpoint], Some(tls)))
}
