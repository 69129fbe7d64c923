//! `katcall get`: lists, single items, and their changes.

mod job_rows;
pub(crate) mod rows;
mod watch;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    CliSession,
    args::{DocumentFormat, EventsArgs, GetArgs, OutputFormat, OutputOption, PsArgs},
    errors::CliError,
    output,
    output::{
        json::PrintedItems,
        table::{Cell, Table},
    },
    references::{self, BareName, CommandKinds, Failures, LabelSelector, Named, Reference},
    volumes,
};
use kat_bundle::nearest_name;
use kat_client::{ClientError, KeyedItem, RequestPath};
use kat_types::{
    api::{
        Event, EventFilter, InstanceItem, List, NamespaceItem, NodeItem, RouteItem, RunItem,
        SecretItem, TokenView, VirtualAddressItem, VolumeItem, WorkloadItem,
    },
    encoding::json,
    resource::named_kind::NamedKind,
};

pub(crate) use job_rows::JobItem;

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
    /// Headers of columns whose words are no names but texts of people.
    const TEXTS: &'static [&'static str] = &[];
    /// Headers of columns that are left out where names need their room, the least useful one first.
    const OPTIONAL: &'static [&'static str] = &[];
    /// The same with `--watch`, where the column of the change needs its room, too.
    const OPTIONAL_IN_WATCH: &'static [&'static str] = Self::OPTIONAL;

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
    /// Whether a reference means the item, whose kind is the reference's.
    fn is_meant(&self, reference: &Reference) -> bool {
        self.is_named(&reference.name)
    }
    /// Its labels; none for kinds without labels.
    fn labels(&self) -> &BTreeMap<String, String>;
    /// What a reader of the list has to know of it.
    fn caution(&self) -> Option<&str> {
        None
    }
    fn headers(columns: Columns) -> Vec<&'static str>;
    /// The fields of a row, as many as headers.
    fn row(&self, columns: Columns) -> Vec<Cell>;
    /// Whether it is of this kind, where several kinds share a route.
    fn is_listed(&self) -> bool {
        true
    }
    /// The order in lists.
    fn order(left: &Self, right: &Self) -> std::cmp::Ordering {
        left.key().cmp(&right.key())
    }
}

/// Objects of one kind that are listed, and how they are printed.
#[derive(Debug, Clone)]
pub(crate) struct ListRequest {
    pub(crate) kind: NamedKind,
    /// The named objects; empty for all of the namespace.
    pub(crate) objects: Vec<Reference>,
    pub(crate) namespace: String,
    pub(crate) all_namespaces: bool,
    pub(crate) selector: LabelSelector,
    pub(crate) output: OutputOption,
    pub(crate) watch: bool,
}

pub(crate) const LISTED: CommandKinds = CommandKinds {
    kinds: &NamedKind::ALL,
    bare: BareName::Refused,
};

/// What `all` stands for: the objects of a namespace.
const ALL: &str = "all";
const KINDS_OF_ALL: [NamedKind; 5] = [
    NamedKind::Workload,
    NamedKind::Instance,
    NamedKind::Volume,
    NamedKind::Route,
    NamedKind::Secret,
];

/// The objects that an event can be about.
pub(crate) const WITH_EVENTS: CommandKinds = CommandKinds {
    kinds: &[
        NamedKind::Workload,
        NamedKind::Instance,
        NamedKind::Node,
        NamedKind::Namespace,
        NamedKind::Secret,
    ],
    bare: BareName::Open,
};

pub(crate) async fn run(session: &CliSession<'_>, arguments: &GetArgs) -> Result<(), CliError> {
    let requests = requests(arguments)?;
    match requests.as_slice() {
        [only] => list(session, only).await,
        several if arguments.watch => Err(CliError::usage("`--watch` follows one kind of objects")
            .hinted(format!("of {}", plurals(several)))),
        several => {
            let first = arguments.words.first();
            let of_all = first.is_some_and(|word| word == ALL);
            together(session, several, of_all).await
        }
    }
}

