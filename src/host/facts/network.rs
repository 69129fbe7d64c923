//! Addresses, routes and listening ports of the machine.

use std::{
    collections::BTreeMap,
    fmt, fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::Ipv4Net;

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoute {
    /// The destination network; 0.0.0.0/0 is the default route.
    pub destination: Ipv4Net,
    pub link: String,
}

/// An address of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub address: IpAddr,
    pub prefix: u8,
    pub link: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SocketProtocol {
    Tcp,
    Udp,
}

/// A port on which a program listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    pub protocol: SocketProtocol,
    pub address: IpAddr,
    pub port: u16,
    /// Name of the process; `None` for the kernel's own socket, or without the right to read it.
    pub process: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Unit of the process.
    pub unit: Option<String>,
    /// Uid of the user manager of that unit; `None` for the system manager.
    pub manager: Option<u32>,
}

/// A route or an address that overlaps a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Overlap {
    Route(KernelRoute),
    /// An address, with its network, and its link.
    Address(Ipv4Net, String),
}

impl Overlap {
    /// Its link; `*` for an unreachable route.
    pub fn link(&self) -> &str {
        match self {
            Self::Route(route) => &route.link,
            Self::Address(_, link) => link,
        }
    }

    /// The ip(8) command that removes it.
    pub fn removal(&self) -> String {
        match self {
            Self::Route(KernelRoute { destination, link }) if link == "*" => {
                format!("ip route delete {destination}")
            }
            Self::Route(KernelRoute { destination, link }) => {
                format!("ip route delete {destination} dev {link}")
            }
            Self::Address(address, link) => format!("ip address delete {address} dev {link}"),
        }
    }
}

/// Formatted as the end of a sentence.
impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(KernelRoute { destination, link }) => {
                write!(f, "the route to {destination} on {link}")
            }
            Self::Address(address, link) => write!(f, "the address {address} on {link}"),
        }
    }
}

/// IPv4 routes from the text of /proc/net/route, whose addresses are in the machine's byte order.
pub(crate) fn parse_routes(text: &str) -> Vec<KernelRoute> {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let address = |place: usize| {
                let word = u32::from_str_radix(fields.get(place)?, 16).ok()?;
                Some(Ipv4Addr::from(word.to_ne_bytes()))
            };
            let network = Ipv4Net::with_netmask(address(1)?, address(7)?).ok()?;
            Some(KernelRoute {
                destination: network.trunc(),
                link: (*fields.first()?).to_owned(),
            })
        })
        .collect()
}

/// The machine's IPv4 routes.
pub fn routes() -> Vec<KernelRoute> {
    fs::read_to_string("/proc/net/route").map_or_else(|_| Vec::new(), |text| parse_routes(&text))
}

/// The machine's addresses, including those of the loopback link.
pub fn addresses() -> Vec<Address> {
    let Ok(list) = nix::ifaddrs::getifaddrs() else {
        return Vec::new();
    };
    list.filter_map(|entry| {
        let storage = entry.address?;
        let mask = entry.netmask;
        let (address, prefix) = if let Some(address) = storage.as_sockaddr_in() {
            let mask = mask?.as_sockaddr_in()?.ip();
            (IpAddr::V4(address.ip()), u32::from(mask).count_ones())
        } else {
            let address = storage.as_sockaddr_in6()?;
            let mask = mask?.as_sockaddr_in6()?.ip();
            (IpAddr::V6(address.ip()), u128::from(mask).count_ones())
        };
        Some(Address {
            address,
            prefix: u8::try_from(prefix).ok()?,
            link: entry.interface_name,
        })
    })
    .collect()
}

