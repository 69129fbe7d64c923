//! The machine n5, which joins while the others run, through the real route with a real token and
//! request.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use axum::body::Body;
use hyper::{Request, header};
use jiff::Timestamp;
use serde_json::json;

use crate::load::secrets;
use kat_api::{JoiningState, NewToken, NodeUsers, new_token};
use kat_pki::{
    Authorities, Authority, AuthorityKind, CertificateRequest, create_request,
    recovery_key::RecoveryKey, store_recovery_key,
};
use kat_store::StoreError;
use kat_types::{
    api::Scope,
    store::{keys, transaction::WriteOperation},
};

/// The route of the join request, which carries a token and no certificate.
pub(crate) const JOIN: &str = "/v1alpha1/join";

/// Keys generated once for each run of the program. Nothing in a simulation depends on their bytes.
struct Secrets {
    authorities: Arc<Authorities>,
    token: NewToken,
    request: String,
}

static SECRETS: LazyLock<Secrets> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let recovery = RecoveryKey::generate().unwrap();
    store_recovery_key(folder.path(), &recovery).unwrap();
    for kind in [
        AuthorityKind::Cluster,
        AuthorityKind::EtcdClients,
        AuthorityKind::EtcdPeers,
    ] {
        let authority = Authority::generate(kind, "cluster", Timestamp::now()).unwrap();
        authority.store(folder.path(), &recovery).unwrap();
    }
    Secrets {
        authorities: Arc::new(Authorities::load(folder.path()).unwrap()),
        token: new_token(Scope::Join, "join", Timestamp::UNIX_EPOCH, None).unwrap(),
        request: create_request("node:n5").unwrap().0,
    }
});

/// There are no etcd users in the simulation.
struct NoUsers;

#[async_trait]
impl NodeUsers for NoUsers {
    async fn remove_reader(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }

    async fn remove(&self, _: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

pub(crate) fn joining() -> JoiningState {
    JoiningState {
        authorities: tokio::sync::watch::Sender::new(Arc::clone(&SECRETS.authorities)).subscribe(),
        users: Arc::new(NoUsers),
    }
}

/// Stores the join token.
pub(crate) fn token() -> WriteOperation {
    let token = &SECRETS.token;
    let record = serde_json::to_vec(&token.record).unwrap();
    WriteOperation::Put(keys::token(&token.id), record)
}

/// The hash of the key by which the cluster knows a machine.
pub(crate) fn identity_key(node: &str) -> String {
    match node {
        "n5" => {
            let request = CertificateRequest::parse(&SECRETS.request).unwrap();
            request.key_hash().to_owned()
        }
        _ => format!("key of {node}"),
    }
}

/// The join request of n5. It is the same each time, like the retries of a machine that got no
/// answer.
pub(crate) fn request() -> Request<Body> {
    let body = json!({
        "name": "n5",
        "certificateRequest": SECRETS.request,
        "wireguardKey": secrets::private_key("n5").public().to_string(),
        "endpoints": ["192.0.2.5:51820"],
        "advertise": ["192.0.2.5"],
        "architecture": "amd64",
        "stateStream": true,
        "noEtcd": true,
    });
    Request::post(JOIN)
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::AUTHORIZATION,
            format!("Bearer {}", SECRETS.token.token),
        )
        .body(Body::from(body.to_string()))
        .unwrap()
}
