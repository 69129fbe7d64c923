//! Sends one question to one resolver (RFC 1035, 4.2; RFC 5452, 9).

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

use super::message::UDP_PAYLOAD;

/// Number of unrelated packets after which a try is given up.
const STRANGERS: u32 = 32;
/// Largest packet that is read over UDP, in bytes.
const BUFFER: usize = 4096;

/// Flags of a question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flags {
    pub(super) dnssec_ok: bool,
    pub(super) checking_disabled: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("answers to other questions")]
    Strangers,
    #[error("malformed answer: {0}")]
    Malformed(String),
}

/// Asks over UDP from a new port with a new id, and over TCP when the answer is truncated. Each of
/// the two may take `limit`.
pub(super) async fn exchange(
    server: SocketAddr,
    question: &Query,
    flags: Flags,
    limit: Duration,
) -> Result<Message, ExchangeError> {
    let id = rand::random();
    let packet = query_packet(id, question, flags)?;
    let answer = timeout(limit, over_udp(server, id, question, &packet))
        .await
        .map_err(|_| ExchangeError::Timeout(limit))??;
    if !answer.metadata.truncation {
        return Ok(answer);
    }
    timeout(limit, over_tcp(server, id, question, &packet))
        .await
        .map_err(|_| ExchangeError::Timeout(limit))?
}

fn query_packet(id: u16, question: &Query, flags: Flags) -> Result<Vec<u8>, ExchangeError> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.metadata.checking_disabled = flags.checking_disabled;
    message.add_query(question.clone());
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    edns.set_dnssec_ok(flags.dnssec_ok);
    message.set_edns(edns);
    message
        .to_vec()
        .map_err(|error| ExchangeError::Malformed(error.to_string()))
}

/// The socket is connected, so that the kernel passes only this server's packets, and its refusals.
async fn over_udp(
    server: SocketAddr,
    id: u16,
    question: &Query,
    packet: &[u8],
) -> Result<Message, ExchangeError> {
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; BUFFER];
    for _ in 0..STRANGERS {
        let length = socket.recv(&mut buffer).await?;
        let packet = buffer.get(..length).unwrap_or_default();
        // A malformed packet may be another sender's: the right answer may still come.
        if let Ok(answer) = read_answer(packet)
            && belongs(&answer, id, question)
        {
            return Ok(answer);
        }
    }
    Err(ExchangeError::Strangers)
}

async fn over_tcp(
    server: SocketAddr,
    id: u16,
    question: &Query,
    packet: &[u8],
) -> Result<Message, ExchangeError> {
    let length = u16::try_from(packet.len())
        .map_err(|_| ExchangeError::Malformed("the question is too long".to_owned()))?;
    let mut stream = TcpStream::connect(server).await?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(packet);
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await?;
    let answer = read_answer(&buffer)?;
    match belongs(&answer, id, question) {
        true => Ok(answer),
        false => Err(ExchangeError::Strangers),
    }
}

/// Decodes another resolver's packet.
pub(super) fn read_answer(packet: &[u8]) -> Result<Message, ExchangeError> {
    // The decoder allocates memory for the declared number of questions.
    if packet.get(4..6) != Some([0, 1].as_slice()) {
        return Err(ExchangeError::Malformed("not one question".to_owned()));
    }
    Message::from_vec(packet).map_err(|error| ExchangeError::Malformed(error.to_string()))
}

/// Whether a packet answers this question.
pub(super) fn belongs(answer: &Message, id: u16, question: &Query) -> bool {
    let same = |other: &Query| {
        other.name() == question.name()
            && other.query_type() == question.query_type()
            && other.query_class() == question.query_class()
    };
    answer.metadata.id == id
        && answer.metadata.message_type == MessageType::Response
        && answer.metadata.op_code == OpCode::Query
        && answer.queries.iter().all(same)
}
