//! The one table of routes. The router, authorization, the metrics' names and the OpenAPI document
//! are all derived from it.

mod handlers;
mod verb;

use std::sync::Arc;

use axum::{
    Router,
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection},
    handler::Handler,
    http::{Method, Uri, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{context::Api, errors::ApiError};
use crate::{
    access::{
        audit::{HandledRequest, observe},
        authentication::{Caller, ConnectionPeer, identify},
        authorization::{CallScope, RouteAccess, check},
    },
    handlers::cluster::overview::explained_refusal,
    server::pools::ConnectionStandingHandle,
};
use kat_types::{
    api::{
        ApplyResult, AuthorityMigration, AuthorityMigrationRequest, AuthorityRotationRequest,
        AuthorityStatus, AuthoritySuccessions, Certificates, ClusterOverview, ConfigurationChange,
        ConfigurationHistory, Event, ExposedValues, GenerationView, GoneInstances, HealthView,
        ImageRequest, IngressAuthorityView, InstanceItem, IsolationView, JoinAnswer, JoinRequest,
        List, LogLine, MembershipAnswer, Metrics, NamespaceItem, NamespaceRequest, NamespaceUsage,
        NodeItem, NodeLabels, NodeMeasurements, NodeReport, NodeTaints, NodeUsage,
        RegistryLoginRequest, RegistryLoginResult, RegistryLoginView, RegistryRequest,
        RegistryView, RenewalRequest, RestartRequest, RollbackRequest, RouteItem, RouteRequest,
        RunItem, RunRequest, ScaleRequest, SealingRotation, SecretItem, SecretRequest,
        ServerVersion, TokenRequest, TokenView, VirtualAddressItem, VolumeForgetRequest,
        VolumeItem, VolumeMoveRequest, WatchLine, WorkloadItem,
    },
    resource::{Amounts, ClusterConfiguration},
};

pub use verb::Verb;

/// Adds a type's schema to a generator.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The body of a request or a response.
#[derive(Clone, Copy)]
pub enum RoutePayload {
    /// None.
    Nothing,
    /// `text/plain`.
    Text,
    /// `application/gzip`: a tar.gz of `*.kat` files.
    Archive,
    /// `application/json` of any shape.
    AnyJson,
    /// `application/json`.
    Json(SchemaOf),
    /// `application/x-ndjson`.
    Lines(SchemaOf),
    /// `application/x-kat-frames`: the frames of a session (`types/encoding/frames.rs`), for as long as it
    /// is open.
    Frames,
    /// `application/x-kat-state`: the frames of the state stream (`types/encoding/state_frames.rs`), for as
    /// long as it is open.
    StateFrames,
    /// A list as `application/json`, or its watch as `application/x-ndjson`.
    List(SchemaOf, SchemaOf),
}

/// One route.
pub struct ApiRoute {
    pub verb: Verb,
    /// Path, with its parameters in braces.
    pub path: &'static str,
    /// Which callers may use it.
    pub access: RouteAccess,
    /// The handler; also the OpenAPI document's operationId.
    pub operation: ApiOperation,
    /// One sentence for the OpenAPI document.
    pub summary: &'static str,
    /// Names of the query parameters.
    pub query: &'static [&'static str],
    /// Body of the request.
    pub request: RoutePayload,
    /// Body of the response.
    pub response: RoutePayload,
    /// Status codes of success.
    pub statuses: &'static [u16],
}

