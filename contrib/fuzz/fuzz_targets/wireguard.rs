//! Any text as the state of a userspace WireGuard: a parsed device survives serialization and needs
//! no change to become itself. Errors are short, and invalid public keys are refused.
#![no_main]

use std::collections::BTreeMap;

use kat_fuzz::survive_overflow;
use kat_network::overlay::wireguard::{
    DesiredLink, LinkChanges, PrivateKey, WantedPeer, WireGuardDevice, difference, parse_device,
    set_text,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: survive_overflow(), |text: &str| {
    let device = match parse_device(text) {
        Ok(device) => device,
        Err(error) => {
            let longest = text.lines().map(str::len).max().unwrap_or(0);
            assert!(error.to_string().len() <= 200 + 10 * longest);
            return;
        }
    };
    for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let digits = value.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(name != "public_key" || (value.len() == 64 && digits), "a key that is none");
    }
    let wanted = wanted(&device);
    let made = difference(&wanted, &WireGuardDevice::default());
    let written = format!("{}errno=0\n", set_text(&made).trim_end_matches('\n').to_owned() + "\n");
    let read = parse_device(&written).expect("what is written can be read");
    assert_eq!(read, without_traffic(&device, &wanted));
    assert_eq!(difference(&wanted, &read), LinkChanges::default());
});

/// The wanted state that equals the device.
fn wanted(device: &WireGuardDevice) -> DesiredLink {
    let peers = device.peers.iter().map(|(key, peer)| {
        let wanted = WantedPeer {
            endpoint: peer.endpoint,
            allowed: peer.allowed.clone(),
            keepalive: peer.keepalive,
        };
        (*key, wanted)
    });
    DesiredLink {
        private_key: device
            .private_key
            .clone()
            .unwrap_or_else(|| PrivateKey::from_bytes([7; 32])),
        listen_port: device.listen_port,
        peers: peers.collect::<BTreeMap<_, _>>(),
    }
}

/// The device without the fields that configuration does not set.
fn without_traffic(device: &WireGuardDevice, wanted: &DesiredLink) -> WireGuardDevice {
    let mut device = device.clone();
    device.private_key = Some(wanted.private_key.clone());
    for peer in device.peers.values_mut() {
        (peer.last_handshake, peer.sent, peer.received) = (None, 0, 0);
    }
    device
}
