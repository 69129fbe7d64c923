//! Logs of instances for the API: from the journal for this machine's instances, from their agents
//! for others.

use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use crate::{
    cluster::peer_agents::PeerAgents,
    desired_state::instance_history::{InstanceHistory, MOST_OF_A_WORKLOAD},
};
use kat_api::{InstanceLogs, LogStream, LoggedWorkload, LogsError};
use kat_client::{ClientError, JsonLines};
use kat_systemd::{JournalQuery, LogEntries, LogEntry, LogError, LogSource, ManagerSource};
use kat_types::{
    api::{GoneInstance, GoneInstances, LogLine, LogQuery, MachineAway},
    store::snapshot::InstanceEntry,
};

/// Longest time to find out which run is the previous one.
const LOOK_BACK: Duration = Duration::from_secs(20);
/// Longest time for a machine to say which instances it had: one that does not answer does not hold
/// up what the others know.
const REMEMBER: Duration = Duration::from_secs(4);
/// Longest time of one call in which machines say that: one call does not keep others waiting.
const REMEMBER_IN_ALL: Duration = Duration::from_secs(10);
/// Machines that are asked for that at once, by one call.
const ASKED_AT_ONCE: usize = 8;

/// Logs of this machine's instances.
pub(crate) struct JournalLogs {
    pub journal: Arc<dyn LogSource>,
    /// The user managers, which know each unit's present run.
    pub managers: Arc<dyn ManagerSource>,
    /// Name of this machine.
    pub node: String,
    /// The instances that this machine had.
    pub history: InstanceHistory,
}

impl JournalLogs {
    /// The selected lines; unreadable entries are left out.
    fn lines(&self, query: &JournalQuery) -> LogStream {
        let lines = self.journal.entries(query).filter_map(|entry| {
            std::future::ready(line_or_error(entry).map(|entry| entry.map(|one| line(&one))))
        });
        Box::pin(lines)
    }

    /// The selected lines of an instance of this machine, until it is gone.
    fn followed(&self, instance: &str, query: JournalQuery) -> LogStream {
        let (history, instance) = (self.history.clone(), instance.to_owned());
        let journal = Arc::clone(&self.journal);
        let complete = async move {
            history.until_gone(&instance).await;
            // The program has ended, so that journald has its last line.
            if let Err(error) = journal.synchronize().await {
                tracing::warn!("the last lines of a log may be missing: {error}");
            }
        };
        let log = FollowedLog {
            entries: self.journal.entries(&query),
            opened: SystemTime::now(),
            complete: Some(Box::pin(complete)),
            journal: Arc::clone(&self.journal),
            query,
        };
        Box::pin(stream::unfold(log, |mut log| async move {
            let next = log.next().await?;
            Some((next.map(|entry| line(&entry)), log))
        }))
    }

    /// The container of the last run with log entries before the present run, which may have none
    /// yet. While the unit's state is unknown, the last run with log entries counts as the present
    /// one.
    async fn previous_run(&self, query: &JournalQuery) -> Result<Option<String>, LogsError> {
        let manager = self.managers.user(query.uid);
        let present = match manager.invocation_id(&query.unit).await {
            Ok(id) => Some(id).filter(|id| !id.is_empty()),
            Err(error) => {
                tracing::debug!(unit = query.unit, "the present run is not known: {error:#}");
                None
            }
        };
        let mut entries = self.journal.entries(&JournalQuery {
            newest_first: true,
            since: None,
            tail: None,
            ..query.clone()
        });
        let mut of_present: Option<String> = None;
        while let Some(entry) = entries.next().await {
            let Some(entry) = line_or_error(entry).transpose()? else {
                continue;
            };
            let Some(container) = entry.container_id else {
                continue;
            };
            if of_present.as_ref() == Some(&container) {
                continue;
            }
            let is_present = match (&entry.invocation_id, &present) {
                (Some(id), Some(present)) => id == present,
                _ => of_present.is_none(),
            };
            if !is_present {
                return Ok(Some(container));
            }
            of_present = Some(container);
        }
        Ok(None)
    }
}

