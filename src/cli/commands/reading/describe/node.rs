//! Describes a machine with its instances.

use super::{Sheet, events, volumes};
use crate::{
    CliSession,
    commands::reading::{
        get,
        get::{Columns, ListableItem, rows},
    },
    errors::CliError,
    output::{
        table::{Cell, Table},
        word,
    },
    time,
};
use kat_types::{
    api::{
        EventFilter, InstanceItem, NodeGpu, NodeItem, NodePhase, ObjectKind, OverlayPeer, Taint,
    },
    resource::ResourceList,
};

pub(crate) async fn describe(
    session: &CliSession<'_>,
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
    let all_volumes = client.volumes(None).await;
    let addresses = client.virtual_addresses().await.map(|list| list.items);
    let query = EventFilter {
        kind: Some(ObjectKind::Node.to_string()),
        name: Some(name.to_owned()),
        namespace: None,
    };
    let found = get::events(session, &query).await;
    fields(sheet, &item);
    let addresses = addresses.unwrap_or_default();
    let own = addresses
        .iter()
        .filter(|one| one.status.holder.as_deref() == Some(name));
    let own: Vec<String> = own
        .map(|one| format!("{} ({})", one.spec.address, rows::address_state(one)))
        .collect();
    sheet.field("virtual", &own.join(" "));
    sheet.conditions(&item.status.conditions);
    peers(sheet, &item.status.peers);
    if !instances.is_empty() {
        let columns = Columns {
            wide: false,
            namespaces: true,
            now: sheet.now,
        };
        sheet.section("instances");
        sheet.table(get::table(&instances, columns));
    }
    volumes(sheet, all_volumes, true, |item| {
        item.status.node.as_deref() == Some(name)
    });
    events(sheet, found);
    Ok(())
}

fn fields(sheet: &mut Sheet, item: &NodeItem) {
    let status = &item.status;
    let roles: Vec<String> = status.roles.iter().map(word).collect();
    let part = rows::is_overview_only(item);
    let heard = match status.last_heartbeat {
        None if part => String::new(),
        Some(then) => format!("last report {} ago", time::age(sheet.now, then)),
        None if status.phase == NodePhase::Joining => "no report yet".to_owned(),
        None => "no report to the present leader".to_owned(),
    };
    sheet.field("name", &item.metadata.name);
    sheet.phase("phase", &word(&status.phase), &heard);
    sheet.field("reason", &status.reason);
    sheet.field("message", &status.message);
    sheet.field("roles", &roles.join(" "));
    if item.spec.draining {
        let how = match item.spec.drain_forced {
            true => "yes, by force",
            false => "yes",
        };
        sheet.field("draining", how);
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
    sheet.field("requested", &resources(&status.requested));
    let gpus: Vec<String> = status.gpus.iter().map(gpu).collect();
    sheet.field("gpus", &gpus.join("\n"));
    sheet.field("architecture", &status.architecture);
    sheet.field("version", &status.version);
    if !part {
        sheet.field("instances", &status.instances.to_string());
    }
    sheet.age(item.metadata.creation_timestamp);
}

/// Such as `nvidia.com/gpu=0, 24.0Gi memory, in use`.
fn gpu(gpu: &NodeGpu) -> String {
    let memory = match gpu.memory {
        Some(memory) => format!("{} memory", memory.rounded()),
        None => "memory unknown".to_owned(),
    };
    let used = match gpu.used {
        true => "in use",
        false => "free",
    };
    format!("{}, {memory}, {used}", gpu.name)
}

/// Adds the other machines, as this one's WireGuard reports them.
fn peers(sheet: &mut Sheet, peers: &[OverlayPeer]) {
    if peers.is_empty() {
        return;
    }
    let headers = vec!["PEER", "ENDPOINT", "HANDSHAKE", "SENT", "RECEIVED"];
    let mut table = Table::new(headers);
    for peer in peers {
        let handshake = match (peer.last_handshake, &peer.via) {
            (Some(then), _) => time::age(sheet.now, then),
            (None, Some(_)) => String::new(),
            (None, None) => "never".to_owned(),
        };
        let handshake = match peer.unanswered_seconds {
            None => handshake,
            Some(seconds) => format!("{handshake}, no answer for {seconds} s"),
        };
        let endpoint = match (&peer.endpoint, &peer.via) {
            (_, Some(via)) => format!("through {via}"),
            (endpoint, None) => endpoint.clone().unwrap_or_default(),
        };
        table.row(vec![
            Cell::new(&peer.name),
            Cell::new(endpoint),
            Cell::new(handshake),
            Cell::new(size(peer.sent)),
            Cell::new(size(peer.received)),
        ]);
    }
    sheet.section("peers");
    sheet.table(table);
}

/// A size with one decimal digit above 1023 of a unit.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >> shift > 0);
    match unit {
        None => format!("{bytes} B"),
        Some((shift, unit)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
    }
}

fn resources(list: &ResourceList) -> String {
    let mut parts = Vec::new();
    if let Some(processors) = list.cpu {
        parts.push(format!("{processors} processors"));
    }
    if let Some(memory) = list.memory {
        parts.push(format!("{} memory", memory.rounded()));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_unit() {
        let sizes = [0, 1023, 1024, 1_300_000, 5 << 30, u64::MAX].map(size);
        let expected = [
            "0 B",
            "1023 B",
            "1.0 KiB",
            "1.2 MiB",
            "5.0 GiB",
            "16777215.9 TiB",
        ];
        assert_eq!(sizes, expected);
    }
}
