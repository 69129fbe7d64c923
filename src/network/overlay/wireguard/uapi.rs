//! The cross-platform configuration socket of userspace WireGuard
//! (<https://www.wireguard.com/xplatform/>).

use std::{
    collections::BTreeMap,
    fmt::Write,
    io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use ipnet::{IpNet, Ipv4Net};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::{
    LinkChanges, PeerStatus, PrivateKey, PublicKey, WireGuard, WireGuardDevice, WireGuardError,
    keys::from_hex,
};

const DEADLINE: Duration = Duration::from_secs(10);
/// Longest answer in bytes.
const MAXIMUM_ANSWER: u64 = 8 << 20;

/// A userspace WireGuard behind its socket.
#[derive(Debug, Clone)]
pub struct Uapi {
    socket: PathBuf,
}

impl Uapi {
    /// The WireGuard that listens at `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    async fn ask(&self, what: &str, request: &str) -> Result<String, WireGuardError> {
        let exchange = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(request.as_bytes()).await?;
            stream.shutdown().await?;
            let mut answer = String::new();
            let mut limited = stream.take(MAXIMUM_ANSWER);
            limited.read_to_string(&mut answer).await?;
            Ok(answer)
        };
        match tokio::time::timeout(DEADLINE, exchange).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(WireGuardError::Socket {
                place: self.socket.display().to_string(),
                source,
            }),
            Err(_) => Err(WireGuardError::Timeout { what: what.into() }),
        }
    }
}

#[async_trait]
impl WireGuard for Uapi {
    async fn read(&self) -> Result<WireGuardDevice, WireGuardError> {
        parse_device(&self.ask("read WireGuard's state", "get=1\n\n").await?)
    }

    async fn apply(&self, change: &LinkChanges) -> Result<(), WireGuardError> {
        const WHAT: &str = "change WireGuard's state";
        if change.is_empty() {
            return Ok(());
        }
        let answer = self.ask(WHAT, &set_text(change)).await?;
        check_errno(WHAT, &answer)
    }

    fn kind(&self) -> &'static str {
        "userspace"
    }
}

/// The request for a change.
pub fn set_text(change: &LinkChanges) -> String {
    let mut text = String::from("set=1\n");
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{key}={value}");
    };
    if let Some(key) = &change.private_key {
        line("private_key", &hex::encode(key.bytes()));
    }
    if let Some(port) = change.listen_port {
        line("listen_port", &port);
    }
    for key in &change.removed {
        line("public_key", &hex::encode(key.0));
        line("remove", &true);
    }
    for peer in &change.peers {
        line("public_key", &hex::encode(peer.key.0));
        if !peer.new {
            line("update_only", &true);
        }
        if let Some(endpoint) = peer.endpoint {
            line("endpoint", &endpoint);
        }
        if let Some(keepalive) = peer.keepalive {
            line("persistent_keepalive_interval", &keepalive);
        }
        if let Some(allowed) = &peer.allowed {
            line("replace_allowed_ips", &true);
            for net in allowed {
                line("allowed_ip", net);
            }
        }
    }
    text.push('\n');
    text
}

/// Parses the answer to `get=1`. Unknown keys are ignored.
///
/// # Errors
/// A line without `=`, an impossible value, a refusal, or a missing `errno`.
pub fn parse_device(text: &str) -> Result<WireGuardDevice, WireGuardError> {
    const WHAT: &str = "read WireGuard's state";
    let bad = |line: &str| WireGuardError::Answer {
        what: WHAT.into(),
        // The value is left out, since it may be a key.
        reason: format!(
            "bad line for {:?}",
            line.split('=').next().unwrap_or_default()
        ),
    };
    let mut device = WireGuardDevice::default();
    let mut peers: BTreeMap<PublicKey, PeerStatus> = BTreeMap::new();
    let mut current: Option<PublicKey> = None;
    let mut handshake = Duration::ZERO;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').ok_or_else(|| bad(line))?;
        if key == "public_key" {
            let key = PublicKey(from_hex(value).ok_or_else(|| bad(line))?);
            peers.insert(key, PeerStatus::default());
            current = Some(key);
            handshake = Duration::ZERO;
            continue;
        }
        let number = || value.parse::<u64>().map_err(|_| bad(line));
        let Some(peer) = current.and_then(|key| peers.get_mut(&key)) else {
            match key {
                "private_key" => {
                    let bytes = from_hex(value).ok_or_else(|| bad(line))?;
                    let set = bytes != [0; 32];
                    device.private_key = set.then(|| PrivateKey::from_bytes(bytes));
                }
                "listen_port" => {
                    device.listen_port = value.parse().map_err(|_| bad(line))?;
                }
                _ => {}
            }
            continue;
        };
        match key {
            "endpoint" => peer.endpoint = Some(value.parse().map_err(|_| bad(line))?),
            "persistent_keepalive_interval" => {
                peer.keepalive = value.parse().map_err(|_| bad(line))?;
            }
            "last_handshake_time_sec" => {
                handshake = handshake.saturating_add(Duration::from_secs(number()?));
            }
            "last_handshake_time_nsec" => {
                handshake = handshake.saturating_add(Duration::from_nanos(number()?));
            }
            "tx_bytes" => peer.sent = number()?,
            "rx_bytes" => peer.received = number()?,
            "allowed_ip" => match value.parse::<IpNet>().map_err(|_| bad(line))? {
                IpNet::V4(net) => {
                    peer.allowed.insert(Ipv4Net::trunc(&net));
                }
                IpNet::V6(_) => {}
            },
            _ => {}
        }
        if !handshake.is_zero() {
            peer.last_handshake = SystemTime::UNIX_EPOCH.checked_add(handshake);
        }
    }
    check_errno(WHAT, text)?;
    device.peers = peers;
    Ok(device)
}

