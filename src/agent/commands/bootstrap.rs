//! The first keys of a cluster in the store, written once by `kat-agent init`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::cluster::identity::MachineIdentity;
use kat_api::random_uid;
use kat_plan::Applicant;
use kat_store::{StateStore, StoreError, TransactionResult};
use kat_types::{
    api::MemberKeys,
    encoding::json,
    store::{
        authorities::{AuthorityKind, AuthorityRecord, ClusterAuthority, ReplaceableKey},
        keys,
        records::{NamespaceRecord, TokenRecord},
        transaction::{Compare, WriteOperation},
    },
};

/// The values that init writes into the store.
pub(crate) struct InitialStoreValues<'a> {
    /// The first machine.
    pub identity: &'a MachineIdentity,
    /// The machine's public WireGuard key, base64.
    pub public_key: &'a str,
    /// `host:port` of the machine's WireGuard.
    pub endpoints: Vec<String>,
    /// SHA-256 of the machine's public key.
    pub identity_key: String,
    /// Hashes of the keys of its certificates as a machine that holds etcd.
    pub member_keys: MemberKeys,
    /// Such as `amd64` or `arm64`.
    pub architecture: String,
    /// SHA-256 of the authorities' certificates, and the fingerprint of the recovery key.
    pub authorities: BTreeMap<ReplaceableKey, String>,
    /// Id and record of the administrator's token.
    pub token: (String, TokenRecord),
}

/// Writes all first keys in one transaction if the store is empty; false when it is not.
pub(crate) async fn write(
    store: &dyn StateStore,
    beginnings: &InitialStoreValues<'_>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let identity = beginnings.identity;
    let mut operations = vec![
        WriteOperation::Put(keys::SCHEMA_VERSION.to_owned(), b"v1.0".to_vec()),
        WriteOperation::Put(
            keys::CLUSTER_UID.to_owned(),
            identity.cluster_uid.clone().into_bytes(),
        ),
        put(keys::CLUSTER.to_owned(), &identity.cluster)?,
        WriteOperation::Put(
            keys::OVERLAY_CIDR.to_owned(),
            identity.cluster.spec.cluster_cidr.to_string().into_bytes(),
        ),
        put(keys::token(&beginnings.token.0), &beginnings.token.1)?,
    ];
    let first = Applicant {
        name: identity.node.clone(),
        identity_key: beginnings.identity_key.clone(),
        signed: true,
        member_keys: beginnings.member_keys.clone(),
        public_key: beginnings.public_key.to_owned(),
        endpoints: beginnings.endpoints.clone(),
        advertise: identity.advertise.clone(),
        reach: identity.reached.published_reach(),
        architecture: beginnings.architecture.clone(),
        etcd: identity.etcd,
        no_etcd: false,
        etcd_peer: false,
    };
    let keys = first.first_keys(&identity.node_uid, identity.subnet, now);
    operations.extend(keys.map_err(|error| StoreError::Invalid(error.to_string()))?);
    for name in ["default", "kat-core"] {
        let record = NamespaceRecord {
            schema: 1,
            uid: random_uid(),
            labels: BTreeMap::new(),
            created: now,
            deleting: false,
            quota: Default::default(),
            access: Default::default(),
            ingress_hosts: None,
            defaults: Default::default(),
        };
        operations.push(put(keys::namespace(name), &record)?);
    }
    for (kind, hash) in &beginnings.authorities {
        let record = AuthorityRecord {
            schema: 1,
            current: hash.clone(),
            since: Some(now),
            holders: BTreeMap::from([(identity.node.clone(), identity.node_uid.clone())]),
            ..AuthorityRecord::default()
        };
        operations.push(put(keys::authority(kind.name()), &record)?);
        if *kind == AuthorityKind::Cluster.into() {
            let published = ClusterAuthority::of(&record);
            operations.push(put(keys::CLUSTER_AUTHORITY.to_owned(), &published)?);
        }
    }
    let empty = Compare::ModRevision(keys::SCHEMA_VERSION.to_owned(), 0);
    Ok(matches!(
        store.transact(&[empty], &operations).await?,
        TransactionResult::Yes(_)
    ))
}

fn put<T: serde::Serialize>(key: String, value: &T) -> Result<WriteOperation, StoreError> {
    match json::bytes(&key, value) {
        Ok(value) => Ok(WriteOperation::Put(key, value)),
        Err(error) => Err(StoreError::Invalid(error.to_string())),
    }
}
