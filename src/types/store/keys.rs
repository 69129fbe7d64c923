//! The keys of the store (RFC001-KAT 5.2; docs/internals/etcd-keys.md). No other module
//! builds keys.

/// Prefix of all keys of KAT.
pub const ROOT: &str = "/kat/";
/// Version of the schema of stored objects.
pub const SCHEMA_VERSION: &str = "/kat/schema_version";
/// Prefix of what every machine may read about the cluster.
pub const CONFIG: &str = "/kat/config/";
/// Uid of the cluster, generated at init.
pub const CLUSTER_UID: &str = "/kat/config/cluster_uid";
/// `host:port` of the leader's API.
pub const LEADER_ENDPOINT: &str = "/kat/config/leader_endpoint";
/// Name of the leading machine, written together with [`LEADER_ENDPOINT`].
pub const LEADER_NAME: &str = "/kat/config/leader_name";
/// The cluster's configuration by which leaders go, as JSON.
pub const CLUSTER: &str = "/kat/config/cluster";
/// The configuration that users want and machines follow, with its number. Missing until it is changed
/// for the first time; [`CLUSTER`] is what leaders go by.
pub const WANTED_CONFIGURATION: &str = "/kat/config/wanted";
/// Prefix of the configurations before the present one.
pub const CONFIGURATIONS: &str = "/kat/configurations/";
/// Which certificates of the cluster's authority the machines trust and use.
pub const CLUSTER_AUTHORITY: &str = "/kat/config/cluster_authority";
/// API endpoints of every machine.
pub const ENDPOINTS: &str = "/kat/config/endpoints";
/// The members of etcd.
pub const MEMBERS: &str = "/kat/config/members";
/// Settings of registries: mirrors, and those without a valid certificate.
pub const REGISTRIES: &str = "/kat/config/registries";
/// How often the store was started anew.
pub const STORE_EPOCH: &str = "/kat/config/store_epoch";
/// The overlay's CIDR.
pub const OVERLAY_CIDR: &str = "/kat/network/config/overlay_cidr";
/// Namespaces.
pub const NAMESPACES: &str = "/kat/namespaces/";
/// Registrations of machines.
pub const REGISTRATIONS: &str = "/kat/nodes/registration/";
/// Statuses of machines.
pub const NODE_STATUS: &str = "/kat/nodes/status/";
/// Prefix of the desired state of machines.
pub const NODE_DESIRED: &str = "/kat/nodes/desired/";
/// Workloads as users wrote them.
pub const WORKLOADS: &str = "/kat/workloads/desired/";
/// Prefix of workloads' statuses.
pub const WORKLOAD_STATUS: &str = "/kat/workloads/status/";
/// Prefix of kept generations.
pub const ARCHIVE: &str = "/kat/workloads/archive/";
/// Prefix of all keys of the network.
pub const NETWORK: &str = "/kat/network/";
/// Subnet, key and endpoints of each machine.
pub const NETWORK_NODES: &str = "/kat/network/nodes/";
/// Addresses of instances.
pub const ALLOCATIONS: &str = "/kat/network/allocations/";
/// Prefix of service addresses and the instances behind them.
pub const SERVICES: &str = "/kat/network/services/";
/// Prefix of what machines know of namespaces: which others may reach their workloads.
pub const NETWORK_NAMESPACES: &str = "/kat/network/namespaces/";
/// Prefix of virtual addresses: which machine is to hold each.
pub const VIRTUAL_ADDRESSES: &str = "/kat/network/virtual/";
/// Prefix of the DNS records of the cluster's zone.
pub const DNS: &str = "/kat/dns/";
/// Tokens, hashed.
pub const TOKENS: &str = "/kat/tokens/";
/// Prefix of volumes' records: where their data lies.
pub const VOLUMES: &str = "/kat/volumes/";
/// Prefix of sealed secrets. Only leaders read them.
pub const SECRETS: &str = "/kat/secrets/";
/// Prefix of sealed credentials for registries. Only leaders read them.
pub const LOGINS: &str = "/kat/registries/";
/// Prefix of the data keys that seal secrets, which are sealed themselves. Only leaders read them.
pub const SEALING: &str = "/kat/sealing/";
/// Indexes of workload users.
pub const INDEXES: &str = "/kat/indexes/";
/// The index that was assigned last. The name is not a number, so it is no index.
pub const LAST_INDEX: &str = "/kat/indexes/last";
/// Status of the leader's backups.
pub const BACKUP: &str = "/kat/backup";
/// Written with every plan of a leader: a plan that was made from a copy of the store without the
/// last one is refused.
pub const PLANNED: &str = "/kat/planned";
/// Prefix of the records of the authorities. Only machines that hold etcd read them.
pub const AUTHORITIES: &str = "/kat/authorities/";
/// Prefix of KAT's own authority for ingress, certificates with sealed keys, and their orders. Only
/// leaders read them, but for [`ACME_CHALLENGES`].
pub const INGRESS: &str = "/kat/ingress/";
/// KAT's own authority for ingress.
pub const INGRESS_AUTHORITY: &str = "/kat/ingress/authority";
/// Prefix of the certificates for ingress that the leader issues or orders, by host.
pub const INGRESS_CERTIFICATES: &str = "/kat/ingress/certificates/";
/// Prefix of the accounts at servers for certificates (ACME).
pub const ACME_ACCOUNTS: &str = "/kat/ingress/accounts/";
/// Prefix of the orders of certificates by ACME, by host.
pub const ACME_ORDERS: &str = "/kat/ingress/orders/";
/// Prefix of the answers to challenges of ACME, by token. Every machine reads them.
pub const ACME_CHALLENGES: &str = "/kat/ingress/challenges/";
/// Prefix of the records of DNS that answer challenges of ACME, by their text.
pub const ACME_DNS: &str = "/kat/ingress/dns/";
/// Prefix of the numbers of new certificates that were ordered lately, by namespace.
pub const ACME_NEW_ORDERS: &str = "/kat/ingress/new_orders/";
/// Written with each apply that changes who has which host or alias, or ports 80 and 443 of machines: of
/// two that were decided on the same state, one is refused.
pub const INGRESS_CLAIMS: &str = "/kat/ingress/claims";
/// Prefix of what is kept of Jobs: their schedules and runs.
pub const JOBS: &str = "/kat/jobs/";
/// The key of the cookies of sticky routes, sealed. Only leaders read it.
pub const INGRESS_STICKY: &str = "/kat/ingress/sticky";
/// The round that certificates of KAT's own authority have to be of.
pub const INGRESS_RENEWAL: &str = "/kat/ingress/renewal";
/// Prefix of the routes to something outside KAT, by host and path. Only leaders read them.
pub const OUTSIDE_ROUTES: &str = "/kat/routes/";
/// Events.
pub const EVENTS: &str = "/kat/events/";
/// Prefix of the candidates' keys in the election.
pub const ELECTION: &str = "/kat/leader_election/";

