//! The hook's own lines in the journal: the runtime throws its output away.

use std::{os::unix::net::UnixDatagram, path::Path, time::Duration};

use kat_types::network::HOOK_JOURNAL_FIELD;

/// Most characters of a value in the journal.
const MAXIMUM_VALUE: usize = 1000;

/// One journal entry in the native protocol; every value is one line, and cut where it is longer than
/// a sentence can be: what does not fit a datagram would be lost. It names the unit as the user's
/// manager does: journald, which would add it, may come to look when the hook is gone.
pub fn journal_entry(message: &str, instance: Option<&str>, unit: Option<&str>) -> String {
    let one_line = |text: &str| -> String {
        text.chars()
            .take(MAXIMUM_VALUE)
            .map(|letter| match letter {
                '\n' | '\r' | '\0' => ' ',
                other => other,
            })
            .collect()
    };
    let mut entry = format!(
        "MESSAGE=network of the container: {}\nPRIORITY=3\nSYSLOG_IDENTIFIER=kat-hook\n{HOOK_JOURNAL_FIELD}=1\n",
        one_line(message)
    );
    for (field, value) in [("KAT_INSTANCE", instance), ("USER_UNIT", unit)] {
        if let Some(value) = value {
            entry.push_str(&format!("{field}={}\n", one_line(value)));
        }
    }
    entry
}

/// Best effort: where there is no journal, there is nobody to tell.
pub(super) fn report(journal: &Path, entry: &str) {
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = socket.send_to(entry.as_bytes(), journal);
    }
}
