//! Follows logs, across disconnections, and with instances that are added and removed.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::mpsc;

use super::{LogPrinter, LoggedInstance, Resume, is_over, next_line, open};
use crate::{CliSession, errors::CliError};
use kat_client::{Client, ClientError, ListChange, RequestPath, RetryPauses};
use kat_types::api::{InstanceItem, LogLine, LogQuery};

/// Lines that are buffered; the servers wait when the buffer is full.
const BUFFER: usize = 256;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A message of a reader of one log.
enum LogMessage {
    Line(String, LogLine),
    Note(String),
    Ended(String, Result<(), ClientError>),
}

/// What is followed.
pub(crate) struct FollowedLogs {
    /// The place that was reached in each log.
    pub(crate) places: Vec<(LoggedInstance, Resume)>,
    /// Whether the lines before these places have been printed.
    pub(crate) merged: bool,
    /// The instances of a workload, of which new ones are added.
    pub(crate) newcomers: Option<RequestPath>,
}

/// Follows logs until all of them have ended, or without end where new instances are added.
pub(crate) async fn run(
    session: &CliSession<'_>,
    printer: &LogPrinter<'_>,
    followed: FollowedLogs,
    query: &LogQuery,
) -> Result<(), CliError> {
    let FollowedLogs {
        places,
        merged,
        newcomers,
    } = followed;
    let (sender, mut receiver) = mpsc::channel(BUFFER);
    let namespace = places.first().map(|(source, _)| source.namespace.clone());
    let mut tasks = tokio::task::JoinSet::new();
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut open = 0_usize;
    let mut instances = newcomers.map(|route| session.client.follow::<InstanceItem>(route, true));
    let alone = places.len() == 1 && instances.is_none();
    let mut begin = |source: LoggedInstance, place: Resume, query: LogQuery| {
        let (client, sender) = (session.client.clone(), sender.clone());
        tasks.spawn(async move { read(&client, source, place, query, &sender).await });
    };
    for (source, mut place) in places {
        known.insert(source.id.clone());
        open += 1;
        let mut query = query.clone();
        if merged {
            // Earlier lines have been printed; a log without earlier lines is read completely.
            query.tail = None;
            query.since = place.again().or(query.since);
        }
        begin(source, place, query);
    }
    loop {
        let joined = async {
            match &mut instances {
                Some(instances) => instances.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            news = receiver.recv() => {
                let Some(news) = news else { return Ok(()) };
                for news in in_order(news, &mut receiver) {
                    match news {
                        LogMessage::Line(id, line) => printer.print(&id, &line)?,
                        LogMessage::Note(text) => session.console.note(&text),
                        LogMessage::Ended(id, outcome) => {
                            match outcome {
                                Err(error) if alone || matches!(error.status(), Some(401 | 403)) => {
                                    return Err(error.into());
                                }
                                Err(error) => session.console.warning(&format!("the log of `{id}`: {error}")),
                                Ok(()) => session.console.note(&format!("the log of `{id}` has ended")),
                            }
                            open -= 1;
                            if open == 0 && instances.is_none() {
                                return Ok(());
                            }
                        }
                    }
                }
            }
            change = joined => {
                let items = match change? {
                    ListChange::Listed(items) => items,
                    ListChange::Changed(item) => vec![item],
                    ListChange::Deleted(_) | ListChange::Interrupted(_) => Vec::new(),
                };
                for item in items {
                    if known.insert(item.metadata.name.clone()) {
                        open += 1;
                        let namespace = item.metadata.namespace.clone().or_else(|| namespace.clone());
                        let source = LoggedInstance::of(&item, &namespace.unwrap_or_default());
                        let query = LogQuery {
                            follow: true,
                            container: query.container.clone(),
                            ..LogQuery::default()
                        };
                        begin(source, Resume::default(), query);
                    }
                }
            }
        }
    }
}

/// The messages that have arrived by now: lines sorted by time, with each instance's in its own
/// order, and notes in their place after them.
fn in_order(first: LogMessage, receiver: &mut mpsc::Receiver<LogMessage>) -> Vec<LogMessage> {
    let mut batch = vec![first];
    while batch.len() < BUFFER {
        match receiver.try_recv() {
            Ok(news) => batch.push(news),
            Err(_) => break,
        }
    }
    for lines in batch.split_mut(|news| !matches!(news, LogMessage::Line(..))) {
        lines.sort_by(|left, right| match (left, right) {
            (LogMessage::Line(_, left), LogMessage::Line(_, right)) => {
                left.timestamp.cmp(&right.timestamp)
            }
            _ => std::cmp::Ordering::Equal,
        });
    }
    batch
}

/// Reads one log, across disconnections, until its instance is gone or has ended.
async fn read(
    client: &Client,
    source: LoggedInstance,
    place: Resume,
    query: LogQuery,
    sender: &mpsc::Sender<LogMessage>,
) {
    let id = source.id.clone();
    let outcome = follow_one(client, &source, place, query, sender).await;
    // The error means that the receiver is gone.
    let _ = sender.send(LogMessage::Ended(id, outcome)).await;
}

async fn follow_one(
    client: &Client,
    source: &LoggedInstance,
    mut resume: Resume,
    mut query: LogQuery,
    sender: &mpsc::Sender<LogMessage>,
) -> Result<(), ClientError> {
    let mut pauses = RetryPauses::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut begun = false;
    // The instance was there: its machine may end the log before the API's list lacks the instance.
    let mut opened = false;
    // Each disconnection is reported once, however often it is retried.
    let mut told = false;
    loop {
        let trouble = match open(client, source, &query).await {
            Err(error) => Some(error),
            Ok(mut stream) => {
                opened = true;
                loop {
                    match next_line(&mut stream).await {
                        Err(error) => break Some(error),
                        Ok(None) => break None,
                        Ok(Some(line)) => {
                            begun = true;
                            told = false;
                            pauses.reset();
                            if !resume.is_new(line.timestamp) {
                                continue;
                            }
                            let news = LogMessage::Line(source.id.clone(), line);
                            if sender.send(news).await.is_err() {
                                return Ok(());
                            }
                        }
                    }
                }
            }
        };
        match trouble {
            Some(error) if opened && error.is_not_found() => return Ok(()),
            Some(error) if !error.is_passing() => return Err(error),
            Some(error) if !begun && matches!(error, ClientError::Unreachable { .. }) => {
                return Err(error);
            }
            Some(_) if told => {}
            Some(error) => {
                told = true;
                let text = format!(
                    "the log of `{}` broke off, trying again: {error}",
                    source.id
                );
                let _ = sender.send(LogMessage::Note(text)).await;
            }
            None if is_over(client, source).await => return Ok(()),
            None => {}
        }
        tokio::time::sleep(pauses.pause()).await;
        if let Some(since) = resume.again() {
            query.since = Some(since);
            query.tail = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::ApiTime;

    #[test]
    fn lines_that_came_together_are_shown_by_their_time() {
        let (sender, mut receiver) = mpsc::channel(BUFFER);
        let line = |id: &str, second: u8| {
            let line = LogLine {
                timestamp: ApiTime::parse(&format!("2026-01-01T00:00:0{second}Z")),
                ..LogLine::default()
            };
            LogMessage::Line(id.to_owned(), line)
        };
        for news in [
            line("a", 4),
            line("b", 2),
            line("b", 3),
            LogMessage::Note("a broke off".to_owned()),
            line("b", 1),
        ] {
            assert!(sender.try_send(news).is_ok());
        }
        let first = receiver.try_recv().unwrap_or_else(|_| unreachable!());
        let shown: Vec<String> = in_order(first, &mut receiver)
            .into_iter()
            .map(|news| match news {
                LogMessage::Line(id, line) => format!("{id} {}", line.timestamp),
                LogMessage::Note(text) | LogMessage::Ended(text, _) => text,
            })
            .collect();
        assert_eq!(
            shown,
            [
                "b 2026-01-01T00:00:02Z",
                "b 2026-01-01T00:00:03Z",
                "a 2026-01-01T00:00:04Z",
                "a broke off",
                "b 2026-01-01T00:00:01Z"
            ]
        );
    }
}
