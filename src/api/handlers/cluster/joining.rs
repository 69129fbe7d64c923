//! Joining machines (RFC001-KAT 4.1.2, 10.6), and renewal of machines' certificates.
//!
//! All checks come first, and nothing is written for a refused request. A machine that joins gets
//! neither a user nor a certificate of etcd, since it reads the state stream. Only the certificates
//! of machines that joined with version 0.1.0 are renewed for etcd, until they ask without.

use std::{net::IpAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Extension, Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::sync::watch;

use crate::{
    access::authentication::Caller,
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::{PathParameters, read_json},
    server::limits::MAX_JSON,
};
use kat_pki as pki;
use kat_pki::{Authorities, CertificateRequest, MachineCertificates, PkiError};
use kat_plan::{
    Admission, Applicant, NotAdmitted, Snapshot, cluster_endpoints, is_migrating, may_lose_member,
    member_troubles,
};
use kat_store::StoreError;
use kat_types::{
    api::{Certificates, JoinAnswer, JoinPeer, JoinRequest, NodePhase, RenewalRequest},
    machine::network::node_address,
    resource::ClusterSpec,
    store::{
        authorities::AuthorityKind, keys, records::NodeStatusRecord, snapshot::NodeEntry,
        transaction::Compare,
    },
};

/// Maximum number of addresses, and of endpoints, of one machine.
pub(crate) const MAX_ADDRESSES: usize = 16;
/// Longest wait for a leaving machine to be removed.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The same for a machine that holds etcd, until its member is removed.
const MEMBER_GONE_WITHIN: Duration = Duration::from_secs(15);
/// Maximum length of a host name (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;
/// Maximum length of `host:port`.
const MAX_ENDPOINT: usize = 260;

/// State for joining machines.
#[derive(Clone)]
pub struct JoiningState {
    /// Authorities that sign the machine's certificates.
    pub authorities: watch::Receiver<Arc<Authorities>>,
    /// Users of etcd for machines.
    pub users: Arc<dyn NodeUsers>,
}

impl JoiningState {
    /// The authorities that sign now.
    pub(crate) fn authorities(&self) -> Arc<Authorities> {
        Arc::clone(&self.authorities.borrow())
    }
}

/// The machines' users of etcd.
#[async_trait]
pub trait NodeUsers: Send + Sync {
    /// Removes the user with which a machine of version 0.1.0 reads its own list; a machine that may
    /// lead still may. No error if it does not exist.
    ///
    /// # Errors
    /// Errors of the store.
    async fn remove_reader(&self, node: &str) -> Result<(), StoreError>;

    /// Removes every user of a machine. No error if there is none.
    ///
    /// # Errors
    /// Errors of the store.
    async fn remove(&self, node: &str) -> Result<(), StoreError>;
}

/// Admits a machine. The gate has checked that the token is a valid join token.
pub(crate) async fn join(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    api.leadership()?;
    let joining = api.joining()?;
    let Caller::Token { id: token, .. } = &caller else {
        return Err(ApiError::Internal("the caller has no token".to_owned()));
    };
    let request: JoinRequest = read_json(&api, request, MAX_JSON).await?;
    if !request.state_stream {
        return Err(ApiError::conflict(
            "the machine has KAT 0.1.0, which needs rights in etcd that this cluster gives to no machine".to_owned(),
            "upgrade KAT on the machine, and join again",
        ));
    }
    let snapshot = api.snapshot()?;
    let applicant = applicant(&request, &snapshot.cluster.spec)?;
    let uid = (api.config.new_uid)();
    decide(&applicant, &snapshot, token, &uid, &api)?;
    joining.users.remove_reader(&applicant.name).await?;
    let (admission, _) = api
        .write(|snapshot| {
            let admission = decide(&applicant, snapshot, token, &uid, &api)?;
            Ok(WriteDecision::Write {
                conditions: admission.conditions.clone(),
                operations: admission.operations.clone(),
                outcome: admission,
            })
        })
        .await?;
    tracing::info!(node = applicant.name, known = admission.known, %caller, "a machine joined");
    let snapshot = api.snapshot()?;
    let certificates = sign(
        &api,
        &snapshot,
        &request.certificate_request,
        &applicant.name,
        &admission,
    )?;
    let status = if admission.known {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let certificates = wire(certificates, true);
    let answer = answer(&snapshot, &applicant.name, &admission, certificates);
    Ok((status, Json(answer)).into_response())
}

/// Renews the certificates of a machine for its known key. The request itself proves that key, and
/// the response is of use only to the key's owner.
pub(crate) async fn renew(
    State(api): State<Arc<Api>>,
    PathParameters(name): PathParameters<String>,
    request: Request,
) -> Result<Json<Certificates>, ApiError> {
    let joining = api.joining()?;
    let request: RenewalRequest = read_json(&api, request, MAX_JSON).await?;
    let proof = CertificateRequest::parse(&request.certificate_request).map_err(not_signed)?;
    let snapshot = api.snapshot()?;
    let known = snapshot
        .nodes
        .get(&name)
        .filter(|node| node.registration.value.identity_key == proof.key_hash());
    let state_stream = known.is_some_and(|node| {
        let registration = &node.registration.value;
        registration.state_stream || registration.migration_ended
    });
    // The new authority of etcd's clients signs for no machine that reads the state stream, and
    // after the migration every machine does.
    let state_stream = state_stream || !is_migrating(&snapshot);
    let subnet = known.and_then(|node| node.subnet).ok_or_else(|| {
        ApiError::Unauthorized(format!(
            "the key is not the one by which the cluster knows `{name}`"
        ))
    })?;
    let signed = joining.authorities().sign_machine(
        &request.certificate_request,
        &name,
        earlier_cluster_uid(&snapshot),
        node_address(subnet),
        api.now(),
    );
    let signed = signed.map_err(not_signed)?;
    Ok(Json(wire(signed, state_stream || request.state_stream)))
}

/// Removes a machine from the cluster. Its etcd user is removed first, so that a machine that is
/// being deleted can read nothing any more; the plan removes what was stored for it. The answer
/// waits for the removal of its member of etcd.
pub(crate) async fn leave(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<String>,
) -> Result<StatusCode, ApiError> {
    api.leadership()?;
    let joining = api.joining()?;
    may_leave(&api, &*api.snapshot()?, &caller, &name)?;
    joining.users.remove(&name).await?;
    let member = member_of(&*api.snapshot()?, &name);
    api.write(|snapshot| {
        let node = may_leave(&api, snapshot, &caller, &name)?;
        let key = keys::registration(&name);
        let mut registration = node.registration.value.clone();
        registration.deleting = true;
        Ok(WriteDecision::Write {
            conditions: vec![Compare::ModRevision(
                key.clone(),
                node.registration.revision,
            )],
            operations: vec![put(key, &registration)?],
            outcome: (),
        })
    })
    .await?;
    let mut snapshots = api.config.handle.snapshot.clone();
    let gone = snapshots.wait_for(|snapshot| {
        snapshot.as_ref().is_some_and(|snapshot| {
            !snapshot.nodes.contains_key(&name) && !has_member(snapshot, member.as_deref())
        })
    });
    let limit = match &member {
        Some(_) => MEMBER_GONE_WITHIN,
        None => GONE_WITHIN,
    };
    if tokio::time::timeout(limit, gone).await.is_err() {
        tracing::warn!(
            node = name,
            "a machine is to go but is still shown, or its etcd is still a member"
        );
    }
    api.config.handle.reports.forget(&name);
    Ok(StatusCode::NO_CONTENT)
}

/// The id of a machine's member of etcd.
fn member_of(snapshot: &Snapshot, name: &str) -> Option<String> {
    let members = &snapshot.members.as_ref()?.value;
    members.members.get(name).map(|member| member.id.clone())
}

/// Whether a member with this id is still listed, under its machine or as one whose machine has left.
fn has_member(snapshot: &Snapshot, id: Option<&str>) -> bool {
    let Some((members, id)) = snapshot.members.as_ref().zip(id) else {
        return false;
    };
    let members = &members.value;
    members.left.iter().any(|left| left == id)
        || members.members.values().any(|member| member.id == id)
}

fn may_leave<'a>(
    api: &Api,
    snapshot: &'a Snapshot,
    caller: &Caller,
    name: &str,
) -> Result<&'a NodeEntry, ApiError> {
    let node = snapshot
        .nodes
        .get(name)
        .ok_or_else(|| ApiError::not_found("node", name))?;
    if name == api.config.node_name {
        return Err(ApiError::conflict(
            format!("machine `{name}` leads the cluster"),
            "`sudo kat-agent reset` on it takes it out, where other machines hold the cluster's store too; else it ends the cluster",
        ));
    }
    if node.registration.value.etcd && !may_lose_member(snapshot, name) {
        return Err(ApiError::conflict(
            too_few_members(name, &member_troubles(snapshot, name)),
            "more than half of the machines that hold the store must be Ready without it, and their etcd must answer; `katcall status` shows them",
        ));
    }
    let status = node.status.as_ref().map(|stored| &stored.value);
    let ready = status.is_some_and(|status| status.phase == NodePhase::Ready);
    let instances = snapshot.instances.values();
    let running = instances.filter(|entry| entry.node == name).count();
    let itself = matches!(caller, Caller::Node(_));
    if ready && running > 0 && !itself {
        let observed = api.observed();
        let age = observed
            .reports
            .get(name)
            .map(|reported| reported.age.as_secs());
        let timeout = u64::from(snapshot.cluster.spec.node_loss_timeout_seconds);
        let is_unheard = status.is_some_and(NodeStatusRecord::is_unheard);
        return Err(ApiError::conflict(
            format!("{}{}", still_has(name, is_unheard, running), heard(age)),
            &format!(
                "if it runs, `sudo kat-agent reset` on it moves its instances and takes it out; if it is off, `katcall delete node {name}` works once it counts as lost, {}",
                judged_in(age, timeout)
            ),
        ));
    }
    Ok(node)
}

