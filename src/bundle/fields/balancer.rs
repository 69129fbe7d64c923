//! The fields of `VirtualLoadBalancer.kat`, but for its ports.

use super::{
    API_VERSION, Field,
    FieldType::{self, Boolean, Integer, IntegerOr, List, Mapping, Text, TextList, Word},
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

const PORT: FieldType = Integer(1, 65_535);
const PORT_REFERENCE: FieldType = IntegerOr(1, 65_535, "the name of a port");

#[rustfmt::skip]
pub(super) const HEAD: &[Field] = &[
    balancer("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    balancer("kind", Word(&["VirtualLoadBalancer"]), "VirtualLoadBalancer", "kind of the document").required().identity(),
    balancer("spec", Mapping, "{ports: [{containerPort: 8080}]}", "desired state").required(),
];

#[rustfmt::skip]
pub(super) const FIELDS: &[Field] = &[
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
];
