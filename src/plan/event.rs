//! Events: at most [`LIMIT`], the oldest dropped in the same transaction, repeats counted, and none older
//! than [`LIFETIME`].

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::{
    Stored,
    draft::{Draft, Group},
};
use crate::{
    api::types::{Event, ObjectReference},
    store::{Operation, keys},
};

/// Most events kept.
pub const LIMIT: usize = 1000;
/// An event that did not happen again for so long is dropped.
pub const LIFETIME: SignedDuration = SignedDuration::from_hours(72);
/// A repeat within so many of the newest events is counted instead of written again.
const REPEAT_WINDOW: usize = 200;

/// Drops events that are too old.
pub(super) fn plan_expiry(draft: &mut Draft<'_>) {
    let Ok(oldest) = draft.now.checked_sub(LIFETIME) else {
        return;
    };
    let mut group = Group::default();
    for (id, stored) in &draft.snapshot.events {
        let last = stored.value.timestamp.parse::<Timestamp>();
        if last.is_ok_and(|last| last >= oldest) || Draft::is_full(&group) {
            break;
        }
        group.delete(keys::event(id));
    }
    draft.commit(group, "events that are too old".to_owned(), Vec::new());
}

/// Weight of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// As it should be.
    Normal,
    /// Someone may want to look.
    Warning,
}

/// Writes events against the stored ones.
pub struct EventLog {
    now: Timestamp,
    stored: BTreeMap<String, Arc<Event>>,
    written: u32,
}

impl EventLog {
    /// Begins with the stored events.
    pub fn new(stored: &BTreeMap<String, Stored<Arc<Event>>>, now: Timestamp) -> Self {
        let stored = stored
            .iter()
            .map(|(id, event)| (id.clone(), Arc::clone(&event.value)))
            .collect();
        Self {
            now,
            stored,
            written: 0,
        }
    }

    /// The operations that record one event: a write, and the deletion of what it replaces.
    pub fn record(
        &mut self,
        kind: EventKind,
        reason: &str,
        involved_object: ObjectReference,
        message: String,
    ) -> Vec<Operation> {
        let now = self.now.to_string();
        let id = self.next_id(&involved_object.name);
        let mut event = Event {
            id: id.clone(),
            timestamp: now.clone(),
            kind: match kind {
                EventKind::Normal => "Normal".to_owned(),
                EventKind::Warning => "Warning".to_owned(),
            },
            reason: reason.to_owned(),
            involved_object,
            message,
            count: 1,
            first_timestamp: now,
        };
        let mut operations = Vec::new();
        if let Some(earlier) = self.repeat_of(&event) {
            event.count = earlier.count.saturating_add(1);
            event.first_timestamp.clone_from(&earlier.first_timestamp);
            self.stored.remove(&earlier.id);
            operations.push(Operation::Delete(keys::event(&earlier.id)));
        }
        while self.stored.len() >= LIMIT {
            let Some((oldest, _)) = self.stored.pop_first() else {
                break;
            };
            operations.push(Operation::Delete(keys::event(&oldest)));
        }
        if let Ok(value) = serde_json::to_vec(&event) {
            operations.push(Operation::Put(keys::event(&id), value));
        }
        self.stored.insert(id, Arc::new(event));
        operations
    }

    /// Sorts after every id of the same time.
    fn next_id(&mut self, name: &str) -> String {
        loop {
            let head = format!("{:013}-{:05}-", self.now.as_millisecond(), self.written);
            self.written += 1;
            let next = self.stored.range(head.clone()..).next();
            if next.is_none_or(|(id, _)| !id.starts_with(&head)) {
                return format!("{head}{name}");
            }
        }
    }

    fn repeat_of(&self, event: &Event) -> Option<Arc<Event>> {
        self.stored
            .values()
            .rev()
            .take(REPEAT_WINDOW)
            .find(|earlier| {
                earlier.reason == event.reason
                    && earlier.involved_object == event.involved_object
                    && earlier.message == event.message
            })
            .map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectReference {
        ObjectReference {
            kind: "Instance".to_owned(),
            name: name.to_owned(),
            ..ObjectReference::default()
        }
    }

    #[test]
    fn counts_a_repeat_and_moves_it_to_the_end() {
        let mut log = EventLog::new(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let first = log.record(
            EventKind::Warning,
            "CrashLoop",
            object("a"),
            "exit 1".to_owned(),
        );
        assert_eq!(first.len(), 1);
        log.record(
            EventKind::Warning,
            "CrashLoop",
            object("b"),
            "exit 1".to_owned(),
        );
        let repeat = log.record(
            EventKind::Warning,
            "CrashLoop",
            object("a"),
            "exit 1".to_owned(),
        );
        assert!(matches!(repeat.first(), Some(Operation::Delete(_))));
        let newest = log.stored.values().last().unwrap();
        assert_eq!(
            (newest.count, newest.involved_object.name.as_str()),
            (2, "a")
        );
    }

    #[test]
    fn ids_of_two_logs_of_one_time_differ() {
        let mut first = EventLog::new(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let said = |log: &mut EventLog, reason: &str| {
            log.record(EventKind::Normal, reason, object("a"), String::new());
        };
        said(&mut first, "Scheduled");
        said(&mut first, "Started");
        let stored: BTreeMap<_, _> = first
            .stored
            .iter()
            .map(|(id, event)| {
                let value = Arc::clone(event);
                (id.clone(), Stored { revision: 1, value })
            })
            .collect();
        let mut second = EventLog::new(&stored, Timestamp::UNIX_EPOCH);
        said(&mut second, "Stopping");
        let reasons: Vec<_> = second
            .stored
            .values()
            .map(|event| event.reason.as_str())
            .collect();
        assert_eq!(reasons, ["Scheduled", "Started", "Stopping"]);
    }

    #[test]
    fn drops_the_oldest_beyond_the_limit() {
        let mut log = EventLog::new(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        for number in 0..LIMIT + 10 {
            log.record(
                EventKind::Normal,
                "Started",
                object(&format!("i{number}")),
                String::new(),
            );
        }
        assert_eq!(log.stored.len(), LIMIT);
        assert_eq!(
            log.stored.values().next().unwrap().involved_object.name,
            "i10"
        );
    }

    #[test]
    fn what_has_not_happened_again_for_three_days_is_dropped() {
        let mut snapshot = crate::plan::Snapshot::default();
        for (id, time) in [
            ("1", "2026-01-06T23:59:59Z"),
            ("2", "2026-01-07T00:00:00Z"),
            ("3", "2026-01-09T00:00:00Z"),
        ] {
            let event = Event {
                id: id.to_owned(),
                timestamp: time.to_owned(),
                ..Event::default()
            };
            let stored = Stored {
                revision: 1,
                value: Arc::new(event),
            };
            snapshot.events.insert(id.to_owned(), stored);
        }
        let now = "2026-01-10T00:00:00Z".parse().unwrap();
        let planned = crate::plan::plan(&snapshot, &crate::plan::Observed::default(), now, 1);
        let operations: Vec<_> = planned
            .changes
            .iter()
            .flat_map(|change| &change.operations)
            .collect();
        assert_eq!(operations, [&Operation::Delete(keys::event("1"))]);
    }
}
