//! Calls about machines.

use std::time::Duration;

use reqwest::Method;

use super::{Client, ClientError, RequestPath, calls::decode, send::ApiRequest};
use kat_types::api::{
    ApplyResult, List, NodeItem, NodeLabels, NodeReport, NodeTaints, UNSURE_HEADER,
};

/// A leader that does not report how sure it is may have lost the leadership for the whole of its
/// lease.
const FORMER_LEASE: Duration = Duration::from_secs(5);

impl Client {
    /// All machines.
    pub async fn nodes(&self) -> Result<List<NodeItem>, ClientError> {
        self.get(RequestPath::nodes()).await
    }

    /// One machine.
    pub async fn node(&self, name: &str) -> Result<NodeItem, ClientError> {
        self.get(RequestPath::node(name)?).await
    }

    /// Sends a machine's report; only its own certificate may do so. Not retried, since the next
    /// report is newer. Returns the time for which the leader has not been sure that no other
    /// machine leads.
    pub async fn report(&self, node: &str, report: &NodeReport) -> Result<Duration, ClientError> {
        let request = self.json(Method::POST, RequestPath::node_status(node)?, report)?;
        let (_, answer) = self.open(&request).await?;
        let unsure = answer.headers().get(UNSURE_HEADER);
        let unsure = unsure.and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(unsure.map_or(FORMER_LEASE, Duration::from_millis))
    }

    /// Removes a machine from the cluster.
    pub async fn delete_node(&self, name: &str) -> Result<(), ClientError> {
        self.delete(RequestPath::node(name)?).await
    }

    /// Moves all instances off a machine, and places no new ones there. The machine is empty some
    /// time after this call; with `force` instances that can't move are stopped.
    pub async fn drain_node(&self, name: &str, force: bool) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::node_drain(name)?;
        let route = if force {
            route.with("force", "true")
        } else {
            route
        };
        let request = ApiRequest::new(Method::PUT, route);
        decode(&self.send(&request).await?)
    }

    /// Lets a machine take work again.
    pub async fn uncordon_node(&self, name: &str) -> Result<ApplyResult, ClientError> {
        let request = ApiRequest::new(Method::DELETE, RequestPath::node_drain(name)?);
        decode(&self.send(&request).await?)
    }

    /// Sets all labels of a machine, unless it was changed after this resourceVersion.
    pub async fn set_node_labels(
        &self,
        name: &str,
        labels: &NodeLabels,
        if_match: &str,
    ) -> Result<ApplyResult, ClientError> {
        let mut request = self.json(Method::PUT, RequestPath::node_labels(name)?, labels)?;
        request.if_match = Some(if_match.to_owned());
        decode(&self.send(&request).await?)
    }

    /// Sets all taints of a machine, unless it was changed after this resourceVersion.
    pub async fn set_node_taints(
        &self,
        name: &str,
        taints: &NodeTaints,
        if_match: &str,
    ) -> Result<ApplyResult, ClientError> {
        let mut request = self.json(Method::PUT, RequestPath::node_taints(name)?, taints)?;
        request.if_match = Some(if_match.to_owned());
        decode(&self.send(&request).await?)
    }
}
