//! One method for each route (RFC001-KAT 8.2; docs/internals/api.md).

use bytes::Bytes;
use reqwest::Method;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Client, ClientError, JsonLines, RequestPath,
    path::WorkloadRoute,
    send::{ApiRequest, ApiResponse},
};
use kat_types::{
    api::{
        ApplyResult, Certificates, ClusterOverview, ConfigurationChange, ConfigurationHistory,
        Event, EventFilter, GoneInstances, HealthView, InstanceItem, IsolationView, JoinAnswer,
        JoinRequest, List, LogLine, LogQuery, MembershipAnswer, NamespaceItem, NamespaceRequest,
        NamespaceUsage, NodeMeasurements, NodeUsage, RenewalRequest, ServerVersion, TokenRequest,
        TokenView, WatchLine, WorkloadItem,
    },
    encoding::json,
    resource::{Amounts, ClusterConfiguration, Namespace},
};

/// Longest line of a watch, bytes.
const MAX_WATCH_LINE: usize = 8 << 20;
/// Longest line of a log stream, bytes.
const MAX_LOG_LINE: usize = 1 << 20;
/// Longest list of a machine's instances that are gone, bytes: no machine may fill the leader's
/// memory.
const MAX_GONE: usize = 64 << 10;

/// How a workload or a namespace is deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Only report what would happen.
    pub dry_run: bool,
    /// For a namespace: delete its workloads too.
    pub cascade: bool,
    /// Delete the data of volumes too.
    pub volumes: bool,
}

impl Deletion {
    fn of(self, route: RequestPath) -> RequestPath {
        [
            ("dryRun", self.dry_run),
            ("cascade", self.cascade),
            ("volumes", self.volumes),
        ]
        .into_iter()
        .filter(|(_, asked)| *asked)
        .fold(route, |route, (name, _)| route.with(name, "true"))
    }
}

/// Result of an apply, and whether it was a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyOutcome {
    /// The server's result.
    pub result: ApplyResult,
    /// Nothing was stored, since it was a dry run.
    pub dry_run: bool,
}

/// The files of a workload as the cluster keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSource {
    /// A gzipped tar archive; it is not checked.
    pub archive: Bytes,
    /// The workload's resourceVersion, for `if_match` of [`Client::apply`].
    pub version: String,
}

/// Maximum bytes of what a machine measures of itself: some hundred for each instance.
const MOST_MEASUREMENTS: usize = 4 << 20;

impl Client {
    /// Reads any route.
    ///
    /// # Errors
    /// [`ClientError`], as all calls.
    pub async fn get<T: DeserializeOwned>(&self, route: RequestPath) -> Result<T, ClientError> {
        decode(&self.send(&ApiRequest::get(route)).await?)
    }

    /// Checks the server's health; the error has the reason.
    pub async fn healthz(&self) -> Result<HealthView, ClientError> {
        self.get(RequestPath::health()).await
    }

    /// The server's version.
    pub async fn version(&self) -> Result<ServerVersion, ClientError> {
        self.get(RequestPath::version()).await
    }

    /// All namespaces.
    pub async fn namespaces(&self) -> Result<List<NamespaceItem>, ClientError> {
        self.get(RequestPath::namespaces()).await
    }

    /// One namespace.
    pub async fn namespace(&self, name: &str) -> Result<NamespaceItem, ClientError> {
        self.get(RequestPath::namespace(name)?).await
    }

    /// Creates a namespace that does not exist.
    ///
    /// # Errors
    /// With status 412 it exists; it may be that this call made it, and that its first answer was
    /// lost.
    pub async fn create_new_namespace(
        &self,
        namespace: &Namespace,
    ) -> Result<ApplyResult, ClientError> {
        let namespace = NamespaceRequest::from(namespace);
        let mut request = self.json(Method::POST, RequestPath::namespaces(), &namespace)?;
        request.if_absent = true;
        request.repeatable = true;
        decode(&self.send(&request).await?)
    }

    /// Creates a namespace or changes it, or reports what would happen.
    pub async fn create_namespace(
        &self,
        namespace: &Namespace,
        dry_run: bool,
    ) -> Result<ApplyResult, ClientError> {
        let mut route = RequestPath::namespaces();
        if dry_run {
            route = route.with("dryRun", "true");
        }
        let namespace = NamespaceRequest::from(namespace);
        let mut request = self.json(Method::POST, route, &namespace)?;
        request.repeatable = true;
        decode(&self.send(&request).await?)
    }

