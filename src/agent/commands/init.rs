//! `kat-agent init`: the first machine of a cluster (RFC001-KAT 4.1.1).

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::{
    bootstrap::{self, InitialStoreValues},
    forwarding, host_files,
    setup::{
        EarlierJoin, StepPrinter, api_endpoints, ensure_wireguard_key, new_cluster, node_name,
        put_in_place, read_agent_config, refuse_second, reload_bus_policy, render_settings,
        restart_journal, start, write_host_file, write_network,
    },
};
use crate::{
    cluster::{
        cluster_cache::ClusterCache,
        identity::MachineIdentity,
        keys::MachineKeys,
        machine::wait_ready,
        reach::{ReachSettings, wireguard_endpoints},
    },
    commands::check::check_machine,
    etcd::stores,
    network::overlay,
    service::paths,
};
use kat_api::{new_token, random_uid};
use kat_host::{
    check::CheckStage,
    facts::node_facts,
    files::{self, FileAccess},
    users::Users,
};
use kat_render::Renderer;
use kat_store::{EtcdStore, StoreError, etcd_admin};
use kat_systemd::{ManagerSource, Managers, UnitManager};
use kat_types::{
    api::{Connection, Scope},
    encoding::json,
    machine::network::{PeerMachines, node_subnet},
    resource::AgentConfig,
};

/// Longest wait for etcd to serve after its start.
const ETCD_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for kat0.
const OVERLAY_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for the machine to be Ready.
const READY_LIMIT: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Default)]
pub(crate) struct InitOptions {
    /// Path of `cluster.kat`; `None` uses the defaults.
    pub config: Option<PathBuf>,
    /// Addresses, interfaces or host names at which others reach this machine.
    pub advertise: Vec<String>,
    /// Name of the machine; `None` uses the host name.
    pub node_name: Option<String>,
    /// Whether the machine is behind NAT.
    pub behind_nat: bool,
    /// Whether the machine relays packets between machines behind NAT.
    pub relay: bool,
}

/// Makes this machine the first of a new cluster, and waits until it is Ready.
///
/// Errors are sentences for users; as far as possible they are found before anything is changed.
/// `kat-agent reset` removes what a later failure leaves behind.
pub(crate) async fn run(options: InitOptions, say: StepPrinter<'_>) -> anyhow::Result<()> {
    if refuse_second()? == EarlierJoin::HalfJoin {
        bail!("an earlier join was interrupted; `kat-agent reset` removes what it made");
    }
    let cluster = new_cluster(options.config.as_deref())?;
    let config = read_agent_config()?;
    let machine = node_facts().await?;
    let node = node_name(options.node_name, &machine.hostname)?;
    let reached = ReachSettings {
        behind_nat: options.behind_nat,
        relay: options.relay,
        ..ReachSettings::new(&options.advertise).await?
    };
    let advertise = reached.addresses_now()?;
    say("looking at the machine");
    check_machine(&cluster, &config, CheckStage::BeforeInit, say).await?;

    let now = Timestamp::now();
    let subnet = node_subnet(cluster.spec.cluster_cidr, cluster.spec.node_subnet_bits, 0)
        .context("clusterCIDR has no room for one machine")?;
    let identity = MachineIdentity {
        schema: 1,
        node: node.clone(),
        node_uid: random_uid(),
        cluster_uid: random_uid(),
        cluster,
        subnet,
        advertise,
        etcd: true,
        reached,
    };
    let managers = Managers::new();
    let system = managers.system();
    let renderer = Renderer::installed()?;
    let settings = render_settings(&identity);

    say("putting sysctls, users and folders in place");
    files::ensure_folder(Path::new(paths::STATE), FileAccess::mode(0o755))?;
    forwarding::remember(Path::new("/"))?;
    put_in_place(&renderer.host_files(&settings)?).await?;
    reload_bus_policy().await?;
    restart_journal(system.as_ref(), say).await?;

    say("making the cluster's authorities and this machine's certificates");
    let keys = MachineKeys::new(Some(etcd_group()?));
    let recovery = keys.ensure_authorities(&identity.cluster_uid, now)?;
    keys.renew(&identity, &ClusterCache::default(), now)?;

    say("bringing up the overlay");
    let public_key = bring_up_overlay(&identity, &config, system.as_ref()).await?;

    say("starting etcd");
    let store = start_etcd(&identity, &keys, &renderer, system.as_ref()).await?;

    say("writing the cluster's first keys");
    let token = new_token(Scope::Admin, "init", now, None)?;
    let beginnings = InitialStoreValues {
        identity: &identity,
        public_key: &public_key,
        endpoints: wireguard_endpoints(
            &identity.reached.published_reach(),
            &identity.advertise,
            &config,
            identity.cluster.spec.wireguard_port,
        ),
        identity_key: keys.identity_key()?,
        member_keys: keys.member_keys()?,
        architecture: machine.architecture.clone(),
        authorities: keys.present_keys()?,
        token: (token.id, token.record),
    };
    write_first_keys(&store, &beginnings, now).await?;
    write_own_files(&identity, &keys, token.token)?;

    say("starting kat-agent");
    start_agent(system.as_ref()).await?;
    wait_ready(&identity, READY_LIMIT).await?;
    say(&format!(
        "machine {node} is Ready and leads the cluster {}\n\n  katcall status\n  katcall apply -f DIR --wait\n  katcall token create --join      # for the next machine",
        identity.cluster.metadata.name
    ));
    say(&format!(
        "\nThe recovery key of this cluster opens its backups when its machines are gone. Write it down, and\nkeep it away from them. On a machine that holds the store `sudo kat-agent recovery-key` shows it\nagain:\n\n  {}",
        recovery.reveal()
    ));
    Ok(())
}