/// The log of an instance, which ends after the last line of the instance.
struct FollowedLog {
    journal: Arc<dyn LogSource>,
    /// What is not read yet.
    query: JournalQuery,
    entries: LogEntries,
    opened: SystemTime,
    /// Ready when the journal has the last line of the instance; `None` after that. The follower is read
    /// meanwhile: journald may take longer than a reader waits for the next line.
    complete: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl FollowedLog {
    async fn next(&mut self) -> Option<Result<LogEntry, LogsError>> {
        loop {
            let entry = match self.complete.as_mut() {
                None => self.entries.next().await,
                Some(complete) => tokio::select! {
                    biased;
                    () = complete => {
                        self.read_the_rest();
                        continue;
                    }
                    entry = self.entries.next() => entry,
                },
            };
            let Some(entry) = line_or_error(entry?) else {
                continue;
            };
            if let Ok(entry) = &entry {
                self.query.after_cursor = Some(entry.cursor.clone());
                self.query.tail = None;
            }
            return Some(entry);
        }
    }

    /// The follower may be a little behind.
    fn read_the_rest(&mut self) {
        self.complete = None;
        self.query.follow = false;
        if self.query.tail == Some(0) {
            // Of the lines until now none would be shown, also not those that the follower has not seen.
            self.query.tail = None;
            self.query.since = self.query.since.max(Some(self.opened));
        }
        self.entries = self.journal.entries(&self.query);
    }
}

/// `None` for an error that is skipped.
fn line_or_error(entry: Result<LogEntry, LogError>) -> Option<Result<LogEntry, LogsError>> {
    match entry {
        Ok(entry) => Some(Ok(entry)),
        Err(error) if error.is_passing() => None,
        Err(error) => Some(Err(LogsError::Journal(error.to_string()))),
    }
}

fn line(entry: &LogEntry) -> LogLine {
    let time = i64::try_from(entry.time_us).unwrap_or(0);
    LogLine {
        timestamp: Timestamp::from_microsecond(time).ok().into(),
        message: entry.text(),
        priority: entry.priority,
        error: None,
    }
}

#[async_trait]
impl InstanceLogs for JournalLogs {
    async fn open(
        &self,
        instance: &InstanceEntry,
        query: LogQuery,
    ) -> Result<LogStream, LogsError> {
        let assignment = &instance.assignment.value;
        let since = query.since.map(system_time);
        let mut wanted = JournalQuery {
            uid: assignment.user.uid,
            unit: match &query.container {
                None => assignment.unit(),
                Some(name) => assignment.unit_of(name).ok_or_else(|| {
                    LogsError::Unavailable(format!(
                        "`{}` has no container `{name}`",
                        assignment.instance
                    ))
                })?,
            },
            since,
            tail: query.tail,
            follow: query.follow,
            program_output_only: true,
            ..JournalQuery::default()
        };
        if query.previous {
            let looking = tokio::time::timeout(LOOK_BACK, self.previous_run(&wanted));
            let found = looking.await.map_err(|_| {
                LogsError::Unavailable(
                    "the present run wrote too much to look back before it".to_owned(),
                )
            })??;
            let Some(container) = found else {
                return Ok(Box::pin(stream::empty()));
            };
            wanted.container = Some(container);
        }
        Ok(match wanted.follow {
            true => self.followed(&assignment.instance, wanted),
            false => self.lines(&wanted),
        })
    }

    async fn gone(&self, workload: &LoggedWorkload, _: &[String]) -> GoneInstances {
        let LoggedWorkload {
            namespace,
            name,
            uid,
        } = workload;
        let gone = self.history.gone(namespace, name, uid).into_iter();
        let items = gone.map(|(instance, held)| GoneInstance {
            instance,
            node: self.node.clone(),
            generation: held.generation,
            since: held.since.into(),
            until: held.until.into(),
        });
        GoneInstances {
            items: items.collect(),
            away: Vec::new(),
        }
    }

