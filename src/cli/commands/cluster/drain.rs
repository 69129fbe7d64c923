//! `katcall drain`.

mod state;

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    CliSession,
    args::{DrainArgs, NamespaceOption},
    commands::reading::get,
    errors::CliError,
    progress::ProgressDisplay,
    references::{self, NODES},
    time,
    wait::ConnectionNotices,
};
use kat_client::{ListChange, RequestPath};
use kat_types::api::{InstanceItem, NodeItem, WorkloadItem};
use state::DrainWait;

/// Time without any change after which a drain is not waited for any more, where nothing that is left
/// can move.
const STANDSTILL: Duration = Duration::from_secs(30);

/// Drains a machine, and waits until it is empty.
///
/// Exits with 3 when the machine is removed from the cluster meanwhile; with 1 when it is
/// uncordoned meanwhile, or the remaining instances belong to workloads that cannot be written; and
/// with 5 after the timeout, or when nothing that is left can move and nothing has changed for a while,
/// with the remaining instances and their reasons; a reason that was printed meanwhile is not repeated.
pub(crate) async fn run(session: &CliSession<'_>, arguments: &DrainArgs) -> Result<(), CliError> {
    let started = Instant::now();
    let deadline = started + arguments.timeout;
    let nodes = references::objects(&arguments.words, NODES, &NamespaceOption::unused())?;
    let [node] = nodes.as_slice() else {
        return Err(CliError::usage("one machine is drained at a time")
            .hinted("instances would move to a machine that is drained next"));
    };
    let (client, name) = (&session.client, &node.name);
    if let Err(error) = client.drain_node(name, arguments.force).await {
        return Err(get::missing::<NodeItem>(session, error, None, name).await);
    }
    let mut nodes = client.follow::<NodeItem>(RequestPath::nodes(), true);
    let mut instances = client.follow::<InstanceItem>(RequestPath::instances(None)?, true);
    let mut workloads = client.follow::<WorkloadItem>(RequestPath::workloads(None)?, true);
    let mut progress = ProgressDisplay::start(session.console);
    let mut connection = ConnectionNotices::default();
    let mut state = DrainWait::new(name);
    // Since when the same instances are left, none of which can move.
    let mut standstill: Option<(Vec<String>, Instant)> = None;
    loop {
        let ends = standstill.as_ref().map(|(_, since)| *since + STANDSTILL);
        let ends = ends.map_or(deadline, |ends| ends.min(deadline));
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(ends) => {
                drop(progress);
                return Err(deadline_error(session, &state, started));
            }
            change = nodes.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                state.nodes(change);
            }
            change = instances.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                state.instances(change);
            }
            change = workloads.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                state.workloads(change);
            }
        }
        if !state.is_known() {
            continue;
        }
        if state.is_gone() {
            return Err(CliError::not_found(format!(
                "node `{name}` left the cluster"
            )));
        }
        if state.is_taken_back() {
            return Err(CliError::failed(format!(
                "somebody let node `{name}` take work again"
            )));
        }
        if state.is_drained() {
            drop(progress);
            if arguments.force {
                // The followed list may lag behind the machine's state.
                let all = client.workloads(None).await?;
                state.workloads(ListChange::Listed(all.items));
                for line in state.stopped() {
                    session.console.note(&line);
                }
            }
            return session.console.line(&format!("node/{name} drained"));
        }
        if state.is_stuck() {
            drop(progress);
            for line in state.unprinted_instances() {
                session.console.note(&format!("  {line}"));
            }
            return Err(CliError::failed(format!(
                "node `{name}` is not drained: {}",
                state.counts()
            ))
            .hinted("what is left cannot be written to the store: change or delete these workloads; everything else has moved"));
        }
        standstill = state.standstill().map(|left| match standstill {
            Some((before, since)) if before == left => (left, since),
            _ => (left, Instant::now()),
        });
        for line in state.news() {
            progress.note(&line);
        }
        progress.update(&state.summary());
    }
}

fn deadline_error(session: &CliSession<'_>, state: &DrainWait, started: Instant) -> CliError {
    for line in state.unprinted_instances() {
        session.console.note(&format!("  {line}"));
    }
    let spent = time::rounded(started.elapsed().as_secs());
    let name = state.name();
    CliError::deadline(format!(
        "node `{name}` is not drained after {spent}: {}",
        state.counts()
    ))
    .hinted(format!(
        "it takes no new work and what can leave still does; `katcall uncordon {name}` takes the drain back, `--force` stops what can't move"
    ))
}
