//! The kernel's connection tracking, over netlink (linux/netfilter/nfnetlink_conntrack.h).

use std::{io, net::Ipv4Addr, time::Duration};

use futures_util::StreamExt;
use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlaBuffer, NlasIterator,
};
use netlink_proto::sys::{SocketAddr, protocols::NETLINK_NETFILTER};
use rustix::{io::Errno, net::AddressFamily};

use kat_types::machine::network::Transport;

const DEADLINE: Duration = Duration::from_secs(10);

/// `NFNL_SUBSYS_CTNETLINK`, in the upper half of a message's type.
const SUBSYSTEM: u16 = 1 << 8;
/// `IPCTNL_MSG_CT_GET`.
const GET: u16 = SUBSYSTEM | 1;
/// `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = SUBSYSTEM | 2;
/// Size of `struct nfgenmsg`: family, version, and a resource id that is 0.
const HEADER: usize = 4;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_STATUS_MASK: u16 = 26;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
/// `TCP_CONNTRACK_TIME_WAIT`: both ends have closed the connection.
const TIME_WAIT: u8 = 7;
/// `TCP_CONNTRACK_SYN_SENT`: the other end has not answered.
const SYN_SENT: u8 = 1;
/// `IPS_DST_NAT`: the destination was translated.
const DST_NAT: u32 = 1 << 5;
/// Flag of an attribute that contains others.
const NESTED: u16 = 0x8000;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("netlink: {0}")]
    Socket(#[source] io::Error),
    #[error("can't {what}: {source}")]
    Refused {
        /// The request, for messages.
        what: &'static str,
        source: io::Error,
    },
    #[error("can't {what}: the kernel did not answer within {} s", DEADLINE.as_secs())]
    Timeout {
        /// The request, for messages.
        what: &'static str,
    },
}

/// A tracked connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Destination address that its client uses.
    pub called: Ipv4Addr,
    /// Destination port that its client uses.
    pub port: u16,
    /// Its transport, if it is TCP or UDP.
    pub transport: Option<Transport>,
    /// Address of the answering end.
    pub answers: Ipv4Addr,
    /// Both ends have closed it: the kernel itself treats the next connection from the same client
    /// port as a new one.
    pub ended: bool,
    /// A TCP connection of which only the first packet was seen, and no answer.
    pub half_open: bool,
    /// The attributes that identify it to the kernel.
    identity: Vec<u8>,
}

/// All connections of the machine, including forwarded ones, whose destination was translated.
pub(crate) async fn translated() -> Result<Vec<Flow>, ConntrackError> {
    let mut attributes = Vec::new();
    for kind in [CTA_STATUS, CTA_STATUS_MASK] {
        push(&mut attributes, kind, &DST_NAT.to_be_bytes());
    }
    let answers = exchange("list connections", GET, &attributes, NLM_F_DUMP).await?;
    Ok(answers.iter().filter_map(|body| flow(body)).collect())
}

/// All connections whose destination was not translated.
pub(crate) async fn untranslated() -> Result<Vec<Flow>, ConntrackError> {
    let mut attributes = Vec::new();
    push(&mut attributes, CTA_STATUS, &0u32.to_be_bytes());
    push(&mut attributes, CTA_STATUS_MASK, &DST_NAT.to_be_bytes());
    let answers = exchange("list connections", GET, &attributes, NLM_F_DUMP).await?;
    Ok(answers.iter().filter_map(|body| flow(body)).collect())
}

