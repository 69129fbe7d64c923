//! Sessions with an instance: a command in its container, or a connection to one of its ports
//! ([`kat_types::encoding::frames`] go both ways).
//!
//! A session is over when its outputs end. When the caller disconnects, its inputs end without
//! [`InputFrame::End`], or the outputs are dropped; the session's command is then ended too.

use std::{pin::Pin, sync::Arc};

use async_trait::async_trait;
use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::{
    sync::watch::Receiver,
    time::{Instant, sleep_until},
};

use crate::{
    access::authentication::{Caller, still_valid},
    context::Api,
    errors::ApiError,
    extract::{PathParameters, QueryParameters, parse_json},
    server::open_streams::OpenStreamPermit,
};
use kat_plan::Snapshot;
use kat_types::{
    api::{CONTENT_TYPE, ExecRequest, NodeMeasurements, NodeUsage},
    encoding::frames::{Frames, InputFrame, OutputFrame, SessionFrame},
    store::snapshot::InstanceEntry,
};

/// Maximum number of words of a command.
const MOST_WORDS: usize = 1024;

/// The kind of session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionRequest {
    /// A command in the instance's container.
    Exec(ExecRequest),
    /// A connection to this port of the instance.
    Forward(u16),
}

/// Why a session can't start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The instance's machine can't be reached now.
    #[error("{0}")]
    Away(String),
    /// It is not possible now.
    #[error("{0}")]
    Unavailable(String),
    /// Too many sessions are open on the machine, of this caller or of all callers.
    #[error("{message}")]
    TooMany {
        /// Whose sessions, and how many.
        message: String,
        /// What the caller can try.
        hint: Option<String>,
    },
    /// The instance's present state or configuration does not allow the session.
    #[error("{0}")]
    Conflict(String),
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Away(reason) => Self::MachineAway(reason),
            SessionError::Unavailable(reason) => Self::Unavailable(reason),
            SessionError::TooMany { message, hint } => Self::TooManyStreams { message, hint },
            SessionError::Conflict(message) => Self::Conflict {
                message,
                hint: None,
            },
        }
    }
}

/// Input from the caller. An end without [`InputFrame::End`] means that the caller has disconnected.
pub type InputFrames = Pin<Box<dyn Stream<Item = InputFrame> + Send>>;

/// Output to the caller; the last one is [`OutputFrame::Exit`] or [`OutputFrame::Failed`].
pub type OutputFrames = Pin<Box<dyn Stream<Item = OutputFrame> + Send>>;

/// Starts sessions with instances, and reads their resource usage and what their machines measure.
#[async_trait]
pub trait InstanceSessions: Send + Sync + 'static {
    /// Starts a session with one instance. It ends when the returned stream is dropped. `caller` is
    /// the name in audit lines, if known.
    async fn begin(
        &self,
        caller: Option<&str>,
        instance: &InstanceEntry,
        request: SessionRequest,
        inputs: InputFrames,
    ) -> Result<OutputFrames, SessionError>;

    /// Present resource usage of these instances, which are all on machine `node`. Instances that
    /// do not run are left out.
    async fn usage(
        &self,
        node: &str,
        instances: &[InstanceEntry],
    ) -> Result<NodeUsage, SessionError>;

    /// What machine `node` measures of itself. The implementation bounds how often it is measured.
    async fn measurements(&self, node: &str) -> Result<NodeMeasurements, SessionError> {
        Err(SessionError::Unavailable(format!(
            "the machine `{node}` is not measured"
        )))
    }
}

/// Query parameters of `exec`: JSON, so that the command's words arrive unchanged.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecParameters {
    request: String,
}

impl ExecParameters {
    pub(crate) fn request(&self) -> Result<SessionRequest, ApiError> {
        let request: ExecRequest = parse_json(self.request.as_bytes())
            .map_err(|error| ApiError::invalid(format!("request: {error}")))?;
        let words = &request.command;
        if words.first().is_none_or(String::is_empty) {
            return Err(ApiError::invalid("request: there is no command"));
        }
        if words.len() > MOST_WORDS || words.iter().any(|word| word.contains('\0')) {
            return Err(ApiError::invalid(format!(
                "request: a command has at most {MOST_WORDS} words, without zero bytes"
            )));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
        if request.term.len() > 64 || !request.term.bytes().all(plain) {
            return Err(ApiError::invalid("request: term is no terminal's kind"));
        }
        Ok(SessionRequest::Exec(request))
    }
}

/// Query parameters of `forward`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForwardParameters {
    port: u16,
}

impl ForwardParameters {
    pub(crate) fn request(&self) -> Result<SessionRequest, ApiError> {
        if self.port == 0 {
            return Err(ApiError::invalid("port: 0 is no port"));
        }
        Ok(SessionRequest::Forward(self.port))
    }
}

type InstancePath = (String, String, String);

pub(crate) async fn exec(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<InstancePath>,
    QueryParameters(query): QueryParameters<ExecParameters>,
    body: Body,
) -> Result<Response, ApiError> {
    begin(api, caller, name, query.request()?, body).await
}

