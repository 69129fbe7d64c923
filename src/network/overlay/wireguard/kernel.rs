//! The kernel's WireGuard, over generic netlink (linux/wireguard.h).

use std::{
    io,
    net::IpAddr,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use futures_util::StreamExt;
use ipnet::Ipv4Net;
use netlink_packet_core::{
    Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute,
    WireguardCmd, WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};
use netlink_proto::sys::{SocketAddr, protocols::NETLINK_GENERIC};

use super::{
    LinkChanges, PeerChange, PeerStatus, PrivateKey, PublicKey, WireGuard, WireGuardDevice,
    WireGuardError,
};

const DEADLINE: Duration = Duration::from_secs(10);
/// Most bytes of attributes in one message: below a page, which every kernel accepts.
const MAXIMUM_MESSAGE: usize = 3500;
/// Most addresses of one peer in one message.
const ALLOWED_AT_ONCE: usize = 64;

/// A WireGuard link of the kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    link: String,
}

impl Kernel {
    /// The link of this name.
    pub fn new(link: impl Into<String>) -> Self {
        Self { link: link.into() }
    }

    async fn send(
        &self,
        what: &str,
        messages: Vec<WireguardMessage>,
        flags: u16,
    ) -> Result<Vec<WireguardMessage>, WireGuardError> {
        let family = family().await?;
        let mut answers = Vec::new();
        for message in messages {
            let mut message = GenlMessage::from_payload(message);
            message.set_resolved_family_id(family);
            let received = exchange(what, message, flags).await?;
            answers.extend(received.into_iter().map(|answer| answer.payload));
        }
        Ok(answers)
    }
}

#[async_trait]
impl WireGuard for Kernel {
    async fn read(&self) -> Result<WireGuardDevice, WireGuardError> {
        let what = format!("read WireGuard link {}", self.link);
        let request = WireguardMessage {
            cmd: WireguardCmd::GetDevice,
            attributes: vec![WireguardAttribute::IfName(self.link.clone())],
        };
        let answers = self.send(&what, vec![request], NLM_F_DUMP).await?;
        Ok(device(&answers))
    }

    async fn apply(&self, change: &LinkChanges) -> Result<(), WireGuardError> {
        if change.is_empty() {
            return Ok(());
        }
        let what = format!("change WireGuard link {}", self.link);
        let messages = set_messages(&self.link, change);
        self.send(&what, messages, NLM_F_ACK).await?;
        Ok(())
    }

    fn kind(&self) -> &'static str {
        "kernel"
    }
}

/// Id of the generic netlink family `wireguard`; `ENOENT` where the kernel has none.
async fn family() -> Result<u16, WireGuardError> {
    const WHAT: &str = "look up the kernel's WireGuard";
    let request = GenlMessage::from_payload(GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName("wireguard".into())],
    });
    let answers = exchange(WHAT, request, NLM_F_ACK).await?;
    answers
        .iter()
        .flat_map(|answer| &answer.payload.nlas)
        .find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(family) => Some(*family),
            _ => None,
        })
        .ok_or_else(|| WireGuardError::Answer {
            what: WHAT.into(),
            reason: "no family number".into(),
        })
}

/// Sends one request on a socket of its own; returns the answers.
async fn exchange<T>(
    what: &str,
    message: GenlMessage<T>,
    flags: u16,
) -> Result<Vec<GenlMessage<T>>, WireGuardError>
where
    T: std::fmt::Debug + Send + Unpin + 'static,
    GenlMessage<T>: NetlinkSerializable + NetlinkDeserializable + Unpin + Send,
    NetlinkPayload<GenlMessage<T>>: From<GenlMessage<T>>,
{
    let socket = |source| WireGuardError::Socket {
        place: "netlink".into(),
        source,
    };
    let (connection, handle, _) =
        netlink_proto::new_connection::<GenlMessage<T>>(NETLINK_GENERIC).map_err(socket)?;
    let task = tokio::spawn(connection);
    let mut request = NetlinkMessage::from(message);
    request.header.flags = NLM_F_REQUEST | flags;
    let work = async {
        let mut received = Vec::new();
        let mut answers = handle
            .request(request, SocketAddr::new(0, 0))
            .map_err(|error| socket(io::Error::other(error.to_string())))?;
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(inner) => received.push(inner),
                NetlinkPayload::Error(error) if error.code.is_some() => {
                    return Err(WireGuardError::Refused {
                        what: what.to_owned(),
                        source: error.to_io(),
                    });
                }
                _ => {}
            }
        }
        Ok(received)
    };
    let outcome = tokio::time::timeout(DEADLINE, work).await;
    task.abort();
    outcome.unwrap_or_else(|_| {
        Err(WireGuardError::Timeout {
            what: what.to_owned(),
        })
    })
}

