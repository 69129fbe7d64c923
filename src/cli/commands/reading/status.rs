//! `katcall status`: one screen with the state of the cluster and its problems.

mod findings;
pub(crate) mod urgency;

use jiff::Timestamp;

use super::{
    get::{self, Columns, ListableItem},
    why::is_over,
};
use crate::{
    CliSession,
    console::{Console, TextTone, tint},
    errors::CliError,
    output,
};
use findings::{Findings, StatusResponses};
use kat_client::{Client, ClientError};
use kat_types::{
    api::{Event, EventFilter, EventKind, InstanceItem, NodeItem, ServerVersion, WorkloadItem},
    resource::ClusterConfiguration,
};

/// Longest age of a shown warning.
const RECENT_SECONDS: i64 = 3_600;
/// Spaces before the lines of a section.
const INDENT: usize = 2;
/// Most shown warnings.
const WARNINGS: usize = 8;
/// Most shown lines of problems.
const TROUBLES: usize = 15;

/// Returns 0 when all that the caller can see is healthy, and 1 when it is not. A caller that may
/// not read the whole cluster sees the workloads and instances of `namespace`. `own` is the agent of
/// the caller's machine where other servers are asked: it may have been taken out of the cluster.
pub(crate) async fn run(
    session: &CliSession<'_>,
    own: Option<&Client>,
    namespace: &str,
) -> Result<u8, CliError> {
    let console = session.console;
    let answers = ask(session, own, namespace).await?;
    let now = Timestamp::now();
    let findings = Findings::of(&answers.known, now);
    let screen = screen(session, &answers, &findings);
    let mut screen = output::wrapped(&screen, console.width);
    if !is_refused(&answers.events) {
        screen.push_str(&warnings(answers.events, &answers.known, now, console));
    }
    console.print(&screen)?;
    Ok(u8::from(!findings.troubles.is_empty()))
}

/// The content of the screen, as the API and the agent of the caller's machine have it.
struct StatusAnswers {
    known: StatusResponses,
    configuration: Result<ClusterConfiguration, ClientError>,
    version: Result<ServerVersion, ClientError>,
    events: Result<Vec<Event>, ClientError>,
}

async fn ask(
    session: &CliSession<'_>,
    own: Option<&Client>,
    namespace: &str,
) -> Result<StatusAnswers, CliError> {
    let client = &session.client;
    // Without any response there is no screen.
    let health = match client.healthz().await {
        Err(error @ (ClientError::Unreachable { .. } | ClientError::Configuration { .. })) => {
            return Err(error.into());
        }
        other => other,
    };
    let all = EventFilter::default();
    let own_health = async {
        match own {
            Some(own) => own.healthz().await.ok(),
            None => None,
        }
    };
    let of_cluster = async {
        tokio::join!(
            client.nodes(),
            client.authorities(),
            client.virtual_addresses(),
            client.routes(None),
        )
    };
    let (own_health, version, configuration, of_cluster, workloads, instances, events) = tokio::join!(
        own_health,
        client.version(),
        client.cluster_configuration(),
        of_cluster,
        client.workloads(None),
        client.instances(None),
        get::events(session, &all),
    );
    let (nodes, authorities, addresses, routes) = of_cluster;
    let nodes = match nodes {
        // The caller is not known, so that nothing can be said about the cluster.
        Err(error) if error.status() == Some(401) => return Err(error.into()),
        other => other,
    };
    let overview = match is_refused(&workloads) {
        // A machine without the store refuses the workloads, and has the cluster's overview.
        true => client.overview().await.ok(),
        false => None,
    };
    let overview = overview.filter(|overview| overview.relay.is_some());
    let mut known = StatusResponses {
        overview,
        namespace: None,
        health,
        nodes: nodes.map(|list| list.items),
        workloads: workloads.map(|list| list.items),
        instances: instances.map(|list| list.items),
        authorities: authorities.map(|list| list.items),
        addresses: addresses.map(|list| list.items),
        routes: routes.map(|list| list.items),
    };
    known.add_own_health(own_health);
    let mut answers = StatusAnswers {
        known,
        configuration,
        version,
        events,
    };
    if is_refused(&answers.known.workloads) && answers.known.overview.is_none() {
        narrow_to_namespace(session, namespace, &mut answers).await;
    }
    Ok(answers)
}

