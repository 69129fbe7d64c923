//! A journal entry, parsed from a line of `journalctl -o json`.

use std::collections::BTreeMap;

use serde_json::Value;

use kat_types::machine::network::{FENCED_JOURNAL_VALUE, HOOK_JOURNAL_FIELD};

/// Fields that are requested. journalctl adds the time and the cursor.
pub(super) const FIELDS: &[&str] = &[
    "MESSAGE",
    "PRIORITY",
    "SYSLOG_IDENTIFIER",
    "_TRANSPORT",
    "CONTAINER_NAME",
    "CONTAINER_ID_FULL",
    "CONTAINER_PARTIAL_MESSAGE",
    "_SYSTEMD_INVOCATION_ID",
    "PODMAN_EVENT",
    HOOK_JOURNAL_FIELD,
];

/// The stream that a program wrote a line to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A journal entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Time when journald received it, microseconds since the epoch.
    pub time_us: u64,
    /// The same time on the monotonic clock of its boot, which does not jump with the date; 0 if
    /// unknown.
    pub monotonic_us: u64,
    /// The text as it was written, without its line break.
    pub message: Vec<u8>,
    /// From 0, emergency, to 7, debug (syslog(3)); 6 where the entry has none.
    pub priority: u8,
    /// Syslog identifier of the writer.
    pub identifier: String,
    /// The stream of a program's output; conmon marks standard error by priority 3.
    pub stream: ProgramStream,
    /// Name of the container, if the entry is a program's output.
    pub container_name: Option<String>,
    /// Id of the container, which differs for each run.
    pub container_id: Option<String>,
    /// Invocation of the unit that wrote the entry, as in
    /// [`super::super::UnitManager::invocation_id`].
    pub invocation_id: Option<String>,
    /// Whether a program in a container wrote it.
    pub from_program: bool,
    /// Whether the line continues in the next entry.
    pub partial: bool,
    /// Whether it is the error of a failed container hook, or [`Self::fenced`].
    pub hook_error: bool,
    /// Whether `kat-net` says in it that it has killed the instance at its deadline.
    pub fenced: bool,
    /// Whether it is Podman's own record of an event.
    pub podman_event: bool,
    /// Its cursor in the journal.
    pub cursor: String,
}

impl LogEntry {
    /// The message as text; bytes that are not UTF-8 become U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.message).into_owned()
    }

    /// Parses one line; the error is a sentence.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let fields: BTreeMap<String, Value> =
            serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let bytes = |name: &str| fields.get(name).and_then(bytes_of);
        let text =
            |name: &str| bytes(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let time = |name: &str| text(name).and_then(|time| time.parse().ok());
        let time_us = time("__REALTIME_TIMESTAMP").ok_or("it has no time")?;
        let cursor = text("__CURSOR").ok_or("it has no cursor")?;
        let priority = text("PRIORITY")
            .and_then(|number| number.parse().ok())
            .filter(|number| *number <= 7)
            .unwrap_or(6);
        let container_name = text("CONTAINER_NAME");
        let podman_event = fields.contains_key("PODMAN_EVENT");
        let from_program =
            !podman_event && (container_name.is_some() || fields.contains_key("CONTAINER_ID_FULL"));
        let mut message = bytes("MESSAGE").unwrap_or_default();
        // conmon writes a line with its line break, other writers without.
        if message.last() == Some(&b'\n') {
            message.pop();
        }
        Ok(Self {
            time_us,
            monotonic_us: time("__MONOTONIC_TIMESTAMP").unwrap_or(0),
            message,
            priority,
            identifier: text("SYSLOG_IDENTIFIER").unwrap_or_default(),
            stream: if from_program && priority == 3 {
                ProgramStream::Stderr
            } else {
                ProgramStream::Stdout
            },
            container_name,
            container_id: text("CONTAINER_ID_FULL"),
            invocation_id: text("_SYSTEMD_INVOCATION_ID"),
            from_program,
            partial: text("CONTAINER_PARTIAL_MESSAGE").as_deref() == Some("true"),
            hook_error: fields.contains_key(HOOK_JOURNAL_FIELD),
            fenced: text(HOOK_JOURNAL_FIELD).as_deref() == Some(FENCED_JOURNAL_VALUE),
            podman_event,
            cursor,
        })
    }
}

/// A field is a text, or an array of numbers where it is not UTF-8. It is an array of both where
/// the entry has it more than once (the first counts), and null where it was too long.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Array(items) if items.iter().all(Value::is_number) => items
            .iter()
            .map(|item| item.as_u64().and_then(|byte| u8::try_from(byte).ok()))
            .collect(),
        Value::Array(items) => items.iter().find_map(bytes_of),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &str) -> LogEntry {
        let line = format!(r#"{{"__CURSOR":"c","__REALTIME_TIMESTAMP":"12"{fields}}}"#);
        LogEntry::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn reads_a_programs_line() {
        let entry = parse(
            r#","MESSAGE":"hello\n","PRIORITY":"3","CONTAINER_NAME":"kat-web","SYSLOG_IDENTIFIER":"web","__MONOTONIC_TIMESTAMP":"7""#,
        );
        assert_eq!(entry.text(), "hello");
        assert_eq!((entry.time_us, entry.monotonic_us), (12, 7));
        assert_eq!(entry.stream, ProgramStream::Stderr);
        assert_eq!(entry.container_name.as_deref(), Some("kat-web"));
        assert!(entry.from_program && !entry.partial && !entry.hook_error);
        assert_eq!(entry.cursor, "c");
    }

    #[test]
    fn a_kill_by_kat_net_is_told_from_a_failed_hook() {
        let hook = parse(r#","KAT_HOOK_ERROR":"1""#);
        assert!(hook.hook_error && !hook.fenced);
        let fenced = parse(r#","KAT_HOOK_ERROR":"fenced""#);
        assert!(fenced.hook_error && fenced.fenced);
    }

    #[test]
    fn reads_bytes_repeated_fields_and_nothing() {
        let entry = parse(r#","MESSAGE":[104,255,105]"#);
        assert_eq!(entry.message, [104, 255, 105]);
        assert_eq!(entry.text(), "h\u{fffd}i");
        assert_eq!(parse(r#","MESSAGE":["first","second"]"#).text(), "first");
        assert_eq!(parse(r#","MESSAGE":[[104,255],"b"]"#).message, [104, 255]);
        assert_eq!(parse(r#","MESSAGE":null"#).text(), "");
        let plain = parse("");
        assert_eq!((plain.priority, plain.stream), (6, ProgramStream::Stdout));
        assert_eq!(parse(r#","PRIORITY":"99""#).priority, 6);
    }

    #[test]
    fn tells_the_program_from_podman_and_the_hook() {
        let by_id = parse(r#","CONTAINER_ID_FULL":"abc","CONTAINER_PARTIAL_MESSAGE":"true""#);
        assert!(by_id.from_program && by_id.partial);
        assert_eq!(by_id.container_id.as_deref(), Some("abc"));
        let event = parse(r#","PODMAN_EVENT":"start","CONTAINER_NAME":"kat-web""#);
        assert!(event.podman_event && !event.from_program);
        let hook = parse(r#","KAT_HOOK_ERROR":"1","MESSAGE":"no address""#);
        assert!(hook.hook_error && !hook.from_program);
    }

    #[test]
    fn says_what_is_wrong_with_a_line() {
        for wrong in [
            "",
            "[]",
            "{\"MESSAGE\":\"x\"}",
            r#"{"__CURSOR":"c","__REALTIME_TIMESTAMP":"soon"}"#,
        ] {
            assert!(LogEntry::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