/// The messages for a change: key, port and removals first, then peers, in parts that fit a netlink
/// buffer.
pub fn set_messages(link: &str, change: &LinkChanges) -> Vec<WireguardMessage> {
    let mut first = Vec::new();
    if let Some(key) = &change.private_key {
        first.push(WireguardAttribute::PrivateKey(*key.bytes()));
    }
    if let Some(port) = change.listen_port {
        first.push(WireguardAttribute::ListenPort(port));
    }
    let removals = change.removed.iter().map(|key| {
        WireguardPeer(vec![
            WireguardPeerAttribute::PublicKey(key.0),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
        ])
    });
    let changes = change.peers.iter().flat_map(peer_pieces);
    let mut messages = Vec::new();
    let mut piece: Vec<WireguardPeer> = Vec::new();
    let mut size = 0;
    for peer in removals.chain(changes) {
        let length = peer.0.as_slice().buffer_len() + 8;
        if size + length > MAXIMUM_MESSAGE && !piece.is_empty() {
            messages.push(message(
                link,
                std::mem::take(&mut first),
                std::mem::take(&mut piece),
            ));
            size = 0;
        }
        size += length;
        piece.push(peer);
    }
    if !piece.is_empty() || !first.is_empty() {
        messages.push(message(link, first, piece));
    }
    messages
}

fn message(
    link: &str,
    first: Vec<WireguardAttribute>,
    peers: Vec<WireguardPeer>,
) -> WireguardMessage {
    let mut attributes = vec![WireguardAttribute::IfName(link.to_owned())];
    attributes.extend(first);
    if !peers.is_empty() {
        attributes.push(WireguardAttribute::Peers(peers));
    }
    WireguardMessage {
        cmd: WireguardCmd::SetDevice,
        attributes,
    }
}

/// The parts of a peer's change: with many addresses there are several, of which the later ones add
/// to the first.
fn peer_pieces(change: &PeerChange) -> Vec<WireguardPeer> {
    let mut flags = WireguardPeerFlags::empty();
    if !change.new {
        flags |= WireguardPeerFlags::UpdateOnly;
    }
    if change.allowed.is_some() {
        flags |= WireguardPeerFlags::ReplaceAllowedIps;
    }
    let mut first = vec![
        WireguardPeerAttribute::PublicKey(change.key.0),
        WireguardPeerAttribute::Flags(flags),
    ];
    first.extend(change.endpoint.map(WireguardPeerAttribute::Endpoint));
    first.extend(
        change
            .keepalive
            .map(WireguardPeerAttribute::PersistentKeepalive),
    );
    let allowed: Vec<Ipv4Net> = change.allowed.iter().flatten().copied().collect();
    let mut pieces = allowed.chunks(ALLOWED_AT_ONCE);
    if let Some(piece) = pieces.next() {
        first.push(WireguardPeerAttribute::AllowedIps(allowed_ips(piece)));
    }
    let mut peers = vec![WireguardPeer(first)];
    peers.extend(pieces.map(|piece| {
        WireguardPeer(vec![
            WireguardPeerAttribute::PublicKey(change.key.0),
            WireguardPeerAttribute::Flags(WireguardPeerFlags::UpdateOnly),
            WireguardPeerAttribute::AllowedIps(allowed_ips(piece)),
        ])
    }));
    peers
}

fn allowed_ips(nets: &[Ipv4Net]) -> Vec<WireguardAllowedIp> {
    nets.iter()
        .map(|net| {
            WireguardAllowedIp(vec![
                WireguardAllowedIpAttr::Family(WireguardAddressFamily::Ipv4),
                WireguardAllowedIpAttr::IpAddr(IpAddr::V4(net.network())),
                WireguardAllowedIpAttr::Cidr(net.prefix_len()),
            ])
        })
        .collect()
}

/// Joins the parts of a dump: a peer with many addresses comes in several.
fn device(answers: &[WireguardMessage]) -> WireGuardDevice {
    let mut device = WireGuardDevice::default();
    for attribute in answers.iter().flat_map(|answer| &answer.attributes) {
        match attribute {
            WireguardAttribute::PrivateKey(bytes) if *bytes != [0; 32] => {
                device.private_key = Some(PrivateKey::from_bytes(*bytes));
            }
            WireguardAttribute::ListenPort(port) => device.listen_port = *port,
            WireguardAttribute::Peers(peers) => {
                for peer in peers {
                    add_peer(&mut device, peer);
                }
            }
            _ => {}
        }
    }
    device
}

