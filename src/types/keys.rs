//! The keys of the store (RFC001-KAT 5.2; ARCHITECTURE.md, Keys in etcd). Every key is made here and
//! nowhere else.

/// Everything of KAT.
pub const ROOT: &str = "/kat/";
/// Version of the schema of stored objects.
pub const SCHEMA_VERSION: &str = "/kat/schema_version";
/// What every machine may read about the cluster.
pub const CONFIG: &str = "/kat/config/";
/// Generated at init.
pub const CLUSTER_UID: &str = "/kat/config/cluster_uid";
/// `host:port` of the leader's API.
pub const LEADER_ENDPOINT: &str = "/kat/config/leader_endpoint";
/// Name of the machine that leads, written together with [`LEADER_ENDPOINT`].
pub const LEADER_NAME: &str = "/kat/config/leader_name";
/// The cluster configuration of init, as JSON.
pub const CLUSTER: &str = "/kat/config/cluster";
/// API endpoints of every machine.
pub const ENDPOINTS: &str = "/kat/config/endpoints";
/// The members of etcd.
pub const MEMBERS: &str = "/kat/config/members";
/// How registries are reached.
pub const REGISTRIES: &str = "/kat/config/registries";
/// How often the store was begun anew.
pub const STORE_EPOCH: &str = "/kat/config/store_epoch";
/// The overlay's CIDR.
pub const OVERLAY_CIDR: &str = "/kat/network/config/overlay_cidr";
/// Namespaces.
pub const NAMESPACES: &str = "/kat/namespaces/";
/// Registrations of machines.
pub const REGISTRATIONS: &str = "/kat/nodes/registration/";
/// Statuses of machines.
pub const NODE_STATUS: &str = "/kat/nodes/status/";
/// Desired lists of machines.
pub const NODE_DESIRED: &str = "/kat/nodes/desired/";
/// Workloads as users wrote them.
pub const WORKLOADS: &str = "/kat/workloads/desired/";
/// What became of workloads.
pub const WORKLOAD_STATUS: &str = "/kat/workloads/status/";
/// Earlier generations.
pub const ARCHIVE: &str = "/kat/workloads/archive/";
/// Everything of the network.
pub const NETWORK: &str = "/kat/network/";
/// Subnet, key and endpoints of each machine.
pub const NETWORK_NODES: &str = "/kat/network/nodes/";
/// Addresses of instances.
pub const ALLOCATIONS: &str = "/kat/network/allocations/";
/// Addresses of services, and who is behind them.
pub const SERVICES: &str = "/kat/network/services/";
/// Records of the cluster's zone.
pub const DNS: &str = "/kat/dns/";
/// Tokens, hashed.
pub const TOKENS: &str = "/kat/tokens/";
/// Authorities and certificates.
pub const PKI: &str = "/kat/pki/";
/// Where the data of volumes lies.
pub const VOLUMES: &str = "/kat/volumes/";
/// Secrets, sealed. Leaders alone read them.
pub const SECRETS: &str = "/kat/secrets/";
/// Credentials for registries, sealed. Leaders alone read them.
pub const LOGINS: &str = "/kat/registries/";
/// The keys that seal secrets, sealed themselves. Leaders alone read them.
pub const SEALING: &str = "/kat/sealing/";
/// Indexes of workload users.
pub const INDEXES: &str = "/kat/indexes/";
/// The index that was handed out last. No number, so no index.
pub const LAST_INDEX: &str = "/kat/indexes/last";
/// What became of the leader's backups.
pub const BACKUP: &str = "/kat/backup";
/// Written with every plan of a leader: who planned from a copy of the store without the last one is
/// refused.
pub const PLANNED: &str = "/kat/planned";
/// Events.
pub const EVENTS: &str = "/kat/events/";
/// The election.
pub const ELECTION: &str = "/kat/leader_election/";

/// A namespace.
pub fn namespace(name: &str) -> String {
    format!("{NAMESPACES}{name}")
}

/// Registration of a machine.
pub fn registration(node: &str) -> String {
    format!("{REGISTRATIONS}{node}")
}

/// Status of a machine.
pub fn node_status(node: &str) -> String {
    format!("{NODE_STATUS}{node}")
}

/// Everything a machine is to do.
pub fn node_desired(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/")
}

/// Confirms a machine's list.
pub fn desired_meta(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/meta")
}

/// The assignments of a machine.
pub fn desired_instances(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/instances/")
}

/// One assignment.
pub fn desired_instance(node: &str, instance: &str) -> String {
    format!("{NODE_DESIRED}{node}/instances/{instance}")
}

/// The volumes that a machine is to remove.
pub fn desired_removals(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/removals/")
}

