//! `kat-agent init`: the first machine of a cluster (RFC 4.1.1).

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use jiff::Timestamp;

use super::{
    bootstrap::{self, Beginnings},
    forwarding, host_files,
    identity::Identity,
    keys::Keys,
    look::check_machine,
    machine::{default_addresses, wait_ready},
    network_files::NetworkFiles,
    paths, stores,
};
use crate::{
    api::{
        new_token,
        types::{Connection, Scope},
    },
    bundle,
    host::{
        facts::{network as links, node_facts},
        files::{self, Access},
        users::Users,
    },
    network::{
        state::{self, DnsRecords, Instances, NodeNetwork, Peers},
        wireguard,
    },
    plan,
    render::{HostFile, RenderSettings, Renderer},
    resource::{AgentConfig, ClusterConfiguration, name},
    store::{EtcdStore, StoreError, etcd_admin},
    systemd::{JobResult, ManagerSource, Managers, UnitManager},
};

/// Largest configuration file.
const LIMIT: u64 = 256 << 10;
/// Longest start of one service.
const START_LIMIT: Duration = Duration::from_secs(90);
/// Longest wait for etcd to serve after its start.
const ETCD_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for the machine to be Ready.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct InitOptions {
    /// `cluster.kat`; its defaults without one.
    pub config: Option<PathBuf>,
    /// Addresses or interfaces at which others reach this machine.
    pub advertise: Vec<String>,
    /// Name of the machine; the host name without one.
    pub node_name: Option<String>,
}

/// Tells the person what happens. One sentence a step.
pub type Say<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Makes this machine the first of a new cluster, and waits until it is Ready.
///
/// Fails with a sentence, before anything is changed where that can be known. What a later failure
/// leaves behind is taken back by `kat-agent reset`.
pub async fn run(options: InitOptions, say: Say<'_>) -> anyhow::Result<()> {
    refuse_second()?;
    let cluster = read_cluster(options.config.as_deref())?;
    let config = read_agent_config()?;
    let machine = node_facts().await?;
    let node = node_name(options.node_name, &machine.hostname)?;
    let advertise = advertise_addresses(&options.advertise)?;
    say("looking at the machine");
    check_machine(&cluster, &config, say).await?;

    let now = Timestamp::now();
    let subnet = plan::node_subnet(cluster.spec.cluster_cidr, cluster.spec.node_subnet_bits, 0)
        .context("clusterCIDR has no room for one machine")?;
    let identity = Identity {
        schema: 1,
        node: node.clone(),
        node_uid: uuid::Uuid::new_v4().to_string(),
        cluster_uid: uuid::Uuid::new_v4().to_string(),
        cluster,
        subnet,
        advertise,
        etcd: true,
    };
    let managers = Managers::new();
    let system = managers.system();
    let renderer = Renderer::installed()?;
    let settings = render_settings(&identity);

    say("putting sysctls, users and folders in place");
    files::ensure_folder(Path::new(paths::STATE), Access::mode(0o755))?;
    forwarding::remember(Path::new("/"))?;
    put_in_place(&renderer.host_files(&settings)?).await?;
    reload_bus_policy().await?;
    restart_journal(system.as_ref()).await?;

    say("making the cluster's authorities and this machine's certificates");
    let etcd_group = Users::new()
        .accounts()?
        .group(crate::render::ETCD_USER)
        .map(|group| group.gid);
    let keys = Keys::new(Some(
        etcd_group.context("the group of etcd's user was not made")?,
    ));
    keys.ensure_authorities(&identity.cluster_uid, now)?;
    keys.renew(&identity, now)?;

    say("bringing up the overlay");
    let public_key = write_network(&identity, &config)?;
    for unit in ["kat-net.socket", "kat-net.service"] {
        system.enable(unit).await?;
        start(system.as_ref(), unit).await?;
    }

    say("starting etcd");
    write_host_file(&host_files::etcd(&renderer, &identity)?)?;
    system.reload().await?;
    start(system.as_ref(), host_files::ETCD).await?;
    let store = stores::leader(&identity, &keys).await?;
    wait_for_etcd(&store).await?;

    say("writing the cluster's first keys");
    let token = new_token(Scope::Admin, "init", now, None)?;
    let beginnings = Beginnings {
        identity: &identity,
        public_key: &public_key,
        endpoints: endpoints(&identity, &config),
        identity_key: keys.identity_key()?,
        architecture: machine.architecture.clone(),
        token: (token.id, token.record),
    };
    if !bootstrap::write(&store, &beginnings, now).await? {
        bail!("etcd already holds a cluster; `kat-agent reset` removes it from this machine");
    }
    etcd_admin::bootstrap_auth(&store, &node, &[&node])
        .await
        .context("etcd's users and roles")?;

    let connection = Connection {
        cluster: identity.cluster.metadata.name.clone(),
        cluster_uid: identity.cluster_uid.clone(),
        endpoints: api_endpoints(&identity),
        ca: keys.cluster_authority()?,
        token: token.token,
    };
    files::ensure_folder(Path::new(paths::CONFIGURATION), Access::mode(0o755))?;
    files::write_atomic(
        Path::new(paths::ADMIN_CONNECTION),
        &serde_json::to_vec_pretty(&connection)?,
        Access::mode(0o600),
    )?;
    files::write_atomic(
        Path::new(paths::IDENTITY),
        &serde_json::to_vec_pretty(&identity)?,
        Access::mode(0o600),
    )?;

    say("starting kat-agent");
    system.enable("kat-agent.service").await?;
    // Enabling changes links that the manager has read.
    system.reload().await?;
    start(system.as_ref(), "kat-agent.service").await?;
    wait_ready(&identity, READY_LIMIT).await?;
    say(&format!(
        "machine {node} is Ready and leads the cluster {}\n\n  katcall status\n  katcall apply -f DIR --wait",
        identity.cluster.metadata.name
    ));
    Ok(())
}

