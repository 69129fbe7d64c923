//! Routes of the API. All paths that the client requests are built here.

use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::ClientError;
use kat_types::{api::EventFilter, resource::name::check_label};

/// A path with its query, encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath(String);

const VERSION: &str = "/v1alpha1";
/// All characters but RFC 3986's unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A route below a workload without a name of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum WorkloadRoute {
    Generations,
    Image,
    Pause,
    Replicas,
    Restart,
    Rollback,
    Runs,
    Source,
    Stop,
}

impl WorkloadRoute {
    fn segment(self) -> &'static str {
        match self {
            Self::Generations => "generations",
            Self::Image => "image",
            Self::Pause => "pause",
            Self::Replicas => "replicas",
            Self::Restart => "restart",
            Self::Rollback => "rollback",
            Self::Runs => "runs",
            Self::Source => "source",
            Self::Stop => "stop",
        }
    }
}

impl RequestPath {
    /// The server's health.
    pub(super) fn health() -> Self {
        Self("/healthz".to_owned())
    }

    /// The server's version.
    pub(super) fn version() -> Self {
        Self("/version".to_owned())
    }

    /// Namespaces.
    pub fn namespaces() -> Self {
        Self(format!("{VERSION}/namespaces"))
    }

    /// One namespace.
    ///
    /// # Errors
    /// [`ClientError::Name`], as all routes with names.
    pub fn namespace(name: &str) -> Result<Self, ClientError> {
        let name = label("a namespace", name)?;
        Ok(Self(format!("{VERSION}/namespaces/{name}")))
    }