/// Puts one namespace in the place of the whole cluster, unless the caller may not read that either.
async fn narrow_to_namespace(
    session: &CliSession<'_>,
    namespace: &str,
    answers: &mut StatusAnswers,
) {
    let client = &session.client;
    let filter = EventFilter {
        namespace: Some(namespace.to_owned()),
        ..EventFilter::default()
    };
    let (workloads, instances, routes, of_namespace) = tokio::join!(
        client.workloads(Some(namespace)),
        client.instances(Some(namespace)),
        client.routes(Some(namespace)),
        get::events(session, &filter),
    );
    if !is_hidden(&workloads) && !is_hidden(&instances) {
        answers.known.namespace = Some(namespace.to_owned());
        answers.known.workloads = workloads.map(|list| list.items);
        answers.known.instances = instances.map(|list| list.items);
        answers.known.routes = routes.map(|list| list.items);
        answers.events = of_namespace;
    }
}

/// The screen without the recent warnings, not wrapped yet.
fn screen(session: &CliSession<'_>, answers: &StatusAnswers, findings: &Findings) -> String {
    let console = session.console;
    let cluster = match (&answers.configuration, &answers.known.overview) {
        (Ok(configuration), _) => format!("cluster `{}`", configuration.metadata.name),
        (Err(_), Some(overview)) if !overview.cluster.is_empty() => {
            format!("cluster `{}`", overview.cluster)
        }
        (Err(_), _) => "the cluster".to_owned(),
    };
    let verdict = if findings.troubles.is_empty() {
        tint("well", TextTone::Good, console.colour)
    } else {
        tint("not well", TextTone::Bad, console.colour)
    };
    let version = answers.version.as_ref().map_or_else(
        |_| String::new(),
        |answer| format!(", version {}", answer.version),
    );
    let extent = match findings.partial && findings.troubles.is_empty() {
        true => " as far as this caller can see",
        false => "",
    };
    let mut screen = format!("{cluster} is {verdict}{extent}\n\n");
    let mut field = |name: &str, text: &str| {
        screen.push_str(&format!("{name:<12}{text}\n"));
    };
    field("api", &format!("{}{version}", session.client.endpoint()));
    field("leader", &findings.leader);
    field("etcd", &findings.etcd);
    field("nodes", &findings.nodes);
    field("workloads", &findings.workloads);
    field("instances", &findings.instances);
    if !findings.backup.is_empty() {
        field("backup", &findings.backup);
    }
    list(&mut screen, "not well", &findings.troubles);
    list(&mut screen, "on the way", &findings.under_way);
    list(&mut screen, "security", &findings.security);
    screen
}

/// Whether the caller may not read this.
pub(super) fn is_refused<T>(answer: &Result<T, ClientError>) -> bool {
    matches!(answer, Err(ClientError::Refused(refusal)) if refusal.status == 403)
}

/// Whether the caller may not read a namespace, or the namespace does not exist.
fn is_hidden<T>(answer: &Result<T, ClientError>) -> bool {
    let status = answer.as_ref().err().and_then(ClientError::status);
    matches!(status, Some(403 | 404))
}

fn list(screen: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    screen.push_str(&format!("\n{title}\n"));
    for line in lines.iter().take(TROUBLES) {
        screen.push_str(&format!("  {line}\n"));
    }
    if let Some(more) = lines.len().checked_sub(TROUBLES).filter(|more| *more > 0) {
        screen.push_str(&format!("  and {more} more\n"));
    }
}

/// The warnings of the last hour about what is still there and has not ended since.
fn warnings(
    events: Result<Vec<Event>, ClientError>,
    known: &StatusResponses,
    now: Timestamp,
    console: &Console,
) -> String {
    let mut events = match events {
        Ok(events) => events,
        Err(error) => return format!("\nrecent warnings\n  cannot be read: {error}\n"),
    };
    let all = events.clone();
    events.retain(|event| {
        let recent = event
            .timestamp
            .get()
            .is_some_and(|then| now.duration_since(then).as_secs() <= RECENT_SECONDS);
        event.kind == EventKind::Warning
            && recent
            && known.has(&event.involved_object)
            && !is_over(event, &all)
    });
    let first = events.len().saturating_sub(WARNINGS);
    let last = events.get(first..).unwrap_or_default();
    if last.is_empty() {
        return String::new();
    }
    let columns = Columns {
        wide: false,
        namespaces: false,
        now,
    };
    let width = console.width.map(|width| width.saturating_sub(INDENT));
    let table = get::table(last, columns).within(width);
    let table = table.indented(console.colour, INDENT);
    format!("\nrecent warnings\n{table}")
}
