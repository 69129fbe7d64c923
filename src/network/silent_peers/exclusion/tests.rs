use proptest::prelude::*;

use kat_types::machine::network::{
    IngressHostPort, PeerMachine, ServiceNetwork, ServicePortBackends, Transport,
};

use super::*;
use BackendState::{Held, Leaving, Serving};

fn address(machine: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 90, machine, last)
}

fn subnet(machine: u8) -> Ipv4Net {
    Ipv4Net::new(address(machine, 0), 24).unwrap()
}

fn excluded(machines: &[u8]) -> Excluded {
    let machines = machines.iter();
    machines
        .map(|one| (format!("n{one}"), subnet(*one)))
        .collect()
}

fn services(instances: &[(u8, BackendState)]) -> Services {
    let instances = instances.iter();
    let port = ServicePortBackends {
        port: 80,
        protocol: Transport::Tcp,
        instances: instances
            .map(|(machine, state)| (address(*machine, 10), *state))
            .collect(),
    };
    let web = ServiceNetwork {
        address: [10, 91, 0, 5].into(),
        ports: vec![port],
    };
    Services {
        schema: 1,
        services: [("default/web".to_owned(), web)].into(),
    }
}

fn host_ports(instances: &[(u8, BackendState)]) -> HostPortParts {
    let instances = instances.iter().map(|(machine, state)| {
        let backend = IngressBackend {
            port: 5432,
            state: *state,
        };
        (address(*machine, 10), backend)
    });
    let port = IngressHostPort {
        port: 5432,
        protocol: Transport::Tcp,
        namespace: "default".to_owned(),
        workload: "db".to_owned(),
        instances: instances.collect(),
        allow_sources: None,
    };
    HostPortParts {
        schema: 1,
        ingress: vec![port],
        ..HostPortParts::default()
    }
}

fn records(names: &[(&str, &[u8])]) -> DnsRecords {
    let names = names.iter().map(|(name, machines)| {
        let addresses = machines
            .iter()
            .map(|machine| address(*machine, 10))
            .collect();
        ((*name).to_owned(), addresses)
    });
    DnsRecords {
        schema: 1,
        revision: 7,
        records: names.collect(),
    }
}

#[test]
fn instances_of_an_excluded_peer_are_held_where_another_serves() {
    let before = services(&[(1, Serving), (2, Serving), (3, Leaving), (4, Serving)]);
    let after = services(&[(1, Serving), (2, Held), (3, Leaving), (4, Held)]);
    assert_eq!(services_without(&before, &excluded(&[2, 3, 4])), after);
    // The last one that serves stays, whatever else is behind the port.
    for last in [
        services(&[(1, Held), (2, Serving), (3, Leaving)]),
        services(&[(2, Serving), (4, Serving)]),
    ] {
        assert_eq!(services_without(&last, &excluded(&[2, 4])), last);
    }
}

#[test]
fn names_answer_without_an_excluded_peer_unless_nothing_would_be_left() {
    let before = records(&[
        ("web.default", &[1, 2]),
        ("db.default", &[2]),
        ("web-abcde.web.default", &[2]),
        ("n2.node", &[2]),
    ]);
    let mut after = before.clone();
    after
        .records
        .insert("web.default".into(), vec![address(1, 10)]);
    assert_eq!(records_without(&before, &excluded(&[2])), after);
}

#[test]
fn a_peer_is_in_use_when_callers_can_be_sent_to_it() {
    let peer = |machine: u8| PeerMachine {
        public_key: String::new(),
        endpoints: Vec::new(),
        subnet: subnet(machine),
        keepalive: 0,
        via: None,
    };
    let peers = PeerMachines {
        schema: 1,
        peers: (1..=5).map(|one| (format!("n{one}"), peer(one))).collect(),
    };
    let snapshot = StateFilesSnapshot {
        services: Some(Arc::new(services(&[(1, Serving), (2, Held), (3, Leaving)]))),
        host_ports: Some(Arc::new(host_ports(&[(3, Serving), (2, Held)]))),
        dns: Some(Arc::new(records(&[
            ("db.default", &[4]),
            ("n5.node", &[5]),
        ]))),
        ..StateFilesSnapshot::default()
    };
    let used: Vec<&str> = in_use(&snapshot, &peers).collect();
    assert_eq!(used, ["n1", "n3", "n4"]);
}

#[test]
fn a_host_port_leads_to_no_excluded_peer_while_another_instance_serves() {
    let before = host_ports(&[(1, Serving), (2, Serving), (3, Leaving)]);
    let after = host_ports(&[(1, Serving), (2, Held), (3, Leaving)]);
    assert_eq!(host_ports_without(&before, &excluded(&[2, 3])), after);
    let last = host_ports(&[(1, Serving), (2, Held)]);
    assert_eq!(host_ports_without(&last, &excluded(&[1])), last);
}

