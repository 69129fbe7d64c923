//! A machine with what runs on it.

use super::{Sheet, events};
use crate::{
    api::{
        client::EventQuery,
        types::{InstanceItem, NodeItem, Taint},
    },
    cli::{
        Session,
        errors::CliError,
        get::{self, Columns, Listed},
        output::word,
        time,
    },
    resource::ResourceList,
};

pub(super) async fn describe(
    session: &Session<'_>,
    sheet: &mut Sheet,
    name: &str,
) -> Result<(), CliError> {
    let client = &session.client;
    let item = match client.node(name).await {
        Ok(item) => item,
        Err(error) => return Err(get::missing::<NodeItem>(session, error, None, name).await),
    };
    let mut instances = client.instances(None).await?.items;
    instances.retain(|instance| instance.status.node.as_deref() == Some(name));
    instances.sort_by(InstanceItem::order);
    let query = EventQuery {
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        namespace: None,
    };
    let found = get::events(session, &query).await;
    fields(sheet, &item);
    sheet.conditions(&item.status.conditions);
    if !instances.is_empty() {
        let columns = Columns {
            wide: false,
            namespaces: true,
            now: sheet.now,
        };
        sheet.section("instances");
        sheet.table(&get::table(&instances, columns));
    }
    events(sheet, found);
    Ok(())
}

fn fields(sheet: &mut Sheet, item: &NodeItem) {
    let status = &item.status;
    let roles: Vec<String> = status.roles.iter().map(word).collect();
    let heard = match &status.last_heartbeat {
        Some(then) => format!("last report {} ago", time::age(sheet.now, then)),
        None => "no report yet".to_owned(),
    };
    sheet.field("name", &item.metadata.name);
    sheet.phase("phase", &word(&status.phase), &heard);
    sheet.field("reason", &status.reason);
    sheet.field("message", &status.message);
    sheet.field("roles", &roles.join(" "));
    if item.spec.draining {
        sheet.field("draining", "yes");
    }
    let taints: Vec<String> = item
        .spec
        .taints
        .iter()
        .map(|taint| {
            let Taint { key, value, effect } = taint;
            let value = match value.as_str() {
                "" => String::new(),
                value => format!("={value}"),
            };
            format!("{key}{value}:{}", word(effect))
        })
        .collect();
    sheet.field("taints", &taints.join(" "));
    sheet.labels(&item.metadata.labels);
    sheet.field("addresses", &status.addresses.join(" "));
    sheet.field("endpoints", &status.endpoints.join(" "));
    sheet.field("overlay", &status.overlay_address);
    sheet.field("subnet", &status.subnet);
    sheet.field("capacity", &resources(&status.capacity));
    sheet.field("allocatable", &resources(&status.allocatable));
    sheet.field("architecture", &status.architecture);
    sheet.field("version", &status.version);
    sheet.field("instances", &status.instances.to_string());
    sheet.age(&item.metadata.creation_timestamp);
}

fn resources(list: &ResourceList) -> String {
    let mut parts = Vec::new();
    if let Some(processors) = list.cpu {
        parts.push(format!("{processors} processors"));
    }
    if let Some(memory) = list.memory {
        parts.push(format!("{memory} memory"));
    }
    parts.join(", ")
}