/// A volume that a machine is to remove, by [`volume`]'s last three parts.
pub fn desired_removal(node: &str, volume: &str) -> String {
    format!("{NODE_DESIRED}{node}/removals/{volume}")
}

/// The volumes that a machine is to send or to take.
pub fn desired_moves(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/moves/")
}

/// A volume that a machine is to send or to take, by [`volume`]'s last three parts.
pub fn desired_move(node: &str, volume: &str) -> String {
    format!("{NODE_DESIRED}{node}/moves/{volume}")
}

/// The images that a machine is to keep beside those of its instances.
pub fn desired_images(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/images")
}

/// Where the data of a volume lies; `volume` is `NAMESPACE/WORKLOAD/VOLUME`.
pub fn volume(volume: &str) -> String {
    format!("{VOLUMES}{volume}")
}

/// A secret; `secret` is `NAMESPACE/NAME`.
pub fn secret(secret: &str) -> String {
    format!("{SECRETS}{secret}")
}

/// All credentials for registries of a namespace.
pub fn logins(namespace: &str) -> String {
    format!("{LOGINS}{namespace}/")
}

/// Credentials for a registry, `host` or `host/path`.
pub fn login(namespace: &str, place: &str) -> String {
    format!("{LOGINS}{namespace}/{place}")
}

/// A key that seals secrets.
pub fn sealing_key(number: u64) -> String {
    format!("{SEALING}{number}")
}

/// Everything of one workload's desired state.
pub fn workload(namespace: &str, workload: &str) -> String {
    format!("{WORKLOADS}{namespace}/{workload}/")
}

/// One file of a workload.
pub fn manifest(namespace: &str, workload: &str, file: &str) -> String {
    format!("{WORKLOADS}{namespace}/{workload}/manifest/{file}")
}

/// Generation, hashes and rollout of a workload.
pub fn workload_meta(namespace: &str, workload: &str) -> String {
    format!("{WORKLOADS}{namespace}/{workload}/meta")
}

/// Status of a workload.
pub fn workload_status(namespace: &str, workload: &str) -> String {
    format!("{WORKLOAD_STATUS}{namespace}/{workload}")
}

/// Every archived generation of a workload.
pub fn archive(namespace: &str, workload: &str) -> String {
    format!("{ARCHIVE}{namespace}/{workload}/")
}

/// Every file of one archived generation.
pub fn archive_generation(namespace: &str, workload: &str, generation: u64) -> String {
    format!("{ARCHIVE}{namespace}/{workload}/{generation}/")
}

/// One file of an archived generation.
pub fn archive_file(namespace: &str, workload: &str, generation: u64, file: &str) -> String {
    format!("{ARCHIVE}{namespace}/{workload}/{generation}/{file}")
}

/// How an archived generation came to be. No file has this name: theirs end in `.kat`.
pub fn archive_meta(namespace: &str, workload: &str, generation: u64) -> String {
    archive_file(namespace, workload, generation, "meta")
}

/// A machine's network entry: `subnet`, `wg_pubkey`, `wg_endpoints` or `reach`.
pub fn network_node(node: &str, field: &str) -> String {
    format!("{NETWORK_NODES}{node}/{field}")
}

/// Address of an instance.
pub fn allocation(instance: &str) -> String {
    format!("{ALLOCATIONS}{instance}/ip")
}

/// Everything of one service's address.
pub fn service(namespace: &str, workload: &str) -> String {
    format!("{SERVICES}{namespace}/{workload}/")
}

/// Address of a service.
pub fn service_address(namespace: &str, workload: &str) -> String {
    format!("{SERVICES}{namespace}/{workload}/ip")
}

/// Ports of a service and the instances behind them.
pub fn service_balance(namespace: &str, workload: &str) -> String {
    format!("{SERVICES}{namespace}/{workload}/balance")
}

/// What `hostPort: auto` is for a workload.
pub fn host_ports(namespace: &str, workload: &str) -> String {
    format!("{SERVICES}{namespace}/{workload}/host_ports")
}

/// One record; `value` is the address, or `instance=address` for an instance's own name.
pub fn dns_record(namespace: &str, workload: &str, kind: &str, value: &str) -> String {
    format!("{DNS}{namespace}/{workload}/{kind}/{value}")
}

/// A token by its id.
pub fn token(id: &str) -> String {
    format!("{TOKENS}{id}")
}

/// Owner of a workload index.
pub fn index(index: u32) -> String {
    format!("{INDEXES}{index}")
}

/// An event; names sort by time.
pub fn event(id: &str) -> String {
    format!("{EVENTS}{id}")
}
