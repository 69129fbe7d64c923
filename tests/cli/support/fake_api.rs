//! A fake API server that returns scripted answers.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::Arc,
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime::Runtime, sync::Notify};

/// One item of a scripted stream.
pub(crate) enum Piece {
    Line(Value),
    /// The stream ends; the next request for it continues with the following item.
    End,
    /// The connection breaks in the middle of a line.
    Cut,
    /// The request for the stream is answered with 404.
    Missing,
}

#[derive(Clone)]
struct Reply {
    status: u16,
    body: Value,
    /// An archive in place of the JSON body.
    archive: Option<Bytes>,
    given: bool,
}

#[derive(Default)]
struct Script {
    /// `GET /path` -> answers in turn, each returned at least once; the last one is repeated.
    replies: BTreeMap<String, VecDeque<Reply>>,
    /// `WATCH /path` or `LOGS /path` -> items still to be sent.
    streams: BTreeMap<String, VecDeque<Piece>>,
    /// The requests so far, with their query.
    asked: Vec<String>,
    /// The body of the last request.
    body: Bytes,
    held: bool,
    /// Answers carry the mark of possibly old data.
    stale: bool,
    /// Requests without a scripted answer are refused as a server of an earlier version refuses a
    /// route that it does not know.
    older: bool,
}

#[derive(Clone, Default)]
struct Shared {
    script: Arc<Mutex<Script>>,
    changed: Arc<Notify>,
}

/// The server. It stops when it is dropped.
pub(crate) struct Fake {
    folder: TempDir,
    shared: Shared,
    runtime: Option<Runtime>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Fake {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let shared = Shared::default();
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let path = folder.path().join("api.sock");
        let listener = runtime.block_on(async { UnixListener::bind(path).unwrap() });
        runtime.spawn(async move { axum::serve(listener, router).await });
        let fake = Self {
            folder,
            shared,
            runtime: Some(runtime),
        };
        fake.reply("GET /healthz", 200, json!({"status": "ok", "leader": true}));
        fake
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("api.sock")
    }

    /// Adds an answer for `METHOD /path` after the existing ones; the last answer is repeated.
    pub(crate) fn reply(&self, key: &str, status: u16, body: Value) {
        self.add(key, status, body, None);
    }

    /// Adds the archive of a workload's files as the answer for `GET /path`.
    pub(crate) fn archive(&self, path: &str, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.add(&format!("GET {path}"), 200, Value::Null, Some(bytes));
    }

    fn add(&self, key: &str, status: u16, body: Value, archive: Option<Bytes>) {
        let mut script = self.shared.script.lock();
        let replies = script.replies.entry(key.to_owned()).or_default();
        replies.push_back(Reply {
            status,
            body,
            archive,
            given: false,
        });
    }

    /// Replaces all answers for `METHOD /path`.
    pub(crate) fn instead(&self, key: &str, status: u16, body: Value) {
        self.shared.script.lock().replies.remove(key);
        self.reply(key, status, body);
    }

    /// Adds the answer to a list request.
    pub(crate) fn list(&self, path: &str, items: &[Value]) {
        let body = json!({"items": items, "metadata": {"resourceVersion": "1"}});
        self.reply(&format!("GET {path}"), 200, body);
    }

    /// Adds an item to the stream `WATCH /path` or `LOGS /path`.
    pub(crate) fn send(&self, key: &str, piece: Piece) {
        let mut script = self.shared.script.lock();
        script
            .streams
            .entry(key.to_owned())
            .or_default()
            .push_back(piece);
        drop(script);
        self.shared.changed.notify_waiters();
    }

    /// Adds a change to a watched list.
    pub(crate) fn change(&self, path: &str, kind: &str, object: &Value) {
        let line = json!({"type": kind, "object": object});
        self.send(&format!("WATCH {path}"), Piece::Line(line));
    }

    /// Answers nothing until [`Fake::release`].
    pub(crate) fn hold(&self) {
        self.shared.script.lock().held = true;
    }

