//! Requests to the kernel's netfilter over netlink (linux/netfilter/nfnetlink.h).

use std::{io, time::Duration};

use futures_util::StreamExt;
use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlaBuffer, NlasIterator,
};
use netlink_proto::sys::{SocketAddr, protocols::NETLINK_NETFILTER};

const DEADLINE: Duration = Duration::from_secs(10);

/// `NFT_MSG_GETGEN`, with the subsystem of nftables.
const GET_GENERATION: u16 = (10 << 8) | 16;
/// `NFTA_GEN_ID`: 32 bits in network order.
const GENERATION_ID: u16 = 1;

/// Size of `struct nfgenmsg`: family, version, and a resource id that is 0.
pub(super) const HEADER: usize = 4;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetfilterError {
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

/// The value of the first attribute of a kind.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    let all: Vec<NlaBuffer<&[u8]>> = NlasIterator::new(attributes)
        .collect::<Result<_, _>>()
        .ok()?;
    let found = all.iter().find(|attribute| attribute.kind() == kind)?;
    Some(found.value().to_vec())
}

/// The values of all attributes.
pub(super) fn attributes(bytes: &[u8]) -> Vec<Vec<u8>> {
    let all = NlasIterator::new(bytes).map_while(Result::ok);
    all.map(|attribute: NlaBuffer<&[u8]>| attribute.value().to_vec())
        .collect()
}

/// Appends an attribute, padded to four bytes.
pub(super) fn push(attributes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    attributes.extend(length.to_ne_bytes());
    attributes.extend(kind.to_ne_bytes());
    attributes.extend(value);
    attributes.resize(attributes.len().next_multiple_of(4), 0);
}

/// A netfilter message with an undecoded body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NetfilterMessage {
    kind: u16,
    body: Vec<u8>,
}

impl NetlinkSerializable for NetfilterMessage {
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

impl NetlinkDeserializable for NetfilterMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: header.message_type,
            body: payload.to_vec(),
        })
    }
}

impl From<NetfilterMessage> for NetlinkPayload<NetfilterMessage> {
    fn from(message: NetfilterMessage) -> Self {
        Self::InnerMessage(message)
    }
}

/// Lists objects of a family; returns the bodies of the answers.
pub(super) async fn dump(
    what: &'static str,
    family: u8,
    kind: u16,
    attributes: &[u8],
) -> Result<Vec<Vec<u8>>, NetfilterError> {
    exchange(what, family, kind, attributes, NLM_F_DUMP).await
}

/// Sends a request that has no answer but its success.
pub(super) async fn command(
    what: &'static str,
    family: u8,
    kind: u16,
    attributes: &[u8],
) -> Result<(), NetfilterError> {
    exchange(what, family, kind, attributes, NLM_F_ACK)
        .await
        .map(drop)
}

/// The generation of all nftables rules of this machine, which changes with every transaction of any
/// program; elements that packets add to a set, or that expire, do not count. `None` if it is not
/// known: the rules may be any then.
pub(super) async fn generation() -> Option<u32> {
    let what = "read the generation of nftables";
    match exchange(what, 0, GET_GENERATION, &[], 0).await {
        Ok(answers) => answers.first().and_then(|body| generation_id(body)),
        Err(error) => {
            tracing::debug!("{error}");
            None
        }
    }
}

/// The generation in the body of an answer.
fn generation_id(body: &[u8]) -> Option<u32> {
    let value = attribute(body.get(HEADER..)?, GENERATION_ID)?;
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// Sends one request on a socket of its own; returns the bodies of the answers.
async fn exchange(
    what: &'static str,
    family: u8,
    kind: u16,
    attributes: &[u8],
    flags: u16,
) -> Result<Vec<Vec<u8>>, NetfilterError> {
    let (connection, handle, _) =
        netlink_proto::new_connection::<NetfilterMessage>(NETLINK_NETFILTER)
            .map_err(NetfilterError::Socket)?;
    let task = tokio::spawn(connection);
    let mut body = vec![family, 0, 0, 0];
    body.extend(attributes);
    let mut request = NetlinkMessage::from(NetfilterMessage { kind, body });
    request.header.flags = NLM_F_REQUEST | flags;
    let work = async {
        let mut received = Vec::new();
        let mut answers = handle
            .request(request, SocketAddr::new(0, 0))
            .map_err(|error| NetfilterError::Socket(io::Error::other(error.to_string())))?;
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(inner) => received.push(inner.body),
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    let source = error.to_io();
                    return Err(NetfilterError::Refused { what, source });
                }
                _ => {}
            }
        }
        Ok(received)
    };
    let outcome = tokio::time::timeout(DEADLINE, work).await;
    task.abort();
    outcome.unwrap_or(Err(NetfilterError::Timeout { what }))
}

#[cfg(test)]
mod tests {
    use super::{GENERATION_ID, generation_id, push};

    #[test]
    fn a_generation_is_read_from_its_attribute_and_nothing_else_is_one() {
        let mut body = vec![0; 4];
        push(&mut body, 2, b"\0\0\x10\0");
        push(&mut body, GENERATION_ID, &0x0102_0304_u32.to_be_bytes());
        assert_eq!(generation_id(&body), Some(0x0102_0304));
        let mut short = vec![0; 4];
        push(&mut short, GENERATION_ID, b"\x01");
        for body in [&[][..], &[0; 3], &[0; 4], &short] {
            assert_eq!(generation_id(body), None, "{body:?}");
        }
    }
}