    /// Of the journal only lines by the user that the instance had, by the container's name, and of
    /// the time in which it was here: another workload may have the uid by now, and it may have had
    /// it before.
    async fn open_gone(
        &self,
        workload: &LoggedWorkload,
        _: &str,
        instance: &str,
        query: LogQuery,
    ) -> Result<Option<LogStream>, LogsError> {
        let LoggedWorkload {
            namespace,
            name,
            uid,
        } = workload;
        let gone = self.history.gone(namespace, name, uid).into_iter();
        let Some((_, held)) = gone.into_iter().find(|(id, _)| id == instance) else {
            return Ok(None);
        };
        let unit = match &query.container {
            None => held.unit,
            Some(name) => held.containers.get(name).cloned().ok_or_else(|| {
                LogsError::Unavailable(format!("`{instance}` had no container `{name}`"))
            })?,
        };
        let since = query
            .since
            .map_or(held.since, |since| since.max(held.since));
        // journalctl refuses such times.
        if held.until.is_some_and(|until| since >= until) {
            return Ok(Some(Box::pin(stream::empty())));
        }
        Ok(Some(self.lines(&JournalQuery {
            uid: held.uid,
            unit,
            since: Some(system_time(since)),
            until: held.until.map(system_time),
            tail: query.tail,
            program_output_only: true,
            ..JournalQuery::default()
        })))
    }
}

fn system_time(time: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH
        + Duration::from_micros(u64::try_from(time.as_microsecond()).unwrap_or(0))
}

/// Logs of all instances of the cluster.
pub(crate) struct ClusterLogs {
    /// Name of this machine.
    pub node: String,
    /// Logs of this machine's instances.
    pub here: Arc<dyn InstanceLogs>,
    /// Connections to the other machines' agents.
    pub agents: PeerAgents,
}

#[async_trait]
impl InstanceLogs for ClusterLogs {
    async fn open(
        &self,
        instance: &InstanceEntry,
        query: LogQuery,
    ) -> Result<LogStream, LogsError> {
        let node = instance.node.clone();
        if node == self.node {
            return self.here.open(instance, query).await;
        }
        let client = self.agents.client(&node).await;
        let client = client.map_err(LogsError::Away)?;
        let assignment = &instance.assignment.value;
        let lines = client
            .logs(
                &assignment.namespace,
                &assignment.workload,
                &assignment.instance,
                &query,
            )
            .await
            .map_err(|error| refused(&node, &error))?;
        Ok(relayed(node, lines))
    }

    async fn gone(&self, workload: &LoggedWorkload, nodes: &[String]) -> GoneInstances {
        let mut found = self.here.gone(workload, &[]).await;
        let mut others = nodes.to_vec();
        others.retain(|node| *node != self.node);
        let asked = others
            .iter()
            .map(|node| self.remembered(workload, node.clone()));
        let asked = asked.collect();
        gather(&mut found, others, asked).await;
        found
    }