fn too_few_members(name: &str, troubles: &[String]) -> String {
    let message = format!(
        "machine `{name}` holds the cluster's store, and too few other machines that hold it are well"
    );
    match troubles {
        [] => message,
        troubles => format!("{message}: {}", troubles.join(", ")),
    }
}

fn counted(instances: usize) -> String {
    match instances {
        1 => "1 instance".to_owned(),
        count => format!("{count} instances"),
    }
}

/// A machine that a store has not heard since it was begun anew is shown NotReady, and may run what it
/// ran.
fn still_has(name: &str, is_unheard: bool, instances: usize) -> String {
    let state = if is_unheard {
        "may run"
    } else {
        "is Ready and has"
    };
    format!("machine `{name}` {state} {}", counted(instances))
}

/// When a machine spoke last. `age` is in seconds; `None` where the present leader has not heard it.
fn heard(age: Option<u64>) -> String {
    age.map_or_else(
        || "; it has not reported to the present leader".to_owned(),
        |age| format!("; its last report came {age} s ago"),
    )
}

/// When a silent machine counts as lost.
fn judged_in(age: Option<u64>, timeout: u64) -> String {
    match age.map(|age| timeout.saturating_sub(age)) {
        Some(left @ 1..) => format!("in some {left} s"),
        _ => format!("{timeout} s (nodeLossTimeoutSeconds) after its last report"),
    }
}