    /// Sets labels of a namespace and who may reach its workloads, unless it was changed after this
    /// resourceVersion.
    pub async fn set_namespace(
        &self,
        namespace: &NamespaceRequest,
        if_match: &str,
    ) -> Result<ApplyResult, ClientError> {
        let mut request = self.json(Method::POST, RequestPath::namespaces(), namespace)?;
        request.if_match = Some(if_match.to_owned());
        decode(&self.send(&request).await?)
    }

    /// Sets all quotas of a namespace, unless it was changed after this resourceVersion.
    pub async fn set_namespace_quota(
        &self,
        name: &str,
        quota: &Amounts,
        if_match: &str,
    ) -> Result<ApplyResult, ClientError> {
        let mut request = self.json(Method::PUT, RequestPath::namespace_quota(name)?, quota)?;
        request.if_match = Some(if_match.to_owned());
        decode(&self.send(&request).await?)
    }

    /// Deletes a namespace. It disappears some time after this call.
    pub async fn delete_namespace(&self, name: &str, how: Deletion) -> Result<(), ClientError> {
        self.delete(how.of(RequestPath::namespace(name)?)).await
    }

    /// Workloads of a namespace, or of all.
    pub async fn workloads(
        &self,
        namespace: Option<&str>,
    ) -> Result<List<WorkloadItem>, ClientError> {
        self.get(RequestPath::workloads(namespace)?).await
    }

    /// One workload.
    pub async fn workload(&self, namespace: &str, name: &str) -> Result<WorkloadItem, ClientError> {
        self.get(RequestPath::workload(namespace, name)?).await
    }

    /// Creates or updates a workload from a gzipped tar archive of its `*.kat` files. Repeating the
    /// same content changes nothing, so the call is retried after an unknown outcome. With
    /// `if_match` only an item of that resourceVersion is changed.
    pub async fn apply(
        &self,
        namespace: &str,
        name: &str,
        archive: Bytes,
        dry_run: bool,
        if_match: Option<&str>,
    ) -> Result<ApplyOutcome, ClientError> {
        let send = |method: Method, route: RequestPath| {
            let route = if dry_run {
                route.with("dryRun", "true")
            } else {
                route
            };
            let mut request = ApiRequest::new(method, route);
            request.repeatable = true;
            request.if_match = if_match.map(str::to_owned);
            request.body = Some(("application/gzip", archive.clone()));
            async move { self.send(&request).await }
        };
        let one = RequestPath::workload(namespace, name)?;
        let mut answer = send(Method::PUT, one.clone()).await;
        if if_match.is_none() && answer.as_ref().is_err_and(ClientError::is_not_found) {
            answer = send(Method::POST, RequestPath::workloads(Some(namespace))?).await;
            if answer
                .as_ref()
                .is_err_and(|error| error.status() == Some(409))
            {
                // Another caller has created it meanwhile.
                answer = send(Method::PUT, one).await;
            }
        }
        Ok(ApplyOutcome {
            result: decode(&answer?)?,
            dry_run,
        })
    }

    /// Creates a workload from a gzipped tar archive of its `*.kat` files. One that exists with
    /// other content is a conflict; one with the same content is unchanged, so the call is never
    /// sent again once it may have arrived: the second answer would be another one.
    pub async fn create_workload(
        &self,
        namespace: &str,
        archive: Bytes,
    ) -> Result<ApplyResult, ClientError> {
        let route = RequestPath::workloads(Some(namespace))?;
        let mut request = ApiRequest::new(Method::POST, route);
        request.body = Some(("application/gzip", archive));
        decode(&self.send(&request).await?)
    }

    /// The files of a workload as they were written, of the present or of a kept generation.
    pub async fn source(
        &self,
        namespace: &str,
        name: &str,
        generation: Option<u64>,
    ) -> Result<StoredSource, ClientError> {
        let mut route = RequestPath::of_workload(namespace, name, WorkloadRoute::Source)?;
        if let Some(generation) = generation {
            route = route.with("generation", &generation.to_string());
        }
        let answer = self.send(&ApiRequest::get(route)).await?;
        let version = answer
            .etag
            .ok_or_else(|| wrong(&answer.endpoint, "it has no ETag".to_owned()))?;
        Ok(StoredSource {
            archive: answer.body,
            version,
        })
    }

    /// Deletes a workload. It disappears some time after this call.
    pub async fn delete_workload(
        &self,
        namespace: &str,
        name: &str,
        how: Deletion,
    ) -> Result<(), ClientError> {
        self.delete(how.of(RequestPath::workload(namespace, name)?))
            .await
    }

