//! Doubles for the logs and sessions of machines, and for etcd's users.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;

use kat_api::{
    InputFrames, InstanceLogs, InstanceSessions, LogStream, LoggedWorkload, LogsError, NodeUsers,
    OutputFrames, SessionError, SessionRequest,
};
use kat_store::StoreError;
use kat_types::{
    api::{
        ApiTime, GoneInstance, GoneInstances, InstanceUsage, LogLine, LogQuery, NodeMeasurements,
        NodeUsage,
    },
    encoding::frames::{InputFrame, OutputFrame},
    store::snapshot::InstanceEntry,
};

/// Logs that record the queries.
#[derive(Default)]
pub(crate) struct SaidLogs {
    pub asked: Mutex<Vec<LogQuery>>,
    away: Mutex<Option<(String, usize)>>,
    /// The workloads whose instances that are gone were asked for, each with the instance, which is
    /// empty for the list.
    pub asked_gone: Mutex<Vec<(LoggedWorkload, String)>>,
    /// The instances that are gone, with the uid of their workload.
    pub gone: Mutex<Vec<(String, GoneInstance)>>,
    /// The machines that were to be asked for the last list of them.
    pub asked_nodes: Mutex<Vec<String>>,
}

impl SaidLogs {
    /// From now on the machine becomes unreachable after `after` lines.
    pub(crate) fn break_off(&self, reason: &str, after: usize) {
        *self.away.lock() = Some((reason.to_owned(), after));
    }
}

#[async_trait]
impl InstanceLogs for SaidLogs {
    async fn open(
        &self,
        instance: &InstanceEntry,
        query: LogQuery,
    ) -> Result<LogStream, LogsError> {
        use futures_util::StreamExt;
        let follow = query.follow;
        self.asked.lock().push(query);
        let name = instance.assignment.value.instance.clone();
        let lines = (0..3).map(move |number| {
            Ok(LogLine {
                timestamp: ApiTime::parse("2026-01-01T00:00:00.000000Z"),
                message: format!("{name} line {number}"),
                priority: 6,
                error: None,
            })
        });
        let mut lines: Vec<_> = lines.collect();
        if let Some((reason, after)) = self.away.lock().clone() {
            let away = LogsError::Away(reason);
            if after == 0 {
                return Err(away);
            }
            lines.truncate(after);
            lines.push(Err(away));
        }
        let lines = futures_util::stream::iter(lines);
        Ok(if follow {
            Box::pin(lines.chain(futures_util::stream::pending()))
        } else {
            Box::pin(lines)
        })
    }

    async fn gone(&self, workload: &LoggedWorkload, nodes: &[String]) -> GoneInstances {
        *self.asked_nodes.lock() = nodes.to_vec();
        let asked = (workload.clone(), String::new());
        self.asked_gone.lock().push(asked);
        let gone = self.gone.lock();
        let own = gone.iter().filter(|(uid, _)| *uid == workload.uid);
        GoneInstances {
            items: own.map(|(_, one)| one.clone()).collect(),
            away: Vec::new(),
        }
    }

    async fn open_gone(
        &self,
        workload: &LoggedWorkload,
        _: &str,
        instance: &str,
        _: LogQuery,
    ) -> Result<Option<LogStream>, LogsError> {
        let asked = (workload.clone(), instance.to_owned());
        self.asked_gone.lock().push(asked);
        let gone = self.gone.lock();
        let is_own =
            |(uid, one): &(String, GoneInstance)| *uid == workload.uid && one.instance == instance;
        Ok(gone.iter().any(is_own).then(|| {
            let line = LogLine {
                message: format!("{instance} is gone"),
                ..LogLine::default()
            };
            Box::pin(futures_util::stream::iter([Ok(line)])) as LogStream
        }))
    }
}

