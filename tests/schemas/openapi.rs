//! The OpenAPI document, generated from the table of routes and the schemas of the types.
//!
//! The document is stored in `contrib/schema/openapi.json`, and a test compares it;
//! `UPDATE_SCHEMA=1` rewrites it.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use kat_api::{
    ApiError,
    access::authorization::RouteAccess,
    routes::{ApiRoute, ROUTES, RoutePayload},
};
use kat_types::{
    api::{CONTENT_TYPE, ErrorBody},
    encoding::state_frames::STATE_CONTENT_TYPE,
};

pub(crate) fn document() -> Value {
    let mut document = described();
    rename(&mut document);
    document
}

/// Renames items to their names in `types`: `ItemOfNodeSpec` becomes `NodeItem`.
fn rename(value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("#/components/schemas/") => {
            *text = item_name(text);
        }
        Value::Array(list) => list.iter_mut().for_each(rename),
        Value::Object(map) => {
            let renamed = std::mem::take(map).into_iter().map(|(key, mut value)| {
                rename(&mut value);
                (item_name(&key), value)
            });
            *map = renamed.collect();
        }
        _ => {}
    }
}

fn item_name(name: &str) -> String {
    let Some((before, of)) = name.split_once("ItemOf") else {
        return name.to_owned();
    };
    let kind = of.strip_suffix("Spec").or(of.strip_suffix("View"));
    format!("{before}{}Item", kind.unwrap_or(of))
}

fn described() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let error = generator.subschema_for::<ErrorBody>();
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = operation(route, &mut generator);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            path.insert(route.verb.as_str().to_ascii_lowercase(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "KAT",
            "description": "The API of a KAT cluster. Lists can be watched with `?watch=true&resourceVersion=N`.",
            "version": "v1alpha1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "responses": {
                "Error": {
                    "description": "What was refused, and why",
                    "content": {"application/json": {"schema": error}}
                }
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`kat1.<id>.<secret>`, see `katcall token create`"},
                "certificate": {"type": "mutualTLS", "description": "A client certificate of the cluster's authority"}
            }
        }
    })
}

fn operation(route: &ApiRoute, generator: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    for status in route.statuses {
        let mut response = json!({"description": description(*status)});
        if let (Some(content), Some(object)) =
            (content(route.response, generator), response.as_object_mut())
        {
            object.insert("content".to_owned(), content);
        }
        responses.insert(status.to_string(), response);
    }
    responses.insert(
        "default".to_owned(),
        json!({"$ref": "#/components/responses/Error"}),
    );
    let in_path = path_parameters(route.path).map(
        |name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
    );
    let mut parameters: Vec<Value> = in_path
        .chain(route.query.iter().map(|name| query_parameter(name)))
        .collect();
    if matches!(route.request, RoutePayload::Archive) || route.summary.starts_with("Deletes a") {
        parameters.push(json!({
            "name": "If-Match", "in": "header", "schema": {"type": "string"},
            "description": "A resourceVersion: refused with 412 if somebody changed it since"
        }));
    }
    let mut operation = json!({
        "operationId": format!("{:?}", route.operation),
        "summary": route.summary,
        "description": who(route.access),
        "parameters": parameters,
        "responses": responses,
        "security": security(route.access),
    });
    if let (Some(content), Some(object)) =
        (content(route.request, generator), operation.as_object_mut())
    {
        object.insert(
            "requestBody".to_owned(),
            json!({"required": true, "content": content}),
        );
    }
    operation
}

fn content(payload: RoutePayload, generator: &mut SchemaGenerator) -> Option<Value> {
    Some(match payload {
        RoutePayload::Nothing => return None,
        RoutePayload::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
        RoutePayload::Archive => json!({"application/gzip": {"schema": {
            "type": "string", "format": "binary", "description": "A tar.gz of the workload's `*.kat` files"
        }}}),
        RoutePayload::Frames => json!({(CONTENT_TYPE): {"schema": {
            "type": "string", "format": "binary",
            "description": "Frames of a session, both ways at once over HTTP/2: a byte for the kind, four for the length, the content"
        }}}),
        RoutePayload::StateFrames => json!({(STATE_CONTENT_TYPE): {"schema": {
            "type": "string", "format": "binary",
            "description": "Frames of the state stream: a byte for the kind, four for the length, the content"
        }}}),
        RoutePayload::AnyJson => json!({"application/json": {"schema": {"type": "object"}}}),
        RoutePayload::Json(schema) => json!({"application/json": {"schema": schema(generator)}}),
        RoutePayload::Lines(schema) => {
            json!({"application/x-ndjson": {"schema": schema(generator)}})
        }
        RoutePayload::List(list, line) => json!({
            "application/json": {"schema": list(generator)},
            "application/x-ndjson": {"schema": line(generator)}
        }),
    })
}

/// The names of the parameters in braces.
fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

