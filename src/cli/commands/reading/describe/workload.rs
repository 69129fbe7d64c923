//! Describes a workload with its instances.

use super::{Sheet, events, host_port_of, instance, volumes};
use crate::{
    CliSession,
    commands::reading::{
        get,
        get::{Columns, ListableItem},
    },
    errors::CliError,
    output::word,
};
use kat_types::{
    api::{EventFilter, InstanceItem, ObjectKind, WorkloadItem},
    assignment::replica_name,
    resource::WorkloadType,
};

/// Most instances whose commands are shown.
const WITH_COMMANDS: usize = 5;

pub(crate) async fn describe(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    namespace: &str,
    name: &str,
) -> Result<(), CliError> {
    let client = &session.client;
    let item = match client.workload(namespace, name).await {
        Ok(item) => item,
        Err(error) => {
            let scope = Some(namespace);
            return Err(get::missing::<WorkloadItem>(session, error, scope, name).await);
        }
    };
    let mut instances = client.workload_instances(namespace, name).await?.items;
    instances.sort_by(InstanceItem::order);
    let of_namespace = client.volumes(Some(namespace)).await;
    let query = EventFilter {
        namespace: Some(namespace.to_owned()),
        ..EventFilter::default()
    };
    let ids: Vec<&str> = instances
        .iter()
        .map(|instance| instance.metadata.name.as_str())
        .collect();
    let found = get::events(session, &query).await.map(|mut events| {
        events.retain(|event| {
            let about = &event.involved_object;
            match about.kind {
                ObjectKind::Workload => about.name == name,
                ObjectKind::Instance => ids.contains(&about.name.as_str()),
                _ => false,
            }
        });
        events
    });
    fields(sheet, &item);
    sheet.conditions(&item.status.conditions);
    if !instances.is_empty() {
        let columns = Columns {
            wide: false,
            namespaces: false,
            now: sheet.now,
        };
        sheet.section("instances");
        sheet.table(get::table(&instances, columns));
    }
    volumes(sheet, of_namespace, false, |item| {
        item.spec.workload == name
    });
    reasons(sheet, &instances);
    events(sheet, found);
    for instance in instances.iter().take(WITH_COMMANDS) {
        instance::commands(sheet, instance);
    }
    Ok(())
}

fn fields(sheet: &mut Sheet, item: &WorkloadItem) {
    let (spec, status) = (&item.spec.workload, &item.status);
    sheet.field("name", &item.metadata.name);
    sheet.field(
        "namespace",
        item.metadata.namespace.as_deref().unwrap_or_default(),
    );
    sheet.field("type", &word(&spec.kind));
    let counts = format!(
        "{} of {} ready, {} updated",
        status.ready, status.replicas, status.updated
    );
    sheet.phase("phase", &word(&status.phase), &counts);
    let generation = if status.observed_generation == item.metadata.generation {
        item.metadata.generation.to_string()
    } else {
        format!(
            "{} (the status speaks of {})",
            item.metadata.generation, status.observed_generation
        )
    };
    sheet.field("generation", &generation);
    sheet.field("image", spec.source.image.as_deref().unwrap_or_default());
    let git = spec.source.git.as_ref();
    sheet.field("git", git.map_or("", |git| git.repository.as_str()));
    sheet.field("restarts", &word(&spec.restart_policy.condition));
    if let Some(job) = &item.spec.job {
        let schedule = job.schedule.as_ref();
        let schedule = schedule.map(|schedule| format!("{schedule} ({})", job.time_zone));
        sheet.field("schedule", &schedule.unwrap_or_default());
        let status = item.status.job.clone().unwrap_or_default();
        sheet.field("next run", &status.next.to_string());
        let skipped = status.skipped.as_ref();
        let skipped = skipped.map(|one| format!("{}: {}", one.scheduled, one.message));
        sheet.field("skipped", &skipped.unwrap_or_default());
    }
    let ports: Vec<String> = item
        .spec
        .load_balancer
        .iter()
        .flat_map(|balancer| &balancer.ports)
        .map(|port| {
            let name = port
                .name
                .as_ref()
                .map_or_else(String::new, |name| format!("{name} "));
            let mut text = format!("{name}{}/{}", port.container_port, word(&port.protocol));
            let host_port = status.host_ports.iter().find(|one| {
                (one.container_port, one.protocol) == (port.container_port, port.protocol)
            });
            match (host_port, port.host_port) {
                (Some(host_port), _) => {
                    text.push_str(&host_port_of(host_port, port.host_port_on));
                }
                (None, Some(_)) => text.push_str(" (host port: none yet)"),
                (None, None) => {}
            }
            if !port.allow_sources.is_empty() {
                text.push_str(&format!(" for {} alone", port.allow_sources.join(" and ")));
            }
            text
        })
        .collect();
    sheet.field("ports", &ports.join(", "));
    let balancer = item.spec.load_balancer.as_ref();
    let aliases = balancer.map(|balancer| balancer.aliases.join(", "));
    sheet.field("aliases", &aliases.unwrap_or_default());
    sheet.field("replicas", &names_of_replicas(item));
    let address = status.service_address;
    sheet.field(
        "address",
        &address.map_or_else(String::new, |address| address.to_string()),
    );
    sheet.labels(&item.metadata.labels);
    sheet.age(item.metadata.creation_timestamp);
}

/// The names of replicas with volumes of their own; empty if there are none.
fn names_of_replicas(item: &WorkloadItem) -> String {
    let spec = &item.spec.workload;
    let has_names =
        spec.kind == WorkloadType::Service && spec.volumes.iter().any(|volume| volume.per_replica);
    let last = spec.replicas.unwrap_or(1).checked_sub(1);
    let Some(last) = last.filter(|_| has_names) else {
        return String::new();
    };
    let workload = &item.metadata.name;
    let name = |slot| format!("{}.{workload}", replica_name(workload, slot));
    match last {
        0 => name(0),
        last => format!("{} to {}", name(0), name(last)),
    }
}

/// Adds the reasons and messages of instances in full.
fn reasons(sheet: &mut Sheet, instances: &[InstanceItem]) {
    let mut begun = false;
    for instance in instances {
        let status = &instance.status;
        if status.message.is_empty() {
            continue;
        }
        if !begun {
            sheet.section("reasons");
            begun = true;
        }
        sheet.line(&format!("{}: {}", instance.metadata.name, status.reason));
        for line in status.message.lines() {
            sheet.line(&format!("  {line}"));
        }
    }
}