/// Sessions that echo their input and end with exit code 7.
#[derive(Default)]
pub(crate) struct Echo {
    pub begun: Mutex<Vec<SessionRequest>>,
    /// The callers of the sessions.
    pub callers: Mutex<Vec<Option<String>>>,
    /// Number of open sessions.
    pub open: Arc<AtomicUsize>,
    /// Number of requests for usage.
    pub counted: AtomicUsize,
    /// Number of requests for measurements.
    pub measured: AtomicUsize,
    /// What the machine says that it measures.
    pub measurements: Mutex<NodeMeasurements>,
    /// Why the machine cannot be reached, if it cannot.
    pub away: Mutex<Option<String>>,
}

struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl InstanceSessions for Echo {
    async fn begin(
        &self,
        caller: Option<&str>,
        instance: &InstanceEntry,
        request: SessionRequest,
        inputs: InputFrames,
    ) -> Result<OutputFrames, SessionError> {
        use futures_util::StreamExt;
        if request == SessionRequest::Forward(81) {
            return Err(SessionError::Conflict(
                "nothing answers on port 81".to_owned(),
            ));
        }
        self.begun.lock().push(request);
        let caller = caller.map(str::to_owned);
        self.callers.lock().push(caller);
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = Open(Arc::clone(&self.open));
        let name = instance.assignment.value.instance.clone();
        let greeting = futures_util::stream::iter([OutputFrame::Error(name.into())]);
        let state = Some((inputs, open));
        let said = futures_util::stream::unfold(state, |state| async move {
            let (mut inputs, open) = state?;
            match inputs.next().await? {
                InputFrame::Data(data) => Some((OutputFrame::Data(data), Some((inputs, open)))),
                InputFrame::Resize(size) => {
                    let text = format!("{}x{}", size.rows, size.columns);
                    Some((OutputFrame::Error(text.into()), Some((inputs, open))))
                }
                InputFrame::Signal(signal) => {
                    let text = format!("SIG{}", signal.name());
                    Some((OutputFrame::Error(text.into()), Some((inputs, open))))
                }
                InputFrame::End => Some((OutputFrame::Exit(7), None)),
            }
        });
        Ok(Box::pin(greeting.chain(said)))
    }

    /// Usage of a quarter of a processor, one second later at each request.
    async fn usage(
        &self,
        node: &str,
        instances: &[InstanceEntry],
    ) -> Result<NodeUsage, SessionError> {
        if let Some(reason) = self.away.lock().clone() {
            return Err(SessionError::Away(format!("the machine `{node}` {reason}")));
        }
        let second = self.counted.fetch_add(1, Ordering::SeqCst) as u64;
        let asked = instances
            .iter()
            .map(|entry| entry.assignment.value.instance.clone());
        // A machine reports the usage of all its instances.
        let all = asked.chain(["other-fffff".to_owned()]);
        let counted = all.map(|instance| InstanceUsage {
            instance,
            at: ApiTime::parse(&format!("2026-01-01T00:00:{second:02}Z")),
            cpu: Some(5_000_000_000 + second * 250_000_000),
            memory: Some(3 << 20),
        });
        Ok(NodeUsage {
            instances: counted.collect(),
        })
    }

    async fn measurements(&self, node: &str) -> Result<NodeMeasurements, SessionError> {
        self.measured.fetch_add(1, Ordering::SeqCst);
        if let Some(reason) = self.away.lock().clone() {
            return Err(SessionError::Away(format!("the machine `{node}` {reason}")));
        }
        Ok(self.measurements.lock().clone())
    }
}

/// The names of the store's users.
#[derive(Default)]
pub(crate) struct SeenUsers {
    pub names: Mutex<BTreeSet<String>>,
}

#[async_trait]
impl NodeUsers for SeenUsers {
    async fn remove_reader(&self, node: &str) -> Result<(), StoreError> {
        self.names.lock().remove(node);
        Ok(())
    }

    async fn remove(&self, node: &str) -> Result<(), StoreError> {
        self.names.lock().remove(node);
        Ok(())
    }
}
