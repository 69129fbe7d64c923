//! The format of an announcement's packet.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `KAT` and the version, now 1 |
//! | 8 | the sender: the first bytes of a hash of its WireGuard key |
//! | 8 | milliseconds since the epoch by the sender's clock; a later packet has more |
//! | 1 | count of endpoints, 1 to 8 |
//! | each | 4 or 6, the address of 4 or 16 bytes, the port |
//! | 1 | count of authenticators, 1 to 24 |
//! | each | 8 bytes of the addressed machine, 32 of HMAC-SHA256 over all before the second count |
//!
//! Numbers are big-endian. A packet has at most 1200 bytes, so that no link fragments it.

use std::net::{IpAddr, SocketAddr};

use crate::overlay::local_addresses::is_meaningful;

/// Largest packet in bytes.
pub const MAX_PACKET: usize = 1200;
/// Most endpoints in a packet.
pub const MAX_ENDPOINTS: usize = 8;
/// Most addressed machines in a packet.
pub const MAX_TAGS: usize = 24;

const MAGIC: [u8; 4] = *b"KAT\x01";

/// Stands for a machine's key.
pub(crate) type AnnouncerId = [u8; 8];
/// An authenticator.
pub(crate) type AnnouncementTag = [u8; 32];

/// A well-formed announcement; [`crate::overlay::announce::known_peers`] verifies its authenticator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The authenticated part.
    pub body: AnnouncementBody,
    /// The addressed machines, each with its authenticator.
    pub tags: Vec<(AnnouncerId, AnnouncementTag)>,
}

/// The content of an announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncementBody {
    pub sender: AnnouncerId,
    /// Time of the announcement, milliseconds since the epoch.
    pub(crate) stamp: u64,
    /// Endpoints of the sender's WireGuard.
    pub endpoints: Vec<SocketAddr>,
}

impl AnnouncementBody {
    /// The bytes that are authenticated.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.sender);
        bytes.extend(self.stamp.to_be_bytes());
        bytes.push(u8::try_from(self.endpoints.len()).unwrap_or(u8::MAX));
        for endpoint in &self.endpoints {
            match endpoint.ip() {
                IpAddr::V4(address) => {
                    bytes.push(4);
                    bytes.extend(address.octets());
                }
                IpAddr::V6(address) => {
                    bytes.push(6);
                    bytes.extend(address.octets());
                }
            }
            bytes.extend(endpoint.port().to_be_bytes());
        }
        bytes
    }
}

impl Packet {
    /// Decodes a packet; `None` if it is malformed or has impossible values.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_PACKET {
            return None;
        }
        let mut reader = PacketReader(bytes);
        if reader.array()? != MAGIC {
            return None;
        }
        let sender = reader.array()?;
        let stamp = u64::from_be_bytes(reader.array()?);
        let count = reader.count(MAX_ENDPOINTS)?;
        let endpoints = (0..count)
            .map(|_| reader.endpoint())
            .collect::<Option<Vec<_>>>()?;
        let count = reader.count(MAX_TAGS)?;
        let tags = (0..count)
            .map(|_| Some((reader.array()?, reader.array()?)))
            .collect::<Option<Vec<_>>>()?;
        let body = AnnouncementBody {
            sender,
            stamp,
            endpoints,
        };
        reader.0.is_empty().then_some(Self { body, tags })
    }

    /// Encodes the packet.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.body.to_bytes();
        bytes.push(u8::try_from(self.tags.len()).unwrap_or(u8::MAX));
        for (id, tag) in &self.tags {
            bytes.extend(id);
            bytes.extend(tag);
        }
        bytes
    }
}

struct PacketReader<'a>(&'a [u8]);

impl PacketReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn count(&mut self, most: usize) -> Option<usize> {
        let [count] = self.array()?;
        let count = usize::from(count);
        (1..=most).contains(&count).then_some(count)
    }

    fn endpoint(&mut self) -> Option<SocketAddr> {
        let address: IpAddr = match self.array()? {
            [4] => self.array::<4>()?.into(),
            [6] => self.array::<16>()?.into(),
            _ => return None,
        };
        let port = u16::from_be_bytes(self.array()?);
        (port != 0 && is_meaningful(&address)).then(|| SocketAddr::new(address, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Packet {
        Packet {
            body: AnnouncementBody {
                sender: [1; 8],
                stamp: 0x0102_0304,
                endpoints: vec![
                    "192.0.2.7:51820".parse().unwrap(),
                    "[2001:db8::7]:51820".parse().unwrap(),
                ],
            },
            tags: vec![([2; 8], [3; 32])],
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let bytes = packet().to_bytes();
        assert_eq!(bytes.len(), 4 + 8 + 8 + 1 + 7 + 19 + 1 + 40);
        assert_eq!(Packet::parse(&bytes), Some(packet()));
        let mut full = packet();
        full.body.endpoints = vec!["[2001:db8::7]:51820".parse().unwrap(); MAX_ENDPOINTS];
        full.tags = vec![([2; 8], [3; 32]); MAX_TAGS];
        assert!(full.to_bytes().len() <= MAX_PACKET);
        assert_eq!(Packet::parse(&full.to_bytes()), Some(full));
    }

    #[test]
    fn everything_else_is_refused() {
        let bytes = packet().to_bytes();
        for length in 0..bytes.len() {
            assert_eq!(Packet::parse(&bytes[..length]), None, "{length} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Packet::parse(&longer), None);
        assert_eq!(Packet::parse(&[0; 4 * MAX_PACKET]), None);
        let changed = |change: &dyn Fn(&mut Packet)| {
            let mut packet = packet();
            change(&mut packet);
            Packet::parse(&packet.to_bytes())
        };
        assert_eq!(changed(&|packet| packet.tags.clear()), None);
        assert_eq!(changed(&|packet| packet.body.endpoints.clear()), None);
        let many = vec![([2; 8], [3; 32]); MAX_TAGS + 1];
        assert_eq!(changed(&|packet| packet.tags = many.clone()), None);
        for nowhere in [
            "0.0.0.0:1",
            "127.0.0.1:1",
            "224.0.0.1:1",
            "[fe80::1]:1",
            "192.0.2.7:0",
        ] {
            let endpoint: SocketAddr = nowhere.parse().unwrap();
            assert_eq!(
                changed(&|packet| packet.body.endpoints.push(endpoint)),
                None
            );
        }
        let mut newer = bytes;
        newer[3] = 2;
        assert_eq!(Packet::parse(&newer), None);
    }
}
