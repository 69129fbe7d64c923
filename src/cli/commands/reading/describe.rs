//! `katcall describe`: all details of objects, for people.

mod address;
mod instance;
mod node;
mod route;
mod sheet;
mod workload;

use std::cell::Cell;

use jiff::Timestamp;

use super::{
    get::{self, Columns, ListableItem},
    guess,
};
use crate::{
    CliSession,
    args::DescribeArgs,
    commands::{
        changing::quota,
        data::secret::{self, SecretName},
    },
    errors::CliError,
    output::word,
    references::{self, BareName, CommandKinds, Reference},
    volumes::{self, VolumeName},
};
use kat_client::{ClientError, KeyedItem as _};
use kat_types::{
    api::{Event, EventFilter, HostPortStatus, List, NamespaceItem, ObjectKind, VolumeItem},
    assignment::is_machine_slot,
    resource::{HostPortOn, named_kind::NamedKind},
};

pub(super) use address::found as virtual_address;
pub(super) use route::found as routes_of;
pub(crate) use sheet::Sheet;

pub(crate) const DESCRIBED: CommandKinds = CommandKinds {
    kinds: &[
        NamedKind::Workload,
        NamedKind::Instance,
        NamedKind::Node,
        NamedKind::Namespace,
        NamedKind::Secret,
        NamedKind::Volume,
        NamedKind::Route,
        NamedKind::Address,
    ],
    bare: BareName::Open,
};

pub(crate) async fn run(
    session: &CliSession<'_>,
    arguments: &DescribeArgs,
) -> Result<(), CliError> {
    let objects = references::objects(&arguments.words, DESCRIBED, &arguments.namespace)?;
    let printed = Cell::new(false);
    references::for_each(session.console, &objects, async |object| {
        let mut sheet = Sheet::new(session.console);
        one(session, &mut sheet, object).await?;
        if printed.replace(true) {
            session.console.line("")?;
        }
        session.console.print(&sheet.text())
    })
    .await
}

async fn one(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    object: &Reference,
) -> Result<(), CliError> {
    let Reference {
        namespace, name, ..
    } = object;
    match guess::kind_of(session, object, DESCRIBED).await? {
        NamedKind::Workload => workload::describe(session, sheet, namespace, name).await,
        NamedKind::Instance => instance::describe(session, sheet, namespace, name).await,
        NamedKind::Node => node::describe(session, sheet, name).await,
        NamedKind::Secret => secret::describe(session, sheet, &SecretName::of(object)).await,
        NamedKind::Namespace => namespaces(session, sheet, name).await,
        NamedKind::Volume => volume(session, sheet, object).await,
        NamedKind::Route => route::describe(session, sheet, object).await,
        NamedKind::Address => address::describe(session, sheet, name).await,
        kind @ (NamedKind::Job | NamedKind::Run | NamedKind::Event | NamedKind::Token) => Err(
            CliError::usage(format!("a {} has nothing to describe", kind.singular())),
        ),
    }
}

async fn volume(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    object: &Reference,
) -> Result<(), CliError> {
    let named = volumes::named(session, object).await?;
    let VolumeName {
        namespace,
        workload,
        name,
    } = &named;
    let short = named.without_namespace();
    let item = match session.client.volume(namespace, workload, name).await {
        Ok(item) => item,
        Err(error) => {
            let scope = Some(namespace.as_str());
            return Err(get::missing::<VolumeItem>(session, error, scope, &short).await);
        }
    };
    let (spec, status) = (&item.spec, &item.status);
    sheet.field("name", &short);
    sheet.field("namespace", namespace);
    sheet.phase("phase", &volumes::state(&item), "");
    sheet.field("node", volumes::machine(&item));
    sheet.field("path", &status.path);
    let slot = spec.slot.filter(|slot| !is_machine_slot(*slot));
    let slot = slot.map(|slot| slot.to_string());
    sheet.field("replica", &slot.unwrap_or_default());
    sheet.field("reclaim", &word(&spec.reclaim));
    sheet.field("used by", &status.used_by.join(", "));
    sheet.age(item.metadata.creation_timestamp);
    copies_and_removals(sheet, &item);
    Ok(())
}

/// The host port that is forwarded to a container port, in parentheses.
fn host_port_of(port: &HostPortStatus, on: HostPortOn) -> String {
    match on {
        HostPortOn::Instances => format!(" (host port {})", port.port),
        HostPortOn::Ingress => format!(
            " (host port {} of the machines that serve routes)",
            port.port
        ),
    }
}

