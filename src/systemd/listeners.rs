//! The waiters on one manager: for the end of a job, or for changes of units.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use futures_util::stream;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::{JobResult, UnitEvent, UnitEvents};

/// Most unread ended jobs of one waiter.
const JOBS_UNREAD: usize = 1024;
/// Most unread changed units of one listener; further ones become [`UnitEvent::All`].
const EVENTS_UNREAD: usize = 4096;

/// All waiters on one connection.
#[derive(Debug, Default)]
pub struct BusListeners {
    state: Mutex<ListenerRegistry>,
}

#[derive(Debug, Default)]
struct ListenerRegistry {
    closed: bool,
    next: u64,
    jobs: BTreeMap<u64, mpsc::Sender<(String, JobResult)>>,
    events: Vec<Weak<EventInbox>>,
}

/// Waits for the end of a job. Has to be made before the job is queued, so that no end is missed.
#[derive(Debug)]
pub struct JobWaiter {
    number: u64,
    receiver: mpsc::Receiver<(String, JobResult)>,
    listeners: Arc<BusListeners>,
}

impl JobWaiter {
    /// The result of the job at `path`; `None` when the connection ended first.
    pub async fn result(&mut self, path: &str) -> Option<JobResult> {
        while let Some((job, result)) = self.receiver.recv().await {
            if job == path {
                return Some(result);
            }
        }
        None
    }
}

impl Drop for JobWaiter {
    fn drop(&mut self) {
        self.listeners.with(|state| {
            state.jobs.remove(&self.number);
        });
    }
}

impl BusListeners {
    fn with<T>(&self, change: impl FnOnce(&mut ListenerRegistry) -> T) -> T {
        change(&mut self.state.lock())
    }

    /// A waiter that receives every job that ends from now on.
    pub fn job_waiter(self: &Arc<Self>) -> JobWaiter {
        let (sender, receiver) = mpsc::channel(JOBS_UNREAD);
        let number = self.with(|state| {
            state.next += 1;
            if !state.closed {
                state.jobs.insert(state.next, sender);
            }
            state.next
        });
        JobWaiter {
            number,
            receiver,
            listeners: Arc::clone(self),
        }
    }

    /// A stream of events that begins with [`UnitEvent::All`].
    pub fn events(&self) -> UnitEvents {
        let inbox = Arc::new(EventInbox::default());
        inbox.put(UnitEvent::All);
        self.with(|state| {
            if state.closed {
                inbox.close();
            } else {
                state.events.push(Arc::downgrade(&inbox));
            }
        });
        Box::pin(stream::unfold(inbox, |inbox| async move {
            let event = inbox.next().await?;
            Some((event, inbox))
        }))
    }

    /// Notifies all waiters of an ended job. A waiter with too many unread jobs is removed.
    pub fn job_ended(&self, job: &str, result: JobResult) {
        self.with(|state| {
            state
                .jobs
                .retain(|_, waiter| waiter.try_send((job.to_owned(), result)).is_ok());
        });
    }

    /// Notifies all listeners of an event.
    pub fn event(&self, event: &UnitEvent) {
        self.with(|state| {
            state.events.retain(|listener| {
                listener
                    .upgrade()
                    .map(|inbox| inbox.put(event.clone()))
                    .is_some()
            });
        });
    }

    /// Ends every wait and every stream.
    pub fn close(&self) {
        self.with(|state| {
            state.closed = true;
            state.jobs.clear();
            for inbox in state.events.drain(..).filter_map(|inbox| inbox.upgrade()) {
                inbox.close();
            }
        });
    }
}

/// Unread events of one listener. Each unit is in it at most once.
#[derive(Debug, Default)]
struct EventInbox {
    content: Mutex<UnreadEvents>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct UnreadEvents {
    all: bool,
    closed: bool,
    changed: BTreeSet<String>,
}

impl EventInbox {
    fn with<T>(&self, change: impl FnOnce(&mut UnreadEvents) -> T) -> T {
        change(&mut self.content.lock())
    }

    fn put(&self, event: UnitEvent) {
        self.with(|content| {
            match event {
                UnitEvent::Changed(_) if content.all => {}
                UnitEvent::Changed(unit) if content.changed.len() < EVENTS_UNREAD => {
                    content.changed.insert(unit);
                }
                UnitEvent::Changed(_) | UnitEvent::All => {
                    content.changed.clear();
                    content.all = true;
                }
            };
        });
        self.arrived.notify_one();
    }

    fn close(&self) {
        self.with(|content| content.closed = true);
        self.arrived.notify_one();
    }

    async fn next(&self) -> Option<UnitEvent> {
        loop {
            let (event, closed) = self.with(|content| {
                let event = if std::mem::take(&mut content.all) {
                    Some(UnitEvent::All)
                } else {
                    content.changed.pop_first().map(UnitEvent::Changed)
                };
                (event, content.closed)
            });
            match event {
                Some(event) => return Some(event),
                None if closed => return None,
                None => self.arrived.notified().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn merges_unread_events_of_a_unit() {
        let listeners = Arc::new(BusListeners::default());
        let mut events = listeners.events();
        assert_eq!(events.next().await, Some(UnitEvent::All));
        for unit in ["kat-b", "kat-a", "kat-b"] {
            listeners.event(&UnitEvent::Changed(unit.to_owned()));
        }
        listeners.close();
        let rest: Vec<_> = events.collect().await;
        assert_eq!(
            rest,
            [
                UnitEvent::Changed("kat-a".to_owned()),
                UnitEvent::Changed("kat-b".to_owned())
            ]
        );
    }

    #[tokio::test]
    async fn a_flood_of_events_becomes_all() {
        let listeners = Arc::new(BusListeners::default());
        let mut events = listeners.events();
        assert_eq!(events.next().await, Some(UnitEvent::All));
        for number in 0..=EVENTS_UNREAD {
            listeners.event(&UnitEvent::Changed(format!("kat-{number}")));
        }
        listeners.close();
        assert_eq!(events.collect::<Vec<_>>().await, [UnitEvent::All]);
    }

    #[tokio::test]
    async fn a_job_that_ends_before_its_path_is_known_is_not_missed() {
        let listeners = Arc::new(BusListeners::default());
        let mut waiter = listeners.job_waiter();
        listeners.job_ended("/job/1", JobResult::Failed);
        listeners.job_ended("/job/2", JobResult::Done);
        assert_eq!(waiter.result("/job/2").await, Some(JobResult::Done));
        listeners.close();
        assert_eq!(waiter.result("/job/3").await, None);
        let mut late = listeners.job_waiter();
        assert_eq!(late.result("/job/4").await, None);
    }
}