/// `katcall ps`.
pub(crate) async fn instances(session: &CliSession<'_>, arguments: PsArgs) -> Result<(), CliError> {
    let request = ListRequest {
        kind: NamedKind::Instance,
        objects: Vec::new(),
        namespace: arguments.namespace.namespace,
        all_namespaces: arguments.all_namespaces,
        selector: arguments.selector,
        output: arguments.output,
        watch: arguments.watch,
    };
    list(session, &request).await
}

/// `katcall events`.
pub(crate) async fn list_events(
    session: &CliSession<'_>,
    arguments: EventsArgs,
) -> Result<(), CliError> {
    let about = match &arguments.name {
        Some(name) => Some(references::one(name, WITH_EVENTS, &arguments.namespace)?),
        None => None,
    };
    // Events of machines and namespaces are in no namespace of workloads.
    let of_cluster = about.as_ref().and_then(|about| about.kind);
    let of_cluster = of_cluster.is_some_and(|kind| !kind.is_namespaced());
    let request = ListRequest {
        kind: NamedKind::Event,
        objects: about.into_iter().collect(),
        namespace: arguments.namespace.namespace,
        all_namespaces: arguments.all_namespaces || of_cluster,
        selector: LabelSelector::default(),
        output: arguments.output,
        watch: arguments.follow,
    };
    list(session, &request).await
}

/// What the words name, for each kind in the order of the words.
fn requests(arguments: &GetArgs) -> Result<Vec<ListRequest>, CliError> {
    let named = named(arguments)?;
    if arguments.all_namespaces && named.iter().any(|(_, objects)| !objects.is_empty()) {
        return Err(CliError::usage(
            "`--all-namespaces` and the name of an object exclude each other",
        )
        .hinted("an object of another namespace is written KIND/NAMESPACE/NAME"));
    }
    let request = |(kind, objects): (NamedKind, Vec<Reference>)| ListRequest {
        kind,
        objects,
        namespace: arguments.namespace.namespace.clone(),
        all_namespaces: arguments.all_namespaces,
        selector: arguments.selector.clone(),
        output: arguments.output.clone(),
        watch: arguments.watch,
    };
    Ok(named.into_iter().map(request).collect())
}

fn named(arguments: &GetArgs) -> Result<Vec<(NamedKind, Vec<Reference>)>, CliError> {
    let words = arguments.words.as_slice();
    let Some(first) = words.first() else {
        return Err(
            CliError::usage("the kind of the objects is missing").hinted(format!(
                "kinds are {}; `{ALL}` is {} of the namespace",
                references::plurals(&NamedKind::ALL),
                references::plurals(&KINDS_OF_ALL)
            )),
        );
    };
    if first == ALL || first.contains(',') {
        if let [_, name, ..] = words {
            return Err(CliError::usage(format!(
                "`{}` lists several kinds, and no name such as `{}` goes with it",
                output::plain(first),
                output::plain(name)
            ))
            .hinted("objects of several kinds are written KIND/NAME"));
        }
        let mut kinds: Vec<NamedKind> = Vec::new();
        for word in first.split(',') {
            let found: &[NamedKind] = match word {
                ALL => &KINDS_OF_ALL,
                word => match NamedKind::of_word(word) {
                    Some(kind) => &[kind],
                    None => return Err(references::unknown_kind(word, LISTED.kinds, false)),
                },
            };
            kinds.extend(
                found
                    .iter()
                    .filter(|kind| !kinds.contains(kind))
                    .collect::<Vec<_>>(),
            );
        }
        return Ok(kinds.into_iter().map(|kind| (kind, Vec::new())).collect());
    }
    let objects = match references::all(words, LISTED, &arguments.namespace)? {
        Named::AllOf(kind) => return Ok(vec![(kind, Vec::new())]),
        Named::Objects(objects) => objects,
    };
    let mut named: Vec<(NamedKind, Vec<Reference>)> = Vec::new();
    for object in objects {
        // Each reference of this command has a kind.
        let Some(kind) = object.kind else { continue };
        match named.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, objects)) => objects.push(object),
            None => named.push((kind, vec![object])),
        }
    }
    Ok(named)
}

