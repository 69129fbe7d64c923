//! Calls about rollouts.

use reqwest::Method;

use super::{
    Client, ClientError, RequestPath, calls::decode, path::WorkloadRoute, send::ApiRequest,
};
use kat_types::api::{
    ApiTime, ApplyResult, GenerationView, ImageRequest, List, RestartRequest, RollbackRequest,
    ScaleRequest,
};

impl Client {
    /// The kept generations of a workload, oldest first.
    pub async fn generations(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<List<GenerationView>, ClientError> {
        self.get(RequestPath::of_workload(
            namespace,
            name,
            WorkloadRoute::Generations,
        )?)
        .await
    }

    /// Rolls back to a generation, or to the last good one. With a number the call is retried after
    /// an unknown outcome.
    pub async fn roll_back(
        &self,
        namespace: &str,
        name: &str,
        to: Option<u64>,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Rollback)?;
        let mut request = self.json(Method::POST, route, &RollbackRequest { to })?;
        request.repeatable = to.is_some();
        decode(&self.send(&request).await?)
    }

    /// Pauses the rollouts of a workload, or resumes them.
    pub async fn pause_rollout(
        &self,
        namespace: &str,
        name: &str,
        paused: bool,
    ) -> Result<ApplyResult, ClientError> {
        let method = if paused { Method::PUT } else { Method::DELETE };
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Pause)?;
        decode(&self.send(&ApiRequest::new(method, route)).await?)
    }

    /// Sets the number of replicas.
    pub async fn scale(
        &self,
        namespace: &str,
        name: &str,
        replicas: u32,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Replicas)?;
        let request = self.json(Method::PUT, route, &ScaleRequest { replicas })?;
        decode(&self.send(&request).await?)
    }

    /// Stops a workload, or starts it again.
    pub async fn stop_workload(
        &self,
        namespace: &str,
        name: &str,
        stopped: bool,
    ) -> Result<ApplyResult, ClientError> {
        let method = if stopped { Method::PUT } else { Method::DELETE };
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Stop)?;
        decode(&self.send(&ApiRequest::new(method, route)).await?)
    }

    /// Changes the image in a workload's file.
    pub async fn set_image(
        &self,
        namespace: &str,
        name: &str,
        image: &str,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Image)?;
        let image = image.to_owned();
        let request = self.json(Method::PUT, route, &ImageRequest { image })?;
        decode(&self.send(&request).await?)
    }

    /// Replaces the instances of a workload by new ones, once for each given time (RFC 3339).
    pub async fn restart(
        &self,
        namespace: &str,
        name: &str,
        restarted_at: ApiTime,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Restart)?;
        let request = self.json(Method::PUT, route, &RestartRequest { restarted_at })?;
        decode(&self.send(&request).await?)
    }
}
