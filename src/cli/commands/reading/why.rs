//! `katcall why`: explains the wanted and the actual state of an object, what holds it up, and what
//! to try next, in sentences.
//!
//! It uses only the API's read requests, so that it also works without a leader.

pub(super) mod event_reasons;
mod isolation;
pub(super) mod reasons;
mod story;

use std::cell::Cell;

use jiff::Timestamp;

use super::{
    describe,
    get::{self, ListableItem},
    guess,
};
use crate::{
    CliSession,
    args::WhyArgs,
    console::paint,
    errors::CliError,
    output,
    output::plain,
    references::{self, BareName, CommandKinds, Reference},
};
use kat_types::{
    api::{Event, EventFilter, InstanceItem, NodeItem, ObjectKind, WorkloadItem},
    resource::named_kind::NamedKind,
};
use story::WhyReport;
pub(super) use story::{holds_up, is_over};

/// Most events that are shown.
const EVENTS: usize = 3;

pub(crate) const EXPLAINED: CommandKinds = CommandKinds {
    kinds: &[
        NamedKind::Workload,
        NamedKind::Instance,
        NamedKind::Node,
        NamedKind::Route,
        NamedKind::Address,
    ],
    bare: BareName::Open,
};

pub(crate) async fn run(session: &CliSession<'_>, arguments: &WhyArgs) -> Result<(), CliError> {
    let console = session.console;
    if let [word] = arguments.words.as_slice()
        && word == isolation::WORD
    {
        return isolation::run(session, &arguments.namespace, arguments.output).await;
    }
    let objects = references::objects(&arguments.words, EXPLAINED, &arguments.namespace)?;
    if let (Some(format), objects) = (arguments.output, objects.as_slice()) {
        let [only] = objects else {
            return Err(CliError::usage("`--output` is for one object"));
        };
        return output::document(console, format, &report(session, only).await?);
    }
    let printed = Cell::new(false);
    references::for_each(console, &objects, async |object| {
        let story = report(session, object).await?;
        if printed.replace(true) {
            console.line("")?;
        }
        console.print(&output::wrapped(
            &text(&story, console.colour),
            console.width,
        ))
    })
    .await
}

async fn report(session: &CliSession<'_>, object: &Reference) -> Result<WhyReport, CliError> {
    let now = Timestamp::now();
    let kind = guess::kind_of(session, object, EXPLAINED).await?;
    match kind {
        NamedKind::Workload => workload_report(session, object, now).await,
        NamedKind::Instance => instance_report(session, object, now).await,
        NamedKind::Node => node_report(session, &object.name, now).await,
        NamedKind::Route => route_report(session, object, now).await,
        NamedKind::Address => address_report(session, &object.name, now).await,
        NamedKind::Namespace
        | NamedKind::Job
        | NamedKind::Run
        | NamedKind::Volume
        | NamedKind::Secret
        | NamedKind::Event
        | NamedKind::Token => Err(CliError::usage(format!(
            "the state of a {} has no explanation",
            kind.singular()
        ))),
    }
}

async fn workload_report(
    session: &CliSession<'_>,
    Reference {
        namespace, name, ..
    }: &Reference,
    now: Timestamp,
) -> Result<WhyReport, CliError> {
    let client = &session.client;
    let item = match client.workload(namespace, name).await {
        Ok(item) => item,
        Err(error) => {
            let place = Some(namespace.as_str());
            return Err(get::missing::<WorkloadItem>(session, error, place, name).await);
        }
    };
    let mut instances = client.workload_instances(namespace, name).await?.items;
    instances.sort_by(InstanceItem::order);
    let ids: Vec<&str> = instances
        .iter()
        .map(|instance| instance.metadata.name.as_str())
        .collect();
    let events = about(session, Some(namespace), |kind, of| match kind {
        ObjectKind::Workload => of == name,
        ObjectKind::Instance => ids.contains(&of),
        _ => false,
    })
    .await;
    // Callers that may not read machines are told without them.
    let nodes = client.nodes().await.map(|list| list.items);
    let nodes = nodes.unwrap_or_default();
    let mut drained = nodes.clone();
    drained.retain(|node| node.spec.draining);
    let mut told = story::of_workload(&item, &instances, &drained, events, now);
    told.tell_silent_machines(&nodes, &instances, now);
    told.tell_free_resources(&item.status.conditions, &nodes);
    let refused = isolation::of_workload(session, namespace, name, now).await;
    let job = item.status.job.as_ref();
    if let Some(skipped) = job.and_then(|job| job.skipped.as_ref()) {
        let time = skipped.scheduled;
        let message = output::plain(&skipped.message);
        told.notes.push(format!("no run at {time}: {message}"));
    }
    told.notes.extend(story::names_and_sources(&item));
    told.notes.extend(refused.notes);
    told.next.extend(refused.next);
    Ok(told)
}

