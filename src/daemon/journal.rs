//! Lines for the journal, in its native protocol
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).
//!
//! `journalctl` shows the text of a line and not its fields, so the text of each line also has the
//! fields: which instance, which file, and why. Each field is a field of the entry, too.

use std::{
    fmt::{self, Write},
    io,
    os::unix::net::UnixDatagram,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::net::{SendFlags, SocketAddrUnix, send, sendto};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// The journal's socket.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Longest wait for a journal that takes no line. It is waited for once: until it takes lines again,
/// the others are dropped at once and counted.
const PATIENCE: Duration = Duration::from_millis(250);
/// Longest value of a field, bytes: a line has to fit into one datagram.
const LONGEST: usize = 16 * 1024;
/// Shortest value that a text may have by itself; a shorter one could be there by accident.
const TELLING: usize = 4;
/// Fields whose value ends the text, as a cause.
const CAUSES: [&str; 6] = ["error", "failure", "reason", "why", "words", "problem"];

/// Sends each line to the journal.
pub(crate) struct JournalLayer {
    socket: UnixDatagram,
    /// Where the lines are sent; `None` for a connected socket.
    address: Option<SocketAddrUnix>,
    identifier: String,
    /// Number of lines that the journal has not taken, and of which it does not know yet.
    dropped: AtomicU64,
}

impl JournalLayer {
    /// # Errors
    /// There is no journal.
    pub(crate) fn connect(identifier: &str) -> io::Result<Self> {
        let address = SocketAddrUnix::new(Path::new(SOCKET))?;
        let layer = Self::over(UnixDatagram::unbound()?, Some(address), identifier)?;
        // An empty datagram is no line.
        match layer.send(&[], SendFlags::empty()) {
            // It hangs, and its queue is full.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(layer),
            sent => sent.map(|()| layer),
        }
    }

    fn over(
        socket: UnixDatagram,
        address: Option<SocketAddrUnix>,
        identifier: &str,
    ) -> io::Result<Self> {
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            socket,
            address,
            identifier: identifier.to_owned(),
            dropped: AtomicU64::new(0),
        })
    }

    /// The journal has a socket of its own for the whole life of the system, so each line is sent
    /// by its path.
    fn send(&self, line: &[u8], flags: SendFlags) -> io::Result<()> {
        match &self.address {
            Some(address) => sendto(&self.socket, line, flags, address)?,
            None => send(&self.socket, line, flags)?,
        };
        Ok(())
    }

    /// Sends a line, after one about those that were dropped, or counts it as dropped.
    fn write(&self, line: &[u8]) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let sent = match dropped {
            0 => self.send(line, SendFlags::empty()),
            _ => self.send(&self.note_of(dropped), SendFlags::DONTWAIT),
        };
        if sent.is_err() {
            // There is nobody to say so to yet.
            self.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
            return;
        }
        if dropped > 0 && self.send(line, SendFlags::DONTWAIT).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_of(&self, dropped: u64) -> Vec<u8> {
        let mut note = Vec::new();
        put(&mut note, "PRIORITY", priority(Level::WARN));
        put(&mut note, "SYSLOG_IDENTIFIER", &self.identifier);
        let text = format!("{dropped} lines are missing here: the journal did not take them");
        put(&mut note, "MESSAGE", &text);
        put(&mut note, "F_DROPPED", &dropped.to_string());
        note
    }
}

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = LineFields::default();
        event.record(&mut fields);
        self.write(&fields.encode(&self.identifier, event.metadata()));
    }
}

/// The fields of a line.
#[derive(Debug, Default)]
struct LineFields {
    /// The text as it is written in the code.
    text: String,
    fields: Vec<(&'static str, String)>,
}

impl LineFields {
    fn add(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" if self.text.is_empty() => self.text = value,
            // A field of that name beside the text.
            "message" => {
                let _ = write!(self.text, ": {value}");
            }
            // Of lines of the crate `log`.
            name if name.starts_with("log.") => {}
            name => self.fields.push((name, value)),
        }
    }

    /// The text with the fields that it does not have yet: `TEXT (instance=web-abcde): CAUSE`.
    fn told(&self) -> String {
        let missing = self.fields.iter().filter(|(_, value)| {
            !value.is_empty() && (value.len() < TELLING || !self.text.contains(value.as_str()))
        });
        let (causes, subjects): (Vec<_>, Vec<_>) =
            missing.partition(|(name, _)| CAUSES.contains(name));
        let mut told = self.text.clone();
        for (position, (name, value)) in subjects.iter().enumerate() {
            told.push_str(if position == 0 { " (" } else { ", " });
            let _ = write!(told, "{name}={value}");
        }
        if !subjects.is_empty() {
            told.push(')');
        }
        for (_, cause) in causes {
            let _ = write!(told, ": {cause}");
        }
        // Foreign words in it must neither begin a line nor have journalctl hide this one.
        told.replace(char::is_control, " ")
    }

    fn encode(&self, identifier: &str, metadata: &Metadata<'_>) -> Vec<u8> {
        let mut line = Vec::new();
        put(&mut line, "PRIORITY", priority(*metadata.level()));
        put(&mut line, "SYSLOG_IDENTIFIER", identifier);
        put(&mut line, "TARGET", metadata.target());
        if let Some(file) = metadata.file() {
            put(&mut line, "CODE_FILE", file);
        }
        if let Some(number) = metadata.line() {
            put(&mut line, "CODE_LINE", &number.to_string());
        }
        put(&mut line, "MESSAGE", &self.told());
        for (name, value) in &self.fields {
            put(&mut line, &format!("F_{}", field_name(name)), value);
        }
        line
    }
}

