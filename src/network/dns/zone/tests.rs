use hickory_proto::rr::rdata::A;

use super::*;
use crate::dns::tests::{node, records, zone};

const CONTAINER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 100, 0, 7));
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn ask(source: IpAddr, name: &str, kind: RecordType) -> Lookup {
    let question = Query::query(Name::from_ascii(name).unwrap(), kind);
    zone().lookup(source, &question)
}

/// The sorted addresses of an answer. Each record must have the name exactly as in the question.
fn addresses(source: IpAddr, name: &str) -> Vec<String> {
    let Lookup::Answer(records) = ask(source, name, RecordType::A) else {
        panic!("{name} has no answer");
    };
    let mut addresses: Vec<String> = records
        .iter()
        .map(|record| {
            assert_eq!(record.name.to_ascii(), name);
            assert_eq!(record.ttl, TTL);
            match record.data {
                RData::A(A(address)) => address.to_string(),
                _ => panic!("not an address"),
            }
        })
        .collect();
    addresses.sort();
    addresses
}

fn authority(lookup: &Lookup) -> String {
    match lookup {
        Lookup::NoData(record) | Lookup::NoName(record) => {
            assert!(
                matches!(&record.data, RData::SOA(soa) if soa.minimum == TTL && soa.serial == 42)
            );
            record.name.to_ascii()
        }
        other => panic!("{other:?} has no authority"),
    }
}

#[test]
fn every_kind_of_name_is_found() {
    assert_eq!(
        addresses(LOCAL, "web.default.kat.cluster.local."),
        ["10.100.0.2", "10.100.2.3"]
    );
    assert_eq!(
        addresses(LOCAL, "web-ab12c.web.default.kat.cluster.local."),
        ["10.100.0.2"]
    );
    assert_eq!(
        addresses(LOCAL, "n1.node.kat.cluster.local."),
        ["10.100.0.1"]
    );
}

#[test]
fn case_does_not_matter_and_is_kept() {
    assert_eq!(
        addresses(LOCAL, "DB.foo.KAT.cluster.LOCAL."),
        ["10.200.0.5"]
    );
}

#[test]
fn short_names_are_those_of_the_namespace_first() {
    assert_eq!(
        addresses(CONTAINER, "web."),
        ["10.100.0.7"],
        "its own namespace"
    );
    assert_eq!(addresses(CONTAINER, "Db."), ["10.200.0.5"]);
    assert_eq!(
        addresses(CONTAINER, "web.default."),
        ["10.100.0.2", "10.100.2.3"]
    );
    assert_eq!(addresses(CONTAINER, "n1.node."), ["10.100.0.1"]);
    assert_eq!(
        addresses(CONTAINER, "web-ab12c.web.default."),
        ["10.100.0.2"]
    );
    assert!(matches!(
        ask(CONTAINER, "web.", RecordType::AAAA),
        Lookup::NoData(_)
    ));
}

#[test]
fn short_names_are_nobody_elses() {
    let other = IpAddr::V4(Ipv4Addr::new(10, 100, 2, 9));
    for source in [LOCAL, other] {
        assert_eq!(ask(source, "web.", RecordType::A), Lookup::Forward);
        assert_eq!(ask(source, "web.default.", RecordType::A), Lookup::Forward);
    }
}

#[test]
fn a_namespace_hides_no_name_of_the_world() {
    for name in ["default.", "node.", "foo.", "example.org.", "."] {
        assert_eq!(
            ask(CONTAINER, name, RecordType::A),
            Lookup::Forward,
            "{name}"
        );
    }
}

#[test]
fn existing_names_have_no_other_types() {
    for (name, kind) in [
        ("web.default.kat.cluster.local.", RecordType::AAAA),
        ("web.default.kat.cluster.local.", RecordType::MX),
        ("kat.cluster.local.", RecordType::A),
        ("default.kat.cluster.local.", RecordType::A),
        ("node.kat.cluster.local.", RecordType::A),
        ("down.default.kat.cluster.local.", RecordType::A),
    ] {
        let lookup = ask(LOCAL, name, kind);
        assert!(
            matches!(lookup, Lookup::NoData(_)),
            "{name} {kind}: {lookup:?}"
        );
        assert_eq!(authority(&lookup), "kat.cluster.local.");
    }
}

#[test]
fn unknown_names_of_the_cluster_are_never_forwarded() {
    for name in [
        "nope.kat.cluster.local.",
        "a.b.c.d.kat.cluster.local.",
        "web.default\\.kat.kat.cluster.local.",
    ] {
        let lookup = ask(CONTAINER, name, RecordType::A);
        assert!(matches!(lookup, Lookup::NoName(_)), "{name}: {lookup:?}");
        assert_eq!(authority(&lookup), "kat.cluster.local.");
    }
}

