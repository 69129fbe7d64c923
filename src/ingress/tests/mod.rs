//! On loopback, with real clients and servers.

mod changes;
mod forwarding;
mod hostile;
mod http2_frames;
mod streams;
mod tls;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    net::{SocketAddr, TcpListener as StdListener},
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    client::conn::{http1, http2},
    server::conn::{http1 as server1, http2 as server2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

use crate::{
    config::certificates::provider,
    connection::PortKind,
    limits::IngressLimits,
    service::{IngressConfig, ServiceError, run},
};
use kat_types::{
    ingress::{
        CERTIFICATES_FILE, CHALLENGES_FILE, IngressCertificate, IngressCertificates,
        IngressChallenges, IngressRoute, IngressRoutes, IngressSettings, IngressStatus,
        IngressUpstream, IngressUpstreams, ROUTES_FILE, RouteAction, RouteTls, SETTINGS_FILE,
        UPSTREAMS_FILE, UpstreamInstance, status_file,
    },
    services::BackendState,
};

/// Longest wait of any test for one thing.
const LIMIT: Duration = Duration::from_secs(60);

type Body = UnsyncBoxBody<Bytes, Infallible>;

fn body(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

async fn soon<F: Future>(work: F) -> F::Output {
    tokio::time::timeout(LIMIT, work).await.expect("in time")
}

/// Waits for a condition.
async fn until(mut condition: impl FnMut() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// What the agent would write.
struct Files {
    settings: IngressSettings,
    routes: IngressRoutes,
    upstreams: IngressUpstreams,
    certificates: IngressCertificates,
    challenges: IngressChallenges,
}

impl Files {
    fn new() -> Self {
        Self {
            settings: IngressSettings {
                schema: 1,
                revision: 1,
                node: "n1".to_owned(),
                ..IngressSettings::default()
            },
            routes: IngressRoutes {
                schema: 1,
                revision: 1,
                ..IngressRoutes::default()
            },
            upstreams: IngressUpstreams {
                schema: 1,
                revision: 1,
                ..IngressUpstreams::default()
            },
            certificates: IngressCertificates {
                schema: 1,
                revision: 1,
                ..IngressCertificates::default()
            },
            challenges: IngressChallenges::default(),
        }
    }

    /// A route of `shop.example` to these servers, the first of them on this machine.
    fn shop(servers: &[SocketAddr]) -> Self {
        let mut files = Self::new();
        files.upstream("u", servers);
        files.route("shop", service("shop.example"));
        files
    }

    fn route(&mut self, name: &str, route: IngressRoute) {
        self.routes.routes.insert(name.to_owned(), route);
    }

    fn upstream(&mut self, name: &str, servers: &[SocketAddr]) {
        let instances = servers.iter().enumerate().map(|(number, server)| {
            let instance = UpstreamInstance {
                address: server.ip(),
                port: server.port(),
                machine: format!("n{}", number + 1),
                state: BackendState::Serving,
            };
            (format!("inner-name-{number}"), instance)
        });
        let upstream = IngressUpstream {
            instances: instances.collect(),
        };
        self.upstreams.upstreams.insert(name.to_owned(), upstream);
    }

    fn certificate(&mut self, hosts: &[&str]) -> String {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(hosts.clone()).unwrap();
        let name = hosts.join(" ");
        let certificate = IngressCertificate {
            hosts: hosts.into_iter().collect(),
            chain: made.cert.pem(),
            key: made.signing_key.serialize_pem(),
        };
        self.certificates.certificates.insert(name, certificate);
        made.cert.pem()
    }

    fn write(&self, folder: &Path) {
        let write = |name: &str, text: Vec<u8>| {
            let partial = folder.join(format!(".{name}"));
            fs::write(&partial, text).unwrap();
            fs::rename(partial, folder.join(name)).unwrap();
        };
        write(SETTINGS_FILE, serde_json::to_vec(&self.settings).unwrap());
        write(
            CERTIFICATES_FILE,
            serde_json::to_vec(&self.certificates).unwrap(),
        );
        write(
            CHALLENGES_FILE,
            serde_json::to_vec(&self.challenges).unwrap(),
        );
        write(UPSTREAMS_FILE, serde_json::to_vec(&self.upstreams).unwrap());
        write(ROUTES_FILE, serde_json::to_vec(&self.routes).unwrap());
    }
}

fn service(host: &str) -> IngressRoute {
    let upstream = "u".to_owned();
    IngressRoute::new(host, RouteAction::Service { upstream })
}

fn with_tls(route: IngressRoute) -> IngressRoute {
    IngressRoute {
        tls: Some(RouteTls::default()),
        ..route
    }
}

/// A running `kat-ingress`.
struct Proxy {
    folder: tempfile::TempDir,
    http: SocketAddr,
    https: SocketAddr,
    sockets: [StdListener; 2],
    cancel: CancellationToken,
    task: JoinHandle<Result<(), ServiceError>>,
}

impl Proxy {
    async fn start(files: &Files) -> Self {
        Self::with_limits(files, IngressLimits::default()).await
    }

    async fn with_limits(files: &Files, limits: IngressLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        files.write(folder.path());
        let sockets = [(); 2].map(|()| StdListener::bind("127.0.0.1:0").unwrap());
        let (cancel, task) = Self::run(&sockets, folder.path(), "a", limits).await;
        Self {
            http: sockets[0].local_addr().unwrap(),
            https: sockets[1].local_addr().unwrap(),
            folder,
            sockets,
            cancel,
            task,
        }
    }

    /// Runs an instance until it is ready.
    async fn run(
        sockets: &[StdListener; 2],
        folder: &Path,
        instance: &str,
        limits: IngressLimits,
    ) -> (CancellationToken, JoinHandle<Result<(), ServiceError>>) {
        let cancel = CancellationToken::new();
        let config = IngressConfig {
            instance: instance.to_owned(),
            listeners: vec![
                (sockets[0].try_clone().unwrap(), PortKind::Plain),
                (sockets[1].try_clone().unwrap(), PortKind::Tls),
            ],
            folder: folder.to_owned(),
            silent_peers: folder.join("silent-peers.json"),
            run_folder: folder.to_owned(),
            limits,
            cancel: cancel.clone(),
        };
        let task = tokio::spawn(run(config));
        let status = folder.join(status_file(instance));
        until(|| status.exists()).await;
        (cancel, task)
    }

    fn status(&self) -> IngressStatus {
        let text = fs::read(self.folder.path().join(status_file("a"))).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// Replaces the files, and waits until they are served.
    async fn replace(&self, files: &mut Files) {
        for revision in [
            &mut files.settings.revision,
            &mut files.routes.revision,
            &mut files.upstreams.revision,
            &mut files.certificates.revision,
            &mut files.challenges.revision,
        ] {
            *revision += 1;
        }
        files.write(self.folder.path());
        until(|| {
            let is = self.status().revisions;
            is.settings == files.settings.revision
                && is.routes == files.routes.revision
                && is.upstreams == files.upstreams.revision
                && is.certificates == files.certificates.revision
                && is.challenges == files.challenges.revision
        })
        .await;
    }

    /// Sends bytes to the plain port, and reads until the connection is closed.
    async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.http).await.unwrap();
        // One that is closed at once takes nothing.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        // A connection that is reset has said before what it had to.
        let _ = soon(stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A GET of `shop.example` whose connection is closed after it.
    async fn get(&self, path: &str) -> String {
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
        ))
        .await
    }

    async fn client(&self) -> http1::SendRequest<Body> {
        let stream = TcpStream::connect(self.http).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
    }

    async fn tls(
        &self,
        name: &str,
        roots: &[&str],
        alpn: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.https).await?;
        Self::tls_over(stream, name, roots, alpn).await
    }

    async fn tls_over(
        stream: TcpStream,
        name: &str,
        roots: &[&str],
        alpn: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut trusted = RootCertStore::empty();
        for root in roots {
            trusted
                .add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap())
                .unwrap();
        }
        let config = ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_root_certificates(trusted).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    async fn http2<B>(&self, name: &str, root: &str) -> http2::SendRequest<B>
    where
        B: hyper::body::Body + Send + Unpin + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.tls(name, &[root], &["h2"]).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let io = TokioIo::new(stream);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn end(self) {
        self.cancel.cancel();
        soon(self.task).await.unwrap().unwrap();
    }
}

fn get(path: &str) -> Request<Body> {
    Request::builder()
        .uri(path)
        .header("host", "shop.example")
        .body(body(""))
        .unwrap()
}

/// A server of HTTP/1.1.
async fn server<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let connection = server1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            tokio::spawn(connection);
        }
    });
    address
}

