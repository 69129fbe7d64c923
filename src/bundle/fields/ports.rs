//! The fields of `spec.ports`, which either `workload.kat` or `VirtualLoadBalancer.kat` has.

use super::{
    Field,
    FieldType::{Integer, IntegerOr, List, Text, TextList, Word},
};
use crate::kind::DocumentKind;

#[rustfmt::skip]
pub(super) const OF_WORKLOAD: [Field; 7] = of(
    DocumentKind::Workload,
    list(DocumentKind::Workload, "ports of the main container; in this file or in VirtualLoadBalancer.kat").since(2),
);

#[rustfmt::skip]
pub(super) const OF_BALANCER: [Field; 7] = of(
    DocumentKind::VirtualLoadBalancer,
    list(DocumentKind::VirtualLoadBalancer, "ports of the container; in this file or in workload.kat; without ports DNS answers with the addresses of the instances").optional_since(2),
);

const fn list(kind: DocumentKind, description: &'static str) -> Field {
    let example = "[{name: web, containerPort: 8080}]";
    Field::new(kind, "spec.ports", List, example, description)
}

#[rustfmt::skip]
const fn of(kind: DocumentKind, list: Field) -> [Field; 7] {
    [
        list,
        Field::new(kind, "spec.ports[].name", Text, "web", "name to which ingress and health checks refer"),
        Field::new(kind, "spec.ports[].containerPort", Integer(1, 65_535), "8081", "port that the program listens on").required(),
        Field::new(kind, "spec.ports[].protocol", Word(&["TCP", "UDP"]), "UDP", "transport protocol").default("TCP"),
        Field::new(kind, "spec.ports[].hostPort", IntegerOr(1, 65_535, "auto"), "80", "port of each machine with an instance, or of machines as hostPortOn says, forwarded to this port; auto selects one of 30000 to 32767"),
        Field::new(kind, "spec.ports[].hostPortOn", Word(&["instances", "ingress"]), "ingress", "machines that have the host port: instances (those with an instance) or ingress (those that serve routes, which forward it to instances anywhere)").default("instances"),
        Field::new(kind, "spec.ports[].allowSources", TextList, "[192.0.2.0/24]", "addresses or ranges that may use the host port; a change replaces no instance; default: all").default("[]").since(7),
    ]
}