fn query_parameter(name: &str) -> Value {
    let (kind, description) = match name {
        "watch" => ("boolean", "Stay, and answer with a line for each change"),
        "resourceVersion" => (
            "string",
            "Revision after which a watch continues; 410 when that is too long ago",
        ),
        "epoch" => (
            "integer",
            "Epoch of the store that the machine has read; with `revision`",
        ),
        "revision" => (
            "integer",
            "Revision after which the stream continues; without it, it begins with everything",
        ),
        "schema" => ("integer", "Version of the stream that the machine speaks"),
        "dryRun" => ("boolean", "Say what would happen, and do nothing"),
        "cascade" => ("boolean", "Delete the workloads of the namespace too"),
        "host" => ("string", "Host of the route"),
        "path" => ("string", "Path of the route; `/` by default"),
        "volumes" => ("boolean", "Remove the data of the volumes too, for good"),
        "force" => ("boolean", "Stop what no other machine takes"),
        "goOn" => ("boolean", "Only continue a replacement that has begun"),
        "follow" => ("boolean", "Stay, and answer with a line for each new line"),
        "since" => ("string", "RFC 3339: nothing that is older"),
        "tail" => ("integer", "Only so many of the last lines"),
        "generation" => ("integer", "A kept generation instead of the present one"),
        "previous" => (
            "boolean",
            "Only what the program's run before its last one wrote",
        ),
        "container" => (
            "string",
            "Name of an init container or sidecar; the main container unless given",
        ),
        "request" => (
            "string",
            "JSON: `command` (a list of words), `container`, `stdin`, `terminal` (`rows` and `columns`), `term`",
        ),
        "node" => ("string", "Machine that had the instance, if it is gone"),
        "port" => ("integer", "Port of the instance"),
        "format" => ("string", "`json` or `prometheus`"),
        "resourceType" => ("string", "Kind of what the event is about"),
        "resourceName" => ("string", "Name of what the event is about"),
        "namespace" => (
            "string",
            "Namespace of what the event is about; events of machines are among those of each, for who may read the cluster",
        ),
        _ => ("string", ""),
    };
    json!({"name": name, "in": "query", "schema": {"type": kind}, "description": description})
}

fn description(status: u16) -> &'static str {
    match status {
        201 => "Created",
        204 => "Done",
        _ => "As asked",
    }
}

fn who(access: RouteAccess) -> &'static str {
    match access {
        RouteAccess::Anyone => "For everybody.",
        RouteAccess::Authenticated => "For everybody who proves who they are.",
        RouteAccess::ReadCluster => "For the scopes admin and read.",
        RouteAccess::ReadMachine | RouteAccess::ReadNode => {
            "For the scopes admin and read; local users of a machine without etcd see that machine."
        }
        RouteAccess::ReadOverview => {
            "For the scopes admin and read, every machine by its certificate, and local users of a machine without etcd."
        }
        RouteAccess::ReadNamespace => "For the scopes admin, read, and deploy of the namespace.",
        RouteAccess::ReadFiles | RouteAccess::Deploy => {
            "For the scopes admin, and deploy of the namespace."
        }
        RouteAccess::Admin => "For the scope admin.",
        RouteAccess::Report => "For the machine itself, by its certificate.",
        RouteAccess::Leave => "For the scope admin, and the machine itself, by its certificate.",
        RouteAccess::BeforeJoin => "For the scopes admin, read and join.",
        RouteAccess::Join => "For the scope join.",
        RouteAccess::KnownKey => "For whoever owns the machine's known key, which the body proves.",
    }
}

fn security(access: RouteAccess) -> Value {
    match access {
        RouteAccess::Anyone | RouteAccess::KnownKey => json!([]),
        RouteAccess::Join => json!([{"token": []}]),
        RouteAccess::Report => json!([{"certificate": []}]),
        _ => json!([{"token": []}, {"certificate": []}]),
    }
}

/// The document as text, as it is kept.
///
/// # Errors
/// [`ApiError::Internal`] if it can't be written.
pub(crate) fn text() -> Result<String, ApiError> {
    let text = kat_types::encoding::json::pretty_text("the OpenAPI document", &document());
    text.map(|text| text + "\n")
        .map_err(|error| ApiError::Internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_document_is_the_present_one() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../contrib/schema/openapi.json"
        );
        let made = text().unwrap();
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap();
        assert!(
            kept == made,
            "contrib/schema/openapi.json is out of date; run this test with UPDATE_SCHEMA=1"
        );
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        found.push(reference.clone());
                    }
                    map.values().for_each(|value| walk(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        walk(&document, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(
                document.pointer(pointer).is_some(),
                "{reference} leads nowhere"
            );
        }
    }

    #[test]
    fn every_parameter_is_described() {
        for route in ROUTES {
            for name in route.query {
                let parameter = query_parameter(name);
                assert_ne!(parameter["description"], "", "{name} of {}", route.path);
            }
        }
    }
}
