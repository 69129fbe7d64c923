//! The server on the hook's socket.
//!
//! Any user may connect; each request is authorized here: the caller's uid must be that of the
//! instance, and the container is verified ([`verify`](super::verify)). The protocol is one line in
//! each direction, with at most 4 KiB and five seconds for the request.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    attachments::{AttachmentError, Attachments},
    fence::{DeadlineFence, DeadlinePassed},
    verify::VerifyError,
};
use crate::{
    containers::journal_budget::LineBudget, isolation::enforcement::EnforcedIsolation,
    state_files::StateFiles,
};
use kat_daemon::watchdog::LoopPulse;
use kat_types::{
    encoding::json,
    machine::network::{HookAnswer, HookRequest, InstanceNetwork, NodeNetwork, StartGate},
};

/// Longest request in bytes, with its line break.
const MAXIMUM_REQUEST: usize = 4096;
/// Longest time to send the request, and to receive the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the rules of isolation.
const ISOLATION_LIMIT: Duration = Duration::from_secs(15);
/// Most pending calls of one uid.
const CALLS_OF_ONE_USER: usize = 64;
/// Most pending calls of all users without an instance together: one person may have many uids.
const CALLS_OF_STRANGERS: usize = 64;
/// Most pending calls of each user without an instance.
const CALLS_OF_ONE_STRANGER: usize = 8;
/// Shortest interval between two reads of the files for users without an instance.
const STRANGERS_INTERVAL: Duration = Duration::from_secs(1);

/// Why a request is invalid.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("the request is longer than {MAXIMUM_REQUEST} bytes")]
    TooLong,
    #[error("the request is malformed: {0}")]
    Malformed(#[source] serde_json::Error),
    #[error("{0:?} is not an instance; expected 1 to 128 lower-case letters, digits and dashes")]
    BadInstance(String),
    #[error("{0} is not the process id of a container")]
    BadPid(i32),
}

/// Why a container was not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookRefusal {
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The request did not arrive in time.
    #[error("no request within {} s", PATIENCE.as_secs())]
    Slow,
    #[error("the connection broke: {0}")]
    Connection(#[from] std::io::Error),
    /// The caller owns no such instance; the error is the same if the instance does not exist.
    #[error("user {uid} has no instance {instance} on this machine")]
    NotYours {
        /// Uid of the caller.
        uid: u32,
        /// The requested instance.
        instance: String,
    },
    /// The caller owns no instance on this machine.
    #[error("user {0} has no instance on this machine")]
    Stranger(u32),
    /// The caller has too many pending calls.
    #[error("user {0} has {CALLS_OF_ONE_USER} calls waiting already")]
    TooMany(u32),
    /// Users without an instance have too many pending calls.
    #[error("too many calls of users without an instance are waiting already")]
    TooManyStrangers,
    /// `node.json` has not been read yet.
    #[error("this machine's network is not set up yet (no node.json)")]
    NoNode,
    /// The process is not the instance's container.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The agent does not allow the start.
    #[error("instance {0} must not start on this machine now")]
    Closed(String),
    /// The agent did not confirm that the instance may run here.
    #[error(transparent)]
    Fenced(#[from] DeadlinePassed),
    /// Containers of other namespaces might reach it, or it them.
    #[error("the rules that isolate namespaces are not in place for instance {instance}: {reason}")]
    NotIsolated { instance: String, reason: String },
    /// The caller disconnected while it waited.
    #[error("the caller went away")]
    Gone,
    #[error(transparent)]
    Attach(#[from] AttachmentError),
}

/// Parses one request (a line of JSON, with or without its line break).
///
/// # Errors
/// The request is too long, malformed, or has impossible values.
pub fn parse_request(bytes: &[u8]) -> Result<HookRequest, RequestError> {
    if bytes.len() > MAXIMUM_REQUEST {
        return Err(RequestError::TooLong);
    }
    let request: HookRequest = serde_json::from_slice(bytes).map_err(RequestError::Malformed)?;
    check_instance(&request.instance)?;
    if request.pid <= 1 {
        return Err(RequestError::BadPid(request.pid));
    }
    Ok(request)
}

/// Checks that a text can be an instance's id.
pub(crate) fn check_instance(instance: &str) -> Result<(), RequestError> {
    let fits = (1..=128).contains(&instance.len())
        && instance
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if fits {
        Ok(())
    } else {
        let shown = instance.chars().take(40).collect();
        Err(RequestError::BadInstance(shown))
    }
}

/// Serves the hook's requests.
pub struct HookServer {
    files: Arc<StateFiles>,
    attachments: Arc<Attachments>,
    fence: Arc<DeadlineFence>,
    isolation: watch::Receiver<EnforcedIsolation>,
    calls: Mutex<BTreeMap<u32, usize>>,
    strangers: Semaphore,
    /// When the files were last read for a user without an instance.
    looked: tokio::sync::Mutex<Option<Instant>>,
    lines: LineBudget,
}

/// Counts a pending call of a user until it is dropped.
struct PendingHookCall<'a> {
    server: &'a HookServer,
    uid: u32,
}

impl Drop for PendingHookCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.server.calls.lock();
        if let Some(count) = calls.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                calls.remove(&self.uid);
            }
        }
    }
}