pub(crate) async fn forward(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<InstancePath>,
    QueryParameters(query): QueryParameters<ForwardParameters>,
    body: Body,
) -> Result<Response, ApiError> {
    begin(api, caller, name, query.request()?, body).await
}

async fn begin(
    api: Arc<Api>,
    caller: Caller,
    (namespace, workload, id): InstancePath,
    request: SessionRequest,
    body: Body,
) -> Result<Response, ApiError> {
    // A member that is cut off does not learn that a token was revoked.
    api.leadership()?;
    let snapshot = api.snapshot()?;
    let entry = snapshot.instances.get(&id).filter(|entry| {
        let assignment = &entry.assignment.value;
        assignment.namespace == namespace && assignment.workload == workload
    });
    let entry = entry.ok_or_else(|| ApiError::not_found("instance", &id))?;
    let held = api.stream(&caller)?;
    let sessions = &api.config.sessions;
    let name = caller.to_string();
    let begun = sessions.begin(Some(&name), entry, request, inputs(body));
    let outputs = begun.await?;
    let talking = GuardedSession {
        checked_at: Instant::now(),
        snapshots: api.config.handle.snapshot.clone(),
        api,
        caller,
        outputs: Some(outputs),
        _held: held,
    };
    let outputs = stream::unfold(talking, |mut talking| async move {
        let output = talking.next().await?;
        Some((output, talking))
    });
    Ok(answer(outputs))
}

/// The inputs in a body. A body that breaks off or can't be decoded counts as a caller that has
/// disconnected.
pub(crate) fn inputs(body: Body) -> InputFrames {
    let state = (body.into_data_stream(), Frames::default());
    Box::pin(stream::unfold(
        state,
        |(mut pieces, mut frames)| async move {
            loop {
                match frames.take() {
                    Ok(Some(input)) => return Some((input, (pieces, frames))),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::debug!("a session's caller is not understood: {error:#}");
                        return None;
                    }
                }
                frames.push(&pieces.next().await?.ok()?);
            }
        },
    ))
}

/// The outputs as a response body.
pub(crate) fn answer(outputs: impl Stream<Item = OutputFrame> + Send + 'static) -> Response {
    let body = outputs.map(|output| Ok::<_, std::convert::Infallible>(output.encode()));
    let headers = [(header::CONTENT_TYPE, CONTENT_TYPE)];
    (StatusCode::OK, headers, Body::from_stream(body)).into_response()
}

/// A session, for as long as its caller is valid.
struct GuardedSession {
    api: Arc<Api>,
    caller: Caller,
    snapshots: Receiver<Option<Arc<Snapshot>>>,
    checked_at: Instant,
    /// `None` once the session was ended.
    outputs: Option<OutputFrames>,
    _held: OpenStreamPermit,
}

impl GuardedSession {
    async fn next(&mut self) -> Option<OutputFrame> {
        let shutdown = self.api.shutdown.clone();
        loop {
            // A token expires without any change of the state.
            let check_at = self.checked_at + self.api.config.limits.bookmark_interval;
            let outputs = self.outputs.as_mut()?;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    return self.end(&ApiError::Unavailable("this machine's agent ends".to_owned()));
                }
                Ok(()) = self.snapshots.changed() => {}
                () = sleep_until(check_at) => {}
                output = outputs.next() => return output,
            }
            self.checked_at = Instant::now();
            let snapshot = self.snapshots.borrow_and_update().clone();
            let now = self.api.now();
            let valid = snapshot.map_or(Ok(()), |one| still_valid(&self.caller, &one, now));
            if let Err(error) = valid {
                return self.end(&error);
            }
        }
    }

    fn end(&mut self, error: &ApiError) -> Option<OutputFrame> {
        self.outputs = None;
        Some(OutputFrame::Failed(Box::new(error.body())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec(request: &str) -> Result<SessionRequest, ApiError> {
        let request = request.to_owned();
        ExecParameters { request }.request()
    }

    #[test]
    fn a_command_is_bounded_and_there_is_one() {
        assert!(exec(r#"{"command":["/bin/sh","-c",""],"term":"xterm-256color"}"#).is_ok());
        let many = vec!["x"; MOST_WORDS + 1];
        for wrong in [
            String::new(),
            r#"{"command":[]}"#.to_owned(),
            r#"{"command":[""]}"#.to_owned(),
            r#"{"command":["a\u0000b"]}"#.to_owned(),
            r#"{"command":["a"],"term":"x\u001b[31m"}"#.to_owned(),
            serde_json::json!({"command": many}).to_string(),
        ] {
            assert!(exec(&wrong).is_err(), "{wrong:.60}");
        }
    }

    #[tokio::test]
    async fn a_caller_that_is_not_understood_is_gone() {
        let body = [
            InputFrame::Data("a".into()).encode(),
            InputFrame::End.encode(),
            OutputFrame::Exit(0).encode(),
            InputFrame::Data("b".into()).encode(),
        ]
        .concat();
        let found: Vec<InputFrame> = inputs(Body::from(body)).collect().await;
        assert_eq!(found, [InputFrame::Data("a".into()), InputFrame::End]);
    }
}
