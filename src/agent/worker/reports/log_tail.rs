//! The last log lines of a unit, for the message of a failure.

use std::time::Duration;

use futures_util::StreamExt;

use crate::worker::unit_state::instance_phase::{DUMPED, EXITED, KILLED, LoggedEnd};
use kat_systemd::{JournalQuery, LogEntry, LogSource, ServiceResult};
use kat_types::api::report_bounds::printable;

/// Journal entries that are read.
const ENTRIES: u64 = 40;
/// Additional entries for each run since the last judged one.
const ENTRIES_OF_A_RUN: u64 = 20;
/// Lines shown in a message.
const LINES: usize = 5;
/// Longest message in bytes.
const LONGEST: usize = 1024;
const LIMIT: Duration = Duration::from_secs(5);

/// Identifier of the manager's own entries.
const SYSTEMD: &str = "systemd";
/// Identifier of warnings of Podman's monitor, which a program that ends at once brings about.
const CONMON: &str = "conmon";
/// Prefix of the line in which Podman gives its error.
const PODMANS_ERROR: &str = "Error: ";
/// End of Podman's error where it does not have the image of a container: `storage.ErrImageUnknown`
/// of containers/storage.
const IMAGE_UNKNOWN: &str = "image not known";

/// The last log lines of a unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogTail {
    /// The last lines, joined by ` | `.
    pub lines: String,
    /// Podman's error, if Podman failed in this run.
    pub podman_error: Option<String>,
    /// Whether `podman_error` says that Podman did not have the image.
    pub image_unknown: bool,
    /// The container hook's error, if the hook ended this run.
    pub hook_error: Option<String>,
    /// Whether `hook_error` says that `kat-net` killed the instance at its deadline.
    pub fenced: bool,
    /// Runs since the last judged end that the hook ended or whose start Podman lost. Of the run
    /// that has just ended only a failure of the hook is counted: the unit's own state shows the
    /// rest.
    pub excused: u32,
    /// Runs between the last judged end and the last start whose image Podman did not have.
    pub without_image: u32,
    /// How the run before the last start ended, as systemd logged it.
    pub run_before: Option<LoggedEnd>,
}

/// What is known of a unit's runs. Times are microseconds of the monotonic clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UnitRuns {
    /// Start of the last main process.
    pub started: u64,
    /// End of the last main process; 0 while it runs.
    pub ended: u64,
    /// Until when restarts were counted: the last judged end, or the start of a later run.
    pub counted: u64,
    /// Whether Podman lost the start that led to an end at that time.
    pub judged_lost: bool,
    /// Restarts since then.
    pub missed: u32,
}

/// Reads the last log lines of a unit. An unreadable journal gives an empty tail.
///
/// Podman calls the hook before conmon takes Podman's place as the main process: an entry of the
/// hook from before the main process started belongs to an earlier run.
pub(crate) async fn read(logs: &dyn LogSource, uid: u32, unit: &str, runs: UnitRuns) -> LogTail {
    let entries = ENTRIES + ENTRIES_OF_A_RUN * u64::from(runs.missed.min(100));
    let query = JournalQuery {
        this_boot: true,
        ..query(uid, unit, Some(entries))
    };
    let Ok(entries) = tokio::time::timeout(LIMIT, collect(logs, &query)).await else {
        return LogTail::default();
    };
    let newest = entries.iter().rev();
    let hook_error = newest
        .clone()
        .find(|entry| entry.hook_error && entry.monotonic_us >= runs.started);
    let podman_error = newest
        .clone()
        .filter(|entry| entry.monotonic_us >= runs.started)
        .find_map(podmans_error);
    let failures = entries
        .iter()
        .filter(|entry| entry.hook_error && entry.monotonic_us > runs.counted)
        .count();
    // systemd logs this after the end.
    let lost = entries
        .iter()
        .filter(|entry| is_lost_start(entry) && entry.monotonic_us > runs.counted)
        .filter(|entry| runs.ended == 0 || entry.monotonic_us < runs.ended)
        .count()
        .saturating_sub(usize::from(runs.judged_lost));
    let without_image = entries
        .iter()
        .filter(|entry| entry.monotonic_us > runs.counted && entry.monotonic_us < runs.started)
        .filter_map(podmans_error)
        .filter(|words| words.ends_with(IMAGE_UNKNOWN))
        .count();
    let mut output: Vec<String> = newest
        .clone()
        .filter(|entry| entry.from_program)
        .take(LINES)
        .map(|entry| entry.text().trim().to_owned())
        .collect();
    if output.is_empty() {
        // The unit's state already shows what systemd logs about the unit.
        output = newest
            .filter(|entry| entry.identifier != SYSTEMD && entry.identifier != CONMON)
            .map(|entry| entry.text().trim().to_owned())
            .filter(|line| !is_container_id(line))
            .take(2)
            .collect();
    }
    output.reverse();
    LogTail {
        lines: shorten(&output.join(" | ")),
        image_unknown: podman_error
            .as_ref()
            .is_some_and(|words| words.ends_with(IMAGE_UNKNOWN)),
        podman_error,
        hook_error: hook_error.map(LogEntry::text),
        fenced: hook_error.is_some_and(|entry| entry.fenced),
        excused: u32::try_from(failures + lost).unwrap_or(u32::MAX),
        without_image: u32::try_from(without_image).unwrap_or(u32::MAX),
        run_before: run_before(&entries, runs.started),
    }
}

