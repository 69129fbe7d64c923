//! Shared by `init` and `join`: reads the machine's settings, and writes its files.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};

use crate::{
    cluster::identity::MachineIdentity,
    network::{files::NetworkFiles, isolation},
    service::paths,
};
use kat_bundle as bundle;
use kat_host::files::{self, FileAccess};
use kat_network::overlay::wireguard;
use kat_pki as pki;
use kat_render::{HostFile, RenderSettings};
use kat_systemd::{JobResult, UnitManager};
use kat_types::{
    machine::network::{self, DnsRecords, Instances, NodeNetwork, PeerMachines},
    resource::{AgentConfig, ClusterConfiguration, Isolation},
};

/// Largest configuration file in bytes.
const LIMIT: u64 = 256 << 10;
/// Longest start of one service.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Prints one sentence for each step.
pub(crate) type StepPrinter<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// The remains of an earlier `join`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EarlierJoin {
    Nothing,
    /// A key, and perhaps more: the join was interrupted and may be continued.
    HalfJoin,
}

/// Fails on a machine that is in a cluster, or whose init was interrupted.
pub(crate) fn refuse_second() -> anyhow::Result<EarlierJoin> {
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: run it with sudo");
    }
    let Ok(text) = files::read_text(Path::new(paths::IDENTITY), LIMIT) else {
        let there = |name: &str| Path::new(paths::PKI).join(name).exists();
        let restoring = Path::new(paths::RECOVERY).exists();
        if !restoring && (there("cluster-ca.key") || there("recovery.key")) {
            bail!("an earlier init was interrupted; `kat-agent reset` removes what it made");
        }
        return Ok(if there("node.key") {
            EarlierJoin::HalfJoin
        } else {
            EarlierJoin::Nothing
        });
    };
    match serde_json::from_str::<MachineIdentity>(&text) {
        Ok(identity) => bail!(
            "this machine is already `{}` of the cluster `{}`; `kat-agent reset` takes it out and removes its workloads",
            identity.node,
            identity.cluster.metadata.name
        ),
        Err(error) => bail!("{} exists but can't be read: {error}", paths::IDENTITY),
    }
}

/// Reads `cluster.kat`; `None` gives the defaults.
pub(crate) fn read_cluster(path: Option<&Path>) -> anyhow::Result<ClusterConfiguration> {
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

/// Reads `cluster.kat` for a new cluster, which isolates namespaces unless the file says otherwise.
pub(crate) fn new_cluster(path: Option<&Path>) -> anyhow::Result<ClusterConfiguration> {
    let mut cluster = read_cluster(path)?;
    let text = path.map(|path| files::read_text(path, LIMIT)).transpose()?;
    if !text.is_some_and(|text| bundle::settings::is_written(&text, "isolation")) {
        cluster.spec.isolation = Isolation::Namespaces;
    }
    Ok(cluster)
}

/// Reads `/etc/kat/agent.yaml`; a missing file gives the defaults.
pub(crate) fn read_agent_config() -> anyhow::Result<AgentConfig> {
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

/// The given name, or the host name up to its first dot.
pub(crate) fn node_name(given: Option<String>, hostname: &str) -> anyhow::Result<String> {
    let from_host = || {
        hostname
            .split('.')
            .next()
            .unwrap_or_default()
            .to_ascii_lowercase()
    };
    let node = given.unwrap_or_else(from_host);
    pki::check_name(&node).with_context(|| {
        format!("`{node}` can't be the machine's name; choose one with --node-name")
    })?;
    Ok(node)
}

/// The render settings of all instances of this machine.
pub(crate) fn render_settings(identity: &MachineIdentity) -> RenderSettings {
    RenderSettings {
        volumes_folder: identity.cluster.spec.volume_base_path.as_str().into(),
        hold_seconds: identity.cluster.spec.node_loss_timeout_seconds,
        ..RenderSettings::default()
    }
}

/// Writes files of the machine, and makes systemd's programs use them.
pub(crate) async fn put_in_place(host_files: &[HostFile]) -> anyhow::Result<()> {
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
        run_program(program, &arguments).await?;
    }
    Ok(())
}

/// Runs a program to its end. The error of one that fails has its stderr.
async fn run_program(program: &str, arguments: &[String]) -> anyhow::Result<()> {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .output()
        .await;
    let output = output.with_context(|| program.to_owned())?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{program} {}: {words}", arguments.join(" "));
    }
    Ok(())
}

pub(crate) fn write_host_file(file: &HostFile) -> anyhow::Result<()> {
    if let Some(folder) = file.path.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    files::write_if_changed(
        &file.path,
        file.text.as_bytes(),
        FileAccess::mode(file.mode),
    )?;
    Ok(())
}

/// Makes the system bus read its policy again: it names a group that has just been created.
pub(crate) async fn reload_bus_policy() -> anyhow::Result<()> {
    let connection = zbus::Connection::system().await.context("the system bus")?;
    let bus = zbus::fdo::DBusProxy::new(&connection).await?;
    bus.reload_config()
        .await
        .context("the policy of the system bus")?;
    Ok(())
}

