//! `katcall get`: lists, single items, and their changes.

pub(crate) mod rows;
mod watch;

use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    CliSession,
    args::{DocumentFormat, GetArgs, ListedKind, OutputFormat},
    errors::CliError,
    output,
    output::{
        json,
        json::PrintedItems,
        table::{Cell, Table},
    },
    volumes,
};
use kat_bundle::nearest_name;
use kat_client::{ClientError, KeyedItem, RequestPath};
use kat_types::api::{
    Event, EventFilter, InstanceItem, List, NamespaceItem, NodeItem, SecretItem, TokenView,
    VolumeItem, WorkloadItem,
};

/// Which columns are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    pub(crate) wide: bool,
    pub(crate) namespaces: bool,
    pub(crate) now: Timestamp,
}

/// A kind of item that `katcall get` can list.
pub(crate) trait ListableItem:
    KeyedItem + Serialize + DeserializeOwned + Clone + Send + 'static
{
    /// Singular, such as `workload`.
    const SINGULAR: &'static str;
    /// Plural, such as `workloads`.
    const PLURAL: &'static str;
    /// Whether its items are in namespaces.
    const NAMESPACED: bool;
    /// Whether a name selects all items about it, possibly none, instead of the one with that name.
    const NAME_FILTERS: bool = false;

    /// Whether `--watch` prints deletions.
    const GOES: bool = true;

    /// The route of the list of one namespace, or of all.
    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError>;
    /// The route of one item; `None` if the item has to be found in the list.
    fn item_route(namespace: &str, name: &str) -> Option<Result<RequestPath, ClientError>>;
    /// Whether it is the item that the user named.
    fn is_named(&self, name: &str) -> bool {
        self.key().1 == name
    }
    /// What a reader of the list has to know of it.
    fn caution(&self) -> Option<&str> {
        None
    }
    fn headers(columns: Columns) -> Vec<&'static str>;
    /// The fields of a row, as many as headers.
    fn row(&self, columns: Columns) -> Vec<Cell>;
    /// The order in lists.
    fn order(left: &Self, right: &Self) -> std::cmp::Ordering {
        left.key().cmp(&right.key())
    }
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &GetArgs) -> Result<(), CliError> {
    match arguments.kind {
        ListedKind::Workloads => show::<WorkloadItem>(session, arguments).await,
        ListedKind::Instances => show::<InstanceItem>(session, arguments).await,
        ListedKind::Nodes => show::<NodeItem>(session, arguments).await,
        ListedKind::Namespaces => show::<NamespaceItem>(session, arguments).await,
        ListedKind::Volumes => {
            let arguments = volumes::located(session, arguments).await?;
            show::<VolumeItem>(session, &arguments).await
        }
        ListedKind::Secrets => show::<SecretItem>(session, arguments).await,
        ListedKind::Events => show::<Event>(session, arguments).await,
        ListedKind::Tokens => show::<TokenView>(session, arguments).await,
    }
}

async fn show<T: ListableItem>(
    session: &CliSession<'_>,
    arguments: &GetArgs,
) -> Result<(), CliError> {
    let namespace = scope::<T>(arguments);
    if arguments.watch {
        return watch::run::<T>(session, arguments, namespace).await;
    }
    let console = session.console;
    let route = arguments
        .name
        .as_ref()
        .and_then(|name| T::item_route(&arguments.namespace.namespace, name));
    if let (Some(route), Some(name)) = (route, &arguments.name) {
        let item: T = match session.client.get(route?).await {
            Ok(item) => item,
            Err(error) => return Err(missing::<T>(session, error, namespace, name).await),
        };
        warn(session, std::slice::from_ref(&item));
        if let Some(template) = &arguments.output.template {
            return output::picked(console, template, &item);
        }
        return match arguments.output.format {
            OutputFormat::Json => output::document(console, DocumentFormat::Json, &item),
            OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &item),
            _ => items(session, arguments, &[item]),
        };
    }
    let list: List<T> = session.client.get(T::list(namespace)?).await?;
    let mut found = list.items;
    warn(session, &found);
    found.sort_by(T::order);
    if let Some(name) = &arguments.name {
        found.retain(|item| item.is_named(name));
    }
    if let (true, Some(name), false) = (found.is_empty(), &arguments.name, T::NAME_FILTERS) {
        let words = format!("there is no {} `{name}`", T::SINGULAR);
        let hint = format!("`katcall get {}` lists them", T::PLURAL);
        return Err(CliError::not_found(words).hinted(hint));
    }
    let readable = !matches!(
        arguments.output.format,
        OutputFormat::Json | OutputFormat::Yaml
    );
    if found.is_empty() && readable {
        console.note(&nothing_found::<T>(namespace, arguments.name.as_deref()));
        return Ok(());
    }
    items(session, arguments, &found)
}

