//! One call: endpoints in order, retries, deadline.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::{Bytes, BytesMut};
use reqwest::{Method, Response, StatusCode, header};
use tokio::time::{Instant, timeout};

use super::{
    ApiRefusal, Client, ClientError, RequestPath, RetryPauses,
    transport::{Endpoint, reason},
};
use kat_types::api::{ErrorBody, STALE_HEADER};

/// Maximum bytes of a response that is read as a whole.
const MAX_ANSWER: usize = 64 << 20;
/// Maximum bytes of an error response.
const MAX_ERROR: usize = 1 << 20;
/// Longest `Retry-After` that is respected.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// A request.
#[derive(Debug, Clone)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) route: RequestPath,
    /// Content type and bytes of the body.
    pub(super) body: Option<(&'static str, Bytes)>,
    /// Value of `If-Match`.
    pub(super) if_match: Option<String>,
    /// Only if the object does not exist: `If-None-Match: *`.
    pub(super) if_absent: bool,
    /// Sending it twice has the same effect as sending it once.
    pub(super) repeatable: bool,
}

impl ApiRequest {
    pub(super) fn new(method: Method, route: RequestPath) -> Self {
        Self {
            repeatable: method != Method::POST,
            method,
            route,
            body: None,
            if_match: None,
            if_absent: false,
        }
    }

    pub(super) fn get(route: RequestPath) -> Self {
        Self::new(Method::GET, route)
    }
}

/// A completely read response.
#[derive(Debug)]
pub(super) struct ApiResponse {
    pub(super) endpoint: String,
    pub(super) status: u16,
    /// The header `ETag`.
    pub(super) etag: Option<String>,
    pub(super) body: Bytes,
}

/// A failed attempt.
struct FailedAttempt {
    error: ClientError,
    /// Nothing was sent.
    unsent: bool,
    /// The pause that the server requests.
    after: Option<Duration>,
}

impl Client {
    /// Sends the request and reads the complete response.
    pub(super) async fn send(&self, request: &ApiRequest) -> Result<ApiResponse, ClientError> {
        self.send_within(request, MAX_ANSWER).await
    }

    /// Like [`Self::send`], for a response that has at most `limit` bytes.
    pub(super) async fn send_within(
        &self,
        request: &ApiRequest,
        limit: usize,
    ) -> Result<ApiResponse, ClientError> {
        self.repeat(request, move |endpoint, response| async move {
            let status = response.status().as_u16();
            let etag = response.headers().get(header::ETAG);
            let etag = etag.and_then(|etag| etag.to_str().ok().map(str::to_owned));
            let body = read(response, limit, &endpoint).await?;
            Ok(ApiResponse {
                endpoint,
                status,
                etag,
                body,
            })
        })
        .await
        .or_else(|(error, uncertain)| {
            // An earlier attempt may have deleted it.
            let gone = uncertain && request.method == Method::DELETE && error.is_not_found();
            if !gone {
                return Err(error);
            }
            Ok(ApiResponse {
                endpoint: self.endpoint().to_owned(),
                status: StatusCode::NO_CONTENT.as_u16(),
                etag: None,
                body: Bytes::new(),
            })
        })
    }

    /// Sends the request and returns the response's head; the body is read later.
    pub(super) async fn open(
        &self,
        request: &ApiRequest,
    ) -> Result<(String, Response), ClientError> {
        self.repeat(request, |endpoint, response| async move {
            Ok((endpoint, response))
        })
        .await
        .map_err(|(error, _)| error)
    }