/// What to write, or why the machine is refused. The same transaction counts the token's use.
fn decide(
    applicant: &Applicant,
    snapshot: &Snapshot,
    token: &str,
    uid: &str,
    api: &Api,
) -> Result<Admission, ApiError> {
    let stored = snapshot.tokens.get(token).ok_or_else(|| {
        ApiError::Unauthorized("the token is not known; it may have been revoked".to_owned())
    })?;
    let now = api.now();
    let mut admission = applicant.admit(snapshot, uid, now).map_err(refused)?;
    let key = keys::token(token);
    let unchanged = Compare::ModRevision(key.clone(), stored.revision);
    admission.conditions.push(unchanged);
    // A machine whose first response was lost repeats its request: it has used the token already.
    if admission.known {
        return Ok(admission);
    }
    let mut record = stored.value.clone();
    if let Some(uses) = &mut record.uses {
        *uses = uses.checked_sub(1).ok_or_else(|| used_up(token))?;
        admission.operations.push(put(key, &record)?);
    }
    Ok(admission)
}

fn used_up(token: &str) -> ApiError {
    ApiError::Forbidden {
        message: format!("the token `{token}` is used up: as many machines joined with it as may"),
        hint: Some("`katcall token create --join` makes another".to_owned()),
    }
}

/// Refuses reads with a used-up token for a trusted network: without a secret, nothing is shown
/// once no machine may join any more. A caller that knows a token's secret may continue to read,
/// since its response may have been lost.
///
/// # Errors
/// [`ApiError::Forbidden`].
pub(crate) fn may_look(caller: &Caller, snapshot: &Snapshot) -> Result<(), ApiError> {
    let Caller::Token { id, .. } = caller else {
        return Ok(());
    };
    let record = snapshot.tokens.get(id).map(|stored| &stored.value);
    match record.is_some_and(|one| one.insecure_trust_network && one.uses == Some(0)) {
        true => Err(used_up(id)),
        false => Ok(()),
    }
}

