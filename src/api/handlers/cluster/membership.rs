//! Hands the authorities' keys to a machine that becomes a member of etcd.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Extension, Json, extract::State};

use crate::{
    access::authentication::Caller, context::Api, errors::ApiError, extract::PathParameters,
};
use kat_pki::{Authority, RecoveryKeys, recovery_key::RecoveryKey};
use kat_types::{
    api::{AuthorityKeys, MembershipAnswer},
    store::authorities::AuthorityRecord,
};

/// The gate has checked that the certificate is for the registered key of the machine in the path,
/// and this checks it again: no other response is as valuable. The machine must be among the
/// members that the leader has stored, and must not be leaving.
pub(crate) async fn get(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<String>,
) -> Result<Json<MembershipAnswer>, ApiError> {
    api.leadership()?;
    let joining = api.joining()?;
    let held = joining.authorities();
    let authorities = held.all().ok_or_else(|| {
        ApiError::Unavailable("this machine does not hold the cluster's authorities".to_owned())
    })?;
    let snapshot = api.snapshot()?;
    let node = snapshot
        .nodes
        .get(&name)
        .ok_or_else(|| ApiError::not_found("node", &name))?;
    let known = &node.registration.value.identity_key;
    let proved = matches!(&caller, Caller::Node(machine) if machine.key_hash == *known);
    if known.is_empty() || !proved {
        return Err(ApiError::Unauthorized(format!(
            "the key is not the one by which the cluster knows `{name}`"
        )));
    }
    let members = snapshot.members.as_ref();
    let chosen = members.is_some_and(|members| members.value.holds_store(&name));
    if !chosen || node.registration.value.deleting || node.registration.value.no_etcd {
        return Err(ApiError::conflict(
            format!("machine `{name}` is not one of those that hold the cluster's store"),
            "the leader chooses them",
        ));
    }
    // A machine that prepares may be left out again at once. The records have to name it before, so
    // that the keys are replaced then.
    let is_recorded = |record: &AuthorityRecord| {
        let rotation = record.rotation.as_ref();
        let holders = rotation.map_or(&record.holders, |rotation| &rotation.holders);
        holders.contains_key(&name)
    };
    let prepares = !members.is_some_and(|members| members.value.members.contains_key(&name));
    let mut records = snapshot.authorities.values();
    if prepares && !records.all(|record| is_recorded(&record.value)) {
        return Err(ApiError::Unavailable(format!(
            "it is not recorded yet that machine `{name}` holds the authorities' keys"
        )));
    }
    tracing::info!(node = name, "the authorities' keys are handed over");
    let with_key = |authority: &Authority| {
        let keys = AuthorityKeys {
            certificate: authority.certificate_pem().to_owned(),
            key: authority.key_pem(),
        };
        (authority.kind().name().to_owned(), keys)
    };
    let recovery = held.recovery_keys();
    let others = recovery.map_or(&[][..], RecoveryKeys::others);
    Ok(Json(MembershipAnswer {
        authorities: BTreeMap::from(authorities.map(with_key)),
        next: held.next().iter().map(with_key).collect(),
        recovery_key: recovery.map_or_else(String::new, |keys| keys.current().reveal()),
        other_recovery_keys: others.iter().map(RecoveryKey::reveal).collect(),
    }))
}