impl Visit for LineFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}"));
    }
}

/// The priority of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    }
}

/// A name of a field that the journal takes.
fn field_name(name: &str) -> String {
    name.chars()
        .map(|letter| match letter.is_ascii_alphanumeric() {
            true => letter.to_ascii_uppercase(),
            false => '_',
        })
        .collect()
}

/// Adds a field; one with several lines has its length before it.
fn put(line: &mut Vec<u8>, name: &str, value: &str) {
    let end = (0..=value.len().min(LONGEST))
        .rev()
        .find(|end| value.is_char_boundary(*end));
    let value = value.get(..end.unwrap_or(0)).unwrap_or_default();
    line.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        line.push(b'\n');
        let length = u64::try_from(value.len()).unwrap_or(u64::MAX);
        line.extend_from_slice(&length.to_le_bytes());
    } else {
        line.push(b'=');
    }
    line.extend_from_slice(value.as_bytes());
    line.push(b'\n');
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// The entry that the journal gets for these lines, as text.
    fn entry(write: impl FnOnce()) -> String {
        let (journal, socket) = UnixDatagram::pair().unwrap();
        let layer = JournalLayer::over(socket, None, "kat-agent").unwrap();
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, write);
        let mut line = vec![0; 1 << 20];
        journal.set_nonblocking(true).unwrap();
        let length = journal.recv(&mut line).unwrap();
        String::from_utf8_lossy(&line[..length]).into_owned()
    }

    fn message(write: impl FnOnce()) -> String {
        let entry = entry(write);
        let mut lines = entry.lines();
        let message = lines.find_map(|line| line.strip_prefix("MESSAGE="));
        message.unwrap().to_owned()
    }

    #[test]
    fn the_text_of_a_line_names_its_subject_and_its_cause() {
        let volume = "default/db/data";
        let error = "/var/lib/kat/volumes: there is no such folder";
        let told = message(|| {
            tracing::error!(volume, error, tries = 3, "the data cannot be removed");
        });
        assert_eq!(
            told,
            "the data cannot be removed (volume=default/db/data, tries=3): /var/lib/kat/volumes: there is no such folder"
        );
        // What the text has is not repeated.
        let told = message(|| tracing::warn!(volume, "volume {volume} was not sent: {error}"));
        assert_eq!(told, format!("volume {volume} was not sent: {error}"));
        assert_eq!(message(|| tracing::info!("stopping")), "stopping");
        let message_field = "etcd of n2 gets its vote";
        let told = message(|| tracing::info!(message = message_field, "a step"));
        assert!(
            told.contains("a step") && told.contains(message_field),
            "{told}"
        );
    }

    #[test]
    fn a_journal_that_hangs_is_waited_for_once_and_learns_how_many_lines_it_missed() {
        let (journal, socket) = UnixDatagram::pair().unwrap();
        let layer = JournalLayer::over(socket, None, "kat-agent").unwrap();
        let subscriber = tracing_subscriber::registry().with(layer);
        let (written, began) = (20_000, std::time::Instant::now());
        let mut taken = 0;
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..written {
                tracing::info!("line {number}");
            }
            let took = began.elapsed();
            assert!((PATIENCE..20 * PATIENCE).contains(&took), "{took:?}");
            journal.set_nonblocking(true).unwrap();
            while journal.recv(&mut [0; 4096]).is_ok() {
                taken += 1;
            }
            assert!(taken > 0);
            tracing::info!("the next one");
        });
        let mut messages = Vec::new();
        let mut entry = [0; 4096];
        while let Ok(length) = journal.recv(&mut entry) {
            let entry = String::from_utf8_lossy(&entry[..length]).into_owned();
            let message = entry.lines().find_map(|one| one.strip_prefix("MESSAGE="));
            messages.push(message.unwrap().to_owned());
        }
        let missing = written - taken;
        let note = format!("{missing} lines are missing here: the journal did not take them");
        assert_eq!(messages, [note, "the next one".to_owned()]);
    }

    #[test]
    fn each_field_is_a_field_of_the_entry() {
        let entry = entry(|| tracing::warn!(exit_code = 125, "an instance did not start"));
        for line in [
            "PRIORITY=4",
            "SYSLOG_IDENTIFIER=kat-agent",
            "TARGET=kat_daemon::journal::tests",
            "F_EXIT_CODE=125",
        ] {
            assert!(entry.lines().any(|one| one == line), "{line}\n{entry}");
        }
    }

    #[test]
    fn a_value_of_several_lines_has_its_length_before_it_and_a_long_one_is_cut() {
        let mut line = Vec::new();
        put(&mut line, "F_A", "x\ny");
        assert_eq!(line, b"F_A\n\x03\0\0\0\0\0\0\0x\ny\n");
        line.clear();
        put(&mut line, "F_A", &"\u{e4}".repeat(LONGEST));
        assert_eq!(line.len(), "F_A=\n".len() + LONGEST);
    }
}