async fn namespaces(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    name: &str,
) -> Result<(), CliError> {
    let item = match session.client.namespace(name).await {
        Ok(item) => item,
        Err(error) => return Err(get::missing::<NamespaceItem>(session, error, None, name).await),
    };
    sheet.field("name", &item.metadata.name);
    sheet.phase("phase", &word(&item.status.phase), "");
    sheet.labels(&item.metadata.labels);
    sheet.field("workloads", &item.status.workloads.to_string());
    let reached_by = quota::reached_by(item.spec.isolation, &item.spec.allow_namespaces);
    sheet.field("reached by", &reached_by);
    if let Some(hosts) = &item.spec.ingress_hosts {
        let hosts = match hosts.is_empty() {
            true => "none".to_owned(),
            false => hosts.join(", "),
        };
        sheet.field("hosts of routes", &hosts);
    }
    if !item.spec.defaults.is_empty() {
        let requests = quota::requests_in_words(&item.spec.defaults.requests);
        sheet.field("default requests", &requests);
    }
    sheet.age(item.metadata.creation_timestamp);
    let quotas = quota::lines(&item.spec.quota, &item.status.used);
    if !quotas.is_empty() {
        sheet.section("quotas");
        quotas.iter().for_each(|line| sheet.line(line));
    }
    let query = EventFilter {
        namespace: Some(name.to_owned()),
        ..EventFilter::default()
    };
    let found = get::events(session, &query).await;
    events(sheet, found);
    Ok(())
}

/// Adds the volumes that `wanted` accepts, or the error.
fn volumes(
    sheet: &mut Sheet,
    found: Result<List<VolumeItem>, ClientError>,
    namespaces: bool,
    wanted: impl Fn(&VolumeItem) -> bool,
) {
    let mut items = match found {
        Ok(list) => list.items,
        // The cluster's version has no volumes yet.
        Err(error) if error.is_not_found() => return,
        Err(error) => {
            sheet.section("volumes");
            sheet.line(&format!("cannot be read: {error}"));
            return;
        }
    };
    items.retain(wanted);
    items.sort_by(VolumeItem::order);
    if !items.is_empty() {
        let columns = Columns {
            wide: false,
            namespaces,
            now: sheet.now,
        };
        sheet.section("volumes");
        sheet.table(get::table(&items, columns));
        for item in &items {
            let kept = item.status.kept.iter();
            for copy in kept.filter(|_| !namespaces) {
                let name = item.key().1;
                sheet.line(&format!(
                    "of {name} a copy is kept on {} until {}",
                    copy.node, copy.until
                ));
            }
            let waiting = item.status.removals.iter();
            for removal in waiting.filter(|removal| !removal.message.is_empty()) {
                let name = item.key().1;
                sheet.line(&format!(
                    "of {name} the removal from {} waits: {}",
                    removal.node, removal.message
                ));
            }
        }
    }
}

/// Adds the kept copies of a volume, and the removals that are not confirmed.
fn copies_and_removals(sheet: &mut Sheet, item: &VolumeItem) {
    for copy in &item.status.kept {
        let text = format!("on {} until {}", copy.node, copy.until);
        sheet.field("kept copy", &text);
    }
    for removal in &item.status.removals {
        let waits = match removal.message.as_str() {
            "" => String::new(),
            message => format!(" waits: {message}"),
        };
        sheet.field("removal", &format!("from {}{waits}", removal.node));
    }
}

/// The last events about one object.
pub(crate) async fn of_object(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    kind: ObjectKind,
    namespace: &str,
    name: &str,
) {
    let query = EventFilter {
        kind: Some(kind.to_string()),
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
    };
    let found = get::events(session, &query).await;
    events(sheet, found);
}

/// Adds the last events of a list, or the error.
fn events(sheet: &mut Sheet, found: Result<Vec<Event>, ClientError>) {
    const SHOWN: usize = 15;
    match found {
        Err(error) => {
            sheet.section("events");
            sheet.line(&format!("cannot be read: {error}"));
        }
        Ok(events) if events.is_empty() => {}
        Ok(events) => {
            let last = events.len().saturating_sub(SHOWN);
            let columns = Columns {
                wide: false,
                namespaces: false,
                now: Timestamp::now(),
            };
            sheet.section("events");
            sheet.table(get::table(events.get(last..).unwrap_or_default(), columns));
        }
    }
}
