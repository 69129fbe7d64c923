//! Calls about runs of Jobs.

use reqwest::Method;

use super::{
    Client, ClientError, RequestPath, calls::decode, path::WorkloadRoute, send::ApiRequest,
};
use kat_types::api::{ApplyResult, List, RunItem, RunRequest};

impl Client {
    /// Runs of Jobs of a namespace, or of all.
    pub async fn runs(&self, namespace: Option<&str>) -> Result<List<RunItem>, ClientError> {
        self.get(RequestPath::runs(namespace)?).await
    }

    /// Runs a Job now, with arguments of its own if there are any. It is not retried after an unknown
    /// outcome, since that could run it twice.
    pub async fn run_job(
        &self,
        namespace: &str,
        name: &str,
        args: Option<Vec<String>>,
    ) -> Result<RunItem, ClientError> {
        let route = RequestPath::of_workload(namespace, name, WorkloadRoute::Runs)?;
        let request = self.json(Method::POST, route, &RunRequest { args })?;
        decode(&self.send(&request).await?)
    }

    /// Ends a run of a Job.
    pub async fn cancel_run(
        &self,
        namespace: &str,
        name: &str,
        number: u64,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::run(namespace, name, number)?;
        decode(&self.send(&ApiRequest::new(Method::DELETE, route)).await?)
    }
}