/// Such as `workloads, instances`.
fn plurals(requests: &[ListRequest]) -> String {
    let kinds: Vec<NamedKind> = requests.iter().map(|request| request.kind).collect();
    references::plurals(&kinds)
}

/// What lists of several kinds print together.
#[derive(Debug, Default)]
struct SeveralLists {
    /// The items of all kinds, for JSON and YAML.
    items: Vec<Value>,
    /// Something is printed, so an empty line comes before the next table.
    printed: bool,
}

async fn list(session: &CliSession<'_>, request: &ListRequest) -> Result<(), CliError> {
    dispatch(session, request, None).await
}

/// Lists several kinds. With `of_all` they were not named one by one: those that a server of an
/// earlier version does not know are left out with a warning.
async fn together(
    session: &CliSession<'_>,
    requests: &[ListRequest],
    of_all: bool,
) -> Result<(), CliError> {
    let mut lists = SeveralLists::default();
    let mut failures = Failures::default();
    let mut known: Vec<NamedKind> = Vec::new();
    let mut unknown: Vec<NamedKind> = Vec::new();
    for request in requests {
        // A selector selects among the kinds that have labels.
        if !request.selector.is_empty() && !has_labels(request.kind) {
            continue;
        }
        match dispatch(session, request, Some(&mut lists)).await {
            Ok(()) => known.push(request.kind),
            Err(CliError::Client(error)) if of_all && error.is_unknown_request() => {
                unknown.push(request.kind);
            }
            Err(error) => failures.add(session.console, request.kind.plural(), error)?,
        }
    }
    if !unknown.is_empty() {
        session.console.warning(&format!(
            "{} are not listed: the server runs a version of KAT that does not know them; `katcall version` shows it",
            references::plurals(&unknown)
        ));
    }
    if let Some(request) = requests.first() {
        let console = session.console;
        let list = PrintedItems {
            items: &lists.items,
        };
        match (&request.output.template, request.output.format) {
            (Some(template), _) => output::picked(console, template, &list)?,
            (None, OutputFormat::Json) => output::document(console, DocumentFormat::Json, &list)?,
            (None, OutputFormat::Yaml) => output::document(console, DocumentFormat::Yaml, &list)?,
            _ if !lists.printed && failures.is_empty() && !known.is_empty() => {
                let place = match request.all_namespaces {
                    true => String::new(),
                    false => format!(" in namespace {}", request.namespace),
                };
                console.note(&format!("no {}{place}", references::plurals(&known)));
            }
            _ => {}
        }
    }
    failures.end(requests.len())
}

/// Whether objects of the kind have labels in the API.
fn has_labels(kind: NamedKind) -> bool {
    match kind {
        NamedKind::Workload
        | NamedKind::Job
        | NamedKind::Instance
        | NamedKind::Node
        | NamedKind::Namespace => true,
        NamedKind::Volume
        | NamedKind::Route
        | NamedKind::Run
        | NamedKind::Address
        | NamedKind::Secret
        | NamedKind::Event
        | NamedKind::Token => false,
    }
}

