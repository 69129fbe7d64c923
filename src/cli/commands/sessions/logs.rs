//! `katcall logs`.

mod follow;
mod history;
mod printer;
mod resume;

use jiff::Timestamp;

use crate::{
    CliSession,
    args::LogsArgs,
    commands::{
        changing::job::{AwaitedRun, named_run},
        reading::get,
    },
    errors::CliError,
    output::plain,
    references::{self, INSTANCES, Reference},
    wait::AwaitedWorkload,
};
use follow::FollowedLogs;
use kat_bundle::nearest_name;
use kat_client::{ApiRefusal, Client, ClientError, JsonLines, RequestPath};
use kat_types::{
    api::{InstanceItem, InstancePhase, LogLine, LogQuery, WorkloadItem},
    resource::named_kind::NamedKind,
    store::jobs::RunAttempt,
};
use printer::LogPrinter;
use resume::Resume;

/// An instance whose log is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LoggedInstance {
    namespace: String,
    workload: String,
    id: String,
    /// The machine that it was on, if it is gone.
    gone_from: Option<String>,
    /// The machine of an instance of a run, which may leave before its log is asked for.
    machine: Option<String>,
}

impl LoggedInstance {
    fn of(item: &InstanceItem, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            workload: item.status.workload.clone(),
            id: item.metadata.name.clone(),
            gone_from: None,
            machine: None,
        }
    }
}

/// What a command's name stands for.
struct Selection {
    sources: Vec<LoggedInstance>,
    /// The name is a workload's: new instances of it join a followed log.
    of_workload: bool,
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &LogsArgs) -> Result<(), CliError> {
    let object = references::one(&arguments.name, INSTANCES, &arguments.namespace)?;
    let Selection {
        sources,
        of_workload,
    } = select(session, arguments, &object).await?;
    let query = LogQuery {
        follow: arguments.follow,
        since: arguments
            .since
            .map(|since| since.timestamp(Timestamp::now())),
        tail: arguments.tail,
        previous: arguments.previous,
        container: arguments.container.clone(),
        ..LogQuery::default()
    };
    // A single log that stays the only one needs no names.
    let names = arguments.all || sources.len() > 1 || (of_workload && arguments.follow);
    let printer = LogPrinter::new(session.console, arguments.timestamps, names);
    if !arguments.follow {
        history::show(session, &printer, sources, &query).await?;
        if !printer.has_printed()
            && let Some(note) = nothing_printed(arguments, &object)
        {
            session.console.note(&note);
        }
        return Ok(());
    }
    let newcomers = of_workload
        .then(|| RequestPath::workload_instances(&object.namespace, &object.name))
        .transpose()?;
    // A single log needs no merging, unless it has ended.
    let ended = |source: &LoggedInstance| source.gone_from.is_some();
    let merged = sources.len() > 1 || sources.iter().any(ended);
    let places = if merged {
        let mut places = history::merge(session, &printer, sources, &query)
            .await?
            .places;
        places.retain(|(source, _)| !ended(source));
        places
    } else {
        let unread = |source| (source, Resume::default());
        sources.into_iter().map(unread).collect()
    };
    let followed = FollowedLogs {
        places,
        merged,
        newcomers,
    };
    follow::run(session, &printer, followed, &query).await
}

/// What is said of a log without lines; `None` where that is no surprise, or was said already.
fn nothing_printed(arguments: &LogsArgs, object: &Reference) -> Option<String> {
    let name = plain(&object.name);
    match (arguments.previous, arguments.tail, arguments.since) {
        (true, ..) | (_, Some(0), _) => None,
        (false, _, Some(_)) => Some(format!("`{name}` has no lines since then")),
        (false, _, None) => Some(format!(
            "`{name}` has no lines: its program has written nothing, or the journal of its machine does not have them any more"
        )),
    }
}