impl HookServer {
    /// A server that authorizes by `files` and `fence`, and makes links with `attachments`. A container
    /// starts only when `isolation` covers it.
    pub fn new(
        files: Arc<StateFiles>,
        attachments: Arc<Attachments>,
        fence: Arc<DeadlineFence>,
        isolation: watch::Receiver<EnforcedIsolation>,
    ) -> Arc<Self> {
        Arc::new(Self {
            files,
            attachments,
            fence,
            isolation,
            calls: Mutex::default(),
            strangers: Semaphore::new(CALLS_OF_STRANGERS),
            looked: tokio::sync::Mutex::default(),
            lines: LineBudget::default(),
        })
    }

    /// Answers calls until cancelled; pending calls are dropped then.
    pub async fn serve(
        self: Arc<Self>,
        listener: UnixListener,
        pulse: LoopPulse,
        cancel: CancellationToken,
    ) {
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            let news = async {
                tokio::select! {
                    () = cancel.cancelled() => ControlFlow::Break(()),
                    Some(_) = tasks.join_next(), if !tasks.is_empty() => ControlFlow::Continue(None),
                    accepted = listener.accept() => ControlFlow::Continue(Some(accepted)),
                }
            };
            let accepted = match pulse.wait(news).await {
                ControlFlow::Break(()) => break,
                ControlFlow::Continue(None) => continue,
                ControlFlow::Continue(Some(accepted)) => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    tasks.spawn(Arc::clone(&self).answer(stream));
                }
                Err(error) => {
                    // For example out of file descriptors: continue after a pause.
                    tracing::warn!("can't accept a call of the hook: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn answer(self: Arc<Self>, stream: UnixStream) {
        let uid = match stream.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(error) => {
                tracing::warn!("a caller of the hook's socket can't be known: {error}");
                return;
            }
        };
        let (reading, mut writing) = stream.into_split();
        let mut reader = BufReader::with_capacity(1024, reading);
        let outcome = self.handle(&mut reader, uid).await;
        let answer = HookAnswer::of(&outcome);
        self.log_outcome(uid, &outcome);
        let Ok(mut line) = json::bytes("the hook's answer", &answer) else {
            // A container whose hook gets no answer does not start.
            return;
        };
        line.push(b'\n');
        let _ = timeout(PATIENCE, writing.write_all(&line)).await;
    }

    /// Logs the outcome, unless the user's budget of journal lines is used up.
    fn log_outcome(&self, uid: u32, outcome: &Result<HookRequest, HookRefusal>) {
        // Any user can cause these errors.
        if let Err(error) = outcome
            && (matches!(
                error,
                HookRefusal::Stranger(_) | HookRefusal::TooManyStrangers
            ) || !self.is_known(uid))
        {
            return tracing::debug!("{error}");
        }
        let Some(held_back) = self.lines.take(uid) else {
            return;
        };
        if held_back > 0 {
            tracing::warn!(uid, "{held_back} more lines about this user were left out");
        }
        match outcome {
            Ok(request) => {
                tracing::info!(uid, instance = request.instance, "the container may start")
            }
            Err(error) => tracing::warn!(uid, "no network for a container: {error}"),
        }
    }

    async fn handle(
        &self,
        reader: &mut (impl AsyncBufReadExt + Unpin),
        uid: u32,
    ) -> Result<HookRequest, HookRefusal> {
        let _call = self.begin(uid)?;
        self.meet(uid).await?;
        let request = timeout(PATIENCE, read_request(reader))
            .await
            .map_err(|_| HookRefusal::Slow)??;
        let id = &request.instance;
        if self.has_no_network(&request, uid) {
            self.fence.check_start(id)?;
            return Ok(request);
        }
        let (_, instance) = self.look_up(&request, uid)?;
        let container = self.attachments.verify(request.pid, &instance)?;
        let (node, instance) = self.pass_gate(reader, &request, uid).await?;
        self.wait_for_isolation(id, &instance).await?;
        self.attachments
            .attach(id, &node, &instance, &container)
            .await?;
        // Last, because the gate and the links may take longer than the deadline.
        self.fence.check_start(id)?;
        Ok(request)
    }

    /// Checks that the caller owns an instance. The agent may just have written its list, so the
    /// files are read again, once for all callers that wait.
    async fn meet(&self, uid: u32) -> Result<(), HookRefusal> {
        if self.is_known(uid) {
            return Ok(());
        }
        if self.calls.lock().get(&uid) > Some(&CALLS_OF_ONE_STRANGER) {
            return Err(HookRefusal::TooManyStrangers);
        }
        let permit = self.strangers.try_acquire();
        let _permit = permit.map_err(|_| HookRefusal::TooManyStrangers)?;
        let came = Instant::now();
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|when| when < came) {
            if let Some(when) = *looked {
                tokio::time::sleep_until(when + STRANGERS_INTERVAL).await;
            }
            self.files.refresh();
            *looked = Some(Instant::now());
        }
        drop(looked);
        match self.is_known(uid) {
            true => Ok(()),
            false => Err(HookRefusal::Stranger(uid)),
        }
    }

