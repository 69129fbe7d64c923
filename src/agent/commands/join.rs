//! `kat-agent join`: adds a machine to a cluster (RFC001-KAT 4.1.2).

use std::{path::Path, time::Duration};

use anyhow::Context;

use super::{
    forwarding,
    setup::{
        EarlierJoin, StepPrinter, ensure_wireguard_key, node_name, put_in_place, read_agent_config,
        refuse_second, reload_bus_policy, render_settings, restart_journal, start, write_network,
    },
};
use crate::{
    cluster::{
        cluster_cache::ClusterCache,
        identity::MachineIdentity,
        keys::MachineKeys,
        machine::wait_joined,
        reach::{ReachSettings, wireguard_endpoints},
    },
    commands::check::check_machine,
    network::files as network_files,
    service::paths,
};
use kat_client::{Client, ClientError, ClientOptions};
use kat_host::{
    check::CheckStage,
    facts::node_facts,
    files::{self, FileAccess},
};
use kat_pki::token::Token;
use kat_render::Renderer;
use kat_systemd::{ManagerSource, Managers};
use kat_types::{
    api::{JoinAnswer, JoinRequest, TRUSTING},
    encoding::{json, plain::plain},
    machine::network::{self, PeerMachines},
    resource::ClusterConfiguration,
    store::members::{ClusterEndpoints, ClusterMembers},
};

/// Longest wait for the machine to be Ready.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// What may happen to a machine that joins without `--no-etcd`.
const HOLDS_KEYS: &str = "this machine may be chosen to hold the cluster's store, and then has the cluster's keys: root on it can do anything to the whole cluster; `--no-etcd` keeps a machine out";

#[derive(Clone)]
pub(crate) struct JoinOptions {
    /// `host:port` of the API of a machine of the cluster.
    pub leader_api: String,
    /// The join token; `None` where the network is trusted instead.
    pub token: Option<String>,
    /// Addresses, interfaces or host names at which others reach this machine.
    pub advertise: Vec<String>,
    /// Name of the machine; `None` uses the host name.
    pub node_name: Option<String>,
    /// The machine must never hold etcd.
    pub no_etcd: bool,
    /// Whether the machine is behind NAT.
    pub behind_nat: bool,
    /// Whether the machine relays packets between machines behind NAT.
    pub relay: bool,
    /// The machine requests to hold etcd.
    pub etcd_peer: bool,
}

/// Adds this machine to a cluster, and waits until it is Ready.
///
/// Until the leader has accepted the machine, only its keys are stored, and they are removed if the
/// leader rejects it. After an interrupted join the same command continues it; `kat-agent reset`
/// removes what it made.
pub(crate) async fn run(options: JoinOptions, say: StepPrinter<'_>) -> anyhow::Result<()> {
    let earlier = refuse_second()?;
    let config = read_agent_config()?;
    let machine = node_facts().await?;
    let node = node_name(options.node_name, &machine.hostname)?;
    let reached = ReachSettings {
        behind_nat: options.behind_nat,
        relay: options.relay,
        ..ReachSettings::new(&options.advertise).await?
    };
    let advertise = reached.addresses_now()?;
    let client = client(&options.leader_api, options.token.as_deref())?;
    if options.token.is_none() {
        say(&format!(
            "trusting the network: whoever answers at {} is taken for the cluster, unproved",
            options.leader_api
        ));
    }

    say(&format!("asking {} about the cluster", options.leader_api));
    let cluster = client.cluster_configuration().await;
    let cluster = cluster.map_err(|error| explain(&error, &options.leader_api))?;
    say("looking at the machine");
    let stage = match earlier {
        EarlierJoin::Nothing => CheckStage::BeforeJoin,
        EarlierJoin::HalfJoin => CheckStage::Running,
    };
    check_machine(&cluster, &config, stage, say).await?;

    say(&format!(
        "joining the cluster {} as {node}",
        plain(&cluster.metadata.name)
    ));
    let keys = MachineKeys::new(None);
    files::ensure_folder(Path::new(paths::STATE), FileAccess::mode(0o755))?;
    let mut request = JoinRequest {
        name: node.clone(),
        certificate_request: String::new(),
        wireguard_key: ensure_wireguard_key()?,
        endpoints: wireguard_endpoints(
            &reached.published_reach(),
            &advertise,
            &config,
            cluster.spec.wireguard_port,
        ),
        advertise: advertise.clone(),
        architecture: machine.architecture.clone(),
        no_etcd: options.no_etcd,
        reach: reached.published_reach(),
        etcd_peer: options.etcd_peer,
        member_keys: keys.member_keys()?,
        state_stream: true,
    };
    request.certificate_request = keys.joining_request(&node, &request.statement())?;
    let answer = match client.join(&request).await {
        Ok(answer) => answer,
        Err(error) => {
            // The leader rejected the join and stored nothing about this machine, so nothing is
            // kept here.
            if said_no(&error) && earlier == EarlierJoin::Nothing {
                forget_keys();
            }
            return Err(explain(&error, &options.leader_api));
        }
    };
    let identity = identity(node, &answer, advertise, reached);
    let text = json::pretty(paths::JOINING, &identity)?;
    files::write_atomic(Path::new(paths::JOINING), &text, FileAccess::mode(0o600))?;
    keys.store_machine(&answer.certificates)?;
    keys.trust_announced(&answer.next_cluster_authority, &answer.cluster_uid)?;
    let mut known = ClusterCache {
        schema: 1,
        leader: Some(options.leader_api),
        members: ClusterMembers::default(),
        endpoints: ClusterEndpoints {
            schema: 1,
            machines: answer.machines.clone(),
        },
        ..ClusterCache::default()
    };
    known.api_name_required = known.endpoints.is_api_named();
    known.store()?;
    let peers = network_files::peers_of(&identity.reached.published_reach(), &answer.peers);
    settle(&identity, &known, &peers, &keys, say).await?;
    if !options.no_etcd {
        say(HOLDS_KEYS);
    }
    say(&format!(
        "machine {} is Ready in the cluster {}, with the subnet {}",
        identity.node,
        plain(&identity.cluster.metadata.name),
        identity.subnet
    ));
    Ok(())
}

