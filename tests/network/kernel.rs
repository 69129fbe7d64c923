//! The kernel's WireGuard. Where the kernel has none, the errors must say so.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::namespaced_machine::in_new_namespace;
use kat_network::{
    links::Links,
    overlay::wireguard::{
        DesiredLink, Kernel, PublicKey, WantedPeer, WireGuard, WireGuardError, difference,
        generate_key,
    },
};

fn wanted(peers: u16) -> DesiredLink {
    let peer = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let key = generate_key().unwrap().public();
        let peer = WantedPeer {
            endpoint: Some(format!("192.0.{high}.{low}:51820").parse().unwrap()),
            allowed: BTreeSet::from([format!("10.{high}.{low}.0/24").parse().unwrap()]),
            keepalive: 25,
        };
        (key, peer)
    };
    DesiredLink {
        private_key: generate_key().unwrap(),
        listen_port: 51820,
        peers: (1..=peers)
            .map(peer)
            .collect::<BTreeMap<PublicKey, WantedPeer>>(),
    }
}

#[test]
fn the_kernels_wireguard_takes_what_is_wanted_or_says_that_it_is_missing() {
    in_new_namespace(|| async {
        let links = Links::open().unwrap();
        let kernel = Kernel::new("kat0");
        match links.add_wireguard("kat0").await {
            Err(error) => {
                assert!(error.is(Errno::OPNOTSUPP), "{error}");
                let Err(WireGuardError::Refused { source, .. }) = kernel.read().await else {
                    panic!("the family is not there either");
                };
                assert_eq!(source.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
            }
            Ok(()) => {
                let mut wanted = wanted(500);
                for keep in [500, 20, 0] {
                    while wanted.peers.len() > keep {
                        wanted.peers.pop_last();
                    }
                    let change = difference(&wanted, &kernel.read().await.unwrap());
                    kernel.apply(&change).await.unwrap();
                    let device = kernel.read().await.unwrap();
                    assert_eq!(device.peers.len(), keep);
                    assert!(difference(&wanted, &device).is_empty());
                }
            }
        }
    });
}
