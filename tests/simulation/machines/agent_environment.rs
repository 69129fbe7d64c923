//! Fakes for what an agent uses on its machine: the report sink, the facts, logs, sessions and
//! listening ports.

use std::{net::SocketAddrV4, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::body::Body;
use futures_util::future::BoxFuture;
use hyper::{Request, Response, StatusCode, header};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    faults::forged_reports::Forger,
    machines::{data_path::DataPath, lan::Lan},
};
use kat_agent::{HostListeners, MachineFacts, ProbeNetwork, ReportSink, Volumes};
use kat_api::{
    InputFrames, InstanceLogs, InstanceSessions, LogStream, LoggedWorkload, LogsError,
    OutputFrames, SessionError, SessionRequest,
};
use kat_host::facts::network::Listener;
use kat_store::Mirror;
use kat_types::{
    api::{
        Condition, GoneInstances, LogQuery, NodeReport, NodeResources, NodeUsage, OverlayReport,
        UNSURE_HEADER, VirtualAddressReport,
    },
    resource::{Bytes, MilliCpu, Protocol, ResourceList},
    store::{keys, snapshot::InstanceEntry},
};

/// No program of the machine listens on a port.
pub(crate) struct Nobody;

impl HostListeners for Nobody {
    fn listeners_on(&self, _: &[(Protocol, u16)]) -> Vec<Listener> {
        Vec::new()
    }

    fn port_left_to_program(&self, _: &[(Protocol, u16)]) -> Option<(Protocol, u16)> {
        None
    }
}

/// Every health probe succeeds.
pub(crate) struct Well;

#[async_trait]
impl ProbeNetwork for Well {
    async fn connect(&self, _: SocketAddrV4) -> Result<(), String> {
        Ok(())
    }

    async fn get(&self, _: SocketAddrV4, _: &str) -> Result<u16, String> {
        Ok(200)
    }
}

/// Sends reports to the machine that the store names as the leader's endpoint.
pub(crate) struct Sink {
    pub node: String,
    pub net: Arc<Net>,
    pub monitor: Arc<Monitor>,
    /// The machine's copy of what it may see.
    pub copy: Mirror,
    /// The leader's endpoint of the last confirmed copy, which is on the machine's disk.
    pub known_leader: Arc<Mutex<Option<String>>>,
    /// Set on the machine that forges reports: each report is replaced before it is sent.
    pub forger: Option<Arc<Forger>>,
}

#[async_trait]
impl ReportSink for Sink {
    async fn send(&self, report: &NodeReport) -> Result<Duration, String> {
        if self.net.refuses_reports(&self.node) {
            return Err("connection refused".to_owned());
        }
        let copy = self.copy.snapshot();
        if copy.confirmed
            && let Some(endpoint) = copy.get(keys::LEADER_ENDPOINT)
        {
            let endpoint = String::from_utf8_lossy(&endpoint.value).into_owned();
            *self.known_leader.lock() = Some(endpoint);
        }
        let endpoint = self.known_leader.lock().clone();
        let endpoint = endpoint.ok_or("no leader is known")?;
        let leader = endpoint.split(':').next().unwrap_or_default();
        let forged = self.forger.as_ref().map(|forger| forger.forge(report));
        if let Some((_, lies)) = &forged {
            self.monitor.note(&format!("{} says {lies}", self.node));
        }
        let report = forged.as_ref().map_or(report, |(forged, _)| forged);
        let sent = SentReport {
            net: Arc::clone(&self.net),
            monitor: Arc::clone(&self.monitor),
            node: self.node.clone(),
            leader: leader.to_owned(),
            body: serde_json::to_vec(report).unwrap(),
            at: Instant::now(),
        };
        if let Some(after) = self.net.ways[&self.node].now().reports_repeated {
            let copy = sent.clone();
            tokio::spawn(async move {
                sleep(after).await;
                let _ = copy.arrive().await;
            });
        }
        let answered = sent.arrive().await?;
        if answered.status() != StatusCode::NO_CONTENT {
            return Err(format!("the leader said {}", answered.status()));
        }
        let unsure = answered.headers()[UNSURE_HEADER].to_str().unwrap();
        Ok(Duration::from_millis(unsure.parse().unwrap()))
    }
}

/// A report on its way to the leader.
#[derive(Clone)]
struct SentReport {
    net: Arc<Net>,
    monitor: Arc<Monitor>,
    node: String,
    leader: String,
    body: Vec<u8>,
    at: Instant,
}

impl SentReport {
    async fn arrive(self) -> Result<Response<Body>, String> {
        let request = Request::post(format!("/v1alpha1/nodes/{}/status", self.node))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(self.body))
            .unwrap();
        let (monitor, node, at) = (self.monitor, self.node.clone(), self.at);
        let heard = move || monitor.record_accepted_report(&node, at);
        self.net
            .ask(Some(&self.node), &self.leader, request, heard)
            .await
    }
}

pub(crate) struct Facts {
    pub shared: bool,
    pub volumes: Arc<Volumes>,
    pub data_path: Arc<DataPath>,
    /// The LAN with virtual addresses, in the runs that have some.
    pub lan: Option<Arc<Lan>>,
    pub node: String,
}

#[async_trait]
impl MachineFacts for Facts {
    fn volume_shared(&self) -> bool {
        self.shared
    }

    fn made_volumes(&self) -> Vec<String> {
        self.volumes.all_made()
    }

    fn resources(&self) -> NodeResources {
        let all = ResourceList {
            cpu: Some(MilliCpu(16_000)),
            memory: Some(Bytes(64 << 30)),
            storage: None,
        };
        NodeResources {
            capacity: all,
            allocatable: all,
        }
    }

    fn architecture(&self) -> String {
        "amd64".to_owned()
    }

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    fn conditions(&self) -> Vec<Condition> {
        Vec::new()
    }

    fn virtual_addresses(&self) -> Vec<VirtualAddressReport> {
        let lan = self.lan.as_ref();
        lan.map(|lan| lan.reports(&self.node)).unwrap_or_default()
    }

    async fn overlay(&self) -> OverlayReport {
        self.data_path.report()
    }

    fn moved(&self) -> BoxFuture<'static, ()> {
        match &self.lan {
            Some(lan) => Box::pin(Arc::clone(lan).state_change(&self.node)),
            None => Box::pin(std::future::pending()),
        }
    }
}

pub(crate) struct NoInstanceLogs;

#[async_trait]
impl InstanceSessions for NoInstanceLogs {
    async fn begin(
        &self,
        _caller: Option<&str>,
        _instance: &InstanceEntry,
        _request: SessionRequest,
        _inputs: InputFrames,
    ) -> Result<OutputFrames, SessionError> {
        Err(SessionError::Unavailable(
            "there are no sessions".to_owned(),
        ))
    }

    async fn usage(&self, _: &str, _: &[InstanceEntry]) -> Result<NodeUsage, SessionError> {
        Ok(NodeUsage::default())
    }
}

#[async_trait]
impl InstanceLogs for NoInstanceLogs {
    async fn open(
        &self,
        _instance: &InstanceEntry,
        _query: LogQuery,
    ) -> Result<LogStream, LogsError> {
        Err(LogsError::Unavailable("there are no logs".to_owned()))
    }

    async fn gone(&self, _: &LoggedWorkload, _: &[String]) -> GoneInstances {
        GoneInstances::default()
    }

    async fn open_gone(
        &self,
        _: &LoggedWorkload,
        _: &str,
        _: &str,
        _: LogQuery,
    ) -> Result<Option<LogStream>, LogsError> {
        Ok(None)
    }
}
