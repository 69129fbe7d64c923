//! What `kat-ingress` serves: the agent's files, checked and put together.
//!
//! [`ConfigFiles`] reads the files at the start and whenever they change. Each change makes a new
//! [`Config`], which requests and handshakes read; those under way keep the one that they began
//! with. Counters and pauses of instances survive, because they are kept by address.

pub(crate) mod certificates;
pub(crate) mod files;
pub(crate) mod passwords;
pub(crate) mod routes;

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;

use crate::{
    config::{certificates::CertificateTable, routes::RoutingTable},
    upstream::Upstream,
};
use kat_types::ingress::{IngressRevisions, RefusedPart};

pub use files::ConfigFiles;

/// One state of all files.
#[derive(Debug, Default)]
pub struct Config {
    /// Peers whose headers about the client are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Peers that must send a PROXY header.
    pub proxy_protocol_from: Vec<IpNet>,
    /// Whether each request is logged.
    pub access_log: bool,
    /// Routes by host.
    pub table: Arc<RoutingTable>,
    /// Instances by the upstream's name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Certificates by server name.
    pub certificates: Arc<CertificateTable>,
    /// Key authorizations by token.
    pub challenges: Arc<BTreeMap<String, String>>,
    /// What is served.
    pub revisions: IngressRevisions,
    /// What is not served.
    pub refused: Vec<RefusedPart>,
}