fn refuse_second() -> anyhow::Result<()> {
    if !nix::unistd::Uid::effective().is_root() {
        bail!("this needs root: run it with sudo");
    }
    let Ok(text) = files::read_text(Path::new(paths::IDENTITY), LIMIT) else {
        if Path::new(paths::PKI).join("node.key").exists() {
            bail!(
                "an earlier init did not come to its end; `kat-agent reset` takes back what it made"
            );
        }
        return Ok(());
    };
    match serde_json::from_str::<Identity>(&text) {
        Ok(identity) => bail!(
            "this machine is already `{}` of the cluster `{}`; `kat-agent reset` takes it out and removes its workloads",
            identity.node,
            identity.cluster.metadata.name
        ),
        Err(error) => bail!("{} exists but can't be read: {error}", paths::IDENTITY),
    }
}

/// `cluster.kat`, or its defaults.
pub fn read_cluster(path: Option<&Path>) -> anyhow::Result<ClusterConfiguration> {
    let Some(path) = path else {
        return Ok(ClusterConfiguration::default());
    };
    let text = files::read_text(path, LIMIT)?;
    let name = path.display().to_string();
    let cluster =
        bundle::parse_cluster(&text, &name).map_err(|diagnostics| explain(&diagnostics, &text))?;
    refuse_not_yet(&bundle::not_yet_cluster(&text, &name), &text)?;
    Ok(cluster)
}

/// `/etc/kat/agent.yaml`, or its defaults.
pub fn read_agent_config() -> anyhow::Result<AgentConfig> {
    match files::read_text(Path::new(paths::AGENT_CONFIG), LIMIT) {
        Ok(text) => {
            let config = bundle::parse_agent_config(&text, paths::AGENT_CONFIG)
                .map_err(|diagnostics| explain(&diagnostics, &text))?;
            refuse_not_yet(
                &bundle::not_yet_agent_config(&text, paths::AGENT_CONFIG),
                &text,
            )?;
            Ok(config)
        }
        Err(error) if error.is_not_found() => Ok(AgentConfig::default()),
        Err(error) => Err(error.into()),
    }
}

fn refuse_not_yet(diagnostics: &[bundle::Diagnostic], text: &str) -> anyhow::Result<()> {
    if diagnostics.is_empty() {
        Ok(())
    } else {
        Err(explain(diagnostics, text))
    }
}

fn explain(diagnostics: &[bundle::Diagnostic], text: &str) -> anyhow::Error {
    let rendered: Vec<_> = diagnostics
        .iter()
        .map(|diagnostic| bundle::render(diagnostic, text, false))
        .collect();
    anyhow::anyhow!("the configuration is not valid\n{}", rendered.join("\n"))
}

fn node_name(given: Option<String>, hostname: &str) -> anyhow::Result<String> {
    let from_host = || {
        hostname
            .split('.')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase()
    };
    let node = given.unwrap_or_else(from_host);
    name::check_label(&node).with_context(|| {
        format!("`{node}` can't be the machine's name; choose one with --node-name")
    })?;
    Ok(node)
}

fn advertise_addresses(given: &[String]) -> anyhow::Result<Vec<IpAddr>> {
    if given.is_empty() {
        let found = default_addresses();
        if found.is_empty() {
            bail!("no address of this machine was found; name one with --advertise-address");
        }
        return Ok(found);
    }
    let mut addresses = Vec::new();
    for word in given {
        match word.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => {
                let found: Vec<IpAddr> = links::addresses()
                    .into_iter()
                    .filter(|one| one.link == *word)
                    .map(|one| one.address)
                    .collect();
                if found.is_empty() {
                    bail!("`{word}` is neither an address nor an interface with an address");
                }
                addresses.extend(found);
            }
        }
    }
    Ok(addresses)
}

/// What is the same for every instance of this machine.
pub fn render_settings(identity: &Identity) -> RenderSettings {
    RenderSettings {
        hold_seconds: identity.cluster.spec.node_loss_timeout_seconds,
        ..RenderSettings::default()
    }
}

