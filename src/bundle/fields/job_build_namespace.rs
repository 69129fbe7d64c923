//! The fields of `VirtualLoadBalancer.kat`, `job.kat`, `build.kat` and `namespace.kat`.

use super::{
    API_VERSION, Field,
    FieldType::{self, Boolean, Integer, IntegerOr, List, Mapping, Text, TextList, TextMap, Word},
};
use crate::kind::DocumentKind;

const fn balancer(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(
        DocumentKind::VirtualLoadBalancer,
        path,
        value,
        example,
        description,
    )
}

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

/// Seconds of a year.
const YEAR: u64 = 31_536_000;
const PORT: FieldType = Integer(1, 65_535);
const PORT_REFERENCE: FieldType = IntegerOr(1, 65_535, "the name of a port");

#[rustfmt::skip]
pub(crate) const FIELDS: &[Field] = &[
    balancer("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    balancer("kind", Word(&["VirtualLoadBalancer"]), "VirtualLoadBalancer", "kind of the document").required().identity(),
    balancer("spec", Mapping, "{ports: [{containerPort: 8080}]}", "desired state").required(),
    balancer("spec.ports", List, "[{name: web, containerPort: 8080}]", "ports of the container; at least one").required(),
    balancer("spec.ports[].name", Text, "web", "name to which ingress and health checks refer"),
    balancer("spec.ports[].containerPort", PORT, "8081", "port that the program listens on").required(),
    balancer("spec.ports[].protocol", Word(&["TCP", "UDP"]), "UDP", "transport protocol").default("TCP"),
    balancer("spec.ports[].hostPort", IntegerOr(1, 65_535, "auto"), "80", "port of each machine with an instance, forwarded to this port; auto selects one of 30000 to 32767"),
    balancer("spec.healthCheck", Mapping, "{tcp: {port: 8080}}", "probe of each instance: exactly one of exec, http and tcp; without a probe a running instance is healthy"),
    balancer("spec.healthCheck.exec", Mapping, "{command: [/bin/check]}", "a command in the container; exit code 0 is healthy"),
    balancer("spec.healthCheck.exec.command", TextList, "[/bin/other]", "the command and its arguments").required(),
    balancer("spec.healthCheck.http", Mapping, "{path: /healthz, port: 8080}", "an HTTP request; 200 to 399 is healthy"),
    balancer("spec.healthCheck.http.path", Text, "/healthz", "path and query").required(),
    balancer("spec.healthCheck.http.port", PORT_REFERENCE, "8080", "name or number of a port").required(),
    balancer("spec.healthCheck.tcp", Mapping, "{port: 8080}", "a TCP connection; an accepted connection is healthy"),
    balancer("spec.healthCheck.tcp.port", PORT_REFERENCE, "8080", "name or number of a port").required(),
    balancer("spec.healthCheck.initialDelaySeconds", Integer(0, 3600), "5", "seconds before the first probe").default("0"),
    balancer("spec.healthCheck.periodSeconds", Integer(1, 3600), "30", "seconds between two probes").default("10"),
    balancer("spec.healthCheck.timeoutSeconds", Integer(1, 3600), "3", "seconds after which a probe fails").default("1"),
    balancer("spec.healthCheck.successThreshold", Integer(1, 100), "2", "consecutive successes after which an instance is healthy").default("1"),
    balancer("spec.healthCheck.failureThreshold", Integer(1, 100), "5", "consecutive failures after which an instance is unhealthy").default("3"),
    balancer("spec.healthCheck.restartOnUnhealthy", Boolean, "true", "restart an unhealthy instance").default("false"),
    balancer("spec.headless", Boolean, "true", "DNS answers with the addresses of the instances instead of a service address").default("false"),
    balancer("spec.ingress", List, "[{host: web.example.org, servicePort: 8080}]", "routes of HTTP requests from outside the cluster").default("[]").not_yet(),
    balancer("spec.ingress[].host", Text, "web.example.org", "host name of the request").required().not_yet(),
    balancer("spec.ingress[].path", Text, "/shop", "prefix of the path").default("/").not_yet(),
    balancer("spec.ingress[].servicePortName", Text, "web", "name of a port of spec.ports").not_yet(),
    balancer("spec.ingress[].servicePort", PORT, "8080", "number of a port of spec.ports; takes precedence over servicePortName").not_yet(),
    balancer("spec.ingress[].tls", Boolean, "true", "serve HTTPS with a certificate").default("false").not_yet(),

    job("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    job("kind", Word(&["JobDefinition"]), "JobDefinition", "kind of the document").required().identity(),
    job("spec", Mapping, "{}", "desired state").required(),
    job("spec.schedule", Text, "\"*/5 * * * *\"", "cron expression with five fields; without it the Job runs once when it is applied").not_yet(),
    job("spec.timeZone", Text, "Europe/Berlin", "time zone of the schedule").default("UTC").not_yet(),
    job("spec.concurrencyPolicy", Word(&["Forbid", "Allow", "Replace"]), "Allow", "what happens when a run is due while another run is active").default("Forbid").not_yet(),
    job("spec.startingDeadlineSeconds", Integer(1, YEAR), "300", "seconds after its scheduled time within which a run may start").not_yet(),
    job("spec.suspend", Boolean, "true", "start no runs").default("false").not_yet(),
    job("spec.completions", Integer(1, 10_000), "2", "instances that must succeed").default("1").not_yet(),
    job("spec.parallelism", Integer(1, 1000), "2", "instances that run at the same time").default("1").not_yet(),
    job("spec.activeDeadlineSeconds", Integer(1, YEAR), "600", "seconds after which a run is ended").not_yet(),
    job("spec.backoffLimit", Integer(0, 1000), "6", "failed instances before the Job fails").default("3").not_yet(),

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
    namespace("metadata", Mapping, "{name: shop}", "name and labels").required().identity(),
    namespace("metadata.name", Text, "shop", "name: a DNS label of at most 40 characters; no top-level domain such as `dev`, and no word for a kind of object such as `node` or `volume`").required().identity(),
    namespace("metadata.labels", TextMap, "{team: shop}", "labels of your own").default("{}"),
];