    /// Retries until an attempt succeeds, the server refuses the call, or the time is up. The error
    /// comes with whether an attempt may have been carried out without a response.
    async fn repeat<T, Read, Reading>(
        &self,
        request: &ApiRequest,
        read: Read,
    ) -> Result<T, (ClientError, bool)>
    where
        Read: Fn(String, Response) -> Reading,
        Reading: Future<Output = Result<T, ClientError>>,
    {
        let started = Instant::now();
        let mut pauses = RetryPauses::new(self.options.backoff, self.options.backoff_limit);
        let mut uncertain = false;
        loop {
            let mut misses: Vec<FailedAttempt> = Vec::new();
            let first = self.preferred.load(Ordering::Relaxed);
            for offset in 0..self.endpoints.len() {
                let index = (first + offset) % self.endpoints.len();
                let Some(endpoint) = self.endpoints.get(index) else {
                    continue;
                };
                match self.attempt(endpoint, request, &read).await {
                    Ok(answer) => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(miss) if miss.unsent => misses.push(miss),
                    Err(miss) => {
                        let answered = miss.error.status().is_some();
                        uncertain |= !answered;
                        let again = request.repeatable || answered;
                        let passing = miss.error.is_passing() && !miss.error.is_machine_away();
                        if !again || !passing || miss.error.status() == Some(410) {
                            return Err((miss.error, uncertain));
                        }
                        misses.push(miss);
                    }
                }
            }
            let limit = if misses.iter().all(|miss| miss.unsent) {
                self.options.unreachable_for
            } else {
                self.options.retry_for
            };
            let asked = misses.iter().filter_map(|miss| miss.after).max();
            let pause = pauses.pause().max(asked.unwrap_or_default());
            if started.elapsed() + pause > limit {
                return Err((verdict(misses), uncertain));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt<T, Read, Reading>(
        &self,
        endpoint: &Endpoint,
        request: &ApiRequest,
        read: &Read,
    ) -> Result<T, FailedAttempt>
    where
        Read: Fn(String, Response) -> Reading,
        Reading: Future<Output = Result<T, ClientError>>,
    {
        let after = self.options.request_timeout;
        let exchange = async {
            let response = self.start(endpoint, request).await?;
            if request.method == Method::GET && response.headers().contains_key(STALE_HEADER) {
                self.stale.store(true, Ordering::Relaxed);
            }
            if response.status().is_success() {
                return read(endpoint.label.clone(), response)
                    .await
                    .map_err(FailedAttempt::sent);
            }
            Err(refused(endpoint, response).await)
        };
        timeout(after, exchange).await.unwrap_or_else(|_| {
            Err(FailedAttempt::sent(ClientError::NoAnswer {
                endpoint: endpoint.label.clone(),
                after,
            }))
        })
    }

    async fn start(
        &self,
        endpoint: &Endpoint,
        request: &ApiRequest,
    ) -> Result<Response, FailedAttempt> {
        let url = format!("{}{}", endpoint.base, request.route.as_str());
        let mut builder = endpoint.http.request(request.method.clone(), url);
        if let Some(token) = token(self, endpoint).map_err(FailedAttempt::sent)? {
            builder = builder.header(header::AUTHORIZATION, token);
        }
        if let Some(version) = &request.if_match {
            builder = builder.header(header::IF_MATCH, version);
        }
        if request.if_absent {
            builder = builder.header(header::IF_NONE_MATCH, "*");
        }
        if let Some((kind, body)) = &request.body {
            builder = builder
                .header(header::CONTENT_TYPE, *kind)
                .body(body.clone());
        }
        builder.send().await.map_err(|error| {
            let reason = reason(&error);
            if error.is_connect() {
                return FailedAttempt {
                    error: ClientError::Unreachable {
                        attempts: vec![(endpoint.label.clone(), reason)],
                    },
                    unsent: true,
                    after: None,
                };
            }
            FailedAttempt::sent(ClientError::Interrupted {
                endpoint: endpoint.label.clone(),
                reason,
            })
        })
    }
}

/// The authorization header; `None` for a socket of this machine.
pub(super) fn token(
    client: &Client,
    endpoint: &Endpoint,
) -> Result<Option<header::HeaderValue>, ClientError> {
    let Some(authorization) = client.authorization.as_ref().filter(|_| !endpoint.local) else {
        return Ok(None);
    };
    let mut value =
        header::HeaderValue::from_str(authorization).map_err(|_| ClientError::Configuration {
            reason: "the token has characters that no token has".to_owned(),
        })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

impl FailedAttempt {
    fn sent(error: ClientError) -> Self {
        Self {
            error,
            unsent: false,
            after: None,
        }
    }
}

/// The error to report for a round of attempts: a server's response takes precedence over
/// unreachable endpoints.
fn verdict(misses: Vec<FailedAttempt>) -> ClientError {
    let mut attempts = Vec::new();
    let mut spoken = None;
    for miss in misses {
        match miss.error {
            ClientError::Unreachable { attempts: more } => attempts.extend(more),
            other => spoken = spoken.or(Some(other)),
        }
    }
    spoken.unwrap_or(ClientError::Unreachable { attempts })
}

pub(super) async fn refusal(endpoint: &Endpoint, response: Response) -> ClientError {
    refused(endpoint, response).await.error
}

async fn refused(endpoint: &Endpoint, response: Response) -> FailedAttempt {
    let status = response.status();
    let after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    let text = match read(response, MAX_ERROR, &endpoint.label).await {
        Ok(text) => text,
        Err(error) => return FailedAttempt::sent(error),
    };
    let body = serde_json::from_slice(&text).unwrap_or_else(|_| ErrorBody {
        error: status
            .canonical_reason()
            .unwrap_or_default()
            .replace(' ', ""),
        message: format!(
            "{} answered HTTP status {}",
            endpoint.label,
            status.as_u16()
        ),
        ..ErrorBody::default()
    });
    FailedAttempt {
        error: ClientError::Refused(Box::new(ApiRefusal {
            status: status.as_u16(),
            body,
        })),
        unsent: false,
        after,
    }
}

async fn read(mut response: Response, limit: usize, endpoint: &str) -> Result<Bytes, ClientError> {
    let mut body = BytesMut::new();
    while let Some(piece) = response
        .chunk()
        .await
        .map_err(|error| ClientError::Interrupted {
            endpoint: endpoint.to_owned(),
            reason: reason(&error),
        })?
    {
        if body.len() + piece.len() > limit {
            return Err(ClientError::Answer {
                endpoint: endpoint.to_owned(),
                reason: format!("it is longer than {limit} bytes"),
            });
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}