fn etcd_group() -> anyhow::Result<u32> {
    let etcd_group = Users::new()
        .accounts()?
        .group(kat_render::ETCD_USER)
        .map(|group| group.gid);
    etcd_group.context("the group of etcd's user was not made")
}

/// Returns the machine's public WireGuard key, base64.
async fn bring_up_overlay(
    identity: &MachineIdentity,
    config: &AgentConfig,
    system: &dyn UnitManager,
) -> anyhow::Result<String> {
    let public_key = ensure_wireguard_key()?;
    let nobody = PeerMachines {
        schema: 1,
        ..PeerMachines::default()
    };
    write_network(identity, config, &nobody)?;
    for unit in ["kat-net.socket", "kat-net.service"] {
        system.enable(unit).await?;
        start(system, unit).await?;
    }
    overlay::wait_for_address(identity.overlay_address().into(), OVERLAY_LIMIT)
        .await
        .context("kat0 did not come up; `journalctl -u kat-net -u kat-wg` says why")?;
    Ok(public_key)
}

async fn start_etcd(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    renderer: &Renderer,
    system: &dyn UnitManager,
) -> anyhow::Result<EtcdStore> {
    write_host_file(&host_files::etcd(
        renderer,
        identity,
        &ClusterCache::default(),
    )?)?;
    system.reload().await?;
    start(system, host_files::ETCD).await?;
    let store = stores::leader(identity, keys, &ClusterCache::default()).await?;
    wait_for_etcd(&store).await?;
    Ok(store)
}

/// Writes the cluster into the empty store, and makes etcd's users and roles.
async fn write_first_keys(
    store: &EtcdStore,
    beginnings: &InitialStoreValues<'_>,
    now: Timestamp,
) -> anyhow::Result<()> {
    if !bootstrap::write(store, beginnings, now).await? {
        bail!("etcd already holds a cluster; `kat-agent reset` removes it from this machine");
    }
    etcd_admin::bootstrap_auth(store, &beginnings.identity.node, &[])
        .await
        .context("etcd's users and roles")
}

/// Writes the administrator's connection to the cluster, and last the identity: with it the machine
/// belongs to the cluster.
fn write_own_files(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    token: String,
) -> anyhow::Result<()> {
    let connection = Connection {
        cluster: identity.cluster.metadata.name.clone(),
        cluster_uid: identity.cluster_uid.clone(),
        endpoints: api_endpoints(identity),
        ca: keys.cluster_authority()?,
        token,
        namespace: None,
        api_name_required: true,
    };
    files::ensure_folder(Path::new(paths::CONFIGURATION), FileAccess::mode(0o755))?;
    files::write_atomic(
        Path::new(paths::ADMIN_CONNECTION),
        &json::pretty(paths::ADMIN_CONNECTION, &connection)?,
        FileAccess::mode(0o600),
    )?;
    files::write_atomic(
        Path::new(paths::IDENTITY),
        &json::pretty(paths::IDENTITY, identity)?,
        FileAccess::mode(0o600),
    )?;
    Ok(())
}

async fn start_agent(system: &dyn UnitManager) -> anyhow::Result<()> {
    system.enable("kat-agent.service").await?;
    // Enabling changes links that the manager has read already.
    system.reload().await?;
    start(system, "kat-agent.service").await
}

/// Waits until etcd serves; at this point it has neither users nor keys.
async fn wait_for_etcd(store: &EtcdStore) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + ETCD_LIMIT;
    loop {
        match store.health().await {
            Ok(_) => return Ok(()),
            Err(StoreError::Unavailable(reason)) if tokio::time::Instant::now() >= deadline => {
                bail!("etcd does not serve: {reason}; `journalctl -u kat-etcd` says why")
            }
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => return Err(error.into()),
        }
    }
}
