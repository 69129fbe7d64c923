//! `katcall logs`.

mod resume;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{Session, args::Logs, errors::CliError, get, suggest};
use crate::api::{
    client::{Backoff, Change, Client, ClientError, JsonLines, LogQuery, Refusal, Route},
    types::{InstanceItem, InstancePhase, LogLine, WorkloadItem},
};
use resume::Resume;

/// Lines that wait to be printed; the servers wait when it is full.
const BUFFER: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Whose log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    namespace: String,
    workload: String,
    id: String,
}

impl Source {
    fn of(item: &InstanceItem, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            workload: item.status.workload.clone(),
            id: item.metadata.name.clone(),
        }
    }
}

pub(super) async fn run(session: &Session<'_>, arguments: &Logs) -> Result<(), CliError> {
    let namespace = &arguments.namespace.namespace;
    let (sources, of_workload) = sources(session, arguments).await?;
    let query = LogQuery {
        follow: arguments.follow,
        since: arguments
            .since
            .map(|since| since.timestamp(Timestamp::now()).to_string()),
        tail: arguments.tail,
    };
    let printer = Printer {
        session,
        timestamps: arguments.timestamps,
        names: arguments.all,
    };
    if !arguments.follow {
        return merge(session, &printer, sources, &query).await;
    }
    let newcomers = (arguments.all && of_workload)
        .then(|| Route::workload_instances(namespace, &arguments.name))
        .transpose()?;
    follow(session, &printer, sources, &query, newcomers).await
}

/// The instances that are meant, and whether a workload was named.
async fn sources(session: &Session<'_>, arguments: &Logs) -> Result<(Vec<Source>, bool), CliError> {
    let (namespace, name) = (&arguments.namespace.namespace, &arguments.name);
    let items = session.client.instances(Some(namespace)).await?.items;
    if let Some(item) = items.iter().find(|item| item.metadata.name == *name) {
        return Ok((vec![Source::of(item, namespace)], false));
    }
    let mut found: Vec<&InstanceItem> = items
        .iter()
        .filter(|item| item.status.workload == *name)
        .collect();
    found.sort_by_key(|item| {
        let running = item.status.phase == InstancePhase::Running;
        let created = &item.metadata.creation_timestamp;
        (!running, std::cmp::Reverse(created), &item.metadata.name)
    });
    let Some(first) = found.first() else {
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
        let all = found.iter().map(|item| Source::of(item, namespace));
        return Ok((all.collect(), true));
    }
    if found.len() > 1 {
        session.console.note(&format!(
            "`{name}` has {} instances; this is `{}`, and `--all` shows all",
            found.len(),
            first.metadata.name
        ));
    }
    Ok((vec![Source::of(first, namespace)], true))
}

/// The name is neither a workload's nor an instance's.
async fn missing(
    session: &Session<'_>,
    error: ClientError,
    items: &[InstanceItem],
    namespace: &str,
    name: &str,
) -> CliError {
    if !error.is_not_found() {
        return error.into();
    }
    let ids = items.iter().map(|item| item.metadata.name.as_str());
    match suggest::nearest(name, ids) {
        Some(near) => CliError::not_found(format!(
            "there is no workload or instance `{name}` in namespace `{namespace}`"
        ))
        .hinted(format!("did you mean `{near}`?")),
        None => get::missing::<WorkloadItem>(session, error, Some(namespace), name).await,
    }
}

struct Printer<'run> {
    session: &'run Session<'run>,
    timestamps: bool,
    names: bool,
}

impl Printer<'_> {
    fn print(&self, id: &str, line: &LogLine) -> Result<(), CliError> {
        let mut text = String::with_capacity(line.message.len() + 64);
        if self.names {
            text.push_str(id);
            text.push_str(" | ");
        }
        if self.timestamps {
            text.push_str(&line.timestamp);
            text.push(' ');
        }
        text.push_str(&line.message);
        text.push('\n');
        self.session.console.print(&text)
    }
}

/// What is there now, of all of them, in the order of time.
async fn merge(
    session: &Session<'_>,
    printer: &Printer<'_>,
    sources: Vec<Source>,
    query: &LogQuery,
) -> Result<(), CliError> {
    let mut streams = Vec::new();
    for source in sources {
        let mut stream = open(&session.client, &source, query).await?;
        if let Some(line) = next_line(&mut stream).await? {
            streams.push((line, source.id, stream));
        }
    }
    loop {
        let first = streams
            .iter()
            .enumerate()
            .min_by(|(_, left), (_, right)| left.0.timestamp.cmp(&right.0.timestamp))
            .map(|(index, _)| index);
        let Some((line, id, stream)) = first.and_then(|index| streams.get_mut(index)) else {
            return Ok(());
        };
        printer.print(id, line)?;
        match next_line(stream).await? {
            Some(next) => *line = next,
            None => {
                let ended = id.clone();
                streams.retain(|(_, id, _)| *id != ended);
            }
        }
    }
}

