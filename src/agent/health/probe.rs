//! One probe of one instance: its target, and the http and tcp probes.
//!
//! The machine's agent opens a new connection to the instance's overlay address. The response is
//! untrusted, so all of it is limited.

use std::{fmt, io, net::SocketAddrV4, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{
    Request,
    client::conn::http1,
    header::{CONNECTION, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use kat_types::{
    VERSION,
    assignment::Assignment,
    resource::{Port, PortRef, Protocol},
};

/// Longest response head in bytes.
const HEAD_LIMIT: usize = 16 << 10;
/// Most bytes of a body that are read, so that the server can finish its response.
const BODY_LIMIT: usize = 64 << 10;
/// Longest time for which a body is read.
const BODY_TIME: Duration = Duration::from_millis(100);
/// Longest error text in bytes.
const ERROR_LIMIT: usize = 120;

/// What a probe checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProbeCheck {
    Http {
        address: SocketAddrV4,
        /// Path and query.
        path: String,
    },
    Tcp {
        address: SocketAddrV4,
    },
    /// A command in the container.
    Exec {
        command: Vec<String>,
    },
}

impl ProbeCheck {
    /// The target of an assignment's health check; an error is a sentence.
    pub(crate) fn of(assignment: &Assignment) -> Result<Self, String> {
        let Some(check) = &assignment.health_check else {
            return Err("there is no health check".to_owned());
        };
        let at = |port: &PortRef| {
            let number = number_of(port, &assignment.ports).ok_or_else(|| match port {
                PortRef::Number(number) => format!("it has no TCP port {number} to be asked at"),
                PortRef::Name(name) => format!("it has no TCP port {name} to be asked at"),
            })?;
            Ok::<_, String>(SocketAddrV4::new(assignment.address, number))
        };
        if let Some(http) = &check.http {
            Ok(Self::Http {
                address: at(&http.port)?,
                path: http.path.clone(),
            })
        } else if let Some(tcp) = &check.tcp {
            Ok(Self::Tcp {
                address: at(&tcp.port)?,
            })
        } else if let Some(exec) = &check.exec {
            Ok(Self::Exec {
                command: exec.command.clone(),
            })
        } else {
            Err("its health check is of a kind that this version does not know".to_owned())
        }
    }
}

/// Such as `GET :8080/healthz`, for messages.
impl fmt::Display for ProbeCheck {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { address, path } => write!(formatter, "GET :{}{path}", address.port()),
            Self::Tcp { address } => write!(formatter, "connection to :{}", address.port()),
            // The arguments may be long, and may contain confidential data.
            Self::Exec { command } => match command.first() {
                Some(program) => formatter.write_str(&bounded(program)),
                None => Ok(()),
            },
        }
    }
}

fn number_of(reference: &PortRef, ports: &[Port]) -> Option<u16> {
    let mut tcp = ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let found = tcp.find(|port| match reference {
        PortRef::Number(number) => port.container_port == *number,
        PortRef::Name(name) => port.name.as_ref() == Some(name),
    });
    found.map(|port| port.container_port)
}

/// Probes an instance over the network: the real one, or a simulated one. The methods have no time
/// limit; the caller enforces the probe's.
#[async_trait]
pub trait ProbeNetwork: Send + Sync {
    /// Opens a connection and closes it.
    async fn connect(&self, address: SocketAddrV4) -> Result<(), String>;
    /// Sends a GET request and returns the status code.
    async fn get(&self, address: SocketAddrV4, path: &str) -> Result<u16, String>;
}

/// The real network.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OverlayProbeNetwork;

#[async_trait]
impl ProbeNetwork for OverlayProbeNetwork {
    async fn connect(&self, address: SocketAddrV4) -> Result<(), String> {
        open(address).await.map(drop)
    }