/// Routes and addresses that overlap a network. The default route is ignored, as are addresses
/// whose own network's route is in the result.
pub fn overlaps(network: Ipv4Net, routes: &[KernelRoute], addresses: &[Address]) -> Vec<Overlap> {
    let shared = |other: &Ipv4Net| network.contains(other) || other.contains(&network);
    let mut found: Vec<Overlap> = routes
        .iter()
        .filter(|route| route.destination.prefix_len() > 0 && shared(&route.destination))
        .map(|route| Overlap::Route(route.clone()))
        .collect();
    for address in addresses {
        let IpAddr::V4(ip) = address.address else {
            continue;
        };
        let Ok(own) = Ipv4Net::new(ip, address.prefix) else {
            continue;
        };
        let route = Overlap::Route(KernelRoute {
            destination: own.trunc(),
            link: address.link.clone(),
        });
        if shared(&own.trunc()) && !found.contains(&route) {
            found.push(Overlap::Address(own, address.link.clone()));
        }
    }
    found.dedup();
    found
}

/// A socket of /proc/net/tcp and similar files: protocol, address, port and inode.
type Socket = (SocketProtocol, IpAddr, u16, u64);

/// Listening sockets in the text of a file such as /proc/net/tcp6 (proc_net(5)).
fn parse_sockets(text: &str, protocol: SocketProtocol) -> Vec<Socket> {
    // TCP_LISTEN; an unconnected UDP socket is TCP_CLOSE.
    let state = match protocol {
        SocketProtocol::Tcp => "0A",
        SocketProtocol::Udp => "07",
    };
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if *fields.get(3)? != state {
                return None;
            }
            let (address, port) = fields.get(1)?.split_once(':')?;
            let port = u16::from_str_radix(port, 16).ok()?;
            let inode = fields.get(9)?.parse().ok()?;
            Some((protocol, hexadecimal_address(address)?, port, inode))
        })
        .collect()
}

/// An address in groups of four bytes, each in the machine's byte order.
fn hexadecimal_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::with_capacity(16);
    let mut rest = text;
    while !rest.is_empty() {
        let word = u32::from_str_radix(rest.get(..8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
        rest = rest.get(8..)?;
    }
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|b| Ipv4Addr::from(b).into()),
        16 => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|b| Ipv6Addr::from(b).into()),
        _ => None,
    }
}

/// All listeners on any of these ports, with their processes.
pub fn listeners(ports: &[(SocketProtocol, u16)]) -> Vec<Listener> {
    let mut sockets = Vec::new();
    for (file, protocol) in [
        ("tcp", SocketProtocol::Tcp),
        ("tcp6", SocketProtocol::Tcp),
        ("udp", SocketProtocol::Udp),
        ("udp6", SocketProtocol::Udp),
    ] {
        if let Ok(text) = fs::read_to_string(format!("/proc/net/{file}")) {
            sockets.extend(parse_sockets(&text, protocol));
        }
    }
    sockets.retain(|(protocol, _, port, _)| ports.contains(&(*protocol, *port)));
    if sockets.is_empty() {
        return Vec::new();
    }
    let owners = owners_of(&sockets.iter().map(|socket| socket.3).collect::<Vec<_>>());
    sockets
        .into_iter()
        .map(|(protocol, address, port, inode)| {
            let pid = owners.get(&inode).copied();
            let unit = pid
                .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok())
                .and_then(|text| unit_of_cgroup(&text));
            Listener {
                protocol,
                address,
                port,
                process: pid
                    .and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok())
                    .map(|name| name.trim().to_owned()),
                pid,
                manager: unit.as_ref().and_then(|(_, manager)| *manager),
                unit: unit.map(|(unit, _)| unit),
            }
        })
        .collect()
}

/// Processes that hold these sockets, by the sockets' inodes.
fn owners_of(inodes: &[u64]) -> BTreeMap<u64, u32> {
    let mut found = BTreeMap::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return found;
    };
    for process in processes.flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            let inode = fs::read_link(descriptor.path()).ok().and_then(|target| {
                target
                    .to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .parse()
                    .ok()
            });
            if let Some(inode) = inode
                && inodes.contains(&inode)
            {
                found.entry(inode).or_insert(pid);
            }
        }
    }
    found
}

