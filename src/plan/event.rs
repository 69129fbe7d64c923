//! Events: at most [`LIMIT`], none older than [`LIFETIME`]. A repeat is counted, and the oldest
//! event is deleted in the same transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::draft::{Draft, OperationGroup};
use kat_types::{
    api::{Event, EventKind, ObjectReference},
    reason::EventReason,
    store::{keys, revisions::Stored, transaction::WriteOperation},
};

/// Maximum number of events kept.
pub const LIMIT: usize = 1000;
/// An event that has not repeated for this long is deleted.
pub const LIFETIME: SignedDuration = SignedDuration::from_hours(72);
/// A repeat of one of this many newest events is counted instead of written again.
const REPEAT_WINDOW: usize = 200;

/// Deletes events older than [`LIFETIME`].
pub(super) fn plan_expiry(draft: &mut Draft<'_>) {
    let Ok(oldest) = draft.now.checked_sub(LIFETIME) else {
        return;
    };
    let mut group = OperationGroup::default();
    for (id, stored) in &draft.snapshot.events {
        let last = stored.value.timestamp.get();
        if last.is_some_and(|last| last >= oldest) || Draft::is_full(&group) {
            break;
        }
        group.delete(keys::event(id));
    }
    draft.commit(group, "events that are too old".to_owned(), Vec::new());
    plan_quotas(draft);
}

/// Deletes the oldest events of namespaces that have more than their quotas allow.
fn plan_quotas(draft: &mut Draft<'_>) {
    let mut group = OperationGroup::default();
    for (name, namespace) in &draft.snapshot.namespaces {
        let Some(quota) = namespace.value.quota.events else {
            continue;
        };
        let events = draft.snapshot.events.iter();
        let own: Vec<_> = events
            .filter(|(_, event)| event.value.involved_object.namespace == *name)
            .map(|(id, _)| id)
            .collect();
        let kept = usize::try_from(quota).unwrap_or(usize::MAX);
        for id in own.iter().take(own.len().saturating_sub(kept)) {
            if Draft::is_full(&group) {
                break;
            }
            group.delete(keys::event(id));
        }
    }
    draft.commit(group, "events beyond quotas".to_owned(), Vec::new());
}

/// The reason of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventWord<'a> {
    /// A reason of this version.
    Own(EventReason),
    /// The reason that a machine reported of an instance; the machine's version may be newer.
    Reported(&'a str),
}

impl From<EventReason> for EventWord<'_> {
    fn from(reason: EventReason) -> Self {
        Self::Own(reason)
    }
}

impl<'a> EventWord<'a> {
    fn word(self) -> &'a str {
        match self {
            Self::Own(reason) => reason.word(),
            Self::Reported(word) => word,
        }
    }
}

/// Records events, counting repeats of the stored ones.
pub struct EventLog {
    now: Timestamp,
    stored: BTreeMap<String, Arc<Event>>,
    /// The ids of the stored events, by namespace.
    of_namespaces: BTreeMap<String, BTreeSet<String>>,
    written: u32,
}

impl EventLog {
    /// Starts from the stored events.
    pub fn new(stored: &BTreeMap<String, Stored<Arc<Event>>>, now: Timestamp) -> Self {
        let mut log = Self {
            now,
            stored: BTreeMap::new(),
            of_namespaces: BTreeMap::new(),
            written: 0,
        };
        for (id, event) in stored {
            log.keep(id.clone(), Arc::clone(&event.value));
        }
        log
    }