/// How the run before `started` ended. systemd logs how a process ended, and the unit's result after
/// that. A user's manager logs no success: the run whose start comes next was one, unless the unit's
/// result says otherwise.
fn run_before(entries: &[LogEntry], started: u64) -> Option<LoggedEnd> {
    let mut result = None;
    let said = |entry: &&LogEntry| {
        !entry.from_program && entry.identifier == SYSTEMD && entry.monotonic_us < started
    };
    for text in entries.iter().rev().filter(said).map(LogEntry::text) {
        if text.ends_with(": Deactivated successfully.") {
            return Some(LoggedEnd {
                code: EXITED,
                status: 0,
                result: ServiceResult::Success,
            });
        }
        if text.starts_with("Started ") {
            return result.is_none().then_some(LoggedEnd {
                code: EXITED,
                status: 0,
                result: ServiceResult::Success,
            });
        }
        if let Some(word) = between(&text, "Failed with result '", "'") {
            result.get_or_insert_with(|| ServiceResult::from(word));
        }
        if let Some((code, status)) = main_exit(&text) {
            return Some(LoggedEnd {
                code,
                status,
                result: result.unwrap_or_default(),
            });
        }
    }
    None
}

/// Code and status of `UNIT: Main process exited, code=exited, status=3/NOTIMPLEMENTED`.
fn main_exit(text: &str) -> Option<(i32, i32)> {
    text.contains(": Main process exited, ").then_some(())?;
    let code = match between(text, "code=", ",")? {
        "exited" => EXITED,
        "killed" => KILLED,
        "dumped" => DUMPED,
        _ => return None,
    };
    Some((code, between(text, "status=", "/")?.parse().ok()?))
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    let (found, _) = rest.split_once(after)?;
    Some(found)
}

