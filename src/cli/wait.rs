//! Waits until a workload is as written, or deleted.

mod certificates;
mod state;

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{
    CliSession,
    commands::sessions::logs,
    errors::CliError,
    output::{plain, printed},
    progress::ProgressDisplay,
    time,
};
pub(super) use certificates::until_certificates;
use kat_client::{KeyedItem, ListChange, RequestPath};
use kat_types::api::{InstanceItem, NamespaceItem, VolumeItem, WorkloadItem};
use state::{QUIET, RolloutWait, WaitVerdict};

/// Pause between two looks at how long the present state lasts.
const TICK: Duration = Duration::from_millis(500);
/// Last lines of a failed program that are printed.
const LINES: u64 = 8;
/// Longest wait for them.
const LINES_LIMIT: Duration = Duration::from_secs(3);

/// The workload to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AwaitedWorkload {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Empty when it is not known.
    pub(super) uid: String,
    /// The generation that was applied.
    pub(super) generation: u64,
}

/// Waits until all instances of the applied generation run and are healthy.
///
/// Exits with 1 when the rollout stalled or failed permanently, 3 when the workload is deleted
/// meanwhile, 5 once `timeout` has passed since `started`.
pub(super) async fn until_running(
    session: &CliSession<'_>,
    target: AwaitedWorkload,
    started: Instant,
    timeout: Duration,
) -> Result<(), CliError> {
    let deadline = started + timeout;
    let client = &session.client;
    let route = RequestPath::workloads(Some(&target.namespace))?;
    let mut workloads = client.follow::<WorkloadItem>(route, true);
    let route = RequestPath::workload_instances(&target.namespace, &target.name)?;
    let mut instances = client.follow::<InstanceItem>(route, true);
    let mut instances_open = true;
    let mut progress = ProgressDisplay::start(session.console);
    let mut state = RolloutWait::new(target);
    let mut connection = ConnectionNotices::default();
    let mut ticks = tokio::time::interval(TICK);
    let mut next_line = Instant::now() + QUIET;
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(deadline) => {
                drop(progress);
                return Err(deadline_error(session, &state, started).await);
            }
            _ = ticks.tick() => {}
            change = workloads.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                state.workload(change);
            }
            change = instances.next(), if instances_open => match change {
                Ok(change) => {
                    connection.print_connection_change(&change, &progress);
                    state.instances(change);
                }
                // The workload is gone; the other list shows that.
                Err(error) if error.is_not_found() => instances_open = false,
                Err(error) => return Err(error.into()),
            },
        }
        let known = state.is_known() || !instances_open;
        let now = Instant::now();
        state.look(now);
        let verdict = state.verdict();
        if known && verdict == WaitVerdict::Waiting {
            for line in state.news(now) {
                progress.note(&line);
            }
        }
        match verdict {
            WaitVerdict::Waiting if known => {
                if let Some(why) = state.in_vain(now) {
                    drop(progress);
                    print_lines(session, &last_lines(session, &state).await);
                    return Err(CliError::failed(format!(
                        "{} waits for a person: {why}",
                        state.title()
                    ))
                    .hinted(format!(
                        "{}; the cluster continues by itself once that is mended",
                        state.next_command()
                    )));
                }
                // In a pipe each line stays.
                if session.console.interactive || now >= next_line {
                    progress.update(&state.summary());
                    next_line = now + QUIET;
                }
            }
            WaitVerdict::Waiting => {}
            WaitVerdict::Done => {
                drop(progress);
                let spent = time::rounded(started.elapsed().as_secs());
                session
                    .console
                    .note(&format!("{} after {spent}", state.summary()));
                return Ok(());
            }
            WaitVerdict::Gone => {
                return Err(CliError::not_found(format!(
                    "{} was deleted meanwhile",
                    state.title()
                )));
            }
            // Its instances, which say more, are still to come.
            WaitVerdict::Failed(_) if !known => {}
            WaitVerdict::Failed(reason) => {
                drop(progress);
                print_troubles(session, &state, None).await;
                return Err(CliError::failed(format!("{} {reason}", state.title()))
                    .hinted(state.next_command()));
            }
        }
    }
}

/// Reports once when the connection is lost, and when it is restored.
#[derive(Debug, Default)]
pub(super) struct ConnectionNotices {
    lost: bool,
}

impl ConnectionNotices {
    pub(super) fn print_connection_change<T>(
        &mut self,
        change: &ListChange<T>,
        progress: &ProgressDisplay<'_>,
    ) {
        match change {
            ListChange::Interrupted(reason) if !self.lost => {
                self.lost = true;
                progress.note(&format!(
                    "the connection to the cluster is lost, trying again: {reason}"
                ));
            }
            ListChange::Listed(_) if self.lost => {
                self.lost = false;
                progress.note("the connection to the cluster is back");
            }
            _ => {}
        }
    }
}

/// The last lines of the program that failed, with the instance that printed them.
async fn last_lines(
    session: &CliSession<'_>,
    state: &RolloutWait,
) -> Option<(String, Vec<String>)> {
    let id = state.speaker()?.to_owned();
    let reading = logs::last_lines(&session.client, state.target(), &id, LINES);
    // The log is a help: where it does not come, the reason still does.
    match tokio::time::timeout(LINES_LIMIT, reading).await {
        Ok(Ok(lines)) if !lines.is_empty() => Some((id, lines)),
        _ => None,
    }
}