#[test]
fn a_dot_within_a_label_is_no_dot() {
    let lookup = ask(LOCAL, "web\\.default.kat.cluster.local.", RecordType::A);
    assert!(matches!(lookup, Lookup::NoName(_)), "{lookup:?}");
    assert_eq!(
        ask(LOCAL, "xkat.cluster.local.", RecordType::A),
        Lookup::Forward
    );
}

#[test]
fn the_domain_has_an_authority() {
    let Lookup::Answer(records) = ask(LOCAL, "kat.cluster.local.", RecordType::SOA) else {
        panic!("no answer");
    };
    let RData::SOA(soa) = &records[0].data else {
        panic!("not an authority");
    };
    assert_eq!(soa.mname.to_ascii(), "n1.node.kat.cluster.local.");
}

#[test]
fn addresses_have_names() {
    let pointer = |name: &str| match ask(LOCAL, name, RecordType::PTR) {
        Lookup::Answer(records) => match &records[0].data {
            RData::PTR(PTR(target)) => target.to_ascii(),
            _ => panic!("not a pointer"),
        },
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(
        pointer("2.0.100.10.in-addr.arpa."),
        "web-ab12c.web.default.kat.cluster.local."
    );
    assert_eq!(
        pointer("1.0.100.10.IN-ADDR.arpa."),
        "n1.node.kat.cluster.local."
    );
    assert_eq!(
        pointer("5.0.200.10.in-addr.arpa."),
        "db.foo.kat.cluster.local."
    );

    let lookup = ask(LOCAL, "9.9.100.10.in-addr.arpa.", RecordType::PTR);
    assert!(matches!(lookup, Lookup::NoName(_)));
    assert_eq!(authority(&lookup), "100.10.in-addr.arpa.");
    for name in ["0.100.10.in-addr.arpa.", "100.10.in-addr.arpa."] {
        assert!(
            matches!(ask(LOCAL, name, RecordType::PTR), Lookup::NoData(_)),
            "{name}"
        );
    }
    for name in [
        "10.in-addr.arpa.",
        "1.2.0.192.in-addr.arpa.",
        "1.1.0.100.10.in-addr.arpa.",
        "300.0.100.10.in-addr.arpa.",
        "x.in-addr.arpa.",
    ] {
        assert_eq!(ask(LOCAL, name, RecordType::PTR), Lookup::Forward, "{name}");
    }
}

#[test]
fn strangers_and_whole_zones_are_refused() {
    for source in ["192.0.2.1", "10.200.0.1", "2001:db8::1", "10.101.0.1"] {
        let lookup = ask(
            source.parse().unwrap(),
            "web.default.kat.cluster.local.",
            RecordType::A,
        );
        assert_eq!(lookup, Lookup::Refused, "{source}");
    }
    for kind in [RecordType::ANY, RecordType::AXFR, RecordType::IXFR] {
        assert_eq!(ask(LOCAL, "kat.cluster.local.", kind), Lookup::Refused);
        assert_eq!(ask(LOCAL, "example.org.", kind), Lookup::Refused);
    }
    let mut question = Query::query(Name::from_ascii("version.bind.").unwrap(), RecordType::TXT);
    question.set_query_class(DNSClass::CH);
    assert_eq!(zone().lookup(LOCAL, &question), Lookup::Refused);
}

#[test]
fn several_addresses_come_in_any_order() {
    let orders: BTreeSet<String> = (0..64)
        .map(|_| {
            format!(
                "{:?}",
                ask(LOCAL, "web.default.kat.cluster.local.", RecordType::A)
            )
        })
        .collect();
    assert_eq!(orders.len(), 2);
}

#[test]
fn a_record_that_is_no_name_spoils_no_other() {
    let mut records = records();
    records
        .records
        .insert("a..b".to_owned(), vec![Ipv4Addr::LOCALHOST]);
    records
        .records
        .insert("x".repeat(64), vec![Ipv4Addr::LOCALHOST]);
    let zone = Zone::new(&node(), &Instances::default(), &records).unwrap();
    assert_eq!(zone.records.len(), 6);
}

#[test]
fn a_domain_must_be_a_name() {
    for domain in ["", ".", "a..b"] {
        let node = NodeNetwork {
            cluster_domain: domain.to_owned(),
            ..node()
        };
        let error = Zone::new(&node, &Instances::default(), &DnsRecords::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("`{domain}` can't be the domain")),
            "{error}"
        );
    }
}

#[test]
fn with_isolation_short_names_are_those_of_the_own_namespace_alone() {
    let ask = |name: &str| {
        let zone = zone().with_own_namespace_only(true);
        let question = Query::query(Name::from_ascii(name).unwrap(), RecordType::A);
        zone.lookup(CONTAINER, &question)
    };
    for own in ["web.", "Db."] {
        assert!(matches!(ask(own), Lookup::Answer(_)), "{own}");
    }
    for other in ["web.default.", "n1.node.", "web-ab12c.web.default."] {
        assert_eq!(ask(other), Lookup::Forward, "{other}");
    }
    assert!(matches!(
        ask("web.default.kat.cluster.local."),
        Lookup::Answer(_)
    ));
}
