//! Journal entries of the hook itself, whose output the runtime discards, and those of `kat-net` about
//! a unit of a user.

use std::{os::unix::net::UnixDatagram, path::Path, time::Duration};

use kat_types::machine::network::{FENCED_JOURNAL_VALUE, HOOK_JOURNAL_FIELD};

/// Most characters of a value in an entry.
const MAXIMUM_VALUE: usize = 1000;

/// One journal entry in the native protocol. Every value is one line, and is cut where it is too
/// long, since an entry that does not fit into a datagram would be lost. The entry names the unit
/// as the user manager does: journald would add it, but may read it only after the hook has ended.
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

/// The entry that says that `kat-net` has killed an instance at its deadline. It names the unit as
/// the user manager does, so that the agent finds it with the unit's others.
pub(crate) fn fenced_entry(instance: &str, unit: &str) -> String {
    format!(
        "MESSAGE=kat-net killed it, because kat-agent had not confirmed to a leader for too long that it may run on this machine\nPRIORITY=4\nSYSLOG_IDENTIFIER=kat-net\n{HOOK_JOURNAL_FIELD}={FENCED_JOURNAL_VALUE}\nKAT_INSTANCE={instance}\nUSER_UNIT={unit}\n"
    )
}

/// Best effort: errors are ignored where there is no journal.
pub(crate) fn report(journal: &Path, entry: &str) {
    if let Ok(socket) = UnixDatagram::unbound() {
        let _ = socket.set_write_timeout(Some(Duration::from_secs(1)));
        let _ = socket.send_to(entry.as_bytes(), journal);
    }
}