async fn put_in_place(host_files: &[HostFile]) -> anyhow::Result<()> {
    for file in host_files {
        write_host_file(file)?;
    }
    let path = |suffix: &str| {
        let file = host_files.iter().find(|file| file.path.starts_with(suffix));
        file.map(|file| file.path.display().to_string())
            .unwrap_or_default()
    };
    for (program, arguments) in [
        ("/usr/bin/systemd-sysusers", vec![path("/etc/sysusers.d")]),
        (
            "/usr/bin/systemd-tmpfiles",
            vec!["--create".to_owned(), path("/etc/tmpfiles.d")],
        ),
        (
            "/usr/lib/systemd/systemd-sysctl",
            vec![path("/etc/sysctl.d")],
        ),
    ] {
        let output = tokio::process::Command::new(program)
            .args(&arguments)
            .output()
            .await;
        let output = output.with_context(|| program.to_owned())?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            bail!("{program} {}: {words}", arguments.join(" "));
        }
    }
    Ok(())
}

fn write_host_file(file: &HostFile) -> anyhow::Result<()> {
    if let Some(folder) = file.path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    files::write_if_changed(&file.path, file.text.as_bytes(), Access::mode(file.mode))?;
    Ok(())
}

/// The system bus reads its policy again: it names a group that was only just made.
async fn reload_bus_policy() -> anyhow::Result<()> {
    let connection = zbus::Connection::system().await.context("the system bus")?;
    let bus = zbus::fdo::DBusProxy::new(&connection).await?;
    bus.reload_config()
        .await
        .context("the policy of the system bus")?;
    Ok(())
}

/// The journal takes its new setting, and what it has so far, to the disk.
async fn restart_journal(system: &dyn UnitManager) -> anyhow::Result<()> {
    system
        .restart("systemd-journald.service", START_LIMIT)
        .await?;
    let flushed = tokio::process::Command::new("/usr/bin/journalctl")
        .arg("--flush")
        .output()
        .await;
    flushed.context("journalctl --flush")?;
    Ok(())
}

fn write_network(identity: &Identity, config: &AgentConfig) -> anyhow::Result<String> {
    let folder = Path::new(state::FOLDER);
    files::ensure_folder(folder, Access::mode(0o700))?;
    let key_path = folder.join(state::PRIVATE_KEY_FILE);
    let key = if key_path.exists() {
        wireguard::read_private_key(&key_path)?
    } else {
        wireguard::generate_key()?
    };
    files::write_if_changed(&key_path, key.to_base64().as_bytes(), Access::mode(0o600))?;
    let public_key = key.public().to_string();
    let network = NetworkFiles::new(folder.to_owned());
    network.write_node(&node_network(identity, config))?;
    network.write_peers(&Peers {
        schema: 1,
        ..Peers::default()
    })?;
    network.write_instances(&Instances {
        schema: 1,
        ..Instances::default()
    })?;
    network.write_dns(&DnsRecords {
        schema: 1,
        ..DnsRecords::default()
    })?;
    Ok(public_key)
}

/// This machine, for `kat-net`.
pub fn node_network(identity: &Identity, config: &AgentConfig) -> NodeNetwork {
    let spec = &identity.cluster.spec;
    NodeNetwork {
        schema: 1,
        node: identity.node.clone(),
        cluster_cidr: spec.cluster_cidr,
        service_cidr: spec.service_cidr,
        subnet: identity.subnet,
        address: identity.overlay_address(),
        cluster_domain: spec.cluster_domain.clone(),
        wireguard_port: config.wireguard_port.unwrap_or(spec.wireguard_port),
        mtu: spec.mtu,
        upstream_dns: config.upstream_dns.clone(),
        hold_seconds: spec.node_loss_timeout_seconds,
    }
}

fn endpoints(identity: &Identity, config: &AgentConfig) -> Vec<String> {
    if !config.endpoints.is_empty() {
        return config.endpoints.clone();
    }
    let port = config
        .wireguard_port
        .unwrap_or(identity.cluster.spec.wireguard_port);
    identity
        .advertise
        .iter()
        .map(|address| SocketAddr::new(*address, port).to_string())
        .collect()
}

fn api_endpoints(identity: &Identity) -> Vec<String> {
    let port = identity.cluster.spec.api_port;
    identity
        .advertise
        .iter()
        .map(|address| SocketAddr::new(*address, port).to_string())
        .collect()
}

async fn start(system: &dyn UnitManager, unit: &str) -> anyhow::Result<()> {
    match system.start(unit, START_LIMIT).await? {
        JobResult::Done => Ok(()),
        result => bail!("{unit} did not start ({result:?}); `journalctl -u {unit}` says why"),
    }
}

/// etcd serves before its users exist, and the first key is not there yet.
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

/// The identity of this machine; a sentence when it has none.
pub fn read_identity() -> anyhow::Result<Arc<Identity>> {
    let text = match files::read_text(Path::new(paths::IDENTITY), LIMIT) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => {
            bail!("this machine is in no cluster yet; `kat-agent init` makes one")
        }
        Err(error) => return Err(error.into()),
    };
    let identity = serde_json::from_str(&text).with_context(|| paths::IDENTITY.to_owned())?;
    Ok(Arc::new(identity))
}
