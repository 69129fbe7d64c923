//! One question to one name server: by UDP, and by TCP where the answer does not fit or does not come.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_proto::op::{Message, MessageType};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::{Instant, timeout, timeout_at},
};

/// How often a question is sent by UDP.
const TRIES: usize = 2;
/// Longest answer by UDP that is read; a longer one comes by TCP.
const LONGEST_DATAGRAM: usize = 4096;
/// Bytes of a message's header.
const HEADER: usize = 12;

/// How long answers are waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For each try by UDP.
    pub(super) udp: Duration,
    /// For the connection by TCP with its answer.
    pub(super) tcp: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            udp: Duration::from_secs(2),
            tcp: Duration::from_secs(5),
        }
    }
}

/// An answer, and its bytes.
pub(super) struct Answer {
    pub(super) message: Message,
    pub(super) bytes: Vec<u8>,
}

/// Sends a question and waits for its answer. An error says why there is none.
pub(super) async fn exchange(
    at: SocketAddr,
    asked: &Message,
    bytes: &[u8],
    patience: Patience,
) -> Result<Answer, String> {
    // By UDP nothing is found out that TCP does not say better.
    if let Ok(Some(answer)) = by_udp(at, asked, bytes, patience.udp).await
        && !answer.message.metadata.truncation
    {
        return Ok(answer);
    }
    match timeout(patience.tcp, by_tcp(at, asked, bytes)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused => "the connection is refused".to_owned(),
            _ => error.to_string(),
        }),
        Err(_) => Err("no answer in time by UDP and TCP".to_owned()),
    }
}

/// `None` without an answer that can be read.
async fn by_udp(
    at: SocketAddr,
    asked: &Message,
    bytes: &[u8],
    patience: Duration,
) -> io::Result<Option<Answer>> {
    let any: IpAddr = match at {
        SocketAddr::V4(_) => [0_u8; 4].into(),
        SocketAddr::V6(_) => [0_u8; 16].into(),
    };
    // A port of its own for each question; the system drops what comes from elsewhere.
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(at).await?;
    let mut buffer = vec![0; LONGEST_DATAGRAM];
    for _ in 0..TRIES {
        socket.send(bytes).await?;
        let until = Instant::now() + patience;
        while let Ok(received) = timeout_at(until, socket.recv(&mut buffer)).await {
            let length = received?;
            let found = buffer.get(..length).unwrap_or_default();
            if !is_meant(found, asked) {
                continue;
            }
            return Ok(read(found, asked));
        }
    }
    Ok(None)
}

async fn by_tcp(at: SocketAddr, asked: &Message, bytes: &[u8]) -> io::Result<Answer> {
    let malformed = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let length = u16::try_from(bytes.len()).map_err(|_| malformed("the question is too long"))?;
    let mut stream = TcpStream::connect(at).await?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend(bytes);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut found = vec![0; usize::from(length)];
    stream.read_exact(&mut found).await?;
    if !is_meant(&found, asked) {
        return Err(malformed("the answer is to another question"));
    }
    read(&found, asked).ok_or_else(|| malformed("the answer cannot be read"))
}

/// Whether the header is that of an answer to this question.
pub(super) fn is_meant(bytes: &[u8], asked: &Message) -> bool {
    let id = asked.metadata.id.to_be_bytes();
    bytes.len() >= HEADER && bytes.starts_with(&id)
}

/// The answer, if it is one to this question.
pub(super) fn read(bytes: &[u8], asked: &Message) -> Option<Answer> {
    let message = Message::from_vec(bytes).ok()?;
    let Message {
        metadata, queries, ..
    } = &message;
    let is_answer = metadata.message_type == MessageType::Response
        && metadata.op_code == asked.metadata.op_code
        // Answers to updates, and some errors, leave the question out.
        && (queries.is_empty() || *queries == asked.queries);
    is_answer.then(|| Answer {
        message,
        bytes: bytes.to_vec(),
    })
}
