//! One request from its head to the end of its answer.

use std::{
    future::Future,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use arc_swap::ArcSwap;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode, Uri, Version,
    body::{Body, Incoming},
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderName,
        HeaderValue, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE, TRANSFER_ENCODING, UPGRADE,
    },
    http::uri::{InvalidUri, PathAndQuery},
    upgrade::{self, OnUpgrade},
};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::time::{Instant, sleep_until};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    access::{LoggedRequest, RequestRecord},
    client::{
        ClientConnection, RequestClient, Scheme, X_FORWARDED_PREFIX, is_in, request_client,
        set_forwarded,
    },
    config::{
        Config,
        passwords::{PasswordChecker, SignIn},
        routes::{HostMatch, ParsedAction, ParsedForwardAuth, Route},
    },
    headers::{remove_hop_by_hop, requested_upgrade, takes_trailers},
    limits::{ConnectionCounts, IngressLimits, RequestPlace, RequestRates, RequestsUnderWay},
    metrics::{Limited, Metrics},
    pages::{Page, is_grpc},
    proxy_header,
    request_host::{RequestHost, request_host},
    request_path::without_prefix,
    tunnel::tunnel,
    upstream::{
        ActiveRequest, Instance, NoInstance, Upstream,
        body::{BodyProgress, RequestBody, ResponseBody},
        pool::{Answered, ConnectionPool, SendError, SendFailure, Target},
    },
};
use kat_types::resource::{PlainHttp, ProxyProtocol, UpstreamProtocol};

/// Path of HTTP-01 challenges (RFC 8555 8.3).
const CHALLENGE: &str = "/.well-known/acme-challenge/";
/// Name of the cookie that names a client's instance.
const STICKY: &str = "kat-instance";
/// Longest wait for the check of a password.
const SIGN_IN_PATIENCE: Duration = Duration::from_secs(10);
const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// The steps of the program's end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drain {
    /// No new connections; answers say `Connection: close`, HTTP/2 gets GOAWAY.
    pub draining: CancellationToken,
    /// Unused HTTP/1.1 connections are closed.
    pub lingered: CancellationToken,
    /// What is left is closed.
    pub end: CancellationToken,
}

/// The proxy.
pub(crate) struct Ingress {
    pub config: Arc<ArcSwap<Config>>,
    pub tls: Arc<ServerConfig>,
    pub limits: IngressLimits,
    pub metrics: Arc<Metrics>,
    pub counts: ConnectionCounts,
    pub rates: RequestRates,
    pub under_way: RequestsUnderWay,
    pub passwords: PasswordChecker,
    pub pool: Arc<ConnectionPool>,
    pub tracker: TaskTracker,
    pub drain: Drain,
}

/// A client's connection, as its requests see it.
#[derive(Debug, Clone)]
pub(crate) struct Connected {
    pub ends: ClientConnection,
    /// Server name of the TLS handshake, in lower case.
    pub server_name: Option<String>,
}

/// What the head of a request leads to.
enum Verdict {
    /// It is answered here.
    Page(Page),
    /// It is a question of an ACME server.
    Challenge(String),
    /// Its route decides.
    Route,
}

/// What is known of a request from its head.
struct Admission {
    client: RequestClient,
    host: Option<RequestHost>,
    route: Option<Arc<Route>>,
    /// Its place among the client's requests; none for a trusted proxy.
    place: Option<RequestPlace>,
}

/// An answer with what follows it.
struct Served {
    response: Response<ResponseBody>,
    instance: String,
    /// The connection becomes a tunnel after the answer.
    tunnel: Option<PendingTunnel>,
}

struct PendingTunnel {
    client: OnUpgrade,
    instance: OnUpgrade,
    idle: Duration,
    active: ActiveRequest,
}

impl Served {
    fn page(response: Response<ResponseBody>) -> Self {
        Self {
            response,
            instance: String::new(),
            tunnel: None,
        }
    }
}