/// An earlier configuration of the cluster.
pub fn configuration(number: u64) -> String {
    format!("{CONFIGURATIONS}{number}")
}

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

/// Prefix of everything that a machine has to do.
pub fn node_desired(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/")
}

/// Meta of a machine's list of assignments, which confirms the list.
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

/// Prefix of the volumes that a machine has to remove.
pub fn desired_removals(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/removals/")
}

/// A volume that a machine has to remove; `volume` is `NAMESPACE/WORKLOAD/VOLUME`.
pub fn desired_removal(node: &str, volume: &str) -> String {
    format!("{NODE_DESIRED}{node}/removals/{volume}")
}

/// Prefix of the volumes that a machine has to send or receive.
pub fn desired_moves(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/moves/")
}

/// A volume that a machine has to send or receive; `volume` is `NAMESPACE/WORKLOAD/VOLUME`.
pub fn desired_move(node: &str, volume: &str) -> String {
    format!("{NODE_DESIRED}{node}/moves/{volume}")
}

/// The images that a machine has to keep besides those of its instances.
pub fn desired_images(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/images")
}

/// Prefix of the routes that a machine serves.
pub fn desired_routes(node: &str) -> String {
    format!("{NODE_DESIRED}{node}/routes/")
}

/// The routes of one workload that a machine serves.
pub fn desired_routes_of(node: &str, namespace: &str, workload: &str) -> String {
    format!("{NODE_DESIRED}{node}/routes/{namespace}/{workload}")
}

