//! Virtual addresses on a LAN: machines around a bridge, with a host that looks on and one that lies.

use std::{
    collections::BTreeMap,
    io::Write,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{MsgFlags, bind, send},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio_util::sync::CancellationToken;

use super::{
    connected_hosts::{Host, block_on},
    namespaced_machine::{eventually, fetch_in},
};
use kat_daemon::{clock, watchdog::LoopPulses};
use kat_network::{
    links::Links,
    state_files::StateFiles,
    virtual_addresses::{
        holder::LEASE,
        keeper::{AddressKeeper, AddressKeeperConfig},
        packet::{Mac, StatementKind, arp_frame},
    },
};
use kat_types::{
    machine::fence::BootTime,
    resource::OnLeaderLoss,
    virtual_addresses::{
        AddressGrant, AddressGrants, AddressState, AddressStateWord, AddressStates, GRANTS_FILE,
        ReleaseDeadline,
    },
};

const FOUR: &str = "192.0.2.9";
const SIX: &str = "2001:db8::9";

/// Machines with `eth0`, 192.0.2.N and 2001:db8::N, and a switch whose bridge has 192.0.2.100 and
/// 2001:db8::100.
struct Lan {
    switch: Host,
    hosts: Vec<Host>,
}

impl Lan {
    fn of(count: u8) -> Self {
        let switch = Host::start(100);
        switch.command("ip link add br0 type bridge");
        switch.command("ip address add 192.0.2.100/24 dev br0");
        switch.command("ip address add 2001:db8::100/64 dev br0 nodad");
        switch.command("ip link set br0 up");
        let hosts = (1..=count).map(|number| {
            let host = Host::start(number);
            let holder = host.namespace.run(|| {
                std::process::Command::new("sleep")
                    .arg("5")
                    .spawn()
                    .unwrap()
            });
            let mut holder = holder.unwrap();
            switch.command(&format!(
                "ip link add port{number} type veth peer name eth0 netns {}",
                holder.id()
            ));
            let _ = holder.kill();
            let _ = holder.wait();
            switch.command(&format!("ip link set port{number} master br0 up"));
            host.command(&format!("ip address add 192.0.2.{number}/24 dev eth0"));
            host.command(&format!(
                "ip address add 2001:db8::{number}/64 dev eth0 nodad"
            ));
            host.command("ip link set eth0 up");
            host
        });
        let hosts = hosts.collect();
        Self { switch, hosts }
    }

    /// Machines with a program at port 8080 that greets each caller.
    fn serving(count: u8) -> Self {
        let lan = Self::of(count);
        for host in &lan.hosts {
            let bind = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 8080));
            let listener = host.namespace.run(bind).unwrap().unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let _ = (&stream).write_all(b"here");
                }
            });
        }
        lan
    }

    /// Whether the switch reaches the address.
    async fn answers(&self, address: &str) -> bool {
        let to = SocketAddr::new(address.parse().unwrap(), 8080);
        fetch_in(self.switch.namespace(), to).await.is_ok()
    }

    /// Hardware address that the switch has for an address.
    fn neighbour(&self, address: &str) -> Option<String> {
        let shown = self
            .switch
            .command(&format!("ip neigh show {address} dev br0"));
        let words: Vec<&str> = shown.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "lladdr")?;
        words.get(at + 1).map(|mac| (*mac).to_owned())
    }

    /// Whether the ports of two machines are apart from each other.
    fn set_apart(&self, apart: bool) {
        let word = if apart { "on" } else { "off" };
        for number in [1, 2] {
            let set = format!("ip link set port{number} type bridge_slave isolated {word}");
            self.switch.command(&set);
        }
    }
}

fn mac_of(host: &Host) -> Mac {
    let shown = host.command("ip -o link show eth0");
    let words: Vec<&str> = shown.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "link/ether").unwrap();
    let bytes: Vec<u8> = words[at + 1]
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    bytes.try_into().unwrap()
}

