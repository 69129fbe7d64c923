//! The listeners of this machine's API.

use std::{net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use anyhow::Context;
use futures_util::future::BoxFuture;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
};

use crate::{
    cluster::{
        cluster_cache::ClusterCacheReceiver, identity::MachineIdentity, keys::MachineKeys,
        renewal::ServerCertificates,
    },
    service::{paths, supervisor::DesiredList},
};
use kat_api as api;
use kat_api::{
    ApiListeners, FindInstance, KnowsPeer, LeaderLocator, LeaderSource, ListInstances, OwnRoute,
    SocketAccess, SocketLeader, SocketListener, StateRoute, TlsListener, TlsSource,
};
use kat_host::{
    files::{self, FileAccess},
    users::accounts::AccountFiles,
};
use kat_leader::{LeaderHandle, PlanningHealth};
use kat_network::overlay::local_addresses::{self as local, LocalAddress};
use kat_pki as pki;
use kat_pki::{PeerCertificate, PeerIdentity};
use kat_store::Leadership;
use kat_types::{
    assignment::Assignment,
    store::{members::ClusterEndpoints, revisions::Stored, snapshot::InstanceEntry},
};

/// Finds the leading machine while this one does not lead.
struct RemoteLeader {
    identity: Arc<MachineIdentity>,
    leadership: watch::Receiver<Option<Leadership>>,
    known: ClusterCacheReceiver,
}

/// The endpoints to which requests are forwarded while another machine leads.
fn leader_source(
    identity: &Arc<MachineIdentity>,
    handle: &LeaderHandle,
    known: &ClusterCacheReceiver,
) -> LeaderSource {
    Arc::new(RemoteLeader {
        identity: Arc::clone(identity),
        leadership: handle.leadership.clone(),
        known: known.clone(),
    })
}

/// Finds the machines that serve the state stream while this one does not.
struct StateMembers {
    identity: Arc<MachineIdentity>,
    known: ClusterCacheReceiver,
}

/// The endpoints to which connections for the state stream are forwarded; none on a machine that
/// holds etcd.
pub(crate) fn state_members(
    identity: &Arc<MachineIdentity>,
    known: &ClusterCacheReceiver,
) -> LeaderSource {
    Arc::new(StateMembers {
        identity: Arc::clone(identity),
        known: known.clone(),
    })
}

impl LeaderLocator for StateMembers {
    fn endpoints(&self) -> Vec<String> {
        if self.identity.etcd {
            return Vec::new();
        }
        let known = self.known.borrow();
        let mut endpoints = known.api(self.identity.cluster.spec.api_port);
        let locals = local::addresses();
        endpoints.retain(|endpoint| !is_own(endpoint, &locals));
        endpoints
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        Box::pin(next(&self.known))
    }
}

impl LeaderLocator for RemoteLeader {
    fn endpoints(&self) -> Vec<String> {
        if self.leadership.borrow().is_some() {
            return Vec::new();
        }
        let known = self.known.borrow();
        let mut endpoints = known.ways_to_leader(&self.identity);
        // A machine without etcd has no data to answer from, so it always forwards.
        if endpoints.is_empty() && !self.identity.etcd {
            endpoints = known.api(self.identity.cluster.spec.api_port);
        }
        // An address in the stored endpoints may have become this machine's since they were
        // written.
        let locals = local::addresses();
        endpoints.retain(|endpoint| !is_own(endpoint, &locals));
        endpoints
    }

    fn changed(&self) -> BoxFuture<'static, ()> {
        let (leadership, known) = (next(&self.leadership), next(&self.known));
        Box::pin(async move {
            tokio::select! {
                biased;
                () = leadership => {}
                () = known => {}
            }
        })
    }
}