/// Every handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the routes say what each does")]
pub enum ApiOperation {
    Health,
    Version,
    OpenApi,
    Metrics,
    ListNamespaces,
    CreateNamespace,
    GetNamespace,
    DeleteNamespace,
    PutNamespaceQuota,
    ListAllWorkloads,
    ListWorkloads,
    CreateWorkload,
    GetWorkload,
    PutWorkload,
    DeleteWorkload,
    ListGenerations,
    RollBack,
    PauseRollout,
    ResumeRollout,
    ScaleWorkload,
    StopWorkload,
    StartWorkload,
    ListAllRuns,
    ListRuns,
    RunJob,
    CancelRun,
    SetImage,
    RestartWorkload,
    GetSource,
    ListFiles,
    GetFile,
    ListInstancesOfWorkload,
    ListGoneInstances,
    GetLogs,
    Exec,
    Forward,
    ListAllInstances,
    ListInstances,
    GetInstance,
    ListAllRoutes,
    ListRoutes,
    ListVirtualAddresses,
    PutRoute,
    DeleteRoute,
    GetIngressAuthority,
    ListAllVolumes,
    ListVolumes,
    GetVolume,
    DeleteVolume,
    MoveVolume,
    CancelVolumeMove,
    ForgetVolumeData,
    ListAllSecrets,
    ListSecrets,
    GetSecret,
    PutSecret,
    DeleteSecret,
    RotateSealingKey,
    ListNodes,
    GetNode,
    GetNodeUsage,
    GetNodeMetrics,
    ListMetricsTargets,
    GetNamespaceUsage,
    DeleteNode,
    DrainNode,
    UncordonNode,
    PutNodeLabels,
    PutNodeTaints,
    ReportNode,
    StreamNodeState,
    RenewCertificates,
    GetMembership,
    Join,
    ListEvents,
    GetIsolation,
    GetClusterConfiguration,
    PutClusterConfiguration,
    ListConfigurations,
    GetOverview,
    ListRegistries,
    SetRegistry,
    UnsetRegistry,
    ListRegistryLogins,
    PutRegistryLogin,
    DeleteRegistryLogin,
    ListTokens,
    CreateToken,
    DeleteToken,
    ListAuthorities,
    ListSuccessions,
    RotateAuthority,
    EndMigration,
    ListExposedValues,
}

impl ApiRoute {
    const fn new(
        verb: Verb,
        path: &'static str,
        access: RouteAccess,
        operation: ApiOperation,
        response: RoutePayload,
        summary: &'static str,
    ) -> Self {
        Self {
            verb,
            path,
            access,
            operation,
            summary,
            query: &[],
            request: RoutePayload::Nothing,
            response,
            statuses: &[200],
        }
    }

    const fn takes(mut self, request: RoutePayload, statuses: &'static [u16]) -> Self {
        self.request = request;
        self.statuses = statuses;
        self
    }

    const fn query(mut self, names: &'static [&'static str]) -> Self {
        self.query = names;
        self
    }
}

/// Query parameters of every list.
const LIST: &[&str] = &["watch", "resourceVersion"];
const APPLIED: RoutePayload = RoutePayload::Json(of::<ApplyResult>);

const fn list_of<T: JsonSchema>() -> RoutePayload
where
    List<T>: JsonSchema,
    WatchLine<T>: JsonSchema,
{
    RoutePayload::List(of::<List<T>>, of::<WatchLine<T>>)
}

macro_rules! workload {
    ($rest:literal) => {
        concat!("/v1alpha1/n/{namespace}/workloads/{workload}", $rest)
    };
}