fn print_lines(session: &CliSession<'_>, lines: &Option<(String, Vec<String>)>) {
    let Some((id, lines)) = lines else { return };
    session.console.note(&format!("  last lines of {id}:"));
    for line in lines {
        session
            .console
            .note(&format!("    {}", printed(line, false)));
    }
}

/// Prints what is wrong and was not printed yet, and the last lines of the program that failed.
async fn print_troubles(session: &CliSession<'_>, state: &RolloutWait, reason: Option<String>) {
    let lines = last_lines(session, state).await;
    for line in reason.into_iter().chain(state.troubles(lines.is_none())) {
        session.console.note(&format!("  {line}"));
    }
    print_lines(session, &lines);
}

async fn deadline_error(
    session: &CliSession<'_>,
    state: &RolloutWait,
    started: Instant,
) -> CliError {
    print_troubles(session, state, state.reason()).await;
    let spent = time::rounded(started.elapsed().as_secs());
    CliError::deadline(format!(
        "{} is not running as written after {spent}: {}",
        state.title(),
        state.counts()
    ))
    .hinted(state.next_command())
}

/// Waits until a workload and its instances are gone.
pub(super) async fn until_gone(
    session: &CliSession<'_>,
    target: &AwaitedWorkload,
    deadline: Instant,
) -> Result<(), CliError> {
    let AwaitedWorkload {
        namespace, name, ..
    } = target;
    let client = &session.client;
    let route = RequestPath::workloads(Some(namespace))?;
    let mut workloads = client.follow::<WorkloadItem>(route, true);
    let mut instances =
        client.follow::<InstanceItem>(RequestPath::instances(Some(namespace))?, true);
    let mut progress = ProgressDisplay::start(session.console);
    let mut connection = ConnectionNotices::default();
    let mut state = RolloutWait::new(target.clone());
    loop {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(deadline) => {
                drop(progress);
                let left = state.remaining_in_words();
                return Err(CliError::deadline(format!(
                    "{} is not gone yet: {left}", state.title()
                )).hinted(state.next_command()));
            }
            change = workloads.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                state.workload(change);
            }
            change = instances.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                state.instances(change.only(|item| item.status.workload == *name));
            }
        }
        if state.is_gone() {
            return Ok(());
        }
        progress.update(&format!("{name}: {}", state.remaining_in_words()));
    }
}

/// Waits until a namespace is gone.
pub(super) async fn until_namespace_gone(
    session: &CliSession<'_>,
    name: &str,
    deadline: Instant,
) -> Result<(), CliError> {
    let route = RequestPath::namespaces();
    let mut namespaces = session.client.follow::<NamespaceItem>(route, true);
    let mut progress = ProgressDisplay::start(session.console);
    let mut connection = ConnectionNotices::default();
    loop {
        progress.update(&format!("{name}: deleting"));
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(deadline) => {
                drop(progress);
                return Err(CliError::deadline(format!("namespace `{name}` is not gone yet"))
                    .hinted(format!("`katcall get workloads -n {name}` shows what is left")));
            }
            change = namespaces.next() => {
                let change = change?;
                connection.print_connection_change(&change, &progress);
                let gone = match change {
                    ListChange::Listed(items) => items.iter().all(|item| item.metadata.name != name),
                    ListChange::Deleted(item) => item.metadata.name == name,
                    ListChange::Changed(_) | ListChange::Interrupted(_) => false,
                };
                if gone {
                    return Ok(());
                }
            }
        }
    }
}

/// Waits until the data of volumes is gone.
pub(super) async fn until_volumes_gone(
    session: &CliSession<'_>,
    namespace: &str,
    volumes: impl IntoIterator<Item = VolumeItem>,
    deadline: Instant,
) -> Result<(), CliError> {
    // A volume that is created again meanwhile has another uid.
    let mut left: BTreeMap<String, VolumeItem> = volumes
        .into_iter()
        .map(|item| (item.metadata.uid.clone(), item))
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let route = RequestPath::volumes(Some(namespace))?;
    let mut changes = session.client.follow::<VolumeItem>(route, true);
    let mut progress = ProgressDisplay::start(session.console);
    let mut connection = ConnectionNotices::default();
    while !left.is_empty() {
        progress.update(&format!("{}: removing", volumes_in_words(&left)));
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(deadline) => {
                drop(progress);
                let verb = if left.len() == 1 { "is" } else { "are" };
                return Err(CliError::deadline(format!("{} {verb} not gone yet", volumes_in_words(&left)))
                    .hinted(format!("`katcall get volumes -n {namespace}` shows on which machine the data lies, and `katcall get nodes` whether that answers")));
            }
            change = changes.next() => match change {
                Ok(change) => {
                    connection.print_connection_change(&change, &progress);
                    match change {
                        ListChange::Listed(items) => left.retain(|uid, _| {
                            items.iter().any(|item| item.metadata.uid == *uid)
                        }),
                        ListChange::Deleted(item) => {
                            left.remove(&item.metadata.uid);
                        }
                        ListChange::Changed(item) => left.retain(|uid, before| {
                            before.key() != item.key() || *uid == item.metadata.uid
                        }),
                        ListChange::Interrupted(_) => {}
                    }
                }
                // The namespace was removed with the last of them.
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        }
    }
    Ok(())
}

/// Such as `web/data` or `3 volumes`.
fn volumes_in_words(left: &BTreeMap<String, VolumeItem>) -> String {
    let mut values = left.values();
    match (values.next(), left.len()) {
        (Some(only), 1) => format!("volume {}", plain(&only.key().1)),
        (_, count) => format!("{count} volumes"),
    }
}