/// Whether the line is the id that `podman run --detach` prints.
fn is_container_id(line: &str) -> bool {
    line.len() == 64 && line.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Podman's error, without its prefix, if the entry is one.
fn podmans_error(entry: &LogEntry) -> Option<String> {
    if entry.from_program || entry.identifier == SYSTEMD {
        return None;
    }
    let text = entry.text();
    text.strip_prefix(PODMANS_ERROR)
        .map(|words| shorten(words.trim()))
}

/// Whether systemd logged that a start ended with the result [`ServiceResult::Protocol`].
fn is_lost_start(entry: &LogEntry) -> bool {
    !entry.from_program
        && entry.identifier == SYSTEMD
        && entry
            .text()
            .ends_with(&format!("result '{}'.", ServiceResult::Protocol))
}

/// A query for the present entries of a user's unit, which does not follow.
pub(crate) fn query(uid: u32, unit: &str, tail: Option<u64>) -> JournalQuery {
    JournalQuery {
        uid,
        unit: unit.to_owned(),
        tail,
        ..JournalQuery::default()
    }
}

/// All entries of a query that does not follow; unreadable entries are left out.
pub(crate) async fn collect(logs: &dyn LogSource, query: &JournalQuery) -> Vec<LogEntry> {
    logs.entries(query)
        .filter_map(|entry| std::future::ready(entry.ok()))
        .collect()
        .await
}

/// The last [`LONGEST`] bytes, cut between characters. Control characters are replaced, since the
/// output of programs is stored and shown on terminals.
pub(crate) fn shorten(text: &str) -> String {
    let text = printable(text);
    let over = text.len().saturating_sub(LONGEST);
    let start = (over..=text.len())
        .find(|position| text.is_char_boundary(*position))
        .unwrap_or(text.len());
    text.get(start..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use kat_systemd::ProgramStream;

    use super::*;

    fn entry(monotonic_us: u64, identifier: &str, text: &str) -> LogEntry {
        LogEntry {
            time_us: monotonic_us,
            monotonic_us,
            message: text.as_bytes().to_vec(),
            priority: 5,
            identifier: identifier.to_owned(),
            stream: ProgramStream::Stderr,
            container_name: None,
            container_id: None,
            invocation_id: None,
            from_program: false,
            partial: false,
            hook_error: false,
            fenced: false,
            podman_event: false,
            cursor: String::new(),
        }
    }

    #[test]
    fn the_end_before_the_last_start_is_the_one_that_systemd_logged() {
        let exited = entry(
            10,
            SYSTEMD,
            "web.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED",
        );
        let killed = entry(
            20,
            SYSTEMD,
            "web.service: Main process exited, code=killed, status=9/KILL",
        );
        let oom = entry(21, SYSTEMD, "web.service: Failed with result 'oom-kill'.");
        let ended_well = entry(30, SYSTEMD, "web.service: Deactivated successfully.");
        let of_program = LogEntry {
            from_program: true,
            ..entry(
                40,
                SYSTEMD,
                "x: Main process exited, code=exited, status=4/n/a",
            )
        };
        let of_podman = entry(
            41,
            "podman",
            "x: Main process exited, code=exited, status=5/n/a",
        );
        let all = [exited, killed, oom, ended_well, of_program, of_podman];
        let seen =
            |started: u64| run_before(&all, started).map(|end| (end.code, end.status, end.result));
        assert_eq!(seen(10), None);
        assert_eq!(seen(15), Some((EXITED, 3, ServiceResult::default())));
        assert_eq!(seen(25), Some((KILLED, 9, ServiceResult::OomKill)));
        assert_eq!(seen(50), Some((EXITED, 0, ServiceResult::Success)));
    }

    #[test]
    fn an_end_with_success_is_not_taken_for_the_failure_of_an_earlier_run() {
        let said = |at: u64, text: &str| entry(at, SYSTEMD, text);
        let restarts = "web.service: Scheduled restart job, restart counter is at 1.";
        let all = [
            said(11, "Started web.service - KAT default/web-aaaaa."),
            said(
                20,
                "web.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED",
            ),
            said(21, "web.service: Failed with result 'exit-code'."),
            said(22, restarts),
            said(30, "Starting web.service - KAT default/web-aaaaa..."),
            said(32, "Started web.service - KAT default/web-aaaaa."),
            // Of the success at 40 there is no entry.
            said(42, restarts),
            said(50, "Starting web.service - KAT default/web-aaaaa..."),
            said(52, "Started web.service - KAT default/web-aaaaa."),
            said(60, "web.service: Failed with result 'timeout'."),
            said(70, "Starting web.service - KAT default/web-aaaaa..."),
        ];
        let seen =
            |started: u64| run_before(&all, started).map(|end| (end.code, end.status, end.result));
        assert_eq!(
            seen(31),
            Some((EXITED, 3, ServiceResult::from("exit-code")))
        );
        assert_eq!(seen(51), Some((EXITED, 0, ServiceResult::Success)));
        assert_eq!(seen(71), None, "how its program ended is not known");
    }
}