/// Deletes a connection's entry; its next packet is treated as a first one. A missing entry is no
/// error.
pub(crate) async fn forget(flow: &Flow) -> Result<(), ConntrackError> {
    match exchange("forget a connection", DELETE, &flow.identity, NLM_F_ACK).await {
        Err(ConntrackError::Refused { source, .. })
            if source.raw_os_error() == Some(Errno::NOENT.raw_os_error()) =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Decodes a connection; `None` if it is not one over IPv4.
fn flow(body: &[u8]) -> Option<Flow> {
    let attributes = body.get(HEADER..)?;
    let original = attribute(attributes, CTA_TUPLE_ORIG)?;
    let reply = attribute(attributes, CTA_TUPLE_REPLY)?;
    let protocol = attribute(&original, CTA_TUPLE_PROTO)?;
    let address = |tuple: &[u8], kind| {
        let bytes = attribute(&attribute(tuple, CTA_TUPLE_IP)?, kind)?;
        Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))
    };
    let transport = match *attribute(&protocol, CTA_PROTO_NUM)?.first()? {
        6 => Some(Transport::Tcp),
        17 => Some(Transport::Udp),
        _ => None,
    };
    let port = attribute(&protocol, CTA_PROTO_DST_PORT).unwrap_or_default();
    let state = || {
        let details = attribute(attributes, CTA_PROTOINFO)?;
        attribute(
            &attribute(&details, CTA_PROTOINFO_TCP)?,
            CTA_PROTOINFO_TCP_STATE,
        )
    };
    let mut identity = Vec::new();
    push(&mut identity, CTA_TUPLE_ORIG | NESTED, &original);
    for kind in [CTA_ID, CTA_ZONE] {
        if let Some(value) = attribute(attributes, kind) {
            push(&mut identity, kind, &value);
        }
    }
    Some(Flow {
        called: address(&original, CTA_IP_V4_DST)?,
        port: u16::from_be_bytes(port.try_into().unwrap_or_default()),
        transport,
        answers: address(&reply, CTA_IP_V4_SRC)?,
        ended: state().is_some_and(|state| state == [TIME_WAIT]),
        half_open: state().is_some_and(|state| state == [SYN_SENT]),
        identity,
    })
}

/// The value of the first attribute of a kind.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let all: Vec<NlaBuffer<&[u8]>> = NlasIterator::new(attributes)
        .collect::<Result<_, _>>()
        .ok()?;
    let found = all.iter().find(|attribute| attribute.kind() == kind)?;
    Some(found.value().to_vec())
}

/// Appends an attribute, padded to four bytes.
fn push(attributes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    attributes.extend(length.to_ne_bytes());
    attributes.extend(kind.to_ne_bytes());
    attributes.extend(value);
    attributes.resize(attributes.len().next_multiple_of(4), 0);
}

/// A netfilter message with an undecoded body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ConntrackMessage {
    kind: u16,
    body: Vec<u8>,
}

impl NetlinkSerializable for ConntrackMessage {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for ConntrackMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

impl From<ConntrackMessage> for NetlinkPayload<ConntrackMessage> {
    fn from(message: ConntrackMessage) -> Self {
        Self::InnerMessage(message)
    }
}

/// Sends one request on a socket of its own; returns the bodies of the answers.
async fn exchange(
    what: &'static str,
    kind: u16,
    attributes: &[u8],
    flags: u16,
) -> Result<Vec<Vec<u8>>, ConntrackError> {
    let (connection, handle, _) =
        netlink_proto::new_connection::<ConntrackMessage>(NETLINK_NETFILTER)
            .map_err(ConntrackError::Socket)?;
    let task = tokio::spawn(connection);
    let family = u8::try_from(AddressFamily::INET.as_raw()).unwrap_or_default();
    let mut body = vec![family, 0, 0, 0];
    body.extend(attributes);
    let mut request = NetlinkMessage::from(ConntrackMessage { kind, body });
    request.header.flags = NLM_F_REQUEST | flags;
    let work = async {
        let mut received = Vec::new();
        let mut answers = handle
            .request(request, SocketAddr::new(0, 0))
            .map_err(|error| ConntrackError::Socket(io::Error::other(error.to_string())))?;
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(inner) => received.push(inner.body),
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    let source = error.to_io();
                    return Err(ConntrackError::Refused { what, source });
                }
                _ => {}
            }
        }
        Ok(received)
    };
    let outcome = tokio::time::timeout(DEADLINE, work).await;
    task.abort();
    outcome.unwrap_or(Err(ConntrackError::Timeout { what }))
}