/// Says what a reader has to know of the items, such as that they are old.
fn warn<T: ListableItem>(session: &CliSession<'_>, items: &[T]) {
    if let Some(caution) = items.iter().find_map(T::caution) {
        session.console.warning(&output::one_line(caution));
    }
}

/// Prints items in the requested format.
fn items<T: ListableItem>(
    session: &CliSession<'_>,
    arguments: &GetArgs,
    found: &[T],
) -> Result<(), CliError> {
    let console = session.console;
    let list = PrintedItems { items: found };
    if let Some(template) = &arguments.output.template {
        return output::picked(console, template, &list);
    }
    match arguments.output.format {
        OutputFormat::Json => output::document(console, DocumentFormat::Json, &list),
        OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &list),
        OutputFormat::Name => found
            .iter()
            .try_for_each(|item| console.line(&format!("{}/{}", T::SINGULAR, item.key().1))),
        OutputFormat::Table => {
            let table = table(found, columns::<T>(arguments));
            console.print(&table.within(console.width).render(console.colour))
        }
        OutputFormat::Wide => {
            console.print(&table(found, columns::<T>(arguments)).render(console.colour))
        }
    }
}

pub(crate) fn table<T: ListableItem>(items: &[T], columns: Columns) -> Table {
    let mut table = Table::new(T::headers(columns));
    for item in items {
        table.row(item.row(columns));
    }
    table
}

fn columns<T: ListableItem>(arguments: &GetArgs) -> Columns {
    Columns {
        wide: arguments.output.format == OutputFormat::Wide,
        namespaces: T::NAMESPACED && arguments.all_namespaces,
        now: Timestamp::now(),
    }
}

fn scope<T: ListableItem>(arguments: &GetArgs) -> Option<&str> {
    let one = T::NAMESPACED && !arguments.all_namespaces;
    one.then_some(arguments.namespace.namespace.as_str())
}

fn nothing_found<T: ListableItem>(namespace: Option<&str>, name: Option<&str>) -> String {
    let about = name.map_or_else(String::new, |name| format!(" of `{name}`"));
    let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
    format!("no {}{about}{place}", T::PLURAL)
}

/// Adds the existing names to the error for a missing item.
pub(crate) async fn missing<T: ListableItem>(
    session: &CliSession<'_>,
    error: ClientError,
    namespace: Option<&str>,
    name: &str,
) -> CliError {
    if !error.is_not_found() {
        return error.into();
    }
    let place = namespace.map_or_else(String::new, |name| format!(" in namespace `{name}`"));
    let missing = CliError::not_found(format!("there is no {} `{name}`{place}", T::SINGULAR));
    let names: Vec<String> = match T::list(namespace) {
        Ok(route) => match session.client.get::<List<T>>(route).await {
            Ok(list) => list.items.iter().map(|item| item.key().1).collect(),
            // The namespace itself is missing, as the server's error says.
            Err(other) if other.is_not_found() => return error.into(),
            Err(_) => return missing,
        },
        Err(_) => return missing,
    };
    match nearest_name(name, names.iter().map(String::as_str)) {
        Some(near) => missing.hinted(format!("did you mean `{near}`?")),
        None if T::NAMESPACED => missing.hinted(format!(
            "`katcall get {} -A` lists those of all namespaces",
            T::PLURAL
        )),
        None => missing.hinted(format!("`katcall get {}` lists them", T::PLURAL)),
    }
}

/// Events of a query, oldest first.
pub(crate) async fn events(
    session: &CliSession<'_>,
    query: &EventFilter,
) -> Result<Vec<Event>, ClientError> {
    let mut events = session.client.events(query).await?.items;
    events.sort_by(Event::order);
    Ok(events)
}

/// One line of JSON, for `--watch`.
fn json_line<T: Serialize>(value: &T) -> Result<String, CliError> {
    json::line(value)
}