    async fn open_gone(
        &self,
        workload: &LoggedWorkload,
        node: &str,
        instance: &str,
        query: LogQuery,
    ) -> Result<Option<LogStream>, LogsError> {
        if node == self.node {
            return self.here.open_gone(workload, node, instance, query).await;
        }
        let client = self.agents.client(node).await;
        let client = client.map_err(LogsError::Away)?;
        let query = LogQuery {
            gone_of: Some(workload.uid.clone()),
            ..query
        };
        let lines = client.logs(&workload.namespace, &workload.name, instance, &query);
        match lines.await {
            Ok(lines) => Ok(Some(relayed(node.to_owned(), lines))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(refused(node, &error)),
        }
    }
}

/// Adds what the machines `nodes` say, each with its name. What a machine says is not trusted: it
/// speaks for itself alone, of no more instances than it remembers of a workload.
async fn gather<Asked>(found: &mut GoneInstances, nodes: Vec<String>, asked: Vec<Asked>)
where
    Asked: Future<Output = (String, Result<Vec<GoneInstance>, String>)>,
{
    let deadline = Instant::now() + REMEMBER_IN_ALL;
    let mut silent: BTreeSet<String> = nodes.into_iter().collect();
    let mut answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
    while let Ok(Some((node, answer))) = timeout_at(deadline, answers.next()).await {
        silent.remove(&node);
        match answer {
            Ok(items) => {
                let items = items.into_iter().take(MOST_OF_A_WORKLOAD);
                found.items.extend(items.map(|one| GoneInstance {
                    node: node.clone(),
                    ..one
                }));
            }
            Err(message) => found.away.push(MachineAway { node, message }),
        }
    }
    found
        .away
        .extend(silent.into_iter().map(|node| MachineAway {
            message: format!(
                "the machine `{node}` was not asked to the end: the others took {} s",
                REMEMBER_IN_ALL.as_secs()
            ),
            node,
        }));
}

impl ClusterLogs {
    /// What another machine remembers, with its name; the error is a sentence that has it too.
    async fn remembered(
        &self,
        workload: &LoggedWorkload,
        node: String,
    ) -> (String, Result<Vec<GoneInstance>, String>) {
        let found = self.asked(workload, &node).await;
        (node, found)
    }