/// A future that ends when the value changes after this call.
fn next<T>(value: &watch::Receiver<T>) -> impl Future<Output = ()> + use<T> {
    let mut value = value.clone();
    value.mark_unchanged();
    async move {
        if value.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether `host:port` is at one of these addresses of this machine.
pub(crate) fn is_own(endpoint: &str, locals: &[LocalAddress]) -> bool {
    let address = endpoint.parse::<SocketAddr>().map(|address| address.ip());
    address.is_ok_and(|address| locals.iter().any(|local| local.address == address))
}

/// On a machine that holds etcd, requests on the socket are forwarded with the machine's
/// administrator certificate. The certificate is read for each request, since it is renewed. A
/// machine that has no part in the cluster any more answers by itself and says so.
fn socket_leader(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCacheReceiver,
    planning: &PlanningHealth,
    leader: LeaderSource,
) -> Option<SocketLeader> {
    if !identity.etcd {
        return None;
    }
    let (keys, cluster_uid) = (keys.clone(), identity.cluster_uid.clone());
    let (known, planning) = (known.clone(), planning.clone());
    let config = move || {
        let authority = keys.cluster_authority()?;
        let admin = pki::tls::CurrentIdentity::new(&keys.leaf("admin")?, &authority)?;
        let servers = pki::ApiServers::KnownOnly(known.borrow().servers());
        let config = pki::tls::client_config(&authority, &cluster_uid, Some(admin), servers)?;
        anyhow::Ok(Arc::new(config))
    };
    let config = move || {
        if planning.is_outside() {
            return None;
        }
        config()
            .inspect_err(|error| tracing::error!("the leader can't be asked: {error:#}"))
            .ok()
    };
    Some(SocketLeader {
        leader,
        config: Arc::new(config),
    })
}

/// The API's TCP port and its Unix socket.
pub(crate) fn listeners(
    identity: &Arc<MachineIdentity>,
    keys: &MachineKeys,
    known: &ClusterCacheReceiver,
    certificates: &ServerCertificates,
    handle: &LeaderHandle,
    members: LeaderSource,
) -> anyhow::Result<ApiListeners> {
    let certificate = Arc::clone(certificates.of_api());
    let config = pki::tls::server_config(certificate, Arc::clone(&certificates.trust))?;
    let own = Arc::clone(&certificates.agent);
    let own_config = pki::tls::server_config(own, Arc::clone(&certificates.trust))?;
    let port = identity.cluster.spec.api_port;
    let leader = leader_source(identity, handle, known);
    let planning = &handle.planning;
    let socket_leader = socket_leader(identity, keys, known, planning, Arc::clone(&leader));
    let tls = TlsListener {
        listener: api::bind(port).with_context(|| format!("port {port} for the API"))?,
        config: Arc::new(move || Arc::clone(&config)),
        leader,
        stands_in: identity.etcd,
        state_route: Some(StateRoute {
            server_name: pki::state_server_name(&identity.cluster_uid),
            members,
        }),
        own_route: Some(OwnRoute {
            server_name: pki::machine_server_name(&identity.cluster_uid),
            config: Arc::new(move || Arc::clone(&own_config)),
        }),
    };
    let access = if identity.etcd {
        SocketAccess::Admin
    } else {
        SocketAccess::ThisMachine
    };
    Ok(ApiListeners {
        tls: vec![tls],
        sockets: vec![SocketListener {
            listener: api_socket()?,
            access,
            leader: socket_leader,
        }],
    })
}

/// The API's Unix socket alone, for callers on a machine that has no part in the cluster.
pub(crate) fn socket_alone() -> anyhow::Result<ApiListeners> {
    Ok(ApiListeners {
        tls: Vec::new(),
        sockets: vec![SocketListener {
            listener: api_socket()?,
            access: SocketAccess::ThisMachine,
            leader: None,
        }],
    })
}

/// The agent's own port, only on this machine's overlay address.
pub(crate) fn agent_listener(identity: &MachineIdentity) -> anyhow::Result<TcpListener> {
    let (address, port) = (identity.overlay_address(), identity.cluster.spec.agent_port);
    api::bind_overlay(address, port).with_context(|| {
        format!("port {port} of {address}, for what the leader asks of this machine")
    })
}

/// The TLS settings of the agent's own port.
pub(crate) fn agent_tls(certificates: &ServerCertificates) -> anyhow::Result<TlsSource> {
    let certificate = Arc::clone(&certificates.agent);
    let config = pki::tls::agent_server_config(certificate, Arc::clone(&certificates.trust))?;
    Ok(Arc::new(move || Arc::clone(&config)))
}

/// Accepts only certificates for keys that the leader has published: keys of machines, and keys of
/// machines with etcd as leaders. The check is needed because a certificate stays valid for up to
/// 30 days after its machine has left the cluster.
pub(crate) fn known_peers(known: &ClusterCacheReceiver) -> KnowsPeer {
    let known = known.clone();
    Arc::new(move |certificate| is_known(&known.borrow().endpoints, certificate))
}

/// A leader of version 0.1.0 publishes no keys: while a member may be of that version, only the name
/// is checked for machines without a published key.
fn is_known(endpoints: &ClusterEndpoints, certificate: &PeerCertificate) -> bool {
    let is_unpublished = |hash: &str| hash.is_empty() && !endpoints.is_api_named();
    let is_key = |hash: &str| is_unpublished(hash) || hash == certificate.key_hash;
    let machine = |name| endpoints.machines.get(name);
    match &certificate.identity {
        PeerIdentity::Node(name) => machine(name).is_some_and(|one| is_key(&one.node_key)),
        PeerIdentity::Leader(name) => {
            machine(name).is_some_and(|one| one.etcd && is_key(&one.leader_key))
        }
        PeerIdentity::Admin(_) => false,
    }
}

/// Finds an instance in this machine's own list.
pub(crate) fn own_instances(
    identity: &MachineIdentity,
    lists: &watch::Receiver<DesiredList>,
) -> FindInstance {
    let (node, lists) = (identity.node.clone(), lists.clone());
    Arc::new(move |id| {
        let listed = lists.borrow();
        let assignment = listed.desired.assignments.get(id)?;
        Some(entry(&node, assignment))
    })
}

/// All instances in this machine's own list.
pub(crate) fn all_own_instances(
    identity: &MachineIdentity,
    lists: &watch::Receiver<DesiredList>,
) -> ListInstances {
    let (node, lists) = (identity.node.clone(), lists.clone());
    Arc::new(move || {
        let listed = lists.borrow();
        let assignments = listed.desired.assignments.values();
        assignments.map(|one| entry(&node, one)).collect()
    })
}

fn entry(node: &str, assignment: &Assignment) -> InstanceEntry {
    InstanceEntry {
        node: node.to_owned(),
        created_revision: 0,
        assignment: Stored {
            revision: 0,
            value: Arc::new(assignment.clone()),
        },
    }
}

/// The API's socket, for root and the group `kat`.
fn api_socket() -> anyhow::Result<UnixListener> {
    let path = Path::new(paths::API_SOCKET);
    files::ensure_folder(Path::new(paths::RUN), FileAccess::mode(0o755))?;
    files::remove(path)?;
    let listener = UnixListener::bind(path).with_context(|| paths::API_SOCKET.to_owned())?;
    let group = AccountFiles::read(Path::new("/"))?
        .group("kat")
        .map(|group| group.gid);
    std::os::unix::fs::chown(path, None, group).context(paths::API_SOCKET)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
        .context(paths::API_SOCKET)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cluster_cache::ClusterCache;
    use kat_types::api::MachineEndpoints;

    #[test]
    fn callers_on_a_machine_that_was_deleted_are_not_passed_on_to_the_leader() {
        let folder = tempfile::tempdir().unwrap();
        let keys = MachineKeys::below(folder.path());
        let identity = MachineIdentity {
            etcd: true,
            ..MachineIdentity::example("n1")
        };
        let now = jiff::Timestamp::now();
        keys.ensure_authorities(&identity.cluster_uid, now).unwrap();
        keys.renew(&identity, &ClusterCache::default(), now)
            .unwrap();
        let (_known_now, known) = watch::channel(Arc::new(ClusterCache::default()));
        let planning = PlanningHealth::default();
        let leader: LeaderSource = Arc::new(vec!["192.0.2.2:9115".to_owned()]);
        let socket = socket_leader(&identity, &keys, &known, &planning, leader).unwrap();
        assert!((socket.config)().is_some());
        planning.set_outside(Some("it was deleted"));
        assert!((socket.config)().is_none());
        planning.set_outside(None);
        assert!((socket.config)().is_some());
    }

    #[test]
    fn the_agents_port_knows_machines_and_leaders_by_the_keys_that_are_published() {
        let machine = |etcd, node: &str, leader: &str| MachineEndpoints {
            etcd,
            node_key: node.to_owned(),
            leader_key: leader.to_owned(),
            ..MachineEndpoints::default()
        };
        let endpoints = ClusterEndpoints {
            schema: 1,
            machines: [
                ("n1".to_owned(), machine(true, "node 1", "leader 1")),
                ("n2".to_owned(), machine(false, "node 2", "")),
                // A leader of version 0.1.0 writes an entry without keys.
                ("n3".to_owned(), machine(true, "", "")),
            ]
            .into(),
        };
        let is_peer = |endpoints, identity, key: &str| {
            let key_hash = key.to_owned();
            is_known(endpoints, &PeerCertificate { identity, key_hash })
        };
        let known = |identity, key: &str| is_peer(&endpoints, identity, key);
        let node = |name: &str, key| known(PeerIdentity::Node(name.to_owned()), key);
        let leader = |name: &str, key| known(PeerIdentity::Leader(name.to_owned()), key);
        assert!(node("n1", "node 1") && !node("n1", "node 2") && !node("n9", "node 1"));
        assert!(leader("n1", "leader 1") && !leader("n1", "node 1"));
        assert!(!leader("n2", "node 2") && !leader("n9", ""));
        assert!(leader("n3", "any") && node("n3", "any"));
        assert!(!known(PeerIdentity::Admin("n1".to_owned()), "node 1"));
        // No member is of version 0.1.0.
        let mut named = endpoints.clone();
        for machine in named.machines.values_mut() {
            machine.api_key = "api".to_owned();
        }
        let n3 = || "n3".to_owned();
        assert!(!is_peer(&named, PeerIdentity::Node(n3()), "any"));
        assert!(!is_peer(&named, PeerIdentity::Leader(n3()), "any"));
        assert!(is_peer(
            &named,
            PeerIdentity::Node("n2".to_owned()),
            "node 2"
        ));
    }

    #[test]
    fn nobody_passes_callers_on_to_himself() {
        let local = LocalAddress {
            link: "eth0".to_owned(),
            address: "192.0.2.7".parse().unwrap(),
            broadcast: None,
        };
        for (endpoint, own) in [
            ("192.0.2.7:9115", true),
            ("192.0.2.8:9115", false),
            ("home.example.org:9115", false),
        ] {
            assert_eq!(
                is_own(endpoint, std::slice::from_ref(&local)),
                own,
                "{endpoint}"
            );
        }
    }
}