/// The last lines of one instance of a workload.
pub(crate) async fn last_lines(
    client: &Client,
    of: &AwaitedWorkload,
    id: &str,
    most: u64,
) -> Result<Vec<String>, ClientError> {
    let source = LoggedInstance {
        namespace: of.namespace.clone(),
        workload: of.name.clone(),
        id: id.to_owned(),
        gone_from: None,
        machine: None,
    };
    let query = LogQuery {
        tail: Some(most),
        ..LogQuery::default()
    };
    let mut stream = open(client, &source, &query).await?;
    let mut lines = Vec::new();
    while let Some(line) = next_line(&mut stream).await? {
        lines.push(line.message);
    }
    Ok(lines)
}

/// The selected instances: those of a workload, the instance with the name, or one that is gone.
async fn select(
    session: &CliSession<'_>,
    arguments: &LogsArgs,
    object: &Reference,
) -> Result<Selection, CliError> {
    let (namespace, name) = (&object.namespace, &object.name);
    if object.kind == Some(NamedKind::Run) {
        return of_run(session, object).await;
    }
    let items = session.client.instances(Some(namespace)).await?.items;
    let mut instances = items
        .iter()
        .filter(|_| object.kind != Some(NamedKind::Workload));
    if let Some(item) = instances.find(|item| item.metadata.name == *name) {
        return Ok(Selection {
            sources: vec![LoggedInstance::of(item, namespace)],
            of_workload: false,
        });
    }
    if object.kind == Some(NamedKind::Instance) {
        return match gone_instance(session, namespace, name).await? {
            Some(sources) => Ok(Selection {
                sources,
                of_workload: false,
            }),
            None => Err(missing_instance(&items, namespace, name)),
        };
    }
    let mut found: Vec<&InstanceItem> = items
        .iter()
        .filter(|item| item.status.workload == *name)
        // Only a restarted instance has a previous run.
        .filter(|item| !arguments.previous || item.status.restarts > 0)
        .collect();
    found.sort_by_key(|item| (&item.metadata.creation_timestamp, &item.metadata.name));
    let mut sources: Vec<LoggedInstance> = found
        .iter()
        .map(|item| LoggedInstance::of(item, namespace))
        .collect();
    let runs = items.iter().any(|item| item.status.workload == *name);
    if runs && sources.is_empty() {
        return Err(CliError::failed(format!(
            "no instance of workload `{name}` was started again, so that none has an earlier run"
        ))
        .hinted(format!(
            "`katcall logs {name} -n {namespace} --gone` shows instances that are gone"
        )));
    }
    if !runs {
        // The error for a missing workload names what is there.
        match session.client.workload(namespace, name).await {
            Ok(_) => {}
            Err(error) => {
                let gone = match object.kind {
                    None if error.is_not_found() => gone_instance(session, namespace, name).await?,
                    _ => None,
                };
                return match gone {
                    Some(sources) => Ok(Selection {
                        sources,
                        of_workload: false,
                    }),
                    None => Err(missing(session, error, &items, namespace, name).await),
                };
            }
        }
    }
    // Of a workload without an instance, those that are gone are all there is.
    if arguments.gone || (!runs && !arguments.follow) {
        let gone = gone_instances(session, namespace, name).await?;
        sources.splice(0..0, gone);
    }
    if sources.is_empty() && !arguments.follow {
        return Err(
            CliError::failed(format!("workload `{name}` has no instances yet")).hinted(format!(
                "`katcall why workload {name} -n {namespace}` says why"
            )),
        );
    }
    Ok(Selection {
        sources,
        of_workload: true,
    })
}

/// The instances of a run, oldest first, whether they are there or gone.
async fn of_run(session: &CliSession<'_>, object: &Reference) -> Result<Selection, CliError> {
    let runs = session.client.runs(Some(&object.namespace)).await?.items;
    let run = named_run(runs, object)?;
    let items = session
        .client
        .instances(Some(&object.namespace))
        .await?
        .items;
    let sources: Vec<LoggedInstance> = run
        .status
        .attempts
        .iter()
        .map(|attempt| {
            let is_there = items
                .iter()
                .any(|item| item.metadata.name == attempt.instance);
            LoggedInstance {
                namespace: object.namespace.clone(),
                workload: run.spec.workload.clone(),
                id: attempt.instance.clone(),
                gone_from: (!is_there).then(|| attempt.node.clone()),
                machine: Some(attempt.node.clone()),
            }
        })
        .collect();
    if sources.is_empty() {
        return Err(
            CliError::failed(format!("{object} has no instance yet")).hinted(format!(
                "`katcall why workload {}` says why",
                run.spec.workload
            )),
        );
    }
    Ok(Selection {
        sources,
        of_workload: false,
    })
}

