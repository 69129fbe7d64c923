//! Tries a certificate on this machine's etcd. What etcd trusts cannot be asked, and it reads the
//! files at its start only.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use rustls::{AlertDescription, ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Longest trial.
const LIMIT: Duration = Duration::from_secs(3);

/// What etcd said to a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trial {
    Accepted,
    Refused,
    /// Neither; with the reason.
    NoAnswer(String),
}

/// Asks a port of etcd, for clients or for peers, for its version. With TLS 1.3 a server refuses a
/// client's certificate only after the handshake, so an answer is what shows that it was accepted.
pub(super) async fn try_certificate(
    address: SocketAddr,
    server: &str,
    config: ClientConfig,
) -> Trial {
    match timeout(LIMIT, ask(address, server, config)).await {
        Ok(Ok(true)) => Trial::Accepted,
        Ok(Ok(false)) => Trial::NoAnswer(format!("{address} answers something else than HTTP")),
        Ok(Err(error)) if is_refusal(&error) => Trial::Refused,
        Ok(Err(error)) => Trial::NoAnswer(format!("{address}: {error}")),
        Err(_) => Trial::NoAnswer(format!("{address} does not answer within {LIMIT:?}")),
    }
}

async fn ask(address: SocketAddr, server: &str, config: ClientConfig) -> std::io::Result<bool> {
    let name = ServerName::try_from(server.to_owned()).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await?;
    let request = format!("GET /version HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    Ok(&answer == b"HTTP/")
}

/// Whether the server said that it does not trust the certificate.
fn is_refusal(error: &std::io::Error) -> bool {
    let inner = error.get_ref().map(|inner| inner as &(dyn Error + 'static));
    let alert = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(
        alert,
        Some(rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateUnknown
                | AlertDescription::AccessDenied
        ))
    )
}