impl Ingress {
    /// Answers a request.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        connected: &Connected,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let began = Instant::now();
        let config = self.config.load_full();
        let version = request.version();
        let is_grpc = is_grpc(request.headers());
        // hyper reads such a body by its chunks whatever the length says. With a proxy before this
        // one that reads it by the length, what follows the body could be another's request.
        let closes = version < Version::HTTP_2
            && (request.headers().contains_key(TRANSFER_ENCODING)
                || self.drain.draining.is_cancelled());
        let mut admission = Admission {
            client: request_client(request.headers(), &connected.ends, &config.trusted_proxies),
            host: None,
            route: None,
            place: None,
        };
        let verdict = self.judge(&config, connected, &request, &mut admission);
        let progress = Arc::<BodyProgress>::default();
        let mut record = self.record(&config, &admission, &request, connected, began, &progress);
        let route = admission.route.clone();
        let place = admission.place.take();
        let is_https = admission.client.scheme == Scheme::Https;
        let served = match verdict {
            Verdict::Page(page) => Err(page),
            Verdict::Challenge(text) => Ok(challenge(text)),
            Verdict::Route => {
                self.serve(
                    &config,
                    connected,
                    admission,
                    request,
                    progress,
                    &mut record,
                )
                .await
            }
        };
        let (mut served, problem) = match served {
            Ok(served) => (served, None),
            Err(page) => {
                if page.is_upstream_failure() {
                    record.upstream_failed();
                }
                let problem = page.sentence();
                (Served::page(page.answer(is_grpc)), Some(problem))
            }
        };
        let headers = served.response.headers_mut();
        if let Some(route) = &route
            && is_https
            && let Some(hsts) = &route.hsts
            && !route.response_headers.name(&STRICT_TRANSPORT_SECURITY)
        {
            headers.insert(STRICT_TRANSPORT_SECURITY, hsts.clone());
        }
        if closes && served.tunnel.is_none() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = served.response.status().as_u16();
        record.answered(status, &served.instance, problem);
        match served.tunnel {
            Some(tunnel) => self.spawn_tunnel(tunnel, record, place),
            None => {
                let body = served.response.body_mut();
                body.record(record);
                if let Some(place) = place {
                    body.hold(place);
                }
            }
        }
        served.response
    }

    fn record(
        &self,
        config: &Config,
        admission: &Admission,
        request: &Request<Incoming>,
        connected: &Connected,
        began: Instant,
        progress: &Arc<BodyProgress>,
    ) -> RequestRecord {
        let logged = config.access_log.then(|| LoggedRequest {
            route: admission
                .route
                .as_ref()
                .map_or_else(String::new, |route| route.name.clone()),
            instance: String::new(),
            client: admission.client.address,
            method: request.method().to_string(),
            host: admission
                .host
                .as_ref()
                .map_or_else(String::new, |host| host.name.clone()),
            path: request.uri().path().to_owned(),
            version: match request.version() {
                Version::HTTP_2 => "2",
                Version::HTTP_11 => "1.1",
                _ => "1.0",
            },
            tls: connected.ends.tls,
            user: String::new(),
        });
        let counters = match &admission.route {
            Some(route) => Arc::clone(&route.counters),
            None => self.metrics.route(""),
        };
        RequestRecord::new(counters, began, Arc::clone(progress), logged)
    }

    /// Finds out from the head of a request what to do with it.
    fn judge(
        &self,
        config: &Config,
        connected: &Connected,
        request: &Request<Incoming>,
        admission: &mut Admission,
    ) -> Verdict {
        let client = admission.client.clone();
        let is_exempt = is_in(&config.trusted_proxies, client.address);
        if !is_exempt && !self.rates.allow(client.address) {
            self.metrics.limited(Limited::Requests);
            return Verdict::Page(Page::TooMany);
        }
        if !is_exempt {
            admission.place = self.under_way.begin(client.address, &self.limits);
            if admission.place.is_none() {
                self.metrics.limited(Limited::RequestsUnderWay);
                return Verdict::Page(Page::TooMany);
            }
        }
        let headers = request.headers();
        if headers.len() > self.limits.headers {
            self.metrics.limited(Limited::Headers);
            return Verdict::Page(Page::Head);
        }
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Verdict::Page(Page::Method);
        }
        let host = match request_host(request) {
            Ok(host) => host,
            Err(why) => return Verdict::Page(Page::BadRequest(why)),
        };
        let host = &*admission.host.insert(host);
        let path = request.uri().path();
        if !connected.ends.tls
            && let Some(token) = path.strip_prefix(CHALLENGE)
            && let Some(answer) = config.challenges.get(token)
        {
            return Verdict::Challenge(answer.clone());
        }
        if connected.ends.tls && connected.server_name.as_deref() != Some(&host.name) {
            return Verdict::Page(Page::Misdirected);
        }
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        let route = match config.table.host(&host.name) {
            None => return Verdict::Page(Page::UnknownHost),
            Some(HostMatch::Redirect(route)) => {
                admission.route = Some(Arc::clone(route));
                if route.action == ParsedAction::Refused {
                    return Verdict::Page(Page::Refused);
                }
                let scheme = if route.has_tls { "https" } else { "http" };
                let to = match &route.host {
                    crate::config::routes::HostPattern::Exact(name) => name,
                    crate::config::routes::HostPattern::Wildcard(name) => name,
                };
                let page = match &route.waits_for {
                    Some(sentence) => Page::Certificate(sentence.clone()),
                    None => Page::Redirect(format!("{scheme}://{to}{target}")),
                };
                return Verdict::Page(page);
            }
            Some(HostMatch::Routes(routes)) => match routes.find(path) {
                Ok(Some(route)) => route,
                Ok(None) => return Verdict::Page(Page::UnknownPath),
                Err(_) => return Verdict::Page(Page::BadRequest("its path is ambiguous")),
            },
        };
        admission.route = Some(Arc::clone(route));
        if route.action == ParsedAction::Refused {
            return Verdict::Page(Page::Refused);
        }
        if route.passthrough || (connected.ends.tls && !route.has_tls) {
            return Verdict::Page(Page::UnknownPath);
        }
        if let Some(sources) = &route.allow_sources
            && !is_in(sources, client.address)
        {
            return Verdict::Page(Page::Source);
        }
        if let Some(sentence) = &route.waits_for
            && (client.scheme == Scheme::Https || route.plain_http == PlainHttp::Redirect)
        {
            return Verdict::Page(Page::Certificate(sentence.clone()));
        }
        if route.has_tls && client.scheme == Scheme::Http && route.plain_http == PlainHttp::Redirect
        {
            return Verdict::Page(Page::Redirect(format!("https://{}{target}", host.name)));
        }
        Verdict::Route
    }

    /// Does what the route says.
    async fn serve(
        self: &Arc<Self>,
        config: &Config,
        connected: &Connected,
        admission: Admission,
        request: Request<Incoming>,
        progress: Arc<BodyProgress>,
        record: &mut RequestRecord,
    ) -> Result<Served, Page> {
        let (Some(route), Some(host)) = (&admission.route, &admission.host) else {
            return Err(Page::UnknownPath);
        };
        if let Some(list) = &route.basic_auth {
            let header = request.headers().get(AUTHORIZATION);
            let header = header.and_then(|value| value.to_str().ok());
            let asker = (admission.client.address, route.name.as_str());
            let checking = self.passwords.check(list, header, asker, SIGN_IN_PATIENCE);
            match checking.await {
                SignIn::Allowed(user) => record.user(user),
                SignIn::Refused => return Err(Page::SignIn),
                SignIn::Busy => {
                    self.metrics.limited(Limited::Passwords);
                    return Err(Page::TooMany);
                }
            }
        }
        match &route.action {
            ParsedAction::Maintenance => Err(Page::Maintenance),
            ParsedAction::Refused => Err(Page::Refused),
            ParsedAction::Redirect(to) => {
                let uri = request.uri();
                let rest = match without_prefix(uri.path(), route.segments.len()) {
                    "/" => "",
                    rest => rest,
                };
                let query = uri.query().map(|query| format!("?{query}"));
                Err(Page::Redirect(format!(
                    "{to}{rest}{}",
                    query.unwrap_or_default()
                )))
            }
            ParsedAction::Service(upstream) => {
                let upstream = config.upstreams.get(upstream).ok_or(Page::NoInstances)?;
                let forwarding = Forwarding {
                    ingress: self,
                    config,
                    connected,
                    client: &admission.client,
                    host,
                    route,
                    upstream,
                    progress,
                };
                forwarding.run(request).await
            }
        }
    }

    fn spawn_tunnel(
        self: &Arc<Self>,
        pending: PendingTunnel,
        mut record: RequestRecord,
        place: Option<RequestPlace>,
    ) {
        let end = self.drain.end.clone();
        self.tracker.spawn(async move {
            let _held = (pending.active, place);
            let work = async {
                let (client, instance) = tokio::try_join!(pending.client, pending.instance)?;
                let passed = tunnel(TokioIo::new(client), TokioIo::new(instance), pending.idle);
                let (_, sent) = passed.await?;
                record.sent(sent);
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            };
            tokio::select! {
                result = work => if let Err(error) = result {
                    tracing::debug!(%error, "a tunnel ended");
                },
                () = end.cancelled() => {}
            }
        });
    }
}