/// Makes the journal use its new setting, and write its present content to the disk.
pub(crate) async fn restart_journal(
    system: &dyn UnitManager,
    say: StepPrinter<'_>,
) -> anyhow::Result<()> {
    system
        .restart("systemd-journald.service", START_LIMIT)
        .await?;
    let flushed = tokio::process::Command::new("/usr/bin/journalctl")
        .arg("--flush")
        .output()
        .await;
    flushed.context("journalctl --flush")?;
    // journald makes its folder with the group root. systemd gives it to the group systemd-journal at a
    // boot (systemd-journald.service(8)).
    let arguments = ["--create", "--prefix", "/var/log/journal"].map(str::to_owned);
    if let Err(error) = run_program("/usr/bin/systemd-tmpfiles", &arguments).await {
        say(&format!(
            "the group systemd-journal may not read the journal before the next boot: {error:#}"
        ));
    }
    Ok(())
}

/// This machine's public WireGuard key, base64; makes the private key if it is missing.
pub(crate) fn ensure_wireguard_key() -> anyhow::Result<String> {
    let folder = Path::new(network::FOLDER);
    files::ensure_folder(folder, FileAccess::mode(0o700))?;
    let key_path = folder.join(network::PRIVATE_KEY_FILE);
    let key = if key_path.exists() {
        wireguard::read_private_key(&key_path)?
    } else {
        wireguard::generate_key()?
    };
    files::write_if_changed(
        &key_path,
        key.to_base64().as_bytes(),
        FileAccess::mode(0o600),
    )?;
    Ok(key.public().to_string())
}

/// Writes the first state files of `kat-net`.
pub(crate) fn write_network(
    identity: &MachineIdentity,
    config: &AgentConfig,
    peers: &PeerMachines,
) -> anyhow::Result<()> {
    let network = NetworkFiles::new(network::FOLDER.into());
    write_machines(&network, &node_network(identity, config), peers)?;
    network.write_isolation(&isolation::first_rules(&identity.cluster.spec))?;
    network.write_instances(&Instances {
        schema: 1,
        ..Instances::default()
    })?;
    Ok(())
}

/// Writes what `kat-net` needs to know of this machine and of the others, without any name.
pub(crate) fn write_machines(
    network: &NetworkFiles,
    node: &NodeNetwork,
    peers: &PeerMachines,
) -> anyhow::Result<()> {
    network.write_node(node)?;
    network.write_peers(peers)?;
    network.write_dns(&DnsRecords {
        schema: 1,
        ..DnsRecords::default()
    })?;
    Ok(())
}

/// This machine's own entry for `kat-net`.
pub(crate) fn node_network(identity: &MachineIdentity, config: &AgentConfig) -> NodeNetwork {
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
        control_ports: [
            spec.etcd_client_port,
            spec.etcd_peer_port,
            spec.api_port,
            spec.agent_port,
        ]
        .into(),
        api_port: Some(spec.api_port),
        hold_seconds: spec.node_loss_timeout_seconds,
        relay: identity.reached.relay,
    }
}

/// `host:port` of this machine's API.
pub(crate) fn api_endpoints(identity: &MachineIdentity) -> Vec<String> {
    let port = identity.cluster.spec.api_port;
    identity
        .advertise
        .iter()
        .map(|address| SocketAddr::new(*address, port).to_string())
        .collect()
}

/// Starts a unit and waits until it runs.
pub(crate) async fn start(system: &dyn UnitManager, unit: &str) -> anyhow::Result<()> {
    match system.start(unit, START_LIMIT).await? {
        JobResult::Done => Ok(()),
        result => bail!("{unit} did not start ({result:?}); `journalctl -u {unit}` says why"),
    }
}

/// The identity of a machine whose join has at least begun.
pub(crate) fn read_joined() -> Option<MachineIdentity> {
    [paths::IDENTITY, paths::JOINING].iter().find_map(|path| {
        let text = files::read_text(Path::new(path), LIMIT).ok()?;
        serde_json::from_str(&text).ok()
    })
}

/// The identity of this machine; the error is a sentence for users.
pub(crate) fn read_identity() -> anyhow::Result<Arc<MachineIdentity>> {
    let text = match files::read_text(Path::new(paths::IDENTITY), LIMIT) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => {
            bail!(
                "this machine is in no cluster yet; `kat-agent init` makes one, `kat-agent join` joins one"
            )
        }
        Err(error) => return Err(error.into()),
    };
    let identity = serde_json::from_str(&text).with_context(|| paths::IDENTITY.to_owned())?;
    Ok(Arc::new(identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_fails_is_named_with_its_stderr() {
        let shell = |script: &str| ["-c".to_owned(), script.to_owned()];
        let failed = run_program("/bin/sh", &shell("echo no room >&2; exit 3")).await;
        assert_eq!(
            failed.unwrap_err().to_string(),
            "/bin/sh -c echo no room >&2; exit 3: no room"
        );
        run_program("/bin/sh", &shell("exit 0")).await.unwrap();
        let missing = run_program("/nowhere/program", &[]).await;
        assert_eq!(missing.unwrap_err().to_string(), "/nowhere/program");
    }
}