async fn open(
    client: &Client,
    source: &Source,
    query: &LogQuery,
) -> Result<JsonLines<LogLine>, ClientError> {
    let Source {
        namespace,
        workload,
        id,
    } = source;
    client.logs(namespace, workload, id, query).await
}

/// The next line; an error when the server ended the log and says why.
async fn next_line(stream: &mut JsonLines<LogLine>) -> Result<Option<LogLine>, ClientError> {
    match stream.next().await? {
        Some(LogLine {
            error: Some(body), ..
        }) => Err(ClientError::Refused(Box::new(Refusal::of_stream(body)))),
        line => Ok(line),
    }
}

/// What a reader of one log tells.
enum News {
    Line(String, LogLine),
    Note(String),
    Ended(String, Result<(), ClientError>),
}

/// Everything from now on. New instances of the workload join when `newcomers` is given.
async fn follow(
    session: &Session<'_>,
    printer: &Printer<'_>,
    sources: Vec<Source>,
    query: &LogQuery,
    newcomers: Option<Route>,
) -> Result<(), CliError> {
    let (sender, mut receiver) = mpsc::channel(BUFFER);
    let namespace = sources.first().map(|source| source.namespace.clone());
    let mut tasks = tokio::task::JoinSet::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut open = 0_usize;
    let mut instances = newcomers.map(|route| session.client.follow::<InstanceItem>(route, true));
    let mut begin = |source: Source, query: LogQuery| {
        let (client, sender) = (session.client.clone(), sender.clone());
        tasks.spawn(async move { read(&client, source, query, &sender).await });
    };
    for source in sources {
        known.insert(source.id.clone());
        open += 1;
        begin(source, query.clone());
    }
    loop {
        let joined = async {
            match &mut instances {
                Some(instances) => instances.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = receiver.recv() => match news {
                None => return Ok(()),
                Some(News::Line(id, line)) => printer.print(&id, &line)?,
                Some(News::Note(text)) => session.console.note(&text),
                Some(News::Ended(id, outcome)) => {
                    outcome?;
                    open -= 1;
                    session.console.note(&format!("the log of `{id}` has ended"));
                    if open == 0 && instances.is_none() {
                        return Ok(());
                    }
                }
            },
            change = joined => {
                let items = match change? {
                    Change::Listed(items) => items,
                    Change::Changed(item) => vec![item],
                    Change::Deleted(_) | Change::Interrupted(_) => Vec::new(),
                };
                for item in items {
                    if known.insert(item.metadata.name.clone()) {
                        open += 1;
                        let namespace = item.metadata.namespace.clone().or_else(|| namespace.clone());
                        let source = Source::of(&item, &namespace.unwrap_or_default());
                        begin(source, LogQuery { follow: true, ..LogQuery::default() });
                    }
                }
            }
        }
    }
}

/// Reads one log, through breaks of the connection, until its instance is gone or done.
async fn read(client: &Client, source: Source, query: LogQuery, sender: &mpsc::Sender<News>) {
    let id = source.id.clone();
    let outcome = follow_one(client, &source, query, sender).await;
    // Without a reader there is nobody to tell.
    let _ = sender.send(News::Ended(id, outcome)).await;
}

async fn follow_one(
    client: &Client,
    source: &Source,
    mut query: LogQuery,
    sender: &mpsc::Sender<News>,
) -> Result<(), ClientError> {
    let mut resume = Resume::default();
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut begun = false;
    loop {
        let trouble = match open(client, source, &query).await {
            Err(error) => Some(error),
            Ok(mut stream) => loop {
                match next_line(&mut stream).await {
                    Err(error) => break Some(error),
                    Ok(None) => break None,
                    Ok(Some(line)) => {
                        begun = true;
                        backoff.reset();
                        if !resume.is_new(&line.timestamp) {
                            continue;
                        }
                        let news = News::Line(source.id.clone(), line);
                        if sender.send(news).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            },
        };
        match trouble {
            Some(error) if begun && error.is_not_found() => return Ok(()),
            Some(error) if !error.is_passing() => return Err(error),
            Some(error) if !begun && matches!(error, ClientError::Unreachable { .. }) => {
                return Err(error);
            }
            Some(error) => {
                let text = format!(
                    "the log of `{}` broke off, trying again: {error}",
                    source.id
                );
                let _ = sender.send(News::Note(text)).await;
            }
            None if is_over(client, source).await => return Ok(()),
            None => {}
        }
        tokio::time::sleep(backoff.pause()).await;
        if let Some(since) = resume.again() {
            query.since = Some(since);
            query.tail = None;
        }
    }
}

/// Nothing more will be printed.
async fn is_over(client: &Client, source: &Source) -> bool {
    match client.instance(&source.namespace, &source.id).await {
        Ok(item) => matches!(
            item.status.phase,
            InstancePhase::Stopped | InstancePhase::Failed | InstancePhase::Succeeded
        ),
        Err(error) => error.is_not_found(),
    }
}