/// The innermost service or scope in a process's control group, and the uid of the user whose
/// manager runs it.
fn unit_of_cgroup(text: &str) -> Option<(String, Option<u32>)> {
    let parts: Vec<&str> = text
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2))
        .flat_map(|path| path.split('/'))
        .collect();
    let (at, unit) = parts
        .iter()
        .enumerate()
        .rfind(|(_, part)| part.ends_with(".service") || part.ends_with(".scope"))?;
    let manager = parts.iter().take(at).find_map(|part| {
        part.strip_prefix("user@")?
            .strip_suffix(".service")?
            .parse()
            .ok()
    });
    Some(((*unit).to_owned(), manager))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        docker0\t0000640A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
        kat0\t0080640A\t00000000\t0001\t0\t0\t0\t0080FFFF\t0\t0\t0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn reads_routes_and_finds_overlaps() {
        let routes = parse_routes(ROUTES);
        let texts: Vec<_> = routes.iter().map(|r| r.destination.to_string()).collect();
        assert_eq!(
            texts,
            [
                "0.0.0.0/0",
                "192.168.2.0/24",
                "10.100.0.0/16",
                "10.100.128.0/17"
            ]
        );
        let address = |text: &str, link: &str| Address {
            address: text.parse().unwrap(),
            prefix: 24,
            link: link.to_owned(),
        };
        let addresses = [address("192.168.2.7", "eth0"), address("10.100.3.1", "lxc")];
        let network = "10.100.0.0/16".parse().unwrap();
        let texts = |network| -> Vec<String> {
            let found = overlaps(network, &routes, &addresses);
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            texts(network),
            [
                "the route to 10.100.0.0/16 on docker0",
                "the route to 10.100.128.0/17 on kat0",
                "the address 10.100.3.1/24 on lxc"
            ]
        );
        let removals: Vec<_> = overlaps(network, &routes, &addresses)
            .iter()
            .map(Overlap::removal)
            .collect();
        assert_eq!(
            removals,
            [
                "ip route delete 10.100.0.0/16 dev docker0",
                "ip route delete 10.100.128.0/17 dev kat0",
                "ip address delete 10.100.3.1/24 dev lxc"
            ]
        );
        let inside = "192.168.0.0/16".parse().unwrap();
        assert_eq!(texts(inside), ["the route to 192.168.2.0/24 on eth0"]);
        let free = "10.200.0.0/16".parse().unwrap();
        assert!(texts(free).is_empty());
    }

    #[test]
    fn finds_who_listens() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let gone_port = gone.local_addr().unwrap().port();
        let datagrams = UdpSocket::bind("[::1]:0").unwrap();
        let udp = datagrams.local_addr().unwrap().port();
        let keep = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = keep.local_addr().unwrap().port();
        let found = listeners(&[(SocketProtocol::Tcp, port), (SocketProtocol::Udp, udp)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].address, IpAddr::from([127, 0, 0, 1]));
        assert_eq!(found[1].address, "::1".parse::<IpAddr>().unwrap());
        let own = fs::read_to_string("/proc/self/comm").unwrap();
        for listener in &found {
            assert_eq!(listener.process.as_deref(), Some(own.trim()));
            assert_eq!(listener.pid, Some(std::process::id()));
        }
        drop(gone);
        assert!(listeners(&[(SocketProtocol::Tcp, gone_port)]).is_empty());
    }

    #[test]
    fn finds_the_unit_of_a_control_group_and_whose_manager_has_it() {
        for (path, unit, manager) in [
            ("/system.slice/etcd.service", "etcd.service", None),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service/sub",
                "x.service",
                Some(1000),
            ),
            (
                "/user.slice/user-1000.slice/session-3.scope",
                "session-3.scope",
                None,
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service",
                "user@1000.service",
                None,
            ),
        ] {
            let found = unit_of_cgroup(&format!("0::{path}\n"));
            assert_eq!(found, Some((unit.to_owned(), manager)), "{path}");
        }
        assert_eq!(unit_of_cgroup("0::/\n"), None);
    }

    #[test]
    fn this_machine_has_a_loopback() {
        let found = addresses();
        assert!(
            found
                .iter()
                .any(|a| a.address == IpAddr::from([127, 0, 0, 1]) && a.prefix == 8),
            "{found:?}"
        );
    }
}