fn refused(error: NotAdmitted) -> ApiError {
    let hint = match &error {
        NotAdmitted::NameTaken(_) => "choose another name with --node-name",
        NotAdmitted::KnownAs(_) => {
            "join with that name; for another one, run `kat-agent reset` on this machine first"
        }
        NotAdmitted::Leaving(_) => "it is gone in a moment; try again then",
        NotAdmitted::AddressTaken { .. } => {
            "--advertise-address names another address, and --behind-nat says that others can't call this machine; `katcall delete node` takes out a machine that is gone"
        }
        NotAdmitted::NotSigned(_) => {
            "upgrade KAT on it, or take the machine out with `katcall delete node` first"
        }
        NotAdmitted::SameWireGuardKey(_) => {
            "`kat-agent reset` on the copy makes it a machine of its own"
        }
        NotAdmitted::NotEncoded(_) => return ApiError::Internal(error.to_string()),
        NotAdmitted::NoSubnet { .. } => "clusterCIDR and nodeSubnetBits of cluster.kat decide this",
    };
    ApiError::conflict(error.to_string(), hint)
}

/// Parses and checks the request; nothing in it is trusted.
fn applicant(request: &JoinRequest, spec: &ClusterSpec) -> Result<Applicant, ApiError> {
    pki::check_name(&request.name)
        .map_err(|error| ApiError::invalid(format!("the machine's name: {error}")))?;
    let proof = CertificateRequest::parse(&request.certificate_request).map_err(not_signed)?;
    let expected = format!("node:{}", request.name);
    if proof.common_name() != expected {
        return Err(ApiError::invalid(format!(
            "certificateRequest: it must ask for `{expected}`"
        )));
    }
    let key = BASE64_STANDARD.decode(&request.wireguard_key);
    if request.etcd_peer && request.no_etcd {
        return Err(ApiError::invalid(
            "etcdPeer and noEtcd can't both be asked for",
        ));
    }
    if request.wireguard_key.len() != 44 || !key.is_ok_and(|key| key.len() == 32) {
        return Err(ApiError::invalid(
            "wireguardKey: expected 32 bytes in base64",
        ));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let architecture = &request.architecture;
    if !(1..=32).contains(&architecture.len()) || !architecture.bytes().all(plain) {
        return Err(ApiError::invalid("architecture: expected such as `amd64`"));
    }
    for (name, length) in [
        ("endpoints", request.endpoints.len()),
        ("advertise", request.advertise.len()),
        // An empty list of names is accepted.
        ("names", request.reach.names.len().max(1)),
    ] {
        if !(1..=MAX_ADDRESSES).contains(&length) {
            return Err(ApiError::invalid(format!(
                "{name} has {length} entries, expected 1 to {MAX_ADDRESSES}"
            )));
        }
    }
    if !request.reach.names.iter().all(|name| is_host(name)) {
        return Err(ApiError::invalid("names: expected host names"));
    }
    if let Some(address) = request
        .advertise
        .iter()
        .find(|address| !reachable(address, spec))
    {
        return Err(ApiError::invalid(format!(
            "advertise: other machines can't reach `{address}`"
        )));
    }
    if !request.endpoints.iter().all(|text| is_endpoint(text)) {
        return Err(ApiError::invalid("endpoints: expected `host:port`"));
    }
    if !(request.member_keys.is_empty() || request.member_keys.is_complete()) {
        return Err(ApiError::invalid(
            "memberKeys: expected hashes of 64 hexadecimal digits",
        ));
    }
    let signed = match proof.states(&request.statement()) {
        Some(false) => {
            return Err(ApiError::invalid(
                "certificateRequest: it was signed for another request: who passed this one on changed it",
            ));
        }
        stated => stated.is_some(),
    };
    Ok(Applicant {
        signed,
        name: request.name.clone(),
        identity_key: proof.key_hash().to_owned(),
        member_keys: request.member_keys.clone(),
        public_key: request.wireguard_key.clone(),
        endpoints: request.endpoints.clone(),
        advertise: request.advertise.clone(),
        reach: request.reach.clone(),
        architecture: architecture.clone(),
        etcd: false,
        no_etcd: request.no_etcd,
        etcd_peer: request.etcd_peer,
    })
}

/// Whether an address may be that of one machine outside the overlay.
pub(crate) fn reachable(address: &IpAddr, spec: &ClusterSpec) -> bool {
    let own = match address {
        IpAddr::V4(address) => {
            spec.cluster_cidr.contains(address)
                || spec.service_cidr.contains(address)
                || address.is_broadcast()
        }
        IpAddr::V6(_) => false,
    };
    !(own || address.is_unspecified() || address.is_loopback() || address.is_multicast())
}

fn is_host(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    (1..=MAX_HOST).contains(&name.len()) && name.bytes().all(plain)
}

/// Whether the text is `host:port`.
pub(crate) fn is_endpoint(text: &str) -> bool {
    text.len() <= MAX_ENDPOINT
        && (text
            .parse::<std::net::SocketAddr>()
            .is_ok_and(|address| address.port() != 0)
            || text.rsplit_once(':').is_some_and(|(host, port)| {
                is_host(host) && port.parse::<u16>().is_ok_and(|port| port != 0)
            }))
}

fn not_signed(error: PkiError) -> ApiError {
    match error {
        PkiError::Request(_) | PkiError::Name(_) => ApiError::invalid(error.to_string()),
        other => ApiError::Internal(other.to_string()),
    }
}

fn sign(
    api: &Api,
    snapshot: &Snapshot,
    request_pem: &str,
    name: &str,
    admission: &Admission,
) -> Result<MachineCertificates, ApiError> {
    let joining = api.joining()?;
    let overlay = node_address(admission.subnet);
    joining
        .authorities()
        .sign_machine(
            request_pem,
            name,
            earlier_cluster_uid(snapshot),
            overlay,
            api.now(),
        )
        .map_err(not_signed)
}

/// The cluster's uid for a machine's certificate, while a member of version 0.1.0 may lead: it
/// connects to agents by the cluster's name.
fn earlier_cluster_uid(snapshot: &Snapshot) -> Option<&str> {
    let uid = snapshot.cluster_uid.as_str();
    (!cluster_endpoints(snapshot).is_api_named()).then_some(uid)
}

/// A machine that reads the state stream gets no certificate for etcd.
fn wire(signed: MachineCertificates, state_stream: bool) -> Certificates {
    Certificates {
        node: signed.node,
        etcd: match state_stream {
            true => String::new(),
            false => signed.etcd,
        },
        cluster_authority: signed.cluster_authority,
        etcd_authority: signed.etcd_authority,
    }
}

fn answer(
    snapshot: &Snapshot,
    name: &str,
    admission: &Admission,
    certificates: Certificates,
) -> JoinAnswer {
    let others = snapshot.nodes.iter().filter(|(other, _)| *other != name);
    let peers = others.filter_map(|(other, node)| {
        let peer = JoinPeer {
            public_key: node.public_key.clone()?,
            endpoints: node.endpoints.clone(),
            subnet: node.subnet?,
            reach: node.reach.clone(),
        };
        Some((other.clone(), peer))
    });
    let authority = snapshot.authorities.get(AuthorityKind::Cluster.name());
    let replacement = authority.and_then(|stored| stored.value.rotation.as_ref());
    JoinAnswer {
        node_uid: admission.uid.clone(),
        cluster_uid: snapshot.cluster_uid.clone(),
        cluster: snapshot.wanted_cluster().clone(),
        subnet: admission.subnet,
        known: admission.known,
        certificates,
        peers: peers.collect(),
        machines: cluster_endpoints(snapshot).machines,
        // The new authority may issue the servers' certificates before this machine has read the
        // stream.
        next_cluster_authority: replacement
            .map_or_else(String::new, |rotation| rotation.certificate.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_a_new_store_has_not_heard_is_not_called_ready() {
        let ready = "machine `n3` is Ready and has 1 instance";
        assert_eq!(still_has("n3", false, 1), ready);
        assert_eq!(still_has("n3", true, 3), "machine `n3` may run 3 instances");
    }

    #[test]
    fn a_machine_that_may_be_off_is_told_with_its_last_report_and_when_it_counts_as_lost() {
        assert_eq!(heard(Some(4)), "; its last report came 4 s ago");
        assert_eq!(judged_in(Some(4), 60), "in some 56 s");
        let later = "60 s (nodeLossTimeoutSeconds) after its last report";
        assert_eq!(judged_in(Some(61), 60), later);
        assert_eq!(judged_in(None, 60), later);
        assert_eq!(heard(None), "; it has not reported to the present leader");
        let start = "machine `n3` holds the cluster's store, and too few other machines that hold it are well";
        let drains = ["n1 is Draining".to_owned()];
        let told = format!("{start}: n1 is Draining");
        assert_eq!(too_few_members("n3", &drains), told);
        assert_eq!(too_few_members("n3", &[]), start);
        assert_eq!(counted(1), "1 instance");
        assert_eq!(counted(3), "3 instances");
    }
}
