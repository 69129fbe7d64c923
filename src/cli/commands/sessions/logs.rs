//! `katcall logs`.

mod follow;
mod history;
mod printer;
mod resume;

use jiff::Timestamp;

use crate::{
    CliSession,
    args::LogsArgs,
    commands::reading::get,
    errors::CliError,
    references::{self, INSTANCES, Reference},
};
use kat_bundle::nearest_name;
use kat_client::{ApiRefusal, Client, ClientError, JsonLines, RequestPath};
use kat_types::{
    api::{InstanceItem, InstancePhase, LogLine, LogQuery, WorkloadItem},
    resource::named_kind::NamedKind,
};
use printer::LogPrinter;
use resume::Resume;

/// An instance whose log is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LoggedInstance {
    namespace: String,
    workload: String,
    id: String,
}

impl LoggedInstance {
    fn of(item: &InstanceItem, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            workload: item.status.workload.clone(),
            id: item.metadata.name.clone(),
        }
    }
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &LogsArgs) -> Result<(), CliError> {
    let object = references::one(&arguments.name, INSTANCES, &arguments.namespace)?;
    let (sources, of_workload) = sources(session, arguments, &object).await?;
    let query = LogQuery {
        follow: arguments.follow,
        since: arguments
            .since
            .map(|since| since.timestamp(Timestamp::now())),
        tail: arguments.tail,
        previous: arguments.previous,
        container: arguments.container.clone(),
    };
    let printer = LogPrinter::new(session.console, arguments.timestamps, arguments.all);
    if !arguments.follow {
        return history::show(session, &printer, sources, &query).await;
    }
    let newcomers = (arguments.all && of_workload)
        .then(|| RequestPath::workload_instances(&object.namespace, &object.name))
        .transpose()?;
    // A single log needs no merging.
    let places = if sources.len() > 1 {
        history::merge(session, &printer, sources, &query)
            .await?
            .places
    } else {
        let unread = |source| (source, Resume::default());
        sources.into_iter().map(unread).collect()
    };
    follow::run(session, &printer, places, &query, newcomers).await
}

/// The selected instances, and whether the name is a workload's.
async fn sources(
    session: &CliSession<'_>,
    arguments: &LogsArgs,
    object: &Reference,
) -> Result<(Vec<LoggedInstance>, bool), CliError> {
    let (namespace, name) = (&object.namespace, &object.name);
    let is_instance = object.kind != Some(NamedKind::Workload);
    let is_workload = object.kind != Some(NamedKind::Instance);
    let items = session.client.instances(Some(namespace)).await?.items;
    let mut named = items.iter().filter(|_| is_instance);
    if let Some(item) = named.find(|item| item.metadata.name == *name) {
        return Ok((vec![LoggedInstance::of(item, namespace)], false));
    }
    let mut found: Vec<&InstanceItem> = items
        .iter()
        .filter(|item| is_workload && item.status.workload == *name)
        .collect();
    found.sort_by_key(|item| {
        let running = item.status.phase == InstancePhase::Running;
        let created = &item.metadata.creation_timestamp;
        // Only a restarted instance has a previous run.
        let first_run = arguments.previous && item.status.restarts == 0;
        let newest = std::cmp::Reverse(created);
        (first_run, !running, newest, &item.metadata.name)
    });
    let Some(first) = found.first() else {
        if !is_workload {
            return Err(missing_instance(&items, namespace, name));
        }
        let follows = arguments.follow && arguments.all;
        return match session.client.workload(namespace, name).await {
            Ok(_) if follows => Ok((Vec::new(), true)),
            Ok(_) => Err(
                CliError::failed(format!("workload `{name}` has no instances yet")).hinted(
                    format!("`katcall describe workload {name} -n {namespace}` says why"),
                ),
            ),
            Err(error) => Err(missing(session, error, &items, namespace, name).await),
        };
    };
    if arguments.all {
        let all = found.iter().map(|item| LoggedInstance::of(item, namespace));
        return Ok((all.collect(), true));
    }
    if found.len() > 1 {
        session.console.note(&format!(
            "`{name}` has {} instances; this is `{}`, and `--all` shows all",
            found.len(),
            first.metadata.name
        ));
    }
    Ok((vec![LoggedInstance::of(first, namespace)], true))
}

/// The error for a name that is neither a workload's nor an instance's.
async fn missing(
    session: &CliSession<'_>,
    error: ClientError,
    items: &[InstanceItem],
    namespace: &str,
    name: &str,
) -> CliError {
    if !error.is_not_found() {
        return error.into();
    }
    let ids = items.iter().map(|item| item.metadata.name.as_str());
    match nearest_name(name, ids) {
        Some(near) => CliError::not_found(format!(
            "there is no workload or instance `{name}` in namespace `{namespace}`"
        ))
        .hinted(format!("did you mean `{near}`?")),
        None => get::missing::<WorkloadItem>(session, error, Some(namespace), name).await,
    }
}

/// The error for an instance that does not exist.
fn missing_instance(items: &[InstanceItem], namespace: &str, name: &str) -> CliError {
    let error = CliError::not_found(format!(
        "there is no instance `{name}` in namespace `{namespace}`"
    ));
    let ids = items.iter().map(|item| item.metadata.name.as_str());
    match nearest_name(name, ids) {
        Some(near) => error.hinted(format!("did you mean `{near}`?")),
        None => error,
    }
}

async fn open(
    client: &Client,
    source: &LoggedInstance,
    query: &LogQuery,
) -> Result<JsonLines<LogLine>, ClientError> {
    let LoggedInstance {
        namespace,
        workload,
        id,
    } = source;
    client.logs(namespace, workload, id, query).await
}

/// The next line; an error when the server ended the log with one.
async fn next_line(stream: &mut JsonLines<LogLine>) -> Result<Option<LogLine>, ClientError> {
    match stream.next().await? {
        Some(LogLine {
            error: Some(body), ..
        }) => Err(ClientError::Refused(Box::new(ApiRefusal::of_stream(body)))),
        line => Ok(line),
    }
}
/// Whether no more lines can follow.
async fn is_over(client: &Client, source: &LoggedInstance) -> bool {
    match client.instance(&source.namespace, &source.id).await {
        Ok(item) => matches!(
            item.status.phase,
            InstancePhase::Stopped | InstancePhase::Failed | InstancePhase::Succeeded
        ),
        Err(error) => error.is_not_found(),
    }
}