fn add_peer(device: &mut WireGuardDevice, peer: &WireguardPeer) {
    let key = peer.0.iter().find_map(|attribute| match attribute {
        WireguardPeerAttribute::PublicKey(key) => Some(PublicKey(*key)),
        _ => None,
    });
    let Some(key) = key else {
        return;
    };
    let status = device.peers.entry(key).or_default();
    for attribute in &peer.0 {
        match attribute {
            WireguardPeerAttribute::Endpoint(endpoint) => status.endpoint = Some(*endpoint),
            WireguardPeerAttribute::PersistentKeepalive(seconds) => status.keepalive = *seconds,
            WireguardPeerAttribute::LastHandshake(time) => {
                status.last_handshake = u64::try_from(time.seconds)
                    .ok()
                    .filter(|seconds| *seconds > 0)
                    .and_then(|seconds| {
                        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
                    });
            }
            WireguardPeerAttribute::RxBytes(bytes) => status.received = *bytes,
            WireguardPeerAttribute::TxBytes(bytes) => status.sent = *bytes,
            WireguardPeerAttribute::AllowedIps(list) => add_allowed(status, list),
            _ => {}
        }
    }
}

fn add_allowed(status: &mut PeerStatus, list: &[WireguardAllowedIp]) {
    for allowed in list {
        let (mut address, mut prefix) = (None, None);
        for attribute in &allowed.0 {
            match attribute {
                WireguardAllowedIpAttr::IpAddr(IpAddr::V4(found)) => address = Some(*found),
                WireguardAllowedIpAttr::Cidr(length) => prefix = Some(*length),
                _ => {}
            }
        }
        if let (Some(address), Some(prefix)) = (address, prefix)
            && let Ok(net) = Ipv4Net::new(address, prefix)
        {
            status.allowed.insert(net.trunc());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn change(peers: u8, nets: u16) -> LinkChanges {
        let peer = |number: u8| PeerChange {
            key: PublicKey([number; 32]),
            new: number < 50,
            endpoint: Some(format!("192.0.2.{number}:51820").parse().unwrap()),
            allowed: Some(
                (0..nets)
                    .map(|net| format!("10.{number}.{net}.0/24").parse().unwrap())
                    .collect(),
            ),
            keepalive: Some(25),
        };
        LinkChanges {
            private_key: Some(PrivateKey::from_bytes([7; 32])),
            listen_port: Some(51820),
            removed: (200..=250).map(|number| PublicKey([number; 32])).collect(),
            peers: (1..=peers).map(peer).collect(),
        }
    }

    #[test]
    fn large_sets_are_split_and_lose_nothing() {
        let change = change(100, 200);
        let messages = set_messages("kat0", &change);
        assert!(messages.len() > 50);
        let mut allowed: BTreeMap<PublicKey, BTreeSet<Ipv4Net>> = BTreeMap::new();
        let mut removed = Vec::new();
        for (number, message) in messages.iter().enumerate() {
            assert!(message.buffer_len() < 4096, "{}", message.buffer_len());
            let has_key = message
                .attributes
                .iter()
                .any(|one| matches!(one, WireguardAttribute::PrivateKey(_)));
            assert_eq!(has_key, number == 0, "key and port come once, first");
            for attribute in &message.attributes {
                let WireguardAttribute::Peers(peers) = attribute else {
                    continue;
                };
                for peer in peers {
                    let mut one = WireGuardDevice::default();
                    add_peer(&mut one, peer);
                    let (key, status) = one.peers.pop_first().unwrap();
                    let flags = peer.0.iter().find_map(|part| match part {
                        WireguardPeerAttribute::Flags(flags) => Some(*flags),
                        _ => None,
                    });
                    let flags = flags.unwrap();
                    if flags.contains(WireguardPeerFlags::RemoveMe) {
                        removed.push(key);
                        continue;
                    }
                    let replaces = flags.contains(WireguardPeerFlags::ReplaceAllowedIps);
                    assert_eq!(
                        replaces,
                        !allowed.contains_key(&key),
                        "only the first replaces"
                    );
                    allowed.entry(key).or_default().extend(status.allowed);
                }
            }
        }
        assert_eq!(removed, change.removed);
        for peer in &change.peers {
            assert_eq!(allowed.get(&peer.key), peer.allowed.as_ref());
        }
    }

    #[test]
    fn a_dump_in_pieces_is_joined() {
        let messages = set_messages("kat0", &change(3, 150));
        let device = device(&messages);
        assert_eq!(device.listen_port, 51820);
        assert_eq!(device.peers[&PublicKey([2; 32])].allowed.len(), 150);
        assert_eq!(device.peers[&PublicKey([2; 32])].keepalive, 25);
    }

    #[test]
    fn nothing_to_do_sends_nothing() {
        assert!(set_messages("kat0", &LinkChanges::default()).is_empty());
    }
}