fn challenge(text: String) -> Served {
    let mut response = Response::new(ResponseBody::own(text.into()));
    let plain = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    Served::page(response)
}

/// A request on its way to an instance.
struct Forwarding<'a> {
    ingress: &'a Arc<Ingress>,
    config: &'a Config,
    connected: &'a Connected,
    client: &'a RequestClient,
    host: &'a RequestHost,
    route: &'a Arc<Route>,
    upstream: &'a Upstream,
    progress: Arc<BodyProgress>,
}

/// The head that an instance gets.
struct OutgoingHead {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    /// The client waits for `100 Continue`.
    waits: bool,
}

impl<'a> Forwarding<'a> {
    async fn run(self, mut request: Request<Incoming>) -> Result<Served, Page> {
        let route = self.route;
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if route.max_body_bytes > 0 && length.is_some_and(|length| length > route.max_body_bytes) {
            return Err(Page::TooLarge);
        }
        let protocol = requested_upgrade(request.version(), request.method(), request.headers())
            .filter(|_| route.protocol == UpstreamProtocol::Http);
        let switch = protocol.as_ref().map(|_| upgrade::on(&mut request));
        let (head, body) = self.head(request, protocol.as_ref())?;
        let head = match &route.forward_auth {
            Some(auth) => match self.ask(auth, head).await? {
                Ok(head) => head,
                Err(answer) => return Ok(answer),
            },
            None => head,
        };
        let cookie = sticky_cookie(&head.headers).filter(|_| route.sticky);
        let (answered, active, instance) = self.send(head, body, cookie.as_deref()).await?;
        let Answered {
            mut response,
            connection,
        } = answered;
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let tunnel = match (is_switch, switch) {
            (false, _) => None,
            // Nobody asked for it.
            (true, None) => return Err(Page::Broken),
            (true, Some(client)) => Some((client, upgrade::on(&mut response))),
        };
        let (mut parts, incoming) = response.into_parts();
        remove_hop_by_hop(&mut parts.headers);
        parts.extensions.clear();
        parts.version = Version::HTTP_11;
        route.response_headers.apply(&mut parts.headers);
        if route.sticky && cookie.as_ref() != Some(&instance.cookie) {
            let secure = if self.client.scheme == Scheme::Https {
                "; Secure"
            } else {
                ""
            };
            let path = format!("/{}", route.segments.join("/"));
            let value = format!(
                "{STICKY}={}; Path={path}; HttpOnly; SameSite=Lax{secure}",
                instance.cookie
            );
            if let Ok(value) = HeaderValue::from_str(&value) {
                parts.headers.append(SET_COOKIE, value);
            }
        }
        if let (Some((client, upstream)), Some(protocol)) = (tunnel, protocol) {
            parts
                .headers
                .insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol);
            return Ok(Served {
                response: Response::from_parts(parts, ResponseBody::own(bytes::Bytes::new())),
                instance: instance.name.clone(),
                tunnel: Some(PendingTunnel {
                    client,
                    instance: upstream,
                    idle: route.timeouts.idle,
                    active,
                }),
            });
        }
        let idle = route.timeouts.idle;
        let body = ResponseBody::instance(incoming, idle, connection, self.progress, active);
        Ok(Served {
            response: Response::from_parts(parts, body),
            instance: instance.name.clone(),
            tunnel: None,
        })
    }

    /// The head for the instance, and the client's body.
    fn head(
        &self,
        request: Request<Incoming>,
        protocol: Option<&HeaderValue>,
    ) -> Result<(OutgoingHead, Incoming), Page> {
        let route = self.route;
        let (parts, body) = request.into_parts();
        let mut headers = parts.headers;
        let is_h2c = route.protocol == UpstreamProtocol::H2c;
        let wants_trailers = takes_trailers(&headers);
        let expects = headers
            .get(EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let waits = expects && !is_h2c && !body.is_end_stream();
        // The length that hyper has read is the one that counts.
        if headers.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        remove_hop_by_hop(&mut headers);
        if !waits {
            headers.remove(EXPECT);
        }
        join_cookies(&mut headers);
        if let Some(auth) = &route.forward_auth {
            for name in &auth.response_headers {
                headers.remove(name);
            }
        }
        set_forwarded(
            &mut headers,
            &self.connected.ends,
            self.client,
            &self.host.written,
        );
        route.request_headers.apply(&mut headers);
        if route.strip_prefix {
            let prefix = format!("/{}", route.segments.join("/"));
            if let Ok(prefix) = HeaderValue::from_str(&prefix) {
                headers.insert(X_FORWARDED_PREFIX, prefix);
            }
        }
        let malformed = Page::BadRequest("its target is malformed");
        let stripped = route.strip_prefix.then_some(route.segments.len());
        let target = outgoing_target(&parts.uri, stripped).map_err(|_| malformed.clone())?;
        let uri = match is_h2c {
            true => Uri::builder()
                .scheme("http")
                .authority(self.host.written.as_str())
                .path_and_query(target)
                .build(),
            false => Uri::builder().path_and_query(target).build(),
        };
        let uri = uri.map_err(|_| malformed.clone())?;
        headers.remove(HOST);
        if !is_h2c {
            let host = HeaderValue::from_str(&self.host.written).map_err(|_| malformed)?;
            headers.insert(HOST, host);
        }
        let mut connection = Vec::new();
        if wants_trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
            connection.push("te");
        }
        if let Some(protocol) = protocol {
            headers.insert(UPGRADE, protocol.clone());
            connection.push("upgrade");
        }
        if !is_h2c
            && !connection.is_empty()
            && let Ok(words) = HeaderValue::from_str(&connection.join(", "))
        {
            headers.insert(CONNECTION, words);
        }
        let head = OutgoingHead {
            method: parts.method,
            uri,
            headers,
            waits,
        };
        Ok((head, body))
    }

    /// Sends the request, a second time if nothing of it has left, or if it is idempotent and has no
    /// body. Returns the answer and its instance.
    async fn send(
        &self,
        head: OutgoingHead,
        body: Incoming,
        cookie: Option<&str>,
    ) -> Result<(Answered, ActiveRequest, &'a Instance), Page> {
        let route = self.route;
        let upstream = self.upstream;
        let is_empty = body.is_end_stream();
        let is_idempotent = head.method.is_idempotent();
        let mut body = Some(RequestBody::new(
            body,
            Arc::clone(&self.progress),
            route.max_body_bytes,
            route.timeouts.idle,
            head.waits,
        ));
        let mut tried = None;
        let mut is_second = false;
        loop {
            let instance = match upstream.pick(cookie, tried) {
                Ok(instance) => instance,
                Err(_) if is_second => return Err(Page::Unreachable),
                Err(NoInstance::NoneExists) => return Err(Page::NoInstances),
                Err(NoInstance::NoneServes) => return Err(Page::NotReady),
            };
            let request = self.request(&head, body.take().unwrap_or_else(RequestBody::empty));
            let target = Target {
                address: instance.address,
                protocol: route.protocol,
                connect: route.timeouts.connect,
                header: proxy_header::encode(
                    route.proxy_protocol,
                    SocketAddr::new(self.client.address, self.connected.ends.peer.port()),
                    self.connected.ends.local,
                ),
            };
            let active = instance.live.begin();
            let sending = self.ingress.pool.send(&target, request);
            let Some(sent) = within(&self.progress, route.timeouts.response, sending).await else {
                return Err(Page::Slow);
            };
            let failure = match sent {
                Ok(answered) => {
                    instance.live.succeeded();
                    return Ok((answered, active, instance));
                }
                Err(failure) => failure,
            };
            drop(active);
            if self.progress.is_too_large() {
                return Err(Page::TooLarge);
            }
            if self.progress.client_failed() {
                return Err(Page::SlowClient);
            }
            let SendFailure { error, request } = failure;
            tracing::debug!(instance = instance.name, %error, "a request failed");
            let page = match error {
                SendError::Connect(_) | SendError::ConnectTimeout => {
                    instance.live.failed();
                    tried = Some(instance.address);
                    Page::Unreachable
                }
                // The connection may have been an old one.
                SendError::Lost(_) => Page::Broken,
            };
            // Nothing of it has left this program.
            let is_unsent = request.is_some() && !self.progress.is_touched();
            if is_second || !(is_unsent || (is_idempotent && is_empty)) {
                return Err(page);
            }
            is_second = true;
            route.counters.retries.fetch_add(1, Relaxed);
            body = request.map(Request::into_body);
        }
    }

    fn request(&self, head: &OutgoingHead, body: RequestBody) -> Request<RequestBody> {
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        if head.waits {
            let progress = Arc::clone(&self.progress);
            hyper::ext::on_informational(&mut request, move |answer| {
                if answer.status() == StatusCode::CONTINUE {
                    progress.continue_body();
                }
            });
        }
        request
    }

    /// Asks another workload whether the request is allowed. Its refusal is the client's answer.
    async fn ask(
        &self,
        auth: &ParsedForwardAuth,
        mut head: OutgoingHead,
    ) -> Result<Result<OutgoingHead, Served>, Page> {
        let upstream = self
            .config
            .upstreams
            .get(&auth.upstream)
            .ok_or(Page::Decision)?;
        let mut headers = head.headers.clone();
        for name in [
            CONTENT_LENGTH,
            EXPECT,
            CONNECTION,
            UPGRADE,
            TE,
            CONTENT_TYPE,
        ] {
            headers.remove(name);
        }
        if let Ok(host) = HeaderValue::from_str(&self.host.written) {
            headers.insert(HOST, host);
        }
        if let Ok(method) = HeaderValue::from_str(head.method.as_str()) {
            headers.insert(X_FORWARDED_METHOD, method);
        }
        let target = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        if let Ok(target) = HeaderValue::from_bytes(target.as_bytes()) {
            headers.insert(X_FORWARDED_URI, target);
        }
        let uri: Uri = auth.path.parse().map_err(|_| Page::Decision)?;
        let question = OutgoingHead {
            method: Method::GET,
            uri,
            headers,
            waits: false,
        };
        let mut tried = None;
        let (answered, active) = loop {
            let is_second = tried.is_some();
            let instance = upstream.pick(None, tried).map_err(|_| Page::Decision)?;
            let target = Target {
                address: instance.address,
                protocol: UpstreamProtocol::Http,
                connect: self.route.timeouts.connect,
                header: proxy_header::encode(
                    ProxyProtocol::None,
                    self.connected.ends.peer,
                    self.connected.ends.local,
                ),
            };
            let active = instance.live.begin();
            let request = self.request(&question, RequestBody::empty());
            let sending = self.ingress.pool.send(&target, request);
            match tokio::time::timeout(self.route.timeouts.response, sending).await {
                Ok(Ok(answered)) => {
                    instance.live.succeeded();
                    break (answered, active);
                }
                Ok(Err(failure)) => {
                    tracing::debug!(error = %failure.error, "a question about a request failed");
                    if matches!(
                        failure.error,
                        SendError::Connect(_) | SendError::ConnectTimeout
                    ) {
                        instance.live.failed();
                    }
                    if is_second {
                        return Err(Page::Decision);
                    }
                    tried = Some(instance.address);
                }
                Err(_) => return Err(Page::Decision),
            }
        };
        let (mut parts, incoming) = answered.response.into_parts();
        if parts.status.is_success() {
            for name in &auth.response_headers {
                for value in parts.headers.get_all(name) {
                    head.headers.append(name, value.clone());
                }
            }
            return Ok(Ok(head));
        }
        if parts.status.is_informational() || parts.status.is_server_error() {
            return Err(Page::Decision);
        }
        remove_hop_by_hop(&mut parts.headers);
        parts.extensions.clear();
        parts.version = Version::HTTP_11;
        let idle = self.route.timeouts.idle;
        let request = Arc::<BodyProgress>::default();
        let body = ResponseBody::instance(incoming, idle, answered.connection, request, active);
        Ok(Err(Served::page(Response::from_parts(parts, body))))
    }
}

