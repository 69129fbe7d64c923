//! The fields of `job.kat`, `build.kat`, `namespace.kat` and `route.kat`.

use super::{
    API_VERSION, Field,
    FieldType::{
        self, Boolean, BooleanOrMapping, Integer, IntegerOr, Mapping, Processor, Size, Text,
        TextList, TextMap, Word,
    },
};
use crate::kind::DocumentKind;

const fn job(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(
        DocumentKind::JobDefinition,
        path,
        value,
        example,
        description,
    )
}

const fn build(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(
        DocumentKind::BuildDefinition,
        path,
        value,
        example,
        description,
    )
}

const fn namespace(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(DocumentKind::Namespace, path, value, example, description)
}

const fn route(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(DocumentKind::Route, path, value, example, description)
}

/// Most objects of a quota.
const MOST: u64 = 1_000_000;
/// Seconds of a year.
const YEAR: u64 = 31_536_000;

#[rustfmt::skip]
pub(crate) const FIELDS: &[Field] = &[
    job("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    job("kind", Word(&["JobDefinition"]), "JobDefinition", "kind of the document").required().identity(),
    job("spec", Mapping, "{}", "desired state").required().since(4),
    job("spec.schedule", Text, "\"*/5 * * * *\"", "cron expression with five fields, or @hourly, @daily, @weekly, @monthly or @yearly; without it the Job runs once when it is applied"),
    job("spec.timeZone", Text, "Europe/Berlin", "time zone of the schedule").default("UTC"),
    job("spec.concurrencyPolicy", Word(&["Forbid", "Allow", "Replace"]), "Replace", "what happens when a run is due while another run is active: Forbid skips it, Allow lets at most 20 runs overlap, and Replace ends the active run first").default("Forbid"),
    job("spec.startingDeadlineSeconds", Integer(1, YEAR), "300", "seconds after its scheduled time within which a run may start"),
    job("spec.suspend", Boolean, "true", "start no runs").default("false"),
    job("spec.catchUp", Word(&["None", "Last", "All"]), "None", "which missed runs that are younger than startingDeadlineSeconds are made up for: None, Last or All (at most 100)").default("Last"),
    job("spec.jitterSeconds", Integer(0, 86_400), "30", "longest delay of a run in seconds; each run of a Job has its own").default("0"),
    job("spec.completions", IntegerOr(1, 10_000, "PerNode"), "2", "instances that must succeed, or PerNode: one on each machine that matches nodeSelector and tolerations when the run begins").default("1"),
    job("spec.parallelism", Integer(1, 1000), "2", "instances that run at the same time; with completions PerNode, machines").default("1"),
    job("spec.activeDeadlineSeconds", Integer(1, YEAR), "600", "seconds after which a whole run is ended"),
    job("spec.backoffLimit", Integer(0, 1000), "6", "instances that may fail before the run fails; with completions PerNode, on each machine").default("3"),
    job("spec.successfulHistory", Integer(0, 1000), "5", "successful runs that are kept").default("3"),
    job("spec.failedHistory", Integer(0, 1000), "5", "failed runs that are kept").default("1"),
    job("spec.ttlSecondsAfterFinished", Integer(0, YEAR), "86400", "seconds after its end at which a Job without schedule is deleted; default: never"),

    build("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    build("kind", Word(&["BuildDefinition"]), "BuildDefinition", "kind of the document").required().identity(),
    build("spec", Mapping, "{}", "desired state").required(),
    build("spec.buildContext", Text, "web", "directory, relative to the root of the repository").default(".").not_yet(),
    build("spec.dockerfilePath", Text, "./Containerfile", "Dockerfile, relative to buildContext").default("./Dockerfile").not_yet(),
    build("spec.buildArgs", TextMap, "{VERSION: \"1.2.3\"}", "build arguments").default("{}").not_yet(),
    build("spec.targetStage", Text, "runtime", "target stage of a build with several stages").not_yet(),
    build("spec.platform", Text, "linux/arm64", "operating system and architecture of the image").not_yet(),
    build("spec.cache", Mapping, "{registryPath: registry.example/cache/web}", "registry in which built images are cached").not_yet(),
    build("spec.cache.registryPath", Text, "registry.example/cache/web", "repository without a tag").required().not_yet(),

    namespace("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    namespace("kind", Word(&["Namespace"]), "Namespace", "kind of the document").required().identity(),
    namespace("metadata", Mapping, "{name: webshop}", "name and labels").required().identity(),
    namespace("metadata.name", Text, "webshop", "name: a DNS label of at most 40 characters; no top-level domain such as `dev`, and no word for a kind of object such as `node` or `volume`").required().identity(),
    namespace("metadata.labels", TextMap, "{team: shop}", "labels of your own").default("{}"),
    namespace("spec", Mapping, "{isolation: Shared}", "settings of the namespace; administrators only"),
    namespace("spec.isolation", Word(&["Private", "Shared"]), "Shared", "who may reach its workloads: Private (its own workloads and those of allowNamespaces) or Shared (all workloads)").default("Private"),
    namespace("spec.allowNamespaces", TextList, "[monitoring]", "namespaces that may reach its workloads; \"*\" for all").default("[]"),
    namespace("spec.ingressHosts", TextList, "[\"*.shop.example.org\"]", "hosts that its routes may have, exact or with *. for one label; default: all"),
    namespace("spec.quota", Mapping, "{workloads: 20}", "quotas, in place of all present ones; one that is not written is not limited; without this field the present ones stay").since(7),
    namespace("spec.quota.workloads", Integer(0, MOST), "20", "workloads"),
    namespace("spec.quota.instances", Integer(0, MOST), "50", "replicas of all workloads, and instances that Jobs may have at once, with concurrencyPolicy Allow those of 20 runs"),
    namespace("spec.quota.cpu", Processor, "4", "processor time that all instances request"),
    namespace("spec.quota.memory", Size, "8Gi", "memory that all instances request"),
    namespace("spec.quota.volumes", Integer(0, MOST), "10", "volumes that keep data, including those of deleted workloads"),
    namespace("spec.quota.secrets", Integer(0, MOST), "30", "secrets"),
    namespace("spec.quota.secretBytes", Size, "1Mi", "bytes of the values of all secrets"),
    namespace("spec.quota.fileBytes", Size, "8Mi", "bytes of the files of all workloads"),
    namespace("spec.quota.events", Integer(0, MOST), "500", "events that are kept"),
    namespace("spec.quota.hosts", Integer(0, MOST), "10", "hosts of all routes, with those of redirectFrom").since(6),
    namespace("spec.quota.certificateOrders", Integer(0, MOST), "50", "certificates that are ordered by ACME within 24 hours for hosts that have none; default: 20").since(6),
    namespace("spec.defaults", Mapping, "{requests: {cpu: 100m}}", "values for workloads that do not have them; without this field the present ones stay").since(7),
    namespace("spec.defaults.requests", Mapping, "{cpu: 100m}", "requests of each container that has neither a request nor a limit; new instances get them, and running ones stay as they are"),
    namespace("spec.defaults.requests.cpu", Processor, "200m", "processor time"),
    namespace("spec.defaults.requests.memory", Size, "64Mi", "memory"),

    route("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    route("kind", Word(&["Route"]), "Route", "kind of the document").required().identity(),
    route("spec", Mapping, "{host: nas.example.org, to: \"http://192.0.2.5:5000\"}", "route to something outside KAT; administrators only").required(),
    route("spec.host", Text, "nas.example.org", "host name of the request; *. at its start stands for one label").required(),
    route("spec.path", Text, "/nas", "prefix of the path, in whole segments").default("/"),
    route("spec.to", Text, "http://192.0.2.5:5000", "URL with http and an address, to which requests are forwarded").required(),
    route("spec.tls", BooleanOrMapping, "{issuer: internal}", "serve HTTPS: true, or the source of the certificate, exactly one of issuer and secret").default("false"),
    route("spec.tls.issuer", Word(&["acme", "internal"]), "internal", "issuer of the certificate: acme (the cluster's ACME server) or internal (KAT's own authority)"),
    route("spec.tls.secret", Text, "nas-tls", "secret of the namespace kat-core with the keys tls.crt and tls.key"),
];