fn check_errno(what: &str, text: &str) -> Result<(), WireGuardError> {
    let errno = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("errno="))
        .and_then(|value| value.parse::<i32>().ok());
    match errno {
        Some(0) => Ok(()),
        Some(errno) => Err(WireGuardError::Refused {
            what: what.into(),
            source: io::Error::from_raw_os_error(errno.abs()),
        }),
        None => Err(WireGuardError::Answer {
            what: what.into(),
            reason: "the answer has no errno".into(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::wireguard::PeerChange;
    use std::collections::BTreeSet;

    #[test]
    fn a_change_is_written_as_the_protocol_says() {
        let change = LinkChanges {
            private_key: Some(PrivateKey::from_bytes([0x40; 32])),
            listen_port: Some(51820),
            removed: vec![PublicKey([1; 32])],
            peers: vec![
                PeerChange {
                    key: PublicKey([2; 32]),
                    new: true,
                    endpoint: Some("[2001:db8::1]:51820".parse().unwrap()),
                    allowed: Some(BTreeSet::from(["10.90.2.0/24".parse().unwrap()])),
                    keepalive: Some(25),
                },
                PeerChange {
                    key: PublicKey([3; 32]),
                    new: false,
                    endpoint: None,
                    allowed: None,
                    keepalive: Some(0),
                },
            ],
        };
        let expected = format!(
            "set=1\nprivate_key={}\nlisten_port=51820\npublic_key={}\nremove=true\n\
             public_key={}\nendpoint=[2001:db8::1]:51820\npersistent_keepalive_interval=25\n\
             replace_allowed_ips=true\nallowed_ip=10.90.2.0/24\npublic_key={}\n\
             update_only=true\npersistent_keepalive_interval=0\n\n",
            "40".repeat(32),
            "01".repeat(32),
            "02".repeat(32),
            "03".repeat(32),
        );
        assert_eq!(set_text(&change), expected);
    }

    #[test]
    fn an_answer_is_read() {
        let text = format!(
            "private_key={}\nlisten_port=51820\nfuture=1\npublic_key={}\npreshared_key={}\n\
             endpoint=192.0.2.7:51820\npersistent_keepalive_interval=25\n\
             last_handshake_time_sec=1700000000\nlast_handshake_time_nsec=5\nrx_bytes=10\n\
             tx_bytes=20\nallowed_ip=10.90.2.0/24\nallowed_ip=fd00::/64\npublic_key={}\n\
             last_handshake_time_sec=0\nlast_handshake_time_nsec=0\nerrno=0\n\n",
            "40".repeat(32),
            "02".repeat(32),
            "00".repeat(32),
            "03".repeat(32),
        );
        let device = parse_device(&text).unwrap();
        assert_eq!(device.listen_port, 51820);
        assert_eq!(device.private_key, Some(PrivateKey::from_bytes([0x40; 32])));
        let peer = &device.peers[&PublicKey([2; 32])];
        assert_eq!(peer.endpoint, "192.0.2.7:51820".parse().ok());
        assert_eq!((peer.sent, peer.received, peer.keepalive), (20, 10, 25));
        assert_eq!(peer.allowed.len(), 1);
        assert!(peer.last_handshake.is_some());
        assert_eq!(device.peers[&PublicKey([3; 32])], PeerStatus::default());
    }

    #[test]
    fn a_handshake_later_than_any_clock_is_none() {
        let text = format!(
            "public_key={}\nlast_handshake_time_sec={}\nlast_handshake_time_nsec={}\nerrno=0\n\n",
            "02".repeat(32),
            u64::MAX,
            u64::MAX,
        );
        let device = parse_device(&text).unwrap();
        assert_eq!(device.peers[&PublicKey([2; 32])].last_handshake, None);
    }

    #[test]
    fn bad_answers_are_named_without_showing_keys() {
        for (text, expected) in [
            ("", "no errno"),
            ("errno=-22\n", "Invalid argument"),
            (
                "private_key=secretsecret\nerrno=0\n",
                "bad line for \"private_key\"",
            ),
            ("nonsense\nerrno=0\n", "bad line"),
            ("listen_port=70000\nerrno=0\n", "listen_port"),
        ] {
            let error = parse_device(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secretsecret"));
        }
    }
}