async fn dispatch(
    session: &CliSession<'_>,
    request: &ListRequest,
    together: Option<&mut SeveralLists>,
) -> Result<(), CliError> {
    if !request.selector.is_empty() {
        if !has_labels(request.kind) {
            let kind = request.kind.plural();
            return Err(CliError::usage(format!("{kind} have no labels"))
                .hinted("`--label` selects workloads, instances, nodes and namespaces"));
        }
        if !request.objects.is_empty() {
            return Err(CliError::usage(
                "`--label` and the name of an object exclude each other",
            ));
        }
    }
    match request.kind {
        NamedKind::Workload => show::<WorkloadItem>(session, request, together).await,
        NamedKind::Instance => show::<InstanceItem>(session, request, together).await,
        NamedKind::Node => show::<NodeItem>(session, request, together).await,
        NamedKind::Namespace => show::<NamespaceItem>(session, request, together).await,
        NamedKind::Volume => {
            let mut request = request.clone();
            for object in &mut request.objects {
                object.name = volumes::named(session, object).await?.without_namespace();
            }
            show::<VolumeItem>(session, &request, together).await
        }
        NamedKind::Route => show::<RouteItem>(session, request, together).await,
        NamedKind::Job => show::<JobItem>(session, request, together).await,
        NamedKind::Run => show::<RunItem>(session, request, together).await,
        NamedKind::Address => show::<VirtualAddressItem>(session, request, together).await,
        NamedKind::Secret => show::<SecretItem>(session, request, together).await,
        NamedKind::Event => show::<Event>(session, request, together).await,
        NamedKind::Token => show::<TokenView>(session, request, together).await,
    }
}

/// The address records of a route's host, as a zone file has them.
pub(crate) fn address_records(route: &RouteItem) -> Vec<String> {
    let addresses = route.status.addresses.iter();
    let records = addresses.map(|address| {
        let kind = if address.contains(':') { "AAAA" } else { "A" };
        format!("{} {kind} {address}", route.spec.host)
    });
    records.collect()
}

/// What was found, and whether it is the item of one name instead of a list.
struct FoundItems<T> {
    items: Vec<T>,
    one: bool,
}

async fn show<T: ListableItem>(
    session: &CliSession<'_>,
    request: &ListRequest,
    together: Option<&mut SeveralLists>,
) -> Result<(), CliError> {
    if request.watch {
        return watch::run::<T>(session, request).await;
    }
    let mut failures = Failures::default();
    let found = match request.objects.as_slice() {
        [] => {
            let mut items = items_of::<T>(session, scope::<T>(request)).await?;
            items.retain(|item| request.selector.selects(item.labels()));
            FoundItems { items, one: false }
        }
        [only] => one::<T>(session, request, only).await?,
        several => {
            let mut items = Vec::new();
            for object in several {
                match one::<T>(session, request, object).await {
                    Ok(found) => items.extend(found.items),
                    Err(error) => failures.add(session.console, &object.to_string(), error)?,
                }
            }
            FoundItems { items, one: false }
        }
    };
    warn(session, &found.items);
    if !found.items.is_empty() || failures.is_empty() {
        print_found(session, request, &found, together)?;
    }
    failures.end(request.objects.len())
}

/// The items of a list, in their order.
async fn items_of<T: ListableItem>(
    session: &CliSession<'_>,
    namespace: Option<&str>,
) -> Result<Vec<T>, CliError> {
    let list: List<T> = session.client.get(T::list(namespace)?).await?;
    let mut items = list.items;
    items.retain(T::is_listed);
    items.sort_by(T::order);
    Ok(items)
}

/// The item of a reference; for kinds whose names filter, all items about the object.
async fn one<T: ListableItem>(
    session: &CliSession<'_>,
    request: &ListRequest,
    object: &Reference,
) -> Result<FoundItems<T>, CliError> {
    let scoped = T::NAMESPACED && !request.all_namespaces;
    let namespace = scoped.then_some(object.namespace.as_str());
    let name = object.name.as_str();
    if let Some(route) = T::item_route(&object.namespace, name) {
        let item: T = match session.client.get(route?).await {
            Ok(item) => item,
            Err(error) => return Err(missing::<T>(session, error, namespace, name).await),
        };
        let items = vec![item];
        return Ok(FoundItems { items, one: true });
    }
    let mut items = items_of::<T>(session, namespace).await?;
    items.retain(|item| item.is_meant(object));
    if items.is_empty() && !T::NAME_FILTERS {
        let words = format!("there is no {} `{name}`", T::SINGULAR);
        let hint = format!("`katcall get {}` lists them", T::PLURAL);
        return Err(CliError::not_found(words).hinted(hint));
    }
    Ok(FoundItems { items, one: false })
}

