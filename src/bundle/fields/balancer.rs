//! The fields of `VirtualLoadBalancer.kat`, but for its ports.

use super::{
    API_VERSION, Field,
    FieldType::{
        self, Boolean, BooleanOrMapping, Integer, IntegerOr, List, Mapping, Text, TextList,
        TextMap, Word,
    },
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
    balancer("spec.aliases", TextList, "[mysql]", "further names of the workload in its namespace, which no other workload there has").default("[]").since(7),
    balancer("spec.allowNamespaces", TextList, "[monitoring]", "namespaces that may reach the service, in addition to allowNamespaces of its own namespace; \"*\" for all").default("[]").since(3),
    balancer("spec.ingress", List, "[{host: web.example.org, servicePort: 8080}]", "routes of HTTP requests from outside the cluster").default("[]").since(3),
    balancer("spec.ingress[].host", Text, "web.example.org", "host name of the request; *. at its start stands for one label").required(),
    balancer("spec.ingress[].path", Text, "/shop", "prefix of the path, in whole segments").default("/"),
    balancer("spec.ingress[].servicePortName", Text, "web", "name of a port; exactly one of servicePort, servicePortName, redirectTo and maintenance"),
    balancer("spec.ingress[].servicePort", PORT, "8080", "number of a port"),
    balancer("spec.ingress[].redirectTo", Text, "https://example.com", "URL to which requests are redirected (308); path and query are kept"),
    balancer("spec.ingress[].maintenance", Boolean, "true", "answer requests with a page that says that the service is in maintenance").default("false"),
    balancer("spec.ingress[].tls", BooleanOrMapping, "{secret: shop-tls}", "serve HTTPS: true, or the source of the certificate, exactly one of issuer and secret").default("false"),
    balancer("spec.ingress[].tls.issuer", Word(&["acme", "internal"]), "internal", "issuer of the certificate: acme (the cluster's ACME server) or internal (KAT's own authority)"),
    balancer("spec.ingress[].tls.secret", Text, "web-tls", "secret with the keys tls.crt and tls.key"),
    balancer("spec.ingress[].plainHTTP", Word(&["redirect", "serve"]), "serve", "what requests without TLS get: redirect (to https) or serve; default: redirect, if tls is set"),
    balancer("spec.ingress[].redirectFrom", TextList, "[www.example.org]", "further host names, which are redirected to host").default("[]"),
    balancer("spec.ingress[].stripPrefix", Boolean, "true", "remove path from forwarded requests").default("false"),
    balancer("spec.ingress[].requestHeaders", Mapping, "{set: {X-Tenant: shop}}", "changed headers of requests"),
    balancer("spec.ingress[].requestHeaders.set", TextMap, "{X-Tenant: shop}", "values by the header's name").default("{}"),
    balancer("spec.ingress[].requestHeaders.remove", TextList, "[Cookie]", "names of headers to remove").default("[]"),
    balancer("spec.ingress[].responseHeaders", Mapping, "{remove: [Server]}", "changed headers of responses"),
    balancer("spec.ingress[].responseHeaders.set", TextMap, "{X-Frame-Options: DENY}", "values by the header's name").default("{}"),
    balancer("spec.ingress[].responseHeaders.remove", TextList, "[Server]", "names of headers to remove").default("[]"),
    balancer("spec.ingress[].basicAuth", Mapping, "{secret: users}", "users with passwords"),
    balancer("spec.ingress[].basicAuth.secret", Text, "users", "secret with the key htpasswd, whose passwords are hashed with bcrypt").required(),
    balancer("spec.ingress[].forwardAuth", Mapping, "{workload: auth, port: 9091}", "a workload that decides about each request: an answer 2xx admits it, another one below 500 goes to the client, and all else is answered with 502"),
    balancer("spec.ingress[].forwardAuth.workload", Text, "crew/auth", "name of the workload in the same namespace, or NAMESPACE/NAME of one that lets this namespace reach it").required(),
    balancer("spec.ingress[].forwardAuth.port", PORT_REFERENCE, "9091", "name or number of its port").required(),
    balancer("spec.ingress[].forwardAuth.path", Text, "/verify", "path of the question").default("/"),
    balancer("spec.ingress[].forwardAuth.responseHeaders", TextList, "[Remote-User]", "headers of the answer that the forwarded request gets").default("[]"),
    balancer("spec.ingress[].allowSources", TextList, "[192.0.2.0/24]", "addresses or ranges that may use the route; default: all").default("[]"),
    balancer("spec.ingress[].maxBodyBytes", Integer(0, 1 << 40), "10485760", "bytes of a request's body at most; 0 for any number").default("0"),
    balancer("spec.ingress[].timeouts", Mapping, "{responseSeconds: 120}", "longest waits"),
    balancer("spec.ingress[].timeouts.connectSeconds", Integer(1, 3600), "2", "seconds for a connection to an instance").default("5"),
    balancer("spec.ingress[].timeouts.responseSeconds", Integer(1, 86_400), "120", "seconds for the head of a response").default("60"),
    balancer("spec.ingress[].timeouts.idleSeconds", Integer(1, 86_400), "60", "seconds between two bytes").default("300"),
    balancer("spec.ingress[].upstream", Word(&["http", "h2c"]), "h2c", "protocol of the program: http (HTTP/1.1) or h2c (HTTP/2 without TLS)").default("http"),
    balancer("spec.ingress[].sticky", Boolean, "true", "send the requests of one client to one instance, by a cookie").default("false"),
    balancer("spec.ingress[].passthrough", Boolean, "true", "forward connections by their server name (SNI) without ending TLS; only host, servicePort, servicePortName, allowSources and proxyProtocol are used with it").default("false"),
    balancer("spec.ingress[].proxyProtocol", Word(&["none", "v1", "v2"]), "v2", "version of the PROXY protocol towards the instance").default("none"),
];