    /// The operations that record one event: a write, and the deletion of the event that it
    /// replaces.
    pub fn record<'a>(
        &mut self,
        kind: EventKind,
        reason: impl Into<EventWord<'a>>,
        involved_object: ObjectReference,
        message: String,
    ) -> Vec<WriteOperation> {
        let now = self.now.into();
        let id = self.next_id(&involved_object.name);
        let mut event = Event {
            id: id.clone(),
            timestamp: now,
            kind,
            reason: reason.into().word().to_owned(),
            involved_object,
            message,
            count: 1,
            first_timestamp: now,
        };
        let mut operations = Vec::new();
        if let Some(earlier) = self.repeat_of(&event) {
            event.count = earlier.count.saturating_add(1);
            event.first_timestamp = earlier.first_timestamp;
            self.forget(&earlier.id);
            operations.push(WriteOperation::Delete(keys::event(&earlier.id)));
        }
        while self.stored.len() >= LIMIT {
            let Some(oldest) = self.oldest_of_most() else {
                break;
            };
            self.forget(&oldest);
            operations.push(WriteOperation::Delete(keys::event(&oldest)));
        }
        operations.push(WriteOperation::Put(keys::event(&id), event.to_json()));
        self.keep(id, Arc::new(event));
        operations
    }

    fn keep(&mut self, id: String, event: Arc<Event>) {
        let namespace = &event.involved_object.namespace;
        match self.of_namespaces.get_mut(namespace) {
            Some(ids) => drop(ids.insert(id.clone())),
            None => {
                let ids = BTreeSet::from([id.clone()]);
                self.of_namespaces.insert(namespace.clone(), ids);
            }
        }
        self.stored.insert(id, event);
    }

    fn forget(&mut self, id: &str) {
        let Some(event) = self.stored.remove(id) else {
            return;
        };
        let namespace = &event.involved_object.namespace;
        if let Some(ids) = self.of_namespaces.get_mut(namespace) {
            ids.remove(id);
        }
    }

    /// The oldest event of the namespace with the most events: a namespace with many events loses
    /// its own and not those of others.
    fn oldest_of_most(&self) -> Option<String> {
        let most = self.of_namespaces.values().max_by_key(|ids| ids.len());
        most.and_then(|ids| ids.first().cloned())
    }

    /// A new id that sorts after every id of the same time.
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
    use kat_types::api::{ApiTime, ObjectKind};

    fn object(name: &str) -> ObjectReference {
        ObjectReference {
            kind: ObjectKind::Instance,
            name: name.to_owned(),
            ..ObjectReference::default()
        }
    }

    #[test]
    fn counts_a_repeat_and_moves_it_to_the_end() {
        let mut log = EventLog::new(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let first = log.record(
            EventKind::Warning,
            EventWord::Reported("CrashLoop"),
            object("a"),
            "exit 1".to_owned(),
        );
        assert_eq!(first.len(), 1);
        log.record(
            EventKind::Warning,
            EventWord::Reported("CrashLoop"),
            object("b"),
            "exit 1".to_owned(),
        );
        let repeat = log.record(
            EventKind::Warning,
            EventWord::Reported("CrashLoop"),
            object("a"),
            "exit 1".to_owned(),
        );
        assert!(matches!(repeat.first(), Some(WriteOperation::Delete(_))));
        let newest = log.stored.values().last().unwrap();
        assert_eq!(
            (newest.count, newest.involved_object.name.as_str()),
            (2, "a")
        );
    }

    #[test]
    fn ids_of_two_logs_of_one_time_differ() {
        let mut first = EventLog::new(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let said = |log: &mut EventLog, reason: EventReason| {
            log.record(EventKind::Normal, reason, object("a"), String::new());
        };
        said(&mut first, EventReason::Scheduled);
        said(&mut first, EventReason::Started);
        let stored: BTreeMap<_, _> = first
            .stored
            .iter()
            .map(|(id, event)| {
                let value = Arc::clone(event);
                (id.clone(), Stored { revision: 1, value })
            })
            .collect();
        let mut second = EventLog::new(&stored, Timestamp::UNIX_EPOCH);
        said(&mut second, EventReason::Stopping);
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
                EventReason::Started,
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
    fn a_namespace_with_many_events_drops_its_own_and_not_another_s() {
        let mut log = EventLog::new(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let mut happens = |namespace: &str, number: usize| {
            let object = ObjectReference {
                namespace: namespace.to_owned(),
                ..object(&format!("i{number}"))
            };
            log.record(
                EventKind::Normal,
                EventReason::Started,
                object,
                String::new(),
            );
        };
        (0..3).for_each(|number| happens("quiet", number));
        (0..LIMIT * 2).for_each(|number| happens("loud", number));
        let of = |namespace: &str| {
            let events = log.stored.values();
            let own = events.filter(|event| event.involved_object.namespace == namespace);
            own.count()
        };
        assert_eq!((of("quiet"), of("loud")), (3, LIMIT - 3));
    }

    fn planned_operations(snapshot: &crate::Snapshot, now: Timestamp) -> Vec<WriteOperation> {
        crate::plan(
            snapshot,
            &kat_types::store::snapshot::ObservedReports::default(),
            now,
            1,
        )
        .changes
        .into_iter()
        .flat_map(|change| change.operations)
        .collect()
    }

    #[test]
    fn a_namespace_keeps_as_many_events_as_its_quota_says() {
        let mut snapshot = crate::Snapshot::default();
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        for (id, namespace) in [("1", "a"), ("2", "b"), ("3", "a"), ("4", "a")] {
            let event = Event {
                id: id.to_owned(),
                timestamp: now.into(),
                involved_object: ObjectReference {
                    namespace: namespace.to_owned(),
                    ..object("web")
                },
                ..Event::default()
            };
            let value = Arc::new(event);
            snapshot
                .events
                .insert(id.to_owned(), Stored { revision: 1, value });
        }
        let mut record = kat_types::store::records::NamespaceRecord {
            schema: 1,
            uid: String::new(),
            labels: BTreeMap::new(),
            created: now,
            deleting: false,
            quota: Default::default(),
            access: Default::default(),
            ingress_hosts: None,
            defaults: Default::default(),
        };
        record.quota.events = Some(1);
        let stored = Stored {
            revision: 1,
            value: record,
        };
        snapshot.namespaces.insert("a".to_owned(), stored);
        let dropped = ["1", "3"].map(|id| WriteOperation::Delete(keys::event(id)));
        assert_eq!(planned_operations(&snapshot, now), dropped);
    }

    #[test]
    fn what_has_not_happened_again_for_three_days_is_dropped() {
        let mut snapshot = crate::Snapshot::default();
        for (id, time) in [
            ("1", "2026-01-06T23:59:59Z"),
            ("2", "2026-01-07T00:00:00Z"),
            ("3", "2026-01-09T00:00:00Z"),
        ] {
            let event = Event {
                id: id.to_owned(),
                timestamp: ApiTime::parse(time),
                ..Event::default()
            };
            let stored = Stored {
                revision: 1,
                value: Arc::new(event),
            };
            snapshot.events.insert(id.to_owned(), stored);
        }
        let now = "2026-01-10T00:00:00Z".parse().unwrap();
        let dropped = WriteOperation::Delete(keys::event("1"));
        assert_eq!(planned_operations(&snapshot, now), [dropped]);
    }
}
