//! The overview of a cluster: `GET /v1alpha1/overview`. Every machine may read it, so it has no
//! messages, labels, events, namespaces, workloads or instances.

use std::net::Ipv4Addr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{ApiTime, NodePhase, NodeRole, newer};

/// Largest number of servers that a sentence names.
const NAMED: usize = 5;

/// Type of a machine's condition: the machine is known by the cluster's overview alone, which a
/// machine without the store shows. Its resources, instances and other conditions are not known
/// there.
pub const OVERVIEW_ONLY: &str = "OverviewOnly";

/// Type of a machine's condition: no machine that holds the store answers this one, which shows
/// what was known last.
pub const STORE_SILENT: &str = "StoreSilent";

/// Response of `/v1alpha1/overview`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterOverview {
    /// Name of the cluster.
    pub cluster: String,
    /// Uid of the cluster.
    pub cluster_uid: String,
    /// Name of the leading machine; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// Whether the responding machine reaches no leader, so that it shows the last state that it
    /// received.
    pub stale: bool,
    /// The machines, by name.
    pub nodes: Vec<OverviewNode>,
    /// State of the store.
    pub store: OverviewStore,
    /// How a machine without the store learned this; absent if the responding machine holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<OverviewRelayState>,
}

/// A machine in the overview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverviewNode {
    /// Name of the machine.
    pub name: String,
    /// Phase of the machine. In an object of a newer version, an unknown phase is read as
    /// `Joining`.
    #[serde(deserialize_with = "newer::word")]
    pub phase: NodePhase,
    /// Reason of the phase: a word of KAT's list of reasons, or empty.
    pub reason: String,
    /// Roles of the machine. Unknown roles of a newer version are left out.
    #[serde(deserialize_with = "newer::roles")]
    pub roles: Vec<NodeRole>,
    /// Overlay address of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub overlay_address: Option<Ipv4Addr>,
    /// `host:port` of the machine's API.
    pub endpoints: Vec<String>,
    /// Version of KAT on the machine; empty if unknown.
    pub version: String,
}

/// State of the store in the overview, as the leader last saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverviewStore {
    /// Number of members of etcd.
    pub members: u32,
    /// Number of members with a vote.
    pub voting: u32,
    /// Number of members that answer.
    pub healthy: u32,
    /// Whether most members with a vote answer; absent if no leader can say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quorum: Option<bool>,
    /// Problems of the store: words of KAT's list of reasons, such as `StoreFull`.
    pub reasons: Vec<String>,
}

/// How a machine without the store learned the overview that it shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OverviewRelayState {
    /// Name of the machine that shows the overview.
    pub node: String,
    /// When the overview was read from a machine that holds the store; absent if it was not read
    /// since the agent started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<ApiTime>,
    /// Since when no machine that holds the store answers; absent if one answered the last time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<ApiTime>,
    /// The machines that hold the store, in the order in which they are asked.
    pub asked: Vec<AskedServer>,
}

/// A machine that holds the store and is asked for the overview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AskedServer {
    /// Name of the machine.
    pub name: String,
    /// `host:port` of its API.
    pub endpoints: Vec<String>,
    /// Why it gave no overview the last time; empty if it was not asked or gave one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl AskedServer {
    fn endpoint(&self) -> &str {
        self.endpoints.first().map_or("", String::as_str)
    }

    /// Such as `n1 (192.0.2.1:9115)`.
    fn with_endpoint(&self) -> String {
        match self.endpoint() {
            "" => self.name.clone(),
            endpoint => format!("{} ({endpoint})", self.name),
        }
    }

    /// Such as `n1 (192.0.2.1)`.
    fn with_host(&self) -> String {
        let host = self
            .endpoint()
            .rsplit_once(':')
            .map_or("", |(host, _)| host);
        match host.trim_start_matches('[').trim_end_matches(']') {
            "" => self.name.clone(),
            host => format!("{} ({host})", self.name),
        }
    }
}

impl OverviewRelayState {
    /// The silence of the machines that hold the store: `nobody answers since TIME, asked n1
    /// (192.0.2.1:9115)`. `None` while one answers.
    pub fn silence(&self) -> Option<String> {
        let since = to_the_second(self.silent_since?);
        let asked = named(&self.asked, AskedServer::with_endpoint);
        Some(match asked.is_empty() {
            true => format!(
                "no machine that holds the store answers since {since}, and none is known here to ask"
            ),
            false => {
                format!("no machine that holds the store answers since {since}, asked {asked}")
            }
        })
    }

    /// When the overview was read: `as of TIME`; `None` if it never was.
    pub fn time(&self) -> Option<String> {
        Some(format!("as of {}", to_the_second(self.as_of?)))
    }

    /// The machines to ask instead of this one: `n1 (192.0.2.1), n2 (192.0.2.2)`; empty if none is
    /// known.
    pub fn elsewhere(&self) -> String {
        named(&self.asked, AskedServer::with_host)
    }
}

fn named(servers: &[AskedServer], name: fn(&AskedServer) -> String) -> String {
    let first: Vec<String> = servers.iter().take(NAMED).map(name).collect();
    let first = first.join(", ");
    match servers.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Such as `2026-11-22T03:40:00Z`.
fn to_the_second(time: ApiTime) -> String {
    time.get().map_or_else(
        || "an unknown time".to_owned(),
        |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, endpoint: &str) -> AskedServer {
        AskedServer {
            name: name.to_owned(),
            endpoints: vec![endpoint.to_owned()],
            error: String::new(),
        }
    }

    #[test]
    fn the_silence_names_the_time_and_who_was_asked() {
        let mut state = OverviewRelayState {
            node: "n4".to_owned(),
            asked: vec![
                server("n1", "192.168.77.11:9115"),
                server("n2", "[2001:db8::2]:9115"),
            ],
            ..OverviewRelayState::default()
        };
        assert_eq!(state.silence(), None);
        assert_eq!(state.time(), None);
        assert_eq!(state.elsewhere(), "n1 (192.168.77.11), n2 (2001:db8::2)");
        state.as_of = Some(ApiTime::parse("2026-11-22T03:40:00.123Z"));
        state.silent_since = Some(ApiTime::parse("2026-11-22T03:41:00Z"));
        assert_eq!(state.time().as_deref(), Some("as of 2026-11-22T03:40:00Z"));
        assert_eq!(
            state.silence().as_deref(),
            Some(
                "no machine that holds the store answers since 2026-11-22T03:41:00Z, asked n1 (192.168.77.11:9115), n2 ([2001:db8::2]:9115)"
            )
        );
        state.asked.clear();
        assert!(
            state
                .silence()
                .is_some_and(|text| text.ends_with("none is known here to ask"))
        );
        state.asked = (1..=7).map(|n| server(&format!("n{n}"), "h:1")).collect();
        assert!(state.elsewhere().ends_with("n5 (h) and 2 more"));
    }

    #[test]
    fn an_overview_of_a_newer_version_is_read() {
        let text = serde_json::json!({
            "cluster": "home", "clusterUid": "u", "newer": [1],
            "nodes": [{"name": "n1", "phase": "Hibernating", "roles": ["leader", "oracle"], "weather": "fine"}],
        });
        let overview: ClusterOverview = serde_json::from_value(text).unwrap();
        assert_eq!(overview.nodes[0].phase, NodePhase::Joining);
        assert_eq!(overview.nodes[0].roles, [NodeRole::Leader]);
        assert_eq!(overview.store, OverviewStore::default());
    }
}
