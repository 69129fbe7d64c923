//! Endpoints: connections to servers.

use std::{error::Error, io, net::SocketAddr, path::Path, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{ClientError, ClientOptions, error::PERMISSION};
use kat_pki as pki;
use kat_types::api::{CONNECTION_WINDOW, STREAM_WINDOW};

/// One endpoint.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// `host:port`, or the socket's path.
    pub(super) label: String,
    /// Scheme and authority of its URLs.
    pub(super) base: String,
    pub(super) http: reqwest::Client,
    /// The HTTP/2 client for sessions, whose frames go both ways at once.
    pub(super) sessions: reqwest::Client,
    /// It is a socket of this machine, which identifies its callers without a token.
    pub(super) local: bool,
}

/// TLS endpoints that are verified by the cluster's names, as `servers` says. `identity` has a client
/// certificate and its key, PEM.
pub(super) fn tls(
    endpoints: &[String],
    cluster_uid: &str,
    ca: &str,
    identity: Option<&str>,
    servers: &pki::ApiServers,
    options: ClientOptions,
) -> Result<Vec<Endpoint>, ClientError> {
    let label = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if cluster_uid.is_empty() || cluster_uid.len() > 63 || !cluster_uid.bytes().all(label) {
        return Err(configuration(format!(
            "`{cluster_uid}` is not the identity of a cluster"
        )));
    }
    if endpoints.is_empty() {
        return Err(configuration("it names no endpoints".to_owned()));
    }
    let authority =
        |error: pki::PkiError| configuration(format!("the authority's certificate: {error}"));
    let identity = match identity {
        Some(pem) => {
            let pair = pki::CertificateKeyPair {
                certificate_pem: pem.to_owned(),
                key_pem: pem.to_owned(),
            };
            let identity = pki::tls::CurrentIdentity::new(&pair, ca);
            Some(
                identity
                    .map_err(|error| configuration(format!("the client certificate: {error}")))?,
            )
        }
        None => None,
    };
    let mut found = Vec::new();
    for endpoint in endpoints {
        if !endpoint.contains(':') {
            return Err(configuration(format!(
                "endpoint `{endpoint}` is not `host:port`"
            )));
        }
        let mut config =
            pki::tls::client_config(ca, cluster_uid, identity.clone(), servers.clone())
                .map_err(authority)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let resolver = Arc::new(FixedResolver(endpoint.clone()));
        let builder = common(options)
            .tls_backend_preconfigured(config)
            .https_only(true)
            .dns_resolver(resolver)
            .http2_keep_alive_interval(options.watch_idle / 3)
            .http2_keep_alive_timeout(options.connect_timeout)
            .http2_keep_alive_while_idle(true);
        let http = build(builder)?;
        found.push(Endpoint {
            label: endpoint.clone(),
            base: format!("https://kat.{}", cluster_uid.to_ascii_lowercase()),
            sessions: http.clone(),
            http,
            local: false,
        });
    }
    Ok(found)
}

/// Endpoints that have to present the authority with this hash.
pub(super) fn all_pinned(
    endpoints: &[String],
    fingerprint: &str,
    options: ClientOptions,
) -> Result<Vec<Endpoint>, ClientError> {
    if endpoints.is_empty() {
        return Err(configuration("it names no endpoints".to_owned()));
    }
    endpoints
        .iter()
        .map(|endpoint| pinned(endpoint, Some(fingerprint), options))
        .collect()
}

/// An endpoint that has to present the authority with this hash; without a hash, any authority.
pub(super) fn pinned(
    endpoint: &str,
    fingerprint: Option<&str>,
    options: ClientOptions,
) -> Result<Endpoint, ClientError> {
    by_chain(
        endpoint,
        pki::tls::pinned_client_config(fingerprint),
        options,
    )
}

/// An endpoint that has to present an authority which one of these (PEM) endorses as its successor.
pub(super) fn successor(
    endpoint: &str,
    authorities: &str,
    options: ClientOptions,
) -> Result<Endpoint, ClientError> {
    let config = pki::tls::successor_client_config(authorities);
    by_chain(endpoint, config, options)
}