#[tokio::test]
async fn files_follow_both_the_agent_and_the_exclusions() {
    let snapshot = |revision| {
        let dns = DnsRecords {
            revision,
            ..records(&[("web.default", &[1, 2])])
        };
        Arc::new(StateFilesSnapshot {
            services: Some(Arc::new(services(&[(1, Serving), (2, Serving)]))),
            dns: Some(Arc::new(dns)),
            ..StateFilesSnapshot::default()
        })
    };
    let (files, followed) = watch::channel(snapshot(1));
    let (exclusions, judged) = watch::channel(Excluded::default());
    let filtered = watch::Sender::new(snapshot(1));
    let mut seen = filtered.subscribe();
    let cancel = CancellationToken::new();
    let task = tokio::spawn(filter_files(followed, judged, filtered, cancel.clone()));
    exclusions.send_replace(excluded(&[2]));
    let is_of_one = |snapshot: &Arc<StateFilesSnapshot>| {
        snapshot.dns.as_ref().unwrap().records["web.default"] == [address(1, 10)]
    };
    let first = seen.wait_for(is_of_one).await.unwrap().clone();
    let held = services(&[(1, Serving), (2, Held)]);
    assert_eq!(first.services.as_deref(), Some(&held));
    // A change of one file leaves the others as they are, so that their readers do nothing.
    let mut next = StateFilesSnapshot::clone(&files.borrow());
    next.dns = snapshot(2).dns.clone();
    files.send_replace(Arc::new(next));
    let is_later = |snapshot: &Arc<StateFilesSnapshot>| {
        snapshot.dns.as_ref().unwrap().revision == 2 && is_of_one(snapshot)
    };
    let second = seen.wait_for(is_later).await.unwrap().clone();
    let services = |snapshot: &StateFilesSnapshot| snapshot.services.clone().unwrap();
    assert!(Arc::ptr_eq(&services(&first), &services(&second)));
    exclusions.send_replace(Excluded::default());
    let whole = seen
        .wait_for(|snapshot| !is_of_one(snapshot))
        .await
        .unwrap();
    assert_eq!(**whole, **files.borrow());
    drop(whole);
    cancel.cancel();
    task.await.unwrap();
}

fn state() -> impl Strategy<Value = BackendState> {
    prop_oneof![Just(Serving), Just(Leaving), Just(Held)]
}

proptest! {
    /// No set of exclusions takes the last instance away from a port or a name, and no exclusion
    /// changes an instance of another machine.
    #[test]
    fn no_name_loses_its_last_instance(
        behind in proptest::collection::btree_map(1u8..9, state(), 0..8),
        machines in proptest::collection::btree_set(1u8..9, 0..8),
    ) {
        let behind: Vec<(u8, BackendState)> = behind.into_iter().collect();
        let machines: Vec<u8> = machines.into_iter().collect();
        let excluded = excluded(&machines);
        let serving = |services: &Services| -> Vec<Ipv4Addr> {
            let instances = &services.services["default/web"].ports[0].instances;
            let serving = instances.iter().filter(|(_, state)| **state == Serving);
            serving.map(|(address, _)| *address).collect()
        };
        let before = services(&behind);
        let after = services_without(&before, &excluded);
        let (had, has) = (serving(&before), serving(&after));
        prop_assert_eq!(had.is_empty(), has.is_empty());
        let kept: Vec<Ipv4Addr> = had.iter().copied().filter(|one| !is_of_any(&excluded, *one)).collect();
        prop_assert_eq!(&has, if kept.is_empty() { &had } else { &kept });

        let numbers: Vec<u8> = behind.iter().map(|(machine, _)| *machine).collect();
        let before = records(&[("web.default", &numbers)]);
        let after = records_without(&before, &excluded);
        let named = |records: &DnsRecords| records.records["web.default"].clone();
        prop_assert_eq!(named(&before).is_empty(), named(&after).is_empty());
        prop_assert!(named(&after).iter().all(|one| named(&before).contains(one)));
    }
}

#[tokio::test]
async fn the_excluded_peers_are_written_for_the_reverse_proxy() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("silent-peers.json");
    let excluded = watch::Sender::new(Excluded::default());
    let cancel = CancellationToken::new();
    let publishing = publish(excluded.subscribe(), path.clone(), cancel.clone());
    let task = tokio::spawn(publishing);
    for expected in [&["n2"][..], &["n2", "n3"], &[]] {
        let subnet = "10.100.2.0/23".parse().unwrap();
        excluded.send_replace(
            expected
                .iter()
                .map(|name| ((*name).to_owned(), subnet))
                .collect(),
        );
        let written = async {
            loop {
                let text = std::fs::read(&path).unwrap_or_default();
                let read = serde_json::from_slice::<SilentPeers>(&text);
                if read.is_ok_and(|peers| peers.subnets.keys().eq(expected.iter())) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let limit = std::time::Duration::from_secs(10);
        tokio::time::timeout(limit, written).await.unwrap();
    }
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    cancel.cancel();
    task.await.unwrap();
}
