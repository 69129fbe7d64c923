//! The last words of a unit, for the reason of a failure.

use std::time::Duration;

use futures_util::StreamExt;

use crate::systemd::{LogEntry, LogQuery, LogSource};

/// Lines shown in a reason.
const LINES: usize = 5;
/// Longest reason, in bytes.
const LONGEST: usize = 1024;
/// Longest wait for the journal.
const LIMIT: Duration = Duration::from_secs(5);

/// What a unit said last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    /// The last lines, joined by ` | `.
    pub lines: String,
    /// The container hook's own words, if it failed after the program last ran.
    pub hook_error: Option<String>,
}

/// Reads the last words of a unit. An unreadable journal gives an empty tail.
pub async fn read(logs: &dyn LogSource, uid: u32, unit: &str) -> Tail {
    let query = query(uid, unit, Some(40));
    let Ok(entries) = tokio::time::timeout(LIMIT, collect(logs, &query)).await else {
        return Tail::default();
    };
    let last_hook_error = entries.iter().rposition(|entry| entry.hook_error);
    let last_output = entries.iter().rposition(|entry| entry.from_program);
    let hook_error = last_hook_error
        .filter(|position| last_output.is_none_or(|output| output < *position))
        .and_then(|position| entries.get(position))
        .map(LogEntry::text);
    let newest = entries.iter().rev();
    let mut output: Vec<String> = newest
        .clone()
        .filter(|entry| entry.from_program)
        .take(LINES)
        .map(|entry| entry.text().trim().to_owned())
        .collect();
    if output.is_empty() {
        output = newest
            .take(2)
            .map(|entry| entry.text().trim().to_owned())
            .collect();
    }
    output.reverse();
    Tail {
        lines: shorten(&output.join(" | ")),
        hook_error,
    }
}

/// Asks for the entries of a unit of a user that are there now.
pub fn query(uid: u32, unit: &str, tail: Option<u64>) -> LogQuery {
    LogQuery {
        uid,
        unit: unit.to_owned(),
        since: None,
        tail,
        after_cursor: None,
        follow: false,
        program_output_only: false,
    }
}

/// All entries of a query that does not follow; what can't be read is left out.
pub async fn collect(logs: &dyn LogSource, query: &LogQuery) -> Vec<LogEntry> {
    logs.entries(query)
        .filter_map(|entry| std::future::ready(entry.ok()))
        .collect()
        .await
}

/// At most [`LONGEST`] bytes, the end of it, cut between characters.
pub fn shorten(text: &str) -> String {
    let over = text.len().saturating_sub(LONGEST);
    let start = (over..=text.len())
        .find(|position| text.is_char_boundary(*position))
        .unwrap_or(text.len());
    text.get(start..).unwrap_or_default().to_owned()
}
