//! Sessions with an instance: frames both ways in one HTTP/2 request (`types/encoding/frames.rs`).

use std::{
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use reqwest::header::{self, HeaderValue};
use tokio::sync::mpsc;

use super::{
    Client, ClientError, RequestPath,
    send::{refusal, token},
    transport,
};
use kat_types::{
    api::{CALLER_HEADER, CONTENT_TYPE, ExecRequest},
    encoding::{
        frames::{Frames, InputFrame, OutputFrame, SessionFrame},
        json::{self, NotEncoded},
    },
};

fn not_encoded(endpoint: &str, error: &NotEncoded) -> ClientError {
    ClientError::Answer {
        endpoint: endpoint.to_owned(),
        reason: error.to_string(),
    }
}

/// Capacity of the channel of inputs.
const BUFFER: usize = 16;

/// The input side of a session, sent as the request's body. Dropping it without [`InputFrame::End`]
/// means that the caller has disconnected.
#[derive(Debug, Clone)]
pub struct SessionInput(mpsc::Sender<Bytes>);

impl SessionInput {
    /// Sends an input, waiting for room; returns false if the session is over.
    pub async fn send(&self, input: &InputFrame) -> bool {
        self.0.send(input.encode()).await.is_ok()
    }

    /// Waits until the session is over.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The output side of a session.
#[derive(Debug)]
pub struct SessionOutput {
    response: reqwest::Response,
    endpoint: String,
    frames: Frames,
}

impl SessionOutput {
    /// The next output; there is none after [`OutputFrame::Exit`] or [`OutputFrame::Failed`]. May be dropped
    /// and called again without losing anything.
    ///
    /// # Errors
    /// [`ClientError::Interrupted`] if the session breaks off before such a last output,
    /// [`ClientError::Answer`] for bytes that can't be decoded.
    pub async fn next(&mut self) -> Result<OutputFrame, ClientError> {
        loop {
            let next = self.frames.take();
            let next = next.map_err(|error| ClientError::Answer {
                endpoint: self.endpoint.clone(),
                reason: error.to_string(),
            })?;
            if let Some(output) = next {
                return Ok(output);
            }
            let interrupted = |reason: String| ClientError::Interrupted {
                endpoint: self.endpoint.clone(),
                reason,
            };
            match self.response.chunk().await {
                Ok(Some(piece)) => self.frames.push(&piece),
                Ok(None) => return Err(interrupted("the session has no end".to_owned())),
                Err(error) => return Err(interrupted(transport::reason(&error))),
            }
        }
    }
}

/// A request body whose parts arrive over a channel.
struct ChannelBody(mpsc::Receiver<Bytes>);

impl Body for ChannelBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0
            .poll_recv(context)
            .map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

impl Client {
    /// Runs a command in an instance's container. The request is sent once, to the endpoint that
    /// answered last, so the caller should read the instance before.
    ///
    /// # Errors
    /// [`ClientError`], as all calls.
    pub async fn exec(
        &self,
        namespace: &str,
        workload: &str,
        id: &str,
        request: &ExecRequest,
    ) -> Result<(SessionInput, SessionOutput), ClientError> {
        let request =
            json::text("request", request).map_err(|error| not_encoded(self.endpoint(), &error))?;
        let route = RequestPath::exec(namespace, workload, id)?.with("request", &request);
        self.begin(route).await
    }

    /// Connects to a port of an instance, as [`Self::exec`].
    ///
    /// # Errors
    /// [`ClientError`], as all calls.
    pub async fn forward(
        &self,
        namespace: &str,
        workload: &str,
        id: &str,
        port: u16,
    ) -> Result<(SessionInput, SessionOutput), ClientError> {
        let route = RequestPath::forward(namespace, workload, id)?.with("port", &port.to_string());
        self.begin(route).await
    }

    async fn begin(
        &self,
        route: RequestPath,
    ) -> Result<(SessionInput, SessionOutput), ClientError> {
        let index = self.preferred.load(Ordering::Relaxed);
        let endpoint = self.endpoints.get(index).or_else(|| self.endpoints.first());
        let Some(endpoint) = endpoint else {
            return Err(ClientError::Unreachable {
                attempts: Vec::new(),
            });
        };
        let (sender, receiver) = mpsc::channel(BUFFER);
        let url = format!("{}{}", endpoint.base, route.as_str());
        let mut builder = endpoint
            .sessions
            .post(url)
            .header(header::CONTENT_TYPE, CONTENT_TYPE)
            .body(reqwest::Body::wrap(ChannelBody(receiver)));
        if let Some(token) = token(self, endpoint)? {
            builder = builder.header(header::AUTHORIZATION, token);
        }
        // A name that is no valid header value is left out: the agent accepts calls without a
        // caller's name.
        let caller = self.caller.as_deref();
        if let Some(caller) = caller.and_then(|name| HeaderValue::from_str(name).ok()) {
            builder = builder.header(CALLER_HEADER, caller);
        }
        let after = self.options.request_timeout;
        let answer = tokio::time::timeout(after, builder.send()).await;
        let answer = answer.map_err(|_| ClientError::NoAnswer {
            endpoint: endpoint.label.clone(),
            after,
        })?;
        let response = answer.map_err(|error| {
            let reason = transport::reason(&error);
            if error.is_connect() {
                return ClientError::Unreachable {
                    attempts: vec![(endpoint.label.clone(), reason)],
                };
            }
            ClientError::Interrupted {
                endpoint: endpoint.label.clone(),
                reason,
            }
        })?;
        if !response.status().is_success() {
            return Err(refusal(endpoint, response).await);
        }
        let receiving = SessionOutput {
            response,
            endpoint: endpoint.label.clone(),
            frames: Frames::default(),
        };
        Ok((SessionInput(sender), receiving))
    }
}
