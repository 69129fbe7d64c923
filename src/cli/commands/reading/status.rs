//! `katcall status`: one screen with the state of the cluster and its problems.

mod findings;

use jiff::Timestamp;

use super::get::{self, Columns, ListableItem};
use crate::{
    CliSession,
    console::{TextTone, tint},
    errors::CliError,
};
use findings::{Findings, StatusResponses};
use kat_client::ClientError;
use kat_types::api::{Event, EventFilter, EventKind, InstanceItem, NodeItem, WorkloadItem};

/// Longest age of a shown warning.
const RECENT_SECONDS: i64 = 3_600;
/// Most shown warnings.
const WARNINGS: usize = 8;
/// Most shown lines of problems.
const TROUBLES: usize = 15;

/// Returns 0 when the cluster is healthy, and 1 when it is not.
pub(crate) async fn run(session: &CliSession<'_>) -> Result<u8, CliError> {
    let client = &session.client;
    let console = session.console;
    // Without any response there is no screen.
    let health = match client.healthz().await {
        Err(error @ (ClientError::Unreachable { .. } | ClientError::Configuration { .. })) => {
            return Err(error.into());
        }
        other => other,
    };
    let all = EventFilter::default();
    let (version, configuration, nodes, workloads, instances, authorities, events) = tokio::join!(
        client.version(),
        client.cluster_configuration(),
        client.nodes(),
        client.workloads(None),
        client.instances(None),
        client.authorities(),
        get::events(session, &all),
    );
    // A machine without the store refuses the workloads, and has the cluster's overview.
    let overview = match is_refused(&workloads) {
        true => client.overview().await.ok(),
        false => None,
    };
    let now = Timestamp::now();
    let known = StatusResponses {
        overview: overview.filter(|overview| overview.relay.is_some()),
        health,
        nodes: nodes.map(|list| list.items),
        workloads: workloads.map(|list| list.items),
        instances: instances.map(|list| list.items),
        authorities: authorities.map(|list| list.items),
    };
    let findings = Findings::of(&known, now);
    let cluster = match (&configuration, &known.overview) {
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
    let version = version.map_or_else(
        |_| String::new(),
        |answer| format!(", version {}", answer.version),
    );
    let mut screen = format!("{cluster} is {verdict}\n\n");
    let mut field = |name: &str, text: &str| {
        screen.push_str(&format!("{name:<12}{text}\n"));
    };
    field("api", &format!("{}{version}", client.endpoint()));
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
    if known.overview.is_none() {
        screen.push_str(&warnings(events, now, console.colour));
    }
    console.print(&screen)?;
    Ok(u8::from(!findings.troubles.is_empty()))
}

/// Whether the caller may not read this.
pub(super) fn is_refused<T>(answer: &Result<T, ClientError>) -> bool {
    matches!(answer, Err(ClientError::Refused(refusal)) if refusal.status == 403)
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

fn warnings(events: Result<Vec<Event>, ClientError>, now: Timestamp, colour: bool) -> String {
    let mut events = match events {
        Ok(events) => events,
        Err(error) => return format!("\nrecent warnings\n  cannot be read: {error}\n"),
    };
    events.retain(|event| {
        let recent = event
            .timestamp
            .get()
            .is_some_and(|then| now.duration_since(then).as_secs() <= RECENT_SECONDS);
        event.kind == EventKind::Warning && recent
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
    let table = get::table(last, columns).indented(colour, 2);
    format!("\nrecent warnings\n{table}")
}