fn mac_text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn grants(addresses: &[(&str, Option<u64>)], on_leader_loss: OnLeaderLoss) -> AddressGrants {
    let grants = addresses.iter().map(|(address, number)| {
        let address: IpAddr = address.parse().unwrap();
        let grant = AddressGrant {
            prefix: if address.is_ipv4() { 24 } else { 64 },
            interface: "auto".to_owned(),
            on_leader_loss,
            number: *number,
        };
        (address, grant)
    });
    AddressGrants {
        schema: 1,
        addresses: grants.collect(),
    }
}

/// What the agent writes for one machine.
fn grant(host: &Host, addresses: &[(&str, Option<u64>)]) {
    host.write(GRANTS_FILE, &grants(addresses, OnLeaderLoss::Keep));
}

/// Runs the keeper on a machine until the returned token is cancelled.
fn keep(host: &Host) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let cancel = CancellationToken::new();
    let (folder, stop) = (host.folder.path().to_owned(), cancel.clone());
    let report = host.address_report();
    let task = host.handle.spawn(async move {
        let files = StateFiles::open(&folder);
        tokio::spawn(Arc::clone(&files).watch(stop.clone()));
        let (keeper, statements) = AddressKeeper::new(AddressKeeperConfig {
            files: files.subscribe(),
            links: Links::open().unwrap(),
            report,
            release: folder.join("until.json"),
            clock: Arc::new(|| BootTime::from(clock::since_boot())),
        });
        let pulse = LoopPulses::default().watch("virtual addresses");
        keeper.run(statements, pulse, stop).await;
    });
    (cancel, task)
}

fn has(host: &Host, address: &str) -> bool {
    let shown = host.command("ip -o address show dev eth0");
    shown.contains(&format!(" {address}/"))
}

fn state(host: &Host, address: &str) -> AddressState {
    let text = std::fs::read(host.address_report()).unwrap_or_default();
    let states: AddressStates = serde_json::from_slice(&text).unwrap_or_default();
    let states: BTreeMap<IpAddr, AddressState> = states.addresses;
    states
        .get(&address.parse().unwrap())
        .cloned()
        .unwrap_or_default()
}

async fn until_state(host: &Host, address: &str, word: AddressStateWord) {
    let what = format!("machine {} says {word:?} of {address}", host.number);
    // An address counts as held before it is on the link, so that nobody takes it for the machine's own.
    let is_held = word == AddressStateWord::Held;
    eventually(&what, async || {
        state(host, address).word == word && (!is_held || has(host, address))
    })
    .await;
}

/// A socket for frames of any content on a host's `eth0`.
fn raw(host: &Host) -> OwnedFd {
    let open = || {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).unwrap();
        let mut links = getifaddrs()
            .unwrap()
            .filter(|one| one.interface_name == "eth0");
        let link = links.find_map(|one| one.address?.as_link_addr().copied());
        bind(socket.as_raw_fd(), &link.unwrap()).unwrap();
        socket
    };
    host.namespace.run(open).unwrap()
}

fn forge(socket: &OwnedFd, frame: &[u8]) {
    send(socket.as_raw_fd(), frame, MsgFlags::empty()).unwrap();
}

#[test]
fn an_address_is_announced_to_the_lan_and_moves_when_the_leader_says_so() {
    block_on(async {
        let lan = Lan::serving(2);
        let [one, two] = &lan.hosts[..] else { panic!() };
        for host in [one, two] {
            keep(host);
        }
        for address in [FOUR, SIX] {
            grant(one, &[(address, Some(7))]);
            grant(two, &[(address, None)]);
            until_state(one, address, AddressStateWord::Held).await;
            until_state(two, address, AddressStateWord::Ready).await;
            assert!(has(one, address) && !has(two, address));
            assert!(lan.answers(address).await, "{address}");
            assert_eq!(lan.neighbour(address), Some(mac_text(mac_of(one))));

            let moved = Instant::now();
            grant(one, &[(address, None)]);
            grant(two, &[(address, Some(8))]);
            // Nothing asks for it: the announcement alone changes what the others know.
            let other = mac_text(mac_of(two));
            eventually("the other machine announces it", async || {
                lan.neighbour(address).as_ref() == Some(&other)
            })
            .await;
            assert!(
                moved.elapsed() < Duration::from_secs(3),
                "{:?}",
                moved.elapsed()
            );
            assert!(has(two, address) && !has(one, address));
        }
        // It is for itself alone, and programs do not send from it.
        let shown = two.command("ip -o address show dev eth0");
        assert!(
            shown.contains("2001:db8::9/128") && shown.contains("deprecated"),
            "{shown}"
        );
    });
}