/// Every route of the API, in the order of the OpenAPI document.
#[rustfmt::skip]
pub static ROUTES: &[ApiRoute] = {
    use self::{RouteAccess as A, ApiOperation as O, RoutePayload as P, ApiRoute as R, Verb::{Delete, Get, Post, Put}};
    &[
        R::new(Get, "/healthz", A::Anyone, O::Health, P::Json(of::<HealthView>),
            "Says whether this machine can answer"),
        R::new(Get, "/version", A::Anyone, O::Version, P::Json(of::<ServerVersion>),
            "Says the version of KAT"),
        R::new(Get, "/openapi.json", A::Authenticated, O::OpenApi, P::AnyJson,
            "Describes this API"),
        R::new(Get, "/metrics", A::ReadCluster, O::Metrics, P::Json(of::<Metrics>),
            "Measures; Prometheus' text with `format=prometheus` or `Accept: text/plain`").query(&["format"]),
        R::new(Get, "/v1alpha1/metrics/targets", A::ReadCluster, O::ListMetricsTargets, P::AnyJson,
            "Lists what Prometheus is to scrape, for its `http_sd_configs`"),
        R::new(Get, "/v1alpha1/namespaces", A::ReadCluster, O::ListNamespaces, list_of::<NamespaceItem>(),
            "Lists or watches namespaces").query(LIST),
        R::new(Post, "/v1alpha1/namespaces", A::Admin, O::CreateNamespace, APPLIED,
            "Creates a namespace, or changes its labels and, if `spec` is there, who may reach its workloads")
            .takes(P::Json(of::<NamespaceRequest>), &[200, 201]).query(&["dryRun"]),
        R::new(Get, "/v1alpha1/namespaces/{namespace}", A::ReadNamespace, O::GetNamespace, P::Json(of::<NamespaceItem>),
            "Reads a namespace"),
        R::new(Delete, "/v1alpha1/namespaces/{namespace}", A::Admin, O::DeleteNamespace, APPLIED,
            "Deletes a namespace; with `cascade=true` its workloads too").query(&["cascade", "volumes", "dryRun"]),
        R::new(Put, "/v1alpha1/namespaces/{namespace}/quota", A::Admin, O::PutNamespaceQuota, APPLIED,
            "Sets the quotas of a namespace, all of them; what exceeds one already stays")
            .takes(P::Json(of::<Amounts>), &[200]).query(&["dryRun"]),
        R::new(Get, "/v1alpha1/workloads", A::ReadCluster, O::ListAllWorkloads, list_of::<WorkloadItem>(),
            "Lists or watches workloads of all namespaces").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/workloads", A::ReadNamespace, O::ListWorkloads, list_of::<WorkloadItem>(),
            "Lists or watches workloads of a namespace").query(LIST),
        R::new(Post, "/v1alpha1/n/{namespace}/workloads", A::Deploy, O::CreateWorkload, APPLIED,
            "Creates a workload; one that exists with other content is a conflict")
            .takes(P::Archive, &[200, 201]).query(&["dryRun"]),
        R::new(Get, workload!(""), A::ReadNamespace, O::GetWorkload, P::Json(of::<WorkloadItem>),
            "Reads a workload; values of environment variables are masked"),
        R::new(Put, workload!(""), A::Deploy, O::PutWorkload, APPLIED,
            "Changes a workload, or creates it; the same content changes nothing")
            .takes(P::Archive, &[200, 201]).query(&["dryRun"]),
        R::new(Delete, workload!(""), A::Deploy, O::DeleteWorkload, APPLIED,
            "Deletes a workload").query(&["volumes", "dryRun"]),
        R::new(Get, workload!("/generations"), A::ReadNamespace, O::ListGenerations, P::Json(of::<List<GenerationView>>),
            "Lists the kept generations of a workload, oldest first"),
        R::new(Post, workload!("/rollback"), A::Deploy, O::RollBack, APPLIED,
            "Takes the content of an earlier generation as a new one; the last good one unless `to` names another")
            .takes(P::Json(of::<RollbackRequest>), &[200]).query(&["dryRun"]),
        R::new(Put, workload!("/pause"), A::Deploy, O::PauseRollout, APPLIED,
            "Pauses a workload's rollouts: nothing new takes the place of what runs").query(&["dryRun"]),
        R::new(Delete, workload!("/pause"), A::Deploy, O::ResumeRollout, APPLIED,
            "Resumes a workload's rollouts").query(&["dryRun"]),
        R::new(Put, workload!("/replicas"), A::Deploy, O::ScaleWorkload, APPLIED,
            "Writes another number of replicas into `workload.kat`; no instance that stays is replaced")
            .takes(P::Json(of::<ScaleRequest>), &[200]).query(&["dryRun"]),
        R::new(Put, workload!("/stop"), A::Deploy, O::StopWorkload, APPLIED,
            "Stops a workload: writes 0 replicas into `workload.kat`, and remembers the earlier number; volumes, addresses and secrets stay; a Job is suspended")
            .query(&["dryRun"]),
        R::new(Delete, workload!("/stop"), A::Deploy, O::StartWorkload, APPLIED,
            "Starts a stopped workload with its earlier number of replicas, or resumes a Job").query(&["dryRun"]),
        R::new(Get, "/v1alpha1/runs", A::ReadCluster, O::ListAllRuns, list_of::<RunItem>(),
            "Lists or watches runs of Jobs of all namespaces").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/runs", A::ReadNamespace, O::ListRuns, list_of::<RunItem>(),
            "Lists or watches runs of Jobs of a namespace").query(LIST),
        R::new(Post, workload!("/runs"), A::Deploy, O::RunJob, P::Json(of::<RunItem>),
            "Runs a Job now, with arguments of its own if `args` is there; a conflict while another run is active and concurrencyPolicy is Forbid")
            .takes(P::Json(of::<RunRequest>), &[200]).query(&["dryRun"]),
        R::new(Delete, workload!("/runs/{run}"), A::Deploy, O::CancelRun, APPLIED,
            "Ends a run of a Job: its instances are stopped; `run` is its number").query(&["dryRun"]),
        R::new(Put, workload!("/image"), A::Deploy, O::SetImage, APPLIED,
            "Writes another image into `workload.kat`, which is a new version")
            .takes(P::Json(of::<ImageRequest>), &[200]).query(&["dryRun"]),
        R::new(Put, workload!("/restart"), A::Deploy, O::RestartWorkload, APPLIED,
            "Replaces a workload's instances by others like them; the same `restartedAt` twice does it once")
            .takes(P::Json(of::<RestartRequest>), &[200]).query(&["dryRun"]),
        R::new(Get, workload!("/source"), A::ReadFiles, O::GetSource, P::Archive,
            "Reads all files as they were written, with the values of environment variables; those of an earlier generation with `generation`")
            .query(&["generation"]),
        R::new(Get, workload!("/files"), A::ReadNamespace, O::ListFiles, P::Json(of::<List<String>>),
            "Lists the names of a workload's files"),
        R::new(Get, workload!("/files/{file}"), A::ReadFiles, O::GetFile, P::Text,
            "Reads a file as it was written, with the values of environment variables"),
        R::new(Get, workload!("/instances"), A::ReadNamespace, O::ListInstancesOfWorkload, list_of::<InstanceItem>(),
            "Lists or watches instances of a workload").query(LIST),
        R::new(Get, workload!("/gone-instances"), A::ReadNamespace, O::ListGoneInstances, P::Json(of::<GoneInstances>),
            "Lists instances of a workload that are gone, as far as their machines remember them"),
        R::new(Get, workload!("/instances/{instance}/logs"), A::ReadNamespace, O::GetLogs, P::Lines(of::<LogLine>),
            "Reads or follows the log of an instance, on whichever machine it is; of one that is gone, where `node` says which machine it was on")
            .query(&["follow", "since", "tail", "previous", "container", "node"]),
        R::new(Post, workload!("/instances/{instance}/exec"), A::Deploy, O::Exec, P::Frames,
            "Runs a command in an instance's container: `request` says which, frames go both ways")
            .takes(P::Frames, &[200]).query(&["request"]),
        R::new(Post, workload!("/instances/{instance}/forward"), A::Deploy, O::Forward, P::Frames,
            "Connects to a port of an instance: frames go both ways")
            .takes(P::Frames, &[200]).query(&["port"]),
        R::new(Get, "/v1alpha1/instances", A::ReadMachine, O::ListAllInstances, list_of::<InstanceItem>(),
            "Lists or watches instances of all namespaces").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/instances", A::ReadNamespace, O::ListInstances, list_of::<InstanceItem>(),
            "Lists or watches instances of a namespace").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/instances/{instance}", A::ReadNamespace, O::GetInstance, P::Json(of::<InstanceItem>),
            "Reads an instance"),
        R::new(Get, "/v1alpha1/routes", A::ReadCluster, O::ListAllRoutes, list_of::<RouteItem>(),
            "Lists or watches routes of all namespaces").query(LIST),
        R::new(Put, "/v1alpha1/routes", A::Admin, O::PutRoute, APPLIED,
            "Writes a route to something outside KAT; its host and path are its name")
            .takes(P::Json(of::<RouteRequest>), &[200, 201]).query(&["dryRun"]),
        R::new(Delete, "/v1alpha1/routes", A::Admin, O::DeleteRoute, APPLIED,
            "Deletes a route to something outside KAT, by `host` and `path`").query(&["host", "path", "dryRun"]),
        R::new(Get, "/v1alpha1/n/{namespace}/routes", A::ReadNamespace, O::ListRoutes, list_of::<RouteItem>(),
            "Lists or watches routes of a namespace").query(LIST),
        R::new(Get, "/v1alpha1/virtual-addresses", A::ReadCluster, O::ListVirtualAddresses, list_of::<VirtualAddressItem>(),
            "Lists or watches virtual addresses").query(LIST),
        R::new(Get, "/v1alpha1/ingress/authority", A::Authenticated, O::GetIngressAuthority, P::Json(of::<IngressAuthorityView>),
            "Reads the certificate of KAT's own authority for ingress"),
        R::new(Get, "/v1alpha1/volumes", A::ReadCluster, O::ListAllVolumes, list_of::<VolumeItem>(),
            "Lists or watches volumes of all namespaces").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/volumes", A::ReadNamespace, O::ListVolumes, list_of::<VolumeItem>(),
            "Lists or watches volumes of a namespace").query(LIST),
        R::new(Get, workload!("/volumes/{volume}"), A::ReadNamespace, O::GetVolume, P::Json(of::<VolumeItem>),
            "Reads a volume, also of a workload that is gone"),
        R::new(Delete, workload!("/volumes/{volume}"), A::Deploy, O::DeleteVolume, APPLIED,
            "Deletes a volume's data for good, of a path of the machine only what KAT knows of it; one that an instance may have is a conflict")
            .query(&["dryRun"]),
        R::new(Put, workload!("/volumes/{volume}/move"), A::Deploy, O::MoveVolume, APPLIED,
            "Stops what has a volume, moves its data to another machine, with that of volumes that have to be beside it, and starts it there")
            .takes(P::Json(of::<VolumeMoveRequest>), &[200]).query(&["dryRun"]),
        R::new(Delete, workload!("/volumes/{volume}/move"), A::Deploy, O::CancelVolumeMove, APPLIED,
            "Ends the move of a volume: its data stays where it was").query(&["dryRun"]),
        R::new(Put, workload!("/volumes/{volume}/forget"), A::Deploy, O::ForgetVolumeData, APPLIED,
            "Gives up data of a volume that a machine was to remove and does not find because its disk is missing; a conflict while the machine has not reported that")
            .takes(P::Json(of::<VolumeForgetRequest>), &[200]).query(&["dryRun"]),
        R::new(Get, "/v1alpha1/secrets", A::ReadCluster, O::ListAllSecrets, list_of::<SecretItem>(),
            "Lists or watches secrets of all namespaces, without values").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/secrets", A::ReadNamespace, O::ListSecrets, list_of::<SecretItem>(),
            "Lists or watches secrets of a namespace, without values").query(LIST),
        R::new(Get, "/v1alpha1/n/{namespace}/secrets/{secret}", A::ReadNamespace, O::GetSecret, P::Json(of::<SecretItem>),
            "Reads a secret, without values"),
        R::new(Put, "/v1alpha1/n/{namespace}/secrets/{secret}", A::Deploy, O::PutSecret, APPLIED,
            "Writes the content of a secret, or with `merge` a part of it; where that changes it, the workloads that use it begin a rollout")
            .takes(P::Json(of::<SecretRequest>), &[200, 201]).query(&["dryRun"]),
        R::new(Delete, "/v1alpha1/n/{namespace}/secrets/{secret}", A::Deploy, O::DeleteSecret, APPLIED,
            "Deletes a secret; one that a workload uses is a conflict").query(&["dryRun"]),
        R::new(Post, "/v1alpha1/sealing-key", A::Admin, O::RotateSealingKey, P::Json(of::<SealingRotation>),
            "Makes a new key that seals secrets, and reseals them; call it again with `goOn` until none is left")
            .query(&["goOn"]),
        R::new(Get, "/v1alpha1/n/{namespace}/usage", A::ReadNamespace, O::GetNamespaceUsage, P::Json(of::<NamespaceUsage>),
            "Counts what the instances of a namespace take now, on their machines"),
        R::new(Get, "/v1alpha1/nodes", A::ReadMachine, O::ListNodes, list_of::<NodeItem>(),
            "Lists or watches machines").query(LIST),
        R::new(Get, "/v1alpha1/nodes/{node}", A::ReadNode, O::GetNode, P::Json(of::<NodeItem>),
            "Reads a machine"),
        R::new(Get, "/v1alpha1/nodes/{node}/usage", A::ReadNode, O::GetNodeUsage, P::Json(of::<NodeUsage>),
            "Counts what the instances of a machine take now, on that machine"),
        R::new(Get, "/v1alpha1/nodes/{node}/metrics", A::ReadNode, O::GetNodeMetrics, P::Json(of::<NodeMeasurements>),
            "Reads what a machine measures of itself; Prometheus' text with `format=prometheus` or `Accept: text/plain`").query(&["format"]),
        R::new(Delete, "/v1alpha1/nodes/{node}", A::Leave, O::DeleteNode, P::Nothing,
            "Takes a machine out of the cluster; one that is Ready and runs instances is a conflict, unless it asks itself")
            .takes(P::Nothing, &[204]),
        R::new(Put, "/v1alpha1/nodes/{node}/drain", A::Leave, O::DrainNode, APPLIED,
            "Moves everything off a machine and places nothing new there; with `force=true` what can't move is stopped")
            .query(&["force", "dryRun"]),
        R::new(Delete, "/v1alpha1/nodes/{node}/drain", A::Admin, O::UncordonNode, APPLIED,
            "Lets a machine take work again").query(&["dryRun"]),
        R::new(Put, "/v1alpha1/nodes/{node}/labels", A::Admin, O::PutNodeLabels, APPLIED,
            "Sets the labels of a machine, all of them")
            .takes(P::Json(of::<NodeLabels>), &[200]).query(&["dryRun"]),
        R::new(Put, "/v1alpha1/nodes/{node}/taints", A::Admin, O::PutNodeTaints, APPLIED,
            "Sets the taints of a machine, all of them")
            .takes(P::Json(of::<NodeTaints>), &[200]).query(&["dryRun"]),
        R::new(Post, "/v1alpha1/nodes/{node}/status", A::Report, O::ReportNode, P::Nothing,
            "Takes a machine's report; only from that machine, by its certificate")
            .takes(P::Json(of::<NodeReport>), &[204]),
        R::new(Get, "/v1alpha1/nodes/{node}/state", A::Report, O::StreamNodeState, P::StateFrames,
            "Streams the keys of the store that a machine may see; only to that machine, by its certificate")
            .query(&["epoch", "revision", "schema"]),
        R::new(Post, "/v1alpha1/nodes/{node}/certificates", A::KnownKey, O::RenewCertificates, P::Json(of::<Certificates>),
            "Renews a machine's certificates, for the key that the cluster knows it by")
            .takes(P::Json(of::<RenewalRequest>), &[200]),
        R::new(Get, "/v1alpha1/nodes/{node}/membership", A::Report, O::GetMembership, P::Json(of::<MembershipAnswer>),
            "Hands the authorities' keys to a machine that is to hold etcd; only to that machine, by its certificate"),
        R::new(Post, "/v1alpha1/join", A::Join, O::Join, P::Json(of::<JoinAnswer>),
            "Lets a machine join; one that is known by its key keeps identity, name and subnet")
            .takes(P::Json(of::<JoinRequest>), &[200, 201]),
        R::new(Get, "/v1alpha1/events", A::ReadNamespace, O::ListEvents, list_of::<Event>(),
            "Lists or watches events, oldest first")
            .query(&["watch", "resourceVersion", "resourceType", "resourceName", "namespace"]),
        R::new(Get, "/v1alpha1/isolation", A::ReadNamespace, O::GetIsolation, P::Json(of::<IsolationView>),
            "Reads which machines isolate namespaces, and which connections that refused, from or to a namespace with `namespace`")
            .query(&["namespace"]),
        R::new(Get, "/v1alpha1/config/cluster", A::BeforeJoin, O::GetClusterConfiguration, P::Json(of::<ClusterConfiguration>),
            "Reads the cluster's configuration"),
        R::new(Put, "/v1alpha1/config/cluster", A::Admin, O::PutClusterConfiguration, P::Json(of::<ConfigurationChange>),
            "Takes the text of a `cluster.kat` as the configuration; a setting that is left out gets its default")
            .takes(P::Text, &[200]).query(&["dryRun"]),
        R::new(Get, "/v1alpha1/config/cluster/revisions", A::Admin, O::ListConfigurations, P::Json(of::<ConfigurationHistory>),
            "Lists the kept configurations, oldest first, with who made them and when"),
        R::new(Get, "/v1alpha1/overview", A::ReadOverview, O::GetOverview, P::Json(of::<ClusterOverview>),
            "Reads an overview of the machines and the store, without texts; a machine without the store passes on what it last read"),
        R::new(Get, "/v1alpha1/registries", A::Admin, O::ListRegistries, P::Json(of::<List<RegistryView>>),
            "Lists what is set about registries"),
        R::new(Put, "/v1alpha1/registries/{host}", A::Admin, O::SetRegistry, P::Json(of::<RegistryView>),
            "Sets how a registry is reached")
            .takes(P::Json(of::<RegistryRequest>), &[200]),
        R::new(Delete, "/v1alpha1/registries/{host}", A::Admin, O::UnsetRegistry, P::Nothing,
            "Forgets what was set about a registry"),
        R::new(Get, "/v1alpha1/n/{namespace}/registries", A::ReadNamespace, O::ListRegistryLogins, P::Json(of::<List<RegistryLoginView>>),
            "Lists for which registries a namespace has credentials, without passwords"),
        R::new(Put, "/v1alpha1/n/{namespace}/registries/{registry}", A::Deploy, O::PutRegistryLogin, P::Json(of::<RegistryLoginResult>),
            "Keeps a name and password for the pulls of a namespace from a registry, or from below a path of one; the registry is asked first")
            .takes(P::Json(of::<RegistryLoginRequest>), &[200, 201]),
        R::new(Delete, "/v1alpha1/n/{namespace}/registries/{registry}", A::Deploy, O::DeleteRegistryLogin, P::Nothing,
            "Takes the credentials for a registry away from a namespace")
            .takes(P::Nothing, &[204]),
        R::new(Get, "/v1alpha1/tokens", A::Admin, O::ListTokens, list_of::<TokenView>(),
            "Lists or watches tokens, without their secrets").query(LIST),
        R::new(Post, "/v1alpha1/tokens", A::Admin, O::CreateToken, P::Json(of::<TokenView>),
            "Creates a token and shows it this once")
            .takes(P::Json(of::<TokenRequest>), &[201]),
        R::new(Delete, "/v1alpha1/tokens/{token}", A::Admin, O::DeleteToken, P::Nothing,
            "Deletes a token; streams that it opened end")
            .takes(P::Nothing, &[204]),
        R::new(Get, "/v1alpha1/authorities/successions", A::Anyone, O::ListSuccessions, P::Json(of::<AuthoritySuccessions>),
            "Lists the replacements of cluster-ca with the signatures of the machines that held the store"),
        R::new(Get, "/v1alpha1/authorities", A::ReadCluster, O::ListAuthorities, P::Json(of::<List<AuthorityStatus>>),
            "Lists the cluster's certificate authorities, when they and the machines' certificates expire, and how far a replacement is"),
        R::new(Post, "/v1alpha1/authorities/{authority}/rotate", A::Admin, O::RotateAuthority, P::Json(of::<AuthorityStatus>),
            "Asks for the replacement of an authority while the cluster runs")
            .takes(P::Json(of::<AuthorityRotationRequest>), &[200]),
        R::new(Post, "/v1alpha1/authorities/migration", A::Admin, O::EndMigration, P::Json(of::<AuthorityMigration>),
            "Ends the wait for machines of version 0.1.0 that never come")
            .takes(P::Json(of::<AuthorityMigrationRequest>), &[200]),
        R::new(Get, "/v1alpha1/authorities/exposed", A::Admin, O::ListExposedValues, P::Json(of::<ExposedValues>),
            "Lists the secrets, credentials and tokens from before the recovery key was replaced, which a machine that held the store could read, without values"),
    ]
};