    /// The quotas of one namespace.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub(super) fn namespace_quota(name: &str) -> Result<Self, ClientError> {
        let Self(namespace) = Self::namespace(name)?;
        Ok(Self(format!("{namespace}/quota")))
    }

    /// Workloads of one namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn workloads(namespace: Option<&str>) -> Result<Self, ClientError> {
        match namespace {
            None => Ok(Self(format!("{VERSION}/workloads"))),
            Some(namespace) => {
                let namespace = label("a namespace", namespace)?;
                Ok(Self(format!("{VERSION}/n/{namespace}/workloads")))
            }
        }
    }

    /// One workload.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn workload(namespace: &str, name: &str) -> Result<Self, ClientError> {
        let Self(workloads) = Self::workloads(Some(namespace))?;
        let name = label("a workload", name)?;
        Ok(Self(format!("{workloads}/{name}")))
    }

    /// A route below a workload.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub(super) fn of_workload(
        namespace: &str,
        name: &str,
        route: WorkloadRoute,
    ) -> Result<Self, ClientError> {
        let Self(workload) = Self::workload(namespace, name)?;
        Ok(Self(format!("{workload}/{}", route.segment())))
    }

    /// Runs of Jobs of one namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn runs(namespace: Option<&str>) -> Result<Self, ClientError> {
        match namespace {
            None => Ok(Self(format!("{VERSION}/runs"))),
            Some(namespace) => {
                let namespace = label("a namespace", namespace)?;
                Ok(Self(format!("{VERSION}/n/{namespace}/runs")))
            }
        }
    }

    /// One run of a Job.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub(super) fn run(namespace: &str, name: &str, number: u64) -> Result<Self, ClientError> {
        let Self(workload) = Self::workload(namespace, name)?;
        Ok(Self(format!("{workload}/runs/{number}")))
    }

    /// Files of a workload.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn files(namespace: &str, name: &str) -> Result<Self, ClientError> {
        let Self(workload) = Self::workload(namespace, name)?;
        Ok(Self(format!("{workload}/files")))
    }

    /// One file of a workload.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn file(namespace: &str, name: &str, file: &str) -> Result<Self, ClientError> {
        let Self(files) = Self::files(namespace, name)?;
        Ok(Self(format!("{files}/{}", encode(file))))
    }

    /// Instances of one namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn instances(namespace: Option<&str>) -> Result<Self, ClientError> {
        match namespace {
            None => Ok(Self(format!("{VERSION}/instances"))),
            Some(namespace) => {
                let namespace = label("a namespace", namespace)?;
                Ok(Self(format!("{VERSION}/n/{namespace}/instances")))
            }
        }
    }

    /// Resource usage of a namespace's instances.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn namespace_usage(namespace: &str) -> Result<Self, ClientError> {
        let namespace = label("a namespace", namespace)?;
        Ok(Self(format!("{VERSION}/n/{namespace}/usage")))
    }

    /// One instance.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn instance(namespace: &str, id: &str) -> Result<Self, ClientError> {
        let Self(instances) = Self::instances(Some(namespace))?;
        let id = instance_id(id)?;
        Ok(Self(format!("{instances}/{id}")))
    }

    /// Instances of one workload.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn workload_instances(namespace: &str, workload: &str) -> Result<Self, ClientError> {
        let Self(workload) = Self::workload(namespace, workload)?;
        Ok(Self(format!("{workload}/instances")))
    }

    /// Instances of one workload that are gone.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn gone_instances(namespace: &str, workload: &str) -> Result<Self, ClientError> {
        let Self(workload) = Self::workload(namespace, workload)?;
        Ok(Self(format!("{workload}/gone-instances")))
    }

    /// The log of one instance.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn logs(namespace: &str, workload: &str, id: &str) -> Result<Self, ClientError> {
        let Self(instances) = Self::workload_instances(namespace, workload)?;
        let id = instance_id(id)?;
        Ok(Self(format!("{instances}/{id}/logs")))
    }

    /// Sessions that run a command in an instance.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn exec(namespace: &str, workload: &str, id: &str) -> Result<Self, ClientError> {
        let Self(instances) = Self::workload_instances(namespace, workload)?;
        let id = instance_id(id)?;
        Ok(Self(format!("{instances}/{id}/exec")))
    }

    /// Sessions that forward a port of an instance.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn forward(namespace: &str, workload: &str, id: &str) -> Result<Self, ClientError> {
        let Self(instances) = Self::workload_instances(namespace, workload)?;
        let id = instance_id(id)?;
        Ok(Self(format!("{instances}/{id}/forward")))
    }

    /// Routes of one namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn routes(namespace: Option<&str>) -> Result<Self, ClientError> {
        match namespace {
            None => Ok(Self(format!("{VERSION}/routes"))),
            Some(namespace) => {
                let namespace = label("a namespace", namespace)?;
                Ok(Self(format!("{VERSION}/n/{namespace}/routes")))
            }
        }
    }

    /// Virtual addresses.
    pub fn virtual_addresses() -> Self {
        Self(format!("{VERSION}/virtual-addresses"))
    }

    /// KAT's own authority for ingress.
    pub fn ingress_authority() -> Self {
        Self(format!("{VERSION}/ingress/authority"))
    }

    /// Volumes of one namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn volumes(namespace: Option<&str>) -> Result<Self, ClientError> {
        match namespace {
            None => Ok(Self(format!("{VERSION}/volumes"))),
            Some(namespace) => {
                let namespace = label("a namespace", namespace)?;
                Ok(Self(format!("{VERSION}/n/{namespace}/volumes")))
            }
        }
    }

    /// One volume.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn volume(namespace: &str, workload: &str, name: &str) -> Result<Self, ClientError> {
        let Self(workload) = Self::workload(namespace, workload)?;
        let name = volume_name(name)?;
        Ok(Self(format!("{workload}/volumes/{name}")))
    }

    /// Secrets of one namespace, or of all.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn secrets(namespace: Option<&str>) -> Result<Self, ClientError> {
        match namespace {
            None => Ok(Self(format!("{VERSION}/secrets"))),
            Some(namespace) => {
                let namespace = label("a namespace", namespace)?;
                Ok(Self(format!("{VERSION}/n/{namespace}/secrets")))
            }
        }
    }

    /// One secret.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn secret(namespace: &str, name: &str) -> Result<Self, ClientError> {
        let Self(secrets) = Self::secrets(Some(namespace))?;
        let name = label("a secret", name)?;
        Ok(Self(format!("{secrets}/{name}")))
    }

    /// Rotation of the data key that seals secrets.
    pub fn sealing_key() -> Self {
        Self(format!("{VERSION}/sealing-key"))
    }

    /// The move of a volume.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn volume_move(namespace: &str, workload: &str, name: &str) -> Result<Self, ClientError> {
        let Self(volume) = Self::volume(namespace, workload, name)?;
        Ok(Self(format!("{volume}/move")))
    }

    /// The data of a volume that is given up.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn volume_forget(namespace: &str, workload: &str, name: &str) -> Result<Self, ClientError> {
        let Self(volume) = Self::volume(namespace, workload, name)?;
        Ok(Self(format!("{volume}/forget")))
    }

    /// A copy of a volume, on the port of the agent that has it.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn volume_copy(namespace: &str, workload: &str, name: &str) -> Result<Self, ClientError> {
        let Self(volume) = Self::volume(namespace, workload, name)?;
        Ok(Self(format!("{volume}/copy")))
    }

    /// Machines.
    pub fn nodes() -> Self {
        Self(format!("{VERSION}/nodes"))
    }

    /// One machine.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node(name: &str) -> Result<Self, ClientError> {
        let name = label("a node", name)?;
        Ok(Self(format!("{VERSION}/nodes/{name}")))
    }

    /// Resource usage of a machine's instances.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_usage(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/usage")))
    }

    /// What a machine measures of itself.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_metrics(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/metrics")))
    }

    /// Drain of a machine.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_drain(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/drain")))
    }

    /// Labels of a machine.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_labels(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/labels")))
    }

    /// Taints of a machine.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_taints(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/taints")))
    }

    /// Reports of a machine.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_status(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/status")))
    }

    /// A machine's state stream.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_state(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/state")))
    }

    /// Renewal of a machine's certificates.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_certificates(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/certificates")))
    }

    /// The authorities for a machine that becomes a member of etcd.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn node_membership(name: &str) -> Result<Self, ClientError> {
        let Self(node) = Self::node(name)?;
        Ok(Self(format!("{node}/membership")))
    }

    /// Joining of machines.
    pub fn join() -> Self {
        Self(format!("{VERSION}/join"))
    }

    /// Isolation of namespaces, or what concerns one.
    pub fn isolation(namespace: Option<&str>) -> Self {
        let all = Self(format!("{VERSION}/isolation"));
        match namespace {
            Some(namespace) => all.with("namespace", namespace),
            None => all,
        }
    }

    /// Events that the filter selects.
    pub fn events(filter: &EventFilter) -> Self {
        let parameters = [
            ("resourceType", &filter.kind),
            ("resourceName", &filter.name),
            ("namespace", &filter.namespace),
        ];
        let all = Self(format!("{VERSION}/events"));
        parameters
            .into_iter()
            .fold(all, |path, (name, value)| match value {
                Some(value) => path.with(name, value),
                None => path,
            })
    }

    /// The cluster's configuration.
    pub fn cluster_configuration() -> Self {
        Self(format!("{VERSION}/config/cluster"))
    }

    /// The kept configurations of the cluster.
    pub(super) fn configuration_history() -> Self {
        Self(format!("{VERSION}/config/cluster/revisions"))
    }

    /// The cluster's overview.
    pub fn overview() -> Self {
        Self(format!("{VERSION}/overview"))
    }

    /// Tokens.
    pub fn tokens() -> Self {
        Self(format!("{VERSION}/tokens"))
    }

    /// One token.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn token(id: &str) -> Result<Self, ClientError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if id.is_empty() || id.len() > 128 || !id.bytes().all(plain) {
            return Err(refuse("a token", id));
        }
        Ok(Self(format!("{VERSION}/tokens/{id}")))
    }

    /// The cluster's certificate authorities.
    pub fn authorities() -> Self {
        Self(format!("{VERSION}/authorities"))
    }

    /// The replacements of `cluster-ca`.
    pub(super) fn authority_successions() -> Self {
        let Self(authorities) = Self::authorities();
        Self(format!("{authorities}/successions"))
    }

    /// The replacement of an authority.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub(super) fn authority_rotation(name: &str) -> Result<Self, ClientError> {
        let Self(authorities) = Self::authorities();
        let name = label("an authority", name)?;
        Ok(Self(format!("{authorities}/{name}/rotate")))
    }

    /// The end of the wait for machines of version 0.1.0.
    pub(super) fn authority_migration() -> Self {
        let Self(authorities) = Self::authorities();
        Self(format!("{authorities}/migration"))
    }

    /// Values that could be read with an earlier recovery key.
    pub(super) fn exposed_values() -> Self {
        let Self(authorities) = Self::authorities();
        Self(format!("{authorities}/exposed"))
    }

    /// Settings of registries.
    pub fn registries() -> Self {
        Self(format!("{VERSION}/registries"))
    }

    /// Settings of one registry, by its host.
    pub fn registry(host: &str) -> Self {
        Self(format!("{VERSION}/registries/{}", encode(host)))
    }

    /// Credentials of a namespace for registries.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn registry_logins(namespace: &str) -> Result<Self, ClientError> {
        let namespace = label("a namespace", namespace)?;
        Ok(Self(format!("{VERSION}/n/{namespace}/registries")))
    }

    /// Credentials for one registry, or for a path of it.
    ///
    /// # Errors
    /// [`ClientError::Name`].
    pub fn registry_login(namespace: &str, registry: &str) -> Result<Self, ClientError> {
        let Self(logins) = Self::registry_logins(namespace)?;
        if registry.is_empty() {
            return Err(refuse("a registry", registry));
        }
        Ok(Self(format!("{logins}/{}", encode(registry))))
    }

    /// Adds a parameter to the query.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        let separator = if self.0.contains('?') { '&' } else { '?' };
        // Writing to a `String` can't fail.
        let _ = write!(self.0, "{separator}{name}={}", encode(value));
        self
    }

    /// The text: a path that begins with `/`, and the query.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn refuse(what: &'static str, name: &str) -> ClientError {
    ClientError::Name {
        what,
        name: name.to_owned(),
    }
}

