//! Describes an instance, with the commands that show it on its machine.

use super::{Sheet, events, host_port_of};
use crate::{
    CliSession,
    commands::reading::get,
    errors::CliError,
    output::{
        table::{Cell, Table},
        word,
    },
    time,
};
use kat_types::{
    api::{ApiTime, ContainerStatus, EventFilter, InstanceItem, ObjectKind},
    assignment::is_machine_slot,
    resource::{Bytes, HostPortOn},
};

pub(crate) async fn describe(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    namespace: &str,
    name: &str,
) -> Result<(), CliError> {
    let item = match session.client.instance(namespace, name).await {
        Ok(item) => item,
        Err(error) => {
            let scope = Some(namespace);
            return Err(get::missing::<InstanceItem>(session, error, scope, name).await);
        }
    };
    let query = EventFilter {
        kind: Some(ObjectKind::Instance.to_string()),
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
    };
    let found = get::events(session, &query).await;
    fields(sheet, &item);
    containers(sheet, &item.status.containers);
    sheet.conditions(&item.status.conditions);
    events(sheet, found);
    commands(sheet, &item);
    Ok(())
}

fn fields(sheet: &mut Sheet, item: &InstanceItem) {
    let status = &item.status;
    let since = match status.since {
        ApiTime::UNKNOWN => String::new(),
        since => format!("for {}", time::age(sheet.now, since)),
    };
    sheet.field("name", &item.metadata.name);
    sheet.field(
        "namespace",
        item.metadata.namespace.as_deref().unwrap_or_default(),
    );
    sheet.field("workload", &status.workload);
    // That of a DaemonService follows from the machine.
    if !is_machine_slot(status.slot) {
        sheet.field("slot", &status.slot.to_string());
    }
    sheet.field("node", status.node.as_deref().unwrap_or("none yet"));
    sheet.phase("phase", &word(&status.phase), &since);
    sheet.field("reason", &status.reason);
    sheet.field("message", &status.message);
    sheet.phase("health", &get::rows::health_word(status), "");
    sheet.field("restarts", &status.restarts.to_string());
    let code = status.exit_code.map(|code| code.to_string());
    sheet.field("exit code", code.as_deref().unwrap_or_default());
    sheet.field("image", &status.image);
    sheet.field("digest", status.image_digest.as_deref().unwrap_or_default());
    sheet.field("generation", &status.generation.to_string());
    let addresses: Vec<String> = status.ips.iter().map(ToString::to_string).collect();
    sheet.field("addresses", &addresses.join(" "));
    let ports: Vec<String> = status
        .host_ports
        .iter()
        .map(|port| {
            format!(
                "{}/{}{}",
                port.container_port,
                word(&port.protocol),
                host_port_of(port, HostPortOn::Instances)
            )
        })
        .collect();
    sheet.field("ports", &ports.join(", "));
    if !status.user.is_empty() {
        sheet.field("user", &format!("{} (uid {})", status.user, status.uid));
    }
    sheet.field("unit", &status.unit);
    if let Some(memory) = status.memory {
        sheet.field("memory", &Bytes(memory).to_string());
    }
    if let Some(nanoseconds) = status.cpu {
        let milliseconds = nanoseconds / 1_000_000;
        let text = format!("{}.{:03} s", milliseconds / 1000, milliseconds % 1000);
        sheet.field("processor", &text);
    }
    sheet.age(item.metadata.creation_timestamp);
}

/// Adds init containers and sidecars; the other fields are those of the main container.
fn containers(sheet: &mut Sheet, containers: &[ContainerStatus]) {
    if containers.is_empty() {
        return;
    }
    sheet.section("other containers");
    let headers = vec![
        "NAME",
        "KIND",
        "STATE",
        "RESTARTS",
        "EXIT CODE",
        "IMAGE",
        "UNIT",
    ];
    let mut table = Table::new(headers);
    for one in containers {
        let code = one.exit_code.map(|code| code.to_string());
        table.row(vec![
            Cell::new(&one.name),
            Cell::new(word(&one.kind)),
            Cell::phase(&word(&one.state)),
            Cell::new(one.restarts.to_string()),
            Cell::new(code.unwrap_or_default()),
            Cell::new(&one.image),
            Cell::new(&one.unit),
        ]);
    }
    sheet.table(table);
}

/// Adds the commands that work for another user's unit: `journalctl --user-unit` as root shows none
/// of its entries (docs/internals/files-on-a-machine.md).
pub(crate) fn commands(sheet: &mut Sheet, item: &InstanceItem) {
    let status = &item.status;
    if status.unit.is_empty() || status.user.is_empty() {
        return;
    }
    let node = status.node.as_deref().unwrap_or("its machine");
    sheet.section(&format!("{} on {node}, as root", item.metadata.name));
    sheet.command(&format!(
        "systemctl --user --machine={}@.host status {}",
        status.user, status.unit
    ));
    sheet.command(&format!(
        "journalctl _UID={} _SYSTEMD_USER_UNIT={}",
        status.uid, status.unit
    ));
}
