//! Tests of the whole crate: the table of fields against the types and the decoder, hashes,
//! archives.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod archives;
mod diagnostics;
mod field_table;
mod hashes;
mod round_trip;
mod rules_of_later_fields;
mod short_form;
mod workload_files;

use serde_json::{Value, json};

use kat_bundle::*;

fn template_hash(bundle: &Bundle) -> String {
    kat_bundle::template_hash(bundle).unwrap()
}

fn spec_hash(bundle: &Bundle) -> String {
    kat_bundle::spec_hash(bundle).unwrap()
}

/// A file with JSON as its text, which is also YAML.
fn file(name: &str, value: &Value) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        text: serde_json::to_string_pretty(value).unwrap(),
    }
}

/// The smallest valid workload.
fn workload() -> Value {
    json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "base"},
        "spec": {
            "type": "Service",
            "source": {"image": "registry.example/base:1"},
            "replicas": 1,
            "restartPolicy": {"condition": "Always"},
            "container": {},
        },
    })
}

/// The smallest valid document of a kind.
fn least(kind: DocumentKind) -> Value {
    let mut value = match kind {
        DocumentKind::Workload => return workload(),
        DocumentKind::VirtualLoadBalancer => json!({"spec": {"ports": [{"containerPort": 8080}]}}),
        DocumentKind::JobDefinition | DocumentKind::BuildDefinition => json!({"spec": {}}),
        DocumentKind::Namespace => json!({"metadata": {"name": "base"}}),
        DocumentKind::Route => {
            json!({"spec": {"host": "base.example.org", "to": "http://192.0.2.1"}})
        }
        DocumentKind::ClusterConfiguration => json!({
            "metadata": {"name": "base"},
            "spec": {"clusterCIDR": "10.100.0.0/16", "serviceCIDR": "10.200.0.0/16"},
        }),
        DocumentKind::AgentConfig => return json!({}),
    };
    value["apiVersion"] = json!(kat_types::resource::API_VERSION);
    value["kind"] = json!(kind.as_str());
    value
}

/// Parses the files in strict mode and panics with the diagnostics.
fn parsed(files: &[SourceFile]) -> Bundle {
    parse(files, DecodeMode::Strict).unwrap_or_else(|found| panic!("{}", lines(&found)))
}

/// One line for each diagnostic.
fn lines(found: &[Diagnostic]) -> String {
    let lines: Vec<_> = found
        .iter()
        .map(|found| format!("[{}] {found}", found.class))
        .collect();
    lines.join("\n")
}