    async fn get(&self, address: SocketAddrV4, path: &str) -> Result<u16, String> {
        let stream = TokioIo::new(open(address).await?);
        let mut http = http1::Builder::new();
        http.max_buf_size(HEAD_LIMIT);
        let (mut sender, connection) = http.handshake(stream).await.map_err(no_answer)?;
        let request = Request::get(path)
            .header(HOST, address.to_string())
            .header(USER_AGENT, format!("kat-agent/{VERSION} health check"))
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| bounded(&error.to_string()))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(no_answer)?;
            let status = response.status().as_u16();
            // The status decides; errors of the body are ignored.
            let mut body = response.into_body();
            let mut left = BODY_LIMIT;
            let rest = async {
                while let Some(Ok(frame)) = body.frame().await {
                    let size = frame.data_ref().map_or(0, Bytes::len);
                    match left.checked_sub(size) {
                        Some(less) => left = less,
                        None => return,
                    }
                }
            };
            let _ = timeout(BODY_TIME, rest).await;
            Ok(status)
        };
        let serve = async {
            // The exchange reports errors of the connection.
            let _ = connection.await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            answer = exchange => answer,
            () = serve => Err("no answer".to_owned()),
        }
    }
}

async fn open(address: SocketAddrV4) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).await;
    stream.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "no way to its address".to_owned()
        }
        _ => bounded(&error.to_string()),
    })
}

fn no_answer(error: hyper::Error) -> String {
    if error.is_parse() || error.is_parse_too_large() {
        "the answer is not HTTP".to_owned()
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        "the connection ended without an answer".to_owned()
    } else {
        bounded(&error.to_string())
    }
}

/// The first part of a text from elsewhere, as one line.
fn bounded(text: &str) -> String {
    let line = text.chars().map(|letter| match letter.is_control() {
        true => ' ',
        false => letter,
    });
    line.take(ERROR_LIMIT).collect()
}

/// Whether a response status counts as success.
pub(crate) fn check_http_status(status: u16) -> Result<(), String> {
    match status {
        200..=399 => Ok(()),
        _ => Err(format!("http {status}")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Probes a server that sends `answer` to every client.
    async fn told(answer: &'static [u8]) -> (Result<u16, String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = match listener.local_addr().unwrap() {
            std::net::SocketAddr::V4(address) => address,
            std::net::SocketAddr::V6(_) => unreachable!(),
        };
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let size = stream.read(&mut request).await.unwrap();
            stream.write_all(answer).await.unwrap();
            request.truncate(size);
            String::from_utf8(request).unwrap()
        });
        let got = OverlayProbeNetwork.get(address, "/healthz?a=b").await;
        (got, server.await.unwrap())
    }

    #[tokio::test]
    async fn a_request_is_whole_and_its_status_is_the_answer() {
        let (got, request) = told(b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno").await;
        assert_eq!(got, Ok(503));
        assert!(
            request.starts_with("GET /healthz?a=b HTTP/1.1\r\n"),
            "{request}"
        );
        assert!(request.contains("\r\nhost: 127.0.0.1:"), "{request}");
        // The probe does not wait for the body.
        let (got, _) = told(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n").await;
        assert_eq!(got, Ok(200));
        let (got, _) = told(b"HTTP/1.0 302 Elsewhere\r\nLocation: /\r\n\r\n").await;
        assert_eq!(got.map(check_http_status), Ok(Ok(())));
    }

    #[tokio::test]
    async fn what_is_no_answer_is_told_in_words() {
        let (got, _) = told(b"SSH-2.0-OpenSSH_9\r\n").await;
        assert_eq!(got, Err("the answer is not HTTP".to_owned()));
        let (got, _) = told(b"").await;
        assert_eq!(
            got,
            Err("the connection ended without an answer".to_owned())
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let std::net::SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            unreachable!()
        };
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\na: ").await.unwrap();
            // The server sends for as long as the probe reads.
            while stream.write_all(&[b'a'; 4096]).await.is_ok() {}
        });
        let got = OverlayProbeNetwork.get(address, "/").await;
        assert_eq!(got, Err("the answer is not HTTP".to_owned()));
        server.await.unwrap();
        let refused = OverlayProbeNetwork.connect(address).await;
        assert_eq!(refused, Err("connection refused".to_owned()));
    }
}
