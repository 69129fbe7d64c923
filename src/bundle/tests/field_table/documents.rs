//! Documents around one field, and their decoded form.

use serde_json::{Value, json};

use super::super::*;
use kat_bundle::{
    fields::{self, Field, FieldType},
    yaml::json_of,
};

/// Other fields that cannot be set together with the one at `path`.
fn excluded(path: &str) -> &'static [&'static str] {
    match path {
        "spec.source.image" | "spec.source" => &["git"],
        "spec.source.git" => &["image"],
        "spec.container.env[].valueFrom" => &["value"],
        "spec.healthCheck.http" => &["exec", "tcp"],
        "spec.healthCheck.exec" => &["http", "tcp"],
        "spec.healthCheck.tcp" => &["http", "exec"],
        "spec.ingress[].servicePortName"
        | "spec.ingress[].redirectTo"
        | "spec.ingress[].maintenance" => &["servicePort"],
        "spec.ingress[].tls.issuer" | "spec.tls.issuer" => &["secret"],
        "spec.ingress[].tls.secret" | "spec.tls.secret" => &["issuer"],
        "spec.acme.dns[].rfc2136" => &["hook"],
        "spec.acme.dns[].hook" => &["rfc2136"],
        "spec.volumes[].hostMount"
        | "spec.volumes[].files"
        | "spec.volumes[].secret"
        | "spec.volumes[].tmpfs" => &["simpleClusterStorage"],
        _ => &[],
    }
}

/// Sets the value at a path of the table. Each list on the path gets one item.
pub(super) fn set(document: &mut Value, field: &Field, value: Value) {
    if field.path == "spec.volumes[].name" {
        let mount = document.pointer_mut("/spec/container/volumeMounts/0/name");
        if let Some(name) = mount {
            *name = value.clone();
        }
        let place = document.pointer_mut("/spec/volumes/0").unwrap();
        place["name"] = value;
        return;
    }
    let mut place = document;
    let parts: Vec<_> = field.path.split('.').collect();
    let (last, parents) = parts.split_last().unwrap();
    for part in parents {
        place = match part.strip_suffix("[]") {
            Some(name) => &mut place[name][0],
            None => &mut place[*part],
        };
    }
    let place = place.as_object_mut().unwrap();
    // A written `false` is no target of a route, and takes no other one's place.
    if value != false {
        for other in excluded(field.path) {
            place.remove(*other);
        }
    }
    if field.path == "spec.tolerations[].operator" && value == "Equal" {
        place.insert("value".to_owned(), json!("db"));
    }
    place.insert((*last).to_owned(), value);
}

pub(super) fn remove(document: &mut Value, field: &Field) {
    let pointer: String = field
        .parent()
        .split('.')
        .filter(|part| !part.is_empty())
        .map(|part| match part.strip_suffix("[]") {
            Some(name) => format!("/{name}/0"),
            None => format!("/{part}"),
        })
        .collect();
    if let Some(parent) = document
        .pointer_mut(&pointer)
        .and_then(Value::as_object_mut)
    {
        parent.remove(field.name());
    }
}

pub(super) fn has(document: &Value, field: &Field) -> bool {
    let pointer: String = field
        .path
        .split('.')
        .map(|part| match part.strip_suffix("[]") {
            Some(name) => format!("/{name}/0"),
            None => format!("/{part}"),
        })
        .collect();
    document.pointer(&pointer).is_some()
}

/// The smallest document in which the field can be set.
pub(super) fn around(field: &Field) -> Value {
    let mut document = least(field.kind);
    let mut parents = Vec::new();
    let mut parent = field.parent();
    while !parent.is_empty() {
        let row = fields::lookup(field.kind, parent.strip_suffix("[]").unwrap_or(parent)).unwrap();
        parents.push(row);
        parent = row.parent();
    }
    for row in parents.into_iter().rev() {
        if !has(&document, row) {
            set(&mut document, row, json_of(row.example));
        }
    }
    match field.path {
        "spec.tolerations[].value" => {
            document["spec"]["tolerations"][0] =
                json!({"key": "dedicated", "operator": "Equal", "value": "x"});
        }
        "spec.updateStrategy.rolling.maxUnavailable" => {
            document["spec"]["type"] = json!("DaemonService");
        }
        "spec.ports[].hostPortOn" | "spec.ports[].allowSources" => {
            document["spec"]["ports"][0]["hostPort"] = json!(80);
        }
        "spec.ingress[].stripPrefix" => {
            document["spec"]["ingress"][0]["path"] = json!("/shop");
        }
        "spec.ingress[].plainHTTP" => {
            document["spec"]["ingress"][0]["tls"] = json!(true);
        }
        "spec.ingress[].servicePort" => {
            document["spec"]["ports"] = json!([{"containerPort": 8080}, {"containerPort": 8081}]);
        }
        "spec.ingress[].forwardAuth.port" => {
            document["spec"]["ports"] =
                json!([{"containerPort": 8080}, {"containerPort": 8081}, {"containerPort": 9091}]);
            document["spec"]["ingress"][0]["forwardAuth"] =
                json!({"workload": "base", "port": 8080});
        }
        "spec.ingress[].servicePortName" => {
            document["spec"]["ports"][0]["name"] = json!("web");
        }
        path if path.starts_with("spec.healthCheck.") && path.ends_with(".port") => {
            document["spec"]["ports"] = json!([{"containerPort": 8080}, {"containerPort": 8081}]);
        }
        "spec.container.volumeMounts" => {
            document["spec"]["volumes"] = json!([{"name": "data", "simpleClusterStorage": {}}]);
        }
        path if path.starts_with("spec.container.volumeMounts[]") => {
            document["spec"]["volumes"] = json!([
                {"name": "data", "simpleClusterStorage": {}},
                {"name": "data2", "hostMount": {"hostPath": "/srv/data"}},
            ]);
        }
        path if path.starts_with("spec.volumes[]") => {
            document["spec"]["container"]["volumeMounts"] =
                json!([{"name": "data", "mountPath": "/data"}]);
        }
        "spec.source.cacheImage" => {
            document["spec"]["source"] =
                json!({"git": {"repository": "https://example.org/w.git"}});
        }
        _ => {}
    }
    document
}