    fn is_known(&self, uid: u32) -> bool {
        let snapshot = self.files.current();
        let instances = snapshot.instances.as_ref();
        instances.is_some_and(|list| {
            let attached = list.instances.values().map(|one| one.uid);
            let fenced = list.fenced.values().map(|one| one.uid);
            attached.chain(fenced).any(|owner| owner == uid)
        })
    }

    /// Whether the instance is the caller's, and on the machine's own network. Its hook asks only
    /// whether it may start now.
    fn has_no_network(&self, request: &HookRequest, uid: u32) -> bool {
        let id = &request.instance;
        let is_listed = || {
            let snapshot = self.files.current();
            snapshot
                .instances
                .as_ref()
                .is_some_and(|list| list.instances.contains_key(id) || list.fenced.contains_key(id))
        };
        if !is_listed() {
            self.files.refresh();
        }
        let snapshot = self.files.current();
        snapshot.instances.as_ref().is_some_and(|list| {
            !list.instances.contains_key(id)
                && list.fenced.get(id).is_some_and(|one| one.uid == uid)
        })
    }

    fn begin(&self, uid: u32) -> Result<PendingHookCall<'_>, HookRefusal> {
        let mut calls = self.calls.lock();
        let count = calls.entry(uid).or_insert(0);
        if *count >= CALLS_OF_ONE_USER {
            return Err(HookRefusal::TooMany(uid));
        }
        *count += 1;
        Ok(PendingHookCall { server: self, uid })
    }

    fn look_up(
        &self,
        request: &HookRequest,
        uid: u32,
    ) -> Result<(Arc<NodeNetwork>, InstanceNetwork), HookRefusal> {
        let find = || {
            let snapshot = self.files.current();
            let list = snapshot.instances.as_ref()?;
            let found = list.instances.get(&request.instance)?;
            (found.uid == uid).then(|| found.clone())
        };
        let instance = find().or_else(|| {
            self.files.refresh();
            find()
        });
        let instance = instance.ok_or_else(|| HookRefusal::NotYours {
            uid,
            instance: request.instance.clone(),
        })?;
        let node = self.files.current().node.clone();
        Ok((node.ok_or(HookRefusal::NoNode)?, instance))
    }

    /// Waits until the rules of isolation have the container's link and address.
    async fn wait_for_isolation(
        &self,
        id: &str,
        instance: &InstanceNetwork,
    ) -> Result<(), HookRefusal> {
        let mut enforced = self.isolation.clone();
        let covers = |enforced: &EnforcedIsolation| {
            let files = self.files.current();
            enforced.covers(files.isolation.as_deref(), id, instance)
        };
        let in_place = timeout(ISOLATION_LIMIT, enforced.wait_for(covers)).await;
        match in_place {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(HookRefusal::Gone),
            Err(_) => {
                let problem = self.isolation.borrow().problem.clone();
                let reason = problem.unwrap_or_else(|| {
                    format!("nothing changed within {} s", ISOLATION_LIMIT.as_secs())
                });
                let instance = id.to_owned();
                Err(HookRefusal::NotIsolated { instance, reason })
            }
        }
    }

    /// Waits while the agent holds the start, at most the node's `holdSeconds`.
    async fn pass_gate(
        &self,
        reader: &mut (impl AsyncBufReadExt + Unpin),
        request: &HookRequest,
        uid: u32,
    ) -> Result<(Arc<NodeNetwork>, InstanceNetwork), HookRefusal> {
        let mut changes = self.files.subscribe();
        self.files.refresh();
        let begin = Instant::now();
        loop {
            changes.mark_unchanged();
            let (node, instance) = self.look_up(request, uid)?;
            let limit = begin + Duration::from_secs(node.hold_seconds.into());
            match instance.gate {
                StartGate::Closed => return Err(HookRefusal::Closed(request.instance.clone())),
                StartGate::Open => return Ok((node, instance)),
                StartGate::Hold if Instant::now() >= limit => return Ok((node, instance)),
                StartGate::Hold => {}
            }
            let mut byte = [0];
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Err(HookRefusal::Gone);
                    }
                }
                () = tokio::time::sleep_until(limit) => {}
                // End of stream, an error or a second line: the caller does not follow the
                // protocol.
                _ = reader.read(&mut byte) => return Err(HookRefusal::Gone),
            }
        }
    }
}