async fn instance_report(
    session: &CliSession<'_>,
    Reference {
        namespace, name, ..
    }: &Reference,
    now: Timestamp,
) -> Result<WhyReport, CliError> {
    let client = &session.client;
    let item = match client.instance(namespace, name).await {
        Ok(item) => item,
        Err(error) => {
            let place = Some(namespace.as_str());
            return Err(get::missing::<InstanceItem>(session, error, place, name).await);
        }
    };
    let events = about(session, Some(namespace), |kind, of| {
        *kind == ObjectKind::Instance && of == name
    });
    let (events, nodes) = tokio::join!(events, client.nodes());
    let nodes = nodes.map(|list| list.items).unwrap_or_default();
    let mut story = story::of_instance(&item, events, now);
    story.tell_silent_machines(&nodes, std::slice::from_ref(&item), now);
    Ok(story)
}

async fn node_report(
    session: &CliSession<'_>,
    name: &str,
    now: Timestamp,
) -> Result<WhyReport, CliError> {
    let item = match session.client.node(name).await {
        Ok(item) => item,
        Err(error) => return Err(get::missing::<NodeItem>(session, error, None, name).await),
    };
    let events = about(session, None, |kind, of| {
        *kind == ObjectKind::Node && of == name
    });
    let workloads = match item.spec.draining {
        true => workloads_on(session, name).await,
        false => Vec::new(),
    };
    Ok(story::of_node(&item, &workloads, events.await, now))
}

async fn route_report(
    session: &CliSession<'_>,
    object: &Reference,
    now: Timestamp,
) -> Result<WhyReport, CliError> {
    let routes = describe::routes_of(session, object).await?;
    let workload = routes.first().map(|route| route.spec.workload.clone());
    let events = about(session, Some(&object.namespace), |kind, of| {
        *kind == ObjectKind::Workload && Some(of) == workload.as_deref()
    });
    Ok(story::of_routes(&routes, events.await, now))
}

/// An event has no field for a virtual address: its message names the address.
async fn address_report(
    session: &CliSession<'_>,
    name: &str,
    now: Timestamp,
) -> Result<WhyReport, CliError> {
    let item = describe::virtual_address(session, name).await?;
    let address = item.metadata.name.clone();
    let query = EventFilter::default();
    let mut events = get::events(session, &query).await.unwrap_or_default();
    events.retain(|event| {
        let mut words = event.message.split([' ', ':', ',']);
        event.involved_object.kind == ObjectKind::Node && words.any(|word| word == address)
    });
    events.reverse();
    events.truncate(EVENTS);
    Ok(story::of_address(&item, events, now))
}

/// The workloads with an instance on the machine; none where they cannot be read.
async fn workloads_on(session: &CliSession<'_>, node: &str) -> Vec<WorkloadItem> {
    let (workloads, instances) = tokio::join!(
        session.client.workloads(None),
        session.client.instances(None),
    );
    let (Ok(workloads), Ok(instances)) = (workloads, instances) else {
        return Vec::new();
    };
    let here: Vec<_> = instances
        .items
        .into_iter()
        .filter(|item| item.status.node.as_deref() == Some(node))
        .map(|item| (item.metadata.namespace, item.status.workload))
        .collect();
    let mut workloads = workloads.items;
    workloads.retain(|item| {
        here.iter().any(|(namespace, workload)| {
            *namespace == item.metadata.namespace && *workload == item.metadata.name
        })
    });
    workloads
}

/// The last events that `wanted` accepts, the newest first; none where they can't be read.
async fn about(
    session: &CliSession<'_>,
    namespace: Option<&str>,
    wanted: impl Fn(&ObjectKind, &str) -> bool,
) -> Vec<Event> {
    let query = EventFilter {
        namespace: namespace.map(str::to_owned),
        ..EventFilter::default()
    };
    let mut events = get::events(session, &query).await.unwrap_or_default();
    events.retain(|event| wanted(&event.involved_object.kind, &event.involved_object.name));
    events.reverse();
    events.truncate(EVENTS);
    events
}

/// The text for people: a sentence, and the details below it.
fn text(story: &WhyReport, colour: bool) -> String {
    let bold = anstyle::Style::new().bold();
    let mut text = format!("{}\n", plain(&story.state));
    for (title, lines) in [
        ("wanted", std::slice::from_ref(&story.wanted)),
        ("is", &story.is),
        ("because", &story.because),
        ("note", &story.notes),
        ("lately", &story.lately),
        ("try", &story.next),
    ] {
        let lines = lines.iter().flat_map(|line| line.lines());
        let mut title = title;
        for line in lines {
            if !title.is_empty() {
                text.push('\n');
            }
            let shown = paint(&format!("{title:<8}"), bold, colour && !title.is_empty());
            text.push_str(&format!("{shown} {}\n", plain(line)));
            title = "";
        }
    }
    text
}