/// Prints a list or one item, alone or together with those of other kinds.
fn print_found<T: ListableItem>(
    session: &CliSession<'_>,
    request: &ListRequest,
    found: &FoundItems<T>,
    together: Option<&mut SeveralLists>,
) -> Result<(), CliError> {
    let console = session.console;
    let format = request.output.format;
    let readable = !matches!(format, OutputFormat::Json | OutputFormat::Yaml);
    if let Some(lists) = together {
        if !readable {
            for item in &found.items {
                let item = json::tree(T::SINGULAR, item)
                    .map_err(|error| CliError::failed(error.to_string()))?;
                lists.items.push(item);
            }
            return Ok(());
        }
        if found.items.is_empty() {
            return Ok(());
        }
        if lists.printed && format != OutputFormat::Name {
            console.line("")?;
        }
        lists.printed = true;
        return items(session, request, &found.items);
    }
    if let (true, [item]) = (found.one, found.items.as_slice()) {
        if let Some(template) = &request.output.template {
            return output::picked(console, template, item);
        }
        return match format {
            OutputFormat::Json => output::document(console, DocumentFormat::Json, item),
            OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, item),
            _ => items(session, request, std::slice::from_ref(item)),
        };
    }
    if found.items.is_empty() && readable {
        let name = request.objects.first().map(|object| object.name.as_str());
        console.note(&nothing_found::<T>(scope::<T>(request), name));
        return Ok(());
    }
    items(session, request, &found.items)
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
    request: &ListRequest,
    found: &[T],
) -> Result<(), CliError> {
    let console = session.console;
    let list = PrintedItems { items: found };
    if let Some(template) = &request.output.template {
        return output::picked(console, template, &list);
    }
    match request.output.format {
        OutputFormat::Json => output::document(console, DocumentFormat::Json, &list),
        OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &list),
        OutputFormat::Name => found
            .iter()
            .try_for_each(|item| console.line(&reference_to(item, request))),
        OutputFormat::Table => {
            let table = table(found, columns::<T>(request));
            console.print(&table.within(console.width).render(console.colour))
        }
        OutputFormat::Wide => {
            console.print(&table(found, columns::<T>(request)).render(console.colour))
        }
    }
}

pub(crate) fn table<T: ListableItem>(items: &[T], columns: Columns) -> Table {
    let mut table = Table::new(T::headers(columns))
        .with_texts(T::TEXTS)
        .with_optional(T::OPTIONAL);
    for item in items {
        table.row(item.row(columns));
    }
    table
}

/// `KIND/NAME`, or `KIND/NAMESPACE/NAME` where namespaces are listed together.
fn reference_to<T: ListableItem>(item: &T, request: &ListRequest) -> String {
    let (namespace, name) = item.key();
    match request.all_namespaces && !namespace.is_empty() {
        true => format!("{}/{namespace}/{name}", T::SINGULAR),
        false => format!("{}/{name}", T::SINGULAR),
    }
}

fn columns<T: ListableItem>(request: &ListRequest) -> Columns {
    Columns {
        wide: request.output.format == OutputFormat::Wide,
        namespaces: T::NAMESPACED && request.all_namespaces,
        now: Timestamp::now(),
    }
}

/// The namespace of a list; `None` for all, and for kinds without namespaces.
fn scope<T: ListableItem>(request: &ListRequest) -> Option<&str> {
    let object = request.objects.first();
    let namespace = object.map_or(&request.namespace, |object| &object.namespace);
    let one = T::NAMESPACED && !request.all_namespaces;
    one.then_some(namespace.as_str())
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
    output::json::line(value)
}
