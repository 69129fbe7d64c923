//! `katcall describe`: all details of one item, for people.

mod instance;
mod node;
mod sheet;
mod workload;

use jiff::Timestamp;

use super::get::{self, Columns, ListableItem};
use crate::{
    CliSession,
    args::{DescribeArgs, DescribedKind},
    commands::{changing::quota, data::secret},
    errors::CliError,
    output::word,
};
use kat_client::{ClientError, KeyedItem as _};
use kat_types::api::{
    Event, EventFilter, HostPortStatus, List, NamespaceItem, ObjectKind, VolumeItem,
};

pub(crate) use sheet::Sheet;

pub(crate) async fn run(
    session: &CliSession<'_>,
    arguments: &DescribeArgs,
) -> Result<(), CliError> {
    let (namespace, name) = (&arguments.namespace.namespace, &arguments.name);
    let mut sheet = Sheet::new(session.console.colour);
    match arguments.kind {
        DescribedKind::Workload => {
            workload::describe(session, &mut sheet, namespace, name).await?;
        }
        DescribedKind::Instance => {
            instance::describe(session, &mut sheet, namespace, name).await?;
        }
        DescribedKind::Node => node::describe(session, &mut sheet, name).await?,
        DescribedKind::Secret => {
            let named = secret::named(&arguments.namespace, name)?;
            secret::describe(session, &mut sheet, &named).await?;
        }
        DescribedKind::Namespace => namespaces(session, &mut sheet, name).await?,
    }
    session.console.print(&sheet.text())
}

/// The host port that is forwarded to a container port, in parentheses.
fn host_port_of(port: &HostPortStatus) -> String {
    format!(" (host port {})", port.port)
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
        sheet.table(&get::table(&items, columns));
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
            sheet.table(&get::table(events.get(last..).unwrap_or_default(), columns));
        }
    }
}