    pub(crate) fn release(&self) {
        self.shared.script.lock().held = false;
        self.shared.changed.notify_waiters();
    }

    /// Marks all further answers as possibly old, as without a leader.
    pub(crate) fn be_stale(&self) {
        self.shared.script.lock().stale = true;
    }

    /// Knows no route but those of scripted answers.
    pub(crate) fn be_older(&self) {
        self.shared.script.lock().older = true;
    }

    /// The requests so far as `METHOD /path?query`.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.shared.script.lock().asked.clone()
    }

    pub(crate) fn body(&self) -> Bytes {
        self.shared.script.lock().body.clone()
    }
}

/// The body of an error answer.
pub(crate) fn error(word: &str, message: &str) -> Value {
    json!({"error": word, "message": message})
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let method = request.method().to_string();
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = axum::body::to_bytes(request.into_body(), 1 << 24).await;
    {
        let mut script = shared.script.lock();
        let text = if query.is_empty() {
            format!("{method} {path}")
        } else {
            format!("{method} {path}?{query}")
        };
        script.asked.push(text);
        if let Ok(body) = body
            && !body.is_empty()
        {
            script.body = body;
        }
    }
    loop {
        let changed = shared.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if !shared.script.lock().held {
            break;
        }
        changed.await;
    }
    if path.ends_with("/logs") {
        let key = format!("LOGS {path}");
        let is_missing = {
            let mut script = shared.script.lock();
            let pieces = script.streams.entry(key.clone()).or_default();
            let is_missing = matches!(pieces.front(), Some(Piece::Missing));
            if is_missing {
                pieces.pop_front();
            }
            is_missing
        };
        if is_missing {
            let body = error("NotFound", "it is gone");
            return (StatusCode::NOT_FOUND, Json(body)).into_response();
        }
        return stream(shared, key);
    }
    if query.contains("watch=true") {
        return stream(shared, format!("WATCH {path}"));
    }
    let key = format!("{method} {path}");
    let mut script = shared.script.lock();
    let found = script.replies.get_mut(&key).and_then(|replies| {
        if replies.len() > 1 && replies.front().is_some_and(|front| front.given) {
            replies.pop_front();
        }
        let reply = replies.front_mut()?;
        reply.given = true;
        Some((reply.status, reply.body.clone(), reply.archive.clone()))
    });
    let older = script.older;
    let (status, body, archive) = found.unwrap_or_else(|| {
        let message = match older {
            true => format!("there is no route `{path}`; `/openapi.json` lists them all"),
            false => format!("the fake has no {path}"),
        };
        let body = error("NotFound", &message);
        (404, body, None)
    });
    let status = StatusCode::from_u16(status).unwrap();
    let mut response = match archive {
        Some(archive) => (status, [("etag", "\"7\"")], archive).into_response(),
        None => (status, Json(body)).into_response(),
    };
    if script.stale {
        let value = HeaderValue::from_static("true");
        response.headers_mut().insert("kat-stale", value);
    }
    response
}

/// Sends the remaining items of a stream, and then items as they are added.
fn stream(shared: Shared, key: String) -> Response {
    let pieces = futures_util::stream::unfold(Some((shared, key)), async |state| {
        let (shared, key) = state?;
        loop {
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let piece = {
                let mut script = shared.script.lock();
                script.streams.entry(key.clone()).or_default().pop_front()
            };
            match piece {
                Some(Piece::Line(line)) => {
                    let line = Bytes::from(format!("{line}\n"));
                    return Some((
                        Ok::<Bytes, std::io::Error>(line),
                        Some((shared.clone(), key)),
                    ));
                }
                Some(Piece::End | Piece::Missing) => return None,
                Some(Piece::Cut) => {
                    let half = Bytes::from_static(b"{\"type\":\"MODIF");
                    return Some((Ok(half), None));
                }
                None => changed.await,
            }
        }
    });
    Body::from_stream(pieces).into_response()
}