/// An endpoint whose certificates decide: its name is not compared.
fn by_chain(
    endpoint: &str,
    config: Result<rustls::ClientConfig, pki::PkiError>,
    options: ClientOptions,
) -> Result<Endpoint, ClientError> {
    if !endpoint.contains(':') {
        return Err(configuration(format!(
            "endpoint `{endpoint}` is not `host:port`"
        )));
    }
    let mut config = config.map_err(|error| configuration(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let builder = common(options)
        .tls_backend_preconfigured(config)
        .https_only(true)
        .dns_resolver(Arc::new(FixedResolver(endpoint.to_owned())))
        .http2_keep_alive_interval(options.watch_idle / 3)
        .http2_keep_alive_timeout(options.connect_timeout)
        .http2_keep_alive_while_idle(true);
    let http = build(builder)?;
    Ok(Endpoint {
        label: endpoint.to_owned(),
        base: "https://kat.join".to_owned(),
        sessions: http.clone(),
        http,
        local: false,
    })
}

/// One machine's agent, over TLS verified by its own certificate; `server_name` is sent and not
/// verified. Dead connections are found by
/// pings while they are idle.
pub(super) fn agent(
    endpoint: &str,
    server_name: &str,
    mut config: rustls::ClientConfig,
    options: ClientOptions,
) -> Result<Endpoint, ClientError> {
    config.alpn_protocols = vec![b"h2".to_vec()];
    let builder = common(options)
        .tls_backend_preconfigured(config)
        .https_only(true)
        .dns_resolver(Arc::new(FixedResolver(endpoint.to_owned())))
        .http2_keep_alive_interval(options.watch_idle / 3)
        .http2_keep_alive_timeout(options.connect_timeout)
        .http2_keep_alive_while_idle(true);
    let http = build(builder)?;
    Ok(Endpoint {
        label: endpoint.to_owned(),
        // The verifier compares the names of the cluster and of the machine.
        base: format!("https://{server_name}"),
        sessions: http.clone(),
        http,
        local: false,
    })
}

/// The local socket.
pub(super) fn unix(path: &Path, options: ClientOptions) -> Result<Endpoint, ClientError> {
    // Nothing is verified here, and to read the system's certificates takes longer than a call.
    let local = || common(options).unix_socket(path).tls_certs_only([]);
    let sessions = local()
        .http2_prior_knowledge()
        .http2_keep_alive_interval(options.watch_idle / 3)
        .http2_keep_alive_timeout(options.connect_timeout);
    Ok(Endpoint {
        label: path.display().to_string(),
        base: "http://localhost".to_owned(),
        http: build(local())?,
        sessions: build(sessions)?,
        local: true,
    })
}

fn common(options: ClientOptions) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("katcall/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(options.connect_timeout)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        // A session whose output is not read must not block the others of a connection.
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .no_proxy()
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, ClientError> {
    builder
        .build()
        .map_err(|error| configuration(reason(&error)))
}

fn configuration(reason: String) -> ClientError {
    ClientError::Configuration { reason }
}

/// Resolves every name to the addresses of one `host:port`, looked up for each new connection.
struct FixedResolver(String);

impl Resolve for FixedResolver {
    fn resolve(&self, _: Name) -> Resolving {
        let endpoint = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host(endpoint).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The innermost reason of an error, in plain words.
pub(super) fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut deepest: &(dyn Error + 'static) = error;
    let mut step: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(at) = step {
        deepest = at;
        if let Some(io) = at.downcast_ref::<io::Error>() {
            return io_reason(io);
        }
        if let Some(tls) = at.downcast_ref::<rustls::Error>() {
            return tls_reason(tls);
        }
        step = at.source();
    }
    deepest.to_string()
}

fn io_reason(error: &io::Error) -> String {
    let inner = error.get_ref().map(|inner| inner as &(dyn Error + 'static));
    if let Some(tls) = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return tls_reason(tls);
    }
    if let Some(nested) = inner.and_then(|inner| inner.downcast_ref::<io::Error>()) {
        return io_reason(nested);
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied => PERMISSION.to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::NotFound => "no such socket".to_owned(),
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => {
            let text = error.to_string();
            if text.contains("close_notify") {
                // The message of rustls, which hyper wraps once more.
                return "the server closed the connection".to_owned();
            }
            let text = text.split(" (os error").next().unwrap_or_default();
            let mut characters = text.chars();
            characters.next().map_or_else(String::new, |first| {
                first.to_lowercase().chain(characters).collect()
            })
        }
    }
}

fn tls_reason(error: &rustls::Error) -> String {
    use rustls::CertificateError;
    match error {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is not from this cluster's authority".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate names another cluster".to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired, or this machine's clock is ahead".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet, or this machine's clock is behind".to_owned()
            }
            CertificateError::Other(reason) => format!("its certificate is refused: {reason}"),
            other => format!("its certificate is refused: {other}"),
        },
        rustls::Error::AlertReceived(alert) => {
            format!("it refused the handshake ({alert:?})")
        }
        other => other.to_string(),
    }
}