/// An account at a server for certificates; `id` is [`super::acme::account_id`].
pub fn acme_account(id: &str) -> String {
    format!("{ACME_ACCOUNTS}{id}")
}

/// The order of a host's certificate.
pub fn acme_order(host: &str) -> String {
    format!("{ACME_ORDERS}{host}")
}

/// The answer to a challenge.
pub fn acme_challenge(token: &str) -> String {
    format!("{ACME_CHALLENGES}{token}")
}

/// A record of DNS that answers a challenge; `value` is its text.
pub fn acme_dns(value: &str) -> String {
    format!("{ACME_DNS}{value}")
}

/// How many new certificates were ordered lately for a namespace.
pub fn acme_new_orders(namespace: &str) -> String {
    format!("{ACME_NEW_ORDERS}{namespace}")
}

/// A certificate for ingress that the leader issued or ordered.
pub fn ingress_certificate(host: &str) -> String {
    format!("{INGRESS_CERTIFICATES}{host}")
}

/// A route to something outside KAT; `name` is its host and path.
pub fn outside_route(name: &str) -> String {
    format!("{OUTSIDE_ROUTES}{name}")
}

/// Record of a volume: where its data lies. `volume` is `NAMESPACE/WORKLOAD/VOLUME`.
pub fn volume(volume: &str) -> String {
    format!("{VOLUMES}{volume}")
}

/// A secret; `secret` is `NAMESPACE/NAME`.
pub fn secret(secret: &str) -> String {
    format!("{SECRETS}{secret}")
}

/// Prefix of a namespace's credentials for registries.
pub fn logins(namespace: &str) -> String {
    format!("{LOGINS}{namespace}/")
}

/// Credentials for a registry, `host` or `host/path`.
pub fn login(namespace: &str, place: &str) -> String {
    format!("{LOGINS}{namespace}/{place}")
}

/// A data key that seals secrets.
pub fn sealing_key(number: u64) -> String {
    format!("{SEALING}{number}")
}

/// Prefix of a workload's desired state.
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

/// Prefix of what is kept of a Job.
pub fn job(namespace: &str, workload: &str) -> String {
    format!("{JOBS}{namespace}/{workload}/")
}

/// What of a Job's schedule is decided.
pub fn job_state(namespace: &str, workload: &str) -> String {
    format!("{JOBS}{namespace}/{workload}/state")
}

/// A run of a Job; `run` is as [`super::jobs::scheduled_run`] and its siblings write it.
pub fn job_run(namespace: &str, workload: &str, run: &str) -> String {
    format!("{JOBS}{namespace}/{workload}/runs/{run}")
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

/// The record of how an archived generation came to be. No file has this name: names of files end
/// in `.kat`.
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

/// Prefix of the keys of a service's address.
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

/// The other namespaces that may reach a workload.
pub fn service_access(namespace: &str, workload: &str) -> String {
    format!("{SERVICES}{namespace}/{workload}/access")
}

/// The other namespaces that may reach the workloads of a namespace.
pub fn network_namespace(namespace: &str) -> String {
    format!("{NETWORK_NAMESPACES}{namespace}")
}

/// The machine that is to hold a virtual address.
pub fn virtual_address(address: std::net::IpAddr) -> String {
    format!("{VIRTUAL_ADDRESSES}{address}")
}

/// The numbers assigned for `hostPort: auto` of a workload.
pub fn host_ports(namespace: &str, workload: &str) -> String {
    format!("{SERVICES}{namespace}/{workload}/host_ports")
}

/// One DNS record; `value` is the address, or `instance=address` for an instance's own name.
pub fn dns_record(namespace: &str, workload: &str, kind: &str, value: &str) -> String {
    format!("{DNS}{namespace}/{workload}/{kind}/{value}")
}

/// Record of an authority; `name` is that of its files, such as `etcd-client-ca`.
pub fn authority(name: &str) -> String {
    format!("{AUTHORITIES}{name}")
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
