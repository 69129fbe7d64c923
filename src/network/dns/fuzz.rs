//! Handles one DNS packet without sockets, for the fuzz targets.

use std::{net::IpAddr, sync::Arc};

use tokio::{sync::watch, time::Instant};

use super::{
    cache::Cache,
    exchange::{belongs, read_answer},
    forward::Forwarder,
    message::DnsReply,
    server::{DnsAnswerer, PacketAction, relay},
    upstream::Upstreams,
    zone::Zone,
};

/// What is sent for one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// If it came over UDP.
    pub udp: Vec<u8>,
    /// If it came over TCP, without the length before it.
    pub tcp: Vec<u8>,
    /// Another resolver was asked.
    pub forwarded: bool,
}

/// What is sent for a packet from `client`, when the resolver that it is forwarded to sends
/// `upstream`, `age` seconds ago. Nothing for packets that are dropped.
pub fn answer(
    zone: &Arc<Zone>,
    packet: &[u8],
    client: IpAddr,
    upstream: &[u8],
    age: u32,
) -> Option<Sent> {
    let (_sender, zone) = watch::channel(zone.clone());
    let nowhere = Upstreams::new("/nonexistent".into(), "/nonexistent".into(), 53);
    let answerer = DnsAnswerer::new(zone, Forwarder::new(nowhere, 0), 1, 1);
    let (reply, forwarded) = match answerer.step(packet, client) {
        PacketAction::Drop => return None,
        PacketAction::Send(bytes) => {
            return Some(Sent {
                udp: bytes.clone(),
                tcp: bytes,
                forwarded: false,
            });
        }
        PacketAction::Reply(reply) => (*reply, false),
        PacketAction::Forward(forwarding) => {
            let (request, key) = (forwarding.request, forwarding.key);
            let reply = match read_answer(upstream) {
                Ok(answer) if belongs(&answer, request.metadata.id, &request.question) => {
                    let (answer, now) = (Arc::new(answer), Instant::now());
                    let mut cache = Cache::new(1024);
                    cache.insert(key.clone(), answer.clone(), now);
                    let kept = cache.get(&key, now).map(|(kept, _)| kept);
                    relay(&request, &kept.unwrap_or(answer), age)
                }
                Ok(_) => DnsReply::failure(&request, "an answer to another question"),
                Err(error) => DnsReply::failure(&request, &error.to_string()),
            };
            (reply, true)
        }
    };
    Some(Sent {
        udp: reply.to_udp(),
        tcp: reply.to_tcp(),
        forwarded,
    })
}