fn label<'name>(what: &'static str, name: &'name str) -> Result<&'name str, ClientError> {
    check_label(name)
        .map(|()| name)
        .map_err(|_| refuse(what, name))
}

/// Accepts an instance's id: a workload's name, a hyphen and five more characters.
fn instance_id(id: &str) -> Result<&str, ClientError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || id.len() > 63 || !id.bytes().all(plain) {
        return Err(refuse("an instance", id));
    }
    Ok(id)
}

/// Accepts a volume's name, with the slot if each replica has its own, and with `@host` for a host
/// path.
fn volume_name(name: &str) -> Result<String, ClientError> {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.@".contains(&byte);
    let begins = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if !begins || name.len() > 128 || !name.bytes().all(plain) {
        return Err(refuse("a volume", name));
    }
    Ok(encode(name))
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Paths that this client never requests: those of monitoring, and of the document itself.
    const OF_OTHER_CLIENTS: [&str; 3] = ["/metrics", "/openapi.json", "/v1alpha1/metrics/targets"];

    /// The path of each constructor but `volume_copy`, which is on the agents' port.
    fn every_path() -> Result<Vec<RequestPath>, ClientError> {
        let mut paths = vec![
            RequestPath::health(),
            RequestPath::version(),
            RequestPath::namespaces(),
            RequestPath::namespace("one")?,
            RequestPath::namespace_quota("one")?,
            RequestPath::namespace_usage("one")?,
            RequestPath::workload("one", "web")?,
            RequestPath::run("one", "web", 1)?,
            RequestPath::files("one", "web")?,
            RequestPath::file("one", "web", "workload.kat")?,
            RequestPath::instance("one", "web-abcde")?,
            RequestPath::workload_instances("one", "web")?,
            RequestPath::gone_instances("one", "web")?,
            RequestPath::logs("one", "web", "web-abcde")?,
            RequestPath::exec("one", "web", "web-abcde")?,
            RequestPath::forward("one", "web", "web-abcde")?,
            RequestPath::virtual_addresses(),
            RequestPath::ingress_authority(),
            RequestPath::volume("one", "web", "data")?,
            RequestPath::volume_move("one", "web", "data")?,
            RequestPath::volume_forget("one", "web", "data")?,
            RequestPath::secret("one", "db")?,
            RequestPath::sealing_key(),
            RequestPath::nodes(),
            RequestPath::node("n1")?,
            RequestPath::node_usage("n1")?,
            RequestPath::node_metrics("n1")?,
            RequestPath::node_drain("n1")?,
            RequestPath::node_labels("n1")?,
            RequestPath::node_taints("n1")?,
            RequestPath::node_status("n1")?,
            RequestPath::node_state("n1")?,
            RequestPath::node_certificates("n1")?,
            RequestPath::node_membership("n1")?,
            RequestPath::join(),
            RequestPath::isolation(Some("one")),
            RequestPath::events(&EventFilter::default()),
            RequestPath::cluster_configuration(),
            RequestPath::configuration_history(),
            RequestPath::overview(),
            RequestPath::tokens(),
            RequestPath::token("t1")?,
            RequestPath::authorities(),
            RequestPath::authority_successions(),
            RequestPath::authority_rotation("cluster-ca")?,
            RequestPath::authority_migration(),
            RequestPath::exposed_values(),
            RequestPath::registries(),
            RequestPath::registry("registry.example.org:5000"),
            RequestPath::registry_logins("one")?,
            RequestPath::registry_login("one", "registry.example.org/a")?,
        ];
        for namespace in [None, Some("one")] {
            paths.extend([
                RequestPath::workloads(namespace)?,
                RequestPath::runs(namespace)?,
                RequestPath::instances(namespace)?,
                RequestPath::routes(namespace)?,
                RequestPath::volumes(namespace)?,
                RequestPath::secrets(namespace)?,
            ]);
        }
        for route in [
            WorkloadRoute::Generations,
            WorkloadRoute::Image,
            WorkloadRoute::Pause,
            WorkloadRoute::Replicas,
            WorkloadRoute::Restart,
            WorkloadRoute::Rollback,
            WorkloadRoute::Runs,
            WorkloadRoute::Source,
            WorkloadRoute::Stop,
        ] {
            paths.push(RequestPath::of_workload("one", "web", route)?);
        }
        Ok(paths)
    }

    /// Whether a path is one of the template, whose segments in braces stand for any segment.
    fn is_of(template: &str, path: &str) -> bool {
        let segments = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        let (template, path) = (segments(template), segments(path));
        template.len() == path.len()
            && template
                .iter()
                .zip(&path)
                .all(|(wanted, found)| wanted.starts_with('{') || wanted == found)
    }

    #[test]
    fn each_path_is_one_of_the_api_and_the_api_has_no_other_ones() {
        let document: Value =
            serde_json::from_str(include_str!("../../contrib/schema/openapi.json")).unwrap();
        let templates = document["paths"].as_object().unwrap();
        let mut unused: BTreeSet<&str> = templates.keys().map(String::as_str).collect();
        for path in every_path().unwrap() {
            let (plain, _) = path.as_str().split_once('?').unwrap_or((path.as_str(), ""));
            let found: Vec<&str> = templates
                .keys()
                .map(String::as_str)
                .filter(|template| is_of(template, plain))
                .collect();
            assert_eq!(found.len(), 1, "{plain} is {found:?}");
            unused.retain(|template| !found.contains(template));
        }
        assert_eq!(unused, BTreeSet::from(OF_OTHER_CLIENTS));
    }

    #[test]
    fn routes_are_the_rfcs() {
        let logs = RequestPath::logs("default", "web", "web-abcde")
            .unwrap()
            .with("follow", "true")
            .with("since", "2026-11-20T10:00:00+01:00");
        assert_eq!(
            logs.as_str(),
            "/v1alpha1/n/default/workloads/web/instances/web-abcde/logs?follow=true&since=2026-11-20T10%3A00%3A00%2B01%3A00"
        );
        assert_eq!(
            RequestPath::workloads(None).unwrap().as_str(),
            "/v1alpha1/workloads"
        );
        assert_eq!(
            RequestPath::file("a", "b", "../x").unwrap().as_str(),
            "/v1alpha1/n/a/workloads/b/files/..%2Fx"
        );
        assert_eq!(
            RequestPath::volume("a", "b", "conf@host.1")
                .unwrap()
                .as_str(),
            "/v1alpha1/n/a/workloads/b/volumes/conf%40host.1"
        );
    }

    #[test]
    fn a_name_never_leaves_its_place_in_the_path() {
        for bad in ["", "..", "a/b", "a?b", "A", "a%2fb", "a b", "a#b"] {
            assert!(
                RequestPath::workload("default", bad).is_err(),
                "workload {bad:?}"
            );
            assert!(
                RequestPath::workloads(Some(bad)).is_err(),
                "namespace {bad:?}"
            );
            assert!(
                RequestPath::instance("default", bad).is_err(),
                "instance {bad:?}"
            );
            assert!(RequestPath::node(bad).is_err(), "node {bad:?}");
            assert!(
                RequestPath::volume("default", "web", bad).is_err(),
                "volume {bad:?}"
            );
        }
        assert!(RequestPath::token("../nodes").is_err());
    }
}
