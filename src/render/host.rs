//! Files that `init`, `join` and the agent write outside the folders of workload users.

use std::{net::Ipv4Addr, path::PathBuf};

use serde::Serialize;

use super::{RenderError, RenderSettings, Renderer};
use kat_types::{ingress, machine::network::ANNOTATION};

/// User that runs the store.
pub const ETCD_USER: &str = "kat-etcd";
/// Size of the database in bytes at which etcd accepts no more writes.
pub const ETCD_QUOTA: u64 = 2 << 30;
/// Data folder of the store.
pub const ETCD_FOLDER: &str = "/var/lib/kat/etcd";
/// Seconds that the hook has beyond the longest hold.
const HOOK_MARGIN_SECONDS: u32 = 25;
/// Seconds by which the hook gives up before the runtime's limit, so that its error reaches the
/// journal.
const HOOK_OWN_MARGIN_SECONDS: u32 = 2;

/// A file of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFile {
    pub path: PathBuf,
    pub text: String,
    /// Permission bits, such as 0o644; the owner is root.
    pub mode: u32,
}

/// The parameters of `kat-etcd.service`. URLs are lists separated by commas, as in etcd's options.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EtcdUnit {
    /// Path of the distribution's etcd.
    pub program: String,
    /// User that runs it.
    pub user: String,
    /// Name of this member.
    pub name: String,
    /// Data folder; belongs to `user`, 0700.
    pub data_folder: String,
    /// `https://` URLs on loopback and the overlay.
    pub listen_client_urls: String,
    /// URL for other machines.
    pub advertise_client_urls: String,
    /// `https://` URL on the overlay.
    pub listen_peer_urls: String,
    /// URL for other members.
    pub advertise_peer_urls: String,
    /// `name=url` of all members.
    pub initial_cluster: String,
    /// `new` or `existing`.
    pub initial_cluster_state: String,
    /// Separates members of different clusters.
    pub initial_cluster_token: String,
    /// PEM file of the authority of etcd's clients.
    pub client_authority: String,
    /// PEM file of the certificate for clients.
    pub client_certificate: String,
    /// PEM file of its key.
    pub client_key: String,
    /// PEM file of the authority of etcd's peers.
    pub peer_authority: String,
    /// PEM file of the certificate for peers.
    pub peer_certificate: String,
    /// PEM file of its key.
    pub peer_key: String,
    /// Milliseconds between heartbeats of the raft leader.
    pub heartbeat_milliseconds: u32,
    /// Milliseconds without a heartbeat until an election.
    pub election_milliseconds: u32,
    /// The member has a vote, and must not start without its data.
    pub keeps_data: bool,
    /// Largest size of the database in bytes. It is set as an environment variable, so that an
    /// administrator's drop-in can change it.
    pub quota_bytes: u64,
}

impl EtcdUnit {
    /// The parameters of a machine's member on its overlay address. The files in `pki_folder` have
    /// to be named `etcd-client-ca.crt`, `etcd-server.{crt,key}`, `etcd-peer-ca.crt`,
    /// `etcd-peer.{crt,key}`.
    pub fn new(
        name: &str,
        address: Ipv4Addr,
        client_port: u16,
        peer_port: u16,
        pki_folder: &str,
    ) -> Self {
        let peer_url = format!("https://{address}:{peer_port}");
        let client_url = format!("https://{address}:{client_port}");
        let file = |file: &str| format!("{pki_folder}/{file}");
        Self {
            program: "/usr/bin/etcd".to_owned(),
            user: ETCD_USER.to_owned(),
            name: name.to_owned(),
            data_folder: ETCD_FOLDER.to_owned(),
            listen_client_urls: format!("https://127.0.0.1:{client_port},{client_url}"),
            advertise_client_urls: client_url,
            listen_peer_urls: peer_url.clone(),
            advertise_peer_urls: peer_url.clone(),
            initial_cluster: format!("{name}={peer_url}"),
            initial_cluster_state: "new".to_owned(),
            initial_cluster_token: "kat".to_owned(),
            client_authority: file("etcd-client-ca.crt"),
            client_certificate: file("etcd-server.crt"),
            client_key: file("etcd-server.key"),
            peer_authority: file("etcd-peer-ca.crt"),
            peer_certificate: file("etcd-peer.crt"),
            peer_key: file("etcd-peer.key"),
            heartbeat_milliseconds: 100,
            election_milliseconds: 1000,
            keeps_data: false,
            quota_bytes: ETCD_QUOTA,
        }
    }
}