    /// Names of a workload's files.
    pub async fn files(&self, namespace: &str, name: &str) -> Result<Vec<String>, ClientError> {
        let list: List<String> = self.get(RequestPath::files(namespace, name)?).await?;
        Ok(list.items)
    }

    /// The text of one of a workload's files.
    pub async fn file(
        &self,
        namespace: &str,
        name: &str,
        file: &str,
    ) -> Result<String, ClientError> {
        let request = ApiRequest::get(RequestPath::file(namespace, name, file)?);
        let answer = self.send(&request).await?;
        String::from_utf8(answer.body.to_vec())
            .map_err(|error| wrong(&answer.endpoint, error.to_string()))
    }

    /// Instances of a namespace, or of all.
    pub async fn instances(
        &self,
        namespace: Option<&str>,
    ) -> Result<List<InstanceItem>, ClientError> {
        self.get(RequestPath::instances(namespace)?).await
    }

    /// Present resource usage of a namespace's instances.
    pub async fn namespace_usage(&self, namespace: &str) -> Result<NamespaceUsage, ClientError> {
        self.get(RequestPath::namespace_usage(namespace)?).await
    }

    /// Present resource usage of a machine's instances.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::is_machine_away`] if the machine can't be reached.
    pub async fn node_usage(&self, node: &str) -> Result<NodeUsage, ClientError> {
        self.get(RequestPath::node_usage(node)?).await
    }

    /// What a machine measures of itself.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::is_machine_away`] if the machine can't be reached.
    pub async fn node_metrics(&self, node: &str) -> Result<NodeMeasurements, ClientError> {
        let request = ApiRequest::get(RequestPath::node_metrics(node)?);
        decode(&self.send_within(&request, MOST_MEASUREMENTS).await?)
    }

    /// Instances of one workload.
    pub async fn workload_instances(
        &self,
        namespace: &str,
        workload: &str,
    ) -> Result<List<InstanceItem>, ClientError> {
        self.get(RequestPath::workload_instances(namespace, workload)?)
            .await
    }

    /// One instance.
    pub async fn instance(&self, namespace: &str, id: &str) -> Result<InstanceItem, ClientError> {
        self.get(RequestPath::instance(namespace, id)?).await
    }

    /// Instances of one workload that are gone. A machine's agent is told the workload's uid: an
    /// earlier workload of the same name is another one.
    pub async fn gone_instances(
        &self,
        namespace: &str,
        workload: &str,
        uid: Option<&str>,
    ) -> Result<GoneInstances, ClientError> {
        let route = RequestPath::gone_instances(namespace, workload)?;
        let Some(uid) = uid else {
            return self.get(route).await;
        };
        let request = ApiRequest::get(route.with("goneOf", uid));
        decode(&self.send_within(&request, MAX_GONE).await?)
    }

    /// The log of one instance. A followed log is silent while the program is.
    pub async fn logs(
        &self,
        namespace: &str,
        workload: &str,
        id: &str,
        query: &LogQuery,
    ) -> Result<JsonLines<LogLine>, ClientError> {
        let mut route = RequestPath::logs(namespace, workload, id)?;
        if query.follow {
            route = route.with("follow", "true");
        }
        if let Some(since) = &query.since {
            route = route.with("since", &since.to_string());
        }
        if let Some(tail) = query.tail {
            route = route.with("tail", &tail.to_string());
        }
        if query.previous {
            route = route.with("previous", "true");
        }
        if let Some(container) = &query.container {
            route = route.with("container", container);
        }
        if let Some(node) = &query.node {
            route = route.with("node", node);
        }
        if let Some(uid) = &query.gone_of {
            route = route.with("goneOf", uid);
        }
        let (endpoint, response) = self.open(&ApiRequest::get(route)).await?;
        Ok(JsonLines::new(response, endpoint, MAX_LOG_LINE, None))
    }

    /// Joins this machine. Repeating the call is safe, since the machine's key is known then.
    pub async fn join(&self, request: &JoinRequest) -> Result<JoinAnswer, ClientError> {
        let mut request = self.json(Method::POST, RequestPath::join(), request)?;
        request.repeatable = true;
        decode(&self.send(&request).await?)
    }

    /// Renews the certificates for a machine's known key.
    pub async fn renew_certificates(
        &self,
        node: &str,
        request: &RenewalRequest,
    ) -> Result<Certificates, ClientError> {
        let mut request =
            self.json(Method::POST, RequestPath::node_certificates(node)?, request)?;
        request.repeatable = true;
        decode(&self.send(&request).await?)
    }

