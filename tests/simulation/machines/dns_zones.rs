//! The zones of hosts that are proved by DNS: the records that a leader's hook has added, and what the name
//! servers answer. Hooks fail as programs do: they end without success, hang, or have an effect that is seen
//! late.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// What is wrong with the zones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ZoneFault {
    #[default]
    Nothing,
    /// Name servers answer with a record this long after it was added.
    Late(Duration),
    /// Name servers do not answer with new records, until this fault ends.
    Unseen,
    /// The hook ends without success, and changes nothing.
    Fails,
    /// The hook adds a record, and removes none. It does not end.
    Hangs,
    /// The hook removes no record, and ends without success.
    Keeps,
}

/// The records TXT of all zones.
#[derive(Debug, Default)]
pub(crate) struct DnsZones {
    fault: ZoneFault,
    /// A removal takes all records of the name. That is no fault of a hook that follows its rules.
    removes_all: bool,
    /// By name and text: since when name servers answer with it; `None` while they do not.
    records: BTreeMap<(String, String), Option<Instant>>,
}

impl DnsZones {
    pub(crate) fn fault(&self) -> ZoneFault {
        self.fault
    }

    /// From now on this is wrong. Records that were unseen are seen after [`ZoneFault::Unseen`].
    pub(crate) fn set_fault(&mut self, fault: ZoneFault) {
        self.fault = fault;
        if fault != ZoneFault::Unseen {
            for seen in self.records.values_mut() {
                seen.get_or_insert_with(Instant::now);
            }
        }
    }

    /// From now on a removal takes all records of the name.
    pub(crate) fn remove_all(&mut self) {
        self.removes_all = true;
    }

    /// Adds a record beside others of the name, which name servers have after `delay` at the earliest.
    pub(crate) fn add(&mut self, name: &str, text: &str, delay: Duration) {
        let seen = match self.fault {
            ZoneFault::Unseen => None,
            ZoneFault::Late(late) => Some(Instant::now() + late.max(delay)),
            ZoneFault::Nothing | ZoneFault::Fails | ZoneFault::Hangs | ZoneFault::Keeps => {
                Some(Instant::now() + delay)
            }
        };
        let key = (name.to_owned(), text.to_owned());
        self.records.entry(key).or_insert(seen);
    }

    pub(crate) fn remove(&mut self, name: &str, text: &str) {
        let removes_all = self.removes_all;
        self.records
            .retain(|(at, one), _| at != name || (one != text && !removes_all));
    }

    /// Whether the hook has added the record.
    pub(crate) fn has(&self, name: &str, text: &str) -> bool {
        let mut records = self.records.keys();
        records.any(|(at, one)| at == name && one == text)
    }

    /// Whether name servers answer with the record.
    pub(crate) fn is_seen(&self, name: &str, text: &str) -> bool {
        let key = (name.to_owned(), text.to_owned());
        let seen = self.records.get(&key).copied().flatten();
        seen.is_some_and(|seen| seen <= Instant::now())
    }

    /// Number of the records of a name.
    pub(crate) fn count(&self, name: &str) -> usize {
        let records = self.records.keys();
        records.filter(|(at, _)| at == name).count()
    }

    /// The text of a record.
    pub(crate) fn any_text(&self) -> Option<String> {
        let (_, text) = self.records.keys().next()?;
        Some(text.clone())
    }

    /// A record that is there, in words.
    pub(crate) fn left(&self) -> Option<String> {
        let (name, text) = self.records.keys().next()?;
        Some(format!("the record TXT of {name} with {text} is left"))
    }
}