/// The decoded document and its diagnostics for fields without effect, or the errors.
pub(super) type Decoded = Result<(String, Vec<Diagnostic>), Vec<Diagnostic>>;

pub(super) fn decode_as(kind: DocumentKind, document: &Value, mode: DecodeMode) -> Decoded {
    let text = serde_json::to_string_pretty(document).unwrap();
    match kind {
        DocumentKind::ClusterConfiguration => parse_cluster_as(&text, "cluster.kat", mode)
            .map(|value| (format!("{value:?}"), not_yet_cluster(&text, "cluster.kat"))),
        DocumentKind::AgentConfig => {
            parse_agent_config_as(&text, "agent.yaml", mode).map(|value| {
                (
                    format!("{value:?}"),
                    not_yet_agent_config(&text, "agent.yaml"),
                )
            })
        }
        _ => {
            let mut files = vec![file(kind.file(), document)];
            let mut other = workload();
            match kind {
                DocumentKind::Workload => {
                    files.extend(carried(document));
                    let git = document.pointer("/spec/source/git").is_some();
                    if git {
                        files.push(file("build.kat", &least(DocumentKind::BuildDefinition)));
                    }
                    if document.pointer("/spec/type") == Some(&json!("Job")) {
                        files.push(file("job.kat", &least(DocumentKind::JobDefinition)));
                    }
                }
                DocumentKind::JobDefinition => {
                    other["spec"]["type"] = json!("Job");
                    other["spec"]["restartPolicy"]["condition"] = json!("Never");
                    files.push(file("workload.kat", &other));
                }
                DocumentKind::BuildDefinition => {
                    other["spec"]["source"] = json!({"git": {"repository": "https://e.org/w.git"}});
                    files.push(file("workload.kat", &other));
                }
                DocumentKind::VirtualLoadBalancer => files.push(file("workload.kat", &other)),
                _ => {}
            }
            let bundle = parse(&files, mode)?;
            let mut found = not_yet(&bundle);
            found.retain(|found| found.file == kind.file());
            let variables = bundle
                .workload
                .iter()
                .map(|workload| serde_json::to_string(workload).unwrap());
            let shown = format!(
                "{:?} {:?} {:?} {:?} {:?} {:?}",
                variables.collect::<Vec<_>>(),
                bundle.load_balancer,
                bundle.job,
                bundle.build,
                bundle.namespace,
                bundle.routes
            );
            Ok((shown, found))
        }
    }
}

/// A file in each folder that the workload's volumes mount.
pub(super) fn carried(document: &Value) -> Option<SourceFile> {
    let volumes = document.pointer("/spec/volumes")?.as_array()?;
    let folders = volumes.iter().filter_map(|volume| volume["files"].as_str());
    let carried: Vec<CarriedFile> = folders
        .map(|folder| CarriedFile {
            path: format!("{}/a", folder.trim_end_matches('/')),
            executable: false,
            bytes: b"1".to_vec(),
        })
        .collect();
    (!carried.is_empty()).then(|| SourceFile {
        name: CARRIED.to_owned(),
        text: pack_carried(&carried).unwrap(),
    })
}

pub(super) fn decode(field: &Field, document: &Value) -> Decoded {
    decode_as(field.kind, document, DecodeMode::Strict)
}

pub(super) fn must(field: &Field, document: &Value) -> (String, Vec<Diagnostic>) {
    decode(field, document).unwrap_or_else(|found| {
        panic!(
            "{} {}: {}\n{document:#}",
            field.kind,
            field.path,
            lines(&found)
        )
    })
}

/// The document with another value of a required field than the example.
pub(super) fn another(field: &Field, with: &Value) -> Value {
    let mut other = with.clone();
    if [
        "spec.volumes[].simpleClusterStorage",
        "spec.volumes[].tmpfs",
    ]
    .contains(&field.path)
    {
        other["spec"]["volumes"][0] =
            json!({"name": "data", "hostMount": {"hostPath": "/srv/other"}});
        must(field, &other);
        return other;
    }
    let value = match (field.value, json_of(field.example)) {
        // The workload has this port too.
        _ if field.path == "spec.ingress[].servicePort" => json!(8081),
        _ if field.path == "spec.virtualAddresses[].address" => json!("192.0.2.8/24"),
        (FieldType::Word(words), example) => {
            let word = words.iter().find(|word| example != **word).unwrap();
            json!(word)
        }
        (FieldType::Integer(least, _), _) => json!(least),
        (FieldType::TextList, _) => json!(["/bin/another"]),
        // The other value is the next port number.
        (FieldType::IntegerOr(..), example) => json!(example.as_u64().unwrap() + 1),
        (_, example) => json!(format!("{}2", example.as_str().unwrap())),
    };
    set(&mut other, field, value);
    must(field, &other);
    other
}