/// Prints the output of an instance of a run until the instance has ended. What cannot be read is a
/// warning: it does not change how the run ends.
pub(crate) async fn of_attempt(session: &CliSession<'_>, run: &AwaitedRun, attempt: &RunAttempt) {
    let printer = LogPrinter::new(session.console, false, false);
    let is_gone = match session
        .client
        .instance(&run.namespace, &attempt.instance)
        .await
    {
        Ok(_) => false,
        Err(error) => error.is_not_found(),
    };
    let source = LoggedInstance {
        namespace: run.namespace.clone(),
        workload: run.workload.clone(),
        id: attempt.instance.clone(),
        gone_from: is_gone.then(|| attempt.node.clone()),
        machine: Some(attempt.node.clone()),
    };
    let query = LogQuery {
        follow: !is_gone,
        ..LogQuery::default()
    };
    let printed = match is_gone {
        true => history::show(session, &printer, vec![source], &query).await,
        false => {
            let followed = FollowedLogs {
                places: vec![(source, Resume::default())],
                merged: false,
                newcomers: None,
            };
            follow::run(session, &printer, followed, &query).await
        }
    };
    if let Err(error) = printed {
        let words = plain(&error.to_string());
        let instance = &attempt.instance;
        session.console.warning(&format!(
            "the output of `{instance}` cannot be read: {words}"
        ));
    }
}

/// The instances of a workload that are gone, oldest first. Machines that do not answer are named.
async fn gone_instances(
    session: &CliSession<'_>,
    namespace: &str,
    workload: &str,
) -> Result<Vec<LoggedInstance>, CliError> {
    let asked = session.client.gone_instances(namespace, workload, None);
    let found = match asked.await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => {
            session.console.warning(
                "the leader's version does not know of instances that are gone; upgrade the cluster to read their lines",
            );
            return Ok(Vec::new());
        }
        Err(error) => return Err(error.into()),
    };
    for machine in &found.away {
        session.console.warning(&plain(&machine.message));
    }
    let mut sources = Vec::new();
    for one in found.items.into_iter().rev() {
        // An older leader passes on whatever a machine says.
        if RequestPath::logs(namespace, workload, &one.instance).is_err() {
            session.console.warning(&plain(&format!(
                "the machine `{}` had no instance `{}`: there is no such id",
                one.node, one.instance
            )));
            continue;
        }
        sources.push(LoggedInstance {
            namespace: namespace.to_owned(),
            workload: workload.to_owned(),
            id: one.instance,
            gone_from: Some(one.node),
            machine: None,
        });
    }
    Ok(sources)
}

/// The instance with this id, if it is gone: its id begins with its workload's name.
async fn gone_instance(
    session: &CliSession<'_>,
    namespace: &str,
    id: &str,
) -> Result<Option<Vec<LoggedInstance>>, CliError> {
    let Some((workload, _)) = id.rsplit_once('-') else {
        return Ok(None);
    };
    if session.client.workload(namespace, workload).await.is_err() {
        return Ok(None);
    }
    let mut gone = gone_instances(session, namespace, workload).await?;
    gone.retain(|one| one.id == id);
    Ok((!gone.is_empty()).then_some(gone))
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
        gone_from,
        machine,
    } = source;
    let query = LogQuery {
        // The API looks there if the instance is gone by now.
        node: gone_from.clone().or_else(|| machine.clone()),
        ..query.clone()
    };
    client.logs(namespace, workload, id, &query).await
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