    /// The authorities, for a machine that becomes a member of etcd; only its own certificate may
    /// read them.
    pub async fn membership(&self, node: &str) -> Result<MembershipAnswer, ClientError> {
        self.get(RequestPath::node_membership(node)?).await
    }

    /// Isolation of namespaces; only connections from or to a namespace, if one is given.
    pub async fn isolation(&self, namespace: Option<&str>) -> Result<IsolationView, ClientError> {
        self.get(RequestPath::isolation(namespace)).await
    }

    /// Events, oldest first or as the server sorts them.
    pub async fn events(&self, query: &EventFilter) -> Result<List<Event>, ClientError> {
        self.get(RequestPath::events(query)).await
    }

    /// The cluster's configuration.
    pub async fn cluster_configuration(&self) -> Result<ClusterConfiguration, ClientError> {
        self.get(RequestPath::cluster_configuration()).await
    }

    /// The configurations of the cluster that are kept, with who made them.
    pub async fn configuration_history(&self) -> Result<ConfigurationHistory, ClientError> {
        self.get(RequestPath::configuration_history()).await
    }

    /// Sends the text of a `cluster.kat` as the cluster's configuration, unless it was changed after
    /// this resourceVersion.
    pub async fn change_configuration(
        &self,
        text: &str,
        if_match: &str,
        dry_run: bool,
    ) -> Result<ConfigurationChange, ClientError> {
        let mut route = RequestPath::cluster_configuration();
        if dry_run {
            route = route.with("dryRun", "true");
        }
        let mut request = ApiRequest::new(Method::PUT, route);
        request.body = Some(("text/plain", Bytes::copy_from_slice(text.as_bytes())));
        request.if_match = Some(if_match.to_owned());
        decode(&self.send(&request).await?)
    }

    /// The cluster's overview.
    pub async fn overview(&self) -> Result<ClusterOverview, ClientError> {
        self.get(RequestPath::overview()).await
    }

    /// All tokens, without their secrets.
    pub async fn tokens(&self) -> Result<List<TokenView>, ClientError> {
        self.get(RequestPath::tokens()).await
    }

    /// Creates a token. Never retried: the first secret would be lost.
    pub async fn create_token(&self, request: &TokenRequest) -> Result<TokenView, ClientError> {
        let request = self.json(Method::POST, RequestPath::tokens(), request)?;
        decode(&self.send(&request).await?)
    }

    /// Revokes a token.
    pub async fn revoke_token(&self, id: &str) -> Result<(), ClientError> {
        self.delete(RequestPath::token(id)?).await
    }

    /// Watches the changes of a list from `resource_version` on. [`super::FollowedList`] builds on it.
    pub async fn watch<T: DeserializeOwned>(
        &self,
        list: RequestPath,
        resource_version: &str,
    ) -> Result<JsonLines<WatchLine<T>>, ClientError> {
        let route = list
            .with("watch", "true")
            .with("resourceVersion", resource_version);
        let (endpoint, response) = self.open(&ApiRequest::get(route)).await?;
        let idle = Some(self.options.watch_idle);
        Ok(JsonLines::new(response, endpoint, MAX_WATCH_LINE, idle))
    }

    pub(super) async fn delete(&self, route: RequestPath) -> Result<(), ClientError> {
        let request = ApiRequest::new(Method::DELETE, route);
        self.send(&request).await.map(|_| ())
    }

    pub(super) fn json<T: Serialize>(
        &self,
        method: Method,
        route: RequestPath,
        body: &T,
    ) -> Result<ApiRequest, ClientError> {
        let body = json::bytes("the request", body)
            .map_err(|error| wrong(self.endpoint(), error.to_string()))?;
        let mut request = ApiRequest::new(method, route);
        request.body = Some(("application/json", body.into()));
        Ok(request)
    }
}

pub(super) fn decode<T: DeserializeOwned>(answer: &ApiResponse) -> Result<T, ClientError> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        let json = serde_json::from_slice::<Value>(&answer.body).is_ok();
        let what = if json { "" } else { "no JSON: " };
        wrong(
            &answer.endpoint,
            format!("{what}{error} (HTTP status {})", answer.status),
        )
    })
}

fn wrong(endpoint: &str, reason: String) -> ClientError {
    ClientError::Answer {
        endpoint: endpoint.to_owned(),
        reason,
    }
}