/// Where a name without the cluster's domain is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameSearch {
    /// In the container's own namespace, and then as `WORKLOAD.NAMESPACE`.
    Cluster,
    /// In the container's own namespace alone.
    OwnNamespace,
}

#[derive(Debug, Serialize)]
struct ResolvValues<'a> {
    namespace: &'a str,
    domain: &'a str,
    address: String,
    own_namespace_only: bool,
}

#[derive(Debug, Serialize)]
struct HostValues {
    units_folder: String,
    resolv_folder: String,
    hooks_folder: String,
    hook_program: String,
    hook_timeout: u32,
    hook_own_timeout: u32,
    annotation_pattern: String,
    etcd_user: &'static str,
    ingress_user: &'static str,
    etcd_folder: &'static str,
}

impl Renderer {
    /// The unit of the store.
    pub fn etcd(&self, unit: &EtcdUnit) -> Result<HostFile, RenderError> {
        Ok(HostFile {
            path: "/etc/systemd/system/kat-etcd.service".into(),
            text: self.render("kat-etcd.service", unit)?,
            mode: 0o644,
        })
    }

    /// The resolv.conf of a namespace's containers; `address` is this machine's overlay address.
    pub fn resolv_conf(
        &self,
        namespace: &str,
        domain: &str,
        address: Ipv4Addr,
        search: NameSearch,
        settings: &RenderSettings,
    ) -> Result<HostFile, RenderError> {
        let address = address.to_string();
        Ok(HostFile {
            path: settings.resolv_file(namespace),
            text: self.render(
                "resolv.conf",
                &ResolvValues {
                    namespace,
                    domain,
                    address,
                    own_namespace_only: search == NameSearch::OwnNamespace,
                },
            )?,
            mode: 0o644,
        })
    }

    /// The files that `init` and `join` write and `reset` removes: the hook's JSON, sysctls, the
    /// journal's storage, users and folders.
    pub fn host_files(&self, settings: &RenderSettings) -> Result<Vec<HostFile>, RenderError> {
        let hook_timeout = settings.hold_seconds.saturating_add(HOOK_MARGIN_SECONDS);
        let values = HostValues {
            units_folder: settings.units_folder.display().to_string(),
            resolv_folder: settings.resolv_folder.display().to_string(),
            hooks_folder: settings.hooks_folder.display().to_string(),
            hook_program: settings.hook_program.display().to_string(),
            hook_timeout,
            hook_own_timeout: hook_timeout.saturating_sub(HOOK_OWN_MARGIN_SECONDS),
            annotation_pattern: format!("^{}$", ANNOTATION.replace('.', "\\.")),
            etcd_user: ETCD_USER,
            ingress_user: ingress::USER,
            etcd_folder: ETCD_FOLDER,
        };
        let files = [
            ("hook.json", settings.hook_file()),
            ("sysctl.conf", "/etc/sysctl.d/60-kat.conf".into()),
            (
                "journald.conf",
                "/etc/systemd/journald.conf.d/60-kat.conf".into(),
            ),
            ("sysusers.conf", "/etc/sysusers.d/kat.conf".into()),
            ("tmpfiles.conf", "/etc/tmpfiles.d/kat.conf".into()),
        ];
        files
            .into_iter()
            .map(|(template, path)| {
                Ok(HostFile {
                    path,
                    text: self.render(template, &values)?,
                    mode: 0o644,
                })
            })
            .collect()
    }
}