#[test]
fn of_two_holders_that_hear_each_other_again_the_one_with_the_earlier_decision_gives_way() {
    block_on(async {
        let lan = Lan::serving(2);
        let [one, two] = &lan.hosts[..] else { panic!() };
        lan.set_apart(true);
        let addresses = [FOUR, SIX];
        let both = |number| addresses.map(|address| (address, Some(number)));
        for (host, number) in [(one, 7), (two, 8)] {
            keep(host);
            grant(host, &both(number));
        }
        for address in addresses {
            for host in [one, two] {
                until_state(host, address, AddressStateWord::Held).await;
            }
        }
        let met = Instant::now();
        lan.set_apart(false);
        eventually(
            "the machine with the earlier decision gives way",
            async || addresses.iter().all(|address| !has(one, address)),
        )
        .await;
        assert!(
            met.elapsed() < Duration::from_secs(2),
            "{:?}",
            met.elapsed()
        );
        for address in addresses {
            assert_eq!(state(one, address).word, AddressStateWord::Superseded);
            assert!(has(two, address));
        }
        // The other one is gone, and the leader is not reached: the address is not left alone.
        two.command("ip link set eth0 down");
        for address in addresses {
            until_state(one, address, AddressStateWord::Held).await;
        }
    });
}

#[test]
fn an_address_that_somebody_removes_is_added_again_and_a_restart_moves_nothing() {
    block_on(async {
        let lan = Lan::serving(1);
        let [one] = &lan.hosts[..] else { panic!() };
        let (stop, ended) = keep(one);
        grant(one, &[(FOUR, Some(7))]);
        until_state(one, FOUR, AddressStateWord::Held).await;
        one.command(&format!("ip address del {FOUR}/32 dev eth0"));
        eventually("it is added again", async || has(one, FOUR)).await;
        // The machine's network is set up anew: everything goes, and the own address comes back.
        one.command("ip address flush dev eth0");
        one.command("ip address add 192.0.2.1/24 dev eth0");
        eventually("it is added again", async || has(one, FOUR)).await;

        stop.cancel();
        ended.await.unwrap();
        assert!(has(one, FOUR));
        let (stop, ended) = keep(one);
        let watched = Instant::now();
        while watched.elapsed() < Duration::from_secs(2) {
            assert!(has(one, FOUR), "after {:?}", watched.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What is left of an address that the leader gave away meanwhile goes.
        stop.cancel();
        ended.await.unwrap();
        grant(one, &[(FOUR, None)]);
        keep(one);
        eventually("it is removed", async || !has(one, FOUR)).await;
    });
}

#[test]
fn an_address_of_a_foreign_host_is_not_taken_until_the_host_is_gone() {
    block_on(async {
        let lan = Lan::serving(2);
        let [one, foreign] = &lan.hosts[..] else {
            panic!()
        };
        foreign.command(&format!("ip address add {FOUR}/24 dev eth0"));
        foreign.command(&format!("ip address add {SIX}/64 dev eth0 nodad"));
        keep(one);
        grant(one, &[(FOUR, Some(7)), (SIX, Some(7))]);
        for address in [FOUR, SIX] {
            until_state(one, address, AddressStateWord::Taken).await;
            assert!(!has(one, address));
            let message = state(one, address).message;
            assert!(message.contains(&mac_text(mac_of(foreign))), "{message}");
        }
        foreign.command("ip address flush dev eth0");
        for address in [FOUR, SIX] {
            until_state(one, address, AddressStateWord::Held).await;
        }
        // The machine's own address is no shared one.
        grant(one, &[("192.0.2.1", Some(7))]);
        until_state(one, "192.0.2.1", AddressStateWord::Taken).await;
        assert!(has(one, "192.0.2.1") && !has(one, FOUR));
    });
}

#[test]
fn a_machine_without_an_interface_in_the_network_or_without_a_carrier_says_so() {
    block_on(async {
        let lan = Lan::serving(1);
        let [one] = &lan.hosts[..] else { panic!() };
        keep(one);
        grant(one, &[("198.51.100.9", Some(7)), (FOUR, Some(7))]);
        until_state(one, "198.51.100.9", AddressStateWord::NoInterface).await;
        until_state(one, FOUR, AddressStateWord::Held).await;
        lan.switch.command("ip link set port1 down");
        until_state(one, FOUR, AddressStateWord::NoCarrier).await;
        lan.switch.command("ip link set port1 up");
        until_state(one, FOUR, AddressStateWord::Held).await;
    });
}

#[test]
fn an_address_to_release_is_given_up_without_a_leader() {
    block_on(async {
        let lan = Lan::serving(1);
        let [one] = &lan.hosts[..] else { panic!() };
        let allow = |seconds: u64| {
            let now = BootTime::from(clock::since_boot());
            let until = now.after(Duration::from_secs(seconds));
            one.write("until.json", &ReleaseDeadline { schema: 1, until });
        };
        keep(one);
        one.write(
            GRANTS_FILE,
            &grants(&[(FOUR, Some(7))], OnLeaderLoss::Release),
        );
        until_state(one, FOUR, AddressStateWord::Released).await;
        assert!(!has(one, FOUR), "no leader was ever reached");
        allow(4);
        until_state(one, FOUR, AddressStateWord::Held).await;
        until_state(one, FOUR, AddressStateWord::Released).await;
        assert!(!has(one, FOUR));
    });
}

#[test]
fn a_host_that_forges_arp_can_do_no_more_than_another_host_with_the_address_could() {
    block_on(async {
        let lan = Lan::serving(2);
        let [one, liar] = &lan.hosts[..] else {
            panic!()
        };
        keep(one);
        grant(one, &[(FOUR, Some(7))]);
        until_state(one, FOUR, AddressStateWord::Held).await;
        assert!(lan.answers(FOUR).await);
        let (own, socket) = (mac_of(liar), raw(liar));
        let address = FOUR.parse().unwrap();
        let plain = |kind| {
            let mut frame = arp_frame(address, kind, own, 0);
            frame.truncate(42);
            frame
        };
        // One false announcement is answered, and the hosts of the LAN go back.
        forge(&socket, &plain(StatementKind::Has));
        eventually("the holder defends it", async || {
            lan.neighbour(FOUR) == Some(mac_text(mac_of(one)))
        })
        .await;
        // Frames of any content do nothing.
        for length in 0..200 {
            let mut frame = arp_frame(address, StatementKind::Has, own, u64::MAX);
            frame.resize(60, 0xff);
            let cut = frame.len().min(14 + length % 40);
            frame.truncate(cut.max(15));
            forge(&socket, &frame);
        }
        // Its questions do not either, whether it wants the address or not.
        for _ in 0..50 {
            forge(&socket, &plain(StatementKind::Asks));
        }
        // Nor does the holder's own number, which everybody hears, or a lower one.
        for _ in 0..50 {
            forge(&socket, &arp_frame(address, StatementKind::Has, own, 7));
            forge(&socket, &arp_frame(address, StatementKind::Asks, own, 6));
        }
        assert!(has(one, FOUR));
        // A host that persists gets its way, as any host with the address does (RFC 5227)...
        tokio::time::sleep(Duration::from_secs(3)).await;
        forge(&socket, &plain(StatementKind::Has));
        until_state(one, FOUR, AddressStateWord::Conflict).await;
        assert!(!has(one, FOUR));
        // ... until it is silent.
        until_state(one, FOUR, AddressStateWord::Held).await;
        assert!(lan.answers(FOUR).await);
        // A number that no leader gave is believed, and no longer than its announcements come.
        for _ in 0..20 {
            forge(
                &socket,
                &arp_frame(address, StatementKind::Has, own, u64::MAX),
            );
        }
        until_state(one, FOUR, AddressStateWord::Superseded).await;
        assert!(!has(one, FOUR));
        let silent = Instant::now();
        until_state(one, FOUR, AddressStateWord::Held).await;
        assert!(
            silent.elapsed() < LEASE + Duration::from_secs(2),
            "{:?}",
            silent.elapsed()
        );
    });
}
