//! The kernel's netlink, and its WireGuard. Where the kernel has none, the errors must say so.

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

#[test]
fn lists_of_one_socket_wait_for_each_other() {
    in_new_namespace(|| async {
        let links = Links::open().unwrap();
        let lo = links.find("lo").await.unwrap().unwrap().index;
        // So many that the kernel takes several reads for each list.
        for number in 1..=400_u16 {
            let [high, low] = number.to_be_bytes();
            let address = std::net::Ipv4Addr::new(10, 9, high, low);
            links.add_marked_address(lo, address.into()).await.unwrap();
        }
        let listing = (0..20).map(|_| {
            let links = links.clone();
            tokio::spawn(async move { (links.link_addresses().await, links.all().await) })
        });
        let listing: Vec<_> = listing.collect();
        for listed in listing {
            let (addresses, all) = listed.await.unwrap();
            assert!(addresses.unwrap().len() >= 400);
            assert!(all.unwrap().iter().any(|link| link.index == lo));
        }
    });
}