#[cfg(test)]
impl Flow {
    /// A connection that the kernel does not have.
    pub(crate) fn example(
        called: Ipv4Addr,
        port: u16,
        transport: Transport,
        answers: Ipv4Addr,
    ) -> Self {
        Self {
            called,
            port,
            transport: Some(transport),
            answers,
            ended: false,
            half_open: false,
            identity: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(from: [u8; 4], to: [u8; 4], protocol: u8, port: u16) -> Vec<u8> {
        let (mut addresses, mut transport, mut tuple) = (Vec::new(), Vec::new(), Vec::new());
        push(&mut addresses, CTA_IP_V4_SRC, &from);
        push(&mut addresses, CTA_IP_V4_DST, &to);
        push(&mut transport, CTA_PROTO_NUM, &[protocol]);
        push(&mut transport, CTA_PROTO_DST_PORT, &port.to_be_bytes());
        push(&mut tuple, CTA_TUPLE_IP | NESTED, &addresses);
        push(&mut tuple, CTA_TUPLE_PROTO | NESTED, &transport);
        tuple
    }

    #[test]
    fn a_connection_is_read_and_named_as_the_kernel_finds_it() {
        let original = tuple([10, 100, 0, 2], [10, 200, 0, 5], 17, 53);
        let mut body = vec![2, 0, 0, 0];
        push(&mut body, CTA_TUPLE_ORIG | NESTED, &original);
        let reply = tuple([10, 100, 2, 2], [10, 100, 0, 2], 17, 40000);
        push(&mut body, CTA_TUPLE_REPLY | NESTED, &reply);
        push(&mut body, CTA_ID, &[1, 2, 3, 4]);
        let flow = flow(&body).unwrap();
        assert_eq!(flow.called, Ipv4Addr::new(10, 200, 0, 5));
        assert_eq!((flow.port, flow.transport), (53, Some(Transport::Udp)));
        assert_eq!(flow.answers, Ipv4Addr::new(10, 100, 2, 2));
        let mut identity = Vec::new();
        push(&mut identity, CTA_TUPLE_ORIG | NESTED, &original);
        push(&mut identity, CTA_ID, &[1, 2, 3, 4]);
        assert_eq!(flow.identity, identity);
        assert!(!flow.ended);
    }

    #[test]
    fn connections_without_an_answer_and_closed_ones_are_known() {
        for (state, ended) in [(1, false), (2, false), (3, false), (7, true), (8, false)] {
            let (mut tcp, mut details) = (Vec::new(), Vec::new());
            push(&mut tcp, CTA_PROTOINFO_TCP_STATE, &[state]);
            push(&mut details, CTA_PROTOINFO_TCP | NESTED, &tcp);
            let mut body = vec![2, 0, 0, 0];
            let (from, to) = ([10, 100, 0, 2], [10, 200, 0, 5]);
            push(&mut body, CTA_TUPLE_ORIG | NESTED, &tuple(from, to, 6, 80));
            push(&mut body, CTA_TUPLE_REPLY | NESTED, &tuple(to, from, 6, 80));
            push(&mut body, CTA_PROTOINFO | NESTED, &details);
            let flow = flow(&body).unwrap();
            assert_eq!((flow.ended, flow.half_open), (ended, state == 1), "{state}");
        }
    }

    #[test]
    fn a_truncated_conntrack_message_is_no_flow() {
        let mut body = vec![2, 0, 0, 0];
        push(
            &mut body,
            CTA_TUPLE_ORIG | NESTED,
            &tuple([1; 4], [2; 4], 6, 80),
        );
        push(
            &mut body,
            CTA_TUPLE_REPLY | NESTED,
            &tuple([3; 4], [1; 4], 6, 80),
        );
        assert!(flow(&body).is_some());
        for length in 0..body.len() {
            assert_eq!(flow(&body[..length]), None, "{length} bytes");
        }
    }
}
