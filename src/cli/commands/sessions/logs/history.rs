//! Prints the existing lines of several instances in the order of time.

use super::{LogPrinter, LoggedInstance, Resume, next_line, open};
use crate::{
    CliSession,
    errors::{CliError, CliExitCode},
};
use kat_client::{ClientError, JsonLines};
use kat_types::api::{LogLine, LogQuery};

/// The result of printing.
pub(crate) struct PrintedHistory {
    /// The place reached in each log, including logs that could not be read.
    pub(crate) places: Vec<(LoggedInstance, Resume)>,
    /// Number of logs that could not be read, and the first error.
    failed: usize,
    reason: Option<ClientError>,
}

/// A log that is being read.
struct LogHistory {
    source: LoggedInstance,
    stream: JsonLines<LogLine>,
    line: LogLine,
    place: Resume,
}

/// Prints all logs and ends. Logs that can't be read are reported.
pub(crate) async fn show(
    session: &CliSession<'_>,
    printer: &LogPrinter<'_>,
    sources: Vec<LoggedInstance>,
    query: &LogQuery,
) -> Result<(), CliError> {
    let wanted = sources.len();
    let shown = merge(session, printer, sources, query).await?;
    match shown.reason {
        None => Ok(()),
        Some(reason) if shown.failed == wanted && wanted == 1 => Err(reason.into()),
        Some(_) => Err(CliError::Said {
            exit: CliExitCode::Unreachable,
            message: format!("{} of {wanted} logs could not be read", shown.failed),
            hint: None,
        }),
    }
}

/// Prints all existing lines.
pub(crate) async fn merge(
    session: &CliSession<'_>,
    printer: &LogPrinter<'_>,
    sources: Vec<LoggedInstance>,
    query: &LogQuery,
) -> Result<PrintedHistory, CliError> {
    let query = LogQuery {
        follow: false,
        ..query.clone()
    };
    let alone = sources.len() == 1;
    let mut shown = PrintedHistory {
        places: Vec::new(),
        failed: 0,
        reason: None,
    };
    let mut readers = Vec::new();
    for source in sources {
        let beginning = async {
            let mut stream = open(&session.client, &source, &query).await?;
            let line = next_line(&mut stream).await?;
            Ok(line.map(|line| (stream, line)))
        };
        match beginning.await {
            Ok(Some((stream, line))) => readers.push(LogHistory {
                source,
                stream,
                line,
                place: Resume::default(),
            }),
            Ok(None) => {
                if query.previous {
                    session.console.note(&format!(
                        "`{}` has no lines of an earlier run: it has had none (RESTARTS of `katcall get instances`), or its program wrote nothing",
                        source.id
                    ));
                }
                shown.places.push((source, Resume::default()));
            }
            Err(error) => {
                shown.miss(session, alone, &source, error)?;
                shown.places.push((source, Resume::default()));
            }
        }
    }
    loop {
        let first = readers
            .iter()
            .enumerate()
            .min_by(|(_, left), (_, right)| left.line.timestamp.cmp(&right.line.timestamp))
            .map(|(index, _)| index);
        let Some(index) = first else {
            return Ok(shown);
        };
        let Some(reader) = readers.get_mut(index) else {
            return Ok(shown);
        };
        printer.print(&reader.source.id, &reader.line)?;
        reader.place.is_new(reader.line.timestamp);
        match next_line(&mut reader.stream).await {
            Ok(Some(next)) => reader.line = next,
            ended => {
                let reader = readers.remove(index);
                if let Err(error) = ended {
                    shown.miss(session, alone, &reader.source, error)?;
                }
                shown.places.push((reader.source, reader.place));
            }
        }
    }
}

impl PrintedHistory {
    /// Reports a log that can't be read, or not to its end. That is an error where no other log is
    /// printed, or where the cluster does not answer or refuses.
    fn miss(
        &mut self,
        session: &CliSession<'_>,
        alone: bool,
        source: &LoggedInstance,
        error: ClientError,
    ) -> Result<(), ClientError> {
        let of_machine = error.is_machine_away() || matches!(error.status(), Some(404 | 503));
        if alone || !of_machine {
            return Err(error);
        }
        session
            .console
            .warning(&format!("the log of `{}`: {error}", source.id));
        self.failed += 1;
        self.reason.get_or_insert(error);
        Ok(())
    }
}