async fn read_request(
    reader: &mut (impl AsyncBufReadExt + Unpin),
) -> Result<HookRequest, HookRefusal> {
    let mut line = Vec::new();
    let limit = u64::try_from(MAXIMUM_REQUEST).unwrap_or(u64::MAX) + 1;
    reader.take(limit).read_until(b'\n', &mut line).await?;
    Ok(parse_request(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{containers::fence::FenceSources, links::Links};
    use kat_types::machine::fence::BootTime;

    #[tokio::test(start_paused = true)]
    async fn a_socket_that_nobody_calls_does_not_look_hung() {
        let folder = tempfile::tempdir().unwrap();
        let files = StateFiles::open(folder.path());
        let attachments = Attachments::new(
            Arc::clone(&files),
            Links::open().unwrap(),
            Arc::new(|_| Ok("/".to_owned())),
            Arc::new(|_, _| Ok(Vec::new())),
        );
        let fence = DeadlineFence::new(FenceSources {
            files: Arc::clone(&files),
            deadlines: folder.path().join("deadlines.json"),
            journal: folder.path().join("no-journal"),
            clock: Arc::new(BootTime::default),
            cgroups: Arc::new(|_| Ok("/".to_owned())),
            processes: Arc::new(|_, _| Ok(Vec::new())),
        });
        let server = HookServer::new(
            files,
            attachments,
            fence,
            watch::Sender::default().subscribe(),
        );
        let listener = UnixListener::bind(folder.path().join("net.sock")).unwrap();
        let (pulses, cancel) = (
            kat_daemon::watchdog::LoopPulses::default(),
            CancellationToken::new(),
        );
        let serving = server.serve(listener, pulses.watch("hook socket"), cancel.clone());
        let serving = tokio::spawn(serving);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!((pulses.stalled(), pulses.watched().len()), (None, 1));
        cancel.cancel();
        serving.await.unwrap();
        assert!(pulses.watched().is_empty());
    }

    /// The answer quotes the refused request, and escaping makes the quote longer.
    #[test]
    fn every_refusal_fits_what_the_hook_reads() {
        let limit = 16 << 10;
        for unit in ["\u{7f}", "\\u0001", "\\\"", "\u{1f600}"] {
            let name = unit.repeat((MAXIMUM_REQUEST - 10) / unit.len());
            let outcome = parse_request(format!("{{\"pid\":\"{name}\"}}").as_bytes());
            let error = outcome.as_ref().unwrap_err().to_string();
            assert!(error.contains("invalid type"), "{error}");
            let written = serde_json::to_vec(&HookAnswer::of(&outcome)).unwrap();
            assert!(written.len() < limit, "{unit}: {}", written.len());
        }
    }

    #[test]
    fn requests_are_read_strictly() {
        let request = parse_request(b"{\"instance\":\"web-ab12c\",\"pid\":4711}\n").unwrap();
        assert_eq!(
            (request.instance.as_str(), request.pid),
            ("web-ab12c", 4711)
        );
        for (text, expected) in [
            ("", "malformed"),
            ("{\"instance\":\"web-ab12c\"}", "pid"),
            ("{\"instance\":\"web-ab12c\",\"pid\":1}", "process id"),
            ("{\"instance\":\"web-ab12c\",\"pid\":-1}", "process id"),
            ("{\"instance\":\"\",\"pid\":9}", "is not an instance"),
            ("{\"instance\":\"a/b\",\"pid\":9}", "is not an instance"),
            ("{\"instance\":\"A\",\"pid\":9}", "is not an instance"),
            ("{\"instance\":\"a\",\"pid\":9,\"uid\":0}", "unknown field"),
            ("{\"instance\":\"a\",\"pid\":9} {}", "trailing"),
        ] {
            let error = parse_request(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let long = vec![b' '; MAXIMUM_REQUEST + 1];
        assert!(matches!(parse_request(&long), Err(RequestError::TooLong)));
    }
}
