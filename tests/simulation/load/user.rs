//! A person who applies, deletes, pauses and drains, and remembers what was acknowledged.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::body::Body;
use hyper::{Request, StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    faults::unwritable_workload::{self, LARGE_WRITER},
    load::{rollouts::Pauses, secrets},
    machines::joining_machine,
};
use kat_bundle::{SourceFile, pack};
use kat_testing::MemoryStore;
use kat_types::store::{keys, records::WorkloadMeta};

pub(crate) const NAMESPACE: &str = "default";
/// The workload with `onPartition: stop`.
pub(crate) const FENCED: &str = "db";
/// A workload that writes data. The data stays when the workload is deleted.
pub(crate) const WRITER: &str = "store";
/// A workload that writes data and has `onPartition: stop`. Its data is deleted with it.
pub(crate) const FENCED_WRITER: &str = "vault";

/// Whether the workload has a volume.
pub(crate) fn writes(workload: &str) -> bool {
    [WRITER, FENCED_WRITER, LARGE_WRITER].contains(&workload)
}

/// A request can take effect at most this long after its caller gave up.
pub(crate) const AT_LAST: Duration = Duration::from_secs(45);

/// The desired state of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wish {
    Absent,
    Present { version: u64, replicas: u32 },
}

impl Wish {
    /// The text of `workload.kat`; `None` for a workload that is to be absent.
    pub(crate) fn file(&self, workload: &str) -> Option<String> {
        let Self::Present { version, replicas } = self else {
            return None;
        };
        // These workloads must not run on both sides of a partition.
        let (on_partition, grace) = match workload {
            FENCED | FENCED_WRITER => ("stop", 2),
            _ => ("keep", 10),
        };
        let reclaim = match workload {
            FENCED_WRITER => "Delete",
            _ => "Retain",
        };
        let (volumes, mounts) = match writes(workload) {
            true => (
                json!([{"name": "data", "simpleClusterStorage": {}, "perReplica": true, "reclaim": reclaim}]),
                json!([{"name": "data", "mountPath": "/data"}]),
            ),
            false => (json!([]), json!([])),
        };
        let file = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": workload, "namespace": NAMESPACE},
            "spec": {
                "type": "Service",
                "source": {"image": format!("registry.example/{workload}:{version}")},
                "replicas": replicas,
                "restartPolicy": {"condition": "Always"},
                "onPartition": on_partition,
                "updateStrategy": strategy(workload, *version),
                "container": {"terminationGraceSeconds": grace, "volumeMounts": mounts,
                    "env": secrets::variables(workload)},
                "volumes": volumes,
            },
        });
        Some(file.to_string())
    }
}

/// The update strategies differ between workloads, and between the versions of one workload.
fn strategy(workload: &str, version: u64) -> serde_json::Value {
    match workload {
        FENCED | unwritable_workload::IN_PLACE => json!({"rolling": {"maxSurge": 0}}),
        "queue" if version.is_multiple_of(3) => json!({"type": "Simultaneous"}),
        "queue" => json!({"rolling": {"maxSurge": "60%"}, "progressDeadlineSeconds": 20}),
        _ => json!({}),
    }
}

/// What the person knows of one workload.
#[derive(Debug, Default)]
struct Memory {
    /// The last acknowledged state; `None` before the first.
    promised: Option<Wish>,
    /// Requests since then with an unknown outcome, and when each became unknown.
    perhaps: Vec<(Wish, Option<Instant>)>,
    busy: bool,
    answers: u64,
}

#[derive(Clone)]
pub(crate) struct Person {
    net: Arc<Net>,
    store: MemoryStore,
    monitor: Arc<Monitor>,
    known: Arc<Mutex<BTreeMap<String, Memory>>>,
    drains: Arc<Mutex<BTreeMap<String, Drain>>>,
    joins: Arc<Mutex<Join>>,
    pauses: Arc<Mutex<Pauses>>,
}

/// What is known of the machine that joins.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Join {
    /// A join request was sent.
    pub begun: bool,
    /// A join request was answered with success.
    pub done: bool,
    busy: bool,
}