/// Builds the router from the table.
pub fn router(api: &Arc<Api>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let gate = from_fn_with_state((Arc::clone(api), route), gate);
        let handler = handlers::of(route.operation, route.verb.filter()).route_layer(gate);
        router = router.route(route.path, handler);
    }
    let unknown = from_fn_with_state(Arc::clone(api), limit_unknown);
    router
        .method_not_allowed_fallback(wrong_method.layer(unknown.clone()))
        .fallback(no_route.layer(unknown))
        .layer(from_fn_with_state(Arc::clone(api), observe))
        .with_state(Arc::clone(api))
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::NoRoute(uri.path().chars().take(100).collect())
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed {
        method: method.as_str().chars().take(20).collect(),
        path: uri.path().chars().take(100).collect(),
    }
}

/// Counts calls without a route against the address's rate.
async fn limit_unknown(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectionPeer>();
    if let Some(Err(error)) = peer.map(|peer| api.rates.check(peer, None)) {
        return error.into_response();
    }
    next.run(request).await
}

/// Authenticates the caller, checks its rate and its right, and sets the time limit.
async fn gate(
    State((api, route)): State<(Arc<Api>, &'static ApiRoute)>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let (caller, admitted) = match params {
        Ok(params) => admit(&api, route, &params, &request),
        Err(error) => {
            let error = ApiError::invalid(format!("the path: {}", error.body_text()));
            (Caller::Anonymous, Err(error))
        }
    };
    let mut response = match admitted {
        Err(error) => explained_refusal(&api, &caller, error)
            .await
            .into_response(),
        Ok(()) => {
            request.extensions_mut().insert(caller.clone());
            let limit = api.config.limits.request_timeout;
            match tokio::time::timeout(limit, next.run(request)).await {
                Ok(response) => response,
                Err(_) => ApiError::Timeout(limit.as_secs()).into_response(),
            }
        }
    };
    response
        .extensions_mut()
        .insert(HandledRequest { route, caller });
    response
}

