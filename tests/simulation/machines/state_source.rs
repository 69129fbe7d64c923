//! Where a machine reads the keys that it may see: the real order of servers, the real feeds of the
//! members, and between them the simulated network.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::timeout;

use crate::{
    api_calls::{Net, StreamRoute},
    faults::stream_faults::unreachable,
};
use kat_agent::{MemberStateSource, StateServers};
use kat_store::{LocalStateSource, StateFeed, StateFrames, StateSource, StateSourceError};
use kat_types::{encoding::state_frames::StatePosition, store::members::ClusterMembers};

/// Longest wait for the head of the answer, as in the agent.
const ANSWER: Duration = Duration::from_secs(6);
/// Port of the overlay addresses.
const PORT: u16 = 9115;

/// The stream of the members, one after the other, and of members behind another machine.
struct NetStateSource {
    node: String,
    net: Arc<Net>,
    attempts: AtomicUsize,
}

impl NetStateSource {
    /// The server of an attempt; behind a machine without the store the member that it forwards to.
    fn route(&self, attempt: usize) -> Option<StreamRoute> {
        let net = &self.net;
        let server = |node: &str, attempt: usize| {
            let servers = StateServers::of(&net.endpoints, &ClusterMembers::default(), node, PORT);
            let address = servers.of_attempt(attempt)?.first()?.clone();
            net.machine_at(&address)
        };
        let first = server(&self.node, attempt)?;
        if net.endpoints.machines[&first].etcd {
            return Some(StreamRoute {
                server: first,
                through: None,
            });
        }
        Some(StreamRoute {
            server: server(&first, attempt % 3)?,
            through: Some(first),
        })
    }
}

#[async_trait]
impl StateSource for NetStateSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let route = self.route(attempt);
        let route = route.ok_or_else(|| unreachable("nobody is known"))?;
        let opened = timeout(ANSWER, self.net.open_stream(&self.node, route, resume)).await;
        opened.unwrap_or_else(|_| Err(unreachable("no answer in time")))
    }
}

/// The source of a machine; `own` is its feed if it is a member.
pub(crate) fn state_source(
    node: &str,
    net: &Arc<Net>,
    own: Option<StateFeed>,
) -> Arc<dyn StateSource> {
    let stream = Arc::new(NetStateSource {
        node: node.to_owned(),
        net: Arc::clone(net),
        attempts: AtomicUsize::default(),
    });
    match own {
        None => stream,
        Some(feed) => Arc::new(MemberStateSource {
            own: Arc::new(LocalStateSource::new(feed, node)),
            stream,
            stream_next: AtomicBool::new(false),
        }),
    }
}