/// The path that an instance gets, with the query. `stripped` is the number of segments to remove.
fn outgoing_target(uri: &Uri, stripped: Option<usize>) -> Result<PathAndQuery, InvalidUri> {
    let mut path = uri.path();
    if let Some(count) = stripped {
        path = without_prefix(path, count);
    } else if let Some(whole) = uri.path_and_query()
        && whole.as_str().starts_with('/')
    {
        // Without a path in the client's URL the whole is empty, and reads as this.
        return Ok(match whole.as_str() {
            "/" => PathAndQuery::from_static("/"),
            _ => whole.clone(),
        });
    }
    match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    }
}

/// HTTP/2 may split the header, HTTP/1.1 may not (RFC 9113 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

fn sticky_cookie(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter();
    let lines = lines.filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';'));
    cookies.find_map(|cookie| {
        let (name, value) = cookie.trim().split_once('=')?;
        (name == STICKY).then(|| value.to_owned())
    })
}

/// Waits for an answer; `None` when it has not come `limit` after the last piece of the request's
/// body.
async fn within<F: Future>(
    progress: &BodyProgress,
    limit: Duration,
    answer: F,
) -> Option<F::Output> {
    let mut answer = pin!(answer);
    loop {
        let until = progress.last() + limit;
        tokio::select! {
            biased;
            output = answer.as_mut() => return Some(output),
            () = sleep_until(until) => {
                if progress.last() + limit <= Instant::now() {
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_gets_the_path_of_the_client_without_the_prefix_of_its_route() {
        for (uri, stripped, expected) in [
            ("/a/b%2Fc?d=e&f", None, "/a/b%2Fc?d=e&f"),
            ("https://shop.example/a?b", None, "/a?b"),
            ("https://shop.example", None, "/"),
            ("https://shop.example?b", None, "/?b"),
            ("*", None, "*"),
            ("/a/b?c", Some(1), "/b?c"),
            ("/a?c", Some(1), "/?c"),
            ("/a", Some(1), "/"),
            ("/a/b", Some(0), "/a/b"),
        ] {
            let target = outgoing_target(&uri.parse().unwrap(), stripped).unwrap();
            let sent = Uri::builder().path_and_query(target).build().unwrap();
            assert_eq!(sent.to_string(), expected, "{uri}");
        }
    }
}