fn admit(
    api: &Api,
    route: &ApiRoute,
    params: &RawPathParams,
    request: &Request,
) -> (Caller, Result<(), ApiError>) {
    let Some(peer) = request.extensions().get::<ConnectionPeer>() else {
        let error = ApiError::Internal("the connection has no peer".to_owned());
        return (Caller::Anonymous, Err(error));
    };
    let snapshot = api.newest();
    let caller = match identify(peer, request.headers(), snapshot.as_deref(), api.now()) {
        Ok(caller) => caller,
        // On an open route, a caller that was removed or is not known yet is treated as anonymous.
        Err(_) if is_open(route) && !request.headers().contains_key(AUTHORIZATION) => {
            Caller::Anonymous
        }
        Err(error) => {
            // Calls with a wrong token count against the address.
            let limited = api.rates.check(peer, None);
            return (Caller::Anonymous, limited.and(Err(error)));
        }
    };
    if let Some(standing) = request.extensions().get::<ConnectionStandingHandle>() {
        standing.prove(&caller);
    }
    let asked = query_namespace(route, request.uri());
    let param = |name| {
        params
            .iter()
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    };
    let target = CallScope {
        namespace: param("namespace").or(asked.as_deref()),
        node: param("node"),
    };
    let admitted = api
        .rates
        .check(peer, Some(&caller))
        .and_then(|()| check(route.access, &caller, target));
    (caller, admitted)
}

fn is_open(route: &ApiRoute) -> bool {
    matches!(route.access, RouteAccess::Anyone | RouteAccess::KnownKey)
}

/// The namespace in the query, if the route has such a parameter.
fn query_namespace(route: &ApiRoute, uri: &Uri) -> Option<String> {
    type Pairs = axum::extract::Query<Vec<(String, String)>>;
    if !route.query.contains(&"namespace") {
        return None;
    }
    let Pairs { 0: pairs } = Pairs::try_from_uri(uri).ok()?;
    let mut named = pairs.into_iter().filter(|(name, _)| name == "namespace");
    let first = named.next().map(|(_, value)| value);
    // If it is named twice, it is not clear which one is meant; the handler refuses that too.
    if named.next().is_some() { None } else { first }
}