/// The steps after the leader has accepted the machine.
async fn settle(
    identity: &MachineIdentity,
    known: &ClusterCache,
    peers: &PeerMachines,
    keys: &MachineKeys,
    say: StepPrinter<'_>,
) -> anyhow::Result<()> {
    let config = read_agent_config()?;
    let managers = Managers::new();
    let system = managers.system();
    let renderer = Renderer::installed()?;

    say("putting sysctls, users and folders in place");
    forwarding::remember(Path::new("/"))?;
    put_in_place(&renderer.host_files(&render_settings(identity))?).await?;
    reload_bus_policy().await?;
    restart_journal(system.as_ref(), say).await?;

    say("bringing up the overlay");
    write_network(identity, &config, peers)?;
    for unit in ["kat-net.socket", "kat-net.service"] {
        system.enable(unit).await?;
        start(system.as_ref(), unit).await?;
    }

    say("starting kat-agent");
    files::ensure_folder(Path::new(paths::CONFIGURATION), FileAccess::mode(0o755))?;
    std::fs::rename(paths::JOINING, paths::IDENTITY).context(paths::IDENTITY)?;
    system.enable("kat-agent.service").await?;
    // Enabling changes links that the manager has read already.
    system.reload().await?;
    start(system.as_ref(), "kat-agent.service").await?;
    wait_joined(identity, known, keys, READY_LIMIT).await
}

fn client(leader_api: &str, token: Option<&str>) -> anyhow::Result<Client> {
    let options = ClientOptions::default();
    let Some(token) = token else {
        let client = Client::for_joining(leader_api, None, TRUSTING, options)?;
        return Ok(client);
    };
    let token = Token::parse(token).map_err(|_| not_for_joining())?;
    let fingerprint = token.authority().ok_or_else(not_for_joining)?;
    Ok(Client::for_joining(
        leader_api,
        Some(fingerprint),
        &token.bearer(),
        options,
    )?)
}

fn not_for_joining() -> anyhow::Error {
    anyhow::anyhow!(
        "the token is not one for joining, or a part of it is missing; `katcall token create --join` on a machine of the cluster prints the whole command"
    )
}

/// Whether the leader rejected the join and certainly stored nothing.
fn said_no(error: &ClientError) -> bool {
    error
        .status()
        .is_some_and(|status| (400..500).contains(&status) && status != 408)
}

/// Explains the leader's response to the administrator.
fn explain(error: &ClientError, leader_api: &str) -> anyhow::Error {
    let error_text = plain(&error.to_string());
    let another = "`katcall token create --join` on a machine of the cluster makes another";
    match error.status() {
        Some(401) => anyhow::anyhow!("{leader_api} refuses the token: {error_text}; {another}"),
        Some(_) => match error.hint() {
            Some(hint) => anyhow::anyhow!("{leader_api} refuses: {error_text}; {}", plain(&hint)),
            None => anyhow::anyhow!("{leader_api} refuses: {error_text}"),
        },
        None => anyhow::anyhow!("{error_text}"),
    }
}

fn identity(
    node: String,
    answer: &JoinAnswer,
    advertise: Vec<std::net::IpAddr>,
    reached: ReachSettings,
) -> MachineIdentity {
    let cluster: ClusterConfiguration = answer.cluster.clone();
    MachineIdentity {
        schema: 1,
        node,
        node_uid: answer.node_uid.clone(),
        cluster_uid: answer.cluster_uid.clone(),
        cluster,
        subnet: answer.subnet,
        advertise,
        etcd: false,
        reached,
    }
}

/// Removes the keys of a machine that the leader rejected.
fn forget_keys() {
    for folder in [paths::PKI, network::FOLDER] {
        let _ = std::fs::remove_dir_all(folder);
    }
    // The folder stays if it has other content.
    let _ = std::fs::remove_dir(paths::STATE);
}