    async fn asked(
        &self,
        workload: &LoggedWorkload,
        node: &str,
    ) -> Result<Vec<GoneInstance>, String> {
        let client = self.agents.client(node).await?;
        let LoggedWorkload {
            namespace,
            name,
            uid,
        } = workload;
        let asking = client.gone_instances(namespace, name, Some(uid));
        match tokio::time::timeout(REMEMBER, asking).await {
            Ok(Ok(found)) => Ok(found.items),
            Ok(Err(error)) if error.is_not_found() => Err(format!(
                "the machine `{node}` has a version that does not remember instances"
            )),
            Ok(Err(error)) => Err(crate::cluster::peer_agents::away(node, &error)),
            Err(_) => Err(format!(
                "the machine `{node}` did not answer within {} s",
                REMEMBER.as_secs()
            )),
        }
    }
}

/// The error where another machine's agent refused a log.
fn refused(node: &str, error: &ClientError) -> LogsError {
    match error {
        ClientError::Refused(_) => {
            LogsError::Unavailable(format!("the machine `{node}` says: {error}"))
        }
        _ => LogsError::Away(crate::cluster::peer_agents::away(node, error)),
    }
}

/// Passes lines on until the other machine ends the log or disconnects.
fn relayed(node: String, lines: JsonLines<LogLine>) -> LogStream {
    Box::pin(stream::unfold(Some(lines), move |lines| {
        let node = node.clone();
        async move {
            let mut lines = lines?;
            match lines.next().await {
                Ok(Some(line)) => Some((Ok(line), Some(lines))),
                Ok(None) => None,
                Err(error) => {
                    let away = LogsError::Away(crate::cluster::peer_agents::away(&node, &error));
                    Some((Err(away), None))
                }
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::atomic::{AtomicBool, Ordering},
    };

    use parking_lot::Mutex;

    use super::*;
    use kat_systemd::{LogEntries, UserSessions};
    use kat_testing::systemd::fake::{FakeMachine, UnitBehaviour};
    use kat_types::{assignment::Assignment, store::revisions::Stored};

    /// Log lines: the container, the run of the unit, and the text.
    struct Lines(Vec<(&'static str, Option<String>, &'static str)>);

    #[async_trait]
    impl LogSource for Lines {
        async fn synchronize(&self) -> Result<(), LogError> {
            Ok(())
        }

        fn entries(&self, query: &JournalQuery) -> LogEntries {
            let mut found: Vec<Result<LogEntry, LogError>> = (1_u64..)
                .zip(&self.0)
                .filter(|(_, (container, _, _))| {
                    let wanted = query.container.as_deref();
                    wanted.is_none_or(|wanted| wanted == *container)
                })
                .map(|(number, (container, run, text))| {
                    let line = serde_json::json!({
                        "__REALTIME_TIMESTAMP": number.to_string(), "__CURSOR": "c",
                        "CONTAINER_ID_FULL": container, "_SYSTEMD_INVOCATION_ID": run,
                        "MESSAGE": text,
                    });
                    Ok(LogEntry::parse(line.to_string().as_bytes()).unwrap())
                })
                .collect();
            if query.newest_first {
                found.reverse();
            }
            Box::pin(stream::iter(found))
        }
    }

    async fn previous(
        machine: &Arc<FakeMachine>,
        lines: Vec<(&'static str, Option<String>, &'static str)>,
    ) -> Vec<String> {
        let text = include_str!("../../../tests/render/every-field/assignment.json");
        let assignment: Assignment = serde_json::from_str(text).unwrap();
        let logs = JournalLogs {
            journal: Arc::new(Lines(lines)),
            managers: Arc::<FakeMachine>::clone(machine),
            node: "n1".to_owned(),
            history: InstanceHistory::stored("/nonexistent/history.json".into()),
        };
        let entry = InstanceEntry {
            node: "n1".to_owned(),
            created_revision: 0,
            assignment: Stored {
                revision: 0,
                value: Arc::new(assignment),
            },
        };
        let query = LogQuery {
            previous: true,
            ..LogQuery::default()
        };
        let found = logs.open(&entry, query).await.unwrap();
        found.map(|line| line.unwrap().message).collect().await
    }

    #[tokio::test]
    async fn the_run_before_the_present_one_is_chosen() {
        let text = include_str!("../../../tests/render/every-field/assignment.json");
        let assignment: Assignment = serde_json::from_str(text).unwrap();
        let machine = Arc::new(FakeMachine::new());
        let uid = assignment.user.uid;
        machine.set_linger(uid, true).await.unwrap();
        let manager = machine.user(uid);
        machine
            .user_manager(uid)
            .define(&assignment.unit(), UnitBehaviour::default());
        let start = manager
            .start(&assignment.unit(), Duration::from_secs(5))
            .await;
        start.unwrap();
        let now = manager.invocation_id(&assignment.unit()).await;
        let present = Some(now.unwrap());
        let run = |id: &str| Some(id.to_owned());
        let before = vec![
            ("a", run("1"), "a1"),
            ("b", run("2"), "b1"),
            ("b", run("2"), "b2"),
        ];
        // The present run has not logged anything yet, so the last run that logged is the previous
        // one.
        assert_eq!(previous(&machine, before.clone()).await, ["b1", "b2"]);
        let mut spoken = before.clone();
        spoken.push(("c", present.clone(), "c1"));
        assert_eq!(previous(&machine, spoken).await, ["b1", "b2"]);
        assert!(
            previous(&machine, vec![("c", present, "c1")])
                .await
                .is_empty()
        );
        // If entries have no run, or if the present run is unknown, the last run that logged counts
        // as the present one.
        let unmarked = vec![("a", None, "a1"), ("b", None, "b1")];
        assert_eq!(previous(&machine, unmarked).await, ["a1"]);
        machine.user_manager(uid).set_unreachable(Some("gone"));
        assert_eq!(previous(&machine, before).await, ["a1"]);
    }

    /// A journal that has the last line only once it is synchronized, and whose follower never sees
    /// that.
    #[derive(Default)]
    struct LateLine {
        /// What the follower sees.
        seen: Vec<&'static str>,
        /// journald does not answer.
        hangs: bool,
        synchronized: AtomicBool,
        queries: Mutex<Vec<JournalQuery>>,
    }

    #[async_trait]
    impl LogSource for LateLine {
        fn entries(&self, query: &JournalQuery) -> LogEntries {
            self.queries.lock().push(query.clone());
            let entry = |message: &str| -> Result<LogEntry, LogError> {
                let line = serde_json::json!({
                    "__REALTIME_TIMESTAMP": "1", "__CURSOR": message, "MESSAGE": message,
                });
                Ok(LogEntry::parse(line.to_string().as_bytes()).unwrap())
            };
            match (query.follow, self.synchronized.load(Ordering::SeqCst)) {
                (true, _) => {
                    let seen: Vec<_> = self.seen.iter().copied().map(entry).collect();
                    Box::pin(stream::iter(seen).chain(stream::pending()))
                }
                (false, true) => Box::pin(stream::iter([entry("last")])),
                (false, false) => Box::pin(stream::empty()),
            }
        }

        async fn synchronize(&self) -> Result<(), LogError> {
            if self.hangs {
                std::future::pending::<()>().await;
            }
            self.synchronized.store(true, Ordering::SeqCst);
            Ok(())
        }
    }

    /// The followed log of an instance of this machine, from its last `tail` lines on.
    async fn followed(journal: &Arc<LateLine>, tail: u64) -> (LogStream, InstanceHistory) {
        let text = include_str!("../../../tests/render/every-field/assignment.json");
        let assignment: Assignment = serde_json::from_str(text).unwrap();
        let history = InstanceHistory::stored("/nonexistent/history.json".into());
        let here = (assignment.instance.clone(), assignment.clone());
        history.note(&BTreeMap::from([here]), Timestamp::UNIX_EPOCH);
        let logs = JournalLogs {
            journal: Arc::<LateLine>::clone(journal),
            managers: Arc::new(FakeMachine::new()),
            node: "n1".to_owned(),
            history: history.clone(),
        };
        let entry = InstanceEntry {
            node: "n1".to_owned(),
            created_revision: 0,
            assignment: Stored {
                revision: 0,
                value: Arc::new(assignment),
            },
        };
        let query = LogQuery {
            follow: true,
            tail: Some(tail),
            ..LogQuery::default()
        };
        (logs.open(&entry, query).await.unwrap(), history)
    }

    #[tokio::test(start_paused = true)]
    async fn a_followed_log_ends_with_the_last_line_of_its_instance() {
        let journal = Arc::new(LateLine {
            seen: vec!["first"],
            ..LateLine::default()
        });
        let (mut found, history) = followed(&journal, 10).await;
        assert_eq!(found.next().await.unwrap().unwrap().message, "first");
        let more = tokio::time::timeout(Duration::from_secs(60), found.next()).await;
        assert!(more.is_err(), "the instance is still there");

        history.note(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let rest: Vec<_> = found.map(|line| line.unwrap().message).collect().await;
        assert_eq!(rest, ["last"]);
        let queries = journal.queries.lock().clone();
        assert_eq!(queries.len(), 2);
        assert_eq!(queries[1].after_cursor.as_deref(), Some("first"));
        assert_eq!(queries[1].tail, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_journald_that_hangs_holds_up_no_line_that_its_follower_has() {
        let journal = Arc::new(LateLine {
            seen: vec!["first", "second"],
            hangs: true,
            ..LateLine::default()
        });
        let (mut found, history) = followed(&journal, 10).await;
        history.note(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        for expected in ["first", "second"] {
            let line = tokio::time::timeout(Duration::from_secs(1), found.next()).await;
            assert_eq!(line.unwrap().unwrap().unwrap().message, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_is_followed_from_now_on_has_the_last_line_as_its_first() {
        let journal = Arc::new(LateLine::default());
        let (mut found, history) = followed(&journal, 0).await;
        let none = tokio::time::timeout(Duration::from_secs(60), found.next()).await;
        assert!(none.is_err(), "the instance has said nothing yet");
        history.note(&BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let rest: Vec<_> = found.map(|line| line.unwrap().message).collect().await;
        assert_eq!(rest, ["last"]);
        let queries = journal.queries.lock().clone();
        assert_eq!((queries[0].tail, queries[1].tail), (Some(0), None));
        assert!(queries[1].since.is_some());
    }

    fn gone(number: usize) -> GoneInstance {
        GoneInstance {
            instance: format!("web-{number}"),
            node: "victim".to_owned(),
            ..GoneInstance::default()
        }
    }

    #[tokio::test]
    async fn a_machine_speaks_for_itself_alone_and_of_no_more_than_it_remembers() {
        let mut found = GoneInstances::default();
        let answers = [
            ("mean", Ok((0..5000).map(gone).collect())),
            ("n2", Ok(vec![gone(1)])),
            ("n3", Err("away".to_owned())),
        ];
        let nodes = answers.iter().map(|(node, _)| (*node).to_owned()).collect();
        let asked = answers.map(|(node, answer)| std::future::ready((node.to_owned(), answer)));
        gather(&mut found, nodes, asked.into_iter().collect()).await;
        let of = |node: &str| found.items.iter().filter(|one| one.node == node).count();
        assert_eq!(found.items.len(), MOST_OF_A_WORKLOAD + 1);
        assert_eq!((of("mean"), of("n2")), (MOST_OF_A_WORKLOAD, 1));
        assert_eq!(found.away.len(), 1);
        assert_eq!(found.away[0].node, "n3");
    }

    #[tokio::test(start_paused = true)]
    async fn the_whole_call_has_an_end_and_keeps_what_was_said_before_it() {
        let mut found = GoneInstances::default();
        let nodes: Vec<String> = (0..40).map(|number| format!("n{number:02}")).collect();
        let asked = nodes.iter().cloned().map(|node| async move {
            if node != "n00" {
                tokio::time::sleep(REMEMBER).await;
            }
            (node, Ok::<_, String>(vec![gone(1)]))
        });
        let asked = asked.collect();
        let began = Instant::now();
        gather(&mut found, nodes, asked).await;
        assert!(began.elapsed() < REMEMBER_IN_ALL + Duration::from_secs(1));
        assert!(found.items.iter().any(|one| one.node == "n00"));
        assert!(!found.away.is_empty());
        assert_eq!(found.items.len() + found.away.len(), 40);
    }

    #[tokio::test]
    async fn a_log_from_a_time_after_the_instances_end_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("instance-history.json");
        let history = serde_json::json!({"schema": 1, "instances": {"web-aaaaa": {
            "namespace": "shop", "workload": "web", "workloadUid": "u1", "uid": 20001,
            "generation": 1, "unit": "kat-shop-web-aaaaa.service",
            "since": "2026-11-20T09:00:00Z", "until": "2026-11-20T10:00:00Z",
        }}});
        std::fs::write(&path, history.to_string()).unwrap();
        let logs = JournalLogs {
            journal: Arc::new(Lines(vec![("a", None, "a1")])),
            managers: Arc::new(FakeMachine::new()),
            node: "n1".to_owned(),
            history: InstanceHistory::stored(path),
        };
        let workload = LoggedWorkload {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            uid: "u1".to_owned(),
        };
        for (since, lines) in [
            (None, 1),
            (Some("2026-11-20T09:30:00Z"), 1),
            (Some("2026-11-20T10:00:00Z"), 0),
            (Some("2026-11-20T11:00:00Z"), 0),
        ] {
            let query = LogQuery {
                since: since.map(|since| since.parse().unwrap()),
                ..LogQuery::default()
            };
            let found = logs.open_gone(&workload, "n1", "web-aaaaa", query).await;
            let found = found.unwrap().unwrap();
            assert_eq!(found.count().await, lines, "{since:?}");
        }
    }
}