/// What is known of a machine that was ever drained.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Drain {
    /// The last acknowledged request was a drain, not the end of one.
    pub promised: bool,
    /// A request since then has an unknown outcome.
    pub unsure: bool,
    busy: bool,
}

impl Person {
    pub(crate) fn new(net: &Arc<Net>, store: &MemoryStore, monitor: &Arc<Monitor>) -> Self {
        Self {
            net: Arc::clone(net),
            store: store.clone(),
            monitor: Arc::clone(monitor),
            known: Arc::default(),
            drains: Arc::default(),
            joins: Arc::default(),
            pauses: Arc::default(),
        }
    }

    fn with<T>(&self, workload: &str, change: impl FnOnce(&mut Memory) -> T) -> T {
        let mut known = self.known.lock();
        change(known.entry(workload.to_owned()).or_default())
    }

    /// The number of answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.known
            .lock()
            .values()
            .map(|memory| memory.answers)
            .sum()
    }

    pub(crate) fn workloads(&self) -> Vec<String> {
        self.known.lock().keys().cloned().collect()
    }

    /// The last acknowledged state, and whether no other request can have taken effect since.
    pub(crate) fn promised(&self, workload: &str) -> (Wish, bool) {
        self.with(workload, |memory| {
            let promised = memory.promised.clone().unwrap_or(Wish::Absent);
            (promised, memory.perhaps.is_empty())
        })
    }

    /// Sends a desired state to a machine; false while the previous request for the workload is in
    /// flight.
    pub(crate) fn wish(&self, to: &str, workload: &str, wish: Wish) -> bool {
        let free = self.with(workload, |memory| {
            if memory.busy {
                return false;
            }
            memory.busy = true;
            memory.perhaps.push((wish.clone(), None));
            true
        });
        if free {
            let (person, to, workload) = (self.clone(), to.to_owned(), workload.to_owned());
            tokio::spawn(async move { person.send(&to, &workload, wish).await });
        }
        free
    }

    async fn send(&self, to: &str, workload: &str, wish: Wish) {
        let path = format!("/v1alpha1/n/{NAMESPACE}/workloads/{workload}");
        let request = match wish.file(workload) {
            Some(text) => {
                let name = "workload.kat".to_owned();
                let archive = pack(&[SourceFile { name, text }]).unwrap();
                Request::put(path)
                    .header(header::CONTENT_TYPE, "application/gzip")
                    .body(Body::from(archive))
            }
            None => Request::delete(path).body(Body::empty()),
        };
        let answer = self.net.call(None, to, request.unwrap(), || ()).await;
        self.monitor
            .note(&format!("{to} answers {workload} {wish:?}: {answer:?}"));
        self.with(workload, |memory| {
            memory.busy = false;
            memory.answers += 1;
            match answer {
                Ok(status) if status.is_success() => {
                    memory.promised = Some(wish);
                    memory.perhaps.pop();
                    memory
                        .perhaps
                        .retain(|(_, since)| since.is_some_and(|since| since.elapsed() < AT_LAST));
                }
                // A refused request has no effect and never will.
                Ok(status) if status.is_client_error() && status != StatusCode::REQUEST_TIMEOUT => {
                    memory.perhaps.pop();
                }
                Ok(_) | Err(_) => {
                    if let Some((_, since)) = memory.perhaps.last_mut() {
                        *since = Some(Instant::now());
                    }
                }
            }
        });
    }

    pub(crate) fn join_state(&self) -> Join {
        *self.joins.lock()
    }

    /// Sends a join request of n5 to a machine, unless one is in flight or has succeeded.
    pub(crate) fn join(&self, to: &str) {
        {
            let mut joins = self.joins.lock();
            if joins.busy || joins.done {
                return;
            }
            (joins.begun, joins.busy) = (true, true);
        }
        let (person, to) = (self.clone(), to.to_owned());
        tokio::spawn(async move {
            let answer = person
                .net
                .call(Some("n5"), &to, joining_machine::request(), || ())
                .await;
            person
                .monitor
                .note(&format!("{to} answers n5, which joins: {answer:?}"));
            let mut joins = person.joins.lock();
            joins.busy = false;
            joins.done = answer.is_ok_and(|status| status.is_success());
        });
    }

    pub(crate) fn drains(&self) -> BTreeMap<String, Drain> {
        self.drains.lock().clone()
    }

    /// Asks a machine to drain another, or to end its drain, unless a request for that machine is
    /// in flight.
    pub(crate) fn drain(&self, to: &str, machine: &str, empty: bool) {
        {
            let mut drains = self.drains.lock();
            let drain = drains.entry(machine.to_owned()).or_default();
            if drain.busy {
                return;
            }
            (drain.busy, drain.unsure) = (true, true);
        }
        let (person, to, machine) = (self.clone(), to.to_owned(), machine.to_owned());
        tokio::spawn(async move {
            let path = format!("/v1alpha1/nodes/{machine}/drain");
            let request = if empty {
                Request::put(path)
            } else {
                Request::delete(path)
            };
            let request = request.body(Body::empty()).unwrap();
            let answer = person.net.call(None, &to, request, || ()).await;
            person.monitor.note(&format!(
                "{to} answers drain of {machine} {empty}: {answer:?}"
            ));
            let mut drains = person.drains.lock();
            let drain = drains.entry(machine).or_default();
            drain.busy = false;
            if answer.is_ok_and(|status| status.is_success()) {
                (drain.promised, drain.unsure) = (empty, false);
            }
        });
    }

    /// Workloads that may be paused.
    pub(crate) fn paused(&self) -> Vec<String> {
        self.pauses.lock().perhaps.iter().cloned().collect()
    }

    /// Pauses or resumes the rollouts of a workload, unless a request for the workload is in
    /// flight.
    pub(crate) fn pause(&self, to: &str, workload: &str, paused: bool) {
        {
            let mut pauses = self.pauses.lock();
            if !pauses.busy.insert(workload.to_owned()) {
                return;
            }
            pauses.perhaps.insert(workload.to_owned());
        }
        let (person, to, workload) = (self.clone(), to.to_owned(), workload.to_owned());
        tokio::spawn(async move {
            let path = format!("/v1alpha1/n/{NAMESPACE}/workloads/{workload}/pause");
            let request = if paused {
                Request::put(path)
            } else {
                Request::delete(path)
            };
            let request = request.body(Body::empty()).unwrap();
            let answer = person.net.call(None, &to, request, || ()).await;
            person.monitor.note(&format!(
                "{to} answers pause of {workload} {paused}: {answer:?}"
            ));
            let mut pauses = person.pauses.lock();
            pauses.busy.remove(&workload);
            // A workload that does not exist is not paused when it is created again.
            let done =
                answer.is_ok_and(|status| status.is_success() || status == StatusCode::NOT_FOUND);
            if done && !paused {
                pauses.perhaps.remove(&workload);
            }
        });
    }

    /// Every workload is stored as acknowledged last, or as a later request with an unknown
    /// outcome.
    pub(crate) fn check(&self) {
        for workload in self.workloads() {
            let (promised, perhaps) = self.with(&workload, |memory| {
                let perhaps: Vec<Wish> = memory
                    .perhaps
                    .iter()
                    .map(|(wish, _)| wish.clone())
                    .collect();
                (memory.promised.clone().unwrap_or(Wish::Absent), perhaps)
            });
            let stored = self.stored(&workload);
            let is = |wish: &Wish| wish.file(&workload) == stored;
            if !is(&promised) && !perhaps.iter().any(is) {
                self.monitor.violated(format!(
                    "{workload} was promised to be {promised:?} (or {perhaps:?}), and is {stored:?}: an acknowledged apply is lost"
                ));
            }
        }
    }

    /// The stored `workload.kat` of a workload that is not being deleted.
    fn stored(&self, workload: &str) -> Option<String> {
        let one = |key: &str| {
            self.store
                .peek(key)
                .items
                .into_iter()
                .find(|item| item.key == key)
        };
        let meta = one(&keys::workload_meta(NAMESPACE, workload))?;
        let meta: WorkloadMeta = serde_json::from_slice(&meta.value).unwrap();
        let file = one(&keys::manifest(NAMESPACE, workload, "workload.kat"))?;
        (!meta.deleting).then(|| String::from_utf8(file.value).unwrap())
    }
}
