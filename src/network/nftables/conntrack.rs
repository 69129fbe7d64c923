//! The kernel's connection tracking, over netlink (linux/netfilter/nfnetlink_conntrack.h).

use std::net::Ipv4Addr;

use rustix::{io::Errno, net::AddressFamily};

use super::netfilter::{self, HEADER, NetfilterError, attribute, push};
use kat_types::machine::network::Transport;

/// `NFNL_SUBSYS_CTNETLINK`, in the upper half of a message's type.
const SUBSYSTEM: u16 = 1 << 8;
/// `IPCTNL_MSG_CT_GET`.
const GET: u16 = SUBSYSTEM | 1;
/// `IPCTNL_MSG_CT_DELETE`.
const DELETE: u16 = SUBSYSTEM | 2;

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

/// A tracked connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Address of its client.
    pub from: Ipv4Addr,
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

/// All connections of the machine, including forwarded ones.
pub(crate) async fn all() -> Result<Vec<Flow>, NetfilterError> {
    list(&[]).await
}

/// All connections whose destination was translated.
pub(crate) async fn translated() -> Result<Vec<Flow>, NetfilterError> {
    let mut attributes = Vec::new();
    for kind in [CTA_STATUS, CTA_STATUS_MASK] {
        push(&mut attributes, kind, &DST_NAT.to_be_bytes());
    }
    list(&attributes).await
}

/// All connections whose destination was not translated.
pub(crate) async fn untranslated() -> Result<Vec<Flow>, NetfilterError> {
    let mut attributes = Vec::new();
    push(&mut attributes, CTA_STATUS, &0u32.to_be_bytes());
    push(&mut attributes, CTA_STATUS_MASK, &DST_NAT.to_be_bytes());
    list(&attributes).await
}

async fn list(attributes: &[u8]) -> Result<Vec<Flow>, NetfilterError> {
    let answers = netfilter::dump("list connections", ipv4(), GET, attributes).await?;
    Ok(answers.iter().filter_map(|body| flow(body)).collect())
}

/// Deletes a connection's entry; its next packet is treated as a first one. A missing entry is no
/// error.
pub(crate) async fn forget(flow: &Flow) -> Result<(), NetfilterError> {
    match netfilter::command("forget a connection", ipv4(), DELETE, &flow.identity).await {
        Err(NetfilterError::Refused { source, .. })
            if source.raw_os_error() == Some(Errno::NOENT.raw_os_error()) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn ipv4() -> u8 {
    u8::try_from(AddressFamily::INET.as_raw()).unwrap_or_default()
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
        from: address(&original, CTA_IP_V4_SRC)?,
        called: address(&original, CTA_IP_V4_DST)?,
        port: u16::from_be_bytes(port.try_into().unwrap_or_default()),
        transport,
        answers: address(&reply, CTA_IP_V4_SRC)?,
        ended: state().is_some_and(|state| state == [TIME_WAIT]),
        half_open: state().is_some_and(|state| state == [SYN_SENT]),
        identity,
    })
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
            from: Ipv4Addr::new(10, 100, 0, 9),
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
        assert_eq!(flow.from, Ipv4Addr::new(10, 100, 0, 2));
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