/// A server of HTTP/2 without TLS.
async fn server_http2<F, R>(answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request| {
                let answer = answer(request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let builder = server2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// A server that answers with the request's line and headers, sorted.
async fn mirror() -> SocketAddr {
    server(async |request: Request<Incoming>| {
        let mut lines: Vec<String> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines.insert(0, format!("{} {}", request.method(), request.uri()));
        Response::new(body(lines.join("\n") + "\n"))
    })
    .await
}

/// A server that answers with a word.
async fn says(word: &'static str) -> SocketAddr {
    server(move |_| async move { Response::new(body(word)) }).await
}

/// An address where nothing listens.
fn nobody() -> SocketAddr {
    StdListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A body whose frames are sent one by one.
fn channel() -> (tokio::sync::mpsc::Sender<Frame<Bytes>>, Body) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let frames = futures_util::stream::unfold(receiver, async |mut receiver| {
        let frame: Frame<Bytes> = receiver.recv().await?;
        Some((Ok::<_, Infallible>(frame), receiver))
    });
    (sender, StreamBody::new(frames).boxed_unsync())
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = soon(response.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The status code of an answer in text.
fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    code.unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// How often each item occurs.
fn count<T: Ord>(items: impl IntoIterator<Item = T>) -> BTreeMap<T, usize> {
    let mut counts = BTreeMap::new();
    for item in items {
        *counts.entry(item).or_insert(0) += 1;
    }
    counts
}
